"""``scripts.bench``: what it makes of numbers, and what it refuses. No long measurement."""

from __future__ import annotations

import json
import math
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from scripts.bench import __main__ as bench
from scripts.bench import trees, vectors
from scripts.bench.measure import NotMeasuredError, Repeats, Table, interleaved, made_once


def test_ratios_are_taken_within_each_repeat():
    # The machine was ten times slower in the second repeat: the ratio of medians would be 15 / 10.
    mine, other = Repeats([2.0, 20.0, 15.0]), Repeats([1.0, 10.0, 15.0])
    assert mine.ratio_to(other).values == [2.0, 2.0, 1.0]
    assert str(Repeats([5.0, 1.0, 2.0])) == "2 (1–5)"
    assert str(Repeats([0.12345])) == "0.123"
    with pytest.raises(ValueError, match="longer"):
        Repeats([1.0, 2.0]).ratio_to(Repeats([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]], ids=["none", "nan", "infinite"])
def test_a_number_that_was_not_measured_is_refused(values):
    with pytest.raises(NotMeasuredError):
        Repeats(values)
    table = Table("title", ["method", "s"])
    for value in values[-1:]:
        with pytest.raises(NotMeasuredError, match="s of ours"):
            table.add("ours", value)
    assert table.rows == []


def test_text_and_json_of_a_table_say_the_same():
    table = Table("title", ["method", "s", "÷ ours", "requests"], notes=["a note"])
    table.add("ours", Repeats([1.0, 2.0, 3.0]), 1.0, 7)
    table.add("theirs", "", 0.12345, "")
    table.promises |= {"fast": True, "small": False}
    lines = table.text().splitlines()
    assert lines[1].split() == ["method", "s", "÷", "ours", "requests"]
    assert lines[3].split() == ["ours", "2", "(1–3)", "1", "7"]
    assert lines[4].split() == ["theirs", "0.123"]
    assert lines[5:] == ["a note", "kept: fast", "NOT KEPT: small"]
    found = json.loads(json.dumps(table.as_json()))
    seconds = {"median": 2.0, "lowest": 1.0, "highest": 3.0, "repeats": 3}
    assert found["rows"] == [
        {"method": "ours", "s": seconds, "÷ ours": 1.0, "requests": 7},
        {"method": "theirs", "÷ ours": 0.12345},
    ]
    assert found["promises"] == {"fast": True, "small": False}


def test_methods_run_round_by_round_in_changing_order_and_the_warm_up_is_not_counted():
    calls = []

    def method(name):
        def once():
            calls.append(name)
            return float(len(calls))

        return once

    found = interleaved({name: method(name) for name in "abc"}, 3)
    rounds = [calls[start : start + 3] for start in range(0, 12, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len({tuple(one) for one in rounds[1:]}) == 3
    for name, repeats in found.items():
        assert repeats.values == [float(3 * number + one.index(name) + 1) for number, one in enumerate(rounds)][1:]


def test_an_input_is_made_once_per_version_of_its_code_and_never_found_incomplete(tmp_path):
    code, work, calls = tmp_path / "code", tmp_path / "work", []
    code.mkdir()
    (code / "maker.py").write_text("one", encoding="ascii")

    def make(folder):
        calls.append(folder)
        (folder / "part").write_bytes((code / "maker.py").read_bytes())
        if len(calls) == 1:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        made_once(work / "input", make, [code])
    assert not list(work.glob("input*"))
    for _ in range(2):
        assert (made_once(work / "input", make, [code]) / "part").read_text(encoding="ascii") == "one"
    assert len(calls) == 2
    (code / "maker.py").write_text("two", encoding="ascii")
    assert (made_once(work / "input", make, [code]) / "part").read_text(encoding="ascii") == "two"
    assert len(list(work.iterdir())) == 1


@pytest.fixture
def rows(monkeypatch):
    """Rows that take no time: kept, not kept, not measured, failed."""

    def measured(value, kept):
        def measure(work):
            table = Table("title", ["method", "s"], promises={"quick": kept})
            table.add("ours", value)
            return [table]

        return measure

    def failing(work):
        raise KeyError("one\nline\nis enough")

    ways = {
        "good": measured(1.0, True),
        "bad": measured(2.0, False),
        "none": measured(math.nan, True),
        "wrong": failing,
    }
    monkeypatch.setattr(bench, "ROWS", {name: ("module", name, "what it shows") for name in ways})
    monkeypatch.setattr(bench, "import_module", lambda name: SimpleNamespace(**ways))


@pytest.mark.parametrize(("names", "code"), [(["good"], 0), (["good", "bad"], 1), (["none"], 1), ([], 1)])
def test_the_exit_code_says_whether_everything_was_measured_and_kept(rows, names, code, tmp_path):
    assert bench.main([*names, "--work", str(tmp_path)]) == code


def test_a_row_that_fails_or_was_not_measured_has_no_number_and_stops_no_other(rows, tmp_path, capsys):
    file = tmp_path / "bench.json"
    assert bench.main(["none", "wrong", "bad", "good", "--json", str(file), "--work", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "none: not measured: s of ours" in shown
    assert "wrong: failed: KeyError: 'one\\nline\\nis enough'\n" in shown
    assert "NOT KEPT: quick" in shown
    assert "\nkept: quick" in shown
    found = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert set(found["none"]) == {"not_measured", "seconds"}
    assert set(found["wrong"]) == {"failed", "seconds"}
    assert found["bad"]["tables"][0]["rows"] == [{"method": "ours", "s": 2.0}]


def test_an_unknown_row_is_a_usage_error_and_every_row_exists(rows, capsys, monkeypatch):
    with pytest.raises(SystemExit) as ended:
        bench.main(["god"])
    assert ended.value.code == 2
    assert "no such row: god (there are good, bad, none, wrong)" in capsys.readouterr().err
    monkeypatch.undo()
    for module, function, _ in bench.ROWS.values():
        assert callable(getattr(import_module(f"scripts.bench.{module}"), function))


def test_a_rank_that_is_off_by_two_and_a_rival_that_is_nearly_as_fast_break_the_promises_of_spectra():
    flat, steep = torch.ones(10), torch.tensor([1.0] + [0.0] * 9)
    ours, lapack = vectors.OURS, vectors.LAPACK
    good = vectors.spectra_table("x", {ours: [1.0], lapack: [4.5]}, {ours: [flat], lapack: [flat]}, [flat])
    assert list(good.promises.values()) == [True, True]
    assert any("WeightWatcher: not measured" in note for note in good.notes)
    bad = vectors.spectra_table("x", {ours: [1.0], lapack: [1.0]}, {ours: [steep], lapack: [flat]}, [flat])
    assert list(bad.promises.values()) == [False, False]
    true = [torch.tensor([100.0, 10.0, 0.5]), torch.tensor([1.0, 0.5, 0.25])]
    mine = [torch.tensor([100.0, 10.1, 50.0]), torch.tensor([1.0, 0.49, 0.25])]
    assert vectors.largest_difference(mine, true) == pytest.approx(0.02)


@pytest.mark.filterwarnings("ignore:Passing a dict")  # of WeightWatcher's own use of pandas
def test_weightwatcher_gives_the_singular_values():
    pytest.importorskip("weightwatcher")
    matrix = torch.randn(60, 100, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(vectors.by_weightwatcher(matrix).double(), torch.linalg.svdvals(matrix.double()), rtol=1e-6)


@pytest.mark.slow
def test_an_unchanged_folder_is_made_and_measured(tmp_path):
    """The measurement makes an atlas by the parts of a build, whose arguments change."""
    (table,) = trees.measure_unchanged(tmp_path, 4)
    assert table.rows[0][0] == 4
