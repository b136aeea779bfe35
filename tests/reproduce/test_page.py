"""Made-up results as a page, as pictures and as a file."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scripts.reproduce import page, study
from scripts.reproduce.page import draw_purity, from_hub, number, table
from scripts.reproduce.planted import Check, Kind, Mismatch
from tests.reproduce.made_up import base_results, purity_answer, reply, results

HOSTILE = "<b>x</b>|`a`\x1b[31m"


def rows_below(text, title):
    """The cells of the first table of a section."""
    lines = text.partition(title)[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")])
    assert len({len(row) for row in rows}) == 1
    return [rows[0], *rows[2:]]


def family(first, last, equation):
    return {"ranks": [first, None, last], "fit": {"equation": equation}}


def test_the_best_purity_of_each_base_is_bold():
    one = base_results(seed=purity_answer(0.25, 0.2), input=purity_answer(0.75, 0.1))
    two = base_results("org/two", seed=purity_answer(0.5, 0.3), input=purity_answer(None, None))
    text = page.purity(results(one, two))
    head, *rows = rows_below(text, "## Purity")
    assert head == ["representation", "`org/one`", "`org/two`"]
    cells = dict(zip(study.REPRESENTATIONS, (row[1:] for row in rows), strict=True))
    assert cells["input"][0] == "**0.75** (0.20–0.90), chance 0.100, p 0.001"
    assert cells["seed"] == [
        "0.25 (0.20–0.90), chance 0.100, p 0.001",
        "**0.50** (0.20–0.90), chance 0.100, p 0.001",
    ]
    assert cells["input"][1] == "No two models share a dataset."
    assert cells["output"] == ["–", "–"]
    across = rows_below(text, "left out of its neighbours")
    assert across[1][1].startswith("**0.20**")  # the best across authors is another than the best of all


def test_rank_equations_of_weights_and_change_stand_side_by_side():
    one = base_results()
    made = {
        "rank-weights": {"families": {"query": family(8.0, 6.0, "rank ≈ 8 − x")}},
        "rank-delta": {"families": {"query": family(2.0, 1.0, "rank ≈ 2"), "key": family(3.0, 3.0, "rank ≈ 3")}},
        "rank-delta-whole": {"families": {"query_key_value": family(4.0, 4.0, "rank ≈ 4"), "key": family(0, 0, "no")}},
    }
    one = replace(one, replies={name: reply(name, answer) for name, answer in made.items()})
    _, *rows = rows_below(page.ranks(results(one)), "## Rank")
    assert rows == [
        ["`query`", "8.0 to 6.0", "`rank ≈ 8 − x`", "2.0 to 1.0", "`rank ≈ 2`"],
        ["`key`", "–", "–", "3.0 to 3.0", "`rank ≈ 3`"],
        ["`query_key_value`", "–", "–", "4.0 to 4.0", "`rank ≈ 4`"],
    ]


def test_agreement_of_clusters_with_its_chance():
    row = {"labels": "datasets", "measure": "ari", "among": "all", "value": 0.8, "chance": -0.001, "p_value": 0.001}
    answer = {"clusters": [1, 2], "clustered": 6, "models": 9, "agreement": [row]}
    one = replace(base_results(), replies={"clusters-input": reply("clusters-input", answer)})
    _, cells = rows_below(page.clusters(results(one)), "## Clusters")
    assert cells == ["`org/one`", "`input`", "2", "6 of 9", "0.80 (0.00, 0.001)", "–", "–", "–", "–"]


def test_what_was_planted_is_one_table_and_mismatches_are_named():
    kinds = (Kind("ordinary", 5, 4, "a/b", "As it is."), Kind("copy", 1, 1, "a/c", "The same."))
    mismatch = Mismatch("a/x", "indexed", "skipped (gated)", "Why.")
    one = replace(base_results(), check=Check(kinds, (mismatch,), 3))
    two = replace(base_results("org/two"), check=Check(kinds[:1], ()))
    text = page.planted(results(one, two))
    assert rows_below(text, "planted")[1:] == [
        ["ordinary", "4 of 5", "4 of 5", "As it is."],
        ["copy", "1 of 1", "–", "The same."],
    ]
    assert rows_below(text, "Otherwise")[1] == ["`a/x`", "indexed", "skipped (gated)", "Why."]
    assert "3 models lie beyond the limit" in text


def test_nothing_of_the_hub_becomes_markup(tmp_path):
    one = base_results(input=purity_answer(0.5, 0.5, dataset=HOSTILE))
    failed = replace(reply("report", None), error=HOSTILE)
    one = replace(one, replies=one.replies | {"report": failed})
    text = page.page(results(one))
    assert "<b>" not in text
    assert "\x1b" not in text
    assert rows_below(text, "## Purity by dataset")[1][0] == "&lt;b&gt;x&lt;/b&gt;¦\\`a\\`\\\\x1b\\[31m"
    assert rows_below(text, "Without an answer")[1][1].startswith("&lt;b&gt;")


def test_figures_are_shown_and_pages_are_linked():
    made = [reply("map-input", {}, "figures/map.svg"), reply("rank-delta", {}, "figures/rank.pdf"), reply("x", {})]
    one = replace(base_results(), replies={each.name: each for each in made})
    lines = page.pictures(results(one)).splitlines()
    assert "![map-input](figures/map.svg)" in lines
    assert "[rank-delta](figures/rank.pdf)" in lines
    assert "![Purity by representation](figures/purity.png)" in lines


def test_a_cell_cannot_end_its_row():
    assert table(["a"], [["b\nc|d"]]).splitlines()[2] == "| b c\\|d |"
    assert (number(-0.001, 2), number(None, 2), number(1.25, 1)) == ("0.00", "–", "1.2")
    assert from_hub("a*b") == "a\\*b"


@pytest.mark.parametrize("count", [1, 3])
def test_the_figure_has_a_panel_for_each_base(tmp_path, count):
    made = [
        base_results(f"org/$x_{at}", input=purity_answer(0.5, None), seed=purity_answer(None, None))
        for at in range(count)
    ]
    draw_purity(results(*made), tmp_path / "purity.svg")
    drawn = (tmp_path / "purity.svg").read_text()
    assert [f"org/$x_{at}" in drawn for at in range(count)] == [True] * count
    draw_purity(results(*made), tmp_path / "purity.png")
    assert (tmp_path / "purity.png").read_bytes().startswith(b"\x89PNG")


def test_results_can_be_read_again(tmp_path):
    made = results(
        replace(base_results(input=purity_answer(0.5, 0.4)), check=Check((), (Mismatch("a", "b", "c", "d"),)))
    )
    made.write(tmp_path / "results.json")
    (one,) = json.loads((tmp_path / "results.json").read_text())["bases"]
    assert one["replies"]["purity-input"]["answer"]["purity"] == 0.5
    assert one["check"]["mismatches"][0]["model"] == "a"
    assert one["counts"]["reasons"] == {"gated": 2}
