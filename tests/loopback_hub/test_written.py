"""Dataset repositories written to by the unmodified client, by LFS and by Xet, and read back."""

from __future__ import annotations

import hashlib

import pytest

from scripts.loopback_hub import LoopbackHub
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
told["before"] = sorted(one.path for one in api.list_repo_tree(name, repo_type="dataset"))
made = api.create_commit(name, [*big, add("README.md"), add("deep/text.jsonl")], commit_message="one",
                         repo_type="dataset", parent_commit=first)
told["after"] = sorted(one.path for one in api.list_repo_tree(name, repo_type="dataset", recursive=True) if hasattr(one, "size"))
told["lfs"] = {one.path: one.lfs.sha256 for one in api.list_repo_tree(name, repo_type="dataset") if getattr(one, "lfs", None)}
api.create_tag(name, tag="g1", repo_type="dataset", revision=made.oid)
try:
    api.create_commit(name, [CommitOperationDelete("README.md")], commit_message="two", repo_type="dataset", parent_commit=first)
except HfHubHTTPError as error:
    told["stale"] = error.response.status_code
try:
    api.create_tag(name, tag="g1", repo_type="dataset")
except HfHubHTTPError as error:
    told["tag again"] = error.response.status_code
same = api.create_commit(name, [add("a.faiss"), add("README.md")], commit_message="same", repo_type="dataset")
told["nothing changed"] = same.oid == made.oid
gone = api.create_commit(name, [CommitOperationDelete("deep/text.jsonl")], commit_message="less", repo_type="dataset", parent_commit=made.oid)
told["left"] = [s.rfilename for s in api.dataset_info(name).siblings]
told["found"] = [one.id for one in api.list_datasets(filter="model-atlas", full=True)]
told["not found"] = [one.id for one in api.list_datasets(filter="something-else")]
told["tags"] = [one.name for one in api.list_repo_refs(name, repo_type="dataset").tags]
"""

READING_CLIENT = """
import hashlib, pathlib, sys
from huggingface_hub import hf_hub_download, snapshot_download
folder = pathlib.Path(snapshot_download("ann/atlas", repo_type="dataset", revision="g1", local_dir=sys.argv[1]))
told["files"] = {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
                 for p in folder.rglob("*") if p.is_file() and ".cache" not in p.parts}
told["cached"] = pathlib.Path(hf_hub_download("ann/atlas", "a.faiss", repo_type="dataset", revision="g1")).stat().st_size
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


@pytest.mark.parametrize("way", ["lfs", "xet"])
def test_the_real_client_writes_and_reads(tmp_path, source, way):
    store = tmp_path / "store"
    store.mkdir()
    xet = tmp_path / "xet" if way == "xet" else None
    with LoopbackHub(store, datasets=tmp_path / "datasets", writers=WRITERS, xet=xet, xet_sources=[source]) as hub:
        home = tmp_path / "home"
        switch = f"import os\nos.environ['HF_HUB_DISABLE_XET'] = '{int(xet is None)}'\n"
        told = run_client(hub, home, switch + WRITING_CLIENT, str(source), token="mine")
        assert told["before"] == [".gitattributes"]
        assert told["after"] == [".gitattributes", "README.md", "a.faiss", "b.parquet", "deep/text.jsonl"]
        assert set(told["lfs"]) == {"a.faiss", "b.parquet"}
        assert (told["stale"], told["tag again"]) == (412, 409)
        assert told["nothing changed"]
        assert "deep/text.jsonl" not in told["left"]
        assert (told["found"], told["not found"], told["tags"]) == (["ann/atlas"], [], ["g1"])
        read = run_client(hub, home, switch + READING_CLIENT, str(tmp_path / "copy"), token=None)
        expected = {
            path.relative_to(source).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in source.rglob("*")
            if path.is_file()
        }
        assert {name: read["files"][name] for name in expected} == expected
        assert read["cached"] == 256_000
        put = [one for one in hub.requests if one.method == "PUT"]
        assert len(put) == (0 if xet else 2)
        assert xet is None or any(path.is_file() for path in xet.rglob("*"))
        assert not hub.leaks


def test_nobody_writes_without_the_right(tmp_path):
    (tmp_path / "store").mkdir()
    code = """
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
try:
    HfApi().create_repo("ann/atlas", repo_type="dataset")
except HfHubHTTPError as error:
    told["status"] = error.response.status_code
"""
    with LoopbackHub(tmp_path / "store", datasets=tmp_path / "datasets", writers=WRITERS) as hub:
        assert run_client(hub, tmp_path / "home", code)["status"] == 401
        assert run_client(hub, tmp_path / "home", code, token="theirs")["status"] == 403
        assert hub.datasets.all() == []
