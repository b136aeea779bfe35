"""A dataset repository on the Hub, as push and pull need it; every failure is one sentence that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx2
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from indexer.errors import AtlasError, Failed, ModelError
from indexer.network.hub_requests import ask, fetch_small
from indexer.network.session import HttpLimits, as_model_error, as_user_error, install_session
from indexer.share.address import Address
from indexer.share.manifest import LARGEST, MOST_FILES, NAME, Manifest, parse
from indexer.untrusted import COMMIT, SHA256, printable

# The Hub may take a minute to answer a commit.
LIMITS = HttpLimits(read_seconds=120.0)
_REFUSALS = (401, 403)
MOST_PAGES = 300  # of a list of files, of which the Hub shows a thousand a page


@dataclass(frozen=True)
class RemoteFile:
    """A file of a commit: bytes, git's blob id, and the sha256 where it is in LFS."""

    size: int
    oid: str
    sha256: str | None


@dataclass(frozen=True)
class Remote:
    """One commit of a repository: its files by path, and what it says of itself where it is an atlas."""

    address: Address
    sha: str
    files: dict[str, RemoteFile] = field(default_factory=dict)
    manifest: Manifest | None = None

    @property
    def is_bare(self) -> bool:
        """Whether nothing is in it but what the Hub puts there, and perhaps a card."""
        return not self.files.keys() - {".gitattributes", "README.md"}


@contextmanager
def failures_told(name: str, doing: str) -> Iterator[None]:
    """Within the block what goes wrong on the way to the Hub is an AtlasError; ``doing``: "read", "write to"."""
    try:
        yield
    except (AtlasError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise _as_ours(error, name, doing) from error


def _as_ours(error: Exception, name: str, doing: str) -> Exception:
    cause = error
    # The library wraps what went wrong with one file of several.
    while not isinstance(cause, HfHubHTTPError | httpx2.HTTPError | OSError | ModelError) and cause.__cause__:
        if not isinstance(cause.__cause__, Exception):
            break
        cause = cause.__cause__
    if isinstance(cause, HfHubHTTPError) and not isinstance(cause, GatedRepoError):
        status = cause.response.status_code
        if status in _REFUSALS and doing != "read":
            return AtlasError(
                f"The Hub does not let this account {doing} {name} (HTTP {status}).",
                "Check the owner's name, and that HF_TOKEN (or `hf auth login`) may write there.",
            )
        if status in (409, 412) and doing != "read":
            return AtlasError(
                f"Somebody else has published to {name} meanwhile; nothing of this push is visible.",
                "Look at what is there now (index pull --list), and run it again.",
            )
    if isinstance(cause, OSError) and not isinstance(cause, HfHubHTTPError | httpx2.HTTPError) and cause.errno:
        return cause
    if "No space left on device" in str(error):  # told by the Xet client, in words alone
        return OSError(errno.ENOSPC, "No space left on device")
    if isinstance(cause, RuntimeError | ValueError) and not isinstance(cause, HfHubHTTPError):
        said = printable(str(error).splitlines()[0] if str(error) else type(error).__name__, 200)
        return AtlasError(
            f"The Hub's storage could not be asked to {doing} {name}: {said.rstrip('.')}.",
            "Run it again; what arrived is not sent again. HF_HUB_DISABLE_XET=1 takes the plain way.",
        )
    return as_user_error(cause, f"the atlas {name}")


def resolve(address: Address) -> str:
    """The commit that an address names. Raises AtlasError."""
    install_session(LIMITS)
    revision = quote(address.revision or "main", safe="")
    try:
        row = ask(f"/api/datasets/{address.name}/revision/{revision}").value
        sha = row.get("sha") if isinstance(row, dict) else None
        if not (isinstance(sha, str) and COMMIT.fullmatch(sha)):
            raise Failed("server_error", "its answer names no commit")
        return sha
    except RevisionNotFoundError as error:
        raise AtlasError(
            f"{address.name} has no revision {address.revision!r}.", f"Its tags: {_tags_told(address.name)}"
        ) from error
    except RepositoryNotFoundError as error:
        if isinstance(error, GatedRepoError):
            raise as_user_error(error, f"the atlas {address}") from error
        raise AtlasError(
            f"The Hub knows no dataset {address.name}, or it is private.",
            "Check the spelling (index pull --list), and for a private one log in: hf auth login",
        ) from error
    except Exception as error:
        raise as_user_error(error, f"the atlas {address}") from error


def tags(name: str) -> dict[str, str]:
    """The commits by tag. Raises AtlasError."""
    with failures_told(name, "read"):
        told = ask(f"/api/datasets/{name}/refs").value
        rows = told.get("tags") if isinstance(told, dict) else None
        return {
            str(one["name"]): str(one["targetCommit"])
            for one in rows or ()
            if isinstance(one, dict) and "name" in one and "targetCommit" in one
        }


def _tags_told(name: str) -> str:
    try:
        found = sorted(tags(name))
    except AtlasError:
        return "none that can be read"
    return ", ".join(printable(one, 40) for one in found[-10:]) or "none"


def read_remote(address: Address, sha: str) -> Remote:
    """What a commit holds. Raises AtlasError."""
    with failures_told(address.name, "read"):
        files = _files(address.name, sha)
        manifest = _manifest(address, sha, files[NAME].size) if NAME in files else None
    return Remote(address, sha, files, manifest)


def atlas_at(address: Address, sha: str) -> tuple[Remote, Manifest]:
    """The same of one that must be an atlas. Raises AtlasError where it is none."""
    remote = read_remote(address, sha)
    if remote.manifest is None:
        raise AtlasError(
            f"The dataset {address} is no atlas: it has no {NAME}.", "See which there are: index pull --list"
        )
    return remote, remote.manifest


def _manifest(address: Address, sha: str, size: int) -> Manifest:
    if size > LARGEST:
        raise AtlasError(f"{NAME} of {address} is larger than {LARGEST >> 20} MB.", "It is not one of ours.")
    return parse(fetch_small(address.name, NAME, sha, LARGEST, repo_type="dataset"), f"{NAME} of {address}")


def _files(name: str, sha: str) -> dict[str, RemoteFile]:
    found: dict[str, RemoteFile] = {}
    link = f"/api/datasets/{name}/tree/{sha}?recursive=true&expand=false"
    for _ in range(MOST_PAGES):
        answer = ask(link)
        for row in answer.value if isinstance(answer.value, list) else ():
            try:
                if row["type"] == "file":
                    lfs = row.get("lfs") or {}
                    sha256 = lfs.get("oid")
                    is_sha256 = isinstance(sha256, str) and SHA256.fullmatch(sha256)
                    found[str(row["path"])] = RemoteFile(
                        int(row["size"]), str(row["oid"]), sha256 if is_sha256 else None
                    )
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise Failed("server_error", "its list of files cannot be read") from error
        if len(found) > 2 * MOST_FILES:
            raise Failed("malformed", "it has more files than an atlas can have")
        if answer.next_link is None:
            return found
        if answer.next_link == link or not answer.value:
            break
        link = answer.next_link
    raise Failed("malformed", "its list of files does not end")


def is_out_of_reach(error: AtlasError) -> bool:
    """Whether it was the way to the Hub that failed, not what is there."""
    cause = error.__cause__
    if not isinstance(cause, Exception):
        return False
    try:
        return as_model_error(cause).reason in ("network", "timeout", "server_error", "rate_limited")
    except Exception:
        return False
