"""Dataset repositories that can be written to: commits that are there whole or not at all, branches and tags.

``<root>/objects/<sha256>`` holds every content, ``<root>/<owner>/<name>.json`` the commits of a repository and what
its refs name. A commit is a map of paths to contents; ``main`` moves only by a commit whose parent it is.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from scripts.loopback_hub.store import (
    MAIN,
    Revision,
    StoredFile,
    blob_id,
    hub_time,
    is_in_lfs,
    is_repo_id,
    lfs_pointer,
)

TAGS = "refs/tags/"
_REGULAR_AT_MOST = 10 << 20
_IGNORED = frozenset({".gitignore"})


class Conflict(Exception):
    """A commit whose parent is no longer the head, or a name that is taken."""


@dataclass
class Dataset:
    """One repository: ``commits`` by sha, ``refs`` by full name (``main``, ``refs/tags/T``)."""

    id: str
    private: bool = False
    created: str = ""
    modified: str = ""
    refs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, Any]] = field(default_factory=dict)

    def sha_of(self, name: str) -> str | None:
        """The commit that a branch, a tag or (a beginning of) a sha names."""
        for known in (name, f"{TAGS}{name}", name.removeprefix("refs/heads/")):
            if known in self.refs:
                return self.refs[known]
        if re.fullmatch(r"[0-9a-f]{7,40}", name):
            return next((sha for sha in self.commits if sha.startswith(name)), None)
        return None


class Datasets:
    """All dataset repositories below one folder. Thread-safe; what was committed outlives the process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.objects = root / "objects"
        self.objects.mkdir(parents=True, exist_ok=True)
        self.lock = threading.RLock()
        self._known: dict[str, Dataset] = {}
        for path in sorted(root.glob("*/*.json")):
            result = json.loads(path.read_text())
            self._known[result["id"]] = Dataset(**result)

    def find(self, repo_id: str) -> Dataset | None:
        """The repository of that id."""
        with self.lock:
            return self._known.get(repo_id)

    def all(self) -> list[Dataset]:
        """Every repository, by id."""
        with self.lock:
            return [self._known[name] for name in sorted(self._known)]

    def create(self, repo_id: str, *, private: bool = False) -> Dataset:
        """A new one with the Hub's own first commit. Raises Conflict where there is one, ValueError for a bad id."""
        if not is_repo_id(repo_id):
            raise ValueError(f"Invalid repository name: {repo_id}")
        with self.lock:
            if repo_id in self._known:
                raise Conflict("You already created this dataset repo")
            made = self._known[repo_id] = Dataset(repo_id, private, created=hub_time(datetime.now(UTC)))
            attributes = b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"
            self.commit(repo_id, None, "initial commit", {".gitattributes": self.describe_regular(attributes)}, [])
            return made

    def keep(self, data: bytes) -> str:
        """Keep these bytes; their sha256."""
        sha256 = hashlib.sha256(data).hexdigest()
        temporary = self.objects / f".{secrets.token_hex(8)}"
        temporary.write_bytes(data)
        temporary.replace(self.objects / sha256)
        return sha256

    def holds(self, sha256: str, size: int | None = None) -> bool:
        """Whether those bytes are here."""
        path = self.objects / sha256
        return path.is_file() and size in (None, path.stat().st_size)

    def describe_regular(self, data: bytes) -> dict[str, Any]:
        """A file outside LFS, kept."""
        return {"sha256": self.keep(data), "size": len(data), "oid": blob_id(data), "lfs": False}

    def describe_lfs(self, sha256: str, size: int) -> dict[str, Any]:
        """An LFS file, whose bytes were uploaded before the commit."""
        return {"sha256": sha256, "size": size, "oid": blob_id(lfs_pointer(sha256, size)), "lfs": True}

    def commit(
        self, repo_id: str, parent: str | None, summary: str, added: dict[str, dict[str, Any]], deleted: list[str]
    ) -> str:
        """Move ``main``: all of it at once. Raises Conflict if ``parent`` is given and is not the head."""
        with self.lock:
            repository = self._known[repo_id]
            head = repository.refs.get(MAIN)
            if parent is not None and parent != head:
                raise Conflict("The expected parent commit does not match the current head of the branch")
            files = dict(repository.commits[head]["files"]) if head else {}
            for path in deleted:
                if path.endswith("/"):
                    files = {name: one for name, one in files.items() if not name.startswith(path)}
                elif files.pop(path, None) is None:
                    raise KeyError(path)
            files |= added
            result: dict[str, Any] = {
                "parent": head,
                "summary": summary,
                "files": dict(sorted(files.items())),
                "at": hub_time(datetime.now(UTC)),
            }
            sha = hashlib.sha1(json.dumps([repo_id, len(repository.commits), result]).encode()).hexdigest()
            repository.commits[sha] = result
            repository.refs[MAIN] = sha
            repository.modified = result["at"]
            self._save(repository)
            return sha

    def tag(self, repo_id: str, name: str, sha: str) -> None:
        """Name a commit. Raises Conflict where the tag is there."""
        with self.lock:
            repository = self._known[repo_id]
            if TAGS + name in repository.refs:
                raise Conflict(f"Tag {name} already exists")
            repository.refs[TAGS + name] = sha
            self._save(repository)

    def revision(self, repository: Dataset, name: str) -> Revision | None:
        """The files of a commit, as stores of models have them."""
        sha = repository.sha_of(name)
        if sha is None:
            return None
        files = {path: self._stored(path, one) for path, one in repository.commits[sha]["files"].items()}
        return Revision(name, sha, files)

    def card(self, repository: Dataset, sha: str | None = None) -> dict[str, Any]:
        """The YAML that the card begins with; empty if there is none or if it is not a mapping."""
        commit = repository.commits.get(sha or repository.refs.get(MAIN, ""))
        readme = commit["files"].get("README.md") if commit else None
        if readme is None:
            return {}
        parts = (self.objects / readme["sha256"]).read_text(errors="replace").split("---\n", 2)
        found = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else {}
        return found if isinstance(found, dict) else {}

    def _stored(self, path: str, one: dict[str, Any]) -> StoredFile:
        location = self.objects / one["sha256"]
        sha256 = one["sha256"] if one["lfs"] else None
        pointer = len(lfs_pointer(one["sha256"], one["size"])) if one["lfs"] else 0
        return StoredFile(path, location, one["size"], 0, one["oid"], sha256, pointer)

    def _save(self, repository: Dataset) -> None:
        path = self.root / f"{repository.id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(repository.__dict__))
        temporary.replace(path)


def upload_mode(path: str, sample: bytes, size: int) -> str:
    """As the Hub decides: by name, by size, and by whether it looks like text."""
    name = path.rsplit("/", 1)[-1]
    return "lfs" if is_in_lfs(name) or size > _REGULAR_AT_MOST or b"\0" in sample or not _is_text(sample) else "regular"


def is_ignored(path: str) -> bool:
    """Whether the Hub drops such a file silently."""
    return path in _IGNORED


def _is_text(sample: bytes) -> bool:
    try:
        sample.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(sample) - 3  # a letter that the sample cuts
    return True
