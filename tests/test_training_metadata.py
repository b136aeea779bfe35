"""What training tools wrote beside the weights: read with them, stored, searched, shown and compared."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file, save_file

from indexer import add, build
from indexer.atlas import AtlasFolder
from indexer.checkpoints.training import remote_files, training_paths
from indexer.upkeep.deep_verification import verify_deeply
from query import Atlas
from tests.database import read_rows
from tests.hubs import served
from tests.tiny_hub import BASE, DATASETS

FIRST, SECOND, THIRD = [f"ann/{name}-0" for name in DATASETS]
STATE = {
    "global_step": 1500, "max_steps": 2250, "epoch": 2.0, "num_train_epochs": 3,
    "log_history": [{"loss": 0.5, "step": 1500}, {"eval_loss": 0.25, "step": 1500}],
}  # fmt: skip
AXOLOTL = """
base_model: org/tiny-base
datasets:
  - {path: mhenrichsen/alpaca_2k_test}
  - {path: /data/lovelace/imdb.jsonl}
learning_rate: %s
optimizer: %s
hub_token: hf_secret
"""
TRAINING = "SELECT dataset, raw FROM model_datasets WHERE source = 'training' ORDER BY ALL"


def asked(hub, name):
    return {one.path for one in hub.requests if one.path.startswith("/ann/") and one.path.endswith(name)}


def test_files_beside_the_weights_and_of_the_run_count_the_nearest_first():
    names = [
        "trainer_state.json", "axolotl_config.yaml", "train_results.json", "checkpoint-1/trainer_state.json",
        "checkpoint-2/trainer_state.json", "checkpoint-2/model.safetensors", "params/lr", "other/params/lr",
        "config.json", "wandb/run-1/files/config.yaml", "checkpoint-2/training_args.bin",
    ]  # fmt: skip
    of_run = [
        "axolotl_config.yaml", "wandb/run-1/files/config.yaml", "trainer_state.json", "params/lr", "train_results.json",
    ]  # fmt: skip
    assert training_paths(names, "") == of_run
    assert training_paths(names, "checkpoint-2/") == ["checkpoint-2/trainer_state.json", *of_run]
    assert (remote_files(names, ""), remote_files(["adapter_config.json", "args.json"], "")) == (3, 1)


def test_what_tools_wrote_is_stored_searched_shown_and_compared(tiny_store, tmp_path, monkeypatch):
    store, folder = tiny_store(1, tmp_path / "store"), tmp_path / "atlas"
    for name, rate, optimizer in ((FIRST, "0.0002", "adamw"), (SECOND, "0.0001", "lion")):
        (store / name / "trainer_state.json").write_text(json.dumps(STATE))
        (store / name / "axolotl_config.yaml").write_text(AXOLOTL % (rate, optimizer))
        (store / name / "training_args.bin").write_bytes(b"\x80\x04")
    # Longer than what is read from the Hub: its ends are.
    history = [{"loss": 0.5 + 1 / step, "step": step, "epoch": step / 750} for step in range(1, 5000)]
    long = STATE | {"log_history": [*history, *STATE["log_history"]]}
    (store / SECOND / "trainer_state.json").write_text(json.dumps(long, indent=2))
    assert (store / SECOND / "trainer_state.json").stat().st_size > 256 << 10
    weights = store / THIRD / "model.safetensors"
    save_file(load_file(weights), weights, {"format": "pt", "modelspec.title": "Blue", "ss_epoch": "8"})
    with served(store, monkeypatch) as hub:
        build(BASE, folder, workers=1)
        assert len(asked(hub, "trainer_state.json")) == 2
        assert not asked(hub, "training_args.bin")
        assert not asked(hub, f"{BASE}/resolve/main/trainer_state.json")
    rows = read_rows(
        folder / "atlas.duckdb",
        "SELECT training_tool, run, step, epoch, eval_loss, learning_rate FROM models ORDER BY learning_rate DESC NULLS LAST",
    )
    assert rows == [
        ("axolotl", None, 1500, 2.0, 0.25, 0.0002), ("axolotl", None, 1500, 2.0, 0.25, 0.0001),
        (None, "Blue", None, 8.0, None, None),
    ]  # fmt: skip
    assert read_rows(folder / "atlas.duckdb", TRAINING) == 2 * [("mhenrichsen/alpaca_2k_test",) * 2] + 2 * [
        (None, "imdb")
    ]
    with Atlas(folder) as atlas:
        shown = atlas.show(FIRST)
        assert shown["training"]["max_steps"] == 2250
        assert "mhenrichsen/alpaca_2k_test" in shown["datasets"]
        assert shown.table()["training"] == (
            "axolotl, step 1,500 of 2,250, epoch 2.0 of 3.0, learning rate 0.0002, training loss 0.5, validation loss 0.25"
        )
        assert [row["id"] for row in atlas.sql("SELECT id FROM models WHERE training->>'optimizer' = 'lion'")] == [
            SECOND
        ]
        assert [one.model for one in atlas.similar(FIRST, where="epoch > 7").neighbours] == [THIRD]
        differing = {fact.fact: (fact.a, fact.b) for fact in atlas.compare(FIRST, SECOND).facts if fact.differs}
        assert differing["training.optimizer"] == ("adamw", "lion")
        assert differing["learning_rate"] == (0.0002, 0.0001)
        text = json.dumps(shown.to_dict(), default=str)
        assert "hf_secret" not in text
        assert "lovelace" not in text


@pytest.mark.slow
def test_datasets_of_files_outlive_a_new_listing_and_go_with_the_record(tiny_store, tmp_path, monkeypatch):
    store, folder = tiny_store(1, tmp_path / "store"), tmp_path / "atlas"
    settings = store / FIRST / "axolotl_config.yaml"
    settings.write_text(AXOLOTL % ("0.1", "adamw"))
    with served(store, monkeypatch):
        build(BASE, folder, workers=1)
        path = store / f"{FIRST}.repo.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"likes": 7}))
        build(BASE, folder, workers=1)
        assert len(read_rows(folder / "atlas.duckdb", TRAINING)) == 2
        assert not verify_deeply(AtlasFolder(folder))
        settings.unlink()
        build(BASE, folder, workers=1)  # a new commit
        assert read_rows(folder / "atlas.duckdb", TRAINING) == []


@pytest.mark.parametrize("name", ["checkpoint-500", "mine"])
def test_a_checkpoint_of_a_run_on_this_machine_has_the_settings_of_the_run(tiny_store, tmp_path, monkeypatch, name):
    store, folder = tiny_store(1, tmp_path / "store"), tmp_path / "atlas"
    run = tmp_path / "lr1e-4"
    run.mkdir()
    (store / FIRST).rename(run / name)
    (run / "axolotl_config.yaml").write_text(AXOLOTL % ("0.1", "adamw"))
    (run / name / "trainer_state.json").write_text(json.dumps(STATE))
    with served(store, monkeypatch):
        add(run / name, BASE, folder)
    ((step, rate),) = read_rows(folder / "atlas.duckdb", "SELECT step, learning_rate FROM models")
    assert (step, rate) == (1500, 0.1 if name == "checkpoint-500" else None)
