"""Atlases on the Hub: their addresses, what a commit of a dataset repository holds, and errors as one sentence each."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import disable_progress_bars

from indexer.atlas import ON_HUB
from indexer.console.messages import Progress
from indexer.errors import WRONG_KINDS, AtlasError, Failed, ModelError
from indexer.hub_ids import is_hub_id
from indexer.network.hub_errors import as_user_error, user_errors
from indexer.network.hub_requests import fetch_small, get_json
from indexer.network.session import HttpLimits, install_session
from indexer.share.card import TAG
from indexer.share.manifest import LARGEST, MOST_FILES, NAME, Manifest, parse
from indexer.untrusted import COMMIT, SHA256, printable

# The Hub may take a minute to answer a commit.
LIMITS = HttpLimits(read_seconds=120.0)
MOST_PAGES = 300  # of a list of files, with a thousand a page
_MOST_ATLASES = 1000
_REVISION = re.compile(r"[\w.\-/]{1,200}", re.ASCII)
_SIZE = "size_categories:"
_BASE = "base_model:"


@dataclass(frozen=True)
class Address:
    """A dataset repository and a revision of it; None for the latest: OWNER/NAME[@TAG], with or without hf://."""

    name: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse what a user writes. Raises AtlasError."""
        name, at, revision = text.removeprefix(ON_HUB).removeprefix("datasets/").rstrip("/").partition("@")
        if not (is_hub_id(name) and "/" in name):
            raise AtlasError(
                f"{printable(text, 100)!r} is not the name of an atlas on the Hub.",
                "Write OWNER/NAME, or OWNER/NAME@TAG.",
            )
        is_plain = _REVISION.fullmatch(revision) and ".." not in revision and not revision.startswith(("/", "-"))
        if at and not is_plain:
            sentence = f"{printable(revision, 60)!r} is not a valid tag, branch or commit."
            raise AtlasError(sentence, "Write OWNER/NAME@TAG.")
        return cls(name, revision or None)

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


@dataclass(frozen=True)
class ListedFile:
    """A file of a commit: its bytes, git's blob id, and the sha256 if it is in LFS."""

    size: int
    oid: str
    sha256: str | None


@dataclass(frozen=True)
class RemoteCommit:
    """One commit of a repository: its files by path, and its manifest if it is an atlas."""

    address: Address
    sha: str
    files: dict[str, ListedFile] = field(default_factory=dict)
    manifest: Manifest | None = None


@contextmanager
def translated_hub_errors(name: str, doing: str) -> Iterator[None]:
    """Within the block errors on the way to the Hub become AtlasError; ``doing``: "read", "write to"."""
    try:
        yield
    except (AtlasError, KeyboardInterrupt):
        raise
    except Exception as error:
        cause = error
        # The library wraps the error of one file of several.
        while not isinstance(cause, HfHubHTTPError | httpx2.HTTPError | OSError | ModelError):
            if not isinstance(cause.__cause__, Exception):
                break
            cause = cause.__cause__
        if isinstance(cause, HfHubHTTPError) and not isinstance(cause, GatedRepoError) and doing != "read":
            status = cause.response.status_code
            if status in (401, 403):
                raise AtlasError(
                    f"The Hub does not let this account {doing} {name} (HTTP {status}).",
                    "Check the owner's name, and that HF_TOKEN (or `hf auth login`) may write there.",
                ) from error
            if status in (409, 412):
                raise AtlasError(
                    f"Somebody else has published to {name} meanwhile; nothing of this push is visible.",
                    "Look at what is there now (index pull --list), and run it again.",
                ) from error
        if isinstance(cause, OSError) and not isinstance(cause, HfHubHTTPError | httpx2.HTTPError) and cause.errno:
            if cause is error:
                raise
            raise cause from error
        if "No space left on device" in str(error):  # the Xet client gives no errno
            raise OSError(errno.ENOSPC, "No space left on device") from error
        if isinstance(cause, RuntimeError | ValueError) and not isinstance(cause, HfHubHTTPError):
            first_line = printable(str(error).splitlines()[0] if str(error) else type(error).__name__, 200)
            raise AtlasError(
                f"The Hub's storage failed to {doing} {name}: {first_line.rstrip('.')}.",
                "Run it again; what arrived is not sent again. HF_HUB_DISABLE_XET=1 avoids the Xet client.",
            ) from error
        raise as_user_error(cause, f"the atlas {name}") from error


def resolve(address: Address) -> str:
    """The commit that an address names. Raises AtlasError."""
    install_session(LIMITS)
    revision = quote(address.revision or "main", safe="")
    with user_errors(f"the atlas {address}"):
        try:
            row = get_json(f"/api/datasets/{address.name}/revision/{revision}").value
        except RevisionNotFoundError as error:
            try:
                existing = sorted(tags(address.name))
                names = ", ".join(printable(tag, 40) for tag in existing[-10:]) or "none"
            except AtlasError:
                names = "unknown"
            raise AtlasError(f"{address.name} has no revision {address.revision!r}.", f"Its tags: {names}") from error
        except RepositoryNotFoundError as error:
            if isinstance(error, GatedRepoError):
                raise
            raise AtlasError(
                f"There is no dataset {address.name} on the Hub, or it is private.",
                "Check the spelling (index pull --list), and for a private one log in: hf auth login",
            ) from error
        sha = row.get("sha") if isinstance(row, dict) else None
        if not (isinstance(sha, str) and COMMIT.fullmatch(sha)):
            raise Failed("server_error", "its answer names no commit")
        return sha


def tags(name: str) -> dict[str, str]:
    """The commit of each tag of a dataset. Raises AtlasError."""
    with translated_hub_errors(name, "read"):
        refs = get_json(f"/api/datasets/{name}/refs").value
        rows = refs.get("tags") if isinstance(refs, dict) else None
        return {
            str(row["name"]): str(row["targetCommit"])
            for row in rows or ()
            if isinstance(row, dict) and "name" in row and "targetCommit" in row
        }


def read_commit(address: Address, sha: str) -> RemoteCommit:
    """The files and the manifest of a commit. Raises AtlasError."""
    with translated_hub_errors(address.name, "read"):
        files: dict[str, ListedFile] = {}
        link = f"/api/datasets/{address.name}/tree/{sha}?recursive=true&expand=false"
        for _ in range(MOST_PAGES):
            answer = get_json(link)
            for row in answer.value if isinstance(answer.value, list) else ():
                try:
                    if row["type"] == "file":
                        sha256 = (row.get("lfs") or {}).get("oid")
                        is_sha256 = isinstance(sha256, str) and SHA256.fullmatch(sha256)
                        listed_file = ListedFile(int(row["size"]), str(row["oid"]), sha256 if is_sha256 else None)
                        files[str(row["path"])] = listed_file
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise Failed("server_error", "its list of files cannot be read") from error
            if len(files) > 2 * MOST_FILES:
                raise Failed("malformed", "it has more files than an atlas can have")
            if answer.next_link is None:
                break
            if answer.next_link == link or not answer.value:
                raise Failed("malformed", "its list of files does not end")
            link = answer.next_link
        else:
            raise Failed("malformed", "its list of files does not end")
        if NAME not in files:
            return RemoteCommit(address, sha, files)
        if files[NAME].size > LARGEST:
            raise AtlasError(f"{NAME} of {address} is larger than {LARGEST >> 20} MB.", "Do not use it.")
        content = fetch_small(address.name, NAME, sha, LARGEST, repo_type="dataset")
        return RemoteCommit(address, sha, files, parse(content, f"{NAME} of {address}"))


def atlases_on_hub(base: str | None = None) -> list[dict[str, Any]]:
    """All atlases on the Hub (datasets with our tag), newest first, optionally of one base. Raises AtlasError."""
    install_session(LIMITS)
    parameters = [("filter", TAG), *([("filter", f"{_BASE}{base}")] if base else [])]
    parameters += [("sort", "lastModified"), ("limit", "100")]
    expand = ("cardData", "tags", "lastModified", "private", "downloads", "likes", "sha")
    parameters += [("expand", tag) for tag in expand]
    listed: list[dict[str, Any]] = []
    with translated_hub_errors("list of atlases", "read"):
        answer = get_json("/api/datasets", parameters)
        for _ in range(_MOST_ATLASES // 20):  # a page of the Hub has a hundred, of some mirrors fewer
            listed += answer.rows
            if answer.next_link is None or len(listed) >= _MOST_ATLASES:
                break
            answer = get_json(answer.next_link)
    rows = []
    for row in listed:
        # The card says what an atlas holds, the tags say a part of it. Malformed fields are left out.
        tags_of_row = row.get("tags")
        tagged = [tag for tag in tags_of_row if isinstance(tag, str)] if isinstance(tags_of_row, list) else []
        bases = [printable(tag.removeprefix(_BASE), 120) for tag in tagged if tag.startswith(_BASE)]
        sizes = (printable(tag.removeprefix(_SIZE), 20) for tag in tagged if tag.startswith(_SIZE))
        models: int | str | None = next(sizes, None)
        generation = None
        with suppress(*WRONG_KINDS):
            atlas: Any = row["cardData"]["atlas"]
            models, generation = int(atlas["models"]), int(atlas["generation"])
            bases = [printable(str(tag["base"]), 120) for tag in atlas["bases"]]
        rows.append(
            {
                "atlas": printable(str(row.get("id")), 120),
                "bases": bases,
                "models": models,
                "generation": generation,
                "modified": printable(str(row.get("lastModified") or ""), 30)[:10],
                "private": row.get("private") is True,
                "downloads": row.get("downloads") if isinstance(row.get("downloads"), int) else None,
            }
        )
    return rows


def our_progress_bars() -> AbstractContextManager[object]:
    """Let huggingface_hub draw progress bars only where ours are drawn, unless its own variable says otherwise."""
    is_free = constants.HF_HUB_DISABLE_PROGRESS_BARS is None
    return disable_progress_bars() if is_free and not Progress.may_draw() else nullcontext()
