"""Several listings of one base as one: what shards, or people, listed apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from indexer.listing.listing import Listing

# A model that one listing rejected and another shows is shown; a new name holds whoever saw it; what a person took out
# of one stays out.
_ORDER = ("base", "rejected", "model", "bad", "renamed", "removed")


@dataclass(frozen=True)
class Joined:
    """Ids of models, in order, that more than one listing holds."""

    in_several: tuple[str, ...]


def join_listings(paths: Sequence[Path], target: Path) -> Joined:
    """Write one listing of those at ``paths`` (one that is missing is empty).

    Of a model in several the row that was seen last counts, the first sight is the earliest, and it has gone only
    where no listing shows it any more. Raises AtlasError where a file cannot be read or written.
    """
    listings = [Listing(path) for path in paths]
    counted = Counter(model.id for one in listings for model in one.models())
    lines = sorted(
        (line for one in listings for line in one.as_lines()),
        key=lambda line: (_ORDER.index(line["kind"]), str(line.get("seen", ""))),
    )
    Listing(target).write(lines)
    return Joined(tuple(sorted(model for model, count in counted.items() if count > 1)))
