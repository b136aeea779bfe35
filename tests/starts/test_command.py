"""`index starts`: what it finds is published; what it cannot find or read changes nothing."""

from __future__ import annotations

import json
import shutil

import pytest

import indexer
from indexer.deltas.starts.search import FurtherSearch
from indexer.errors import AtlasError, BadArgument
from tests.adapters.test_started_together import add
from tests.database import read_rows
from tests.tiny_hub import BASE, indexed

SEED = 987_654_321  # not a usual one
MODELS = [f"s{data}/seed-{SEED}" for data in range(2)]
GROUPS = "SELECT model, vector_group, start FROM models WHERE relation = 'adapter' ORDER BY model"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tiny_store, tmp_path_factory):
    store = tiny_store(1, tmp_path_factory.mktemp("starts") / "store")
    for data, model in enumerate(MODELS):
        add(store, model, SEED, data)
    add(store, "ann/usual", 42, 0)
    with indexed(store) as shell:
        yield shell


@pytest.fixture
def atlas(built, tmp_path):
    shutil.copytree(built.folder / "atlas", tmp_path / "atlas")
    return tmp_path / "atlas"


@pytest.fixture
def seeds(tmp_path):
    path = tmp_path / "seeds.txt"
    path.write_text(f"# of one lab\n7\n{SEED}  # its favourite\n\n")
    return path


def starts(built, atlas, *words):
    command = built("index", "starts", "--atlas", str(atlas), "--json", *words)
    assert command.code == 0, command.err
    return json.loads(command.out), command.err


def groups(atlas):
    return {
        model: (group, start and start["seed"]) for model, group, start in read_rows(atlas / "atlas.duckdb", GROUPS)
    }


def test_what_a_file_of_seeds_tells_is_published(built, atlas, seeds):
    assert groups(atlas) == {"ann/usual": ("adapter", 42), **dict.fromkeys(MODELS, ("adapter by output", None))}
    report, said = starts(built, atlas, "--base", BASE, "--seeds", str(seeds), "--draws", "100000")
    assert (report["discovered"], report["indexed"], report["failed"]) == (2, 2, 0)
    assert [(start["model"], start["seed"], start["offset"]) for start in report["starts"]] == [
        (model, SEED, report["starts"][0]["offset"]) for model in MODELS
    ]
    assert "2 adapters" in said
    assert set(groups(atlas).values()) == {("adapter", 42), ("adapter", SEED)}
    assert not indexer.verify(atlas, strict=True)
    # The vectors are those of an atlas that knew the seed from the beginning: by data, not by seed.
    similar = built("query", "similar", MODELS[0], "--atlas", str(atlas), "--json")
    nearest = {row["model"]: row["similarity"] for row in json.loads(similar.out)}
    assert nearest["ann/usual"] > nearest[MODELS[1]]
    again, said = starts(built, atlas, "--base", BASE, "--seeds", str(seeds))
    assert again["discovered"] == 0
    assert "no adapter whose start is unknown" in said
    # A rebuild from the records and a later build leave the starts as they are.
    indexer.rebuild(atlas)
    assert built("index", "build", "--base", BASE, "--atlas", str(atlas)).code == 0
    assert set(groups(atlas).values()) == {("adapter", 42), ("adapter", SEED)}


def test_neighbours_by_output_sides_are_searched_as_there_are_no_lists(built, atlas):
    (full,) = read_rows(atlas / "atlas.duckdb", "SELECT min(model) FROM models WHERE vector_group = 'full'")[0]
    asked = ("--representation", "adapter_output", "--atlas", str(atlas))
    ran = built("query", "similar", MODELS[0], *asked, "--json")
    assert {row["model"] for row in json.loads(ran.out)} == {"ann/usual", MODELS[1]}
    ran = built("query", "similar", full, *asked)
    assert f"{full} has no 'adapter_output' vector: full fine-tunes have none." in ran.err


def test_a_build_says_how_many_starts_are_not_known(built, atlas):
    build = built("index", "build", "--base", BASE, "--atlas", str(atlas.with_name("other")))
    assert "2 of 3 adapters began with random numbers that are not known" in build.err
    assert f"index starts --base {BASE} searches further" in build.err


def test_what_is_not_found_stays_as_it_is(built, atlas):
    before = {path: path.read_bytes() for path in (atlas / "records").rglob("*.safetensors")}
    report, _ = starts(built, atlas, MODELS[0], "--draws", "10000")
    assert (report["discovered"], report["unchanged"], report["starts"]) == (1, 1, [])
    assert before == {path: path.read_bytes() for path in before}


def test_a_model_that_cannot_be_read_now_keeps_its_record(built, atlas, seeds):
    rule = built.hub.faults.add(MODELS[0], status=403)
    try:
        report, _ = starts(built, atlas, "--base", BASE, "--seeds", str(seeds), "--draws", "100000")
    finally:
        built.hub.faults.remove(rule)
    assert (report["indexed"], report["failed"] + report["skipped"]) == (1, 1)
    assert groups(atlas)[MODELS[0]] == ("adapter by output", None)
    assert not indexer.verify(atlas, strict=True)


def test_models_without_a_start_to_look_for_are_refused_in_a_line(built, atlas, seeds):
    (full,) = read_rows(atlas / "atlas.duckdb", "SELECT min(model) FROM models WHERE vector_group = 'full'")[0]
    command = built("index", "starts", full, "--atlas", str(atlas))
    assert command.code == 1
    assert f"{full} has no start that can be looked for: it is no adapter" in command.err
    _, said = starts(built, atlas, "ann/usual", "--seeds", str(seeds))
    assert "its start is known already" in said


@pytest.mark.parametrize("text", ["x\n", "1\n2.5\n", "", "# none\n", "1" * 30, "\xff\x00"])
def test_seeds_that_cannot_be_read_are_named(atlas, tmp_path, text):
    path = tmp_path / "bad.txt"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadArgument, match="seeds"):
        indexer.find_starts(base=BASE, atlas=atlas, seeds=path)


def test_a_folder_is_named_by_its_path(built, atlas, tmp_path):
    add(tmp_path, "mine/adapter", SEED, 0)
    folder = tmp_path / "mine" / "adapter"
    with pytest.raises(AtlasError, match="not in this atlas"):
        indexer.find_starts(str(folder), atlas=atlas)
    assert built("index", "add", str(folder), "--base", BASE, "--atlas", str(atlas)).code == 0
    report, _ = starts(built, atlas, str(folder), "--seeds", str(_with(tmp_path, SEED)), "--draws", "100000")
    assert [start["seed"] for start in report["starts"]] == [SEED]


def _with(folder, seed):
    path = folder / "one.txt"
    path.write_text(f"{seed}\n")
    return path


def test_a_further_search_covers_all_that_was_asked_for():
    """Tables of at most 2²⁶ words, whatever the number of seeds; each begins at a whole segment."""
    search = FurtherSearch((1, 2, 3), (1 << 26) - 5)
    covered = {}
    for table in search._tables():
        assert sum(draws.words for draws in table) <= 1 << 26
        for seed, words, start in table:
            assert start % 8192 == 0
            assert start == covered.get(seed, 0)
            covered[seed] = start + words
    assert covered == dict.fromkeys((1, 2, 3), 1 << 26)
