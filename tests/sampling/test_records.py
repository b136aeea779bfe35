"""Records of samples on disk, and their identities."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from indexer.builds.plan import existing_record
from indexer.errors import AtlasError
from indexer.records.identity import Identity, Spec
from indexer.records.record import read_record, write_record
from indexer.records.row_plan import coordinates, lines_of, lines_to_read, stripes
from indexer.records.store import RecordHeader, RecordStore, current_record
from indexer.records.weight_sample import sampled_positions
from tests.sampling import made
from tests.test_record import make_record


def identity(**changes) -> Identity:
    spec = Spec(**changes.pop("spec", {}))
    return Identity("me/model", "c" * 40, "org/base", "b" * 40, "finetune", spec, **changes)


def test_a_full_record_and_a_sample_have_different_digests():
    sample = identity(spec={"sample": True})
    assert sample.digest != identity().digest
    assert Identity.from_row(sample.as_row()) == sample
    assert Identity.from_row(identity().as_row()) == identity()


def sampled_record():
    record = make_record()
    first, *others = record.deltas
    spec = dataclasses.replace(record.identity.spec, sample=True)
    return dataclasses.replace(
        record,
        identity=dataclasses.replace(record.identity, spec=spec),
        deltas=(dataclasses.replace(first, u=None, lines=3, norm_error=0.125), *others),
        sample=np.arange(5, dtype=np.float32),
    )


def test_a_sampled_record_comes_back_as_it_was(tmp_path):
    record = sampled_record()
    write_record(record, tmp_path / "r.safetensors")
    back = read_record(tmp_path / "r.safetensors")
    assert back.identity == record.identity
    assert [(one.lines, one.norm_error, one.u is None) for one in back.deltas] == [
        (3, 0.125, True),
        *[(None, 0.0, False)] * (len(record.deltas) - 1),
    ]
    assert back.is_sampled
    assert back.read == "sample"
    assert back.norm_error == pytest.approx(record.deltas[0].norm * 0.125 / record.norm)
    np.testing.assert_array_equal(back.sample, record.sample)


def test_a_record_that_was_altered_is_refused(tmp_path):
    path = tmp_path / "r.safetensors"
    write_record(sampled_record(), path)
    raw = path.read_bytes()
    altered = raw.replace(b'\\"lines\\":3', b'\\"lines\\":4')
    assert altered != raw
    path.write_bytes(altered)
    with pytest.raises(AtlasError, match="was altered"):
        read_record(path)


def test_the_best_record_serves(tmp_path):
    """Whatever is wanted: all spectra, then a full one, then a sample."""
    from indexer.atlas import AtlasFolder

    store = RecordStore(AtlasFolder(tmp_path / "atlas"))
    wanted = [{}, {"sample": True}, {"spectra": True}]
    assert [existing_record(identity(spec=spec), store) for spec in wanted] == [None] * 3
    for kept in ({"sample": True}, {}, {"spectra": True}):
        mine = identity(spec=kept)
        store.write(dataclasses.replace(make_record(), identity=mine))
        assert [existing_record(identity(spec=spec), store) for spec in wanted] == [mine] * 3
    headers = [
        RecordHeader(one.digest, one, made_at)
        for one, made_at in (
            (identity(spec={"sample": True}), "2026-03-01"),
            (identity(), "2026-01-01"),
        )
    ]
    assert current_record(headers, "c" * 40) is headers[1]  # older, but full


def test_energy_and_ranks_of_a_sample_promise_nothing():
    first, second, *_ = sampled_record().deltas
    assert 0 < first.energy <= 1
    assert first.change_ranks([0.5, 0.9]) == [None, None]
    assert second.change_ranks([0.5]) != [None]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(768, 768), (3072, 768), (768, 3072), (1024, 4096), (14336, 4096), (48, 96), (7, 9)])
def test_the_rows_of_a_plan(shape, transposed):
    """As spelt out in the tests; a sample of wider numbers is part of one of narrower ones, and holds every kept weight."""
    lines = shape[transposed]
    before: set[int] = set()
    for item_bytes in (8, 4, 2):
        count = lines_to_read(shape, transposed, item_bytes)
        rows = lines_of(lines, count)
        np.testing.assert_array_equal(rows, made.held(shape, item_bytes, transposed))
        assert before <= set(rows.tolist())
        before = set(rows.tolist())
        assert sum(map(len, stripes(lines, count))) == count == len(rows)
        assert len(stripes(lines, count)) <= 2
        more = lines_of(lines, lines_to_read(shape, transposed, item_bytes, more=True))
        assert before <= set(more.tolist())
        places = sampled_positions(made.key_of(("", 0, "query")), shape, 24, transposed)
        assert set(places[transposed].tolist()) <= before
        assert max(places[0]) < shape[0]
        assert max(places[1]) < shape[1]
    held = coordinates(shape, transposed)
    assert (held is None) == (not transposed or len(before) == lines)
