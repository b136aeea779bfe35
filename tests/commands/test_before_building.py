"""The estimate that is printed before a long build, the question whether to go on, and the limit of memory."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import click
import pytest

from indexer.builds import view
from indexer.builds.estimate import Estimate
from indexer.builds.view import BuildView
from indexer.publish import publish, staging

LARGE = Estimate(50, 0, "full", 500_000_000, 17_000_000_000, bytes_per_second=20e6)
SAMPLE = Estimate(50, 0, "sample", 500_000_000, 17_000_000_000, bytes_per_second=20e6)


def test_the_sentence():
    for estimate, said in ((LARGE, "17.0 GB (≈ 500 MB with --read sample), ≈ 14 min"),
                           (SAMPLE, "500 MB (≈ 17.0 GB with --read full), ≈ 25 s")):  # fmt: skip
        assert estimate.sentence == f"50 models, ≈ {said} at 20.0 MB/s (measured so far)"
        assert estimate.as_row()["sample_seconds"] == 25
        assert estimate.as_row()["full_seconds"] == 850
    assert Estimate(1, 0, "sample", 500_000_000, 500_000_000).sentence == "1 model, ≈ 500 MB"
    assert Estimate(3, 1, "sample", 500_000_000, 500_000_000).sentence == "3 models, at least 500 MB"
    assert LARGE.as_row()["seconds"] == 850
    assert SAMPLE.as_row()["bytes"] == 500_000_000


@pytest.mark.parametrize(
    ("estimate", "at_terminal", "yes", "is_asked"),
    [(LARGE, True, False, True), (LARGE, False, False, False), (LARGE, True, True, False),
     (SAMPLE, True, False, False), (Estimate(2, 0, "full", 1_000_000, 1_000_000), True, False, False),
     (Estimate(0, 0, "full", 0, 0), True, False, False)],
)  # fmt: skip
def test_only_a_person_is_asked_and_only_before_much(monkeypatch, capsys, estimate, at_terminal, yes, is_asked):
    asked = []
    monkeypatch.setattr(view.click, "confirm", lambda *words, **more: bool(asked.append(words)))
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: at_terminal, raising=False)
    assert BuildView(yes).confirm(estimate) is not is_asked
    assert bool(asked) is is_asked
    assert (estimate.sentence in capsys.readouterr().err) is bool(estimate.models)


@pytest.mark.parametrize("answer", ["no", "ctrl-c"])
def test_no_leaves_nothing_behind(tiny_store, tmp_path, monkeypatch, answer):
    from indexer.builds.commands import build
    from indexer.errors import AtlasError
    from tests.hubs import served
    from tests.tiny_hub import BASE

    def confirm(estimate):
        assert estimate.models == 3
        if answer == "ctrl-c":
            raise click.Abort
        return False

    with served(tiny_store(1), monkeypatch), pytest.raises(AtlasError if answer == "no" else click.Abort):
        build(BASE, tmp_path / "new" / "atlas", workers=1, confirm=confirm)
    assert not (tmp_path / "new").exists()


def test_the_memory_limit_of_a_build_holds_for_the_database_of_its_publish(tiny_store, tmp_path, monkeypatch, run):
    from tests.hubs import served
    from tests.tiny_hub import BASE

    limits = []
    staged_publish = staging.staged_publish

    @contextmanager
    def observed(*given, **options):
        with staged_publish(*given, **options) as staged:
            limits.extend(
                staged.connection.execute("SELECT parse_formatted_bytes(current_setting('memory_limit'))").fetchone()
            )
            yield staged

    monkeypatch.setattr(publish, "staged_publish", observed)
    words = ("build", "--base", BASE, "--workers", "1", "--memory", "2G", "--atlas", tmp_path / "atlas")
    with served(tiny_store(1), monkeypatch):
        code, _, err = run("index", *words)
    assert code == 0, err
    assert 100e6 < limits[-1] < 2e9
