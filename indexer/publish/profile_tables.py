"""The tables of depth profiles, filled from their files, and the representation `depth`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.profiles.store import HINT, Profile, ProfileStore
from indexer.publish.tables import Row, Tables
from indexer.publish.validation import ColumnValidator, InvalidValue
from indexer.untrusted import printable

# Measures of each layer that the vector of a model consists of, and whether they are compared as logarithms.
VECTOR_COLUMNS = (("tolerance", True), ("readable", False), ("reach", True), ("cka", False), ("drift", False))
# Used only if every profile has it.
EXTRA_COLUMN = "recovered"
LEAST = 1e-3  # smaller values of tolerance and reach count as this


class ProfileTables:
    """The profiles of one base, inside the transaction of a publish."""

    def __init__(
        self, folder: AtlasFolder, tables: Tables, base: str, validator: ColumnValidator, say: Callable[[str], None]
    ) -> None:
        self.store = ProfileStore(folder)
        self.tables, self.base, self.validator, self.say = tables, base, validator, say

    def renew(self) -> bool:
        """Update the rows to match the files. Returns whether anything changed; damaged files are reported."""
        known = dict(self.tables.rows("SELECT profile_key, is_complete FROM profiles WHERE base = ?", [self.base]))
        there = list(self.store.digests())
        gone = sorted(set(known) - set(there))
        wanted = [digest for digest in there if not known.get(digest, False)]
        found = []
        for digest in wanted:
            try:
                profile = self.store.read(digest)
            except AtlasError as error:
                self.say(f"{error.message} It is left out.")
                continue
            if profile.identity.digest != digest:
                self.say(f"The profile {digest} belongs to a different model. {HINT} It is left out.")
            elif profile.identity.base == self.base:
                found.append((digest, profile))
        self._forget([*gone, *(digest for digest, _ in found if digest in known)])
        self._insert(found)
        return bool(gone or found)

    def _forget(self, digests: Sequence[str]) -> None:
        for digest in digests:
            named = "(SELECT profile_id FROM profiles WHERE profile_key = ?)"
            self.tables.run(f"DELETE FROM profile_layers WHERE profile_id IN {named}", [digest])
            self.tables.run("DELETE FROM profiles WHERE profile_key = ?", [digest])

    def _insert(self, found: Sequence[tuple[str, Profile]]) -> None:
        models = dict(self.tables.rows("SELECT model, model_id FROM fine_tunes WHERE base = ?", [self.base]))
        (next_id,) = self.tables.first("SELECT coalesce(max(profile_id), 0) + 1 FROM profiles") or (1,)
        heads: list[Row] = []
        layers: list[Row] = []
        for number, (digest, profile) in enumerate(found, start=next_id):
            is_model = profile.identity.subject == "fine_tune"
            if is_model and profile.identity.model not in models:
                continue
            head = _head(number, digest, profile, models.get(profile.identity.model) if is_model else None)
            rows = [{"profile_id": number, **row} for row in profile.rows()]
            try:
                self.validator.check("profiles", [head])
                self.validator.check("profile_layers", rows)
            except InvalidValue as why:
                self.say(f"The profile of {printable(profile.identity.model)} is left out: {why}.")
                continue
            heads.append(head)
            layers += rows
        self.tables.insert("profiles", heads)
        self.tables.insert("profile_layers", layers)


def _head(number: int, digest: str, profile: Profile, model_id: int | None) -> Row:
    identity, made = profile.identity, None
    with suppress(ValueError, OverflowError):
        made = datetime.fromisoformat(profile.made).astimezone(UTC).replace(tzinfo=None)
    return {
        "profile_id": number,
        "model_id": model_id,
        "base": identity.base,
        "subject": identity.subject,
        "model": identity.model,
        "commit": identity.commit,
        "base_commit": identity.base_commit,
        "probe": identity.probe,
        "probe_sha256": profile.probe_sha256,
        "sequences": profile.sequences,
        "tokens": profile.tokens,
        "seed": identity.seed,
        "method": identity.method,
        "recipe": identity.recipe,
        "asked": list(identity.asked),
        "is_complete": profile.is_complete,
        "profile_key": digest,
        "device": profile.device,
        "threads": profile.threads,
        "cpu_seconds": profile.cpu_seconds,
        "made": made,
    }


def depth_vectors(
    ask: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]], base: str
) -> dict[int, NDArray[np.float32]]:
    """By model id, the differences of its layers to the base's, in units of their standard deviation over models.

    ``ask`` runs a statement. Uses the probe with the most models, and the newest profile of each model. A copy of the
    base gives zeros.
    """
    names = [name for name, _ in VECTOR_COLUMNS] + [EXTRA_COLUMN]
    rows = ask(
        f"SELECT probe_sha256, model_id, subject, made, layer, {', '.join(names)} FROM depth_of_models "
        "WHERE base = ? AND subject IN ('base', 'fine_tune') AND is_complete AND recipe = 'default' "
        "ORDER BY made, profile_id, layer",
        [base],
    )
    probes: dict[str, dict[int, dict[int, tuple[float | None, ...]]]] = {}
    for probe, model_id, subject, _, layer, *values in rows:
        key = -1 if subject == "base" else model_id
        if key is not None:
            probes.setdefault(probe, {}).setdefault(key, {})[layer] = tuple(values)
    usable = {probe: found for probe, found in probes.items() if -1 in found and len(found) > 1}
    if not usable:
        return {}
    found = usable[max(usable, key=lambda probe: (len(usable[probe]), probe))]
    of_base = found.pop(-1)
    layers = sorted(set(of_base).intersection(*found.values()))
    has_extra = all(one[layer][-1] is not None for one in (of_base, *found.values()) for layer in layers)
    ids = sorted(found)
    matrix = np.array([_differences(found[model_id], of_base, layers, has_extra) for model_id in ids])
    deviation = matrix.std(axis=0)
    scaled = np.divide(matrix, deviation, out=np.zeros_like(matrix), where=deviation > 1e-9)
    return {model_id: row.astype(np.float32) for model_id, row in zip(ids, scaled, strict=True)}


def _differences(
    model: dict[int, tuple[float | None, ...]],
    base: dict[int, tuple[float | None, ...]],
    layers: Sequence[int],
    has_extra: bool,
) -> list[float]:
    columns = [*VECTOR_COLUMNS, *([(EXTRA_COLUMN, False)] if has_extra else [])]
    unchanged = {"cka": 1.0, "drift": 0.0}  # the base compared with itself
    found = []
    for layer in layers:
        for place, (name, is_logarithm) in enumerate(columns):
            mine, theirs = model[layer][place], base[layer][place]
            theirs = unchanged.get(name, theirs)
            if mine is None or theirs is None:
                found.append(0.0)
            elif is_logarithm:
                found.append(math.log(max(mine, LEAST) / max(theirs, LEAST)))
            else:
                found.append(mine - theirs)
    return found
