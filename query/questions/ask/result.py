"""The answers to `ask`: models that texts were probably used for, or texts that a model was probably tuned on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from query.contract.columns import EXPECTED_BY_CHANCE, Author, BaseId, DatasetList, ModelId, Notes, Relation
from query.contract.results import After, Doc, Format, If, Rows
from query.models.texts import GIVEN
from query.shared.wording import counted, decimal, percent, two_digits

# Documentation that several fields share.
_RANK = Doc("Place in the list; 1 is the most likely.")
_SCORE = Doc(
    "All evidence together: how far a model's resemblance to the texts lies above that of other models, and of "
    "texts that no model was trained on, in standard deviations."
)
_P_VALUE = Doc(
    "Share of comparisons of reference texts with models that score at least as high: how often chance scores as "
    "high with this one model."
)
_BY_VOCABULARY = Doc(
    "Cosine, from -1 to 1, between how often the texts use each token and how much training moved its row of the "
    "input embedding, both against the average. Empty for adapters and frozen embeddings."
)
_BY_VECTORS = Doc(
    "Mean cosine, from -1 to 1, between the inputs that the texts give to the base's matrices and the directions "
    "that training changed, both against the average."
)
_FILE = Doc("The file of texts.")
_TEXTS = Doc("Number of texts that were used.")

_WORTH = 0.05  # a smaller share is not named in the headline


@dataclass(frozen=True)
class LikelyModel:
    """One model, by how likely it was tuned on texts like those of the file."""

    rank: Annotated[int, _RANK]
    model: ModelId
    score: Annotated[float, _SCORE, Format(decimal)]
    p_value: Annotated[float, _P_VALUE, Format(two_digits)]
    expected_by_chance: Annotated[float, EXPECTED_BY_CHANCE, Format(two_digits)]
    by_vocabulary: Annotated[float | None, _BY_VOCABULARY, Format(decimal)]
    by_vectors: Annotated[float | None, _BY_VECTORS, Format(decimal)]
    datasets: DatasetList
    author: Author
    relation: Relation
    base: Annotated[str | None, Doc("Base of the model (--all-bases)."), If(), After("model")] = None


@dataclass(frozen=True, eq=False, repr=False)
class LikelyModels(Rows[LikelyModel]):
    """The models of ``base`` that were probably tuned on texts like those of ``file``, the most likely first."""

    ROWS = "models"
    OPTIONAL_COLUMNS = ("author", "relation", "by_vocabulary", "by_vectors", "p_value", "datasets")
    SHOW_HEADLINE = True

    file: Annotated[str, _FILE]
    base: BaseId
    texts: Annotated[int, _TEXTS]
    searched: Annotated[int, Doc("Number of models that were compared.")]
    standing_out: Annotated[
        int,
        Doc(
            "Number of models that score higher than chance explains, at a false discovery rate of .1; on three "
            "trained families, .11 to .16 of them were wrong."
        ),
    ]
    models: Annotated[tuple[LikelyModel, ...], Doc("The models, the most likely first.")]
    notes: Notes = ()

    @property
    def headline(self) -> str:
        """How many models stand out, and the first; or that none does."""
        population = f"the {counted(self.searched, 'model')} of {self.base}"
        such_texts = "texts like these" if self.file == GIVEN else f"texts like those of {self.file}"
        if not self.models:
            return f"There is no model of {self.base} to compare {self.file} with."
        if not self.standing_out:
            return f"No model stands out: none of {population} was clearly tuned on {such_texts}."
        first, count = self.models[0], self.standing_out
        verb = "stands out" if count == 1 else "stand out"
        models = f"first {first.model}" if count > 1 else first.model
        on_card = f" (on its card: {', '.join(first.datasets)})" if first.datasets else ""
        return f"{count:,} of {population} {verb} as tuned on {such_texts}: {models}{on_card}."


@dataclass(frozen=True)
class LikelyTexts:
    """One file, by how likely the model was tuned on texts like its. See :class:`LikelyModel`."""

    rank: Annotated[int, _RANK]
    file: Annotated[str, _FILE]
    score: Annotated[float, _SCORE, Format(decimal)]
    p_value: Annotated[float, _P_VALUE, Format(two_digits)]
    by_vocabulary: Annotated[float | None, _BY_VOCABULARY, Format(decimal)]
    by_vectors: Annotated[float | None, _BY_VECTORS, Format(decimal)]
    texts: Annotated[int, _TEXTS]
    is_answer: Annotated[
        bool,
        Doc(
            "Whether the model was probably tuned on texts like these: its p_value times the number of files is "
            "at most .05."
        ),
    ]
    share: Annotated[
        float | None,
        Doc(
            "Share of this file in the tokens of the training text that the files explain, from 0 to 1; empty for "
            "a model without a trace, or if only one file is asked about."
        ),
        Format(decimal),
    ] = None
    share_low: Annotated[float | None, Doc("Lower end of a 95 % interval of the share."), Format(decimal)] = None
    share_high: Annotated[float | None, Doc("Upper end of a 95 % interval of the share."), Format(decimal)] = None


@dataclass(frozen=True, eq=False, repr=False)
class TextsOfModel(Rows[LikelyTexts]):
    """Files of texts, by how likely ``model`` was tuned on texts like theirs, the most likely first."""

    ROWS = "files"
    IS_LIST = False
    OPTIONAL_COLUMNS = ("texts", "by_vocabulary", "by_vectors", "p_value")
    SHOW_HEADLINE = True

    model: ModelId
    base: BaseId
    answer: Annotated[
        str | None, Doc("The file whose texts are most like those that the model was tuned on; empty if no file is.")
    ]
    files: Annotated[tuple[LikelyTexts, ...], Doc("The files, the most likely first.")]
    notes: Notes = ()

    @property
    def headline(self) -> str:
        """The answer. Files are named without their folders if that is enough to distinguish them."""
        paths = [row.file for row in self.files]
        names = [Path(path).name for path in paths]
        short = dict(zip(paths, names if len(set(names)) == len(names) else paths, strict=True))
        if self.answer is None:
            return f"No match: none of these files resembles the training text of {self.model} clearly enough."
        largest_shares = sorted(
            (row for row in self.files if (row.share or 0) >= _WORTH), key=lambda row: -(row.share or 0)
        )
        on_card = (
            f" In shares: {', '.join(f'{short[row.file]} {percent(row.share)}' for row in largest_shares[:5])}."
            if len(largest_shares) > 1
            else ""
        )
        return f"{self.model} was probably tuned on texts like those of {short[self.answer]}.{on_card}"
