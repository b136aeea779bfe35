"""The family's plan: what is made, from what, and what is to become of it."""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict

import pytest

from scripts.family.plan import FOLDER, SIZES, Run, fingerprint, load_plan, read_entry
from scripts.family.training import freeze, new_configuration

REASONS = {
    "unknown_architecture", "no_weights", "unreadable_format", "quantized", "gated", "disabled",
    "adapter_unsupported", "unsafe_pickle", "corrupt_file", "shape_mismatch", "layer_mismatch", "not_finite",
}  # fmt: skip


# ---------------------------------------------------------------- the plan


def test_each_size_holds_the_one_before():
    plans = [load_plan(size) for size in SIZES]
    ids = [[entry.model for entry in plan.repositories] for plan in plans]
    assert all(len(set(found)) == len(found) for found in ids)
    assert set(ids[0]) < set(ids[1]) < set(ids[2])


def test_the_full_plan_is_wide_enough():
    plan = load_plan("full")
    plain = [
        run for run in plan.runs if not run.adapter and run.expected.outcome == "indexed" and not run.expected.flag
    ]
    assert len(plain) >= 48
    assert len([run for run in plan.runs if run.adapter]) >= 6
    assert len({run.author for run in plan.runs}) >= 6
    by_dataset = defaultdict(list)
    for run in plain:
        by_dataset[run.dataset].append(run.author)
    assert len(by_dataset) >= 8
    # Cross-author purity is defined for every data set, and one account's sweep is most of one of them.
    assert all(len(authors) >= 3 and len(set(authors)) >= 2 for authors in by_dataset.values())
    assert max(Counter(authors).most_common(1)[0][1] / len(authors) for authors in by_dataset.values()) > 0.6
    adapters = [run.adapter for run in plan.runs if run.adapter]
    assert {adapter.rank for adapter in adapters} >= {4, 8, 16}
    assert any(adapter.rslora for adapter in adapters)
    assert any(adapter.dora for adapter in adapters)
    assert any(adapter.ranks and adapter.alphas for adapter in adapters)
    assert {run.saved for run in plan.runs} == {"float32", "float16", "bfloat16", "sharded", "bin", "legacy bin"}
    assert {run.task or plan.datasets[run.dataset].task for run in plan.runs} == {
        "text-classification", "token-classification", "language",
    }  # fmt: skip


@pytest.mark.parametrize("size", ["small", "full"])
def test_every_way_of_going_wrong_is_there_with_a_sentence(size):
    plan = load_plan(size)
    expected = [entry.expected for entry in plan.repositories]
    assert {one.reason for one in expected if one.outcome == "skipped"} == REASONS
    assert {one.flag for one in expected if one.flag} == {"copy", "duplicate", "unrelated"}
    for entry in plan.repositories:
        assert (entry.expected.reason is not None) == (entry.expected.outcome in ("skipped", "failed"))
        if entry.expected != type(entry.expected)():
            assert entry.expected.why.endswith("."), entry.model


def test_what_is_made_from_another_model_is_made_after_it():
    for size in SIZES:
        plan = load_plan(size)
        runs = {run.model for run in plan.runs if run.parent is None}
        assert {run.parent for run in plan.runs if run.parent} <= runs
        assert {oddity.of for oddity in plan.oddities if oddity.of} <= runs


def test_a_mistake_in_the_plan_is_named():
    with pytest.raises(ValueError, match="Run has no learningrate"):
        read_entry(Run, {"model": "a/b", "learningrate": 1})
    with pytest.raises(ValueError, match="no size 'huge'"):
        load_plan("huge")
    with pytest.raises(ValueError, match="no architecture 'mamba'"):
        load_plan("mini", "mamba")


def test_an_architecture_may_decide_what_becomes_of_a_task():
    """T5's own network for token classification is its encoder alone; adapters on it are indexed all the same."""
    ours, theirs = (
        {run.model.replace(name, "NAME"): run for run in load_plan("full", name).runs} for name in ("roberta", "t5")
    )
    words = {model for model, run in ours.items() if run.dataset == "code/python-words" and not run.adapter}
    assert len(words) == 5
    for model, run in theirs.items():
        if model in words:
            assert (run.expected.outcome, run.expected.reason) == ("skipped", "layer_mismatch")
            assert run.expected.found_by == ours[model].expected.found_by
        else:
            assert run.expected == ours[model].expected


def test_another_architecture_or_size_does_not_change_the_fingerprint():
    data = tomllib.loads((FOLDER / "plan.toml").read_text())
    before = fingerprint("full", "roberta", data)
    for table, key, name in (("architectures", "t5", "steps"), ("sizes", "mini", "files")):
        data[table][key][name] = 99
        assert fingerprint("full", "roberta", data) == before
    data["architectures"]["roberta"]["layers"] = ["elsewhere"]
    assert fingerprint("full", "roberta", data) != before
    assert fingerprint("small", "roberta", data) != fingerprint("full", "roberta", data)


@pytest.mark.parametrize(("architecture", "stacks"), [("roberta", 1), ("bert", 1), ("gpt2", 1), ("t5", 2)])
def test_the_lowest_layers_of_every_stack_can_be_frozen(architecture, stacks):
    from transformers import AutoModelForSequenceClassification

    network = load_plan("full", architecture).architecture
    assert len(network.layers) == stacks
    model = AutoModelForSequenceClassification.from_config(new_configuration(network, 4096))
    freeze(model, network, 2)
    learns = defaultdict(set)
    for name, parameter in model.base_model.named_parameters():
        found = re.search(r"(^|\.)(encoder|decoder|h)\.(?:layer\.|block\.)?(\d+)\.", name)
        learns[(found[2], int(found[3])) if found else "embeddings"].add(parameter.requires_grad)
    of_layers = {key: value for key, value in learns.items() if key != "embeddings"}
    assert len(of_layers) == 4 * stacks
    assert all(value == {layer >= 2} for (_, layer), value in of_layers.items())
    assert all(
        not p.requires_grad for name, p in model.base_model.named_parameters() if "embed" in name or "wte" in name
    )


def test_the_plan_is_plain_toml_and_every_dataset_in_it_is_used():
    data = tomllib.loads((FOLDER / "plan.toml").read_text())
    assert {row["dataset"] for row in data["runs"]} == {row["name"] for row in data["datasets"]}


def test_another_training_moves_every_seed_and_runs_that_share_one_still_do():
    plan, again = load_plan("demo"), load_plan("demo", training_seed=2)
    assert plan.fingerprint != again.fingerprint
    assert plan.pretraining.seed != again.pretraining.seed
    assert [run.model for run in plan.runs] == [run.model for run in again.runs]
    seeds, moved = ([run.seed for run in one.runs] for one in (plan, again))
    assert not set(seeds) & set(moved)
    assert [seeds.index(one) for one in seeds] == [moved.index(one) for one in moved]
    starts, others = ([run.adapter.start for run in one.runs if run.adapter] for one in (plan, again))
    assert [one is None for one in starts] == [one is None for one in others]
    assert load_plan("demo", training_seed=0) == plan
