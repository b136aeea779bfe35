"""A sampled record holds what NumPy finds in the same rows, for every architecture, form and dtype of a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from indexer.records.representations.registry import REPRESENTATIONS
from tests.sampling import made

KINDS = {"roberta": made.ROBERTA, "gpt2": made.GPT2, "gpt_neox": made.NEOX, "phi3": made.PHI3}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """By kind: the weights of the base, its file, and the weights of a fine-tune."""
    found = {}
    for name, kind in KINDS.items():
        weights = made.base_weights(kind)
        base = made.stored_base(tmp_path_factory.mktemp(name), kind, weights)
        found[name] = kind, weights, base, made.tuned_of(kind, weights, seed=2)
    return found


def check(record, kind, weights, tuned, *, full=False, more=False):
    """Every number of a record against the truth; stored factors are float16."""
    blocks = record.vectors[REPRESENTATIONS["input"].tag].reshape(len(record.deltas), -1)
    assert len(record.deltas) == len(kind.places)
    for delta, block in zip(record.deltas, blocks, strict=True):
        name = delta.key.stack, delta.key.layer, delta.key.family
        true = made.truth_of(kind, name, weights, tuned, full=full, more=more)
        said = str(delta.key)
        assert delta.lines == true.lines, said
        assert delta.norm == pytest.approx(true.norm, rel=1e-4), said
        assert delta.norm_error == pytest.approx(true.error, rel=1e-3), said
        np.testing.assert_allclose(delta.s, true.s, rtol=1e-3, atol=1e-6, err_msg=said)
        assert delta.inner == pytest.approx(true.inner, rel=1e-3, abs=1e-4 * true.norm), said
        np.testing.assert_allclose(block, made.sketch(true.kernel, said, len(block)), atol=2e-3, err_msg=said)


@pytest.mark.parametrize("name", KINDS)
def test_a_sample_is_that_of_the_rows_at_both_ends(bases, tmp_path, name):
    kind, weights, base, tuned = bases[name]
    record = made.record_of(made.save(tmp_path / "it", kind, tuned), base)
    assert record.is_sampled
    assert record.read == "sample"
    assert all(delta.u is None for delta in record.deltas if delta.lines is not None)
    check(record, kind, weights, tuned)


@pytest.mark.parametrize("name", ["roberta", "gpt2"])
def test_a_full_record_of_a_transposed_base_is_compared_on_the_same_coordinates(bases, tmp_path, name):
    kind, weights, base, _ = bases[name]
    exact = made.tuned_of(kind, weights, seed=3, noise=0.0)  # of rank 6: the leading triplets are all of it
    folder = made.save(tmp_path / "it", kind, exact)
    full, sample = made.record_of(folder, base, read="full"), made.record_of(folder, base)
    assert full.read == "full"
    check(full, kind, weights, exact, full=True)
    blocks = zip(
        *(one.vectors[REPRESENTATIONS["input"].tag].reshape(len(one.deltas), -1) for one in (full, sample)), strict=True
    )
    cosines = [float(one @ other) for one, other in blocks]
    # What a sample of a transposed matrix leaves out, a full read leaves out as well; of rows it is another estimate.
    assert all(cosine > 0.9999 for cosine in cosines) == (name == "gpt2")


@pytest.mark.parametrize("form", made.FORMS)
@pytest.mark.parametrize("prefix", ["", "roberta."])
def test_the_form_of_the_file_changes_nothing(bases, tmp_path, form, prefix):
    kind, weights, base, tuned = bases["roberta"]
    made.FORMS[form](tmp_path / "it", kind, made.prefixed(tuned, prefix))
    check(made.record_of(tmp_path / "it", base), kind, weights, tuned)


@pytest.mark.parametrize("form", ["zip", "legacy", "views"])
def test_nor_where_rows_are_taken_of_heads_or_of_coordinates(bases, tmp_path, form):
    for name in ("gpt_neox", "gpt2"):
        kind, weights, base, tuned = bases[name]
        check(made.record_of(made.FORMS[form](tmp_path / name, kind, tuned), base), kind, weights, tuned)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["roberta", "gpt2"])
def test_narrow_numbers_have_more_rows_and_wide_ones_as_many(bases, tmp_path, dtype, name):
    kind, weights, base, _ = bases[name]
    tuned = made.cast(made.tuned_of(kind, weights, seed=4, size=5e-3), dtype)
    record = made.record_of(made.save(tmp_path / "it", kind, tuned), base)
    check(record, kind, weights, tuned)
    rows = {delta.lines for delta in record.deltas}
    expected = {torch.float16: {128, 32}, torch.bfloat16: {128, 32}, torch.float64: {32, 16}}
    assert rows == ({64} if name == "gpt2" else expected[dtype])


def test_numbers_of_rows_that_were_not_read_change_nothing(bases, tmp_path):
    kind, _, base, tuned = bases["roberta"]
    other = {name: one.clone() for name, one in tuned.items()}
    for one in other.values():
        one[one.shape[0] // 2] = float("nan")
    here = made.record_of(made.save(tmp_path / "one", kind, tuned), base)
    there = made.record_of(made.save(tmp_path / "other", kind, other), base)
    np.testing.assert_array_equal(
        here.vectors[REPRESENTATIONS["input"].tag], there.vectors[REPRESENTATIONS["input"].tag]
    )
    assert here.norm == there.norm


@pytest.mark.parametrize("row", [0, -1, 31])
def test_a_number_that_was_read_and_is_none_is_refused(bases, tmp_path, row):
    from indexer.errors import Skipped

    kind, _, base, tuned = bases["roberta"]
    name = kind.places["", 1, "value"].tensor
    changed = {**tuned, name: tuned[name].clone()}
    changed[name][row, 7] = float("inf")
    with pytest.raises(Skipped, match=name) as refused:
        made.record_of(made.save(tmp_path / "it", kind, changed), base)
    assert refused.value.reason == "not_finite"
