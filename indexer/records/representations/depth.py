"""The representation ``depth``: what the layers of a model keep, compared with those of its base."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.errors import AtlasError
from indexer.records.representations.representation import Representation, Vector

if TYPE_CHECKING:
    import duckdb

    from indexer.database.connection import Connection
    from indexer.records.record import Record

# The measures of a layer that are compared with the base's: whether as logarithms, and the value of the base if that
# does not have to be measured, because the base is compared with itself.
_COLUMNS = {
    "tolerance": (True, None),
    "readable": (False, None),
    "reach": (True, None),
    "cka": (False, 1.0),
    "drift": (False, 0.0),
    "recovered": (False, None),
}
# Used only if every profile has it.
_EXTRA_COLUMN = "recovered"
_LEAST = 1e-3  # smaller values of tolerance and reach count as this


@dataclass(frozen=True, kw_only=True)
class OfProfiles(Representation):
    """Made from depth profiles, in units of their standard deviation over the atlas, so that a new one changes all."""

    def is_held_by(self, record: Record) -> bool:
        """Never: records have no profiles."""
        return False

    def compute(self, record: Record) -> Vector:
        """Raises AtlasError."""
        raise self.absent(record.identity.model)

    def of_models(self, connection: duckdb.DuckDBPyConnection | Connection, base: str) -> Mapping[int, Vector]:
        """The vectors of all profiled models; see ``depth_vectors``."""
        return depth_vectors(connection, base)

    def absent(self, model: str) -> AtlasError:
        """The error for a model without a profile."""
        return AtlasError(
            f"{model} has no depth profile in this atlas, so {self.name!r} cannot be computed.",
            f"Make one: index profile {model}",
        )


def depth_vectors(connection: duckdb.DuckDBPyConnection | Connection, base: str) -> dict[int, Vector]:
    """For each model id, the differences of its layers from the base's, in standard deviations over models.

    Uses the probe with the most models, and the newest profile of each model. A copy of the base gives zeros.
    """
    rows = connection.execute(
        f"SELECT probe_sha256, model_id, subject, layer, {', '.join(_COLUMNS)} FROM depth_of_models "
        "WHERE base = ? AND subject IN ('base', 'fine_tune') AND is_complete AND recipe = 'default' "
        "ORDER BY made, profile_id, layer",
        [base],
    ).fetchall()
    # By probe and model (None for the base) the measures of each layer; later profiles replace earlier ones.
    probes: dict[str, dict[int | None, dict[int, dict[str, Any]]]] = {}
    for probe, model_id, subject, layer, *values in rows:
        if subject == "base" or model_id is not None:
            layers = probes.setdefault(probe, {}).setdefault(None if subject == "base" else model_id, {})
            layers[layer] = dict(zip(_COLUMNS, values, strict=True))
    usable = {probe: found for probe, found in probes.items() if None in found and len(found) > 1}
    if not usable:
        return {}
    found = usable[max(usable, key=lambda probe: (len(usable[probe]), probe))]
    common = sorted(set.intersection(*map(set, found.values())))
    has_extra = all(model[layer][_EXTRA_COLUMN] is not None for model in found.values() for layer in common)
    columns = [name for name in _COLUMNS if has_extra or name != _EXTRA_COLUMN]
    of_base = found.pop(None)
    ids = sorted(model_id for model_id in found if model_id is not None)
    matrix = np.zeros((len(ids), len(common) * len(columns)))  # a difference that is not known is 0
    for row, model_id in enumerate(ids):
        for place, (layer, name) in enumerate(product(common, columns)):
            is_logarithm, unchanged = _COLUMNS[name]
            mine = found[model_id][layer][name]
            theirs = of_base[layer][name] if unchanged is None else unchanged
            if mine is not None and theirs is not None:
                ratio = max(mine, _LEAST) / max(theirs, _LEAST)
                matrix[row, place] = math.log(ratio) if is_logarithm else mine - theirs
    deviation = matrix.std(axis=0)
    scaled = np.divide(matrix, deviation, out=np.zeros_like(matrix), where=deviation > 1e-9)
    return {model_id: row.astype(np.float32) for model_id, row in zip(ids, scaled, strict=True)}


DEPTH = OfProfiles(
    name="depth", version=1, description="what layers keep, compared with the base; only for profiled models",
    is_partial=True, lacking="they were not profiled", from_tables=True,
)  # fmt: skip
