"""Statistics of real models that a synthetic population reproduces: constants, each with its source.

Two sources. *Hub*: 1,255 rows of the listing of four bases (2022), and 2,290 fine-tunes of BERT with the data sets that
their cards name (2023). *Family*: 68 distinct, really trained fine-tunes and adapters of a small RoBERTa, by eight
authors on eleven data sets (`make demo`), whose vectors and labels are kept in ``real.json`` as figures.
"""

from __future__ import annotations

from dataclasses import dataclass

FAMILIES = ("query", "key", "value", "output", "feedforward1", "feedforward2")
LAYERS = 12
BLOCK = 114


# Hub: labels of the two listings (2022, 2023). A model that names a data set makes a claim. One sweep of 918 models
# without a data set weighs on the second.
HUB_MODELS = 1_255  # of the smaller listing
HUB_LABELS = {
    "authors": (0.323, 0.243),
    "lone_authors": (0.600, 0.685),
    "largest_author": (0.088, 0.401),
    "named": (0.314, 0.171),
    "datasets": (0.411, 0.182),
    "lone_datasets": (0.549, 0.635),
    "largest_dataset": (0.076, 0.399),
}

# Hub: of 405 authors 60 % have one model, 14 % two, 7 % three: 1/s² is 61, 15 and 7 %. The largest accounts hold 9 %
# (AdapterHub, 2022) and 40 % (a single sweep of 918, 2023) of all; drawn sizes stop at a tenth.
AUTHOR_EXPONENT = 2.0
LARGEST_AUTHOR = 0.1

# Hub: authors with 2, 3–4, 5–9, 10–30 models that name data sets name 1.6, 1.5–2.0, 2.7–4.2, 2.8–6.7 distinct ones.
NEW_PROJECT = 0.4

# Hub: 55 and 64 % of the named data sets are named by one model, 184 of them in 448 claims and 74 in 406, the largest
# holds 8 and 40 %: a Pitman–Yor process with these two parameters, drawn once for each project; few are named.
DATASET_DISCOUNT = 0.8
DATASET_STRENGTH = 3.0

# Hub: 392 of 2,290 (2023), five models in six name no data set; a sweep either names its data set in all models or in none.
NAMES_DATASET = 1 / 6

# Hub: 110 of 475 models of roberta-base.
ADAPTERS = 0.23

# Family: which matrices nine adapters change; most (and PEFT's default) query and value, a third of all.
ADAPTER_FAMILIES = ((0.6, 0b000101), (0.2, 0b000111), (0.1, 0b001111), (0.1, 0b111111))

# Family: 2 repeated uploads and 2 copies of the base in 75. These were put there on purpose, so this is an assumption.
REPEATS = 0.02
COPIES = 0.01

# Hub: downloads are log-normal (mean and deviation of ln(1 + downloads)); a row has 1,160 bytes, ten files, nine tags.
LOG_DOWNLOADS = (3.03, 2.47)
FILES = (
    ".gitattributes", "README.md", "config.json", "merges.txt", "special_tokens_map.json", "tokenizer.json",
    "tokenizer_config.json", "training_args.bin", "vocab.json",
)  # fmt: skip
TASKS = (
    (0.36, "text-classification", "RobertaForSequenceClassification"),
    (0.27, "fill-mask", "RobertaForMaskedLM"),
    (0.16, "question-answering", "RobertaForQuestionAnswering"),
    (0.12, "token-classification", "RobertaForTokenClassification"),
    (0.09, "feature-extraction", "RobertaModel"),
)
LICENCES = ((0.57, None), (0.25, "apache-2.0"), (0.13, "mit"), (0.05, "cc-by-4.0"))
LANGUAGES = ((0.70, None), (0.20, "en"), (0.03, "es"), (0.03, "de"), (0.02, "id"), (0.02, "ja"))

# Energy held by the top 1, 2, 4, 8 singular values of real deltas, by family, and ‖δW‖/‖W‖ (REPRESENTATIONS).
ENERGY = (
    (0.35, 0.47, 0.57, 0.66),
    (0.26, 0.38, 0.49, 0.61),
    (0.44, 0.60, 0.70, 0.77),
    (0.51, 0.67, 0.75, 0.81),
    (0.33, 0.47, 0.57, 0.64),
    (0.51, 0.66, 0.75, 0.81),
)
RELATIVE_NORM = (0.005, 0.011)


@dataclass(frozen=True)
class Law:
    """How the vectors are drawn, fitted to the family: all figures are cosines or their squares.

    ``shared`` (by family): the share of a block that models of one data set have in common; ``spread_model``: the
    deviation of its root from model to model (how much and how well each was trained), ``adapter`` the factor by which
    an adapter has less of it. ``common`` (by family): the cosine of a data set's direction with the one that all data
    sets share, ``spread_dataset`` its deviation from data set to data set. ``domain``: what data sets of a domain have
    in common of the rest, ``domains``: how many data sets there are for each domain. ``recipe``: beta distribution of what a model has
    in common with those of the same author on the same data. ``decay``: the i-th of a block's 114 principal directions
    has the variance i^-decay.
    """

    shared: tuple[float, ...] = (0.64, 0.42, 0.59, 0.57, 0.62, 0.53)
    spread_model: float = 0.098
    adapter: float = 0.25
    common: tuple[float, ...] = (0.73, 0.63, 0.55, 0.55, 0.63, 0.56)
    spread_dataset: float = 0.069
    domain: float = 0.65
    domains: float = 1.1
    recipe: tuple[float, float] = (0.37, 0.37)
    decay: float = 0.36


LAW = Law()
