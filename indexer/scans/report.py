"""What a scan found, as one object: a terminal's tables, JSON and the page are made from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from indexer.console.notebook import shown
from indexer.names import DuplicateKind
from indexer.quantities import counted, size_in_words, some_of
from indexer.scans.reading import FULL

# Kinds of findings that a scan may be asked to fail on.
UNRELATED, BROKEN, DUPLICATE = "unrelated", "broken", "duplicate"
FAILURES = (UNRELATED, BROKEN, DUPLICATE)

Basis = Literal["weights", "names", "shapes", "stated"]
Verdict = Literal["confirmed", "fits", "contradicted", "open", "not checked"]
NOT_HERE = "not checked: base not here"
UNKNOWN = "not known"

_MOST_ROWS = 20  # of a table on a terminal
_MOST_NAMED = 5


@dataclass(frozen=True)
class PlaceScanned:
    """A place: its last name, without the folders that it lies in, and what is there."""

    place: str
    models: int
    bytes: int


@dataclass(frozen=True)
class ScannedModel:
    """One model of a place.

    Attributes:
        model: its path in the place, behind the name of the place if there are several; an id in the Hub's cache.
        place: the name of the place.
        kind: "full model", the kind of an adapter, or the format of a conversion ("GGUF Q4_K_M"); "" if it cannot be
            read.
        bytes: of its weight files.
        base: the base that it was made from: as the weights tell, or else as its files state; None if neither does.
        probability: that it was made from that base, where they were compared.
        basis: weights, names (and shapes that fit), shapes alone, or stated: not compared.
        evidence: what speaks for the base, or against all.
        claim: the base that its files name, and ``claimed_in``: which of them.
        verdict: what the comparison says of the claim: confirmed by the weights; fits, as far as an adapter's shapes
            tell; contradicted; open; or not checked, because the base is not here.
        allowed: whether it was made from a base that was given; None where none was, or where that cannot be told.
        step: how far its training had come.
        licence: as its card or the metadata of its file state it; None if neither does.
        untrained: why it is as if it had never been trained; "" otherwise.
        copy_of: of a conversion, the model of the scan, or its base, that it is a copy of; None if that is not known.
        copy_verdict: how sure that is, as in the table conversions of an atlas; None if it was not looked for.
        problem: a code for why it could not be read, or compared; "" otherwise; ``detail`` says it in words.
        is_broken: whether it is damaged or out of reach, and not only of a kind that is not read.
    """

    model: str
    place: str
    kind: str
    bytes: int
    base: str | None = None
    probability: float | None = None
    basis: Basis | None = None
    evidence: tuple[str, ...] = ()
    claim: str | None = None
    claimed_in: str = ""
    verdict: Verdict | None = None
    allowed: bool | None = None
    step: int | None = None
    licence: str | None = None
    untrained: str = ""
    copy_of: str | None = None
    copy_verdict: str | None = None
    problem: str = ""
    detail: str = ""
    is_broken: bool = False

    @property
    def is_untold(self) -> bool:
        """Whether it cannot be told if it was made from one of the bases that were given."""
        return self.allowed is None and not self.problem

    @property
    def is_unrelated(self) -> bool:
        """Whether it was not made from the base that it names, or from none of those given."""
        return self.verdict == "contradicted" or self.allowed is False


@dataclass(frozen=True)
class ScannedRun:
    """A training run with several checkpoints; ``earlier_bytes``: those of all checkpoints but the last."""

    run: str
    checkpoints: int
    last: str
    first_step: int | None
    last_step: int | None
    bytes: int
    earlier_bytes: int


@dataclass(frozen=True)
class ScannedDuplicate:
    """A model that repeats another, which is kept: the last of a run, else the earliest. See ``DuplicateKind``."""

    model: str
    of: str
    kind: DuplicateKind
    distance: float
    bytes: int


@dataclass(frozen=True)
class LeftOut:
    """What is no model that can be read, by reason: how often, and the first of them."""

    reason: str
    count: int
    first: str


@dataclass(frozen=True)
class Broken:
    """A model, or a part of a place, that is damaged or cannot be reached. ``count``: how many there are like it."""

    model: str
    reason: str
    detail: str
    count: int = 1


@dataclass(frozen=True, repr=False)
class Scan:
    """Everything that a scan found.

    ``unreachable``: parts of places that could not be read. ``unread``: models that were not read, because the scan was
    stopped. ``bases``: the ids of those that were given; ``bytes_read``: of all models.
    """

    places: tuple[PlaceScanned, ...]
    models: tuple[ScannedModel, ...]
    runs: tuple[ScannedRun, ...] = ()
    duplicates: tuple[ScannedDuplicate, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    unreachable: tuple[Broken, ...] = ()
    bases_given: tuple[str, ...] = ()
    unread: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    compared: frozenset[str] = field(default_factory=frozenset)

    # ---- sections

    @property
    def bytes(self) -> int:
        """Of the weight files of all models."""
        return sum(model.bytes for model in self.models)

    @cached_property
    def kinds(self) -> list[dict[str, Any]]:
        """Kinds of models, with their numbers and bytes."""
        return _counted("kind", ((model.kind or "cannot be read", model) for model in self.models))

    @cached_property
    def bases(self) -> list[dict[str, Any]]:
        """Bases, with how many models were made from each, and how many of these their weights tell."""
        rows = _counted("base", ((model.base or UNKNOWN, model) for model in self.models if not model.is_broken))
        by_basis = Counter((model.base or UNKNOWN, model.basis) for model in self.models if not model.is_broken)
        for row in rows:
            row |= {f"by_{basis}": by_basis[row["base"], basis] for basis in ("weights", "names", "shapes")}
            row |= {"stated_only": by_basis[row["base"], "stated"], "is_here": row["base"] in self.compared}
        return rows

    @property
    def unrelated(self) -> list[ScannedModel]:
        """Models that were not made from the base that they name, or from none of those given."""
        return [model for model in self.models if model.is_unrelated]

    @property
    def unchecked(self) -> list[ScannedModel]:
        """Models that name a base that is not here."""
        return [model for model in self.models if model.verdict == "not checked"]

    @property
    def broken(self) -> list[Broken]:
        """Models that are damaged or out of reach, and parts of places that could not be read."""
        return [
            *(Broken(model.model, model.problem, model.detail) for model in self.models if model.is_broken),
            *self.unreachable,
        ]

    @property
    def untrained(self) -> list[ScannedModel]:
        """Models that are as if they had never been trained."""
        return [model for model in self.models if model.untrained]

    @property
    def conversions(self) -> list[ScannedModel]:
        """Copies of models in other formats, of which it was looked for what they were made from."""
        return [model for model in self.models if model.copy_verdict is not None]

    @cached_property
    def licences(self) -> list[dict[str, Any]]:
        """Licences as stated, with the numbers of models."""
        readable = (model for model in self.models if not model.is_broken)
        return _counted("licence", ((model.licence or UNKNOWN, model) for model in readable))

    @property
    def exact(self) -> list[ScannedDuplicate]:
        """Duplicates with equal weights."""
        return [duplicate for duplicate in self.duplicates if duplicate.kind != "near"]

    @property
    def near(self) -> list[ScannedDuplicate]:
        """Duplicates whose changes are nearly equal."""
        return [duplicate for duplicate in self.duplicates if duplicate.kind == "near"]

    @property
    def headline(self) -> str:
        """What is there, in a sentence."""
        where = ", ".join(place.place for place in self.places[:_MOST_NAMED])
        parts = [f"{counted(len(self.models), 'model')} in {where} ({size_in_words(self.bytes)})"]
        for count, what in (
            (len(self.unrelated), "not made from the base that they name" if not self.bases_given else "unrelated"),
            (len(self.broken), "broken"),
            (len(self.untrained), "untrained"),
            (len(self.exact), "there twice"),
            (len(self.near), "near-duplicate" + ("" if len(self.near) == 1 else "s")),
        ):
            if count:
                parts.append(f"{count:,} {what}")
        return ", ".join(parts) + "."

    @property
    def notes(self) -> list[str]:
        """Sentences that qualify what was found."""
        sentences = []
        if self.unread:
            sentences.append(f"The scan was stopped: {self.unread:,} more of the models were not read.")
        for kind, duplicates in (("Duplicates", self.exact), ("Near-duplicates", self.near)):
            if duplicates:
                sentences.append(f"{kind} take {size_in_words(sum(duplicate.bytes for duplicate in duplicates))}.")
        if self.unchecked:
            verb = "names" if len(self.unchecked) == 1 else "name"
            sentences.append(f"{counted(len(self.unchecked), 'model')} {verb} a base that is not here: not checked.")
        if self.bases_given and (untold := [model.model for model in self.models if model.is_untold]):
            bases = " or ".join(self.bases_given)
            sentences.append(
                f"It cannot be told whether {counted(len(untold), 'model')} came from {bases}: {some_of(untold)}."
            )
        return sentences

    def failures(self, kinds: Iterable[str]) -> list[str]:
        """A line for each of ``kinds`` (FAILURES) of which there are some. Only equal files count as duplicates."""
        names = {
            UNRELATED: [model.model for model in self.unrelated],
            BROKEN: [record.model for record in self.broken],
            DUPLICATE: [record.model for record in self.duplicates if record.kind == "same file"],
        }
        sentences = []
        for kind in kinds:
            if found := names[kind]:
                more = f" and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
                sentences.append(f"{kind}: {len(found):,}: {', '.join(found[:_MOST_NAMED])}{more}")
        return sentences

    # ---- faces

    def to_dict(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        return {
            "places": [asdict(place) for place in self.places],
            "bytes": self.bytes,
            "kinds": self.kinds,
            "bases": self.bases,
            "runs": [asdict(run) for run in self.runs],
            "duplicates": [asdict(record) for record in self.duplicates],
            "unrelated": [model.model for model in self.unrelated],
            "unchecked": [model.model for model in self.unchecked],
            "broken": [asdict(record) for record in self.broken],
            "untrained": [{"model": model.model, "why": model.untrained} for model in self.untrained],
            "conversions": [
                {"model": model.model, "copy_of": model.copy_of, "verdict": model.copy_verdict}
                for model in self.conversions
            ],
            "licences": self.licences,
            "left_out": [asdict(record) for record in self.left_out],
            "models": self.to_rows(),
            "notes": self.notes,
            "bases_given": list(self.bases_given),
            "unread": self.unread,
            "bytes_read": self.bytes_read,
            "seconds": round(self.seconds, 2),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """The models as rows."""
        return [asdict(model) for model in self.models]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The sections that are not empty, each as the rows of a table, in order."""
        tables: dict[str, list[dict[str, Any]]] = {
            "kinds": self.kinds,
            "bases": [_without_zeros(row) for row in self.bases],
            "unrelated": [
                {
                    "model": model.model,
                    "names": model.claim or "",
                    "made_from": (model.base or "") if model.basis != "stated" else "",
                    "evidence": "; ".join(model.evidence),
                }
                for model in self.unrelated
            ],
            "not checked: base not here": _counted("base", ((model.claim or "", model) for model in self.unchecked)),
            "broken": [asdict(record) for record in self.broken],
            "untrained": [{"model": model.model, "why": model.untrained} for model in self.untrained],
            "runs": [asdict(run) for run in self.runs],
            "duplicates": [asdict(record) for record in self.duplicates],
            "copies in other formats": [
                {"model": one.model, "kind": one.kind, "copy_of": one.copy_of or "", "verdict": one.copy_verdict}
                for one in self.conversions
            ],
            "licences": self.licences if any(model.licence for model in self.models) else [],
            "left out": [asdict(record) for record in self.left_out],
        }
        return {title: _in_words(rows) for title, rows in tables.items() if rows}

    def in_short(self) -> dict[str, list[dict[str, Any]]]:
        """The tables for a terminal, each with its first rows."""
        return {
            title if len(rows) <= _MOST_ROWS else f"{title} ({_MOST_ROWS} of {len(rows):,})": rows[:_MOST_ROWS]
            for title, rows in self.tables().items()
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.headline}>"

    def _repr_html_(self) -> str:
        return shown(self.headline, {title: len(rows) for title, rows in self.tables().items()})


def _counted(name: str, named: Iterable[tuple[str, ScannedModel]]) -> list[dict[str, Any]]:
    """A row for each value, with the number of its models and their bytes; the most frequent first."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for value, model in named:
        counts[value] += 1
        sizes[value] += model.bytes
    order = sorted(counts, key=lambda value: (value == UNKNOWN, -counts[value], value != FULL, value))
    return [{name: value, "models": counts[value], "bytes": sizes[value]} for value in order]


def _without_zeros(row: Mapping[str, Any]) -> dict[str, Any]:
    """How the base of models is known, in words."""
    by = [
        f"{row[name]:,} {words}"
        for name, words in (
            ("by_weights", "by their weights"),
            ("by_names", "by name, and their shapes fit"),
            ("by_shapes", "by shapes alone"),
            ("stated_only", NOT_HERE),
        )
        if row[name]
    ]
    return {"base": row["base"], "models": row["models"], "bytes": row["bytes"], "known": ", ".join(by)}


def _in_words(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with units for sizes, without columns that are empty in all of them."""
    names = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    if "count" in names and all(row["count"] == 1 for row in rows):
        names.remove("count")
    return [{name: size_in_words(row[name]) if name.endswith("bytes") else row[name] for name in names} for row in rows]
