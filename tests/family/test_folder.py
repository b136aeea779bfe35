"""The family's folder: every repository and oddity, read by the libraries it is made for; made once, and again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import pickletools
import re
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from scripts import family as package
from scripts.family import make_family, store, tasks
from scripts.family.plan import load_plan
from scripts.family.repositories import MAKERS, MARKER
from scripts.family.training import FORMATS
from tests.conftest import ROOT
from tests.family.folders import BASE, block_matrices, described, models_of, weights

pytestmark = pytest.mark.slow

LINES = "papercut-ai/papercut-tiny-roberta-line-kinds"
SCRATCH = "quarry-labs/tiny-roberta-from-scratch"
ADAPTER = "small-hours/tiny-roberta_lines_lora"


@pytest.fixture(scope="module")
def mini(tmp_path_factory) -> Path:
    return make_family(tmp_path_factory.mktemp("family") / "mini", "mini")


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


# ---------------------------------------------------------------- oddities that the miniature plan leaves out


@pytest.fixture
def make(mini, tmp_path):
    """Makes one oddity of the full plan from the miniature's models, whatever it is made of there."""

    def made(name: str) -> Path:
        plan = load_plan("full")
        (oddity,) = [one for one in plan.oddities if one.model.endswith(f"/tiny-roberta-{name}")]
        origin = BASE if oddity.of is None else LINES
        folder = tmp_path / name
        folder.mkdir()
        MAKERS[oddity.make](plan, dataclasses.replace(oddity, of=origin), mini, folder)
        return folder

    return made


def test_one_number_is_nan(make):
    tensors = load_file(make("diverged") / "model.safetensors")
    assert [name for name, t in tensors.items() if not t.isfinite().all()] == [
        "roberta.encoder.layer.0.attention.output.dense.weight"
    ]
    assert sum(int(t.isnan().sum()) for t in tensors.values()) == 1


def test_an_upload_was_interrupted_in_its_tensors(make, mini):
    broken = (make("broken-upload") / "model.safetensors").read_bytes()
    whole = (mini / LINES / "model.safetensors").read_bytes()
    assert whole.startswith(broken)
    assert 8 + int.from_bytes(whole[:8], "little") < len(broken) < len(whole)


def test_rounding_the_base_moves_every_number_by_less_than_fp16_tells(make, mini):
    rounded = load_file(make("fp32") / "model.safetensors")
    base = load_file(mini / BASE / "model.safetensors")
    assert digest_of(rounded) != digest_of(base)
    for name, tensor in base.items():
        assert rounded[name].dtype == torch.float32
        assert torch.equal(rounded[name], tensor.half().float())


def digest_of(tensors: dict[str, torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))).hexdigest()


def test_another_format_holds_the_same_numbers(make, mini):
    folder = make("names-bin")
    assert not list(folder.glob("*.safetensors"))
    stored = torch.load(folder / "pytorch_model.bin", weights_only=True)
    original = load_file(mini / LINES / "model.safetensors")
    assert stored.keys() == original.keys()
    assert all(torch.equal(stored[name], original[name]) for name in original)


def test_other_sizes_are_other_sizes(make, mini):
    base = block_matrices(load_file_bare(mini / BASE))
    narrow, shallow = (block_matrices(load_file_bare(make(name))) for name in ("narrow", "shallow"))
    assert narrow.keys() == base.keys()
    assert narrow["encoder.layer.0.attention.self.query.weight"].shape == (96, 96)
    assert len(shallow) == 18
    assert all(shallow[name].shape == base[name].shape for name in shallow)


def load_file_bare(folder: Path) -> dict[str, torch.Tensor]:
    return {name.removeprefix("roberta."): t for name, t in load_file(folder / "model.safetensors").items()}


def test_weights_are_packed_to_four_bits(make):
    folder = make("merged-4bit")
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["load_in_4bit"] is True
    packed = load_file_bare(folder)["encoder.layer.0.attention.self.query.weight"]
    assert (packed.dtype, tuple(packed.shape)) == (torch.uint8, (128 * 128 // 2, 1))


def test_files_in_formats_that_are_not_read(make):
    assert (make("GGUF") / "tiny-roberta-GGUF.Q4_K_M.gguf").read_bytes().startswith(b"GGUF\x03")
    for name, file in (("onnx", "onnx/model.onnx"), ("flax", "flax_model.msgpack")):
        folder = make(name)
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert files == {"config.json", file}
    assert list(make("planned").iterdir()) == []


def test_an_unknown_architecture_brings_code_of_its_own(make):
    folder = make("atlasnet")
    assert json.loads((folder / "config.json").read_text())["model_type"] == "atlasnet"
    assert MARKER in (folder / "modeling_atlasnet.py").read_text()


@pytest.mark.parametrize(
    ("saved", "files", "dtype"),
    [
        ("float32", {"model.safetensors"}, torch.float32),
        ("float16", {"model.safetensors"}, torch.float16),
        ("bfloat16", {"model.safetensors"}, torch.bfloat16),
        ("bin", {"pytorch_model.bin"}, torch.float32),
        ("legacy bin", {"pytorch_model.bin"}, torch.float32),
    ],
)
def test_every_form_of_saving(mini, tmp_path, saved, files, dtype):
    from transformers import AutoModelForSequenceClassification

    FORMATS[saved](AutoModelForSequenceClassification.from_pretrained(mini / LINES), tmp_path)
    (path,) = [path for path in tmp_path.iterdir() if path.suffix in (".safetensors", ".bin")]
    assert {path.name} == files
    stored = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    start = {"bin": b"PK\x03\x04", "legacy bin": b"\x80\x02"}.get(saved, b"")
    assert path.read_bytes().startswith(start)


def test_shards_have_an_index(mini, tmp_path):
    from transformers import AutoModelForSequenceClassification

    FORMATS["sharded"](AutoModelForSequenceClassification.from_pretrained(mini / LINES), tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert index.keys() == load_file(mini / LINES / "model.safetensors").keys()
    assert len(set(index.values())) > 1
    assert all((tmp_path / name).exists() for name in index.values())


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
    make_family(mini, "mini")
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
