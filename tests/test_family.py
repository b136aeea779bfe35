"""The family of real models: made whole, resumed, and true to what its cards and expected.json say.

Everything fast stands on the miniature plan, which is made once. What it takes training to show (that models
learnt, and that models of the same data lie together) is marked slow and stands on the small plan.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pickle
import pickletools
import re
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from indexer.errors import AtlasError
from scripts import family as package
from scripts.family import make_family, store, tasks, text
from scripts.family.finetune import FORMATS, freeze
from scripts.family.oddities import MAKERS, MARKER
from scripts.family.plan import FOLDER, SIZES, DataSet, Run, fingerprint, load_plan, read_entry
from scripts.family.pretrain import new_configuration

ROOT = Path(__file__).parents[1]
BASE = "atlas-demo/tiny-roberta"
LINES = "papercut-ai/papercut-tiny-roberta-line-kinds"
SCRATCH = "quarry-labs/tiny-roberta-from-scratch"
ADAPTER = "small-hours/tiny-roberta_lines_lora"
REASONS = {
    "unknown_architecture", "no_weights", "unreadable_format", "quantized", "gated", "disabled",
    "adapter_unsupported", "unsafe_pickle", "corrupt_file", "shape_mismatch", "layer_mismatch", "not_finite",
}  # fmt: skip


@pytest.fixture(scope="module")
def mini(tmp_path_factory) -> Path:
    return make_family(tmp_path_factory.mktemp("family") / "mini", "mini")


def described(root: Path, model: str) -> dict:
    return json.loads((root / f"{model}.repo.json").read_text())


def models_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)).removesuffix(".repo.json") for path in root.glob("*/*.repo.json"))


def weights(root: Path, model: str) -> dict[str, torch.Tensor]:
    """All tensors of a repository by their bare names, in float32, whatever form they are stored in."""
    folder = root / model
    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    if (folder / "pytorch_model.bin").exists():
        found |= torch.load(folder / "pytorch_model.bin", weights_only=True)
    return {name.removeprefix("base_model.model.").removeprefix("roberta."): found[name].float() for name in found}


def block_matrices(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t for name, t in tensors.items() if name.startswith("encoder.layer") and t.dim() == 2}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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


# ---------------------------------------------------------------- the text


def module(source: str) -> text.Module:
    return text.Module("somewhere", source, __import__("ast").parse(source))


def test_reading_imports_nothing():
    program = (
        "import sys; from scripts.family import text; before = set(sys.modules);"
        "found = text.collect({('docstrings', 'sklearn'), ('messages', 'torch')}, 20);"
        "assert all(found.values()); assert not {'sklearn', 'torch'} & (set(sys.modules) - before)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_paths_are_sorted_capped_and_without_tests():
    paths = text.module_paths("numpy", 20)
    assert len(paths) == 20
    assert paths == sorted(paths)
    assert not any("tests" in path.parts for path in paths)
    with pytest.raises(AtlasError, match="no_such_package"):
        text.module_paths("no_such_package", 5)


def test_comments_are_told_from_code_and_from_strings():
    source = '''
value = function_of(argument, another_argument)
# a comment that is long enough to be kept
text = """
# inside a string and therefore no comment
"""
if value == another_value_of_this_kind:
    # an indented comment that is long enough too
    return_nothing_at_all(from_this_function)
'''
    found = {excerpt.text: excerpt.facts["kind"] for excerpt in text.read_lines(module(source))}
    assert found["a comment that is long enough to be kept"] == "comment"
    assert found["an indented comment that is long enough too"] == "comment"
    assert found["value = function_of(argument, another_argument)"] == "assignment"
    assert found["if value == another_value_of_this_kind:"] == "condition"
    assert found["return_nothing_at_all(from_this_function)"] == "call"
    assert "inside a string and therefore no comment" not in found


def test_messages_know_the_exception_that_said_them():
    source = """
def check(x):
    try:
        if x:
            raise ValueError(f"x must be {x!r} and nothing else")
    except KeyError:
        raise TypeError("said in a handler")
    raise module.Other("not a plain name")
"""
    found = [(excerpt.text, excerpt.facts["exception"]) for excerpt in text.read_messages(module(source))]
    assert sorted(found) == [
        ("said in a handler", "TypeError"),
        ("x must be {} and nothing else", "ValueError"),
    ]


def test_sections_lose_their_title():
    source = '''
def mean(a):
    """Average.

    Parameters
    ----------
    a : array_like
        Numbers.

    Returns
    -------
    m : float
        Their average.
    """
'''
    found = {excerpt.facts["section"]: excerpt.text for excerpt in text.read_sections(module(source))}
    assert found == {"Parameters": "a : array_like Numbers.", "Returns": "m : float Their average."}


def test_every_word_of_code_has_its_kind():
    (found,) = text.read_code_words(module("total = f'{count} of' + 'them all' if count > 12 else None"))
    assert dict(found.pieces)["if"] == "keyword"
    assert dict(found.pieces)["None"] == "keyword"
    assert dict(found.pieces)["12"] == "number"
    assert dict(found.pieces)["'them all'"] == "string"
    assert dict(found.pieces)["total"] == "name"
    assert dict(found.pieces)[">"] == "operator"


def test_a_text_that_stands_in_two_places_is_evidence_for_neither():
    twice = [text.Excerpt("same", {"package": name, "kind": "function"}) for name in ("numpy", "scipy")]
    (kept,) = tasks.without_conflicts(twice)
    assert kept.facts == {"kind": "function"}


def test_labels_are_balanced_and_what_is_held_out_is_not_trained_on(tmp_path):
    plan = load_plan("mini")
    excerpts = [text.Excerpt(f"text number {i} of kind {i % 3}", {"kind": "abc"[i % 3]}) for i in range(300)]
    excerpts += [text.Excerpt(f"one more text {i} of kind a", {"kind": "a"}) for i in range(300)]
    tokenizer = tasks.train_tokenizer([excerpt.text for excerpt in excerpts], plan)
    dataset = DataSet("x/y", "", "kind", ("a", "b", "c"), "")
    made = tasks.label_texts(dataset, excerpts, tokenizer)
    assert Counter(example.label for example in made.held_out) == {0: 20, 1: 20, 2: 20}
    counts = Counter(example.label for example in made.train)
    assert counts == {0: 180, 1: 80, 2: 80}
    assert not {tuple(e.ids) for e in made.train} & {tuple(e.ids) for e in made.held_out}
    made.save(tmp_path)
    assert tasks.LabelledTexts.load(tmp_path, "x/y") == made
    with pytest.raises(AtlasError, match="Only 0 texts for the label 'd'"):
        tasks.label_texts(DataSet("x/y", "", "kind", ("a", "d"), ""), excerpts, tokenizer)


def test_special_tokens_in_a_text_are_text():
    plan = load_plan("mini")
    tokenizer = tasks.train_tokenizer(["ends with </s> or <pad> and <mask>"] * 3, plan)
    ids = tokenizer.encode("ends with </s> or <pad> and <mask>").ids
    assert (ids[0], ids[-1]) == (tasks.START, tasks.END)
    assert not {tasks.START, tasks.PADDING, tasks.END, tasks.MASK} & set(ids[1:-1])


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


def test_the_listing_says_what_the_hub_would(mini):
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
    """Texts collected anew, one at a time without padding or batches, through transformers alone."""
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


def test_the_weights_are_what_expected_says_of_them(mini):
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


def test_the_header_lies(mini):
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


def test_one_number_is_not_one(make):
    tensors = load_file(make("diverged") / "model.safetensors")
    assert [name for name, t in tensors.items() if not t.isfinite().all()] == [
        "roberta.encoder.layer.0.attention.output.dense.weight"
    ]
    assert sum(int(t.isnan().sum()) for t in tensors.values()) == 1


def test_an_upload_broke_off_in_its_tensors(make, mini):
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


def test_four_bits_a_number(make):
    folder = make("merged-4bit")
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["load_in_4bit"] is True
    packed = load_file_bare(folder)["encoder.layer.0.attention.self.query.weight"]
    assert (packed.dtype, tuple(packed.shape)) == (torch.uint8, (128 * 128 // 2, 1))


def test_files_that_no_one_here_reads(make):
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
    started = time.monotonic()
    assert make_family(mini, "mini") == mini
    assert time.monotonic() - started < 1


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


# ---------------------------------------------------------------- slow: what it takes training to show


@pytest.mark.slow
def test_everything_learnt(family):
    measured = json.loads((family / "family.json").read_text())["measured"]
    for model, result in measured.items():
        assert result["train_loss_last"] < 0.97 * result["train_loss_first"], model
        if "eval_accuracy" in result:
            assert result["eval_accuracy"] > result["eval_majority"] + 0.05, model


@pytest.mark.slow
def test_models_of_the_same_data_lie_together(family):
    """The input representation by brute force: cosines of sum sigma_i v_i v_i^T, averaged over matrices."""
    expected = json.loads((family / "expected.json").read_text())
    base = block_matrices(weights(family, BASE))
    vectors, labels = [], []
    for model, entry in expected.items():
        datasets = [name for name in described(family, model)["card_data"].get("datasets", []) if known(name)]
        if (
            entry["outcome"] != "indexed"
            or entry["flag"]
            or not datasets
            or (family / model / "adapter_config.json").exists()
        ):
            continue
        tuned = weights(family, model)
        forms = []
        for name in sorted(base):
            _, s, vt = torch.linalg.svd(tuned[name] - base[name], full_matrices=False)
            form = (vt[:8].T * s[:8]) @ vt[:8]
            forms.append((form / form.norm().clamp_min(1e-12)).flatten())
        vectors.append(torch.cat(forms))
        labels.append(datasets[0])
    table = torch.nn.functional.normalize(torch.stack(vectors))
    similarity = (table @ table.T).fill_diagonal_(-1)
    shares, chances = [], []
    for row, label in zip(similarity, labels, strict=True):
        count = labels.count(label) - 1
        shares.append(sum(labels[other] == label for other in row.topk(count).indices) / count)
        chances.append(count / (len(labels) - 1))
    assert sum(shares) / len(shares) > 0.7 > 2 * sum(chances) / len(chances)


def known(name: object) -> bool:
    """Whether an entry of a card's list, which can be anything, is one of the family's data sets."""
    return isinstance(name, str) and name in load_plan("full").datasets


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["bert", "gpt2", "t5"])
def test_other_architectures_are_only_data(tmp_path, architecture):
    root = make_family(tmp_path / architecture, "mini", architecture)
    assert json.loads((root / "family.json").read_text())["base"] == f"atlas-demo/tiny-{architecture}"
    assert len(models_of(root)) == len(load_plan("mini", architecture).repositories) + 1


@pytest.mark.slow
def test_ctrl_c_stops_it_and_the_same_command_goes_on(tmp_path):
    command = [sys.executable, "-m", "scripts.family", "--out", str(tmp_path / "out"), "--size", "mini"]
    running = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    waited = time.monotonic()
    while not list((tmp_path).glob("out/*/*.repo.json")) and time.monotonic() - waited < 120:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "family.json").exists()
    make_family(tmp_path / "out", "mini")
    assert len(models_of(tmp_path / "out")) == len(load_plan("mini").repositories) + 1
