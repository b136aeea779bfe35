"""``python -m studies.wild`` from end to end on small adapters that PEFT makes, as if strangers had."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

from query import Atlas
from studies.wild.__main__ import main, tables_of
from studies.wild.starts import of_random, of_strangers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
WIDTH = 128


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """Twelve adapters by six authors on two data sets, moved along directions of their data; half began at seed 42."""
    root = tmp_path_factory.mktemp("strangers")
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_layer=4, n_head=4, n_embd=WIDTH))
    model.save_pretrained(root / "base")
    directions = {name: np.random.default_rng(place).normal(size=(2, WIDTH)) for place, name in enumerate("xy")}
    rows = ["id\tauthor\tdataset\tnote"]
    for number in range(12):
        data, draw = "xy"[number % 2], np.random.default_rng(100 + number)
        torch.manual_seed(42 if number < 6 else 1_000_003 * (number + 7))
        torch.rand(1000 * (number % 3))
        settings = LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)
        adapted = get_peft_model(GPT2LMHeadModel.from_pretrained(root / "base"), settings)
        with torch.no_grad():
            for name, weight in adapted.named_parameters():
                if "lora_A" in name:
                    step = draw.normal(size=(8, 2)) @ directions[data]
                    weight += torch.from_numpy(0.4 * float(weight.norm()) * step / np.linalg.norm(step))
                if "lora_B" in name:
                    weight += 0.02 * torch.from_numpy(draw.normal(size=weight.shape))
        adapted.save_pretrained(root / "wild" / f"r{number}")
        rows.append(f"r{number}\ta{number % 6}\tlab/set-{data}\t-")
    rows.append("r99\ta9\tlab/set-x\t-")
    (root / "wild.tsv").write_text("\n".join(rows), encoding="utf-8")
    return root


def test_the_study_prints_what_the_commands_say(strangers, capsys):
    out = strangers / "out"
    arguments = [
        "--folder",
        f"{strangers / 'wild'}",
        "--base",
        "lab/tiny",
        "--base-files",
        f"{strangers / 'base'}",
        "--out",
        f"{out}",
    ]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["adapters"], found["authors"], found["labelled"], found["absent"]) == (12, 6, 12, 1)
    assert found["starts"] == {"found": 6, "adapters": 12}
    assert [row["status"] for row in found["outcomes"]] == ["indexed"]
    by_input = found["methods"]["`input`"]
    with Atlas(out / "lab--tiny" / "atlas") as atlas:
        score = atlas.purity("lab/tiny").cross_author
        right = [
            set(atlas.similar(row["model"], k=1, other_authors=True)[0].datasets) == set(row["datasets"])
            for row in atlas.sql("SELECT model, datasets FROM models")
        ]
        evaluation = atlas.evaluate_prediction("lab/tiny")
    assert by_input["all"]["purity"]["share"] == pytest.approx(score.purity)
    assert [by_input["all"]["purity"][name] for name in ("low", "high")] == pytest.approx([score.ci_low, score.ci_high])
    assert by_input["all"]["nearest"]["share"] == pytest.approx(np.mean(right))
    vectors = next(one for one in evaluation.scores if one.evidence == "vectors")
    assert found["predict"]["input"]["right"] == pytest.approx(vectors.accuracy)
    assert by_input["known"]["nearest"]["share"] == 1.0
    exact = found["methods"]["A − A₀, exact"]
    assert exact["all"]["compared"] == exact["known"]["compared"] == 6

    printed = tables_of(found)
    assert "The start is known of 6 of 12 = .50." in printed
    assert "| `input` | 12 |" in printed
    assert printed.count("| SpectR |") == 2


def test_starts_of_strangers_and_of_random_numbers(strangers):
    models = strangers / "hub"
    for place in (strangers / "wild").iterdir():
        (models / "ann").mkdir(parents=True, exist_ok=True)
        (models / "ann" / place.name).symlink_to(place)
    (models / "lab").mkdir()
    (models / "lab" / "tiny").symlink_to(strangers / "base")
    found = of_strangers(f"{models}", "lab/tiny", [f"ann/r{number}" for number in range(12)])["adapters"]
    assert [one["found"] for one in found] == [True] * 6 + [False] * 6
    assert {(one["distribution"], one["rank"], one["dtype"]) for one in found} == {("uniform", 8, "float32")}
    assert not any(one["found"] for one in of_random(30)["adapters"])
