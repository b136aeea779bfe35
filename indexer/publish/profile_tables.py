"""The tables of depth profiles, filled from their files, and the vectors of the representation `depth`."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.database.validation import InvalidValue, check_rows
from indexer.errors import AtlasError
from indexer.profiles.store import HINT, Profile, ProfileStore
from indexer.publish.rows import moment
from indexer.publish.tables import Row, Tables
from indexer.untrusted import printable

if TYPE_CHECKING:
    import duckdb

    from indexer.database.connection import Connection

# Columns of the table profiles that are fields of a profile and of its identity.
_PROFILE_FIELDS = ("probe_sha256", "sequences", "tokens", "is_complete", "device", "threads", "cpu_seconds")
_IDENTITY_FIELDS = ("base", "subject", "model", "commit", "base_commit", "probe", "seed", "method", "recipe")

# The measures of a layer that are compared with the base's: whether as logarithms, and the value of the base if that
# does not have to be measured, because the base is compared with itself.
_VECTOR_COLUMNS = {
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


def renew_profile_tables(folder: AtlasFolder, tables: Tables, base: str, say: Callable[[str], None]) -> bool:
    """Update the rows of one base to match the files. Returns whether anything changed; damaged files are reported."""
    store = ProfileStore(folder)
    known = dict(tables.rows("SELECT profile_key, is_complete FROM profiles WHERE base = ?", [base]))
    digests = list(store.digests())
    gone = sorted(set(known) - set(digests))
    profiles: dict[str, Profile] = {}
    for digest in digests:
        if known.get(digest):  # a complete profile never changes
            continue
        try:
            profile = store.read(digest)
        except AtlasError as error:
            say(f"{error.message} It is skipped.")
            continue
        if profile.identity.digest != digest:
            say(f"The profile {digest} belongs to a different model. {HINT} It is skipped.")
        elif profile.identity.base == base:
            profiles[digest] = profile
    for digest in [*gone, *(profiles.keys() & known)]:
        tables.run(
            "DELETE FROM profile_layers WHERE profile_id IN (SELECT profile_id FROM profiles WHERE profile_key = ?)",
            [digest],
        )
        tables.run("DELETE FROM profiles WHERE profile_key = ?", [digest])
    model_ids = dict(tables.rows("SELECT model, model_id FROM fine_tunes WHERE base = ?", [base]))
    (next_id,) = tables.first("SELECT coalesce(max(profile_id), 0) + 1 FROM profiles") or (1,)
    rows: list[Row] = []
    layer_rows: list[Row] = []
    for number, (digest, profile) in enumerate(profiles.items(), start=next_id):
        identity, model_id = profile.identity, None
        if identity.subject == "fine_tune":
            model_id = model_ids.get(identity.model)
            if model_id is None:
                continue
        row: Row = {
            "profile_id": number, "model_id": model_id, "profile_key": digest, "made": moment(profile.made)
        }  # fmt: skip
        row |= {name: getattr(identity, name) for name in _IDENTITY_FIELDS}
        row |= {name: getattr(profile, name) for name in _PROFILE_FIELDS}
        row["asked"] = list(identity.asked)
        layers = [{"profile_id": number, **layer} for layer in profile.rows()]
        try:
            check_rows("profiles", [row])
            check_rows("profile_layers", layers)
        except InvalidValue as why:
            say(f"The profile of {printable(identity.model)} is skipped: {why}.")
            continue
        rows.append(row)
        layer_rows += layers
    tables.insert("profiles", rows)
    tables.insert("profile_layers", layer_rows)
    return bool(gone or profiles)


def depth_vectors(connection: duckdb.DuckDBPyConnection | Connection, base: str) -> dict[int, NDArray[np.float32]]:
    """For each model id, the differences of its layers from the base's, in standard deviations over models.

    Uses the probe with the most models, and the newest profile of each model. A copy of the base gives zeros.
    """
    rows = connection.execute(
        f"SELECT probe_sha256, model_id, subject, layer, {', '.join(_VECTOR_COLUMNS)} FROM depth_of_models "
        "WHERE base = ? AND subject IN ('base', 'fine_tune') AND is_complete AND recipe = 'default' "
        "ORDER BY made, profile_id, layer",
        [base],
    ).fetchall()
    # By probe and model (None for the base) the measures of each layer; later profiles replace earlier ones.
    probes: dict[str, dict[int | None, dict[int, dict[str, Any]]]] = {}
    for probe, model_id, subject, layer, *values in rows:
        if subject == "base" or model_id is not None:
            layers = probes.setdefault(probe, {}).setdefault(None if subject == "base" else model_id, {})
            layers[layer] = dict(zip(_VECTOR_COLUMNS, values, strict=True))
    usable = {probe: found for probe, found in probes.items() if None in found and len(found) > 1}
    if not usable:
        return {}
    found = usable[max(usable, key=lambda probe: (len(usable[probe]), probe))]
    common = sorted(set.intersection(*map(set, found.values())))
    has_extra = all(model[layer][_EXTRA_COLUMN] is not None for model in found.values() for layer in common)
    columns = [name for name in _VECTOR_COLUMNS if has_extra or name != _EXTRA_COLUMN]
    of_base = found.pop(None)
    ids = sorted(model_id for model_id in found if model_id is not None)
    matrix = np.zeros((len(ids), len(common) * len(columns)))  # a difference that is not known is 0
    for row, model_id in enumerate(ids):
        for place, (layer, name) in enumerate(product(common, columns)):
            is_logarithm, unchanged = _VECTOR_COLUMNS[name]
            mine = found[model_id][layer][name]
            theirs = of_base[layer][name] if unchanged is None else unchanged
            if mine is not None and theirs is not None:
                ratio = max(mine, _LEAST) / max(theirs, _LEAST)
                matrix[row, place] = math.log(ratio) if is_logarithm else mine - theirs
    deviation = matrix.std(axis=0)
    scaled = np.divide(matrix, deviation, out=np.zeros_like(matrix), where=deviation > 1e-9)
    return {model_id: row.astype(np.float32) for model_id, row in zip(ids, scaled, strict=True)}
