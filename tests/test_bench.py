"""The measuring machinery of ``scripts.bench``: what it makes of numbers, and what it refuses. No long measurement."""

from __future__ import annotations

import json
import math
import os
import sys

import numpy as np
import pytest
import torch

from scripts.bench import __main__ as bench
from scripts.bench import pipeline, spectra, weightwatcher
from scripts.bench.machine import this_machine
from scripts.bench.measure import NotMeasuredError, Repeats, Stopwatch, Table, interleaved, interleaved_over


def test_the_median_and_the_range_are_those_of_what_was_measured():
    seconds = Repeats([5.0, 1.0, 2.0])
    assert (seconds.median, seconds.lowest, seconds.highest) == (2.0, 1.0, 5.0)
    assert Repeats([1.0, 2.0, 4.0, 9.0]).median == 3.0
    assert seconds.times(12).values == [60.0, 12.0, 24.0]
    assert str(seconds) == "2 (1–5)"
    assert str(Repeats([0.12345])) == "0.123"


def test_ratios_are_taken_within_each_repeat():
    # The machine was ten times slower in the second repeat: the ratio of medians would be 15 / 10.
    mine, other = Repeats([2.0, 20.0, 15.0]), Repeats([1.0, 10.0, 15.0])
    assert mine.ratio_to(other).values == [2.0, 2.0, 1.0]
    assert mine.ratio_to(other).median == 2.0
    assert Repeats([1.0, 5.0]).larger_of(Repeats([3.0, 2.0])).values == [3.0, 5.0]


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]], ids=["none", "nan", "infinite"])
def test_a_number_that_was_not_measured_is_refused_whatever_is_asked_of_it(values):
    nothing, something = Repeats(values), Repeats([1.0] * len(values))
    for ask in (
        lambda: nothing.median,
        lambda: nothing.lowest,
        lambda: nothing.highest,
        lambda: str(nothing),
        lambda: nothing.as_json(),
        lambda: nothing.ratio_to(something),
        lambda: something.ratio_to(nothing),
        lambda: nothing.larger_of(something),
    ):
        with pytest.raises(NotMeasuredError):
            ask()


def test_a_ratio_of_what_was_not_measured_together_is_refused():
    with pytest.raises(NotMeasuredError, match="3 times, the other 2"):
        Repeats([1.0, 2.0, 3.0]).ratio_to(Repeats([1.0, 2.0]))
    with pytest.raises(NotMeasuredError, match="3 times, the other 2"):
        Repeats([1.0, 2.0, 3.0]).larger_of(Repeats([1.0, 2.0]))
    with pytest.raises(NotMeasuredError, match="no time at all"):
        Repeats([1.0]).ratio_to(Repeats([0.0]))


def test_a_table_refuses_cells_without_a_measurement_and_names_them():
    table = Table("title", ["method", "s"])
    for cell in (math.nan, math.inf, Repeats([]), Repeats([1.0, math.nan])):
        with pytest.raises(NotMeasuredError, match="s of ours"):
            table.add("ours", cell)
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        table.add("ours")
    assert table.rows == []


def test_text_and_json_of_a_table_say_the_same():
    table = Table("title", ["method", "s", "÷ ours", "requests"], notes=["a note"])
    table.add("ours", Repeats([1.0, 2.0, 3.0]), 1.0, 7)
    table.add("theirs", "", 0.12345, "")
    table.promises |= {"fast": True, "small": False}
    lines = table.text().splitlines()
    assert lines[0] == "title"
    assert lines[1].split() == ["method", "s", "÷", "ours", "requests"]
    assert lines[3].split() == ["ours", "2", "(1–3)", "1", "7"]
    assert lines[4].split() == ["theirs", "0.123"]
    assert lines[5:] == ["a note", "kept: fast", "NOT KEPT: small"]
    found = json.loads(json.dumps(table.as_json()))
    assert found["rows"] == [
        {
            "method": "ours",
            "s": {"median": 2.0, "lowest": 1.0, "highest": 3.0, "repeats": 3},
            "÷ ours": 1.0,
            "requests": 7,
        },
        {"method": "theirs", "÷ ours": 0.12345},
    ]
    assert found["promises"] == {"fast": True, "small": False}


def test_methods_have_their_turns_round_by_round_in_changing_order_and_the_warm_up_counts_for_nothing():
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
    for name, values in found.items():
        assert values.values == [float(3 * number + one.index(name) + 1) for number, one in enumerate(rounds)][1:]
    calls.clear()
    assert len(interleaved({"a": method("a")}, 2, warm_up=False)["a"].values) == len(calls) == 2


def test_turns_on_items_add_up_to_one_value_a_repeat(monkeypatch):
    calls = []
    clock = iter(range(1000))
    monkeypatch.setattr("scripts.bench.measure.time.perf_counter", lambda: float(next(clock)))
    methods = {name: lambda item, name=name: calls.append((item, name)) for name in "ab"}
    found = interleaved_over(methods, [10, 20, 30], 2)
    assert [item for item, _ in calls] == [10, 10, 20, 20, 30, 30] * 2
    assert {name for item, name in calls[:2]} == {"a", "b"}
    assert calls[0][1] != calls[2][1]
    # Each turn takes one tick of the clock.
    assert found["a"].values == found["b"].values == [3.0, 3.0]


def test_a_stopwatch_counts_what_it_is_told_to_even_where_that_fails(monkeypatch):
    ticks = iter([1.0, 3.0, 10.0, 15.0])
    monkeypatch.setattr("scripts.bench.measure.time.perf_counter", lambda: next(ticks))
    watch = Stopwatch()
    with watch.running():
        pass
    with pytest.raises(KeyError), watch.running():
        raise KeyError
    assert watch.seconds == 7.0


def _measured(value, kept):
    table = Table("title", ["method", "s"])
    table.add("ours", value)
    table.promises["quick"] = kept
    return [table]


@pytest.fixture
def rows(monkeypatch):
    """Rows that take no time: one keeps its promise, one does not, one was not measured."""

    def refusing(work):
        return _measured(math.nan, True)

    made = {
        "good": lambda work: _measured(1.0, True),
        "bad": lambda work: _measured(2.0, False),
        "none": refusing,
    }
    monkeypatch.setattr(bench, "ROWS", {name: ("module", name, "what it shows") for name in made})
    monkeypatch.setattr(bench, "_measurement", lambda name: made[name])


@pytest.mark.parametrize(("names", "code"), [(["good"], 0), (["good", "bad"], 1), (["none"], 1), ([], 1)])
def test_the_exit_code_says_whether_everything_was_measured_and_kept(rows, names, code, tmp_path):
    assert bench.main([*names, "--work", str(tmp_path)]) == code


def test_a_row_that_was_not_measured_has_no_figure_and_costs_no_other_row(rows, tmp_path, capsys):
    file = tmp_path / "bench.json"
    assert bench.main(["none", "bad", "good", "--json", str(file), "--work", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "none: not measured: s of ours" in shown
    assert "NOT KEPT: quick" in shown
    assert "\nkept: quick" in shown
    found = json.loads(file.read_text(encoding="utf-8"))
    assert set(found["rows"]["none"]) == {"not_measured", "seconds"}
    assert found["rows"]["bad"]["tables"][0]["rows"] == [{"method": "ours", "s": 2.0}]
    assert len(found["machine"]["load"]) == 3
    assert found["machine"]["started"].endswith("+00:00")


def test_json_is_written_row_by_row(rows, tmp_path, monkeypatch):
    file = tmp_path / "bench.json"
    before = bench._measurement

    def stopped(name):
        if name == "bad":
            raise KeyboardInterrupt
        return before(name)

    monkeypatch.setattr(bench, "_measurement", stopped)
    with pytest.raises(KeyboardInterrupt):
        bench.main(["good", "bad", "--json", str(file), "--work", str(tmp_path)])
    assert list(json.loads(file.read_text(encoding="utf-8"))["rows"]) == ["good"]


def test_an_unknown_row_is_a_usage_error_that_names_the_rows(rows, capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["god"])
    assert ended.value.code == 2
    assert "no such row: god (there are good, bad, none)" in capsys.readouterr().err


def test_every_row_of_the_bench_is_there():
    for name in bench.ROWS:
        assert callable(bench._measurement(name))


def test_the_machine_is_described_by_what_the_system_says():
    found = this_machine()
    assert found.cores == len(os.sched_getaffinity(0))
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.versions["numpy"] == np.__version__
    assert f"{found.load[0]:.2f}" in found.text()
    json.dumps(found.as_json())


def test_a_row_that_fails_costs_no_other_row_and_is_told_in_a_line(rows, tmp_path, monkeypatch, capsys):
    file = tmp_path / "bench.json"
    before = bench._measurement

    def failing(work):
        raise KeyError("one\nline\nis enough")

    monkeypatch.setattr(bench, "_measurement", lambda name: failing if name == "bad" else before(name))
    assert bench.main(["bad", "good", "--json", str(file), "--work", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.startswith("bad")] == [
        "bad: failed: KeyError: 'one\\nline\\nis enough'"
    ]
    found = json.loads(file.read_text(encoding="utf-8"))["rows"]
    assert set(found["bad"]) == {"failed", "seconds"}
    assert found["good"]["tables"][0]["promises"] == {"quick": True}


# --- rows: what they make of what was measured


@pytest.mark.parametrize(("both", "kept"), [([11.0, 23.0, 11.4], True), ([12.0, 23.2, 11.0], False)])
def test_the_pipeline_is_compared_with_the_slower_of_the_two_in_each_repeat(both, kept):
    times = {
        "compute alone": Repeats([10.0, 20.0, 9.0]),
        "transfer alone": Repeats([8.0, 19.0, 10.0]),
        "both at once": Repeats(both),
    }
    table = pipeline._table(times, 227.0)
    assert list(table.promises.values()) == [kept]
    assert table.rows[2][2].values == [one / larger for one, larger in zip(both, (10.0, 20.0, 10.0), strict=True)]
    assert table.rows[1][2].values == [0.8, 0.95, 1.0]


def test_the_clock_of_the_pipeline_runs_from_the_first_start_to_the_last_result():
    assert pipeline._from_first_to_last([(5.0, 9.0), (3.0, 7.0), (7.0, 11.5)]) == 8.5


def test_singular_values_are_compared_where_they_are_notable():
    true = [torch.tensor([100.0, 10.0, 0.5]), torch.tensor([1.0, 0.5, 0.25])]
    mine = [torch.tensor([100.0, 10.1, 50.0]), torch.tensor([1.0, 0.49, 0.25])]
    assert spectra.largest_difference(mine, true) == pytest.approx(0.02)


def test_a_rank_that_is_off_by_two_breaks_the_promise_of_spectra():
    flat, steep = torch.ones(10), torch.tensor([1.0] + [0.0] * 9)
    times = {title: Repeats([1.0]) for title in (spectra.OURS, spectra.LAPACK)}
    promise = "same ranks ±1 at 50/80/90/95/99 % of the energy"
    good = spectra._table("x", times, {spectra.OURS: [flat], spectra.LAPACK: [flat]}, [flat])
    assert good.promises == {promise: True, "at least 4 × faster than torch.linalg.svdvals": False}
    times[spectra.LAPACK] = Repeats([4.5])
    bad = spectra._table("x", times, {spectra.OURS: [steep], spectra.LAPACK: [flat]}, [flat])
    assert bad.promises == {promise: False, "at least 4 × faster than torch.linalg.svdvals": True}


def test_where_weightwatcher_is_missing_the_row_says_so_and_has_no_figure_of_it(monkeypatch):
    monkeypatch.setattr(weightwatcher, "find_spec", lambda name: None)
    assert weightwatcher.spectra_by_weightwatcher() is None
    values = torch.ones(4)
    times = {title: Repeats([1.0]) for title in (spectra.OURS, spectra.LAPACK)}
    table = spectra._table("x", times, {title: [values] for title in times}, [values])
    assert len(table.rows) == 2
    assert any("WeightWatcher: not measured" in note for note in table.notes)


@pytest.mark.skipif(weightwatcher.find_spec("weightwatcher") is None, reason="weightwatcher is not installed")
def test_weightwatcher_is_asked_for_the_singular_values():
    find = weightwatcher.spectra_by_weightwatcher()
    matrix = torch.randn(60, 100, generator=torch.Generator().manual_seed(0))
    exact = torch.linalg.svdvals(matrix.double())
    assert torch.allclose(find(matrix).double(), exact, rtol=1e-6)
