"""For tests of sharing: a writable Hub, people with tokens, and this process as one of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from huggingface_hub import constants

from indexer.atlas import SCHEMA_VERSION, AtlasFolder
from indexer.builds.report import BuildEvent
from indexer.listing.exchange import read_exported
from indexer.listing.listing import Listing
from indexer.share.manifest import ATLAS, RECORDS
from indexer.share.push import PushReport, push
from scripts.loopback_hub import LoopbackHub
from tests.conftest import Shell
from tests.hubs import reset_session, use_endpoint

WRITERS = {"mine": ["ann"], "theirs": ["ann", "bob"], "stranger": ["cyd"]}
NAME = "ann/atlas"
RECORD = f"records/ab/ab{'0' * 62}.safetensors"  # the path of a record


@contextmanager
def open_hub(folder: Path, **settings: Any) -> Iterator[LoopbackHub]:
    """A Hub without models, whose datasets lie in ``folder``."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    with LoopbackHub(folder / "models", datasets=folder / "datasets", writers=WRITERS, **settings) as hub:
        yield hub


class Person:
    """This process, talking to a Hub with a token and a cache of its own."""

    def __init__(self, hub: LoopbackHub, folder: Path, monkeypatch: Any) -> None:
        self.hub, self.folder, self.monkeypatch = hub, folder, monkeypatch
        self.said: list[str] = []
        use_endpoint(monkeypatch, hub.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hf" / "hub"))
        monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(folder / "hf" / "assets"))
        self.use_token("mine")

    def use_token(self, token: str | None) -> None:
        """Use another token from now on."""
        if token is None:
            self.monkeypatch.delenv("HF_TOKEN", raising=False)
        else:
            self.monkeypatch.setenv("HF_TOKEN", token)

    def push(self, atlas: AtlasFolder, name: str = NAME, **options: Any) -> PushReport:
        return push(name, atlas.root, progress=self.note, **options)

    def note(self, event: BuildEvent) -> None:
        self.said.append(event.message)


@contextmanager
def person(folder: Path, monkeypatch: Any, **settings: Any) -> Iterator[Person]:
    with open_hub(folder / "hub", **settings) as hub:
        try:
            yield Person(hub, folder, monkeypatch)
        finally:
            reset_session()


def shell_of(hub: LoopbackHub, folder: Path, token: str | None = "mine", **more: str) -> Shell:
    """Commands of one person, without Xet by default."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {"HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1", **more}
    if token is not None:
        own["HF_TOKEN"] = token
    return Shell(hub.endpoint, folder, own)


def pushed_files(hub: LoopbackHub, name: str = NAME, revision: str = "main") -> dict[str, bytes]:
    """What a revision of a dataset holds, as the Hub has it."""
    repository = hub.datasets.find(name)
    files = hub.datasets.revision(repository, revision).files
    return {path: one.location.read_bytes() for path, one in files.items()}


def publish_by_hand(
    hub: LoopbackHub, name: str, files: Mapping[str, bytes], parts: Mapping[str, str] | None = None, **fields: Any
) -> None:
    """Put files and a manifest of them into a repository, without using this program."""
    api = hub.datasets
    if api.find(name) is None:
        api.create(name)
    worked_from = ("records/", "listing/", "bases/", "profiles/")
    entries = [
        {
            "path": path,
            "bytes": len(content),
            "sha256": api.keep(content),
            "part": (parts or {}).get(path, RECORDS if path.startswith(worked_from) else ATLAS),
        }
        for path, content in files.items()
        if path not in ("README.md", "atlas.json", ".gitattributes") and not path.startswith(("data/", "vectors/"))
    ]
    manifest = {
        "format": 1, "generation": 1, "schema": SCHEMA_VERSION, "tool": "by hand", "published": "", "bases": [],
        "representations": [], "counts": {}, "files": entries, **fields,
    }  # fmt: skip
    added = {one["path"]: api.describe_lfs(one["sha256"], one["bytes"]) for one in entries}
    added["atlas.json"] = api.describe_regular(json.dumps(manifest).encode())
    api.commit(name, None, "by hand", added, [])


def is_whole(hub: LoopbackHub, name: str = NAME) -> bool:
    """Whether main is an atlas whose files are those of its manifest; False if it is not one yet."""
    files = pushed_files(hub, name)
    if "atlas.json" not in files:
        assert set(files) <= {".gitattributes"}, "a part of an atlas is visible"
        return False
    entries = json.loads(files["atlas.json"])["files"]
    for one in entries:
        assert hashlib.sha256(files[one["path"]]).hexdigest() == one["sha256"], one["path"]
    assert {one["path"] for one in entries} | {"README.md", "atlas.json", ".gitattributes"} == set(files)
    return True


def rows_of(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, by table; without the spec of builds, which names the Hub."""
    with duckdb.connect(str(database), read_only=True) as connection:
        tables = connection.execute(
            "SELECT schema_name || '.' || table_name FROM duckdb_tables() ORDER BY 1"
        ).fetchall()
        but = {"main.builds": "EXCLUDE (spec)"}
        return {
            table: connection.execute(f"SELECT * {but.get(table, '')} FROM {table} ORDER BY ALL").fetchall()
            for (table,) in tables
        }


def listed_in(path: Path) -> list[dict[str, Any]]:
    """The lines of models in a listing: a database, or JSON lines where it was pulled."""
    lines = Listing(path).as_lines() if path.suffix == ".sqlite" else read_exported(path)[0]
    return [line for line in lines if line["kind"] == "model"]


def atlas_content(folder: Path) -> dict[str, Any]:
    """Every file of an atlas but those that say who holds it; of the database its rows, of listings their models."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in ("lock", "pulled.json", "checksums.json"):
            is_listing, is_database = path.parent.name == "listing", path.name == "atlas.duckdb"
            read = listed_in if is_listing else rows_of if is_database else Path.read_bytes
            found[
                path.relative_to(folder).with_suffix("").as_posix()
                if is_listing
                else path.relative_to(folder).as_posix()
            ] = read(path)
    return found


@pytest.fixture
def ann(tmp_path, monkeypatch):
    with person(tmp_path, monkeypatch) as someone:
        yield someone
