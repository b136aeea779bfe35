"""Questions to the Hub about one model: a base, any model by name, a file of it, its safetensors conversion."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from indexer.errors import AtlasError, Failed, ModelError, Skipped, UnknownRevision
from indexer.names import RELATIONS, is_hub_id, nearest, without_address
from indexer.network.hub_errors import as_model_error, as_user_error
from indexer.network.hub_requests import fetch_small, get_json, parse_json
from indexer.network.rows import filenames_in
from indexer.untrusted import is_count, is_too_deep, printable

LARGEST_JSON = 8 << 20
_COMMIT = re.compile(r"[0-9a-f]{7,64}")

# Patterns of ids that a base may have had before it was renamed; each is checked with the Hub.
_FORMER_IDS = (("", "{name}"), ("meta-llama", "meta-llama/Meta-{name}"))

# The folders that hold the denoising model in a repository of diffusers.
_COMPONENTS = ("transformer", "unet")

_CONVERTER = "SFconvertbot"
_CONVERSION = "Adding `safetensors` variant of this model"
_MOST_DISCUSSION_PAGES = 4


@dataclass(frozen=True)
class BaseFacts:
    """A base model on the Hub: canonical id, other ids, commit, parsed config.json.

    ``component``: the folder of the weights in a repository of diffusers ("transformer"), and of its config.json.
    """

    id: str
    commit: str
    aliases: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    row: dict[str, Any] = field(default_factory=dict)
    component: str = ""

    @property
    def ids(self) -> tuple[str, ...]:
        """All its ids, the canonical one first."""
        return (self.id, *self.aliases)

    @property
    def filenames(self) -> tuple[str, ...]:
        """The files of its repository."""
        return filenames_in(self.row)


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
    try:
        row = get_json(f"/api/models/{name}").value
        identifier, commit = _identity(row, what)
        aliases = [name] if name != identifier else []
        # Older ids that the Hub still redirects to this one.
        owner, _, bare = identifier.rpartition("/")
        for renamed_owner, pattern in _FORMER_IDS:
            former = pattern.format(name=bare)
            if former != identifier and renamed_owner in ("", owner):
                with suppress(RepositoryNotFoundError, EntryNotFoundError):
                    found = get_json(f"/api/models/{former}").value
                    if isinstance(found, dict) and found.get("id") == identifier:
                        aliases.append(former)
        component = _component_of(filenames_in(row))
        try:
            config = fetch_json(identifier, f"{component}/config.json" if component else "config.json", commit)
        except ModelError as error:
            if error.reason not in ("not_found", "malformed", "malformed_row"):
                raise
            config = None
        if not isinstance(config, dict):
            raise _without_config(identifier, filenames_in(row))
        if component and isinstance(config.get("_class_name"), str):
            config["model_type"] = config["_class_name"]
    except (GatedRepoError, EntryNotFoundError, RevisionNotFoundError) as error:
        raise as_user_error(error, what) from error
    except RepositoryNotFoundError as error:
        raise unknown_model(name) from error
    except Exception as error:
        raise as_user_error(error, what) from error
    return BaseFacts(identifier, commit, tuple(dict.fromkeys(aliases)), config, row, component)


def _component_of(filenames: Collection[str]) -> str:
    """The folder of the denoising model in a repository of diffusers; "" for any other repository."""
    if "model_index.json" not in filenames or "config.json" in filenames:
        return ""
    return next((name for name in _COMPONENTS if f"{name}/config.json" in filenames), "")


# Files that say what a repository without config.json is, and what to do.
_INSTEAD_OF_CONFIG = (
    ("adapter_config.json", "it is an adapter", "Name the base that it was trained on."),
    ("model_index.json", "it is a pipeline without a separate folder for its denoising model", "Choose another base."),
    ("params.json", "its weights are in Mistral's own format", "Choose the transformers version, often named …-hf."),
)


def _without_config(identifier: str, filenames: tuple[str, ...]) -> AtlasError:
    for name, what, hint in _INSTEAD_OF_CONFIG:
        if name in filenames and "config.json" not in filenames:
            return AtlasError(f"{identifier} has no config.json: {what} ({name}).", hint)
    return AtlasError(
        f"{identifier} has no readable config.json, so the architecture of its weights is unknown.",
        "Choose a base that transformers or diffusers can load.",
    )


def _identity(row: Any, what: str) -> tuple[str, str]:
    identifier, commit = (row.get("id"), row.get("sha")) if isinstance(row, dict) else (None, None)
    if not (isinstance(identifier, str) and is_hub_id(identifier)):
        raise Failed("malformed_row", f"the Hub's answer about {what} does not name a model")
    if not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
        raise Failed("malformed_row", f"the Hub's answer about {what} does not name a commit")
    return identifier, commit


def unknown_model(name: str) -> AtlasError:
    """The error for a model that the Hub does not know; its hint names up to three ids that are spelled like it."""
    owner, _, bare = name.rpartition("/")
    words = sorted(re.findall(r"[A-Za-z0-9]{3,}", bare), key=len, reverse=True)
    filters = [("search", search) for search in dict.fromkeys([bare, *words[:2]])]
    found: dict[str, None] = {}
    try:
        for narrowed in [("author", owner), *filters] if owner else filters:
            rows = get_json("/api/models", [narrowed, ("sort", "downloads"), ("limit", "100")]).rows
            ids = [row.get("id") for row in rows]
            found.update({one: None for one in ids if isinstance(one, str) and is_hub_id(one)})
    except Exception as error:
        as_model_error(error)  # raises a bug again; without an answer of the Hub there are no suggestions
        found.clear()
    near = nearest(name, found)
    hint = f"Did you mean {' or '.join(near)}?" if near else "Check the spelling."
    return AtlasError(
        f"There is no model {name} on the Hub, or it is private.",
        f"{hint} For a private model log in with `hf auth login` or set HF_TOKEN.",
    )


def count_children(identifier: str) -> dict[str, int]:
    """How many models the Hub counts as made from this one, by relation; {} if it does not say."""
    try:
        row = get_json(f"/api/models/{identifier}", [("expand", "childrenModelCount")]).value
    except Exception as error:
        as_model_error(error)  # raises a bug again; nothing depends on the answer
        return {}
    counted = row.get("childrenModelCount") if isinstance(row, dict) else None
    found = counted if isinstance(counted, dict) else {}
    return {name: found[name] for name in RELATIONS if is_count(found.get(name)) and 0 < found[name] < 10**9}


def model_row(identifier: str, revision: str | None = None) -> dict[str, Any]:
    """The row of one model as in a listing, with sizes and hashes of its files, by its old or new id.

    Its ``id`` is the canonical one and its ``sha`` the commit of ``revision``. Raises ModelError: "not_found" if the
    Hub does not know the model, UnknownRevision if it does not know the revision.
    """
    if not is_hub_id(identifier):
        raise Skipped("malformed", f"{printable(identifier, 100)!r} is not a valid name on the Hub")
    path = f"/api/models/{identifier}" + (f"/revision/{quote(revision, safe='')}" if revision else "")
    try:
        row = get_json(path, [("blobs", "true")]).value
    except RevisionNotFoundError as error:
        sentence = f"{identifier} has no revision {printable(revision or 'main', 100)}"
        raise UnknownRevision("not_found", sentence) from error
    except Exception as error:
        raise as_model_error(error) from error
    _identity(row, identifier)
    if is_too_deep(row):
        raise Failed("malformed_row", f"the Hub's answer about {identifier} is nested too deeply")
    found: dict[str, Any] = row
    return found


def fetch_json(identifier: str, filename: str, revision: str) -> Any:
    """A JSON file of a repository, parsed.

    Raises Skipped("malformed") if it is longer than LARGEST_JSON bytes, Failed("malformed_row") if it is not JSON, and
    ModelError for the Hub's errors.
    """
    body = fetch_small(identifier, filename, revision, LARGEST_JSON)
    try:
        return parse_json(body)
    except ValueError as error:
        raise Failed("malformed_row", f"{filename} of {identifier} is not JSON") from error


def conversion_revision(identifier: str) -> str | None:
    """``refs/pr/N`` if the Hub's converter offers the weights of ``main`` as safetensors, else None.

    Only the converter's own pull requests count, because anybody can use its title. One that was opened before the last
    commit of ``main`` may hold other weights and is ignored. Raises ModelError.
    """
    try:
        # The numbers of the converter's open pull requests.
        numbers: set[int] = set()
        for page in range(_MOST_DISCUSSION_PAGES):
            answer = get_json(
                f"/api/models/{identifier}/discussions",
                [("p", str(page)), ("type", "pull_request"), ("status", "open"), ("author", _CONVERTER)],
            ).value
            discussions = answer.get("discussions") if isinstance(answer, dict) else None
            if not isinstance(discussions, list) or not discussions:
                break
            for one in discussions:
                if not isinstance(one, dict) or not isinstance(one.get("author"), dict):
                    continue
                number = one.get("num")
                is_open = one.get("isPullRequest") is True and one.get("status") == "open"
                is_conversion = one["author"].get("name") == _CONVERTER and one.get("title") == _CONVERSION
                if is_open and is_conversion and type(number) is int and 0 < number < 10**9:
                    numbers.add(number)
            start, count = answer.get("start"), answer.get("count")
            if not isinstance(start, int) or not isinstance(count, int) or start + len(discussions) >= count:
                break
        for number in sorted(numbers, reverse=True):
            reference = f"refs/pr/{number}"
            commits = get_json(f"/api/models/{identifier}/commits/{quote(reference, safe='')}").rows
            main = get_json(f"/api/models/{identifier}").value
            if isinstance(main, dict) and main.get("sha") in [one.get("id") for one in commits]:
                return reference
    except (RepositoryNotFoundError, EntryNotFoundError, RevisionNotFoundError):
        return None
    except HfHubHTTPError as error:
        # Discussions can be switched off; the model has not failed then.
        if error.response.status_code in (403, 404, 410):
            return None
        raise as_model_error(error) from error
    except Exception as error:
        raise as_model_error(error) from error
    return None
