"""GGUF files, exports to ONNX and Ollama's models in trees: what is listed, indexed and scanned, and what is left out."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from importlib.util import find_spec

import pytest

from indexer import build, scan
from indexer.sources import tree as trees
from indexer.sources.addresses import file_system
from indexer.sources.tree import NEEDS_GGUF, NO_MODEL, list_tree
from indexer.sources.tree_rows import base_among, described
from query import Atlas
from scripts.loopback_hub import LoopbackHub
from studies.conversions import families, writers
from tests.conversions.conftest import BASE, CONFIG, WEIGHTS
from tests.hubs import reset_session, use_endpoint
from tests.tiny_hub import describe, served_shell

FIRST, SECOND = (families.fine_tune(WEIGHTS, 0.01, seed) for seed in (1, 2))
HEADER = {"general.base_model.0.repo_url": f"https://huggingface.co/{BASE}", "general.name": "First"}
HAS_ONNX = find_spec("onnx") is not None


def hostile(tensors, *facts):
    """The beginning of a GGUF file that claims so many tensors; ``facts``: keys with numbers."""
    pairs = [struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, number) for key, number in facts]
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(pairs)) + b"".join(pairs)


def ollama(store, name, file):
    """A model in Ollama's store, as `ollama create` lays it out."""
    layers = []
    for kind, content in (("model", file.read_bytes()), ("license", b"MIT"), ("params", b'{"stop": ["x"]}')):
        digest = hashlib.sha256(content).hexdigest()
        (store / "blobs").mkdir(parents=True, exist_ok=True)
        (store / "blobs" / f"sha256-{digest}").write_bytes(content)
        media = f"application/vnd.ollama.image.{kind}"
        layers.append({"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)})
    path = store / "manifests/registry.ollama.ai/library" / name / "latest"
    path.parent.mkdir(parents=True)
    config = {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": layers[0]["digest"], "size": 1}
    path.write_text(json.dumps({"schemaVersion": 2, "config": config, "layers": layers}))
    return path


def plant(place):
    """A tree as it grows: fine-tunes, downloads of GGUF, exports, Ollama's store; and files that cannot be read."""
    families.save(place / "first", CONFIG, FIRST)
    (place / "first/README.md").write_text(f"---\nbase_model: {BASE}\nlicense: mit\n---\n")
    families.save(place / "second", CONFIG, SECOND)
    writers.write_gguf(place / "first/first-F16.gguf", CONFIG, FIRST, "F16", facts=HEADER)  # beside the full model
    files = place / "files"
    writers.write_gguf(files / "first-Q8_0.gguf", CONFIG, FIRST, "Q8_0", facts=HEADER)
    writers.write_gguf(files / "first-Q4_0.gguf", CONFIG, FIRST, "Q4_0", facts={"general.license": "apache-2.0"})
    writers.write_gguf(files / "second-Q5_0.gguf", CONFIG, SECOND, "Q5_0", shard_tensors=8)
    writers.write_gguf(files / "base-Q8_0.gguf", CONFIG, WEIGHTS, "Q8_0", facts={"general.name": "Small Llama"})
    (files / "mmproj-first-f16.gguf").write_bytes(b"GGUF")
    ollama(place / "ollama", "support", files / "first-Q4_0.gguf")
    writers.write_gptq(place / "gptq", CONFIG, FIRST)
    if HAS_ONNX:
        writers.write_onnx(place / "exported/onnx/model.onnx", CONFIG, SECOND, external=True)
        shutil.move(place / "exported/onnx/config.json", place / "exported/config.json")
    bad = place / "bad"
    bad.mkdir()
    whole = (files / "first-Q8_0.gguf").read_bytes()
    (bad / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (bad / "empty.gguf").touch()
    (bad / "many.gguf").write_bytes(hostile(10**12))
    (bad / "unaligned.gguf").write_bytes(hostile(0, (b"general.alignment", 0)))
    (bad / "lost-00002-of-00003.gguf").write_bytes(whole)
    return place


BAD = {"cut", "empty", "many", "unaligned", "lost"}
SOURCES = {
    "local:first-F16": ("local:first", "exactly"),
    "local:first-Q8_0": ("local:first", "exactly"),
    "local:first-Q4_0": ("local:first", "exactly"),
    "local:second-Q5_0": ("local:second", "exactly"),
    "local:base-Q8_0": (BASE, "exactly"),
    "local:support-latest": ("local:first", "exactly"),
    "local:gptq": ("local:first", "consistent with"),
    **({"local:exported": ("local:second", "exactly")} if HAS_ONNX else {}),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """What the Hub has: the base."""
    folder = tmp_path_factory.mktemp("converted")
    families.save(folder / "store" / BASE, CONFIG, WEIGHTS)
    describe(folder / "store", BASE, tags=["transformers", "llama"])
    plant(folder / "secret-place" / "team")
    return folder / "store"


@pytest.fixture(scope="module")
def built(store):
    """A shell in which the tree was indexed."""
    with served_shell(store) as shell:
        ran = shell("index", "build", "--base", BASE, "--from", "secret-place/team", "--workers", "1", "--json")
        assert ran.code == 0, ran.err
        shell.said = ran.err
        yield shell


def rows(shell, sql):
    ran = shell("query", "sql", sql, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def conversions(shell):
    sql = "SELECT model, source, verdict FROM conversions JOIN fine_tunes USING (model_id)"
    return {row["model"]: (row["source"], row["verdict"]) for row in rows(shell, sql)}


def test_each_file_is_a_model_and_shards_are_one(store):
    files = file_system(str(store.parent / "secret-place/team"))
    listing = list_tree(files)
    found = {model.path: model for model in listing.models}
    expected = {
        "first", "first/first-F16.gguf", "second", "files/first-Q8_0.gguf", "files/first-Q4_0.gguf", "files/base-Q8_0.gguf",
        "ollama/manifests/registry.ollama.ai/library/support/latest", "gptq", *(f"bad/{name}.gguf" for name in BAD - {"lost"}),
        "bad/lost-00002-of-00003.gguf", *(["exported"] if HAS_ONNX else []),
    }  # fmt: skip
    (shards,) = set(found) - expected
    assert expected < set(found)
    assert shards.startswith("files/second-Q5_0-00001-of-0000")
    assert len(found[shards].files) > 2
    assert list(found["first/first-F16.gguf"].files) == ["first-F16.gguf", "README.md"]
    if HAS_ONNX:
        assert {"config.json", "onnx/model.onnx", "onnx/model.onnx_data"} == set(found["exported"].files)
    assert listing.problems.counts == {NO_MODEL: 1}
    facts = {path: described(model, files)[0] for path, model in found.items()}
    assert {facts[path].relation for path in found if path.endswith(".gguf")} == {"quantized"}
    ids = {BASE: (BASE,)}
    assert base_among(facts["files/first-Q8_0.gguf"], "x", ids) == (BASE, None)
    assert base_among(facts["files/base-Q8_0.gguf"], "x", ids) == (BASE, None)  # by its title
    assert base_among(facts["files/first-Q4_0.gguf"], "x", ids) == (None, None)
    assert base_among(facts["files/base-Q8_0.gguf"], "x", {"org/other": ("org/other",)}) == (None, None)


@pytest.mark.slow
def test_a_build_finds_what_they_are_copies_of(built):
    assert conversions(built) == SOURCES
    broken = rows(built, "SELECT model, reason FROM fine_tunes WHERE reason <> 'conversion' ORDER BY model")
    assert broken == [
        {"model": f"local:{name}", "reason": "corrupt_file"} for name in ("cut", "lost")
    ]  # their headers name it
    assert "models that name no base, not indexed: 3" in built.said  # a line of the three without a header
    assert f"{NO_MODEL}: 1" in built.said
    assert rows(built, "SELECT model FROM models ORDER BY model") == [
        {"model": "local:first"},
        {"model": "local:second"},
    ]


@pytest.mark.slow
def test_another_build_reads_nothing_of_them(built):
    before = rows(built, "FROM conversions ORDER BY model_id")
    ran = built("index", "build", "--base", BASE, "--from", "secret-place/team", "--workers", "1", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["bytes_read"] == 0
    assert rows(built, "FROM conversions ORDER BY model_id") == before


@pytest.mark.slow
def test_no_file_of_the_atlas_but_one_says_where_they_lie(built):
    for file in (built.folder / "atlas").rglob("*"):
        assert not (file.is_file() and file.name != "trees.sqlite" and b"secret-place" in file.read_bytes()), file


@pytest.mark.slow
def test_questions_show_them(built):
    def answer(*words):
        ran = built("query", *words, "--json")
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    listed = {row["model"]: row for row in answer("models")}
    assert set(listed) == {"local:first", "local:second", *SOURCES}
    quantised = listed["local:first-Q8_0"]
    assert (quantised["relation"], quantised["format"], quantised["copy_of"]) == (
        "quantized",
        "GGUF (Q8_0)",
        "local:first",
    )
    assert "copy_of" not in listed["local:first"]
    assert "GGUF (Q8_0)" in built("query", "models").out
    assert answer("show", "local:first-Q8_0")["conversion"]["source"] == "local:first"
    (edge,) = answer("lineage", "local:first-Q8_0")
    assert (edge["parent"], edge["kind"], edge["card"]) == ("local:first", "conversion", "not declared")
    assert answer("similar", "local:first-Q8_0") == answer("similar", "local:first")
    (again,) = [row for row in answer("duplicates", "--near")["models"] if row["kind"] == "same conversion"]
    assert {again["model"], again["of"]} == {"local:first-Q4_0", "local:support-latest"}
    assert built("query", "runs").code == 0
    status = json.loads(built("index", "status", "--json").out)
    (source,) = status["sources"]
    assert (source["models"], source["indexed"], source["conversions"]) == (len(SOURCES) + 4, 2, len(SOURCES))


@pytest.mark.slow
def test_options_choose_among_them(built, tmp_path):
    def report(*words):
        place = ("--from", "secret-place/team", "--atlas", str(tmp_path / "a"))
        ran = built("index", "build", "--base", BASE, *place, "--json", *words)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    assert report("--dry-run")["dry_run"]["models"] == 6  # those that name the base
    assert report("--relation", "finetune")["discovered"] == 3
    assert report("--limit", "2")["discovered"] == 2
    chosen = report("--where", "model LIKE '%Q8_0'")
    assert (chosen["discovered"], chosen["skipped"]) == (2, 2)
    assert report()["discovered"] == len(SOURCES) + 4


@pytest.mark.slow
def test_a_scan_says_what_is_there(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with LoopbackHub(store) as running:
        use_endpoint(monkeypatch, running.endpoint)
        found = scan(store.parent / "secret-place/team", workers=1)
        with_base = scan(store.parent / "secret-place/team/files", base=[BASE], workers=1)
        reset_session()
    models = {model.model: model for model in found.models}
    assert models["files/first-Q8_0.gguf"].kind == "GGUF Q8_0"
    assert models["files/first-Q4_0.gguf"].licence == "apache-2.0"
    assert {one.model.rpartition("/")[2].partition("-")[0].partition(".")[0] for one in found.broken} == BAD
    assert {one.reason for one in found.broken} == {"corrupt_file"}
    copies = {model.model: (model.copy_of, model.copy_verdict) for model in found.conversions}
    assert copies["files/first-Q8_0.gguf"] == ("first", "exactly")  # the base is not here
    assert copies["first/first-F16.gguf"] == ("first", "exactly")
    assert copies["ollama/manifests/registry.ollama.ai/library/support/latest"] == ("first", "exactly")
    assert "files/base-Q8_0.gguf" not in copies or copies["files/base-Q8_0.gguf"][0] is None
    if HAS_ONNX:
        assert (models["exported"].kind, copies["exported"]) == ("ONNX", ("second", "exactly"))
    same = {frozenset((one.model, one.of)) for one in found.duplicates if one.kind == "same file"}
    assert same == {frozenset(("files/first-Q4_0.gguf", "ollama/manifests/registry.ollama.ai/library/support/latest"))}
    assert not found.near
    of_files = {model.model: model for model in with_base.models}
    assert {model.base for model in of_files.values()} == {BASE}
    assert of_files["base-Q8_0.gguf"].copy_of == BASE
    assert of_files["first-Q8_0.gguf"].copy_verdict == "unknown source"
    assert all(model.allowed for model in of_files.values())


def test_single_files_are_scanned(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = store.parent / "secret-place/team/files"
    assert [model.kind for model in scan(files / "first-Q8_0.gguf", workers=1).models] == ["GGUF Q8_0"]
    (shard,) = files.glob("second-Q5_0-00002-of-*.gguf")
    (model,) = scan(shard, workers=1).models
    assert (model.kind, model.bytes) == ("GGUF Q5_0", sum(file.stat().st_size for file in files.glob("second-*.gguf")))


def test_without_the_package_one_line_names_the_extra(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trees, "find_spec", lambda name: None)
    place = store.parent / "secret-place/team"
    listing = list_tree(file_system(str(place)))
    assert {"first", "second", "gptq"} <= {model.path for model in listing.models}
    assert not any(model.path.endswith(".gguf") for model in listing.models)
    assert sum(line.startswith(NEEDS_GGUF) for line in listing.problems.sentences()) == 1
    assert listing.problems.hides("files/first-Q8_0.gguf")  # it is there: a build does not mark it as gone
    found = scan(place, workers=1)
    (line,) = [one for one in found.left_out if one.reason == NEEDS_GGUF]
    assert "[gguf]" in line.reason
    assert not found.broken


def test_a_repository_in_the_hubs_cache_is_one_model(tmp_path):
    snapshot = tmp_path / "hub/models--dan--tuned-gguf/snapshots" / ("a" * 40)
    for kind in ("Q8_0", "Q4_0"):
        writers.write_gguf(snapshot / f"tuned-{kind}.gguf", CONFIG, FIRST, kind)
    (model,) = list_tree(file_system(str(tmp_path / "hub"))).models
    assert (model.hub_id, model.commit, len(model.files)) == ("dan/tuned-gguf", "a" * 40, 2)
    assert described(model, file_system(str(tmp_path / "hub")))[0].relation == "quantized"


def test_an_export_beside_the_full_model_is_another_model(tmp_path):
    families.save(tmp_path / "mine", CONFIG, FIRST)
    (tmp_path / "mine/onnx").mkdir()
    for name in ("model.onnx", "model_q4.onnx", "model.onnx_data"):
        (tmp_path / "mine/onnx" / name).write_bytes(b"x")
    (tmp_path / "tools").mkdir()
    for name in ("detector.onnx", "landmarks.onnx"):  # of a program, as often as not
        (tmp_path / "tools" / name).write_bytes(b"x")
    listing = list_tree(file_system(str(tmp_path)))
    full, exported = listing.models
    assert (full.path, exported.path, exported.words[-1]) == ("mine", "mine/onnx/model.onnx", "mine-onnx")
    assert set(exported.files) == {"config.json", "onnx/model.onnx", "onnx/model.onnx_data"}
    assert listing.problems.counts == {"files in a format that is not read yet: ONNX": 1}


def test_the_version_is_that_of_the_weights_whatever_they_are_called(tmp_path):
    files = file_system(str(tmp_path))
    first = writers.write_gguf(tmp_path / "a.gguf", CONFIG, FIRST, "Q4_0")
    (before,) = list_tree(files).models
    version = described(before, files)[0].version
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    first.rename(tmp_path / "z.gguf")
    (after,) = list_tree(files).models
    assert described(after, files)[0].version == version
    writers.write_gguf(tmp_path / "z.gguf", CONFIG, SECOND, "Q4_0")
    (changed,) = list_tree(files).models
    assert described(changed, files)[0].version != version


@pytest.mark.slow
def test_a_bucket_has_them_too(bucket, store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = store.parent / "secret-place/team"
    bucket.put(str(place), "team-secret/models", recursive=True)
    with LoopbackHub(store) as running:
        use_endpoint(monkeypatch, running.endpoint)
        report = build(BASE, sources="s3://team-secret/models", workers=1)
        assert (report.indexed, report.failed) == (2, 0)
        again = build(BASE, sources="s3://team-secret/models", workers=1)
        assert again.bytes_read == 0
        found = scan("s3://team-secret/models", workers=1)
        reset_session()
    with Atlas("atlas") as atlas:
        known = atlas.rows("SELECT model, source, verdict FROM conversions JOIN fine_tunes USING (model_id)")
    assert {row["model"]: (row["source"], row["verdict"]) for row in known} == SOURCES
    copies = {model.model: model.copy_of for model in found.conversions}
    assert copies["files/first-Q8_0.gguf"] == "first"
    assert len(found.broken) == len(BAD)
