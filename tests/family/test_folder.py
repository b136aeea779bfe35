"""The family's folder: every repository and oddity, read by the libraries it is made for; made once, and again."""

from __future__ import annotations

import hashlib
import json
import pickle
import pickletools
import re
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

from scripts import family as package
from scripts.family import make_family, store, tasks
from scripts.family.plan import load_plan
from scripts.family.repositories import MARKER
from tests.conftest import ROOT, family_of
from tests.family.folders import BASE, block_matrices, described, models_of, weights

pytestmark = pytest.mark.slow

LINES = "papercut-ai/papercut-tiny-roberta-line-kinds"
SCRATCH = "quarry-labs/tiny-roberta-from-scratch"
ADAPTER = "small-hours/tiny-roberta_lines_lora"


@pytest.fixture(scope="module")
def mini(mini_family, tmp_path_factory) -> Path:
    """A copy, which the tests of this file change."""
    return Path(shutil.copytree(mini_family, tmp_path_factory.mktemp("family") / "mini"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---------------------------------------------------------------- the folder


def test_every_planned_repository_is_there_and_nothing_else(mini):
    plan = load_plan("mini")
    assert models_of(mini) == sorted([BASE, *(entry.model for entry in plan.repositories)])
    assert {path.name for path in mini.iterdir() if path.is_file()} == {"family.json", "expected.json"}
    assert not (mini / ".work").exists()
    assert not list(mini.rglob("*.part"))
    record = json.loads((mini / "family.json").read_text())
    assert record["fingerprint"] == plan.fingerprint
    assert set(record["measured"]) == {BASE, *(run.model for run in plan.runs)}


def test_expected_has_an_entry_for_each(mini):
    expected = json.loads((mini / "expected.json").read_text())
    assert sorted(expected) == models_of(mini)
    for entry in expected.values():
        assert set(entry) == {"outcome", "reason", "flag", "why", "found_by"}
        assert entry["outcome"] in ("indexed", "skipped", "failed", "not listed")
    assert expected[BASE]["outcome"] == "not listed"
    assert expected[BASE]["found_by"] is None
    assert expected[SCRATCH]["flag"] == "unrelated"
    assert expected[SCRATCH]["found_by"] == "tags"


def test_the_listing_has_the_fields_of_the_hub(mini):
    for model in models_of(mini):
        row = described(mini, model)
        assert re.fullmatch("[0-9a-f]{40}", row["sha"])
        assert "2024-01-01" < row["created_at"] <= row["last_modified"] < "2025-06-01"
        assert min(row["downloads"], row["likes"]) >= 0
        assert "region:us" in row["tags"]
    assert described(mini, BASE)["old_ids"] == ["tiny-roberta"]
    row = described(mini, LINES)
    assert {f"base_model:{BASE}", f"base_model:finetune:{BASE}", "dataset:code/line-kinds"} <= set(row["tags"])
    assert f"base_model:adapter:{BASE}" in described(mini, ADAPTER)["tags"]
    assert described(mini, ADAPTER)["library_name"] == "peft"
    assert described(mini, "nightly-builds/lines-reupload-tiny-roberta")["created_at"] > row["created_at"]
    assert len({described(mini, model)["sha"] for model in models_of(mini)}) == len(models_of(mini))


def test_cards_have_the_front_matter_that_the_listing_repeats(mini):
    for model in models_of(mini):
        front = (mini / model / "README.md").read_text().split("---\n")[1]
        assert yaml.safe_load(front) == described(mini, model)["card_data"]


def test_transformers_and_peft_load_them(mini, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from peft import PeftModel
    from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(mini / LINES)
    inputs = tokenizer(["return x", "# no"], padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    model = AutoModelForSequenceClassification.from_pretrained(mini / LINES)
    assert sorted(model.config.id2label.values()) == ["assignment", "call", "comment", "condition", "return"]
    assert model(**inputs).logits.shape == (2, 5)
    base = AutoModelForMaskedLM.from_pretrained(mini / BASE)
    assert base(**inputs).logits.shape[-1] == 4096
    adapted = PeftModel.from_pretrained(
        AutoModelForSequenceClassification.from_pretrained(mini / BASE, num_labels=5), mini / ADAPTER
    )
    assert adapted(**inputs).logits.shape == (2, 5)


def test_the_results_on_the_card_can_be_measured_again(mini, tmp_path):
    """Texts collected again, one at a time without padding or batches, through transformers alone."""
    from transformers import AutoModelForSequenceClassification

    torch.set_num_threads(1)
    tasks.prepare(load_plan("mini"), tmp_path)
    texts = tasks.LabelledTexts.load(tmp_path, "code/line-kinds")
    model = AutoModelForSequenceClassification.from_pretrained(mini / LINES).eval()
    right, loss = 0, 0.0
    for example in texts.held_out:
        ids = example.ids if len(example.ids) <= 32 else [*example.ids[:31], tasks.END]
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        right += int(scores.argmax()) == example.label
        loss -= float(scores[example.label])
    (result,) = described(mini, LINES)["card_data"]["model-index"][0]["results"]
    metrics = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert metrics["accuracy"] == pytest.approx(right / len(texts.held_out), abs=1e-4)
    assert metrics["loss"] == pytest.approx(loss / len(texts.held_out), abs=1e-3)


def test_the_weights_are_as_expected_json_describes_them(mini):
    base = block_matrices(weights(mini, BASE))
    assert len(base) == 24
    assert digest(mini / "nightly-builds/tiny-roberta-mirror/model.safetensors") == digest(
        mini / BASE / "model.safetensors"
    )
    assert digest(mini / "nightly-builds/lines-reupload-tiny-roberta/model.safetensors") == digest(
        mini / LINES / "model.safetensors"
    )
    for model, related in ((LINES, True), (SCRATCH, False)):
        tuned = block_matrices(weights(mini, model))
        flat = [torch.cat([t[name].flatten() for name in sorted(base)]) for t in (base, tuned)]
        cosine = float(torch.nn.functional.cosine_similarity(*flat, dim=0))
        assert cosine > 0.9 if related else abs(cosine) < 0.1
        assert all(not torch.equal(tuned[name], base[name]) for name in base)
    factors = weights(mini, ADAPTER)
    settings = json.loads((mini / ADAPTER / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == BASE
    assert settings["target_modules"] == sorted(settings["target_modules"])
    assert sum(".lora_A." in name for name in factors) == 8
    assert all(factor.abs().max() > 0 for name, factor in factors.items() if ".lora_B." in name)


def test_the_payload_would_act_and_never_has(mini):
    """Read as opcodes, not run: it opens the marker for writing; nothing that made the family did so."""
    path = mini / "h-lindqvist/tiny-roberta-with-payload/pytorch_model.bin"
    with zipfile.ZipFile(path) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("data.pkl")]
        operations = [(code.name, argument) for code, argument, _ in pickletools.genops(archive.read(name))]
    assert ("GLOBAL", "io open") in operations
    assert ("BINUNICODE", MARKER) in operations
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    assert not [found for folder in (ROOT, mini, Path.cwd()) for found in folder.glob(f"**/{MARKER}")]


def test_a_header_claims_an_impossible_length(mini):
    head = (mini / "okonkwo-nlp/tiny-roberta-big-header/model.safetensors").read_bytes()[:8]
    assert int.from_bytes(head, "little") == 2**60


# ---------------------------------------------------------------- made once, and again


def test_a_second_call_starts_nothing(mini, monkeypatch):
    monkeypatch.setattr(package.subprocess, "run", None)
    assert make_family(mini, "mini") == mini


def test_an_interrupted_family_goes_on_where_it_was_and_comes_out_the_same(mini):
    """Three repositories are lost in three ways; only they are made again, byte by byte as before."""
    commits = {model: described(mini, model)["sha"] for model in models_of(mini)}
    record = json.loads((mini / "family.json").read_text())
    (mini / "family.json").rename(mini / "family.started.json")
    (mini / f"{LINES}.repo.json").unlink()
    (mini / LINES / "model.safetensors").write_bytes(b"half of")
    (mini / f"{ADAPTER}.repo.json").unlink()
    lost = "nightly-builds/tiny-roberta-mirror"
    (mini / f"{lost}.repo.json").unlink()
    times = {model: (mini / f"{model}.repo.json").stat().st_mtime_ns for model in models_of(mini)}
    family_of(mini, "mini")  # the command that make_family runs
    assert {model: described(mini, model)["sha"] for model in models_of(mini)} == commits
    assert all((mini / f"{model}.repo.json").stat().st_mtime_ns == then for model, then in times.items())
    again = json.loads((mini / "family.json").read_text())
    assert again["measured"] == record["measured"]


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path, capfd):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RuntimeError, match="could not be made"):
        make_family(tmp_path, "mini")
    assert "holds no family" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_another_plan_clears_only_what_the_family_owns(tmp_path):
    from scripts.family.family import claim_folder

    plan = load_plan("mini")
    (tmp_path / "quarry-labs").mkdir()
    (tmp_path / "notes").mkdir()
    old = {"fingerprint": "other", "owners": ["quarry-labs", "../precious"]}
    store.write_json(tmp_path / "family.json", old)
    precious = tmp_path.parent / "precious"
    precious.mkdir(exist_ok=True)
    claim_folder(tmp_path, plan)
    assert not (tmp_path / "quarry-labs").exists()
    assert precious.is_dir()
    assert (tmp_path / "notes").is_dir()
    assert not (tmp_path / "family.json").exists()
