"""A few replayed runs, and what the product says of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("transformers")


pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Iterator[Path]:
    """Where both tests find one base. Nothing here depends on what it has learnt, so it is trained for 8 steps."""
    import torch

    from studies.trace.plan import BASES

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BASES, "bert", replace(BASES["bert"], steps=8))
        patch.setattr("studies.trace.texts.FILES_READ", 15)  # of each package; there are texts enough
        patch.setattr(torch, "set_num_threads", lambda threads: None)  # other tests run meanwhile
        yield tmp_path_factory.mktemp("trace")


def test_no_used_text_is_certified_absent(out, tmp_path) -> None:
    from studies.trace.__main__ import main

    file = tmp_path / "found.json"
    options = ["--out", str(out), "--only", "bert-short", "--json", str(file)]
    answer = CliRunner().invoke(main, ["check", *options], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    (row,) = json.loads(file.read_text(encoding="utf-8"))
    assert row["kind"] == "exact"
    assert (row["met_called_untouched"], row["never_called_met"], row["used_certified"]) == (0, 0, 0)
    assert (row["positions"], row["pairs"], row["masked"]) == (row["longest"], False, False)
    assert row["c"] == pytest.approx(row["c_true"], abs=1e-6)
    assert 0 < row["unused_own"] <= row["unused_others"]
    checkpoint = out / "hub" / "trace" / "bert-short" / "model.safetensors"
    written = checkpoint.stat().st_mtime_ns
    again = CliRunner().invoke(main, ["check", *options], catch_exceptions=False)
    assert again.output == answer.output
    assert checkpoint.stat().st_mtime_ns == written  # what is made is not made again


def test_planted_mixtures_are_told_in_their_shares(out) -> None:
    from studies.trace.making import Maker
    from studies.trace.mixtures import mixtures

    planted = (0.0, 0.5)
    rows = mixtures(Maker(out), pairs=[("code/line-kinds", "code/signatures")], planted=planted, steps=60)
    assert tuple(row["planted"] for row in rows if row["files"] == "all") == planted
    assert {row["kind"] for row in rows} == {"exact"}
    for row in rows:  # files that hold what was used, and files of the same kind
        assert abs(row["share"] - row["true"]) < (0.15 if row["files"] == "all" else 0.35), row
