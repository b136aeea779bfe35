"""The unmodified clients against the loopback Hub, each in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from scripts.loopback_hub import LoopbackHub
from tests.loopback_hub.store import (
    CONFIG,
    CONVERTED,
    ODD,
    SIZE,
    TITLE,
    WEIGHTS,
    add_row,
    get_json,
    write,
)


def run_client(hub: LoopbackHub, home: Path, code: str, *arguments: str, token: str | None = None):
    """Run ``code`` in a process whose Hub is ``hub``; what it puts into ``answers`` comes back."""
    environment = os.environ | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "DISABLE_SAFETENSORS_CONVERSION": "1",
        "NO_PROXY": "127.0.0.1",
    }
    environment.pop("HF_TOKEN", None)
    if token is not None:
        environment["HF_TOKEN"] = token
    script = f"import json\nanswers = {{}}\n{code}\nprint('answers:' + json.dumps(answers))"
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("answers:")[2])


LISTING_CLIENT = """
from huggingface_hub import HfApi
from huggingface_hub.errors import *
api = HfApi()
answers["ids"] = [m.id for m in api.list_models(sort="created_at", expand=["tags", "sha", "gated"])]
answers["limited"] = [m.id for m in api.list_models(filter=["bert", "b"], limit=1)]
info = api.model_info("base", files_metadata=True)
answers["lfs"] = {s.rfilename: s.lfs.sha256 for s in info.siblings if s.lfs}
answers["total"] = api.model_info("me/base", expand=["safetensors"]).safetensors.total
answers["tree"] = sorted(f.path for f in api.list_repo_tree("me/base", recursive=True))
answers["pulls"] = [[d.title, d.author, d.git_reference] for d in api.get_repo_discussions("base")]
answers["commits"] = len(api.list_repo_commits("me/base", revision="refs/pr/1"))
files = [("base", "config.json"), ("base", "x"), ("no/where", "x")]
answers["exists"] = [api.file_exists(*file) for file in files]
answers["errors"] = {}
for name, call in {
    "gated": lambda: api.file_exists("gated/ok", "model.bin"),
    "private": lambda: api.model_info("priv/secret"),
    "disabled": lambda: api.model_info("off/gone"),
    "missing": lambda: api.model_info("no/where"),
    "revision": lambda: api.model_info("me/base", revision="v9"),
    "entry": lambda: api.hf_hub_download("me/base", "x.json"),
    "expand": lambda: list(api.list_models(expand=["usedStorage"])),
}.items():
    try:
        call()
    except Exception as error:
        answers["errors"][name] = type(error).__name__
"""


def test_huggingface_hub_listing_and_info(hub: LoopbackHub, root: Path, tmp_path: Path):
    answer = run_client(hub, tmp_path / "home", LISTING_CLIENT)
    assert sorted(answer["ids"]) == ["fixed/sha", "gated/ok", "me/base", "off/gone"]
    assert answer["limited"] == ["me/base"]
    assert answer["lfs"] == {
        name: hashlib.sha256((root / "me/base" / name).read_bytes()).hexdigest() for name in ("model.safetensors", ODD)
    }
    assert answer["total"] == 60_015
    assert answer["tree"] == sorted(["README.md", "config.json", "model.safetensors", "sub", "sub/dir", ODD])
    assert answer["pulls"] == [[TITLE, "SFconvertbot", "refs/pr/1"]]
    assert answer["commits"] == 2
    assert answer["exists"] == [True, False, False]
    assert answer["errors"] == {
        "gated": "GatedRepoError",
        "private": "RepositoryNotFoundError",
        "disabled": "DisabledRepoError",
        "missing": "RepositoryNotFoundError",
        "revision": "RevisionNotFoundError",
        "entry": "RemoteEntryNotFoundError",
        "expand": "BadRequestError",
    }


FILES_CLIENT = """
import hashlib, pathlib
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download
from huggingface_hub import get_hf_file_metadata, hf_hub_url
digest = lambda path: hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
answers["download"] = digest(hf_hub_download("base", "model.safetensors"))
answers["pull"] = digest(hf_hub_download("me/base", "model.safetensors", revision="refs/pr/1"))
folder = pathlib.Path(snapshot_download("me/base"))
answers["snapshot"] = {p.relative_to(folder).as_posix(): digest(p) for p in folder.rglob("*") if p.is_file()}
metadata = get_hf_file_metadata(hf_hub_url("me/base", "model.safetensors"))
answers["metadata"] = [metadata.commit_hash, metadata.etag, metadata.size]
header = HfApi().get_safetensors_metadata("me/base").files_metadata["model.safetensors"]
answers["tensors"] = {name: tensor.shape for name, tensor in header.tensors.items()}
answers["sharded"] = HfApi().get_safetensors_metadata("me/sharded").parameter_count
fs = HfFileSystem()
answers["block"] = list(fs.read_block("me/base/model.safetensors", 8, 20))
answers["small"] = fs.cat_file("me/base/config.json", start=1, end=5).decode()
answers["stream"] = hashlib.sha256(fs.open("me/base/model.safetensors", block_size=0).read()).hexdigest()
answers["granted"] = digest(hf_hub_download("gated/ok", "model.bin"))
"""


def test_huggingface_hub_files(hub: LoopbackHub, root: Path, tmp_path: Path):
    for number in (1, 2):
        write(
            root / f"me/sharded/model-0000{number}-of-00002.safetensors",
            save({f"t{number}": np.zeros(number * 10, np.float32)}),
        )
    shards = {"t1": "model-00001-of-00002.safetensors", "t2": "model-00002-of-00002.safetensors"}
    write(root / "me/sharded/model.safetensors.index.json", {"weight_map": shards})
    hub.faults.add("model", role="cdn", method="GET", nth=1, drop_after=50_000)
    answer = run_client(hub, tmp_path / "home", FILES_CLIENT, token="hf_good")
    digests = {
        name: hashlib.sha256((root / "me/base" / name).read_bytes()).hexdigest()
        for name in ("model.safetensors", "config.json", "README.md", ODD)
    }
    assert answer["download"] == answer["stream"] == digests["model.safetensors"]
    assert answer["pull"] == hashlib.sha256(CONVERTED).hexdigest()
    assert answer["snapshot"] == digests
    assert answer["metadata"] == [
        get_json(f"{hub.endpoint}/api/models/me/base")["sha"],
        digests["model.safetensors"],
        SIZE,
    ]
    assert answer["tensors"] == {"w": [60_000], "h": [3, 5]}
    assert answer["sharded"] == {"F32": 30}
    assert bytes(answer["block"]) == WEIGHTS[8:28]
    assert answer["small"] == json.dumps(CONFIG)[1:5]
    assert answer["granted"] == hashlib.sha256(b"PK" * 99).hexdigest()
    assert hub.leaks == []
    assert all(
        request.authorized for request in hub.requests if request.role == "hub" and request.repo_id == "gated/ok"
    )


ROBUST_CLIENT = """
from huggingface_hub import HfApi
rows = HfApi().list_models()
answers["first"] = next(rows).id
try:
    list(rows)
except Exception as error:
    answers["ended"] = type(error).__name__
answers["after"] = [m.id for m in rows]
answers["retried"] = [m.id for m in HfApi().list_models(author="me")]
"""


def test_huggingface_hub_meets_faults(hub: LoopbackHub, tmp_path: Path):
    hub.faults.add(r"^/api/models$", first=1, splice_row={"id": "x/y", "createdAt": "2024-01-01"}, splice_at=1)
    hub.faults.add("author=me", first=1, status=503)
    answer = run_client(hub, tmp_path / "home", ROBUST_CLIENT)
    assert answer["ended"] == "ValueError"
    assert answer["after"] == []
    assert answer["retried"] == ["me/base"]
    assert [request.status for request in hub.requests][-2:] == [503, 200]


TRANSFORMERS_CLIENT = """
import sys, torch
import transformers
torch.set_num_threads(1)
sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
saved = {}
for folder in ("tiny", "tiny-converted"):
    model = transformers.BertModel(transformers.BertConfig(vocab_size=20, max_position_embeddings=8, **sizes))
    model.save_pretrained(sys.argv[1] + "/" + folder)
    saved[folder] = model.state_dict()
for name, revision in (("me/tiny", "main"), ("tiny", "main"), ("me/tiny", "refs/pr/1")):
    loaded = transformers.AutoModel.from_pretrained(name, revision=revision).state_dict()
    for folder, tensors in saved.items():
        same = all(torch.equal(tensors[key], loaded[key]) for key in tensors)
        answers[f"{name} {revision} is {folder}"] = same
"""


@pytest.mark.slow
def test_from_pretrained(hub: LoopbackHub, root: Path, tmp_path: Path):
    add_row(root, "me/tiny", old_ids=["tiny"], revisions={"refs/pr/1": {"folder": "tiny-converted"}})
    answer = run_client(hub, tmp_path / "home", TRANSFORMERS_CLIENT, str(root / "me"))
    assert answer == {
        "me/tiny main is tiny": True,
        "me/tiny main is tiny-converted": False,
        "tiny main is tiny": True,
        "tiny main is tiny-converted": False,
        "me/tiny refs/pr/1 is tiny": False,
        "me/tiny refs/pr/1 is tiny-converted": True,
    }
