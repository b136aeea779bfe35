"""At which rank an atlas keeps a base: vectors of two ranks never mix."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from indexer.atlas import AtlasFolder
from indexer.database.reading import earlier_rows
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError
from indexer.records.identity import SVD_METHODS
from indexer.records.representation import DEFAULT
from indexer.records.store import RecordStore

USUAL_RANK = 8


@dataclass(frozen=True)
class Held:
    """What is published of a base: ``vectors`` of all representations together, made from records of ``rank``.

    ``budget``: about how many numbers a vector was to have; None where nobody said.
    """

    rank: int
    vectors: int
    budget: int | None = None


def held(folder: AtlasFolder, base: str) -> Held | None:
    """What the atlas holds of a base; None where it holds no vector, or cannot be read."""
    found = earlier_rows(folder.database, ["representations"], ["FROM representations"])
    rows = [row for row in (found or [[]])[0] if row["base"] == base and row["rank"] and row["vectors"]]
    if not rows:
        return None
    # Databases of earlier schemas know of no budget.
    budget = next((row.get("budget") for row in rows if row["representation"] == DEFAULT), None)
    return Held(min(row["rank"] for row in rows), sum(row["vectors"] for row in rows), budget)


def check_rank(folder: AtlasFolder, base: str, rank: int) -> None:
    """Raises AtlasError where the atlas holds this base at another rank."""
    found = held(folder, base)
    if found is not None and found.rank != rank:
        raise AtlasError(
            f"This atlas holds {base} at rank {found.rank}, and vectors of rank {rank} cannot be mixed with them.",
            f"Use `rank={found.rank}`, or another `atlas`.",
        )


def rank_to_publish(folder: AtlasFolder, base: StoredBase, asked: int | None) -> int:
    """The rank ``asked`` for, else the one that the atlas holds the base at, else that of the base's records.

    Raises AtlasError where what is asked for is another than the atlas's, or nothing is and the records differ.
    """
    if asked is not None:
        check_rank(folder, base.base, asked)
        return asked
    found = held(folder, base.base)
    if found is not None:
        return found.rank
    ranks = _ranks_of_records(folder, base)
    if len(ranks) > 1:
        told = " and ".join(f"rank {rank} ({count})" for rank, count in sorted(ranks.items()))
        raise AtlasError(
            f"{base.base} has records of {told}: only those of one rank can be published.",
            f"Say which: index publish --rank {ranks.most_common(1)[0][0]}",
        )
    return next(iter(ranks), USUAL_RANK)


def _ranks_of_records(folder: AtlasFolder, base: StoredBase) -> Counter[int]:
    """How many records of each rank there are that a publish of ``base`` could use."""
    return Counter(
        identity.spec.rank
        for identity in RecordStore(folder).identities()
        if (identity.base, identity.base_commit) == (base.base, base.commit) and identity.spec.svd in SVD_METHODS
    )
