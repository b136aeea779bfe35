"""Inputs of ``scripts.bench``, the bytes that are counted of them, and what the memory row makes of those."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from indexer.deltas.base import BaseMatrices
from indexer.deltas.rounding import narrowest_dtype
from scripts.bench import memory, population, reading
from scripts.bench.hub import Usage
from scripts.bench.inputs import made_once, state_of
from scripts.bench.measure import NotMeasuredError, Repeats


@pytest.mark.parametrize("lacking", ["rise", "base", "kept"])
def test_a_model_that_was_read_in_no_memory_was_not_measured(lacking):
    assert Usage(rise=1, base=1, kept=1)
    for value in (0, -5):
        with pytest.raises(NotMeasuredError, match=rf"{value} bytes \({lacking}\)"):
            Usage(**{"rise": 1, "base": 1, "kept": 1, lacking: value})


def test_fewer_bytes_than_a_model_is_made_of_are_no_measurement():
    reading._check("lora", 100, 100)
    for sent in (0, 99):
        with pytest.raises(NotMeasuredError, match=f"lora: the Hub counted {sent} bytes, the model takes at least 100"):
            reading._check("lora", sent, 100)


def test_what_older_code_made_is_not_found_and_goes(tmp_path):
    code, work = tmp_path / "code", tmp_path / "work"
    code.mkdir()
    (code / "maker.py").write_text("one", encoding="ascii")
    (work / "input-of-another-name").mkdir(parents=True)

    def make(folder):
        (folder / "part").write_bytes((code / "maker.py").read_bytes())

    def content():
        return (made_once(work / "input", make, [code]) / "part").read_text(encoding="ascii")

    assert content() == "one"
    (code / "notes.txt").write_text("no code", encoding="ascii")
    before = set(work.iterdir())
    assert content() == "one"
    assert set(work.iterdir()) == before
    (code / "maker.py").write_text("two", encoding="ascii")
    assert content() == "two"
    assert len(set(work.iterdir()) - before) == 1
    assert len(list(work.iterdir())) == 2


def test_an_atlas_of_older_publishing_code_is_another_one(monkeypatch, tmp_path):
    names = []
    monkeypatch.setattr(population, "made_once", lambda folder, make, code: names.append(code))
    population.ten_thousand(tmp_path)
    told = {path.name for path in names[0]}
    assert {"schema.sql", "publish", "vectors", "records"} <= told
    assert all(path.exists() for path in names[0])


def test_an_input_is_made_once_and_never_found_half_made(tmp_path):
    made = []

    def make(folder):
        made.append(folder.name)
        (folder / "part").write_text("1", encoding="ascii")
        if len(made) == 1:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        made_once(tmp_path / "input", make, [Path(__file__)])
    assert not list(tmp_path.glob("input*"))
    for _ in range(2):
        assert (made_once(tmp_path / "input", make, [Path(__file__)]) / "part").read_text(encoding="ascii") == "1"
    assert len(made) == 2
    assert [path.name for path in tmp_path.iterdir()] == [f"input-{state_of([Path(__file__)])}"]


def test_a_file_with_holes_reads_as_its_numbers_and_zeros(tmp_path):
    path = tmp_path / "holes.safetensors"
    shapes = {"first": (256, 256), "second": (3, 2), "third": (1024, 1024)}
    numbers = {"second": np.arange(6, dtype=np.float32).reshape(3, 2)}
    memory._write_with_holes(path, shapes, numbers, {"format": "pt"})
    with safe_open(path, "numpy") as file:
        assert {name: tuple(file.get_tensor(name).shape) for name in file.keys()} == shapes  # noqa: SIM118
        assert np.array_equal(file.get_tensor("second"), numbers["second"])
        assert not file.get_tensor("third").any()
    assert path.stat().st_blocks * 512 < path.stat().st_size / 10


def test_files_with_holes_differ_in_the_number_of_layers_only(tmp_path):
    """Were some matrices nothing but zeros, content would be measured instead of size."""
    for layers in (1, 2):
        folder = tmp_path / str(layers)
        folder.mkdir()
        memory._make_layers(layers, folder)
        base = BaseMatrices(folder / "base-matrices.safetensors")
        assert len(base.layout.matrices) == 6 * layers
        assert not any(base.matrix(matrix.key).any() for matrix in base.layout.matrices)
        base.close()
        with safe_open(folder / "fine-tune" / "model.safetensors", "pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name)
                assert narrowest_dtype(tensor) == torch.float32
                assert (tensor != 0).any(dim=1).nonzero().flatten().tolist() == list(range(memory.ROWS))


def _taken(rise, record=2.5, base=0.0):
    return memory.Taken(Repeats(rise), base, record)


@pytest.mark.parametrize(
    ("like", "large", "kept"),
    [
        ([110.0, 112.0, 111.0], 160.0, True),  # the record apart 119 and 107
        ([110.0, 112.0, 111.0], 164.0, True),
        ([110.0, 112.0, 111.0], 164.5, False),
        ([110.0, 150.0, 111.0], 165.0, False),  # one high repeat of the small file excuses nothing
    ],
)
def test_the_larger_file_is_compared_with_one_of_the_same_content(like, large, kept):
    table = memory.Table("title", ["reading"])
    taken = {
        memory.IN_MEMORY: _taken([500.0], base=324.0),
        memory.ON_DISK: _taken([20.0]),  # real content, which has no say in growth
        memory.LIKE: _taken(like, record=4.0),
        memory.LARGE: _taken([large], record=41.0),
    }
    memory._promise(table, taken)
    *bounds, growth = table.promises.values()
    assert bounds == [True] * 4
    assert growth is kept
    assert f"grows by {large - 111:.1f} MiB: the record, which is the result, by 37.0 MiB" in table.notes[0]
    taken[memory.LARGE] = _taken([251.0])
    memory._promise(table, taken)
    assert not table.promises["on disk, 176 layers: ≤ 250 MiB + the base where it is held"]


@pytest.mark.parametrize(("sent", "is_measured"), [(0, False), (3 * 340_000_000, True)])
def test_a_reading_of_which_nothing_was_sent_is_not_measured(sent, is_measured, monkeypatch):
    monkeypatch.setattr(memory, "read_model", lambda *words, **named: Usage(100 << 20, 340_000_000, 2 << 20))
    hub = SimpleNamespace(reset_log=lambda: None, body_bytes=lambda model, file: sent)
    one = memory.Reading("bench/small", "base.safetensors", True, 3)
    if is_measured:
        taken, gigabytes = memory._read(one, hub)
        assert gigabytes == 0.34
        assert taken.over.values == [pytest.approx(100 - 340e6 / 2**20)] * 3
    else:
        with pytest.raises(NotMeasuredError, match="sent 0 bytes of bench/small"):
            memory._read(one, hub)
