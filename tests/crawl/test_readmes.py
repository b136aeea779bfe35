"""Datasets that a model names only in a sentence of its README: read once for each commit."""

from __future__ import annotations

import json

import pytest

from indexer import add, build
from indexer.builds.shards import publish_records, work
from tests.database import read_rows
from tests.hubs import served
from tests.tiny_hub import BASE, DATASETS

FOLDER = "/data/vllm/tiny-base"
SENTENCE = f"This model is a fine-tuned version of [{FOLDER}](https://huggingface.co/{FOLDER}) on the {{}}.\n"
MODELS = FIRST, SECOND, THIRD = [f"ann/{name}-0" for name in DATASETS]


@pytest.fixture
def store(tiny_store, tmp_path):
    return tiny_store(1, tmp_path / "store")


def describe(store, identifier, readme, *tags):
    """Take its data set from a model's row, and give it tags and a README."""
    path = store / f"{identifier}.repo.json"
    facts = json.loads(path.read_text())
    facts["card_data"].pop("datasets", None)
    facts["tags"] = [tag for tag in facts["tags"] if not tag.startswith("dataset:")] + list(tags)
    path.write_text(json.dumps(facts))
    (store / identifier / "README.md").write_text(f"---\nlibrary_name: transformers\n---\n\n{readme}")


def named(folder):
    statement = "SELECT model, dataset, raw, source FROM model_datasets JOIN fine_tunes USING (model_id) ORDER BY ALL"
    return [row for row in read_rows(folder / "atlas.duckdb", statement) if row[3] == "readme"]


def readmes(hub):
    found = [one.path for one in hub.requests if "/resolve/" in one.path and one.path.endswith("/README.md")]
    hub.reset_log()
    return found


def test_the_readme_of_a_model_that_a_tool_made_is_read_once(store, tmp_path, monkeypatch):
    describe(store, FIRST, SENTENCE.format("`identity` and the alpaca_en_demo datasets"), "llama-factory")
    describe(store, SECOND, SENTENCE.format("imdb dataset"))  # no tool is named: not worth a request
    describe(store, THIRD, SENTENCE.format("unknown dataset"), "generated_from_trainer")
    atlas, said = tmp_path / "atlas", []
    with served(store, monkeypatch) as hub:
        before = build(BASE, atlas, dry_run=True).dry_run["requests"]["files"]
        assert readmes(hub) == []
        build(BASE, atlas, workers=1, progress=lambda event: said.append(event.message))
        assert "reading 2 READMEs for datasets that the listing does not show" in said
        assert len(readmes(hub)) == 2
        expected = [(FIRST, name, name, "readme") for name in ("alpaca_en_demo", "identity")]
        assert named(atlas) == expected
        assert build(BASE, atlas, workers=1).unchanged == 3
        assert before - build(BASE, atlas, dry_run=True).dry_run["requests"]["files"] >= 2
        assert readmes(hub) == []
        assert named(atlas) == expected
        # At a new commit it is read again.
        describe(store, FIRST, SENTENCE.format("fortune_cookies dataset"), "llama-factory")
        build(BASE, atlas, workers=1)
        assert named(atlas) == [(FIRST, "fortune_cookies", "fortune_cookies", "readme")]


@pytest.mark.slow
def test_a_readme_that_cannot_be_read_now_is_left_for_the_next_build(store, tmp_path, monkeypatch):
    describe(store, FIRST, SENTENCE.format("fortune_cookies dataset"), "trl")
    atlas, said = tmp_path / "atlas", []
    with served(store, monkeypatch) as hub:
        hub.faults.add(f"{FIRST}/resolve/.*README", status=500)
        report = build(BASE, atlas, workers=1, progress=lambda event: said.append(event.message))
        assert (report.indexed, named(atlas)) == (3, [])
        assert any("left for the next build: 1 (ann/glue-0: " in one for one in said)
        hub.faults.clear()
        build(BASE, atlas, workers=1)
        assert named(atlas) == [(FIRST, "fortune_cookies", "fortune_cookies", "readme")]


@pytest.mark.slow
def test_shards_single_models_and_folders_read_it_too(store, tmp_path, monkeypatch):
    for number, name in enumerate(MODELS):
        describe(store, name, SENTENCE.format(f"recipes_{number} dataset"), "axolotl")
    card = "---\ntags:\n- llama-factory\n---\n" + SENTENCE.format("/home/me/notes_1 dataset")
    (store / THIRD / "README.md").write_text(card)
    atlas = tmp_path / "atlas"
    with served(store, monkeypatch):
        add(FIRST, BASE, atlas)
        add(store / THIRD, BASE, atlas)
        # The path of a folder is private.
        local = ("local:" + THIRD.partition("/")[2], None, "./notes_1", "readme")
        assert named(atlas) == [(FIRST, "recipes_0", "recipes_0", "readme"), local]
        work(BASE, "0/1", atlas, workers=1)
        publish_records(BASE, atlas)
    assert (SECOND, "recipes_1", "recipes_1", "readme") in named(atlas)
