"""The types of the tools' answers, and how an answer is shortened to what an agent should read.

The keys are some of those of the commands' JSON. ``query/glossary.toml`` has their meanings and units, which the server
writes into the schemas. Pydantic accepts ``typing.TypedDict`` only from Python 3.12 on.
"""

from __future__ import annotations

import json
from typing import Any, NotRequired

from typing_extensions import TypedDict

from query.ask.result import LikelyModel
from query.layers import Part
from query.purity.result import DatasetPurity

MOST_CHARACTERS = 12_000  # of an answer as compact JSON
_ROOM_FOR_REMARKS = 600  # of these, to say what was left out
_LONGEST_NAME = 80  # characters of a key that is not ours: a column, a field of a struct
_ROWS_BEFORE_TEXT = 10  # rows that are kept before long texts are kept whole
_SMALLEST = 20  # characters; no text is cut to less


class Answer(TypedDict):
    """The keys of every answer."""

    summary: str
    notes: list[str]
    shortened: list[str]


class Other(Answer):
    """The answer of a question that another package adds: the JSON of its command."""

    answer: Any


class Base(TypedDict):
    """One base model."""

    base: str
    indexed: int
    sampled: int
    authors: int
    representations: list[str]


class Bases(Answer):
    """The bases of the atlas."""

    bases: list[Base]


class SimilarModel(TypedDict):
    """One neighbour; ``because`` only with ``explain``."""

    rank: int
    model: str
    similarity: float
    similarity_error: NotRequired[float]
    background: float | None
    background_pairs: NotRequired[int | None]
    background_floor: NotRequired[float | None]
    background_high: NotRequired[float | None]
    expected_by_chance: NotRequired[float | None]
    is_like_unrelated: NotRequired[bool]
    author: str
    relation: str
    datasets: list[str]
    matrices: int | None
    because: dict[str, dict[str, float]] | None


class Similar(Answer):
    """The models most like one, nearest first."""

    model: str
    base: str
    representation: str
    neighbours: list[SimilarModel]


class LikelyDataset(TypedDict):
    """A dataset that a model may have been tuned on."""

    dataset: str
    probability: float
    votes: float
    calibrated: bool


class Predicted(Answer):
    """The datasets a model was probably tuned on."""

    model: str
    base: str
    answers: list[LikelyDataset]


class Shown(Answer):
    """What the atlas knows of one model."""

    model: str
    facts: dict[str, Any]


class Traced(Answer):
    """What a model's input embedding says of its training text."""

    model: str
    base: str
    facts: dict[str, Any]
    words: list[str]


class Asked(Answer):
    """The models that were probably tuned on texts like those that were given; maybe none stands out."""

    base: str
    texts: int
    searched: int
    standing_out: int
    models: list[LikelyModel]


class Compared(Answer):
    """Two models side by side."""

    a: str
    b: str
    facts: dict[str, Any]


class Changed(Answer):
    """Where one model changed."""

    model: str
    base: str
    read: str
    norm: float
    norm_error: float
    layers: list[Part]
    families: list[Part]


class Parent(TypedDict):
    """One parent of a model, or its base."""

    parent: str | None
    kind: str
    coefficient: float
    left: float
    card: str
    probability: float | None
    method: str | None
    direction: str
    because: str
    same: list[str]


class Ancestry(Answer):
    """The models that one was made from, by its weights."""

    model: str
    base: str
    verdict: str
    parents: list[Parent]
    bytes_read: int


class CrossAuthor(TypedDict):
    """Purity among models of other authors."""

    models: int
    datasets: int
    purity: float | None
    chance: float | None
    ci_low: float | None
    ci_high: float | None
    p_value: float | None
    permutations: int
    reached: int
    is_exact: bool
    effect: float | None


class Purity(Answer, CrossAuthor):
    """Whether models tuned on one dataset lie together."""

    base: str
    representation: str
    purity_by_dataset_mean: float | None
    cross_author: CrossAuthor
    by_dataset: list[DatasetPurity]


class ClusterOfModels(TypedDict):
    """One cluster."""

    cluster: int
    size: int
    datasets: dict[str, int]
    authors: dict[str, int]
    central: str
    cohesion: float | None
    probably: str | None
    share: float | None


class Clustered(Answer):
    """The clusters of a base, and how well they agree with datasets."""

    base: str
    representation: str
    method: str
    models: int
    clustered: int
    outliers: int
    ari: float | None
    ami: float | None
    silhouette: float | None
    clusters: list[ClusterOfModels]
    members: list[str]


class DatasetCount(TypedDict):
    """A dataset, and the number of indexed models and authors that name it."""

    base: str
    dataset: str
    models: int
    authors: int


class Datasets(Answer):
    """Datasets by number of models."""

    datasets: list[DatasetCount]
    truncated: bool


class Rows(Answer):
    """The rows of one SELECT."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool


def as_text(answer: Any) -> str:
    """Compact JSON."""
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def rounded(value: Any) -> Any:
    """Plain JSON with five significant digits of every fraction below 10,000."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) and abs(value) < 1e4 else value


def bounded(answer: Answer) -> Answer:
    """The answer in at most MOST_CHARACTERS of compact JSON; ``shortened`` says what was left out.

    Lists keep their first items and texts their beginning; the largest parts are cut first.
    """
    room = MOST_CHARACTERS
    kept = answer
    cuts: dict[str, str] = {}
    while len(as_text(kept)) > MOST_CHARACTERS:
        cuts = {}
        room = room * 9 // 10
        kept = _fitted(answer, room - _ROOM_FOR_REMARKS, "", cuts)
        remarks = [*answer["shortened"], *(f"{path}: {what}" for path, what in cuts.items())]
        kept["shortened"] = _fitted(remarks, _ROOM_FOR_REMARKS, "shortened", {})
    if cuts and "truncated" in kept:
        kept["truncated"] = True  # type: ignore[typeddict-unknown-key]
    return kept


def _fitted(value: Any, room: int, path: str, cuts: dict[str, str]) -> Any:
    """``value`` in about ``room`` characters. ``cuts`` receives, by path, what is left of each part that was cut."""
    size = len(as_text(value))
    if size <= room:
        return value
    if isinstance(value, str):
        cuts["long texts"] = "cut at …"
        # In proportion: escapes in JSON are longer than their characters.
        return value[: max(_SMALLEST, room * len(value) // size) - 1] + "…"
    if isinstance(value, dict):
        return _fitted_parts(value, room, path, cuts)
    if not isinstance(value, list):
        return value
    if path.endswith("[]"):  # a row, whose cells must stay in their columns
        return list(_fitted_parts({str(place): cell for place, cell in enumerate(value)}, room, path, cuts).values())
    most = max(_SMALLEST, room // min(len(value), _ROWS_BEFORE_TEXT) - 1)
    kept: list[Any] = []
    left = room - 2
    for item in value:
        fitted = _fitted(item, most, f"{path}[]", cuts)
        left -= len(as_text(fitted)) + 1
        if left < 0:
            break
        kept.append(fitted)
    if len(kept) < len(value):
        cuts[path] = f"{len(kept)} of {len(value)}"
    return kept


def _fitted_parts(parts: dict[str, Any], room: int, path: str, cuts: dict[str, str]) -> dict[str, Any]:
    """Small parts are kept whole; the room they leave goes to the larger ones."""
    names = list(parts)
    if path and not path.endswith("[]"):  # an object of the data, which may have many keys
        names = names[: max(1, room // _SMALLEST)]
    if len(names) < len(parts):
        cuts[path] = f"{len(names)} of {len(parts)}"
    left = room - sum(min(len(name), _LONGEST_NAME) + 4 for name in names)
    kept: dict[str, Any] = {}
    by_size = sorted(names, key=lambda name: len(as_text(parts[name])))
    for place, name in enumerate(by_size):
        inner = f"{path}.{name}" if path else name
        kept[name] = _fitted(parts[name], max(_SMALLEST, left // (len(names) - place)), inner, cuts)
        left -= len(as_text(kept[name]))
    return {name[:_LONGEST_NAME]: kept[name] for name in names}
