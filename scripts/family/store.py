"""The family's repositories on disk, laid out as the loopback Hub serves them.

``<root>/<owner>/<name>/`` holds the files, ``<root>/<owner>/<name>.repo.json`` what the Hub would say. The
description is written last, so a repository that has one is whole.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from scripts.family.plan import Repository

FIRST_UPLOAD = datetime(2024, 3, 1, 9, tzinfo=UTC)
BETWEEN_UPLOADS = timedelta(hours=53)
REVISIONS = ".revisions"  # no account's name starts with a dot
RECORD = "family.json"  # written last of all
STARTED = "family.started.json"  # in its place until then
EXPECTED = "expected.json"
RESULTS = "all_results.json"  # what was measured of one model, in its repository
CONVERSION = "Adding `safetensors` variant of this model"


def is_published(root: Path, model: str) -> bool:
    """Whether a repository is complete."""
    return (root / f"{model}.repo.json").is_file()


def publish(root: Path, model: str, filled: Path, description: Mapping[str, Any]) -> None:
    """Move a filled folder to its place, then describe it; replaces what an interrupted run left."""
    folder = root / model
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    filled.rename(folder)
    write_json(root / f"{model}.repo.json", {"sha": commit_of(model, folder), **description})


def publish_conversion(root: Path, model: str, files: Path) -> dict[str, Any]:
    """Store the pull request in which the Hub's bot offers safetensors; returns its ``revisions`` entry."""
    folder = root / REVISIONS / model.replace("/", "--") / "pr-1"
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(files, folder)
    entry = {
        "sha": commit_of(f"{model} refs/pr/1", folder),
        "folder": folder.relative_to(root).as_posix(),
        "author": "SFconvertbot",
        "title": CONVERSION,
    }
    return {"refs/pr/1": entry}


def commit_of(name: str, folder: Path) -> str:
    """A commit that changes with any file, 40 hexadecimal digits."""
    digest = hashlib.sha1(name.encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def circumstances(model: str, position: int) -> dict[str, Any]:
    """Dates, downloads and likes: made up, the same every time, later positions uploaded later."""
    created = FIRST_UPLOAD + position * BETWEEN_UPLOADS + timedelta(minutes=int(1000 * draw(model, "minute")))
    modified = created + timedelta(hours=int(900 * draw(model, "modified") ** 3))
    downloads = int(math.exp(11 * draw(model, "downloads")))
    return {
        "created_at": as_iso(created),
        "last_modified": as_iso(modified),
        "downloads": downloads,
        "likes": int(math.sqrt(downloads) * draw(model, "likes") / 3),
    }


def draw(model: str, what: str) -> float:
    """A number in [0, 1) determined by a name."""
    return int.from_bytes(hashlib.sha256(f"{model} {what}".encode()).digest()[:6]) / 2**48


def as_iso(moment: datetime) -> str:
    """As the Hub writes dates."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def write_json(path: Path, value: Any) -> None:
    """Write by rename, so that a reader finds the complete file or none."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(value, indent=2, ensure_ascii=True) + "\n", encoding="utf-8")
    part.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """An object that ``write_json`` wrote; {} if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def is_finished(root: Path, fingerprint: str) -> bool:
    """Whether the whole family of this plan lies below ``root``."""
    return read_json(root / RECORD).get("fingerprint") == fingerprint


def expected_entry(repository: Repository) -> dict[str, str | None]:
    """What ``expected.json`` says of one repository."""
    expected = asdict(repository.expected)
    is_tagged = expected["found_by"] is None and expected["outcome"] != "not listed"
    return expected | {"found_by": "tags"} if is_tagged else expected
