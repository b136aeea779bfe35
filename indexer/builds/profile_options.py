"""What a person typed for `index profile`, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.builds.options import bytes_of
from indexer.builds.profiling import ProfileOptions
from indexer.database.naming import base_named, model_ending_in
from indexer.database.reading import Reading
from indexer.errors import AtlasError
from indexer.names import ModelRef
from indexer.profiles.asking import ProbeChoice, checked_asked, layers_in


def profile_options(chosen: Mapping[str, Any]) -> ProfileOptions:
    """From the command's options. Raises AtlasError where they contradict each other."""
    text = chosen.get("text")
    return ProfileOptions(
        asked=checked_asked(
            recover=chosen["recover"],
            exact=chosen["exact"],
            layers=layers_in(chosen.get("layers")),
            recipe=chosen["recipe"],
            seed=chosen["seed"],
            shift=chosen.get("shift"),
            steps=chosen.get("steps"),
            rate=chosen.get("rate"),
        ),
        probe=ProbeChoice(
            chosen.get("probe"),
            None if text is None else Path(text),
            tuple(Path(one) for one in chosen.get("images", ())),
            chosen["seed"],
        ),
        recipe=chosen["recipe"],
        with_untrained=chosen["with_untrained"],
        limit=chosen.get("limit"),
        device=chosen["device"],
        workers=chosen.get("workers") or 1,
        memory=bytes_of("memory", chosen.get("memory")),
    )


def base_and_models(folder: AtlasFolder, base: str | None, models: Sequence[str]) -> tuple[str, list[str]]:
    """The canonical base, and the models as the atlas names them.

    Raises AtlasError where a model is not indexed, or they are of several bases.
    """
    with Reading(folder.database) as connection:
        bases = [str(row["base"]) for row in connection.rows("SELECT base FROM bases ORDER BY base")]
        found: list[dict[str, Any]] = []
        for model in models:
            typed = ModelRef.parse(model).id
            name = model_ending_in(connection, typed) or typed
            rows = connection.rows(
                "SELECT model, base FROM fine_tunes WHERE lower(model) = lower(?) AND status = 'indexed'",
                (name,),
            )
            if not rows:
                raise AtlasError(f"{model} is not indexed here.", f"Add it first: index add {model} --base ID")
            found += rows
        candidates = sorted({row["base"] for row in found}) or bases
        canonical = base_named(connection, base) if base is not None else _only(candidates)
    return canonical, [row["model"] for row in found if row["base"] == canonical]


def _only(candidates: Sequence[str]) -> str:
    if len(candidates) == 1:
        return candidates[0]
    raise AtlasError(
        f"These are models of several bases ({', '.join(candidates) or 'none'}).", "Say which with --base."
    )
