"""Progress as a terminal and a pipe show it."""

from __future__ import annotations

import re
import time

import pytest

from indexer.builds.report import BuildEvent
from indexer.builds.view import BuildView, ModelsProgress
from indexer.console import terminal
from indexer.console.terminal import (
    Progress,
    say,
)
from tests.console.speaking import at_terminal, run
from tests.hubs import FakeClock


def test_plain_progress_speaks_now_and_then(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Progress(1000, "reading fine-tunes") as progress:
        for _ in range(500):
            clock[0] += 0.125
            progress.update(2, "1 failed\x1b[31m")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 7
    assert lines[0] == "reading fine-tunes: 160 of 1000, about 52 s left, 1 failed\\x1b[31m"
    assert lines[-1] == "reading fine-tunes: 1000 of 1000, 1 failed\\x1b[31m"


def test_progress_without_a_total_and_without_work(capsys):
    progress = Progress(None, "pages")
    progress.update(3)
    progress.close()
    progress.close()
    Progress(10, "nothing").close()
    assert capsys.readouterr().err == "pages: 3\n"


def test_quiet_progress(capsys, monkeypatch):
    monkeypatch.setattr(terminal.verbosity, "quiet", True)
    with Progress(3, "x") as progress:
        progress.update(3)
    say("x")
    assert capsys.readouterr().err == ""


def test_a_bar_only_on_a_terminal():
    code = """
    with Progress(3, "reading\\x1b[31m") as progress:
        progress.update(1, "note\\x07")
        say("a remark")
        progress.update(2)
    print("data")
    """
    out = at_terminal(code)
    assert "3/3" in out
    assert re.search("[\r\n]a remark\n", out)  # on a line of its own, not behind the bar
    assert "\x1b[31m" not in out
    assert "\x07" not in out
    piped = run(code)
    assert piped.stdout == "data\n"
    assert piped.stderr == "a remark\nreading\\x1b[31m: 3 of 3\n"


# ---- models


def test_a_slow_start_is_forgotten(monkeypatch):
    """Half a minute until the first unit, then one a second: soon the rate is one a second, and not before."""
    monkeypatch.setattr(terminal.verbosity, "quiet", True)
    clock = use_fake_clock(monkeypatch)
    progress = Progress(None, "models")
    assert progress.rate is None
    assert progress.size_rate is None
    clock.now += 30
    rates = []
    for _ in range(100):
        clock.now += 1
        progress.update(1, size=5.0)
        rates.append(progress.rate)
        assert progress.size_rate == pytest.approx(5 * rates[-1])
    assert rates[0] == pytest.approx(1 / 31)
    assert rates[10] < 0.4
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(1, abs=0.02)


def test_a_rate_of_before_is_forgotten(monkeypatch):
    monkeypatch.setattr(terminal.verbosity, "quiet", True)
    clock = use_fake_clock(monkeypatch)
    progress = Progress(None, "models")
    for seconds, count in ((0.1, 500), (1, 61)):
        for _ in range(count):
            clock.now += seconds
            progress.update(1)
    assert progress.rate == pytest.approx(1.0, rel=0.1)
    for _ in range(100):  # minutes for each
        clock.now += 300
        progress.update(1)
    assert progress.rate == pytest.approx(1 / 300, rel=0.02)


@pytest.mark.parametrize("done", [0, 1, 399, 400])
def test_the_text_next_to_the_bar_is_complete_at_any_width(monkeypatch, done):
    monkeypatch.setattr(terminal.verbosity, "quiet", True)
    clock = use_fake_clock(monkeypatch)
    progress = ModelsProgress(400, "org/base")
    for number in range(done):
        clock.now += 5
        outcome = {0: "failed", 1: "skipped"}.get(number % 40, "indexed")
        progress.finished(event(outcome, 7_150_000 if outcome == "indexed" else 0))
    for columns in range(59, 160):
        text, has_bar = progress.text_and_bar(columns)
        assert len(text) + (12 if has_bar else 0) <= columns
        assert has_bar or columns < 86
        shown = text.replace(",", "").replace("models", "")
        assert shown.startswith(f"{done}/400 {-(-done // 40)} failed {(done + 38) // 40} skipped")
        if done == 399:
            assert re.search(r" 2\.7 ?GB 12 ?/min 1\.4 ?MB/s 5 ?s left$", shown)
        if done == 400:
            assert re.search(r" 2\.7 ?GB 12 ?/min 1\.4 ?MB/s in 33 ?min$", shown)


def test_a_large_build_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setattr(terminal.verbosity, "quiet", True)
    clock = use_fake_clock(monkeypatch)
    progress = ModelsProgress(10_000, "org/base")
    for number in range(8_000):
        clock.now += 1.25
        progress.finished(event("indexed" if number % 6 else "skipped", 76_500_000))
    assert progress.text_and_bar(59) == ("8000/10000 0 failed 1334 skipped 612GB 48/min 61MB/s 42min", False)


def test_slow_models_have_a_rate_in_seconds_each(monkeypatch, capsys):
    clock = use_fake_clock(monkeypatch)
    with ModelsProgress(10, "org/base") as progress:
        for _ in range(3):
            clock.now += 120
            progress.finished(event("indexed", 10**9))
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == (
        "reading fine-tunes of org/base: 2 of 10, 0 failed, 0 skipped, 2.0 GB, 120 s each, 8.3 MB/s, 16 min left"
    )


def test_each_of_several_bases_has_its_last_line(capsys):
    with BuildView() as view:
        for base, units in (("org/first", 1), ("org/nothing-new", 0), ("org/second", 2)):
            view(BuildEvent("started", "", total=units, base=base))
            for _ in range(units):
                view(event("indexed", 0))
            if base == "org/nothing-new":
                lines = capsys.readouterr().err.splitlines()
                assert [line.split(",")[0] for line in lines] == ["reading fine-tunes of org/first: 1 of 1"]
    assert capsys.readouterr().err.startswith("reading fine-tunes of org/second: 2 of 2,")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_real_terminal_shows_one_line_that_grows(columns):
    code = """
    import time
    from indexer.builds.view import ModelsProgress
    from indexer.builds.report import BuildEvent
    with ModelsProgress(400, "some-organisation/a-base-of-a-rather-long-name") as progress:
        for number in range(400):
            time.sleep(0.004)
            outcome = "failed" if number % 40 == 0 else "indexed"
            progress.finished(BuildEvent("model", "", outcome=outcome, bytes_read=7_150_000))
            if number == 200:
                say("a remark")
    """
    out = at_terminal(code, columns)
    frames = [frame for frame in re.split("[\r\n]", out) if "/400" in frame]
    assert len(frames) > 5
    assert max(map(len, frames)) <= columns
    assert "\n\n" not in out.replace("\r", "")
    assert "400/400" in frames[-1]
    assert "10 failed" in frames[-1]
    assert re.search("[\r\n]a remark\n", out)
    assert out.count("\n") == 3  # what is read, the remark, the bar's end


def use_fake_clock(monkeypatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def event(outcome, bytes_read):
    return BuildEvent("model", "", outcome=outcome, bytes_read=bytes_read)
