"""Places by what a person types: a folder, ``hf-cache``, or an address that fsspec knows (``s3://bucket/runs``).

fsspec and its packages do the listing, the ranges and the credentials in their own usual ways; here their errors become
ours, bytes are counted, and what may pass is tried again.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from indexer.errors import AtlasError, Failed, ModelError, Skipped
from indexer.network.byterange import RangedFile
from indexer.network.hub_requests import session_retries
from indexer.network.rate_limit import count_received
from indexer.network.retries import TransientError
from indexer.sources.file_systems import FileFacts, FileSystem, FolderContent, LocalFiles, Problems
from indexer.untrusted import printable, tidy

Result = TypeVar("Result")

HUB_CACHE = "hf-cache"
# What opens places of other forms than folders and the addresses of fsspec: functions of an address and of fsspec's
# options, which return None for an address of another form.
PLACES = ("indexer.sources.mlflow:opened", "indexer.sources.modelscope:opened")
# By the scheme of an address, the extra that brings the package for it.
_EXTRAS = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure",
    "adl": "azure", "http": "http", "https": "http",
}  # fmt: skip
_ADDRESS = re.compile(r"([a-z][a-z0-9+.\-]{0,30}):/{0,2}(?!$)", re.ASCII)
_PAGES = ("http", "https")  # listings are pages of links, one for each folder
_MOST_FILES = 5_000_000
# Fields of fsspec's listings that change with the content, and those that hold its time.
_HASHES = ("ETag", "etag", "md5Hash", "md5", "blob_id", "sha256", "Content-MD5", "Digest", "crc32c")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "Last-Modified", "modified", "created")
_SECRET = re.compile(r"(?i)\b(AWSAccessKeyId|Signature|X-Amz-[\w-]+|sig|token|key|secret)=[^\s&\"']+")
# What servers say of a request that may work later, and of credentials that do not.
_BUSY = (
    "SlowDown",
    "Throttl",
    "ServiceUnavailable",
    "InternalError",
    "RequestTimeout",
    "TooManyRequests",
    "503",
    "429",
)
_CREDENTIALS = {
    "ExpiredToken": "the credentials have expired",
    "TokenRefreshRequired": "the credentials have expired",
    "RequestExpired": "the credentials have expired",
    "InvalidAccessKeyId": "the access key is not known there",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
    "InvalidToken": "the session token is not valid",
    "AuthenticationFailed": "the credentials are not accepted",
    "AccessDenied": "these credentials may not read there",
    "AllAccessDisabled": "these credentials may not read there",
    "NoCredentials": "there are no credentials",
    "403": "these credentials may not read there",
    "401": "there are no credentials that are accepted",
}
_LOG_IN = "Renew the credentials (for S3: the usual variables and files of AWS), or give --storage-option KEY=VALUE."


def file_system(address: str, options: Mapping[str, Any] | None = None) -> FileSystem:
    """The place at an address; ``options`` are fsspec's for it. Raises AtlasError if it cannot be opened."""
    for place in PLACES:
        module, _, name = place.partition(":")
        found: FileSystem | None = getattr(import_module(module), name)(address, options or {})
        if found is not None:
            return found
    if is_remote(address):
        return FsspecFiles(address, dict(options or {}))
    if address.startswith("file:"):
        return LocalFiles(unquote(re.sub("^file:(//(localhost)?)?", "", address)))
    if address == HUB_CACHE:
        from huggingface_hub import constants

        return LocalFiles(constants.HF_HUB_CACHE)
    return LocalFiles(address)


def is_gone(address: str, path: str) -> bool:
    """Whether a folder or file of this machine is certainly not there any more; False for one at an address."""
    return not is_remote(address) and Path(address).is_absolute() and not os.path.lexists(Path(address, path))


@lru_cache(maxsize=16)
def _opened(address: str, options: str) -> FileSystem:
    return file_system(address, json.loads(options))


def opened(address: str, options: Mapping[str, Any]) -> FileSystem:
    """The same, opened once in a process: for reading models one after another."""
    return _opened(address, json.dumps(dict(options), sort_keys=True))


def is_remote(address: str) -> bool:
    """Whether fsspec reads a place: an address with a scheme, but not a path, a folder's address or a drive."""
    scheme = _ADDRESS.match(address)
    return scheme is not None and scheme[1] != "file" and "://" in address and not Path(address).is_dir()


class FsspecFiles(FileSystem):
    """A place that fsspec reads. Raises AtlasError for an unknown scheme, a package that is missing, or credentials."""

    is_remote = True

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self.address = address.rstrip("/")
        self.scheme = urlsplit(address).scheme
        try:
            import fsspec.core

            self._files, self._root = fsspec.core.url_to_fs(address, **options)
        except ImportError as error:
            extra = _EXTRAS.get(self.scheme)
            install = f"pip install 'vectors-in-the-wild[{extra}]'" if extra else f"{tidy(str(error), 200)}"
            raise AtlasError(f"Reading {self.scheme}:// needs a package that is not installed.", install) from error
        except Exception as error:
            raise self._stopped(error) from error
        self._root = self._root.rstrip("/")
        self._folders: dict[str, FolderContent] | None = None

    def content(self, path: str, problems: Problems) -> FolderContent:
        """What lies in a folder. All is listed at once, or folder by folder where each is a page."""
        if self.scheme in _PAGES:
            return self._page(path, problems)
        if self._folders is None or not path:
            self._folders = self._listed()
        return self._folders.get(path, FolderContent())

    def _listed(self) -> dict[str, FolderContent]:
        """The folders of the place, by their paths."""
        self._files.invalidate_cache()
        try:
            found = self._asked(lambda: self._files.find(self._root, detail=True), "it")
        except ModelError as error:
            raise self._unlisted(error) from error
        if not found:
            raise AtlasError(f"There is nothing at {self._shown}.", "Check the address.")
        self._files.invalidate_cache()  # a file is looked up again when it is read
        folders: dict[str, FolderContent] = {"": FolderContent()}
        below = f"{self._root}/" if self._root else ""
        for number, (full, facts) in enumerate(found.items()):
            if number >= _MOST_FILES:
                raise AtlasError(f"{self._shown} has more than {_MOST_FILES:,} files.", "Name a folder in it.")
            path = full.removeprefix(below) if full.startswith(below) else full.rpartition("/")[2]
            *parents, name = path.split("/")
            if not name or any(one.startswith(".") or not one for one in (*parents, name)):
                continue
            for depth in range(len(parents)):
                inner = "/".join(parents[: depth + 1])
                if inner not in folders:
                    folders[inner] = FolderContent()
                    folders["/".join(parents[:depth])].folders.append(parents[depth])
            folders["/".join(parents)].files[name] = _facts_of(facts)
        return folders

    def _page(self, path: str, problems: Problems) -> FolderContent:
        content = FolderContent()
        folder = self._full(path).rstrip("/") + "/"
        try:
            self._files.invalidate_cache()
            rows = self._asked(lambda: self._files.ls(folder, detail=True), "it")
        except ModelError as error:
            if not path:
                raise self._unlisted(error) from error
            problems.note(f"folders that cannot be listed ({error.reason})", path, is_unseen=True)
            return content
        for row in rows:
            full = str(row["name"])
            name = full.removeprefix(folder).rstrip("/") if full.startswith(folder) else ""
            if not name or "/" in name or name.startswith(".") or "?" in name:
                continue
            if full.endswith("/") or row.get("type") == "directory":
                content.folders.append(name)
            else:
                content.files[name] = None
        content.folders = sorted(set(content.folders))
        return content

    def facts(self, path: str) -> FileFacts:
        """The size and the ETag (or the time) of a file, by one request."""
        info = self._asked(lambda: self._files.info(self._full(path)), path.rpartition("/")[2])
        return _facts_of(info)

    def open(self, path: str, name: str) -> RangedFile:
        """A file, for reading by ranges."""
        return RangedFile(name, self.facts(path).size, partial(self.read, path, name))

    def read(self, path: str, name: str, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of a file, by one request that is repeated if need be."""

        def once() -> bytes:
            content = bytes(self._files.cat_file(self._full(path), start=start, end=stop))
            count_received(len(content))
            if len(content) > stop - start:
                content = content[start:stop]  # the whole file
            if len(content) != stop - start:
                raise TransientError(Failed("short_body", f"{name} was cut short"))
            return content

        return self._asked(once, name)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _asked(self, action: Callable[[], Result], name: str) -> Result:
        """The result of a request; what may pass is tried again. Raises ModelError."""

        def once() -> Result:
            try:
                return action()
            except (TransientError, ModelError):
                raise
            except Exception as error:
                meaning = meaning_of(error, name)
                if meaning.reason in ("rate_limited", "network", "timeout", "server_error"):
                    raise TransientError(meaning) from error
                raise meaning from error

        return session_retries().call(once)

    @property
    def _shown(self) -> str:
        return printable(_without_user(self.address), 120)

    def _unlisted(self, error: ModelError) -> AtlasError:
        hint = _LOG_IN if error.reason == "refused" else "Check the address."
        if error.reason in ("rate_limited", "network", "timeout", "server_error"):
            hint = "Run it again later: nothing is lost."
        return AtlasError(f"{self._shown} cannot be listed: {error.detail.rstrip('.')}.", hint)

    def _stopped(self, error: Exception) -> AtlasError:
        what = _SECRET.sub(r"\1=…", tidy(str(error), 200)).rstrip(".")
        return AtlasError(f"{self._shown} cannot be opened: {what or type(error).__name__}.", "Check the address.")


def _facts_of(info: Mapping[str, Any]) -> FileFacts:
    size = info.get("size")
    mark = next((f"etag:{info[name]}" for name in _HASHES if info.get(name)), "")
    if not mark and (time := next((info[name] for name in _TIMES if info.get(name)), None)) is not None:
        if isinstance(time, int | float):
            with suppress(ValueError, OverflowError, OSError):
                time = datetime.fromtimestamp(time, UTC)
        mark = f"time:{time.isoformat() if isinstance(time, datetime) else time}"
    return FileFacts(size if isinstance(size, int) and size >= 0 else 0, mark.replace('"', ""))


def meaning_of(error: BaseException, name: str) -> ModelError:
    """What an error of fsspec or a package behind it means for the file ``name``."""
    cause = error.__cause__ or error.__context__ or error
    response = getattr(error, "response", None) or getattr(cause, "response", None)
    stated = response.get("Error", {}) if isinstance(response, dict) else {}
    code = str(stated.get("Code") or getattr(error, "error_code", "") or getattr(error, "code", "") or
               getattr(error, "status", "") or "")  # fmt: skip
    kind = type(error).__name__ + " " + type(cause).__name__
    said = _SECRET.sub(r"\1=…", tidy(str(stated.get("Message") or error), 160)).rstrip(".")
    if "NoCredentials" in kind or "CredentialRetrieval" in kind or "DefaultCredentials" in kind:
        return Failed("refused", "there are no credentials")
    for known, meaning in _CREDENTIALS.items():
        if code == known or (not code and known in said and not known.isdigit()):
            return Failed("refused", meaning)
    if code in ("NoSuchBucket", "ContainerNotFound"):
        return Failed("not_found", "there is no such bucket")
    if any(one in code or one in said for one in _BUSY) or getattr(error, "errno", None) == errno.EBUSY:
        return Failed("rate_limited", "the server asks for fewer requests" if "Slow" in code + said else said)
    if isinstance(error, FileNotFoundError) or code in ("404", "NoSuchKey", "BlobNotFound"):
        return Failed("not_found", f"{name} is not there")
    if isinstance(error, PermissionError):
        return Failed("refused", said or "access is denied")
    if isinstance(error, TimeoutError) or "Timeout" in kind:
        return Failed("timeout", "the server does not answer in time")
    is_network = isinstance(error, ConnectionError) or any(one in kind for one in ("Connection", "Client", "Payload"))
    if is_network or (isinstance(error, OSError) and error.errno != errno.EINVAL):
        return Failed("network", said or kind)
    if isinstance(error, ValueError | KeyError | TypeError | NotImplementedError):
        return Skipped("malformed", said or kind)
    return Failed("server_error", said or kind)


def _without_user(address: str) -> str:
    parts = urlsplit(address)
    if "@" not in parts.netloc:
        return parts._replace(query="").geturl()
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
