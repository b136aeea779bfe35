"""Made-up results as a page and as a picture."""

from __future__ import annotations

import pytest

from scripts.reproduce import page
from scripts.reproduce.page import draw_purity, from_hub, number
from scripts.reproduce.study import REPRESENTATIONS
from scripts.tables import markdown

HOSTILE = "<b>x</b>|`a`\x1b[31m"


def reply(answer, file=None, error=None):
    return {"command": "query x", "seconds": 1.5, "answer": answer, "file": file, "error": error}


def purity_answer(plain, across):
    numbers = {"chance": 0.1, "ci_low": 0.2, "ci_high": 0.9, "p_value": 0.001}
    one, other = ({"purity": value, **(numbers if value is not None else {})} for value in (plain, across))
    note = {} if plain is not None else {"note": "No two models share a dataset."}
    return {**one, "cross_author": other, "models": 9, "datasets": 2, **note}


def results_of(base="org/one", check=None, **replies):
    counts = dict.fromkeys(("indexed", "skipped", "failed", "not_tried", "copy", "duplicate", "unrelated"), 1)
    counts |= {"adapters": 3, "datasets": 4, "authors": 3, "reasons": {"gated": 2}}
    return {
        "original_base": "roberta-base", "base": base, "commit": "c" * 40, "bytes_read": 5_000_000, "counts": counts,
        "check": check,
        "replies": {name.replace("_", "-"): reply(answer) for name, answer in replies.items()},
    }  # fmt: skip


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
    one = results_of(purity_seed=purity_answer(0.25, 0.2), purity_input=purity_answer(0.75, 0.1))
    two = results_of("org/two", purity_seed=purity_answer(0.5, 0.3), purity_input=purity_answer(None, None))
    text = page.purity([one, two])
    head, *rows = rows_below(text, "## Purity")
    assert head == ["representation", "`org/one`", "`org/two`"]
    cells = dict(zip(REPRESENTATIONS, (row[1:] for row in rows), strict=True))
    assert cells["input"][0] == "**0.75** (0.20–0.90), chance 0.100, p 0.001"
    assert cells["seed"] == ["0.25 (0.20–0.90), chance 0.100, p 0.001", "**0.50** (0.20–0.90), chance 0.100, p 0.001"]
    assert cells["input"][1] == "No two models share a dataset."
    assert cells["output"] == ["–", "–"]
    across = rows_below(text, "left out of its neighbours")
    assert across[1][1].startswith("**0.20**")  # the best across authors is another than the best of all


def test_rank_equations_of_weights_and_change_are_side_by_side():
    one = results_of(
        rank_weights={"families": {"query": family(8.0, 6.0, "rank ≈ 8 − x")}},
        rank_delta={"families": {"query": family(2.0, 1.0, "rank ≈ 2"), "key": family(3.0, 3.0, "rank ≈ 3")}},
        rank_delta_whole={"families": {"query_key_value": family(4.0, 4.0, "rank ≈ 4"), "key": family(0, 0, "no")}},
    )
    _, *rows = rows_below(page.ranks([one]), "## Rank")
    assert rows == [
        ["`query`", "8.0 to 6.0", "`rank ≈ 8 − x`", "2.0 to 1.0", "`rank ≈ 2`"],
        ["`key`", "–", "–", "3.0 to 3.0", "`rank ≈ 3`"],
        ["`query_key_value`", "–", "–", "4.0 to 4.0", "`rank ≈ 4`"],
    ]


def test_clusters_have_their_agreement_and_what_was_made_is_one_table():
    row = {"labels": "datasets", "measure": "ari", "among": "all", "value": 0.8, "chance": -0.001, "p_value": 0.001}
    one = results_of(clusters_input={"clusters": [1, 2], "clustered": 6, "models": 9, "agreement": [row]})
    _, cells = rows_below(page.clusters([one]), "## Clusters")
    assert cells == ["`org/one`", "`input`", "2", "6 of 9", "0.80 (0.00, 0.001)", "–", "–", "–", "–"]
    kinds = [{"kind": "ordinary", "models": 5, "as_expected": 4, "why": "As it is."},
             {"kind": "copy", "models": 1, "as_expected": 1, "why": "The same."}]  # fmt: skip
    mismatch = {"model": "a/x", "expected": "indexed", "found": "skipped gated", "why": "Why."}
    one["check"] = {"kinds": kinds, "mismatches": [mismatch], "not_tried": 3}
    two = results_of("org/two", check={"kinds": kinds[:1], "mismatches": [], "not_tried": 0})
    text = page.planted([one, two])
    assert rows_below(text, "planted")[1:] == [
        ["ordinary", "4 of 5", "4 of 5", "As it is."],
        ["copy", "1 of 1", "–", "The same."],
    ]
    assert rows_below(text, "Not as expected")[1] == ["`a/x`", "indexed", "skipped gated", "Why."]
    assert "3 models are beyond the limit" in text


def test_text_of_the_hub_does_not_become_markup():
    one = results_of(purity_input=purity_answer(0.5, 0.5))
    one["replies"]["report"] = reply(None, error=HOSTILE)
    one["replies"]["map-input"] = reply({}, "figures/map.png")
    one["replies"]["page"] = reply({}, "reports/one.html")
    text = page.page({"source": "x", "limit": 50, "versions": {}, "bases": [one]})
    assert "<b>" not in text
    assert "\x1b" not in text
    assert rows_below(text, "Without an answer")[1][1] == "&lt;b&gt;x&lt;/b&gt;¦\\`a\\`\\\\x1b\\[31m"
    assert "\n![map-input](figures/map.png)\n" in text
    assert "\n[page](reports/one.html)\n" in text
    assert markdown([["a"], ["b\nc|d"]]).splitlines()[2] == "| b c\\|d |"
    assert (number(-0.001, 2), number(None, 2), number(1.25, 1)) == ("0.00", "–", "1.2")
    assert from_hub("a*b") == "a\\*b"


@pytest.mark.parametrize("count", [1, 3])
def test_the_figure_has_a_panel_for_each_base(tmp_path, count):
    bases = [
        results_of(f"org/$x_{at}", purity_input=purity_answer(0.5, None), purity_seed=purity_answer(None, None))
        for at in range(count)
    ]
    draw_purity(bases, tmp_path / "purity.svg")
    drawn = (tmp_path / "purity.svg").read_text()
    assert [f"org/$x_{at}" in drawn for at in range(count)] == [True] * count
