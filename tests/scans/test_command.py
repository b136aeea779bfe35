"""`index scan` in a shell: the faces of one scan, what they do not say, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import pytest

from indexer import scan
from indexer.scans.page import page
from tests.conftest import ROOT, Shell
from tests.scans.conftest import ELSEWHERE
from tests.tiny_hub import BASE
from tests.trees import adapter, loose

# Each key of the JSON, with the type of what it holds; of a list, that of its items' keys.
TEXT, NUMBER, FLAG = (str, type(None)), (int, float, type(None)), (bool, type(None))
SCHEMA = {
    "places": {"place": str, "models": int, "bytes": int},
    "bytes": int,
    "kinds": {"kind": str, "models": int, "bytes": int},
    "bases": {"base": str, "models": int, "bytes": int, "by_weights": int, "by_names": int, "by_shapes": int,
              "stated_only": int, "is_here": bool},
    "runs": {"run": str, "checkpoints": int, "last": str, "first_step": NUMBER, "last_step": NUMBER, "bytes": int,
             "earlier_bytes": int},
    "duplicates": {"model": str, "of": str, "kind": str, "distance": float, "bytes": int},
    "unrelated": str,
    "unchecked": str,
    "broken": {"model": str, "reason": str, "detail": str, "count": int},
    "untrained": {"model": str, "why": str},
    "conversions": {"model": str, "copy_of": TEXT, "verdict": str},
    "licences": {"licence": str, "models": int, "bytes": int},
    "left_out": {"reason": str, "count": int, "first": str},
    "models": {"model": str, "place": str, "kind": str, "bytes": int, "base": TEXT, "probability": NUMBER,
               "basis": TEXT, "evidence": list, "claim": TEXT, "claimed_in": str, "verdict": TEXT, "allowed": FLAG,
               "step": NUMBER, "licence": TEXT, "untrained": str, "copy_of": TEXT, "copy_verdict": TEXT, "problem": str, "detail": str,
               "is_broken": bool},
    "notes": str,
    "bases_given": str,
    "unread": int,
    "bytes_read": int,
    "seconds": NUMBER,
}  # fmt: skip


@pytest.fixture(scope="module")
def shell(base_cache, tmp_path_factory):
    """A shell without a network, with the base in its cache."""
    environment = {"HF_HUB_CACHE": str(base_cache), "HF_HUB_OFFLINE": "1"}
    return Shell("http://127.0.0.1:9", tmp_path_factory.mktemp("scan-shell"), environment)


def test_the_json_has_these_keys_and_types(shell, planted):
    ran = shell("index", "scan", str(planted), "--json", "--workers", "1")
    assert ran.code == 0, ran.err
    assert list(ran.json) == list(SCHEMA)
    for key, expected in SCHEMA.items():
        value = ran.json[key]
        if isinstance(expected, dict):
            assert value or key == "conversions", key  # see tests/sources/test_converted.py
            for row in value:
                assert list(row) == list(expected)
                for name, kind in expected.items():
                    assert isinstance(row[name], kind), (key, name, row[name])
        elif isinstance(value, list):
            assert all(isinstance(item, expected) for item in value), key
        else:
            assert isinstance(value, expected), key
    assert str(planted.parent) not in ran.out
    assert not list(shell.folder.iterdir())  # nothing is stored


@pytest.mark.slow
def test_the_table_and_the_exit_status(shell, planted):
    ran = shell("index", "scan", str(planted), "--fail-on", "unrelated,broken,duplicate", "--workers", "2")
    assert ran.code == 1
    for title in ("kinds", "bases", "unrelated", "broken", "untrained", "runs", "duplicates", "licences", "left out"):
        assert re.search(rf"^{title}$", ran.out, re.MULTILINE), title
    assert "19 models in team" in ran.err
    assert "scanning team" in ran.err
    assert re.search(r"^unrelated: 2: .*full/stranger", ran.err, re.MULTILINE)
    assert re.search(r"^broken: 3: ", ran.err, re.MULTILINE)
    assert re.search(r"^duplicate: 1: (good|copies)/b$", ran.err, re.MULTILINE)
    good = shell("index", "scan", str(planted / "good"), "--fail-on", "unrelated,broken,duplicate")
    assert good.code == 0, good.err
    wrong = shell("index", "scan", str(planted), "--fail-on", "ugly")
    assert (wrong.code, wrong.out) == (2, "")
    missing = shell("index", "scan", "nowhere")
    assert (missing.code, len(missing.err.splitlines())) == (1, 1)
    rows = shell("index", "scan", str(planted / "good"), "--format", "csv")
    assert rows.out.splitlines()[0].startswith("model,place,kind,bytes,base,")


class _Read(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.values += [value or "" for _, value in attributes]

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_is_one_file_without_paths(planted, offline):
    text = page(scan(planted, workers=1))
    read = _Read(text)
    words = " ".join(read.words)
    for name in ("good/a", "full/stranger", BASE, ELSEWHERE, "apache-2.0", "not checked"):
        assert name in words
    assert str(planted.parent) not in text
    assert not {"script", "link", "iframe", "img"} & set(read.tags)
    assert not any(value.startswith(("http:", "https:", "//")) for value in read.values)
    assert "prefers-color-scheme: dark" in text
    assert "Content-Security-Policy" in text


HOSTILE = ("<script>alert(1)</script>", "\"onmouseover='x", "{{ 7*7 }}", "‮evil", "\x1b[31mred", "=cmd|' /C calc'!A0")


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_files_are_escaped(tmp_path, offline, name):
    name = name.replace("/", "∕")
    adapter(tmp_path / "tree" / name, 1, base=f"org/{name}")
    (tmp_path / "tree" / name / "README.md").write_text(f"---\nlicense: {json.dumps(name)}\n---\n")
    loose(tmp_path / "tree" / f"{name}.safetensors", 2, ss_base_model_version=name, **{"modelspec.license": name})
    text = page(scan(tmp_path / "tree", workers=1))
    read = _Read(text)
    assert "script" not in read.tags
    assert not any(value.startswith("x") for value in read.values if "mouse" in value)
    assert "49" not in re.findall(r"<h1>.*?</h1>", text)[0]
    assert "‮" not in text
    assert "\x1b" not in text


def test_names_that_are_not_utf8_are_shown(tmp_path, offline):
    folder = os.fsencode(tmp_path / "tree") + b"/caf\xe9"
    try:
        os.makedirs(folder)
    except OSError:
        pytest.skip("this file system takes only UTF-8")
    adapter(tmp_path / "made", 1)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        os.replace(tmp_path / "made" / name, folder + b"/" + name.encode())
    found = scan(tmp_path / "tree", workers=1)
    (model,) = found.models
    assert model.kind == "LoRA"
    page(found).encode()
    json.dumps(found.to_dict()).encode()


@pytest.mark.slow
def test_ctrl_c_shows_what_was_read(tmp_path, base_cache):
    for number in range(400):
        adapter(tmp_path / f"tree/{number}", number)
    command = [sys.executable, "-m", "indexer", "scan", str(tmp_path / "tree"), "--workers", "1", "--json"]
    environment = {**os.environ, "HF_HUB_CACHE": str(base_cache), "HF_HUB_OFFLINE": "1", "SLOW_MODELS": "1"}
    slow = (
        "import sys, time, indexer.scans.reading as r; call = r.ScanWorker.__call__\n"
        "def wait(self, unit):\n    time.sleep(.05); sys.stderr.write('.'); sys.stderr.flush(); return call(self, unit)\n"
        "r.ScanWorker.__call__ = wait\nfrom indexer.cli import main; sys.argv[0] = 'index'; main()"
    )
    command = [sys.executable, "-c", slow, *command[3:]]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment)
    assert running.stderr is not None
    seen = b""
    while seen.count(b".") < 12:
        seen += running.stderr.read(1)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    found = json.loads(out)
    assert 0 < len(found["models"]) < 400
    assert found["unread"] == 400 - len(found["models"])
    assert err.decode().splitlines()[-1].lstrip(".").startswith("Stopped: ")


@pytest.mark.slow
def test_a_bucket_is_scanned_and_not_named(offline, tmp_path, monkeypatch):
    pytest.importorskip("s3fs", reason="needs s3fs")
    moto = pytest.importorskip("moto.server", reason="needs moto[server,s3]")
    import s3fs

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        settings = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        files = s3fs.S3FileSystem(endpoint_url=endpoint)
        files.mkdir("team-secret")
        adapter(tmp_path / "a", 1)
        for place in ("ckpts/a", "ckpts/b"):
            files.put(str(tmp_path / "a") + "/", f"team-secret/{place}/", recursive=True)
        files.pipe("team-secret/ckpts/bad.safetensors", b"no weights at all")
        option = f"endpoint_url={endpoint}"
        found = scan("s3://team-secret/ckpts", storage_options=option, workers=1)
        assert {model.model: model.base for model in found.models if not model.is_broken} == {"a": BASE, "b": BASE}
        assert [(one.model, one.kind) for one in found.duplicates] == [("b", "same file")]
        assert [one.model for one in found.broken] == ["bad.safetensors"]
        assert "team-secret" not in page(found) + json.dumps(found.to_dict())
        single = scan("s3://team-secret/ckpts/bad.safetensors", storage_options=option, workers=1)
        assert [one.model for one in single.broken] == ["bad.safetensors"]
    finally:
        server.stop()
        s3fs.S3FileSystem.clear_instance_cache()
        time.sleep(0)
