"""Training runs: which models are checkpoints of one, in which order, and what follows from that."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from indexer import add, build
from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.options import BuildOptions
from indexer.errors import AtlasError, Skipped
from indexer.listing.listed_models import ListedModel, without_earlier
from indexer.listing.listing import Listing
from indexer.publish.runs import _is_same_log
from indexer.records.identity import Identity, Spec
from indexer.records.store import RecordStore
from indexer.sources.cards.training_files import read_training
from indexer.sources.runs import (
    Checkpoint,
    checkpoint_at,
    checkpoint_named,
    checkpoints_of_files,
    is_named_in_run,
    run_of,
)
from indexer.sources.source import BaseFacts
from indexer.upkeep.deep_verification import verify_deeply
from query import Atlas
from query.models.population import distinct, read_population
from tests.database import read_rows
from tests.hubs import served
from tests.tiny_hub import BASE, DATASETS, describe

FIRST, SECOND, THIRD = [f"ann/{name}-0" for name in DATASETS]
TAGS = ["transformers", f"base_model:{BASE}", f"base_model:finetune:{BASE}", "dataset:imdb"]
NOW = datetime.now(UTC)
STEPS = (500, 1000, 1500)


@pytest.mark.parametrize(
    ("path", "beside", "inside", "expected"),
    [
        ("runs/lr3e-5/checkpoint-500", [], [], Checkpoint("runs/lr3e-5", 500)),
        ("a/global_step10", [], [], Checkpoint("a", 10)),
        ("a/epoch_3", [], [], Checkpoint("a", 3)),
        ("checkpoint-7", [], [], Checkpoint("", 7)),
        ("a/final", ["checkpoint-1"], [], Checkpoint("a", None)),
        ("a/final", ["other"], [], None),
        ("a/run", [], ["checkpoint-1", "logs"], Checkpoint("a/run", None)),
        ("a/my-model", ["checkpoint-1"], [], None),
        ("a/epochs-3", [], [], None),
    ],
)
def test_checkpoints_are_known_by_their_folders(path, beside, inside, expected):
    assert checkpoint_at(path, beside, inside) == expected


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("checkpoint-500", True), ("global_step10", True), ("Final", True), ("best", True), ("output", True),
     ("lr3e-5", False), ("my-model", False), ("run-7", False)],
)  # fmt: skip
def test_a_folder_may_be_named_by_its_part_in_a_run_alone(folder, expected):
    assert is_named_in_run(folder) is expected


def test_and_by_the_names_of_files_and_repositories():
    names = ["cats-000004.safetensors", "cats.safetensors", "dogs.safetensors", "cats-20240131.safetensors"]
    assert checkpoints_of_files("loras", names) == {
        "cats-000004.safetensors": Checkpoint("loras/cats", 4),
        "cats.safetensors": Checkpoint("loras/cats", None),
    }
    assert checkpoint_named("me/tiny-step-300") == Checkpoint("me/tiny", 300)
    assert checkpoint_named("me/tiny-v2") is None
    assert run_of("me/tiny-step-300", {}) == ("me/tiny", 300)
    assert run_of("local:tiny-step-300", {}) is None, "two runs may have folders of one name"
    assert run_of("local:a", {"run": {"key": "k", "number": 3}}) == ("k", 3)
    for bad in ({"key": 1}, {"key": "x" * 300}, {"key": "a\n"}, [], {"number": 3}):
        assert run_of("local:a", {"run": bad}) is None
    assert run_of("local:a", {"run": {"key": "k", "number": 1 << 60}}) == ("k", None)


def test_logs_of_one_run_begin_alike():
    history = [{"step": step, "loss": 0.1 * step} for step in (1, 2, 3, 4, 5, 6)]

    def log(entries):
        return read_training([("trainer_state.json", json.dumps({"log_history": entries}).encode())]).to_dict()["log"]

    assert log(history) == log(history[:4])
    assert _is_same_log(log(history[:2]), log(history))
    assert not _is_same_log(log(history[:1]), log(history)), "one loss of four digits may be the same by chance"
    assert not _is_same_log(log(history), log([*history[:1], {"step": 2, "loss": 0.3}]))
    with_gradient = [entry | {"grad_norm": 1.25} for entry in history]
    assert _is_same_log(log(with_gradient[:1]), log(with_gradient))


def test_of_a_run_the_last_checkpoint_is_selected_unless_all_are_asked_for():
    def listed(name, run=None, **facts):
        return ListedModel(
            name, {"id": name} | ({"run": run} if run else {}), "finetune", "tag", BASE, NOW, NOW, **facts
        )

    runs = [listed(f"local:a-{n}", {"key": "a", "number": n}) for n in (1, 3, 2)]
    final = [listed("local:b-1", {"key": "b", "number": 1}), listed("local:b", {"key": "b", "number": None})]
    models = [*runs, *final, listed("me/x-step-1"), listed("me/x-step-2")]
    assert [one.id for one in without_earlier(models)] == ["local:a-3", "local:b", "me/x-step-1", "me/x-step-2"]
    assert [one.id for one in without_earlier(runs, {"local:a-3"})] == ["local:a-3", "local:a-2"], "it was cut short"
    gone = [*runs[:1], listed("local:a-9", {"key": "a", "number": 9}, deleted_at_hub=True)]
    assert "local:a-1" in [one.id for one in without_earlier(gone)]
    assert BuildOptions().checkpoints == "last"
    assert BuildOptions(checkpoints="all").as_words() == ["--checkpoints", "all"]


def test_a_build_selects_the_last_checkpoint_that_can_be_read(tmp_path):
    folder = AtlasFolder(tmp_path)
    listing = Listing(folder.listing(BASE))
    for number in (1, 2, 3):
        listing.add(
            {"id": f"me/{number}", "sha": f"{number}" * 40, "run": {"key": "k", "number": number}}, "finetune", BASE
        )
    facts = BaseFacts(BASE, "f" * 40)

    def selected(**options):
        return sorted(one.id for one in Build(folder, facts, BuildOptions(**options)).selected())

    assert selected() == ["me/3"]
    assert selected(checkpoints="all") == ["me/1", "me/2", "me/3"]
    identity = Identity("me/3", "3" * 40, BASE, facts.commit, "finetune", Spec())
    RecordStore(folder).write_failure(identity, Skipped("corrupt_file", "is cut short"))
    assert selected() == ["me/2", "me/3"]


def moved(path, share, base):
    """The weights on the way from the base to ``path``."""
    tensors = load_file(path)
    return {
        key: one if (of_base := base.get(key.removeprefix("roberta."))) is None or one.ndim != 2 or "layer." not in key
        else of_base + share * (one - of_base)
        for key, one in tensors.items()
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(tiny_store, tmp_path_factory):
    """A run of three checkpoints on the Hub, one in folders, and one whose repositories have unlike names."""
    root = tmp_path_factory.mktemp("runs")
    store = tiny_store(2, root / "store")
    base = load_file(store / BASE / "model.safetensors")

    def checkpoint(folder, like, step, eval_loss=None):
        shutil.copytree(store / like, folder)
        save_file(
            moved(store / like / "model.safetensors", step / STEPS[-1], base),
            folder / "model.safetensors",
            {"format": "pt"},
        )
        history = [{"step": at, "loss": 1 - at / 2000, "grad_norm": 3.25} for at in range(100, step + 1, 100)]
        if eval_loss is not None:
            history.append({"step": step, "eval_loss": eval_loss})
        state = {"global_step": step, "max_steps": 1500, "log_history": history}
        (folder / "trainer_state.json").write_text(json.dumps(state))

    for step, loss in zip(STEPS, (0.5, 0.3, 0.4), strict=True):
        checkpoint(store / f"ann/long-checkpoint-{step}", SECOND, step, loss)
        describe(store, f"ann/long-checkpoint-{step}", tags=TAGS, card_data={"base_model": BASE})
        checkpoint(root / "mine" / "lr3e-5" / f"checkpoint-{step}", FIRST, step)
    for name, step in (("bob/early", 500), ("bob/done", 1500)):
        checkpoint(store / name, THIRD, step)
        describe(store, name, tags=TAGS, card_data={"base_model": BASE})
    with pytest.MonkeyPatch.context() as patch, served(store, patch):
        build(BASE, root / "atlas", workers=1)
        for step in STEPS:
            add(root / "mine" / "lr3e-5" / f"checkpoint-{step}", BASE, root / "atlas")
    return root / "atlas", store, base


RUN = [f"ann/long-checkpoint-{step}" for step in STEPS]


@pytest.mark.slow
def test_runs_are_listed_and_each_is_a_path(made):
    folder, store, base = made
    with Atlas(folder) as atlas:
        found = {one.run: one for one in atlas.runs().runs}
        assert {name: (one.checkpoints, one.last, one.last_step) for name, one in found.items()} == {
            "ann/long": (3, RUN[-1], 1500), "local:lr3e-5": (3, "local:lr3e-5-checkpoint-1500", 1500),
            "bob/done": (2, "bob/done", 1500),
        }  # fmt: skip
        path = atlas.run_path(RUN[0])
        assert [one.model for one in path.checkpoints] == RUN
        assert [one.step for one in path.checkpoints] == list(STEPS)
        assert [one.eval_loss for one in path.checkpoints] == [0.5, 0.3, 0.4]
        assert f"{RUN[1]} has the lowest validation loss" in path.headline
        # Straight on from the base: a third of the way, two thirds, all of it.
        distances = np.array([one.distance for one in path.checkpoints])
        assert distances / distances[-1] == pytest.approx([1 / 3, 2 / 3, 1], rel=0.02)
        weights = load_file(store / RUN[-1] / "model.safetensors")
        keys = [key for key, one in weights.items() if one.ndim == 2 and "layer." in key]
        of_base = {key: base[key.removeprefix("roberta.")] for key in keys}
        apart, size = (
            sum(float(one.square().sum()) for one in each) ** 0.5
            for each in ((weights[key] - of_base[key] for key in keys), of_base.values())
        )
        assert distances[-1] == pytest.approx(apart / size, rel=0.01)
        assert [one.similarity for one in path.checkpoints][-1] == pytest.approx(1, abs=1e-3)
        assert min(one.similarity for one in path.checkpoints) > 0.9
        assert atlas.run_path("ann/long").checkpoints == path.checkpoints
        shown = atlas.show(RUN[1])
        assert [row["model"] for row in shown["checkpoints"]] == RUN
        assert shown["run_place"] == 2
        with pytest.raises(AtlasError, match="is alone"):
            atlas.run_path(SECOND)


@pytest.mark.slow
def test_a_run_counts_once(made):
    folder, _, _ = made
    with Atlas(folder) as atlas:
        population = read_population(atlas, BASE)
        chosen = distinct(population)
        assert {one for one in chosen.models if "long" in one} == {RUN[-1]}
        assert chosen.left_out.checkpoints == 5
        assert "5 earlier checkpoints" in chosen.left_out.words()
        near = [one for one in atlas.duplicates(near=True, within=0.5).models if one.of == RUN[-1]]
        assert RUN[1] in {one.model for one in near}, "the last one is kept"
    # A checkpoint says nothing of strangers, either.
    statement = "SELECT count(*) FROM internal.centre_members JOIN records USING (model_id) WHERE is_earlier_checkpoint"
    assert read_rows(folder / "atlas.duckdb", statement) == [(0,)]
    assert not verify_deeply(AtlasFolder(folder))
