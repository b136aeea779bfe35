"""The family of Mistral-Small-24B-Base-2501 in April 2025: 66 models that claim to descend from it, three steps deep.

Their tags, file lists and configurations are real; the weights are empty files. How many are found, and of how many the
files could be read, are the figures of docs/guide/crawl.md.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.checkpoints.checkpoint_files import choose
from indexer.errors import ModelError
from indexer.listing.listing import Listing
from indexer.sources.questions import CrawlRequest
from tests.hubs import add_repo, served, update_listing

TREE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "mistral_small_tree_2025.csv"
ROOT = "mistralai/Mistral-Small-24B-Base-2501"


@pytest.fixture(scope="module")
def tree():
    if not TREE.exists():
        pytest.skip(f"needs {TREE.name} in ../shared/data")
    csv.field_size_limit(sys.maxsize)
    with TREE.open(encoding="utf-8") as file:
        rows = [json.loads(row["metadata"]) for row in csv.DictReader(file)]
    return {row["id"]: row for row in rows}


@pytest.fixture(scope="module")
def mirror(tree, tmp_path_factory):
    root = tmp_path_factory.mktemp("mirror")
    for identifier, row in tree.items():
        files = {name: b"" for name in filenames(row) if not Path(name).is_absolute() and ".." not in name}
        if "config.json" in files:
            files["config.json"] = json.dumps(row["config"] or {}).encode()
        facts = {name: row[name] for name in ("tags", "downloads", "likes", "gated", "library_name", "pipeline_tag")}
        add_repo(root, identifier, files, **facts, created_at=row["created_at"].replace(" ", "T"))
    return root


def test_the_whole_tree_is_found(tree, mirror, monkeypatch, tmp_path):
    known = set(tree) - {ROOT}
    listing = Listing(tmp_path / "listing.sqlite")
    with served(mirror, monkeypatch) as hub:
        update_listing(listing, CrawlRequest((ROOT,)))
        assert len(hub.requests) < 100  # a fifth of what may be asked in five minutes without a token
    steps = {model.id: len(model.path) for model in listing.models()}
    assert len(known) == 66
    assert set(steps) == known
    # Without descendants the first 22 alone are found.
    assert [sum(count == depth for count in steps.values()) for depth in (1, 2, 3)] == [22, 36, 8]


def test_how_many_have_weights_that_can_be_read(tree):
    readable = 0
    for identifier, row in tree.items():
        with suppress(ModelError):
            choose(filenames(row), "finetune")
            # One has its config.json in the folder of its weights, which the listing does not show.
            load_architecture(str((row["config"] or {"model_type": "mistral"}).get("model_type")))
            readable += identifier != ROOT
    assert readable >= 56  # the other ten hold no weights


def filenames(row) -> list[str]:
    return re.findall(r"rfilename='([^']+)'", " ".join(row["siblings"]))
