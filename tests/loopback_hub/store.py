"""A store for the loopback Hub's tests, and how they ask: by http.client, with nothing normalised."""

from __future__ import annotations

import hashlib
import http.client
import json
import subprocess
import urllib.parse
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from scripts.loopback_hub import LoopbackHub
from tests.patience import PATIENCE

TOKENS = {"hf_good": {"gated/ok", "priv/secret"}}
SHA = "1234567890abcdef1234567890abcdef12345678"
WEIGHTS = save({"w": np.arange(60_000, dtype=np.float32), "h": np.zeros((3, 5), np.float16)})
CONVERTED = save({"w": np.ones(7, np.float32)})
CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "id2label": {"0": "entailment"},
    "vocab_size": 9,
}
ODD = "sub/dir/données (1) 100%.bin"
TITLE = "Adding `safetensors` variant of this model"
SIZE = len(WEIGHTS)
NOBODY: dict[str, str] = {}
GOOD = {"Authorization": "Bearer hf_good"}
OTHER = {"Authorization": "Bearer hf_other"}


def write(path: Path, content: bytes | dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json.dumps(content).encode() if isinstance(content, dict) else content)


def add_row(root: Path, repo_id: str, **settings) -> None:
    write(root / f"{repo_id}.repo.json", settings)


def make_store(store: Path) -> Path:
    """The repositories that most tests are about."""
    write(store / "me/base/model.safetensors", WEIGHTS)
    write(store / "me/base/config.json", CONFIG)
    write(store / "me/base/README.md", b"# hello\n" * 50)
    write(store / "me/base" / ODD, b"odd" * 1000)
    write(store / "me/base.pr1/model.safetensors", CONVERTED)
    write(store / "me/base.pr1/config.json", CONFIG)
    pull = {"folder": "me/base.pr1", "author": "SFconvertbot", "title": TITLE}
    add_row(
        store,
        "me/base",
        old_ids=["base", "you/base"],
        tags=["bert", "b"],
        downloads=7,
        revisions={"refs/pr/1": pull},
    )
    for name, settings in {
        "gated/ok": {"gated": "manual"},
        "priv/secret": {"private": True},
        "off/gone": {"disabled": True},
        "fixed/sha": {"sha": SHA, "card_data": {"license": "mit"}, "library_name": "transformers"},
    }.items():
        write(store / name / "model.bin", b"PK" * 99)
        add_row(store, name, **settings)
    return store


def fetch(url: str, method: str = "GET", body: bytes | None = None, **headers: str):
    """One request exactly as written (no redirects, no normalised path): status, headers, body."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)
    try:
        target = url.removeprefix(f"{parts.scheme}://{parts.netloc}")
        connection.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def get_json(url: str, **headers: str):
    status, _, body = fetch(url, **headers)
    assert status == 200, body
    return json.loads(body)


def signed_url(hub: LoopbackHub, path: str = "me/base/resolve/main/model.safetensors") -> str:
    status, headers, _ = fetch(f"{hub.endpoint}/{path}")
    assert status == 302
    return headers["Location"]


def small_url(hub: LoopbackHub, path: str) -> str:
    """Where a small file is redirected to."""
    status, headers, _ = fetch(f"{hub.endpoint}/{path}")
    assert status == 307
    return hub.endpoint + headers["Location"]


def pages(url: str) -> list[list[dict]]:
    answer = []
    while url:
        status, headers, body = fetch(url)
        assert status == 200, body
        answer.append(json.loads(body))
        link = headers.get("Link", "")
        assert not link or link.endswith('>; rel="next"')
        url = link.partition(">")[0].removeprefix("<")
    return answer


def git_oid(content: bytes) -> str:
    return (
        subprocess.run(["git", "hash-object", "--stdin"], input=content, capture_output=True, check=True)
        .stdout.decode()
        .strip()
    )


def pointer(content: bytes) -> bytes:
    digest = hashlib.sha256(content).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n".encode()
