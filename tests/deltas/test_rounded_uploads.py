"""Uploads of one model in several dtypes are one model; runs that differ in anything else are not."""

from __future__ import annotations

import functools
import itertools
import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file

from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.base import store_base
from indexer.errors import Skipped
from indexer.names import DeltaKey
from indexer.records.difference import ALIKE, difference_of, norms_fit, signature_of, signatures_from
from indexer.records.representations.registry import REPRESENTATIONS
from indexer.records.weight_sample import agree, sampled_positions
from indexer.sources.registry import ModelRef
from tests.conftest import BASE
from tests.deltas import made
from tests.halves import a_few
from tests.tiny_hub import add_model, indexed

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
UPLOADS = {
    "original": (), "bf16": (BF16,), "fp16": (FP16,), "bf16 as fp32": (BF16, FP32), "fp16 as fp32": (FP16, FP32),
    "fp16 then bf16": (FP16, BF16), "bf16 then fp16": (BF16, FP16),
}  # fmt: skip
LIMIT = 1e-3


def similarity(first_record, second_record) -> float:
    first, second = signatures_from(
        [signature_of(record.vectors[REPRESENTATIONS["input"].tag]) for record in (first_record, second_record)]
    )
    return float(first @ second)


def is_one(first_record, second_record) -> bool:
    return similarity(first_record, second_record) >= ALIKE and difference_of(first_record, second_record) <= LIMIT


def uploads(folder, base, weights):
    return {
        name: made.record_of(made.save(folder / name, made.cast(weights, *chain)), base)
        for name, chain in UPLOADS.items()
    }


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The weights of a base, its matrices, and ``uploads_of(size)``: records of one change of that size in every form."""
    folder, weights = tmp_path_factory.mktemp("planted"), made.weights()
    base = made.base_of(folder, weights)

    @functools.cache  # several tests ask for the same sizes
    def uploads_of(size):
        return uploads(folder / str(size), base, made.changed(weights, size))

    return weights, base, uploads_of


@pytest.fixture(scope="module")
def real(family, tmp_path_factory):
    """Records of every full fine-tune of the family, by model and form: of every second model in all forms."""
    folder = tmp_path_factory.mktemp("real")
    checkpoint = open_checkpoint(ModelRef("base", folder=family / BASE))
    base = store_base(checkpoint, made.BASE, made.BASE_COMMIT, folder / "base.safetensors")
    records = {}
    for number, path in enumerate(sorted(family.glob("*/*/model.safetensors"))):
        model, name = path.parent.relative_to(family).as_posix(), path.parent.name
        try:
            tensors = {key: value for key, value in load_file(path).items() if value.is_floating_point()}
        except SafetensorError:  # one of the family's odd repositories, which are tested elsewhere
            continue
        for form in UPLOADS if number % 2 else ("original", "bf16 as fp32"):
            chain, copy = UPLOADS[form], folder / name / form.replace(" ", "-")
            copy.mkdir(parents=True)
            (copy / "config.json").write_bytes((path.parent / "config.json").read_bytes())
            made.save_file(made.cast(tensors, *chain), copy / "model.safetensors", metadata={"format": "pt"})
            try:
                records.setdefault(model, {})[form] = made.record_of(copy, base)
            except Skipped:
                records.pop(model, None)
                break
    return {model: forms for model, forms in records.items() if not forms["original"].is_copy}


@pytest.mark.slow
def test_every_real_model_is_one_with_each_of_its_casts_and_these_with_one_another(real):
    assert len(real) >= 20
    assert sum(set(forms) == set(UPLOADS) for forms in real.values()) >= 10
    missed = [
        (model, form, other_form)
        for model, forms in real.items()
        for form, other_form in itertools.combinations(forms, 2)
        if not is_one(forms[form], forms[other_form]) or not is_one(forms[other_form], forms[form])
    ]
    assert missed == []


@pytest.mark.slow
def test_no_real_model_is_one_with_another_in_whatever_form(real):
    merged = [
        (model, other_model)
        for (model, forms), (other_model, other_forms) in itertools.combinations(real.items(), 2)
        for form, other_form in itertools.product(forms, other_forms)
        if is_one(forms[form], other_forms[other_form])
    ]
    copies = {pair for pair in merged if difference_of(real[pair[0]]["original"], real[pair[1]]["original"]) < 1e-6}
    assert set(merged) == copies


@pytest.mark.slow
@pytest.mark.parametrize("learnt", [3e-5, 1e-4, 1e-3], ids=["below rounding", "like rounding", "above rounding"])
@pytest.mark.parametrize("step", a_few([1e-6, 1e-5, 1e-4], {1e-5}))
def test_a_step_more_is_another_model_in_whatever_form(planted, tmp_path, learnt, step):
    weights, base, uploads_of = planted
    tuned = made.changed(weights, learnt)  # the flattest spectrum: factors carry no information here
    further = {
        name: tensor + step * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(5)).sign()
        for name, tensor in tuned.items()
    }
    first, second = uploads_of(learnt), uploads(tmp_path, base, further)
    for form, other_form in itertools.combinations(first, 2):
        assert difference_of(first[form], first[other_form]) <= LIMIT, (form, other_form)
    is_within_limit = difference_of(first["original"], second["original"]) <= LIMIT  # a thousandth of what was learnt
    assert is_within_limit == (step < 2e-2 * learnt)
    for form, other_form in itertools.product(UPLOADS, repeat=2):
        assert difference_of(first[form], second[other_form]) > LIMIT or is_within_limit, (form, other_form)
        assert not agree(
            first[form].sample, first[form].precision, second[other_form].sample, second[other_form].precision
        )


@pytest.mark.slow
def test_where_hardly_a_weight_was_changed_the_sample_alone_says_nothing(tmp_path):
    weights = made.cast(made.weights(), BF16)
    base = made.base_of(tmp_path, weights)
    records = []
    for seed in (1, 2):
        tuned = {name: tensor.clone() for name, tensor in weights.items()}
        name = f"encoder.layer.{seed - 1}.attention.self.query.weight"
        tuned[name][seed, seed] += 1
        records.append(made.record_of(made.save(tmp_path / str(seed), tuned), base))
    first, second = records
    assert agree(first.sample, first.precision, second.sample, second.precision)
    assert difference_of(first, second) > 0.5


@pytest.mark.slow
def test_rounding_adds_less_to_a_norm_than_is_allowed_and_a_longer_training_more(planted):
    for size in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
        forms = planted[2](size)
        for form in forms.values():
            for original, rounded in zip(forms["original"].deltas, form.deltas, strict=True):
                assert norms_fit(original.norm, rounded.norm, original.base_norm)
    assert not norms_fit(0.02, 0.0206, 1.0)
    assert not norms_fit(0.0, 0.005, 1.0)


@pytest.mark.slow
def test_samples_lie_in_the_matrix_and_are_the_same_for_all_models():
    for shape, matrices, count in (((128, 256), 24, 171), ((3, 5), 1, 4096), ((4096, 11008), 224, 64)):
        rows, columns = sampled_positions(DeltaKey("", 0, "query"), shape, matrices, False)
        assert len(rows) == len(columns) == count
        assert 0 <= rows.min() <= rows.max() < shape[0]
        assert 0 <= columns.min() <= columns.max() < shape[1]
    first = sampled_positions(DeltaKey("", 0, "query"), (128, 256), 24, False)
    assert not np.array_equal(first, sampled_positions(DeltaKey("", 1, "query"), (128, 256), 24, False))


@pytest.mark.slow
@pytest.mark.parametrize("far", [0, 1, 2])
def test_half_a_unit_is_rounding_and_more_is_not(far):
    generator = torch.Generator().manual_seed(3)
    values = 0.04 * torch.randn(4096, generator=generator)
    rounded = values.to(BF16).float()
    bits = rounded.numpy().view(np.uint32).copy()
    bits[7] += far << 16  # so many units away
    assert agree(values.numpy(), "float32", bits.view(np.float32), "bfloat16") == (far == 0)
    assert agree(rounded.numpy(), "bfloat16", bits.view(np.float32), "bfloat16") == (far == 0)
    assert not agree(values.numpy(), "float32", rounded.numpy()[:-1], "bfloat16")
    assert not agree(values.numpy(), "float32", rounded.numpy(), "float32")


@pytest.mark.slow
def test_casts_by_other_authors_are_duplicates_in_either_order(tiny_store, tmp_path):
    store = tiny_store(2, tmp_path / "store")
    for number, (model, dtype) in enumerate((("ann/glue-0", BF16), ("bob/imdb-1", FP16), ("ann/squad-0", BF16))):
        tuned = transformers.RobertaForSequenceClassification.from_pretrained(store / model, dtype=dtype)
        saved = tuned if number < 2 else tuned.float()
        month = "01" if number == 2 else "12"  # the last cast was uploaded before the original
        created = f"202{3 if number == 2 else 5}-{month}-01T00:00:00.000Z"
        add_model(store, f"eve/again-{number}", saved, dataset=f"other/{number}", created=created)
    unpublished = tmp_path / "unpublished"
    transformers.RobertaForSequenceClassification.from_pretrained(store / "bob/squad-1", dtype=BF16).save_pretrained(
        unpublished
    )
    with indexed(store) as shell:
        duplicates = shell("query", "sql", "SELECT model, first_upload FROM duplicates ORDER BY model", "--json")
        predicted = shell("query", "predict", str(unpublished), "--base", "org/tiny-base")
        shutil.rmtree(shell.folder / "atlas" / "records")
        without_records = shell("query", "predict", str(unpublished), "--base", "org/tiny-base")
    assert "bob/squad-1 has the same weights and names squad" in " ".join((predicted.out + predicted.err).split())
    assert without_records.code == 0, without_records.err
    assert duplicates.json == [
        {"model": "ann/squad-0", "first_upload": "eve/again-2"},
        {"model": "eve/again-0", "first_upload": "ann/glue-0"},
        {"model": "eve/again-1", "first_upload": "bob/imdb-1"},
    ]
