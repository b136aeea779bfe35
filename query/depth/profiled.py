"""Profiles as the atlas stores them: rows by layer, of one probe at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from indexer.names import MEASURES

if TYPE_CHECKING:
    from query.reader import AtlasReader

LayerRow = dict[str, Any]
LayerRows = tuple[LayerRow, ...]
ROW_COLUMNS = (
    "layer",
    *(part for name in MEASURES for part in (name, f"{name}_error")),
    "spread",
    "is_constant",
    "own_delta",
    "delta",
)


@dataclass(frozen=True)
class Profiled:
    """One model's layers. ``subject`` is base, fine_tune or untrained; ``layers`` has a row for each, in order."""

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
    """All profiles that match, newest first. ``probe`` is a sha256."""
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
    groups: dict[tuple[Any, ...], list[LayerRow]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["subject"], row["probe_sha256"], row["seed"]), []).append(row)
    found = []
    for group in groups.values():
        # Profiles of one model and probe as one: a measure that the newest lacks is taken from an earlier one.
        merged: dict[int, LayerRow] = {}
        for row in group:
            known = merged.setdefault(row["layer"], dict(row))
            known |= {name: value for name, value in row.items() if known[name] is None}
        facts = {name: group[0][name] for name in Profiled.__dataclass_fields__ if name != "layers"}
        layers = ({name: merged[layer][name] for name in ROW_COLUMNS} for layer in sorted(merged))
        found.append(Profiled(layers=tuple(layers), **facts))
    return found


def difference_error(row: LayerRow, other: LayerRow, measure: str) -> float:
    """The standard error of the difference of a measure between two models."""
    return float(((row[f"{measure}_error"] or 0) ** 2 + (other[f"{measure}_error"] or 0) ** 2) ** 0.5)
