"""All representations, by name. To add one, write its file and add it to the list here."""

from __future__ import annotations

from collections.abc import Iterable

from indexer.errors import BadArgument
from indexer.records.representations import depth, original, triplets, vocabulary, words
from indexer.records.representations.representation import Representation

_ALL: tuple[Representation, ...] = (
    triplets.INPUT,
    triplets.ADAPTER_OUTPUT,
    triplets.OUTPUT,
    triplets.DELTA,
    original.SEED,
    original.SEED_SCALED,
    triplets.SPECTRUM,
    depth.DEPTH,
    triplets.INPUT_V1,
    vocabulary.VOCABULARY,
    words.WORDS,
)
REPRESENTATIONS = {representation.name: representation for representation in _ALL}
DEFAULT = triplets.INPUT.name

# By whose vectors another representation compares adapters.
_OF_ADAPTERS = {representation.adapters_by for representation in _ALL}


def representation_named(name: str, budget: int | None = None) -> Representation:
    """The representation of that name, with about ``budget`` numbers. Raises BadArgument that lists the known ones."""
    try:
        return REPRESENTATIONS[name].of_length(budget)
    except KeyError:
        names = ", ".join(REPRESENTATIONS)
        raise BadArgument(f"Unknown representation {name!r}.", f"Choose one of: {names}.") from None


def offered() -> list[str]:
    """The representations that are published unasked, if a model has them."""
    return [representation.name for representation in _ALL if representation.offered_to]


def in_order(names: Iterable[str]) -> list[str]:
    """Names in the order of publishing: each after the one that it compares adapters by, which is added."""
    ordered: list[str] = []
    for name in names:
        side = representation_named(name).adapters_by
        ordered += [name] if side is None else [side, name]
    return list(dict.fromkeys(ordered))


def has_neighbours(name: str) -> bool:
    """Whether there are lists of neighbours by it: not if it only compares adapters, or models of different bases."""
    return name not in _OF_ADAPTERS and REPRESENTATIONS[name].has_lists
