"""Which models are like this one: from the neighbours table where it can, else by exact search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.errors import AtlasError
from query.lookup import ResolvedModel, refuse_copy, resolve_model, unrelated_notes, with_vector
from query.results import Rows
from query.wording import rarity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from indexer.vectors.search import VectorIndex
    from indexer.vectors.segments import Vectors
    from query.reader import AtlasReader
    from query.sql import Condition

# As many neighbours as a publish stores of each model.
STORED = 50
REASONS_SHOWN = 3
_FIRST = ("rank", "model", "similarity", "background", "background_pairs", "background_floor")

# Models that share fewer changed matrices have their similarity shrunk (``indexer.vectors.masks``, which needs numpy).
FEWEST = 4


@dataclass(frozen=True)
class Contributions:
    """Why two models are close: what each family and each layer adds to their similarity (sums to it)."""

    families: dict[str, float]
    layers: dict[str, float]


@dataclass(frozen=True)
class Neighbour:
    """One model near another.

    ``similarity``: the mean cosine of the blocks that both changed, of which there are ``matrices``; of
    representations without blocks the cosine of the vectors. ``background``: the share of pairs of unrelated
    models (other author, no dataset in common) that are at least as similar, from ``background_pairs`` of them; None
    where too few are known. It is never below ``background_floor``, which stands for "none of them". ``is_shrunk``:
    they share so few matrices that the similarity was pulled towards zero.
    """

    rank: int
    model: str
    similarity: float
    author: str
    relation: str
    datasets: list[str]
    background: float | None = None
    background_pairs: int | None = None
    matrices: int | None = None
    is_shrunk: bool = False
    because: Contributions | None = field(default=None, compare=False)

    @property
    def background_floor(self) -> float | None:
        """The least that ``background`` can be: 1/(1 + pairs)."""
        return None if self.background_pairs is None else 1 / (1 + self.background_pairs)

    def as_row(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        row = asdict(self) | {"background_floor": self.background_floor}
        del row["is_shrunk"]
        if self.because is None:
            del row["because"]
        return {name: row[name] for name in dict.fromkeys((*_FIRST, *row))}


@dataclass(frozen=True, eq=False, repr=False)
class SimilarModels(Rows[Neighbour]):
    """The models most like ``model``, nearest first: a list of :class:`Neighbour` that can also be shown."""

    COLUMNS = (*_FIRST, "author", "relation", "datasets", "matrices")
    OPTIONAL_COLUMNS = ("author", "relation", "layers", "families", "rank", "datasets")
    SHOW_HEADLINE = True

    model: str
    base: str
    representation: str
    items: tuple[Neighbour, ...]
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The nearest, and the dataset that most of them name."""
        if not self.items:
            return f"There is no model of {self.base} to compare {self.model} with."
        nearest = self.items[0]
        named = Counter(dataset for one in self.items for dataset in one.datasets).most_common(1)
        most = f" {named[0][1]} of these {len(self.items):,} name the dataset {named[0][0]}." if named else ""
        like = f"The model most like {self.model} is {nearest.model}, with a similarity of {nearest.similarity:.2f}."
        return like + most

    def to_dict(self) -> dict[str, Any]:
        """Which model was asked about, the rows, and the notes."""
        asked = {"model": self.model, "base": self.base, "representation": self.representation}
        return asked | {"neighbours": self.to_rows(), "notes": list(self.notes)}

    def table(self, *, details: bool = False) -> list[dict[str, Any]]:
        """The rows; of the reasons the three families and layers that add most, or all."""
        return [
            _for_people(one, row, None if details else REASONS_SHOWN)
            for one, row in zip(self.items, self.to_rows(), strict=True)
        ]


def _for_people(one: Neighbour, row: dict[str, Any], most: int | None) -> dict[str, Any]:
    """Shares as people say them, the matrices only where they are few, and the families and layers that add most."""
    row["background"] = rarity(row["background"], row.pop("background_pairs"))
    del row["background_floor"]
    if not one.is_shrunk:
        del row["matrices"]
    because = row.pop("because", None)
    for name in ("families", "layers") if because is not None else ():
        row[name] = [f"{key} {part:.2f}" for key, part in list(because[name].items())[:most]]
    return row


def similar(
    atlas: AtlasReader,
    model: str | Path,
    k: int = 10,
    *,
    where: str | None = None,
    other_authors: bool = False,
    representation: str = "input",
    base: str | None = None,
    explain: bool = False,
) -> SimilarModels:
    """The ``k`` models most like ``model``, nearest first, ties by id; never the model itself.

    ``model`` is an indexed id, any other Hub id, or a local folder; the latter two are read on the fly and not
    stored. ``where`` is an SQL condition on the models view and ``other_authors`` leaves the model's own author
    out, both before the search, so that k models come back when k exist. ``explain`` says which layers and
    families make two models close. Raises AtlasError where there is nothing to compare.
    """
    if k < 1:
        raise AtlasError(f"`k` is {k}; it must be at least 1.", "")
    # The condition is judged in a process of its own: meanwhile vectors can be opened here.
    condition = _asked_condition(atlas, where)
    try:
        asked = resolve_model(atlas, str(model), base, representation)
        found = _similar(atlas, asked, k, condition, other_authors, representation, explain)
    finally:
        if condition is not None:
            condition.abandon()
    return SimilarModels(asked.name, asked.base, representation, tuple(found), _notes(atlas, asked, found))


def _notes(atlas: AtlasReader, asked: ResolvedModel, found: list[Neighbour]) -> tuple[str, ...]:
    """What the similarities do not say: another origin, few shared matrices, no background."""
    notes = []
    if any(one.is_shrunk for one in found):
        notes.append(
            "similarity is shrunk towards 0 where two models changed few of the same matrices (column matrices)"
        )
    if found and found[0].matrices is not None and all(one.background is None for one in found):
        notes.append("background: too few pairs of unrelated models (other author, no dataset in common) are known")
    return (*notes, *unrelated_notes(atlas, asked))


def _similar(
    atlas: AtlasReader,
    asked: ResolvedModel,
    k: int,
    condition: Condition | None,
    other_authors: bool,
    representation: str,
    explain: bool,
) -> list[Neighbour]:
    refuse_copy(asked)
    stored = asked.model_id is not None and asked.vector is None
    if stored and k <= STORED and condition is None and not other_authors and not explain:
        return stored_neighbours(atlas, asked, k, representation)
    asked = with_vector(atlas, asked, representation)
    assert asked.vector is not None
    index = atlas.index(asked.base, representation)
    allowed = _allowed(atlas, asked, condition, other_authors)
    found = index.search(asked.vector, k, allowed)
    return _described(atlas, asked, found, representation, explain)


def _asked_condition(atlas: AtlasReader, where: str | None) -> Condition | None:
    if where is None:
        return None
    from query.sql import asked_condition  # not at the top: few ask for one

    return asked_condition(atlas.database, where, stand_ins=atlas.stand_ins)


def _allowed(
    atlas: AtlasReader, asked: ResolvedModel, condition: Condition | None, other_authors: bool
) -> NDArray[np.int64]:
    """Ids that may be found, ascending, decided before the search."""
    statement = (
        "SELECT model_id FROM fine_tunes WHERE base = ? AND status = 'indexed' AND model_id IS DISTINCT FROM ? "
        "AND NOT (? AND author IS NOT DISTINCT FROM ?) ORDER BY model_id"
    )
    import numpy as np  # not at the top: stored neighbours do without it, and it takes a fifth of their time to load

    # As an array: rows of a large atlas would take longer to make than the search takes.
    found = atlas.connection.execute(statement, [asked.base, asked.model_id, other_authors, asked.author]).fetchnumpy()
    allowed: NDArray[np.int64] = found["model_id"].astype(np.int64)
    return allowed if condition is None else np.intersect1d(allowed, np.asarray(condition.model_ids(), dtype=np.int64))


def stored_neighbours(atlas: AtlasReader, asked: ResolvedModel, k: int, representation: str) -> list[Neighbour]:
    """The ``k`` ≤ 50 nearest, straight from the database: neither FAISS nor the vectors are opened."""
    if not atlas.is_published(asked.base, representation):
        atlas.published(asked.base, representation)  # which says what is
    shares = _shared_of_stored(atlas, asked, representation)
    rows = atlas.rows(
        "SELECT rank, neighbour_id, similarity FROM neighbours "
        "WHERE model_id = ? AND representation = ? AND rank <= ? ORDER BY rank",
        [asked.model_id, representation, k],
    )
    known = _known(atlas, asked, [(row["neighbour_id"], row["similarity"]) for row in rows], representation)
    found = []
    for row in rows:
        model_id = row.pop("neighbour_id")
        if model_id in known:  # an atlas may be a stranger's
            shared, blocks = shares(model_id)
            matrices, is_shrunk = shared if blocks else None, shared < min(FEWEST, blocks)
            found.append(Neighbour(**row, **known[model_id], matrices=matrices, is_shrunk=is_shrunk))
    return found


def _known(
    atlas: AtlasReader, asked: ResolvedModel, near: list[tuple[int, float]], representation: str
) -> dict[int, dict[str, Any]]:
    """By id what the database says of some models and of how similar each is to the one asked about."""
    # Not from the view ``models``, which would gather the datasets of all models: at 100,000 that takes twice as long.
    rows = atlas.rows(
        "SELECT model_id, model, author, relation, coalesce(datasets, []) AS datasets, "
        "(SELECT share FROM background(fine_tunes.base, $1, vector_group, $2, found.similarity)) AS background, "
        "(SELECT any_value(pairs) FROM null_similarity WHERE base = fine_tunes.base AND representation = $1 "
        "AND one_group = least(vector_group, $2) AND other_group = greatest(vector_group, $2)) AS background_pairs "
        "FROM (SELECT unnest($3::INTEGER[]) AS model_id, unnest($4::FLOAT[]) AS similarity) AS found "
        "JOIN fine_tunes USING (model_id) JOIN records USING (model_id) LEFT JOIN ("
        "SELECT model_id, list_sort(list(DISTINCT dataset)) AS datasets FROM model_datasets "
        "WHERE dataset IS NOT NULL AND model_id IN (SELECT unnest($3::INTEGER[])) GROUP BY model_id"
        ") AS named USING (model_id) WHERE status = 'indexed'",
        [representation, group_of(atlas, asked), [one for one, _ in near], [similarity for _, similarity in near]],
    )
    return {row.pop("model_id"): row for row in rows}


def _shared_of_stored(
    atlas: AtlasReader, asked: ResolvedModel, representation: str
) -> Callable[[int], tuple[int, int]]:
    """How many blocks the asked model shares with another, and how many there are, from the database alone."""
    (found,) = atlas.rows(
        "SELECT blocks FROM representations WHERE base = ? AND representation = ?", [asked.base, representation]
    )
    blocks: int = found["blocks"]
    kinds = {
        row["model_id"]: row["changed"]
        for row in atlas.rows(
            "SELECT changed, model_id FROM (SELECT changed, unnest(model_ids) AS model_id FROM internal.vector_masks "
            "WHERE base = $1 AND representation = $2) WHERE model_id = $3 OR model_id IN "
            "(SELECT neighbour_id FROM neighbours WHERE model_id = $3 AND representation = $2)",
            [asked.base, representation, asked.model_id],
        )
    }
    whole = "1" * blocks
    mine = kinds.get(asked.model_id, whole)
    return lambda other: (sum(pair == ("1", "1") for pair in zip(mine, kinds.get(other, whole), strict=True)), blocks)


def _described(
    atlas: AtlasReader, asked: ResolvedModel, found: list[tuple[int, float]], representation: str, explain: bool
) -> list[Neighbour]:
    assert asked.vector is not None
    ids = [model_id for model_id, _ in found]
    index = atlas.index(asked.base, representation)
    shared = index.shared(asked.vector, ids)
    few = min(FEWEST, index.masks.blocks)
    reasons = _reasons(atlas, asked, ids, representation) if explain else {}
    known = _known(atlas, asked, found, representation)
    return [
        Neighbour(
            rank=rank,
            similarity=similarity,
            matrices=None if shared is None else int(shared[rank - 1]),
            is_shrunk=shared is not None and int(shared[rank - 1]) < few,
            because=reasons.get(model_id),
            **known[model_id],
        )
        for rank, (model_id, similarity) in enumerate(found, start=1)
    ]


def group_of(atlas: AtlasReader, asked: ResolvedModel) -> str:
    """Whose centre was subtracted from the asked model's vector."""
    if asked.group:
        return asked.group
    rows = atlas.rows("SELECT vector_group FROM records WHERE model_id = ?", [asked.model_id])
    return str(rows[0]["vector_group"])


def _reasons(atlas: AtlasReader, asked: ResolvedModel, ids: list[int], representation: str) -> dict[int, Contributions]:
    """Split each similarity into what every delta's block adds: ⟨a, b⟩ = Σ ⟨a_block, b_block⟩, over what they share."""
    from indexer.names import DeltaKey

    if not atlas.published(asked.base, representation).per_delta:
        raise AtlasError(
            f"{representation!r} averages layers, so a similarity cannot be split by layer and family.",
            "Use `representation='input'`.",
        )
    names = atlas.rows("SELECT deltas FROM bases WHERE base = ?", [asked.base])[0]["deltas"]
    keys = [DeltaKey.parse(name) for name in names]
    assert asked.vector is not None
    mine = asked.vector.reshape(len(keys), -1)
    reasons = {}
    index = atlas.index(asked.base, representation)
    near = index.rows(ids)
    over = [1.0] * len(near) if not index.masks.blocks else _divisors(index, asked.vector, near)
    for model_id, vector, divisor in zip(near.ids.tolist(), near.matrix, over, strict=True):
        parts = (mine.astype("float64") * vector.reshape(len(keys), -1)).sum(axis=1) / divisor
        families: dict[str, float] = {}
        layers: dict[str, float] = {}
        for key, part in zip(keys, parts, strict=True):
            layer = f"{key.stack}.{key.layer}" if key.stack else str(key.layer)
            families[key.family_key] = families.get(key.family_key, 0.0) + float(part)
            layers[layer] = layers.get(layer, 0.0) + float(part)
        reasons[model_id] = Contributions(_largest_first(families), _largest_first(layers))
    return reasons


def _divisors(index: VectorIndex, vector: NDArray[np.float32], near: Vectors) -> list[float]:
    found = index.masks.divisors(vector[None, :], near.ids)[0].tolist()
    return found * len(near) if len(found) == 1 else found


def _largest_first(parts: dict[str, float]) -> dict[str, float]:
    return dict(sorted(parts.items(), key=lambda item: -item[1]))


def similarity_of(
    atlas: AtlasReader, one: ResolvedModel, other: ResolvedModel, representation: str = "input"
) -> tuple[float, float | None, int | None, int | None]:
    """How similar two models of one base are, the background of that and its pairs, and the matrices both changed.

    The last three are as in :class:`Neighbour`. Raises AtlasError where either has no vector.
    """
    from indexer.vectors.masks import changed_blocks, shared_blocks
    from query.statistics.likeness import similarities

    mine, theirs = (with_vector(atlas, asked, representation).vector for asked in (one, other))
    assert mine is not None
    assert theirs is not None
    blocks = atlas.published(one.base, representation).masks.blocks
    found = float(similarities(mine[None, :].astype("float64"), theirs[None, :].astype("float64"), blocks)[0, 0])
    shared = None
    if blocks:
        both = (changed_blocks(vector[None, :], blocks) for vector in (mine, theirs))
        shared = int(shared_blocks(*both)[0, 0])
    groups = (group_of(atlas, one), group_of(atlas, other))
    pairs = atlas.background_pairs(one.base, groups, representation)
    return found, atlas.background(one.base, groups, found, representation), pairs, shared
