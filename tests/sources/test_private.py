"""Nothing that leaves this machine says where the models of a tree lie."""

from __future__ import annotations

import json
from contextlib import closing
from importlib.util import find_spec

import duckdb
import pytest
from safetensors.torch import load_file

from indexer import build
from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.listing.trees import KnownTrees
from indexer.sources.local_names import hash_of
from scripts.loopback_hub import LoopbackHub
from studies.conversions import writers
from tests.hubs import reset_session
from tests.share.conftest import WRITERS, Person
from tests.share.test_kept_back import pushed_text
from tests.tiny_hub import BASE
from tests.trees import adapter, full, loose

SECRETS = ("hidden-place", "team-x", "2026-11-02")  # folders on the way to the models


@pytest.fixture
def owner(tiny_store, tmp_path, monkeypatch):
    """Whoever has built an atlas from a tree: of good models, of broken ones, and of some that name paths."""
    monkeypatch.chdir(tmp_path)
    tree = tmp_path / "hidden-place" / "team-x"
    store = tiny_store(2)
    for number in range(3):
        adapter(tree / "2026-11-02" / f"run{number}", number, f"{tree}/bases/tiny-base")
    full(tree / "2026-11-02" / "whole", store, "ann/glue-0")
    (tree / "2026-11-02/whole/README.md").write_text(
        f"---\nbase_model: {BASE}\ndatasets:\n- {tree}/data/mine\n---\n# Trained on {tree}\n"
    )
    adapter(tree / "2026-11-02" / "broken", 7)
    (tree / "2026-11-02/broken/adapter_model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{not json")
    loose(tree / "2026-11-02" / "loras" / "one.safetensors", 9, ss_base_model_version=BASE, ss_output_dir=str(tree))
    copies = int(find_spec("onnx") is not None)
    if copies:  # a conversion, whose source has a name of this machine
        weights = {
            name: tensor.numpy() for name, tensor in load_file(tree / "2026-11-02/whole/model.safetensors").items()
        }
        config = json.loads((tree / "2026-11-02/whole/config.json").read_text())
        writers.write_onnx(tree / "2026-11-02" / "exported" / "model.onnx", config, weights)
    with LoopbackHub(store, datasets=tmp_path / "datasets", writers=WRITERS) as hub:
        try:
            person = Person(hub, tmp_path, monkeypatch)
            report = build(BASE, "atlas", sources=tree, workers=1, progress=person.note)
            assert (report.indexed, report.skipped, report.failed) == (5, 1 + copies, 0)
            yield person
        finally:
            reset_session()


def assert_private(text: bytes) -> None:
    for secret in SECRETS:
        assert secret.encode() not in text, secret


@pytest.mark.slow
def test_a_push_has_no_part_of_the_path(owner, tmp_path):
    atlas = AtlasFolder("atlas")
    with pytest.raises(AtlasError, match="were added from local folders: local:broken"):
        owner.push(atlas)
    owner.push(atlas, with_local=True, with_private=True, with_records=True)
    text = pushed_text(owner.hub)
    assert b"local:run0" in text
    if find_spec("onnx") is not None:
        assert b"local:exported" in text
    assert_private(text)
    (tree,) = KnownTrees(atlas).trees()
    assert tree.address == str(tmp_path / "hidden-place/team-x")
    for hashed in (tree.tree, hash_of(f"{tree.address}/2026-11-02/run0")):
        assert hashed.encode() not in text


@pytest.mark.slow
def test_answers_pages_and_exports_are_made_of_files_without_it(owner):
    with closing(duckdb.connect("atlas/atlas.duckdb", read_only=True)) as connection:
        for (table,) in connection.execute("SELECT schema_name || '.' || table_name FROM duckdb_tables()").fetchall():
            assert_private(str(connection.execute(f"FROM {table}").fetchall()).encode())
    for file in AtlasFolder("atlas").root.rglob("*"):
        if file.is_file() and file.name != "trees.sqlite":
            assert_private(file.read_bytes())
