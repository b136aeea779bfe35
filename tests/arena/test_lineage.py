"""How the arena counts answers of lineage, and what it prints, against small cases counted by hand."""

from __future__ import annotations

import pytest

from studies.arena import lineage
from studies.lineage.plan import MIXED, RECIPES, SHAPES, plan_forest
from studies.lineage.study import Truth

BASE = "b/base"


def node(name, group, *above, hidden=False):
    return {
        "name": name, "group": group, "parents": list(above), "kind": "continued", "hidden": hidden,
        "how": {"recipe": "SGD"},
    }  # fmt: skip


def truth():
    return Truth(
        [
            node("r", "root"), node("s", "sibling"), node("c", "child", "r"), node("d", "child", "r"),
            node("g", "grandchild", "c"), node("h", "hidden", hidden=True), node("o", "orphan", "h"),
        ]
    )  # fmt: skip


def answer(model, parent=BASE, direction="known", probability=0.9):
    row = {"parent": parent, "direction": direction, "probability": probability, "coefficient": 1.0, "evidence": "base"}
    return {"model": model, "base": BASE, "bytes": 10, "rows": [row]}


ROWS = {
    "dates": [answer("r"), answer("s", "r"), answer("c", "r"), answer("d", "c"), answer("g", "c"), answer("o", "r")],
    "no dates": [
        answer("r", "d"),
        answer("s"),
        answer("c", "r"),
        answer("d"),
        answer("g", "c", "unknown"),
        answer("o"),
    ],
    "parent left out": [answer("c"), answer("d", "c"), answer("g", "r")],
}


def test_each_kind_of_model_is_counted():
    found = lineage.by_kind(ROWS, truth(), BASE, ["r", "s", "c", "d", "g", "o"])
    assert found["tuned"] == {"models": 2, "right": 1, "named": 1, "hit": 0, "parents": 0}
    assert found["orphans"] == {"models": 1, "right": 0, "named": 1, "hit": 0, "parents": 0}
    assert found["continued"] == {"models": 3, "right": 2, "named": 3, "hit": 2, "parents": 3}
    assert found["direction"] == {"known": 1, "unknown": 1, "reversed": 1, "none": 0}
    assert found["left out"] == {"nobody": 1, "ancestor": 1, "unsure": 0, "other": 1}


def test_another_model_of_unknown_direction_is_not_a_wrong_parent():
    rows = ROWS | {"parent left out": [answer("c", "s", "unknown"), answer("d"), answer("g")]}
    found = lineage.by_kind(rows, truth(), BASE, ["c", "d", "g"])
    assert found["left out"] == {"nobody": 2, "ancestor": 0, "unsure": 1, "other": 0}


def test_calibrations_of_two_forests_add_up_to_that_of_all_edges():
    first, second = [(0.95, True), (0.97, False), (0.3, False)], [(0.96, True), (0.85, True)]
    together, whole = lineage.pooled([lineage.calibration(one) for one in (first, second)]), [*first, *second]
    assert together["steps"] == 5
    assert together["brier"] == pytest.approx(sum((said - right) ** 2 for said, right in whole) / 5, abs=1e-3)
    top = together["classes"][-1]
    assert (top["from"], top["steps"]) == (0.95, 3)
    assert top["right"] == pytest.approx(2 / 3, abs=1e-3)
    # Of .3 none is right, of .85 all, of the three above .95 (mean .96) two thirds.
    assert together["error"] == pytest.approx((0.3 + 0.15 + 3 * (0.96 - 2 / 3)) / 5, abs=1e-3)


def test_tables_show_every_recipe_forest_and_class():
    groups = [{"recipe": "SGD", "rival": 0.5, **lineage.by_kind(ROWS, truth(), BASE, ["r", "s", "c", "d", "g", "o"])}]
    calibrated = lineage.calibration([(0.97, True), (0.2, False)])
    forest = {
        "name": "BERT 1", "is_chosen_on": False, "models": 6, "groups": groups, "megabytes": 2.5, "seconds": 1.5,
        "calibration": dict.fromkeys(("dates", "no dates", "parent left out"), calibrated),
    }  # fmt: skip
    figures = {"forests": [forest], "cost": {"models": 73, "seconds": 14.6, "one": 3.7}}
    found = lineage.tables(figures)
    assert "| SGD | .67 of 3 | .40 | .50 | .50 of 2 | .00 of 1 | .33, .33, .33 | .33, .33, .33 |" in found
    assert "| BERT 1 | 6 | .50 | .67 | 2 of 5 | .020 | .115 | 2.5 MB | .25 |" in found
    assert "| .95 to 1.00 | .97, 1.00, 1 | .97, 1.00, 1 |" in found
    assert "14.6 s of processor, .20 s a model" in found


def test_a_forest_of_recipes_has_a_tree_of_each_and_one_of_all():
    nodes = plan_forest(SHAPES["recipes"], ("a", "b", "c"), seed=1)
    by_name = {one.name: one for one in nodes}
    for name in [*(recipe.name for recipe in RECIPES), MIXED]:
        mine = [one for one in nodes if one.how["recipe"] == name]
        count = {group: sum(one.group == group for one in mine) for group in ("root", "child", "grandchild", "orphan")}
        assert count == {"root": 2, "child": 4, "grandchild": 4, "orphan": 3}
        for one in mine:
            assert all(by_name[parent].how["recipe"] == name for parent in one.parents)
            assert all(by_name[parent].created < one.created for parent in one.parents)
    mixed = {one.how["optimiser"] for one in nodes if one.how["recipe"] == MIXED}
    assert len(mixed) >= 3
    rates = [one.how["learning_rate"] for one in nodes if one.how["recipe"].startswith("bf16")]
    assert 1.5e-5 <= min(rates) <= max(rates) <= 3e-5
