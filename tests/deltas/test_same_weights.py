"""Equal weights give equal vectors, in every format, upload and edition of the repository."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
import torch

from indexer.atlas import AtlasFolder
from indexer.builds.plan import plan
from indexer.listing.listing import ListedModel
from indexer.names import ModelRef
from indexer.records.difference import difference_of
from indexer.records.identity import SPECTRA_FORM, SVD_METHOD, Spec, Unit
from indexer.records.record import Record
from indexer.records.store import RecordStore
from tests.deltas import made


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_twins_stored_differently_have_the_same_vectors_where_spectra_are_flat(tmp_path):
    weights = made.weights()
    base = made.base_of(tmp_path, weights)
    tuned = made.changed(weights, 1e-3)
    records = {
        name: made.record_of(save(tmp_path / name, tuned), base, f"{name}/model", name[0] * 40)
        for name, save in made.SAVED.items()
    }
    first = records["safetensors"]
    assert max(delta.energy for delta in first.deltas) < 0.4  # nothing stands out: a start decides what is found
    for name, other in records.items():
        assert difference_of(first, other) < 1e-6, name
        for here, there in zip(first.deltas, other.deltas, strict=True):
            np.testing.assert_array_equal(here.s, there.s, err_msg=name)
        np.testing.assert_array_equal(first.vectors["input.2"], other.vectors["input.2"], err_msg=name)


def test_an_edited_card_changes_no_vector_and_matrices_differ_in_their_start(tmp_path):
    weights = made.weights()
    base = made.base_of(tmp_path, weights)
    folder = made.save(tmp_path / "tuned", made.changed(weights, 1e-3))
    before, after = (made.record_of(folder, base, "ann/model", commit * 40) for commit in "cd")
    assert before.identity.digest != after.identity.digest
    np.testing.assert_array_equal(before.vectors["input.2"], after.vectors["input.2"])


def listed(commit: str) -> ListedModel:
    now = datetime.now(UTC)
    return ListedModel("ann/tuned", {"id": "ann/tuned", "sha": commit}, "finetune", "tag", made.BASE, now, now, False)


def unit_of(spec: Spec) -> Unit:
    return Unit(ModelRef("ann/tuned"), "c" * 40, made.BASE, made.BASE_COMMIT, "finetune", spec)


@pytest.mark.parametrize("asked", [False, SPECTRA_FORM], ids=["plain", "spectra"])
def test_a_record_of_the_earlier_method_stands_and_nothing_is_read_again(tmp_path, asked):
    store = RecordStore(AtlasFolder(tmp_path / "atlas"))
    earlier = unit_of(Spec(svd="block-krylov-1", spectra=SPECTRA_FORM)).identity
    store.write(Record(earlier, ()))
    template = unit_of(Spec(svd=SVD_METHOD, spectra=asked))
    one = listed("c" * 40)
    (planned,) = plan([one], [one], store, template, retry_failed=False)
    assert planned.unit is None
    assert planned.entry.record_key == earlier.digest
    assert planned.is_unchanged
    other = listed("d" * 40)
    (planned,) = plan([other], [other], store, template, retry_failed=False)
    assert planned.unit is not None
    assert planned.unit.spec.svd == SVD_METHOD
