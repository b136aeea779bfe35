"""Which base a model was made from: full models by their weights, adapters by what they hold, and what is said of it."""

from __future__ import annotations

import json
import shutil
from contextlib import closing

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from indexer.atlas import AtlasFolder
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import store_base
from indexer.deltas.identification.identify import identify, identify_base, known_bases
from indexer.deltas.identification.names import StatedName, names_base
from indexer.errors import AtlasError
from indexer.sources.registry import ModelRef
from query import Atlas
from tests import checkpoints
from tests.atlas_builder import BASE
from tests.identify.conftest import BASES, GPT2, KIND, OTHER_KIND, TWIN, tuned

MODULE = "roberta.encoder.layer.{}.attention.self.query"


def answers(atlas, *models, **options):
    with Atlas(atlas) as opened:
        return list(opened.identify([str(model) for model in models], **options))


def lora(folder, base="elsewhere/unknown", layers=4, width=32, magnitudes=None, **more):
    rng = np.random.default_rng(4)
    factors = {
        MODULE.format(layer): (rng.normal(size=(4, width)), 0.01 * rng.normal(size=(width, 4)))
        for layer in range(layers)
    }
    checkpoints.save_lora(folder, base, factors, alpha=8, **more)
    if magnitudes is not None:
        tensors = load_file(folder / "adapter_model.safetensors")
        for layer in range(layers):
            tensors[f"base_model.model.{MODULE.format(layer)}.lora_magnitude_vector.weight"] = magnitudes(layer)
        save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize("base", list(BASES))
def test_a_fine_tune_is_of_the_base_whose_rows_it_has(atlas, weights, tmp_path, base):
    kind, _ = BASES[base]
    (candidate,) = answers(atlas, checkpoints.save(tmp_path / "model", kind, tuned(kind, weights[base])))
    assert (candidate.base, candidate.relation) == (base, "fine-tune")
    assert candidate.probability > 0.99
    assert "changed no more than training does" in candidate.evidence[0]


@pytest.mark.parametrize(
    "kind", [checkpoints.t5(4, 3, 32, 64), checkpoints.phi3(4, 4, 2, 8, 48)], ids=["two stacks", "fused rows"]
)
@pytest.mark.parametrize("is_sampled", [False, True])
def test_other_architectures_and_bases_of_which_a_sample_is_kept(tmp_path, kind, is_sampled):
    base = kind.random(1)
    folder = checkpoints.save(tmp_path / "base", kind, base)
    with closing(open_checkpoint(ModelRef(str(folder), folder=folder))) as checkpoint:
        base_folder = AtlasFolder(tmp_path / "atlas").base("org/base", "c" * 40)
        store_base(checkpoint, "org/base", "c" * 40, base_folder, is_sampled=is_sampled)
    bases = known_bases(AtlasFolder(tmp_path / "atlas"))
    own = checkpoints.save(tmp_path / "own", kind, tuned(kind, base))
    other = checkpoints.save(tmp_path / "other", kind, kind.random(2))
    assert identify_base(ModelRef(str(own), folder=own), bases) == "org/base"
    assert identify_base(ModelRef(str(other), folder=other), bases) is None


def test_of_bases_that_are_made_from_each_other_the_nearest_counts(tmp_path):
    first = KIND.random(1)
    second = tuned(KIND, first, 0.004, seed=11)
    for name, made in (("org/first", first), ("org/second", second)):
        folder = checkpoints.save(tmp_path / name, KIND, made)
        with closing(open_checkpoint(ModelRef(str(folder), folder=folder))) as checkpoint:
            store_base(checkpoint, name, "c" * 40, AtlasFolder(tmp_path / "atlas").base(name, "c" * 40))
    bases = known_bases(AtlasFolder(tmp_path / "atlas"))
    for name, made in (("org/first", first), ("org/second", second)):
        model = checkpoints.save(tmp_path / f"of-{name[4:]}", KIND, tuned(KIND, made, 0.002, seed=12))
        identification = identify(ModelRef(str(model), folder=model), bases)
        assert identification.base == name
        assert "which it is like too" in identification.candidates[0].evidence[-1]


def test_broken_files_are_one_error_each(atlas, tmp_path):
    good = checkpoints.save(tmp_path / "good", KIND, KIND.random(1))
    whole = (good / "model.safetensors").read_bytes()
    nan = checkpoints.save(
        tmp_path / "nan", KIND, {key: candidate * np.nan for key, candidate in KIND.random(1).items()}
    )
    broken = [nan]
    for name, content in (
        ("cut", whole[:5000]),
        ("empty", b""),
        ("long header", b"\xff" * 64),
        ("text", b"hello" * 99),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_bytes((good / "config.json").read_bytes())
        (folder / "model.safetensors").write_bytes(content)
        broken.append(folder)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "model.safetensors").write_bytes(whole)
    (tmp_path / "odd" / "config.json").write_text('{"model_type": ["x"], "_name_or_path": {"a": 1}}')
    candidates = answers(atlas, *broken, tmp_path / "odd", good)
    assert all(candidate.error and candidate.base is None for candidate in candidates[: len(broken)])
    assert candidates[-1].base == BASE


def test_the_base_itself_and_its_upload_in_another_dtype(atlas, weights, tmp_path):
    copy = checkpoints.save(tmp_path / "copy", KIND, weights[BASE])
    half = checkpoints.save(
        tmp_path / "half", KIND, {key: matrix.astype(np.float16) for key, matrix in weights[BASE].items()}
    )
    candidates = answers(atlas, copy, half)
    assert [(candidate.base, candidate.relation) for candidate in candidates] == [(BASE, "the base itself")] * 2
    assert "rounded" in candidates[1].evidence[0]


def test_an_unrelated_model_is_of_none_though_its_card_names_a_base(atlas, tmp_path):
    model = checkpoints.save(tmp_path / "model", KIND, KIND.random(9))
    (model / "README.md").write_text(f"---\nbase_model: {TWIN}\n---\n")
    (candidate,) = answers(atlas, model)
    assert (candidate.base, candidate.relation) == (None, "none")
    assert candidate.probability > 0.99
    assert f"named by its card: {TWIN}, but its weights are not made from it" in candidate.evidence


def test_one_file_without_a_configuration_is_enough(atlas, weights, tmp_path):
    model = checkpoints.save(tmp_path / "model", OTHER_KIND, tuned(OTHER_KIND, weights[GPT2]))
    file = tmp_path / "some file (v2).safetensors"
    shutil.copy(model / "model.safetensors", file)
    (tmp_path / "another.safetensors").write_bytes(b"broken")
    (candidate,) = answers(atlas, file)
    assert (candidate.base, candidate.relation) == (GPT2, "fine-tune")
    (model / "config.json").unlink()
    (candidate,) = answers(atlas, model / "model.safetensors")
    assert (candidate.base, candidate.relation) == (GPT2, "fine-tune")


def test_neurons_in_another_order_are_a_rearranged_base(atlas, weights, tmp_path):
    rng = np.random.default_rng(3)
    changed = dict(tuned(KIND, weights[TWIN], 0.0005))
    for layer in range(4):
        order = rng.permutation(64)
        first, second = (f"encoder.layer.{layer}.{name}.weight" for name in ("intermediate.dense", "output.dense"))
        changed[first], changed[second] = changed[first][order], changed[second][:, order]
    (candidate,) = answers(atlas, checkpoints.save(tmp_path / "model", KIND, changed))
    assert (candidate.base, candidate.relation) == (TWIN, "rearranged")
    assert "neurons or heads in another order" in candidate.evidence[0]


def test_layers_of_a_base_once_more_are_said(atlas, weights, tmp_path):
    deeper = checkpoints.roberta(6, 32, 64)
    order = [0, 1, 2, 1, 2, 3]
    made = {
        stored.tensor: KIND.places[stack, order[layer], family].get(weights[BASE])
        for (stack, layer, family), stored in deeper.places.items()
    }
    (candidate,) = answers(atlas, checkpoints.save(tmp_path / "model", deeper, made))
    assert (candidate.base, candidate.relation) == (BASE, "rearranged")
    assert "6 layers, the base has 4" in candidate.evidence


def test_an_adapter_is_of_the_base_that_it_names_if_the_shapes_fit(atlas, tmp_path):
    candidates = answers(atlas, lora(tmp_path / "named", "old-twin"), lora(tmp_path / "wide", TWIN, width=48))
    assert (candidates[0].base, candidates[0].relation) == (TWIN, "adapter")
    assert 0.95 < candidates[0].probability < 0.99
    wide = [candidate for candidate in candidates if candidate.model.endswith("wide")]
    assert (wide[0].base, wide[0].relation) == (None, "none")
    assert wide[0].evidence[0].startswith(f"named by adapter_config.json: {TWIN}, but its ")


def test_an_adapter_with_nothing_but_shapes_shares_its_probability(atlas, tmp_path):
    named = lora(tmp_path / "named", "/home/someone/private/thing")
    shared = answers(atlas, named)
    assert {one.base: one.probability for one in shared} == {BASE: 0.5, TWIN: 0.5}
    assert all("by shapes alone" in one.evidence[-1] for one in shared)
    assert "private" not in json.dumps([one.evidence for one in shared])
    other = answers(atlas, lora(tmp_path / "other", "somebody/another-model"))
    assert other[0].base is None
    assert (
        "adapter_config.json names somebody/another-model, which is none of the bases known here" in other[0].evidence
    )


def test_a_dora_keeps_the_lengths_of_the_rows_of_its_base(atlas, weights, tmp_path):
    def lengths(of, noise):
        rng = np.random.default_rng(1)

        def of_layer(layer):
            rows = np.linalg.norm(KIND.places["", layer, "query"].get(of), axis=1)
            return (rows * (1 + noise * rng.normal(size=len(rows)))).astype(np.float32)

        return of_layer

    own = lora(tmp_path / "own", "lost", magnitudes=lengths(weights[TWIN], 0.01), use_dora=True)
    (candidate,) = answers(atlas, own)
    assert (candidate.base, candidate.relation) == (TWIN, "adapter")
    assert any("lengths of the base's rows in its DoRA" in reason for reason in candidate.evidence)
    other = lora(tmp_path / "other", "lost", magnitudes=lengths(KIND.random(9), 0.01), use_dora=True)
    assert answers(atlas, other)[0].base is None


def test_a_pissa_spans_leading_directions_of_its_base(atlas, weights, tmp_path):
    # The numbers of a trained network are not white: some directions lead, and only those of the base are in A.
    rng = np.random.default_rng(8)
    factors = {}
    for layer in range(4):
        rows = np.linalg.svd(KIND.places["", layer, "query"].get(weights[TWIN]))[2][:4]
        factors[MODULE.format(layer)] = (rows + 0.02 * rng.normal(size=rows.shape), 0.01 * rng.normal(size=(32, 4)))
    model = checkpoints.save_lora(tmp_path / "pissa", "lost", factors, alpha=8)
    (candidate, *_) = answers(atlas, model)
    assert candidate.base == TWIN
    assert any("leading directions" in reason for reason in candidate.evidence)


def test_the_metadata_of_a_file_name_an_image_model():
    model = ModelRef("a/b")
    sdxl, flux = ("stabilityai/stable-diffusion-xl-base-1.0",), ("black-forest-labs/FLUX.1-dev",)
    version = StatedName("ss_base_model_version in its file", "sdxl_base_v1-0")
    assert [names_base(version, model, ids) for ids in (sdxl, flux)] == ["yes", "no"]
    architecture = StatedName("modelspec.architecture in its file", "flux-1-dev/lora")
    assert [names_base(architecture, model, ids) for ids in (sdxl, flux)] == ["no", "yes"]
    copied = StatedName("adapter_config.json", "unsloth/base-unsloth-bnb-4bit")
    assert [names_base(copied, model, ids) for ids in (("org/base",), ("org/other",))] == ["yes", "no"]
    unknown = StatedName("ss_base_model_version in its file", "my_own_thing")
    assert [names_base(unknown, model, ids) for ids in (sdxl, flux)] == ["unsure", "unsure"]


# ---- the command


def test_the_exit_status_says_whether_a_model_is_of_a_base_that_is_allowed(atlas, weights, tmp_path, run):
    own = checkpoints.save(tmp_path / "own", KIND, tuned(KIND, weights[BASE]))
    other = checkpoints.save(tmp_path / "other", KIND, tuned(KIND, weights[TWIN]))
    unclear = lora(tmp_path / "unclear", "lost")
    require = ("--require-base", BASE, "--atlas", atlas)
    assert run("query", "identify", own, *require)[0] == 0
    status, _, err = run("query", "identify", own, other, *require)
    assert status == 1
    assert err == f"{other} is not made from {BASE}\n"
    assert run("query", "identify", other, *require, "--require-base", "twin")[0] == 0
    status, _, err = run("query", "identify", own, unclear, *require)
    assert status == 2
    assert err == f"it cannot be told whether {unclear} is made from {BASE}\n"
    (tmp_path / "empty").mkdir()
    status, out, err = run("query", "identify", tmp_path / "empty", *require, "--json")
    assert status == 2
    assert json.loads(out)[0]["error"].startswith(f"{tmp_path}/empty") or "no weights" in json.loads(out)[0]["error"]
    assert run("query", "identify", own, other, unclear, *require)[0] == 1
    assert run("query", "identify", own, "--require-base", "no/such", "--atlas", atlas)[0] == 1


def test_json_is_a_list_of_candidates(atlas, weights, tmp_path, run, monkeypatch):
    own = checkpoints.save(tmp_path / "own", KIND, tuned(KIND, weights[BASE]))
    status, out, _ = run("query", "identify", own, "--atlas", atlas, "--json")
    (row,) = json.loads(out)
    assert status == 0
    assert set(row) == {"model", "base", "probability", "evidence", "relation"}
    monkeypatch.setattr(
        "indexer.console.stdin.read_stdin", lambda most: f"{own}\n# a comment\n{tmp_path}/none\n".encode()
    )
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    status, out, err = run("query", "identify", "-", "--atlas", atlas, "--json")
    rows = json.loads(out)
    assert status == 1
    assert [row["base"] for row in rows] == [BASE, None]
    assert "could not be read" in err
    assert rows[1]["error"]


def test_an_indexed_model_is_answered_from_its_record(atlas, run):
    status, out, _ = run("query", "identify", "ann/one", "--atlas", atlas, "--json")
    (row,) = json.loads(out)
    assert status == 0
    assert (row["base"], row["relation"]) == (BASE, "fine-tune")
    assert "0.9900" in row["evidence"][0]


def test_few_bytes_are_read_of_a_large_model(atlas, weights, tmp_path):
    kind = checkpoints.roberta(4, 32, 64)
    made = tuned(kind, weights[BASE]) | {"embeddings.word_embeddings.weight": np.zeros((200_000, 32), np.float32)}
    model = checkpoints.save(tmp_path / "model", kind, made)
    identification = identify(ModelRef(str(model), folder=model), known_bases(AtlasFolder(atlas)))
    assert identification.base == BASE
    assert identification.bytes_read < 200_000


def test_a_model_that_cannot_be_read_is_one_line(atlas, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with Atlas(atlas) as opened, pytest.raises(AtlasError, match=r"model\.gguf.*header"):
        opened.identify(tmp_path)


def test_without_the_matrices_of_a_base_it_cannot_be_told(atlas, weights, tmp_path, run):
    bare = tmp_path / "bare"
    shutil.copytree(atlas, bare)
    (gone,) = (bare / "bases").glob("org--base@*")
    gone.unlink()
    own = checkpoints.save(tmp_path / "own", KIND, tuned(KIND, weights[BASE]))
    assert run("query", "identify", own, "--atlas", bare, "--require-base", BASE)[0] == 2
    assert run("query", "identify", own, "--atlas", bare, "--require-base", TWIN)[0] == 1
    (own / "README.md").write_text(f"---\nbase_model: {BASE}\n---\n")
    (candidate, _) = answers(bare, own)
    assert candidate.base == BASE
    assert "its matrices are not in this atlas" in candidate.evidence[-1]
    assert run("query", "identify", own, "--atlas", bare, "--require-base", BASE)[0] == 2  # a card proves nothing
