"""``python -m scripts.scale``: costs follow from what was measured, and docs/scale.md is filled from a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from scripts.scale import __main__ as report
from scripts.scale import costs
from tests.conftest import ROOT, run_python


def _atlas(models: float) -> dict[str, float]:
    """Figures of an atlas by laws that are known."""
    return {
        "database_bytes": 4_000 * models, "listing_bytes": 1_500 * models, "record_bytes": 35_000 * models,
        "publish_seconds": 0.003 * models + 2e-7 * models**2, "publish_peak": 1.2e9 + 14_000 * models,
        "nothing_seconds": 0.7 + 0.0006 * models, "purity_seconds": 0.9 + 1e-6 * (models / 6) ** 2,
    }  # fmt: skip


def test_two_sizes_separate_what_grows_from_what_does_not():
    c = costs.constants_of({"10000": _atlas(1e4), "100000": _atlas(1e5)}, {"400": {"compressed_bytes": 100}})
    assert (c["publish_seconds"], c["publish_seconds_per_pair"]) == pytest.approx((0.003, 2e-7))
    assert (c["publish_memory_start"], c["publish_memory"]) == pytest.approx((1.2e9, 14_000))
    assert (c["publish_again_start"], c["publish_again_seconds"]) == pytest.approx((0.7, 0.0006))
    assert (c["purity_start"], c["purity_seconds_per_pair"]) == pytest.approx((0.9, 1e-6))
    assert c["compressed_bytes"] == 0.25
    # What one size does not tell is not stated.
    c = costs.constants_of({"10000": _atlas(1e4)}, {})
    assert c["publish_seconds_per_pair"] is c["publish_memory"] is c["compressed_bytes"] is None
    found = costs.amounts(costs.COSTS, c, 1e6)
    assert found["publish from nothing"] is found["publish from nothing, memory"] is None
    assert not [limit for limit in costs.limits(c) if "from nothing" in limit[0] or "compressed" in limit[0]]
    with pytest.raises(ValueError, match="no atlas"):
        costs.constants_of({}, {})


def test_where_no_line_or_square_fits_all_is_one_of_them():
    assert costs.with_start({10: 5.0, 20: 5.0}) == pytest.approx((0.0, 0.25))
    assert costs.with_start({10: 1.0, 20: 4.0}) == pytest.approx((0.0, 0.2))
    assert costs.with_pairs({10: 5.0, 20: 8.0}) == pytest.approx((0.4, 0.0))
    assert costs.with_pairs({10: 1.0, 20: 8.0}) == pytest.approx((0.0, 0.02))
    assert costs.with_pairs({10: 4.0, 20: 12.0}) == pytest.approx((0.2, 0.02))


def test_costs_and_limits_by_hand():
    c = costs.constants_of({"10000": _atlas(1e4), "100000": _atlas(1e5)}, {"400": {"compressed_bytes": 400_000}})
    found = costs.amounts(costs.COSTS, c, 1e6)
    assert found["bytes fetched"] == pytest.approx(1e6 * (0.77 * 340e6 + 0.23 * 1.2e6))
    assert found["hours on the line"] == pytest.approx(found["bytes fetched"] / 1.25e9 / 3600)
    assert found["hours under the quota"] == pytest.approx(1e6 * 2 / 5000 * 5 / 60)
    assert found["wall, one account and one line"] == max(found["hours on the line"], found["hours under the quota"])
    assert (found["large machines, to be done in a day"], found["small machines, to be done in a week"]) == (3, 4)
    assert found["publish from nothing"] == pytest.approx((1e6 * 0.003 + 1e12 * 2e-7) / 3600)
    assert found["purity, its table"] == pytest.approx(4 * (1e6 / 6) ** 2)
    assert costs.amounts(costs.COSTS, c, 1e5)["purity, its table"] == pytest.approx(2 * (1e5 / 6) ** 2)
    large = costs.amounts(costs.LARGE, c, 1e5)
    assert large["core hours"] == pytest.approx(1e5 * 76 * 0.55 / 3600)
    assert large["money: keeping them for a year"] == pytest.approx(1e5 * 40e6 / 1e9 * 0.02 * 12)
    at = [(what, models) for what, models, _ in costs.limits(c)]
    assert [models for _, models in at] == sorted(models for _, models in at)
    assert len(at) == 13
    assert dict(at)["the compressed index outgrows 1 GiB of a reader's memory"] == pytest.approx(2**30 / 1000)
    assert dict(at)["purity's table outgrows 8 GB"] == pytest.approx(6 * 4e9**0.5)


@pytest.mark.parametrize(
    ("value", "text"), [(0.25, "0.25 B"), (999.6, "1 KB"), (2.6e12, "2.6 TB"), (1.3e15, "1.3 PB"), (2.6e18, "2,600 PB")]
)
def test_bytes_are_shown_in_three_digits_of_the_unit_that_fits(value, text):
    assert costs.shown(value, "bytes") == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--models", "ten"], "'ten' is not a list of numbers"),
        (["--models", "50"], "the smallest atlas has 200 models"),
        (["--models", "0", "--vectors", "900000000000"], "are needed: give another --work"),
        (["--doc", "nowhere.json"], "nowhere.json"),
    ],
)
def test_wrong_use_is_one_line(words, said, tmp_path):
    done = run_python("-m", "scripts.scale", *words, cwd=tmp_path)
    assert done.code == 2
    assert said in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


@pytest.mark.study
def test_the_whole_command_and_its_document(tmp_path):
    done = _run(["--models", "300", "--vectors", "400", "--json", "r.json"], tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert done.stdout == report.text(results) + "\n"
    figures = results["atlases"]["300"]
    assert figures["deltas_rows"] == 300 * 72
    assert figures["recall_at_10"] == results["vectors"]["400"]["recall_at_10"] == 1.0
    assert figures["nothing_neighbours"] == 0
    assert set(figures) | {"write_seconds", "write_peak"} | {"compressed_bytes", "recall_at_publish"} >= {
        name for name, _, _ in report.MEASURED if not name.startswith("publish_")
    }
    copy = tmp_path / "scale.md"
    original = report.DOCUMENT.read_text(encoding="utf-8")
    copy.write_text(original, encoding="utf-8")
    report.write_document(results, copy)
    filled = copy.read_text(encoding="utf-8")
    assert "| rows of deltas | 21,600 |" in filled
    text_between = r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)"
    assert re.sub(text_between, "", filled, flags=re.DOTALL) == re.sub(text_between, "", original, flags=re.DOTALL)
    copy.write_text("nothing\n")
    with pytest.raises(ValueError, match="has no part <!-- machine -->"):
        report.write_document(results, copy)


def _run(words: list[str], folder) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "scripts.scale", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
