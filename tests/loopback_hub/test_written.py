"""Dataset repositories written to by the unmodified client, by LFS, and read back."""

from __future__ import annotations

import hashlib

import pytest

from scripts.loopback_hub import LoopbackHub, StoreError
from tests.loopback_hub.store import add_row, fetch, get_json, pages, small_url, write
from tests.loopback_hub.test_clients import run_client

WRITERS = {"mine": ["ann"], "theirs": ["bob"]}

WRITING_CLIENT = """
import sys
from huggingface_hub import HfApi, CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError
api = HfApi()
folder, name = sys.argv[1], "ann/atlas"
api.create_repo(name, repo_type="dataset")
api.create_repo(name, repo_type="dataset", exist_ok=True)
first = api.repo_info(name, repo_type="dataset").sha
def add(path):
    return CommitOperationAdd(path, folder + "/" + path)
big = [add("a.faiss"), add("b.parquet")]
api.preupload_lfs_files(name, big, repo_type="dataset")
answers["before"] = sorted(one.path for one in api.list_repo_tree(name, repo_type="dataset"))
made = api.create_commit(name, [*big, add("README.md"), add("deep/text.jsonl")], commit_message="one",
                         repo_type="dataset", parent_commit=first)
answers["after"] = sorted(one.path for one in api.list_repo_tree(name, repo_type="dataset", recursive=True) if hasattr(one, "size"))
answers["lfs"] = {one.path: one.lfs.sha256 for one in api.list_repo_tree(name, repo_type="dataset") if getattr(one, "lfs", None)}
api.create_tag(name, tag="g1", repo_type="dataset", revision=made.oid)
try:
    api.create_commit(name, [CommitOperationDelete("README.md")], commit_message="two", repo_type="dataset", parent_commit=first)
except HfHubHTTPError as error:
    answers["stale"] = error.response.status_code
try:
    api.create_tag(name, tag="g1", repo_type="dataset")
except HfHubHTTPError as error:
    answers["tag again"] = error.response.status_code
same = api.create_commit(name, [add("a.faiss"), add("README.md")], commit_message="same", repo_type="dataset")
answers["nothing changed"] = same.oid == made.oid
gone = api.create_commit(name, [CommitOperationDelete("deep/text.jsonl")], commit_message="less", repo_type="dataset", parent_commit=made.oid)
answers["left"] = [s.rfilename for s in api.dataset_info(name).siblings]
answers["found"] = [one.id for one in api.list_datasets(filter="model-atlas", full=True)]
answers["not found"] = [one.id for one in api.list_datasets(filter="something-else")]
answers["tags"] = [one.name for one in api.list_repo_refs(name, repo_type="dataset").tags]
"""

READING_CLIENT = """
import hashlib, pathlib, sys
from huggingface_hub import hf_hub_download, snapshot_download
folder = pathlib.Path(snapshot_download("ann/atlas", repo_type="dataset", revision="g1", local_dir=sys.argv[1]))
answers["files"] = {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
                 for p in folder.rglob("*") if p.is_file() and ".cache" not in p.parts}
answers["cached"] = pathlib.Path(hf_hub_download("ann/atlas", "a.faiss", repo_type="dataset", revision="g1")).stat().st_size
"""


@pytest.fixture
def source(tmp_path):
    """Files of every kind: binary, in LFS by name, text, in a folder."""
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.faiss").write_bytes(bytes(range(256)) * 1000)
    (folder / "b.parquet").write_bytes(b"PAR1" + b"x" * 5000)
    (folder / "README.md").write_text("---\ntags: [model-atlas]\n---\n# An atlas\n")
    (folder / "deep" / "text.jsonl").write_text('{"a": "ü"}\n')
    return folder


def test_the_real_client_writes_and_reads(tmp_path, source):
    store = tmp_path / "store"
    store.mkdir()
    with LoopbackHub(store, datasets=tmp_path / "datasets", writers=WRITERS) as hub:
        home = tmp_path / "home"
        switch = "import os\nos.environ['HF_HUB_DISABLE_XET'] = '1'\n"
        answer = run_client(hub, home, switch + WRITING_CLIENT, str(source), token="mine")
        assert answer["before"] == [".gitattributes"]
        assert answer["after"] == [".gitattributes", "README.md", "a.faiss", "b.parquet", "deep/text.jsonl"]
        assert set(answer["lfs"]) == {"a.faiss", "b.parquet"}
        assert (answer["stale"], answer["tag again"]) == (412, 409)
        assert answer["nothing changed"]
        assert "deep/text.jsonl" not in answer["left"]
        assert (answer["found"], answer["not found"], answer["tags"]) == (["ann/atlas"], [], ["g1"])
        read = run_client(hub, home, switch + READING_CLIENT, str(tmp_path / "copy"), token=None)
        expected = {
            path.relative_to(source).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in source.rglob("*")
            if path.is_file()
        }
        assert {name: read["files"][name] for name in expected} == expected
        assert read["cached"] == 256_000
        put = [one for one in hub.requests if one.method == "PUT"]
        assert len(put) == 2
        assert not hub.leaks


def test_no_write_without_the_right(tmp_path):
    (tmp_path / "store").mkdir()
    code = """
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
try:
    HfApi().create_repo("ann/atlas", repo_type="dataset")
except HfHubHTTPError as error:
    answers["status"] = error.response.status_code
"""
    with LoopbackHub(tmp_path / "store", datasets=tmp_path / "datasets", writers=WRITERS) as hub:
        assert run_client(hub, tmp_path / "home", code)["status"] == 401
        assert run_client(hub, tmp_path / "home", code, token="theirs")["status"] == 403
        assert hub.datasets.all() == []


# ---- several stores, one Hub


@pytest.fixture
def two_stores(tmp_path):
    for store, owner, name, old in (("one", "ann", "tiny-bert", "bert"), ("two", "ann", "tiny-t5", "t5")):
        write(tmp_path / store / owner / name / "config.json", {"model_type": old})
        add_row(tmp_path / store, f"{owner}/{name}", old_ids=[old], downloads=len(name), tags=["demo"])
    write(tmp_path / "two" / "bob" / "third" / "config.json", {})
    write(tmp_path / "one" / "zoe" / "last" / "config.json", {})
    return tmp_path / "one", tmp_path / "two"


def test_two_stores_are_listed_and_served_as_one(two_stores):
    with LoopbackHub(*two_stores, page_size=2) as hub:
        assert hub.prepare() == 4
        ids = ["ann/tiny-bert", "ann/tiny-t5", "bob/third", "zoe/last"]
        assert [repository.id for repository in hub.store.repositories()] == ids
        listed = [[row["id"] for row in page] for page in pages(f"{hub.endpoint}/api/models?sort=downloads")]
        assert listed == [ids[:2], ids[2:]]
        for model, kind in (("ann/tiny-bert", "bert"), ("ann/tiny-t5", "t5")):
            assert get_json(small_url(hub, f"{model}/resolve/main/config.json")) == {"model_type": kind}
        status, headers, _ = fetch(f"{hub.endpoint}/api/models/t5")
        assert (status, headers["Location"]) == (307, "/api/models/ann/tiny-t5")
        assert fetch(f"{hub.endpoint}/api/models/ann/tiny-gpt2")[0] in (401, 404)


@pytest.mark.parametrize("facts", [{}, {"old_ids": ["bert"]}])
def test_an_id_in_two_stores_is_refused_with_both_named(two_stores, facts):
    one, two = two_stores
    name = "ann/another" if facts else "ann/tiny-bert"
    write(two / name / "config.json", {})
    add_row(two, name, **facts)
    with pytest.raises(StoreError, match=f"{'bert' if facts else name} stands both in .*one and in .*two"):
        LoopbackHub(one, two)
    LoopbackHub(two).stop()
