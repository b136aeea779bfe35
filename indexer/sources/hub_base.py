"""A base on the Hub: under which ids it goes there, its commit, and what its config.json says."""

from __future__ import annotations

from contextlib import suppress

from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    RepositoryNotFoundError,
)

from indexer.errors import AtlasError, ModelError
from indexer.hub_ids import is_hub_id, without_address
from indexer.network.hub import fetch_json, identity_of, unknown_model
from indexer.network.hub_errors import user_errors
from indexer.network.hub_requests import get_json
from indexer.network.rows import filenames_in
from indexer.sources.bases import NO_CONFIG, component_of, facts_from
from indexer.sources.source import BaseFacts
from indexer.untrusted import printable

# Patterns of ids that a base may have had before it was renamed; each is checked with the Hub.
_FORMER_IDS = (("", "{name}"), ("meta-llama", "meta-llama/Meta-{name}"))


def resolve_base(name: str) -> BaseFacts:
    """Look up a base by its old or new id, or the address of its page.

    Raises AtlasError if the Hub does not know it (the hint names the nearest ids), does not let this account read it,
    or cannot be asked.
    """
    name = without_address(name).partition("@")[0]
    if not is_hub_id(name):
        raise AtlasError(
            f"{printable(name, 100)!r} is not a Hub id.", "A base model is named owner/name, as on the Hub."
        )
    what = f"the base model {name}"
    with user_errors(what):
        try:
            row = get_json(f"/api/models/{name}").value
            identifier, commit = identity_of(row, what)
            aliases = [name] if name != identifier else []
            # Older ids that the Hub still redirects to this one.
            owner, _, bare = identifier.rpartition("/")
            for renamed_owner, pattern in _FORMER_IDS:
                former = pattern.format(name=bare)
                if former != identifier and renamed_owner in ("", owner):
                    with suppress(RepositoryNotFoundError, EntryNotFoundError):
                        former_row = get_json(f"/api/models/{former}").value
                        if isinstance(former_row, dict) and former_row.get("id") == identifier:
                            aliases.append(former)
            component = component_of(filenames_in(row))
            try:
                config = fetch_json(identifier, f"{component}/config.json" if component else "config.json", commit)
            except ModelError as error:
                if error.reason not in NO_CONFIG:
                    raise
                config = None
            return facts_from(row, aliases, config, component)
        except RepositoryNotFoundError as error:
            if isinstance(error, GatedRepoError):
                raise
            raise unknown_model(name) from error
