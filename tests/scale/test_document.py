"""What the document says of cost was measured, or follows from it."""

from __future__ import annotations

import re

import pytest

from scripts.scale import costs, document, likeness
from scripts.scale.figures import MEASURED, Figures
from scripts.scale.results import Results, read_results


def _constants() -> costs.Constants:
    return costs.Constants(
        database_bytes=20_000, listing_bytes=1_500, slim_record_bytes=35_000, compressed_bytes=1_000,
        publish_seconds=0.01, publish_again_seconds=0.001, purity_seconds_per_pair=1e-6,
    )  # fmt: skip


def test_costs_by_hand():
    c = _constants()
    found = {cost.what: cost.compute(c, 1_000_000) for cost in costs.COSTS}
    assert found["bytes fetched"] == pytest.approx(1e6 * (0.77 * 340e6 + 0.23 * 1.2e6))
    assert found["core hours"] == pytest.approx(1e6 * 0.77 * 0.55 / 3600)
    assert found["hours under the quota"] == pytest.approx(1e6 * 2 / 5000 * 5 / 60)
    assert found["hours on the line"] == pytest.approx(found["bytes fetched"] / 1.25e9 / 3600)
    assert found["wall, one account and one line"] == max(found["hours on the line"], found["hours under the quota"])
    assert found["rows of deltas"] == 72e6
    assert found["purity, its table"] == pytest.approx(4 * (1e6 / 6) ** 2)
    assert costs.COSTS[-2].compute(c, 100_000) == pytest.approx(2 * (1e5 / 6) ** 2)
    assert set(costs.MEANING) == set(costs.Constants.__dataclass_fields__)


def test_every_limit_is_where_its_cost_reaches_it():
    c = _constants()
    at = {limit.what: limit.models for limit in costs.limits(c)}
    assert list(at.values()) == sorted(at.values())
    cost = {one.what: one.compute for one in costs.COSTS}
    for what, formula, value in (
        ("purity's table outgrows 8 GB", "purity, its table", 8e9),
        ("purity takes an hour", "purity, time", 1.0),
        ("one account's quota takes more than a day", "hours under the quota", 24.0),
        ("a line of 10 Gbit/s takes more than a day", "hours on the line", 24.0),
        ("a publish with nothing new takes a minute", "publish with nothing new", 60.0),
        ("the compressed index outgrows 1 GiB of a reader's memory", "compressed index, in memory", 2**30),
        ("the database outgrows 100 GB, and every publish copies it", "database", 100e9),
        ("records with factors outgrow 1 TB", "records with factors", 1e12),
    ):
        assert cost[formula](c, at.pop(what)) == pytest.approx(value), what
    assert not at


def _results() -> Results:
    numbers = {name: 1_000 for name, measured in MEASURED.items() if measured.unit != "name"}
    real = likeness.compare_labels(2)
    return Results(real, {100: Figures(dict(numbers))}, {200: Figures({"compressed_bytes": 50})}, {"processors": "2"})


def test_results_survive_their_json(tmp_path):
    results = _results()
    results.write(tmp_path / "r.json")
    again = read_results(tmp_path / "r.json")
    assert again == results
    assert "100 models" in again.text()
    assert again.text() == results.text()


def test_the_document_is_filled_between_its_markers(tmp_path):
    copy = tmp_path / "scale.md"
    original = document.DOCUMENT.read_text(encoding="utf-8")
    copy.write_text(original, encoding="utf-8")
    document.write_document(_results(), copy)
    filled = copy.read_text(encoding="utf-8")
    assert "processors 2" in filled
    assert "| `compressed_bytes` | 0.25 B |" in filled
    assert "| rows of deltas |" in filled
    document.write_document(_results(), copy)
    assert copy.read_text(encoding="utf-8") == filled
    assert _words(filled) == _words(original)


def _words(text: str) -> str:
    """Without what stands between markers."""
    return re.sub(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", r"\1\3", text, flags=re.DOTALL)


def test_a_document_without_a_marker_and_a_run_without_an_atlas_are_refused(tmp_path):
    (tmp_path / "scale.md").write_text("nothing\n")
    with pytest.raises(ValueError, match="has no part <!-- machine -->"):
        document.write_document(_results(), tmp_path / "scale.md")
    with pytest.raises(ValueError, match="measured no atlas"):
        document.sections(Results())
    lacking = _results()
    del lacking.atlases[100].values["purity_seconds"]
    with pytest.raises(ValueError, match="did not measure purity_seconds"):
        document.sections(lacking)
