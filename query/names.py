"""A name that the atlas does not hold: what was probably meant, in one line."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from indexer.errors import AtlasError
from indexer.names import ModelRef

if TYPE_CHECKING:
    from query.reader import Atlas


def unknown_model(atlas: Atlas, name: str, hint: str = "") -> AtlasError:
    """The error for a model that :meth:`Atlas.find` does not find, naming the closest ids.

    A base, a model that is held at another revision, and one that is listed but was not read, are told as such.
    """
    if (misnamed := _misnamed(atlas, name, hint)) is not None:
        return misnamed
    close = ", ".join(_nearest_names(atlas, name.partition("@")[0]))
    return AtlasError(
        f"{name} is not in this atlas" + (f"; closest ids: {close}." if close else "."),
        hint or "Check the spelling, or give the path of a checkpoint folder.",
    )


def _misnamed(atlas: Atlas, name: str, hint: str) -> AtlasError | None:
    reference = ModelRef.parse(name)
    held = atlas.rows(
        'SELECT model, "commit" FROM fine_tunes WHERE lower(model) = lower(?) ORDER BY model = ? DESC LIMIT 1',
        [reference.id] * 2,
    )
    if held and reference.revision is None:
        return AtlasError(f"{held[0]['model']} is listed in this atlas but was not read.", hint)
    if held:
        commit = f"commit {held[0]['commit'][:12]}" if held[0]["commit"] else "an unknown commit"
        message = f"This atlas holds {held[0]['model']} at {commit}, not at {reference.revision}."
        return AtlasError(message, f"Leave @{reference.revision} out.")
    try:
        base = atlas.base_named(reference.id)
    except AtlasError:
        return None
    fine_tunes = f"query sql \"SELECT model FROM models WHERE base = '{base}'\""
    return AtlasError(f"{base} is a base of this atlas, not a model tuned from one.", f"Its models: {fine_tunes}")


def _nearest_names(atlas: Atlas, name: str, count: int = 3) -> list[str]:
    names = [row["model"] for row in atlas.rows("SELECT DISTINCT model FROM fine_tunes ORDER BY model")]
    return sorted(names, key=lambda other: (-_likeness(name.lower(), other.lower()), other))[:count]


def _likeness(name: str, other: str) -> float:
    """Of two ids, or of what stands behind their owners: people mistype either."""
    tails = (name.rpartition("/")[2], other.rpartition("/")[2])
    return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in ((name, other), tails))
