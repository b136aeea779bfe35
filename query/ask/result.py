"""The answers to `ask`: models that texts were probably used for, or texts that a model was probably tuned on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from query.results import Rows
from query.texts import GIVEN
from query.wording import counted, decimal, percent

_WORTH = 0.05  # a smaller share is not named in the headline


@dataclass(frozen=True)
class LikelyModel:
    """One model, by how likely it was tuned on texts like those of the file.

    ``score``: all evidence together, as a z-score. ``p_value``: the share of comparisons of reference texts with models
    whose score is at least as high. ``expected_by_chance``: how many of the models searched are expected to score as
    high by chance. ``by_vocabulary`` and ``by_vectors`` are cosines, from -1 to 1; None for a model without.
    """

    rank: int
    model: str
    score: float
    p_value: float
    expected_by_chance: float
    by_vocabulary: float | None
    by_vectors: float | None
    datasets: list[str]
    author: str
    relation: str


@dataclass(frozen=True, eq=False, repr=False)
class LikelyModels(Rows[LikelyModel]):
    """The models of ``base`` that were probably tuned on texts like those of ``file``, the most likely first.

    ``searched``: the number of models compared; ``standing_out`` of them score higher than chance explains.
    """

    COLUMNS = tuple(LikelyModel.__dataclass_fields__)
    KEYS = ("file", "base", "texts", "searched", "standing_out", "items as models", "notes")
    OPTIONAL_COLUMNS = ("author", "relation", "by_vocabulary", "by_vectors", "p_value", "datasets")
    SHOW_HEADLINE = True

    file: str
    base: str
    texts: int
    searched: int
    standing_out: int
    items: tuple[LikelyModel, ...]
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """How many models stand out, and the first; or that none does."""
        among = f"the {counted(self.searched, 'model')} of {self.base}"
        like = "texts like these" if self.file == GIVEN else f"texts like those of {self.file}"
        if not self.items:
            return f"There is no model of {self.base} to compare {self.file} with."
        if not self.standing_out:
            return f"No model stands out: none of {among} was clearly tuned on {like}."
        first, count = self.items[0], self.standing_out
        stand = "stands out" if count == 1 else "stand out"
        which = f"first {first.model}" if count > 1 else first.model
        named = f" (on its card: {', '.join(first.datasets)})" if first.datasets else ""
        return f"{count:,} of {among} {stand} as tuned on {like}: {which}{named}."

    def table(self, *, details: bool = False) -> list[dict[str, Any]]:
        """The rows with few digits."""
        return [row | _short(row) for row in self.to_rows()]


@dataclass(frozen=True)
class LikelyTexts:
    """One file, by how likely the model was tuned on texts like its. The numbers are those of :class:`LikelyModel`.

    ``is_answer``: whether it is likely enough to be the answer. ``share``: of the tokens of the training text that the
    files explain, how many are of this one, with a 95 % interval; None for one file, or a model without vocabulary.
    """

    rank: int
    file: str
    score: float
    p_value: float
    by_vocabulary: float | None
    by_vectors: float | None
    texts: int
    is_answer: bool
    share: float | None = None
    share_low: float | None = None
    share_high: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class TextsOfModel(Rows[LikelyTexts]):
    """Files of texts, by how likely ``model`` was tuned on texts like theirs, the most likely first.

    ``answer``: the first one, or None for "none of them".
    """

    IS_LIST = False
    COLUMNS = tuple(LikelyTexts.__dataclass_fields__)
    KEYS = ("model", "base", "answer", "items as files", "notes")
    OPTIONAL_COLUMNS = ("texts", "by_vocabulary", "by_vectors", "p_value")
    SHOW_HEADLINE = True

    model: str
    base: str
    answer: str | None
    items: tuple[LikelyTexts, ...]
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The answer. Files are named without their folders if that is enough to tell them apart."""
        paths = [row.file for row in self.items]
        names = [Path(one).name for one in paths]
        short = dict(zip(paths, names if len(set(names)) == len(names) else paths, strict=True))
        if self.answer is None:
            return f"No match: none of these files resembles the training text of {self.model} clearly enough."
        parts = sorted((row for row in self.items if (row.share or 0) >= _WORTH), key=lambda row: -(row.share or 0))
        named = (
            f" In shares: {', '.join(f'{short[row.file]} {percent(row.share)}' for row in parts[:5])}."
            if len(parts) > 1
            else ""
        )
        return f"{self.model} was probably tuned on texts like those of {short[self.answer]}.{named}"

    def table(self, *, details: bool = False) -> list[dict[str, Any]]:
        """The rows with few digits."""
        return [row | _short(row) for row in self.to_rows()]


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """The numbers as a person reads them."""
    found: dict[str, Any] = {"p_value": f"{row['p_value']:.2g}", "score": decimal(row["score"])}
    if "expected_by_chance" in row:
        found["expected_by_chance"] = f"{row['expected_by_chance']:.2g}"
    for name in ("by_vocabulary", "by_vectors", "share", "share_low", "share_high"):
        if name in row:
            found[name] = decimal(row[name])
    return found
