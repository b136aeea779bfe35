"""`index build --from PLACE`: what is found in a tree, what it is called, and what becomes of it from build to build."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from safetensors.torch import save_file

from indexer import build, status
from indexer.atlas import AtlasFolder
from indexer.deltas.identification import identify
from indexer.errors import AtlasError
from indexer.sources.addresses import file_system
from indexer.sources.tree import list_tree
from indexer.sources.tree_rows import base_among, described
from query import Atlas
from tests.conftest import ROOT
from tests.tiny_hub import BASE
from tests.trees import adapter, factors, full, loose

WILD = ROOT.parent / "shared" / "data" / "wild"


@pytest.fixture
def said():
    return []


@pytest.fixture
def built(hub, said):
    """``built(place, base=BASE, …)``: the report of a build in this process."""

    def run(*places, base=BASE, **options):
        return build(base, sources=places, workers=1, progress=lambda event: said.append(event.message), **options)

    return run


def models(atlas="atlas", columns="model, status, deleted_at_hub"):
    with Atlas(atlas) as opened:
        return [tuple(row.values()) for row in opened.rows(f"SELECT {columns} FROM fine_tunes ORDER BY model")]


def found_in(place):
    listing = list_tree(file_system(str(place)))
    return {model.path: model for model in listing.models}, listing.problems


def test_every_checkpoint_is_found_and_nothing_else(tmp_path):
    for number in (500, 1500):
        adapter(tmp_path / f"run/checkpoint-{number}", number)
    adapter(tmp_path / "run", 3)
    for name in (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ):
        (tmp_path / "sharded").mkdir(exist_ok=True)
        (tmp_path / "sharded" / name).write_bytes(b"x")
    for name in ("pytorch_model.bin", "config.json", "optimizer.bin", "training_args.bin"):
        (tmp_path / "old").mkdir(exist_ok=True)
        (tmp_path / "old" / name).write_bytes(b"{}")
    for name in ("a (v2).safetensors", "b-000004.safetensors", "b.safetensors"):
        loose(tmp_path / "loras/deep" / name, 1)
    for name in ("model_index.json", "unet/config.json", "unet/diffusion_pytorch_model.safetensors", "vae/model.safetensors",
                 "checkpoint-5/pytorch_lora_weights.safetensors"):  # fmt: skip
        (tmp_path / "pipeline" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pipeline" / name).write_bytes(b"{}")
    for name in ("modules.json", "model.safetensors", "config.json", "2_Dense/model.safetensors"):
        (tmp_path / "sentence" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sentence" / name).write_bytes(b"{}")
    for name in (
        "logs/events.json",
        "run/checkpoint-500/optimizer.pt",
        ".git/x.safetensors",
        "only/training_args.bin",
        "g/q4.gguf",
        "f/flax_model.msgpack",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"GGUF")
    found, problems = found_in(tmp_path)
    assert sorted(found) == sorted([
        "g/q4.gguf", "loras/deep/a (v2).safetensors", "loras/deep/b.safetensors", "loras/deep/b-000004.safetensors", "old",
        "pipeline", "pipeline/checkpoint-5", "run", "run/checkpoint-500", "run/checkpoint-1500", "sentence", "sharded",
    ])  # fmt: skip
    assert "vae/model.safetensors" in found["pipeline"].files
    assert "2_Dense/model.safetensors" in found["sentence"].files
    assert problems.counts == {"files in a format that is not read yet: flax": 1}


def test_links_are_not_followed_out_of_the_tree_nor_in_circles(tmp_path):
    adapter(tmp_path / "tree/real", 1)
    adapter(tmp_path / "outside/other", 2)
    (tmp_path / "tree/loop").symlink_to(tmp_path / "tree")
    (tmp_path / "tree/real/again").symlink_to("..")
    (tmp_path / "tree/self").symlink_to("self")
    (tmp_path / "tree/out").symlink_to(tmp_path / "outside")
    (tmp_path / "tree/secret.safetensors").symlink_to(tmp_path / "outside/other/adapter_model.safetensors")
    (tmp_path / "tree/best.safetensors").symlink_to("real/adapter_model.safetensors")
    (tmp_path / "place").symlink_to(tmp_path / "tree")  # the place itself may be a link
    found, problems = found_in(tmp_path / "place")
    assert set(found) == {"real", "best.safetensors"}
    assert sorted(problems.counts.values()) == [1, 2]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_folder_without_permission_is_one_line(tmp_path):
    adapter(tmp_path / "a", 1)
    adapter(tmp_path / "closed/b", 2).parent.chmod(0)
    try:
        found, problems = found_in(tmp_path)
    finally:
        (tmp_path / "closed").chmod(0o755)
    assert (set(found), problems.counts) == ({"a"}, {"folders that cannot be listed": 1})
    assert problems.hides("closed/b")
    assert not problems.hides("a")


def test_what_cannot_be_listed_has_not_left(built, said, tmp_path, monkeypatch):
    from indexer.sources import file_systems

    adapter(tmp_path / "tree/a", 1)
    adapter(tmp_path / "tree/closed/b", 2)
    assert built("tree").indexed == 2
    real = os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(file_systems.os, "scandir", refuse)
    assert built("tree").unchanged == 1
    assert models() == [("local:a", "indexed", False), ("local:b", "indexed", False)]
    assert any(line.startswith("folders that cannot be listed: 1 (closed)") for line in said)


def test_names_that_are_not_utf8_are_read(tmp_path):
    odd = os.fsdecode(b"odd-\xff\xfe")
    adapter(tmp_path / "tree" / odd, 1)
    loose(tmp_path / "tree" / f"{odd}.safetensors", 2, ss_base_model_version=BASE)
    files = file_system(str(tmp_path / "tree"))
    listing = list_tree(files)
    assert len(listing.models) == 2
    assert listing.problems.counts == {"names that are not UTF-8, read under names without these bytes": 2}
    assert all(described(model, files)[0].named[0][1] == BASE for model in listing.models)
    json.dumps([described(model, files)[1] for model in listing.models]).encode()


def test_a_hundred_thousand_other_files_only_cost_their_listing(tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    for number in range(2_000):  # each is one call of the system, so a few stand for many
        (tmp_path / f"images/{number}.png").touch()
        (tmp_path / f"images/{number}.txt").touch()
    adapter(tmp_path / "images", 1)
    asked = []
    files = file_system(str(tmp_path))
    monkeypatch.setattr(files, "facts", lambda path, real=files.facts: asked.append(path) or real(path))
    (model,) = list_tree(files).models
    assert sorted(model.files) == ["adapter_config.json", "adapter_model.safetensors"]
    assert len(asked) == 2


def test_the_base_is_what_the_files_name(tmp_path):
    bases = {
        BASE: (BASE, "tiny-base"),
        "stabilityai/stable-diffusion-xl-base-1.0": ("stabilityai/stable-diffusion-xl-base-1.0",),
    }
    adapter(tmp_path / "a", 1, "/root/.cache/huggingface/hub/models--org--tiny-base/snapshots/0123")
    adapter(tmp_path / "b", 2, "/data/models/tiny-base/")
    adapter(tmp_path / "c", 3, "org/other")
    adapter(tmp_path / "d", 4, None)
    adapter(tmp_path / "e", 4, "/data/out")
    loose(tmp_path / "f.safetensors", 5, ss_base_model_version="sdxl_base_v1-0")
    loose(tmp_path / "g.safetensors", 5, **{"modelspec.architecture": "stable-diffusion-xl-v1-base/lora"})
    (tmp_path / "d/README.md").write_text("---\nbase_model: tiny-base\n---\n")
    files = file_system(str(tmp_path))
    found = {model.path: base_among(described(model, files)[0], "x/y", bases) for model in list_tree(files).models}
    image = "stabilityai/stable-diffusion-xl-base-1.0"
    assert found == {"a": (BASE, None), "b": (BASE, None), "c": (None, "org/other"), "d": (BASE, None), "e": (None, None),
                     "f.safetensors": (image, None), "g.safetensors": (image, None)}  # fmt: skip


@pytest.mark.slow
def test_from_build_to_build(built, said, hub, tmp_path, tiny_store):
    tree = tmp_path / "secret-place/runs"
    for run in ("lr1", "lr2"):
        adapter(tree / run / "checkpoint-500", len(run) + int(run[-1]))
    full(tree / "whole", tiny_store(2), "ann/glue-0")
    adapter(tree / "other", 9, "FacebookAI/roberta-large")
    save_file(factors(10, width=24), adapter(tree / "silent", 10, None) / "adapter_model.safetensors")
    report = built(tree, author="me")
    assert (report.discovered, report.indexed, report.failed) == (3, 3, 0)
    assert "models of other bases, not indexed: 1, of FacebookAI/roberta-large (1)" in said
    assert "models that name no base, not indexed: 1 (local:silent)" in said
    assert models(columns="model, author, status, claimed_by") == [
        (name, "me", "indexed", "folder")
        for name in ("local:lr1-checkpoint-500", "local:lr2-checkpoint-500", "local:whole")
    ]
    (source,) = status("atlas")["sources"]
    assert source["address"] == str(tree)
    assert (source["models"], source["indexed"], source["another_base"], source["base_not_named"]) == (3, 3, 1, 1)

    again = built(tree)
    assert (again.unchanged, again.indexed, again.bytes_read) == (3, 0, 0)
    # Moved and renamed, with other times: known by their content.
    shutil.move(tree / "lr1", tree / "best")
    shutil.copytree(tree / "whole", tree / "copied", copy_function=shutil.copy)
    shutil.rmtree(tree / "whole")
    moved = built(tree)
    assert (moved.unchanged, moved.indexed, moved.bytes_read) == (3, 0, 0)
    # As a whole, beside a copy that has just been made: the copy is another model.
    shutil.move(tree, tmp_path / "elsewhere")
    tree = tmp_path / "elsewhere"
    moved = built(tree)
    assert (moved.unchanged, moved.indexed, moved.bytes_read) == (3, 0, 0)
    shutil.copytree(tree / "lr2", tree / "again")
    assert built(tree).indexed == 1
    shutil.rmtree(tree / "again")
    built(tree)
    assert [name for name, _, gone in models() if not gone] == [name for name, *_ in models() if "again" not in name]
    # Changed, left, new.
    adapter(tree / "best/checkpoint-500", 77)
    shutil.rmtree(tree / "lr2")
    adapter(tree / "fresh", 78)
    changed = built(tree)
    assert (changed.unchanged, changed.indexed) == (1, 2)
    assert f"1 models of {BASE} have left the trees; the atlas keeps what it has of them" in said
    assert ("local:lr2-checkpoint-500", "indexed", True) in models()
    assert status("atlas")["sources"][1]["left"] == 2
    adapter(tree / "lr2/checkpoint-500", 5)
    back = built(tree)
    assert (back.unchanged, back.indexed) == (4, 0)
    assert [name for name, _, gone in models() if gone] == ["local:again-checkpoint-500"]
    # Without a base those of the tree are meant, also if it is empty now.
    shutil.rmtree(tree)
    tree.mkdir()
    (emptied,) = built(tree, base=())
    assert emptied.discovered == 0
    assert all(gone for _, _, gone in models())


@pytest.mark.slow
def test_weights_tell_the_base_where_no_file_names_it(built, said, tmp_path, tiny_store, monkeypatch):
    tree = tmp_path / "runs"
    silent = full(tree / "whole", tiny_store(2), "ann/glue-0", None)
    (silent / "README.md").unlink(missing_ok=True)
    config = json.loads((silent / "config.json").read_text())
    (silent / "config.json").write_text(json.dumps({key: config[key] for key in config if key != "_name_or_path"}))
    adapter(tree / "adapter", 10, None)
    adapter(tree / "named", 11)
    # By shapes alone only if somebody says which base is meant.
    (report,) = built(tree, base=())
    assert (report.discovered, report.indexed) == (2, 2)
    assert "models that name no base, not indexed: 1 (local:adapter)" in said
    report = built(tree)
    assert (report.discovered, report.indexed, report.unchanged) == (3, 1, 2)
    assert "models whose base is told by their shapes alone: 1 (local:adapter)" in said
    # What is known is not compared again, and neither is what was compared in vain.
    save_file(factors(12, width=24), adapter(tree / "other", 12, None) / "adapter_model.safetensors")
    built(tree)
    monkeypatch.setattr(identify, "identify", lambda *_: pytest.fail("compared again"))
    assert built(tree).unchanged == 3


@pytest.mark.slow
@pytest.mark.parametrize("base", [(), BASE])
def test_what_was_made_from_a_fine_tune_is_of_its_base(built, said, tmp_path, tiny_store, base):
    tree = tmp_path / "runs"
    for name in ("first", "second"):
        adapter(tree / name, len(name))
    adapter(tree / "on-top", 3, "ann/glue-0")
    report = built(tree, base=base)
    (report,) = report if isinstance(report, list) else [report]
    assert (report.base, report.discovered, report.indexed) == (BASE, 3, 3), said


@pytest.mark.slow
def test_a_place_that_is_not_there_changes_nothing(built, said, tmp_path):
    adapter(tmp_path / "one/a", 1)
    adapter(tmp_path / "two/b", 2)
    assert built("one", "two").indexed == 2
    shutil.move(tmp_path / "two", tmp_path / "elsewhere")
    assert built("one", "two").unchanged == 1
    assert any("two cannot be listed: No such file or directory." in line for line in said)
    with pytest.raises(AtlasError, match="two cannot be listed"):
        built("two")
    assert models() == [("local:a", "indexed", False), ("local:b", "indexed", False)]


@pytest.mark.slow
def test_models_of_one_name_are_told_apart(built, tmp_path):
    for number, path in enumerate(("x/run/checkpoint-5", "y/run/checkpoint-5", "z/m", "z/deep/m", "m..n", "模型")):
        adapter(tmp_path / "tree" / path, number)
    assert built("tree").indexed == 6
    names = [name for name, *_ in models()]
    assert names == ["local:deep-m", "local:m.n", "local:model", "local:x-run-checkpoint-5", "local:y-run-checkpoint-5",
                     "local:z-m"]  # fmt: skip
    adapter(tmp_path / "tree/q/run/checkpoint-5", 11)
    adapter(tmp_path / "tree/q/m", 12)
    built("tree")
    assert set(names) < {name for name, *_ in models()}


@pytest.mark.slow
def test_without_paths_only_hashes_are_kept(built, tmp_path):
    for name in ("a", "b"):
        adapter(tmp_path / "tree" / name, ord(name))
    secret = tmp_path.name.encode()

    def naming():
        return [
            path.name for path in AtlasFolder("atlas").root.rglob("*") if path.is_file() and secret in path.read_bytes()
        ]

    built(tmp_path / "tree")
    assert naming() == ["trees.sqlite"]
    built(tmp_path / "tree", paths=False)
    assert naming() == []
    shutil.move(tmp_path / "tree/a", tmp_path / "tree/c")
    again = built(tmp_path / "tree", paths=False)
    assert (again.unchanged, again.bytes_read) == (2, 0)
    assert status("atlas")["sources"][0]["address"] is None


@pytest.mark.slow
@pytest.mark.skipif(not WILD.is_dir(), reason="../shared/data is not here")
def test_a_tree_of_strangers_sorts_itself(said, hub, tmp_path):
    files = file_system(str(WILD))
    listing = list_tree(files)
    assert len(listing.models) >= 60
    named = [
        base_among(described(model, files)[0], "", {"gpt2": ("gpt2", "openai-community/gpt2")})[0]
        for model in listing.models
    ]
    assert named.count("gpt2") >= 51


@pytest.mark.slow
def test_a_build_that_is_killed_goes_on(tiny_store, tmp_path):
    """Killed at any moment, and run again: every model once, nothing read twice that had its record."""
    from tests.killed import killable, moments
    from tests.tiny_hub import served_shell

    for number in range(3):
        adapter(tmp_path / "tree" / f"run{number}", number)
    with served_shell(tiny_store(2), tmp_path) as shell:
        words = ("index", "build", "--base", BASE, "--from", "tree", "--workers", "1", "--json")
        assert shell(*words).code == 0
        names = models(tmp_path / "atlas")
        shutil.move(tmp_path / "atlas", tmp_path / "whole")
        with killable(shell, *words) as run:
            _, total = run(0)
            shutil.rmtree(tmp_path / "atlas")
            for moment in moments(total, 4):
                assert run(moment)[0] == -9
                again = shell(*words)
                assert again.code == 0, again.err
                assert models(tmp_path / "atlas") == names
                assert shell("index", "verify").code == 0
                shutil.rmtree(tmp_path / "atlas")


@pytest.mark.slow
def test_files_that_change_while_they_are_read_are_read_next_time(built, said, tmp_path, monkeypatch):
    from indexer.builds import trees

    for name in ("a", "b"):
        adapter(tmp_path / "tree" / name, ord(name))

    def change_then_describe(model, files, real=trees.described):
        facts = real(model, files)
        if model.path == "a" and not said.count("changed"):
            said.append("changed")
            adapter(tmp_path / "tree/a", 99)
        return facts

    monkeypatch.setattr(trees, "described", change_then_describe)
    report = built("tree")
    assert (report.indexed, report.failed) == (1, 1)
    assert "local:a: 'adapter_config.json' has changed since the tree was listed" in str(report.problem)
    report = built("tree")
    assert (report.indexed, report.unchanged, report.failed) == (1, 1, 0)


@pytest.mark.slow
def test_options_of_a_build_apply(built, said, hub, tmp_path, tiny_store):
    for number in range(4):
        adapter(tmp_path / "tree" / f"m{number}", number)
    full(tmp_path / "tree/whole", tiny_store(2), "ann/glue-0")
    dry = built("tree", dry_run=True)
    assert dry.dry_run["models"] == 5
    assert dry.indexed == 0
    assert built("tree", limit=2).indexed == 2
    assert built("tree", relation="finetune").indexed == 1
    assert built("tree", read="full", connections=2).discovered == 5
    assert {status for _, status, _ in models()} == {"indexed"}
    # The Hub beside it, and the tree beside the Hub's: one atlas.
    both = built("tree", hub=True)
    assert (both.discovered, both.indexed) == (11, 6)
    assert build(BASE, workers=1).unchanged == 6 + 5


@pytest.mark.slow
def test_models_of_trees_are_read_again_where_they_lie(built, tmp_path, tiny_store):
    from indexer.builds.trees import places_in_trees
    from indexer.checkpoints.repository import open_repository

    for name in ("whole", "other"):
        full(tmp_path / "tree" / name, tiny_store(2), "ann/glue-0")
    built("tree")
    folder = AtlasFolder("atlas")
    places = places_in_trees(folder, {"local:whole", "local:other", "ann/none"})
    assert set(places) == {"local:whole", "local:other"}
    assert "model.safetensors" in open_repository(places["local:whole"]).filenames
    full(tmp_path / "tree/other", tiny_store(2), "ann/imdb-0")  # another model by now
    assert set(places_in_trees(folder, {"local:whole", "local:other"})) == {"local:whole"}
    assert places_in_trees(folder, ()) == {}


@pytest.mark.slow
def test_shards_share_a_tree(hub, tmp_path):
    from indexer.builds.shards import publish_records, work

    for number in range(4):
        adapter(tmp_path / "tree" / f"m{number}", number)
    reports = [work(BASE, f"{number}/2", sources="tree", workers=1) for number in range(2)]
    assert sum(report.indexed for report in reports) == 4
    publish_records(BASE)
    assert [(status, gone) for _, status, gone in models()] == [("indexed", False)] * 4
