"""Profiles as the atlas holds them: rows by layer, of one probe at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from indexer.records.depth_measures import MEASURES

if TYPE_CHECKING:
    from query.reader import AtlasReader

LayerRows = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Profiled:
    """One model's layers. ``subject`` is base, fine_tune or untrained; ``layers`` has a row for each, from the first.

    Where a model has several profiles of one probe, a later one fills what an earlier one was not asked.
    """

    model: str
    base: str
    subject: str
    author: str | None
    probe: str
    probe_sha256: str
    sequences: int | None
    tokens: int | None
    seed: int
    recipe: str
    stack: str
    layers: LayerRows


def read_profiled(
    atlas: AtlasReader, base: str, *, subject: str | None = None, model: str | None = None, probe: str | None = None
) -> list[Profiled]:
    """All that fit, those of the newest profile first. ``probe`` is a sha256."""
    conditions, values = ["base = ?"], [base]
    for name, value in (("subject", subject), ("model", model), ("probe_sha256", probe)):
        if value is not None:
            conditions.append(f"{name} = ?")
            values.append(value)
    rows = atlas.rows(
        "SELECT depth_of_models.*, profiles.sequences, profiles.tokens FROM depth_of_models "
        "JOIN profiles USING (profile_id) "
        f"WHERE {' AND '.join('depth_of_models.' + one for one in conditions)} "
        "ORDER BY depth_of_models.made DESC, profile_id DESC, layer",
        values,
    )
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["subject"], row["probe_sha256"], row["seed"]), []).append(row)
    return [_profiled(group) for group in groups.values()]


def _profiled(rows: Sequence[dict[str, Any]]) -> Profiled:
    """Of one model and probe, the newest first."""
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        known = merged.setdefault(row["layer"], dict(row))
        known |= {name: value for name, value in row.items() if known[name] is None}
    first = rows[0]
    wanted = [part for name in MEASURES for part in (name, f"{name}_error")]
    layers = tuple(
        {"layer": layer, **{name: merged[layer][name] for name in wanted}}
        | {name: merged[layer][name] for name in ("spread", "is_constant", "own_delta", "delta")}
        for layer in sorted(merged)
    )
    return Profiled(
        model=first["model"],
        base=first["base"],
        subject=first["subject"],
        author=first["author"],
        probe=first["probe"],
        probe_sha256=first["probe_sha256"],
        sequences=first["sequences"],
        tokens=first["tokens"],
        seed=first["seed"],
        recipe=first["recipe"],
        stack=first["stack"],
        layers=layers,
    )
