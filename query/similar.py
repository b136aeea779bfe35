"""Which models are like this one: from the neighbours table where it can, else by exact search."""

from __future__ import annotations

import math
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.errors import AtlasError
from query.lookup import Asked, asked_model, refuse_copy, with_vector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from query.reader import AtlasReader, IndexedModel

# As many neighbours as a publish stores of each model.
STORED = 50


@dataclass(frozen=True)
class Because:
    """Why two models are close: what each family and each layer adds to their similarity (sums to it)."""

    families: dict[str, float]
    layers: dict[str, float]


@dataclass(frozen=True)
class Neighbour:
    """One model near another; ``similarity`` is the cosine of their vectors."""

    rank: int
    model: str
    similarity: float
    author: str
    relation: str
    datasets: list[str]
    because: Because | None = field(default=None, compare=False)

    def as_row(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        row = asdict(self)
        if self.because is None:
            del row["because"]
        return row


def similar(
    atlas: AtlasReader,
    model: str,
    k: int = 10,
    *,
    where: str | None = None,
    other_authors: bool = False,
    representation: str = "input",
    base: str | None = None,
    explain: bool = False,
) -> list[Neighbour]:
    """The ``k`` models most like ``model`` by cosine, nearest first, ties by id; never the model itself.

    ``model`` is an indexed id, any other Hub id, or a local folder; the latter two are read on the fly and not
    stored. ``where`` is an SQL condition on the models view and ``other_authors`` leaves the model's own author
    out, both before the search, so that k models come back when k exist. ``explain`` says which layers and
    families make two models close. Raises AtlasError where there is nothing to compare.
    """
    if k < 1:
        raise AtlasError(f"-k is {k}; it must be at least 1.", "")
    # The condition is judged in a process of its own: meanwhile vectors can be opened here.
    with ThreadPoolExecutor(1) as pool:
        judged = pool.submit(_fulfilling, atlas.database, where, atlas.stand_ins) if where is not None else None
        try:
            return _similar(atlas, model, k, judged, other_authors, representation, base, explain)
        except BaseException:
            _abandon(judged)
            raise


def _similar(
    atlas: AtlasReader,
    model: str,
    k: int,
    judged: Future[list[int]] | None,
    other_authors: bool,
    representation: str,
    base: str | None,
    explain: bool,
) -> list[Neighbour]:
    asked = asked_model(atlas, model, base, representation)
    refuse_copy(asked)
    stored = asked.model_id is not None and asked.vector is None
    if stored and k <= STORED and judged is None and not other_authors and not explain:
        return _stored_neighbours(atlas, asked, k, representation)
    asked = with_vector(atlas, asked, representation)
    assert asked.vector is not None
    index = atlas.index(asked.base, representation)
    allowed = _allowed(atlas, asked, judged, other_authors)
    found = index.search(asked.vector, k, allowed)
    return _described(atlas, asked, found, representation, explain)


def _fulfilling(database: Path, where: str, stand_ins: list[str]) -> list[int]:
    from query.sql import check_condition

    return check_condition(database, where, stand_ins=stand_ins)


def _abandon(judged: Future[list[int]] | None) -> None:
    """The thread that waits for the condition is not to be waited for."""
    if judged is not None and not judged.done():
        from query.sql import abandon

        abandon()


def _allowed(
    atlas: AtlasReader, asked: Asked, judged: Future[list[int]] | None, other_authors: bool
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
    return allowed if judged is None else np.intersect1d(allowed, np.asarray(judged.result(), dtype=np.int64))


def _stored_neighbours(atlas: AtlasReader, asked: Asked, k: int, representation: str) -> list[Neighbour]:
    """Straight from the database: neither FAISS nor the vectors are opened."""
    if not atlas.is_published(asked.base, representation):
        atlas.published(asked.base, representation)  # which says what is
    rows = atlas.rows(
        "SELECT rank, model, similarity, author, relation, datasets FROM neighbours "
        "JOIN models ON models.model_id = neighbour_id "
        "WHERE neighbours.model_id = ? AND representation = ? AND rank <= ? ORDER BY rank",
        [asked.model_id, representation, k],
    )
    return [Neighbour(**row) for row in rows]


def _described(
    atlas: AtlasReader, asked: Asked, found: list[tuple[int, float]], representation: str, explain: bool
) -> list[Neighbour]:
    ids = [model_id for model_id, _ in found]
    rows = {
        row["model_id"]: row
        for row in atlas.rows(
            "SELECT model_id, model, author, relation, datasets FROM models "
            "WHERE model_id IN (SELECT unnest(?::INTEGER[]))",
            [ids],
        )
    }
    reasons = _reasons(atlas, asked, ids, representation) if explain else {}
    return [
        Neighbour(
            rank=rank,
            model=rows[model_id]["model"],
            similarity=similarity,
            author=rows[model_id]["author"],
            relation=rows[model_id]["relation"],
            datasets=rows[model_id]["datasets"],
            because=reasons.get(model_id),
        )
        for rank, (model_id, similarity) in enumerate(found, start=1)
    ]


def _reasons(atlas: AtlasReader, asked: Asked, ids: list[int], representation: str) -> dict[int, Because]:
    """Split each cosine into what every delta's block adds: ⟨a, b⟩ = Σ ⟨a_block, b_block⟩."""
    from indexer.names import DeltaKey

    if not atlas.published(asked.base, representation).per_delta:
        raise AtlasError(
            f"{representation!r} averages layers, so a similarity cannot be split by layer and family.",
            "Use --representation input.",
        )
    names = atlas.rows("SELECT deltas FROM bases WHERE base = ?", [asked.base])[0]["deltas"]
    keys = [DeltaKey.parse(name) for name in names]
    assert asked.vector is not None
    mine = asked.vector.reshape(len(keys), -1)
    reasons = {}
    near = atlas.index(asked.base, representation).rows(ids)
    for model_id, vector in zip(near.ids.tolist(), near.matrix, strict=True):
        parts = (mine.astype("float64") * vector.reshape(len(keys), -1)).sum(axis=1)
        families: dict[str, float] = {}
        layers: dict[str, float] = {}
        for key, part in zip(keys, parts, strict=True):
            layer = f"{key.stack}.{key.layer}" if key.stack else str(key.layer)
            families[key.family_key] = families.get(key.family_key, 0.0) + float(part)
            layers[layer] = layers.get(layer, 0.0) + float(part)
        reasons[model_id] = Because(_largest_first(families), _largest_first(layers))
    return reasons


def _largest_first(parts: dict[str, float]) -> dict[str, float]:
    return dict(sorted(parts.items(), key=lambda item: -item[1]))


def ceiling(atlas: AtlasReader, known: IndexedModel) -> float | None:
    """The most similar a full fine-tune can be to this adapter, √(matrices it changes / all); None for a full one."""
    rows = atlas.rows(
        "SELECT count(*) FILTER (norm > 0) AS changed, count(*) AS total FROM deltas WHERE model_id = ?",
        [known.model_id],
    )
    changed, total = rows[0]["changed"], rows[0]["total"]
    return math.sqrt(changed / total) if total and changed < total else None


def unrelated(atlas: AtlasReader, known: IndexedModel) -> str:
    """That the weights are not made from the base, with their cosine where it is known; "" where they may be."""
    rows = atlas.rows("SELECT base_cosine FROM records WHERE model_id = ? AND is_unrelated", [known.model_id])
    if not rows:
        return ""
    cosine = rows[0]["base_cosine"]
    measured = "" if cosine is None else f" (cosine of the weights {round(cosine, 2) + 0.0:.2f})"  # never -0.00
    return f"{known.model} is not made from {known.base}{measured}: its neighbours say little of its data"
