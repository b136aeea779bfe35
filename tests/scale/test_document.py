"""What the document says of cost was measured, or follows from it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from scripts.scale import breaking, constants, costs, document, likeness
from scripts.scale.figures import MEASURED, Figures
from scripts.scale.results import Results, read_results


def _constants() -> constants.Constants:
    return constants.Constants(
        database_bytes=20_000, listing_bytes=1_500, slim_record_bytes=35_000, compressed_bytes=1_000,
        publish_seconds=0.01, publish_seconds_per_pair=2e-7, publish_memory_start=5e8, publish_memory=10_000,
        publish_again_start=0.5, publish_again_seconds=0.001, purity_start=2.0, purity_seconds_per_pair=1e-6,
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
    assert found["publish from nothing"] == pytest.approx((1e6 * 0.01 + 1e12 * 2e-7) / 3600)
    assert found["publish from nothing, memory"] == pytest.approx(5e8 + 1e10)
    assert found["publish with nothing new"] == pytest.approx(1000.5)
    assert found["purity, time"] == pytest.approx((2 + (1e6 / 6) ** 2 * 1e-6) / 3600)
    assert found["purity, its table"] == pytest.approx(4 * (1e6 / 6) ** 2)
    assert costs.COSTS[-2].compute(c, 100_000) == pytest.approx(2 * (1e5 / 6) ** 2)
    assert set(constants.MEANING) == set(constants.Constants.__dataclass_fields__)


def test_machines_of_each_kind_and_accounts_are_counted_whole():
    c = _constants()
    # A million models are 58.2 hours of a line of 10 Gbit/s, and 33.3 hours of an account's quota.
    found = {cost.what: cost.compute(c, 1_000_000) for cost in costs.COSTS}
    assert found["large machines, to be done in a day"] == 3
    assert found["large machines, to be done in a week"] == 1
    assert found["small machines, to be done in a day"] == 25
    assert found["small machines, to be done in a week"] == 4
    assert found["accounts, to be done in a day"] == 2
    assert found["money: large machines"] == pytest.approx(58.2, abs=0.1)
    slow = replace(c, svd_seconds=45.0)  # then cores are what takes long: 602 hours of 16 of them
    assert costs.SMALL.machine_hours(slow, 1e6) == pytest.approx(1e6 * 0.77 * 45.1 / 3600 / 16)
    assert costs.SMALL.small_machine_hours(slow, 1e6) == pytest.approx(1e6 * 0.77 * 45.1 / 3600 / 2)


def test_models_of_seven_billion_parameters_have_a_quota_machines_and_money():
    c = _constants()
    found = {cost.what: cost.compute(c, 100_000) for cost in costs.LARGE}
    assert found["bytes fetched"] == pytest.approx(1.3e15)
    assert found["core hours"] == pytest.approx(1e5 * 76 * 0.55 / 3600)
    assert found["hours under the quota"] == pytest.approx(1e5 * 5 / 5000 * 5 / 60)
    assert found["large machines, to be done in a day"] == 13
    assert found["small machines, to be done in a week"] == 18
    assert found["money: large machines"] == pytest.approx(1.3e15 / 1.25e9 / 3600)
    assert found["money: keeping them for a year"] == pytest.approx(1e5 * 40e6 / 1e9 * 0.02 * 12)


# --- constants from what was measured


def _atlas(models: float, compressed: float | None = None) -> Figures:
    """One of so many models, by laws that are known."""
    figures = {
        "database_bytes": 4_000 * models, "listing_bytes": 1_500 * models, "record_bytes": 35_000 * models,
        "publish_seconds": 0.003 * models + 2e-7 * models**2, "publish_peak": 1.2e9 + 14_000 * models,
        "nothing_seconds": 0.7 + 0.0006 * models, "purity_seconds": 0.9 + 1e-6 * (models / 6) ** 2,
        "purity_models": round(0.128 * models),
    }  # fmt: skip
    return Figures(figures | ({} if compressed is None else {"compressed_bytes": compressed}))


def test_two_sizes_tell_what_grows_with_n_what_with_its_square_and_what_not_at_all():
    c = constants.constants_from({10_000: _atlas(1e4), 100_000: _atlas(1e5)}, {})
    assert (c.publish_seconds, c.publish_seconds_per_pair) == pytest.approx((0.003, 2e-7))
    assert (c.publish_memory_start, c.publish_memory) == pytest.approx((1.2e9, 14_000))
    assert (c.publish_again_start, c.publish_again_seconds) == pytest.approx((0.7, 0.0006))
    assert (c.purity_start, c.purity_seconds_per_pair) == pytest.approx((0.9, 1e-6))


@pytest.mark.parametrize("sizes", [[10_000], [10_000, 100_000], [1_000, 10_000, 100_000]])
def test_the_formulae_give_back_what_was_measured_at_the_largest_size(sizes):
    atlases = {size: _atlas(size) for size in sizes}
    c, largest = constants.constants_from(atlases, {}), max(sizes)
    found = {cost.what: cost.compute(c, largest) for cost in costs.COSTS}
    measured = atlases[largest].values
    assert found["purity, time"] == pytest.approx(measured["purity_seconds"] / 3600)
    assert found["publish with nothing new"] == pytest.approx(measured["nothing_seconds"])
    assert found["database"] == pytest.approx(measured["database_bytes"])
    if len(sizes) > 1:
        assert found["publish from nothing"] == pytest.approx(measured["publish_seconds"] / 3600)
        assert found["publish from nothing, memory"] == pytest.approx(measured["publish_peak"])


def test_one_size_does_not_tell_what_a_publish_takes_at_another():
    c = constants.constants_from({10_000: _atlas(1e4)}, {})
    assert (c.publish_seconds_per_pair, c.publish_memory) == (None, None)
    table = {row[0]: row[2:] for row in costs.costs_table(c)}
    assert set(table["publish from nothing"]) == set(table["publish from nothing, memory"]) == {"not measured"}
    assert not [limit for limit in breaking.limits(c) if "from nothing" in limit.what]


@pytest.mark.parametrize(
    ("measured", "each"),
    [({10: 5.0}, (0.0, 0.5)), ({10: 5.0, 20: 5.0}, (0.0, 0.25)), ({10: 1.0, 20: 4.0}, (0.0, 0.2))],
    ids=["one", "no growth", "more than growth"],
)
def test_what_no_line_fits_is_all_growth(measured, each):
    assert constants.with_start(measured) == pytest.approx(each)


@pytest.mark.parametrize(
    ("measured", "each"),
    [({10: 5.0, 20: 8.0}, (0.4, 0.0)), ({10: 1.0, 20: 8.0}, (0.0, 0.02)), ({10: 4.0, 20: 12.0}, (0.2, 0.02))],
    ids=["less for each", "more than squares", "both"],
)
def test_pairs_never_take_less_than_nothing(measured, each):
    assert constants.with_pairs(measured) == pytest.approx(each)


@pytest.mark.parametrize("refused", [None, 0], ids=["not kept", "kept as nothing"])
def test_an_index_that_was_refused_costs_no_bytes_and_sets_no_limit(refused):
    atlases = {100_000: _atlas(1e5, refused)}
    c = constants.constants_from(atlases, {})
    assert c.compressed_bytes is None
    assert not [limit for limit in breaking.limits(c) if "compressed" in limit.what]
    assert costs.shown(c.compressed_bytes, "bytes") == "not measured"
    assert constants.constants_from(atlases, {400: Figures({"compressed_bytes": 100})}).compressed_bytes == 0.25
    atlases[10_000] = _atlas(1e4, 20_000)
    assert constants.constants_from(atlases, {}).compressed_bytes == 2.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.25, "0.25 B"), (999.4, "999 B"), (999.6, "1 KB"), (2.6e12, "2.6 TB"), (1.3e15, "1.3 PB"), (2.6e18, "2,600 PB")],
)
def test_bytes_are_shown_in_three_digits_of_the_unit_that_fits(value, text):
    assert costs.shown(value, "bytes") == text


def test_every_limit_is_where_its_cost_reaches_it():
    c = _constants()
    at = {limit.what: limit.models for limit in breaking.limits(c)}
    assert list(at.values()) == sorted(at.values())
    cost = {one.what: one.compute for one in costs.COSTS}
    cost |= {f"7 billion: {one.what}": one.compute for one in costs.LARGE}
    for what, formula, value in (
        ("purity's table outgrows 8 GB", "purity, its table", 8e9),
        ("purity takes an hour", "purity, time", 1.0),
        ("one account's quota takes more than a day", "hours under the quota", 24.0),
        ("a line of 10 Gbit/s takes more than a day", "hours on the line", 24.0),
        ("a publish with nothing new takes a minute", "publish with nothing new", 60.0),
        ("the compressed index outgrows 1 GiB of a reader's memory", "compressed index, in memory", 2**30),
        ("the database outgrows 100 GB, and every publish copies it", "database", 100e9),
        ("records with factors outgrow 1 TB", "records with factors", 1e12),
        ("a publish from nothing takes a day", "publish from nothing", 24.0),
        ("a publish from nothing takes more than 8 GB of memory", "publish from nothing, memory", 8e9),
        ("7 billion parameters: the quota takes more than a day", "7 billion: hours under the quota", 24.0),
        ("7 billion parameters: the line takes more than a day", "7 billion: hours on the line", 24.0),
        ("7 billion parameters: records with factors outgrow 1 TB", "7 billion: records with factors", 1e12),
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
