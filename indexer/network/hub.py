"""Questions to the Hub about one model: what it is by its name, a file of it, its safetensors conversion."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from indexer.errors import AtlasError, Failed, Skipped, UnknownRevision
from indexer.hub_ids import is_hub_id
from indexer.names import RELATIONS, nearest
from indexer.network.hub_errors import model_errors, optional_answer
from indexer.network.hub_requests import fetch_small, get_json, parse_json
from indexer.untrusted import is_count, printable

LARGEST_JSON = 8 << 20
_COMMIT = re.compile(r"[0-9a-f]{7,64}")

_CONVERTER = "SFconvertbot"
_CONVERSION = "Adding `safetensors` variant of this model"
_MOST_DISCUSSION_PAGES = 4


def identity_of(row: Any, what: str) -> tuple[str, str]:
    """The id and the commit that an answer about one model names. Raises Failed("malformed_row") if it names none."""
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
    with optional_answer():  # without one there are no suggestions
        for narrowed in [("author", owner), *filters] if owner else filters:
            rows = get_json("/api/models", [narrowed, ("sort", "downloads"), ("limit", "100")]).rows
            ids = [row.get("id") for row in rows]
            found.update({one: None for one in ids if isinstance(one, str) and is_hub_id(one)})
    near = nearest(name, found)
    hint = f"Did you mean {' or '.join(near)}?" if near else "Check the spelling."
    return AtlasError(
        f"There is no model {name} on the Hub, or it is private.",
        f"{hint} For a private model log in with `hf auth login` or set HF_TOKEN.",
    )


def count_children(identifier: str) -> dict[str, int]:
    """How many models the Hub counts as made from this one, by relation; {} if it does not say."""
    row: Any = None
    with optional_answer():
        row = get_json(f"/api/models/{identifier}", [("expand", "childrenModelCount")]).value
    counted = row.get("childrenModelCount") if isinstance(row, dict) else None
    found = counted if isinstance(counted, dict) else {}
    return {name: found[name] for name in RELATIONS if is_count(found.get(name)) and 0 < found[name] < 10**9}


@model_errors()
def model_row(identifier: str, revision: str | None = None) -> dict[str, Any]:
    """The row of one model as in a listing, with sizes and hashes of its files, by its old or new id.

    Its ``id`` is the canonical one and its ``sha`` the commit of ``revision``. Raises ModelError: "not_found" if the
    Hub does not know the model, UnknownRevision if it does not know the revision.
    """
    if not is_hub_id(identifier):  # it becomes a part of an address
        raise Skipped("malformed", f"{printable(identifier, 100)!r} is not a valid name on the Hub")
    path = f"/api/models/{identifier}" + (f"/revision/{quote(revision, safe='')}" if revision else "")
    try:
        row = get_json(path, [("blobs", "true")]).value
    except RevisionNotFoundError as error:
        sentence = f"{identifier} has no revision {printable(revision or 'main', 100)}"
        raise UnknownRevision("not_found", sentence) from error
    identity_of(row, identifier)
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


@model_errors()
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
        if error.response.status_code not in (403, 404, 410):
            raise
    return None
