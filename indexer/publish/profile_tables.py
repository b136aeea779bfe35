"""The tables of depth profiles, filled from their files."""

from __future__ import annotations

from collections.abc import Callable

from indexer.atlas import AtlasFolder
from indexer.database.validation import InvalidValue, check_rows
from indexer.errors import AtlasError
from indexer.profiles.store import HINT, Profile, ProfileStore
from indexer.publish.rows import moment
from indexer.publish.tables import Row, Tables
from indexer.untrusted import printable

# Columns of the table profiles that are fields of a profile and of its identity.
_PROFILE_FIELDS = ("probe_sha256", "sequences", "tokens", "is_complete", "device", "threads", "cpu_seconds")
_IDENTITY_FIELDS = ("base", "subject", "model", "commit", "base_commit", "probe", "seed", "method", "recipe")


def renew_profile_tables(folder: AtlasFolder, tables: Tables, base: str, say: Callable[[str], None]) -> bool:
    """Update the rows of one base to match the files. Returns whether anything changed; damaged files are reported."""
    store = ProfileStore(folder)
    is_complete_by_digest = dict(tables.rows("SELECT profile_key, is_complete FROM profiles WHERE base = ?", [base]))
    digests = list(store.digests())
    removed = sorted(set(is_complete_by_digest) - set(digests))
    profiles: dict[str, Profile] = {}
    for digest in digests:
        if is_complete_by_digest.get(digest):  # a complete profile never changes
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
    for digest in [*removed, *(profiles.keys() & is_complete_by_digest)]:
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
    return bool(removed or profiles)
