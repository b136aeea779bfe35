"""Fields that several answers share, each described once; see ``query.contract.results``.

An answer may describe one anew.
"""

from __future__ import annotations

from typing import Annotated

from query.contract.results import Doc

# Meanings that fields of several answers share although their types or formats differ.
EXPECTED_BY_CHANCE = Doc(
    "How many of the models searched would score as high, or be as similar, by chance: p_value (of ask) or "
    "background (of similar) times their number. If it is well below 1, chance is an unlikely explanation."
)
CHANCE = Doc(
    "What the number would be if the vectors contained no information: the mean over random labels or neighbours."
)
P_VALUE = Doc(
    "How often randomly shuffled labels score at least as high; all runs of one author on one dataset keep one "
    "label. Below 0.05 is usually taken as more than chance."
)
CLUSTERED_MODELS = Doc("Number of models that were clustered.")
LEFT_OUT = Doc("How many models were left out, and why.")
SIMILARITY = Doc(
    "How alike two weight changes are, from -1 to 1: the mean cosine of the matrices that both models changed. 1 "
    "is the same direction, 0 nothing in common."
)
LAYER_OR_FAMILY = Doc("The layer, or the family of matrices.")
SIMILARITY_ERROR = Doc(
    "How far the similarity may move as models are added to the atlas: the common part of all full fine-tunes "
    "is subtracted from their vectors, and is estimated better with more authors and data sets. 0 for two adapters, "
    "whose vectors are not centred."
)
BACKGROUND = Doc(
    "Share of pairs of unrelated models (other authors, no dataset in common) that are at least as similar, from "
    "0 to 1. The smaller it is, the less likely a coincidence. Empty if too few such pairs are known."
)
BACKGROUND_PAIRS = Doc("Number of pairs of unrelated models behind background.")
BACKGROUND_FLOOR = Doc(
    "The smallest possible background, which means that none of the pairs is as similar: 1/(1 + pairs)."
)
MATRICES = Doc("Number of weight matrices that both models changed. Below 4 the similarity is shrunk towards 0.")
SEED = Doc("Random seed.")
ROW_FOR_EACH_LAYER = Doc("A row for each layer.")
IMAGE_RECIPE = Doc("How the images were found.")
STACK = Doc("encoder, decoder, text, vision and so on, if the model has several.")
LAYER = Doc("Number of the layer, from 0.")
FAMILY = Doc(
    "Family of matrices: query, key, value, output, feedforward1, feedforward2, gate and others "
    "(docs/guide/families.md); with its stack (encoder, decoder) if there are two."
)
DOWNLOADS = Doc("Downloads in the last 30 days.")
READ = Doc("What was read of the model: full, or sample (some rows of every matrix). Norms of a sample are estimates.")
WEIGHT_BYTES = Doc("Bytes of its weight files.")
COLOUR_GROUP = Doc("The group that gives the point its colour.")
VOTING_MODELS = Doc("The models that voted for it, the largest vote first.")
MADE_FROM = Doc(
    "The evidence for the prediction: together, vectors, head or vocabulary; without_vocabulary is vectors and "
    "head; majority and chance are baselines."
)
NO_INTERVAL = Doc("Why there is no interval: too_few_authors; else empty.")

Notes = Annotated[tuple[str, ...], Doc("Sentences to read with the numbers: reasons to trust them less.")]
BaseId = Annotated[str, Doc("Id of the base model.")]
Vectors = Annotated[str, Doc("Which vectors were compared.")]
ModelId = Annotated[
    str, Doc("Id of the model: owner/name on the Hub, or local:NAME for one that was added from a folder.")
]
AskedModel = Annotated[str, Doc("The model asked about.")]
ModelNumber = Annotated[int, Doc("Number of the model in this atlas.")]
Author = Annotated[str, Doc("The account on the Hub that the model belongs to.")]
Relation = Annotated[str, Doc("How the model was made from its base: finetune, adapter, merge or quantized.")]
_DATASETS = Doc("Datasets that the card, the tags or the reported results name, each under one spelling.")
Datasets = Annotated[tuple[str, ...], _DATASETS]
DatasetList = Annotated[list[str], _DATASETS]
Dataset = Annotated[str, Doc("Name of a dataset, under one spelling: glue, not nyu-mll/glue.")]
Similarity = Annotated[
    float | None,
    SIMILARITY,
]
Models = Annotated[int, Doc("Number of models.")]
OF_A_BATCH = {"asked": "The model as it was named on stdin.", "error": "Why there is no answer."}
Authors = Annotated[int, Doc("Number of accounts.")]
