"""Forests of models trained in ways that no threshold of lineage was set on, and what ``query lineage`` says of them."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from query import Atlas
from scripts.family.plan import load_plan
from scripts.loopback_hub import LoopbackHub
from scripts.tables import decimal, markdown
from scripts.terminal import Terminal
from studies.arena.scores import Json
from studies.lineage.study import CLASSES, Truth, answers_of, asked, judged, reliability, rivals, score


class Forest(NamedTuple):
    """A forest of one architecture, shape and seed, and whether something was chosen on it."""

    name: str
    architecture: str
    shape: str
    seed: int
    is_chosen_on: bool


FORESTS = (
    Forest("RoBERTa 401", "roberta", "recipes-short", 401, True),
    Forest("ViT 402", "vit", "recipes", 402, True),
    Forest("BERT 403", "bert", "recipes-short", 403, False),
    Forest("ViT 404", "vit", "recipes-short", 404, False),
)
WAYS: Mapping[str, tuple[str, ...]] = {
    "dates": (), "no dates": ("--no-dates",), "parent left out": ("--no-parents",),
}  # fmt: skip
KINDS = {"tuned": ("root", "sibling"), "orphans": ("orphan",), "continued": ("child", "grandchild")}
RIVAL = "MoTHer given root and dates"


def run(out: Path) -> Json:
    """Make the forests that are not there, ask them in three ways, and time ``query lineage --all`` on the demo's family."""
    folder = out / "lineage"
    forests = [measured(one, folder / f"{one.architecture}-{one.seed}") for one in FORESTS]
    return {"forests": forests, "cost": cost(out)}


def measured(forest: Forest, folder: Path) -> Json:
    """The figures of one forest. Answers are kept there; remove the JSON files next to the atlas to ask again."""
    folder.mkdir(parents=True, exist_ok=True)
    which = folder, forest.architecture, forest.shape, forest.seed
    rows, known, base, seconds = asked(*which, WAYS, is_kept=True)
    rival = rivals(folder / f"{forest.shape}-{forest.architecture}", base, known)[RIVAL]
    recipes = {name: node["how"]["recipe"] for name, node in known.nodes.items() if not node["hidden"]}
    groups = []
    for recipe in dict.fromkeys(recipes.values()):
        names = [name for name, one in recipes.items() if one == recipe]
        group = by_kind(rows, known, base, names)
        continued = [name for name in names if known.parents(name)]
        groups.append({"recipe": recipe, **group, "rival": score(rival, known, continued)["right"]})
    tallies: dict[str, list[int]] = {}
    for one in rows["dates"]:
        for row, (_, is_right) in zip(one["rows"], judged([one], known), strict=True):
            tally = tallies.setdefault(row["evidence"], [0, 0])
            tally[0], tally[1] = tally[0] + is_right, tally[1] + 1
    left_out = [
        (float(row["probability"]), row["parent"] in (None, base))
        for one in rows["parent left out"]
        for row in one["rows"]
    ]
    return {
        **forest._asdict(),
        "models": len(recipes),
        "groups": groups,
        "calibration": {
            "dates": calibration(judged(rows["dates"], known)),
            "no dates": calibration(judged(rows["no dates"], known)),
            "parent left out": calibration(left_out),
        },
        "evidence": dict(sorted(tallies.items())),
        "megabytes": round(max(one["bytes"] for one in rows["dates"]) / 1e6, 2),
        "seconds": seconds["dates"],
    }


def calibration(steps: Sequence[tuple[float, bool]]) -> Json:
    """The classes of ``reliability``, and the Brier score of all edges."""
    classes = [row | {"mean": round(row["mean"], 4), "right": round(row["right"], 4)} for row in reliability(steps)]
    brier = sum((probability - is_right) ** 2 for probability, is_right in steps) / len(steps)
    return {"classes": classes, "brier": round(brier, 6)}


def pooled(found: Sequence[Json]) -> Json:
    """Calibrations of several forests as one, with ``error``: the mean distance of said and right (ECE)."""
    classes = []
    for low in CLASSES[:-1]:
        same = [row for one in found for row in one["classes"] if row["from"] == low]
        if steps := sum(row["steps"] for row in same):
            mean, right = (sum(row["steps"] * row[key] for row in same) / steps for key in ("mean", "right"))
            classes.append({"from": low, "to": same[0]["to"], "steps": steps, "mean": mean, "right": right})
    counts = [sum(row["steps"] for row in one["classes"]) for one in found]
    brier = sum(count * one["brier"] for count, one in zip(counts, found, strict=True)) / sum(counts)
    error = sum(row["steps"] * abs(row["mean"] - row["right"]) for row in classes) / sum(counts)
    return {"classes": classes, "brier": brier, "error": error, "steps": sum(counts)}


def by_kind(rows: Mapping[str, Sequence[Json]], known: Truth, base: str, names: Sequence[str]) -> Json:
    """Counts of the models ``names`` of one recipe.

    By kind of model: the number, how many have exactly the right answer, and how many parents were named, rightly or
    not. Without dates, of the continued models: the parent named and its direction known, unknown or reversed (the
    model is named as its parent's parent). With the parent left out: nobody, an ancestor or another model named.
    """
    found: Json = {}
    answers = answers_of(rows["dates"], known)
    for kind, groups in KINDS.items():
        mine = [name for name in names if known.nodes[name]["group"] in groups]
        named = [(name, parent) for name in mine for parent in answers[name].parents]
        found[kind] = {
            "models": len(mine),
            "right": sum(answers[name].parents == known.parents(name) for name in mine),
            "named": len(named),
            "hit": sum(parent in known.parents(name) for name, parent in named),
            "parents": sum(len(known.parents(name)) for name in mine),
        }
    undated = {one["model"]: one["rows"] for one in rows["no dates"]}
    continued = [name for name in names if known.parents(name)]
    direction = dict.fromkeys(("known", "unknown", "reversed", "none"), 0)
    for name in continued:
        (parent,) = known.parents(name)
        said = [row["direction"] for row in undated[name] if row["parent"] == parent]
        back = [row for row in undated[parent] if row["parent"] == name and row["direction"] == "known"]
        direction[said[0] if said else "reversed" if back else "none"] += 1
    found["direction"] = direction
    left_out = {one["model"]: one["rows"] for one in rows["parent left out"]}
    outcome = dict.fromkeys(("nobody", "ancestor", "unsure", "other"), 0)
    for name in continued:
        row = left_out[name][0]
        above = ancestors(known, name)
        key = "nobody" if row["parent"] in (None, base) else "ancestor" if row["parent"] in above else "other"
        outcome["unsure" if key == "other" and row["direction"] != "known" else key] += 1
    found["left out"] = outcome
    return found


def ancestors(known: Truth, name: str) -> set[str]:
    """All models that a model was made from, directly or not."""
    found: set[str] = set()
    waiting = list(known.nodes[name]["parents"])
    while waiting:
        parent = waiting.pop()
        found.add(parent)
        waiting += known.nodes[parent]["parents"]
    return found


def cost(out: Path) -> Json:
    """Seconds of processor that ``query lineage --all`` takes for the demo's family, and for one of its models."""
    from scripts.family import make_family

    plan = load_plan("demo", "roberta")
    store, folder = make_family(out / "demo-roberta", "demo", "roberta"), out / "lineage" / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    with LoopbackHub(store) as hub:
        terminal = Terminal.of_hub(folder, hub.endpoint)
        if not (folder / "atlas" / "atlas.duckdb").exists():
            terminal(f"index build --base {plan.base} --discover names", show=False)
        everything = processor_seconds(lambda: terminal("query lineage --all --json", show=False))
        with Atlas(folder / "atlas") as atlas:
            models = [row["model"] for row in atlas.rows("SELECT model FROM models ORDER BY created")]
        one = processor_seconds(lambda: terminal(f"query lineage {models[-1]} --fresh --json", show=False))
    return {"models": len(models), "seconds": round(everything, 2), "one": round(one, 2)}


def processor_seconds(command: Callable[[], object]) -> float:
    """What the child processes of a command took, of all cores together."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tables(figures: Json) -> str:
    """By recipe, for the forests that nothing was chosen on and for the others; then by forest; then probabilities."""
    forests = figures["forests"]
    parts = []
    for is_chosen_on, title in (
        (False, "Forests that nothing was chosen on"),
        (True, "Forests that were looked at first"),
    ):
        some = [one for one in forests if one["is_chosen_on"] == is_chosen_on]
        if not some:
            continue
        names = ", ".join(f"{one['name']} ({one['models']})" for one in some)
        parts += [f"**{title}**: {names} models.", by_recipe(some)]
    parts += ["**By forest**", by_forest(forests), "**Probabilities**", probabilities(forests)]
    paid = figures["cost"]
    parts.append(
        f"`query lineage --all` over the demo's {paid['models']} models: {paid['seconds']:.1f} s of processor, "
        f"{decimal(paid['seconds'] / paid['models'], 2)} s a model; one model alone: {paid['one']:.1f} s."
    )
    return "\n\n".join(parts)


def by_recipe(forests: Sequence[Json]) -> str:
    """One row for each recipe, summed over the forests."""
    head = ["trained with", "continued: right", "precision", "MoTHer", "tuned: nobody named", "parent hidden: nobody named",
            "parent left out: nobody, an ancestor, another", "no dates: right, unknown, reversed"]  # fmt: skip
    recipes = dict.fromkeys(group["recipe"] for one in forests for group in one["groups"])
    rows = [head]
    for recipe in [*recipes, "all"]:
        groups = [group for one in forests for group in one["groups"] if recipe in ("all", group["recipe"])]

        def total(kind: str, key: str, groups: Sequence[Json] = groups) -> int:
            return sum(group[kind][key] for group in groups)

        continued, named = total("continued", "models"), sum(total(kind, "named") for kind in KINDS)
        rival = sum(group["rival"] * group["continued"]["models"] for group in groups)
        hit = sum(total(kind, "hit") for kind in KINDS)
        out = total("left out", "nobody"), total("left out", "ancestor"), total("left out", "other")
        way = total("direction", "known"), total("direction", "unknown"), total("direction", "reversed")
        rows.append(
            [
                recipe,
                f"{share(total('continued', 'right'), continued)} of {continued}",
                share(hit, named),
                share(rival, continued),
                *(f"{share(total(kind, 'right'), total(kind, 'models'))} of {total(kind, 'models')}"
                  for kind in ("tuned", "orphans")),
                ", ".join(share(count, continued) for count in out),
                ", ".join(share(count, continued) for count in way),
            ]
        )  # fmt: skip
    return markdown(rows)


def by_forest(forests: Sequence[Json]) -> str:
    """One row for each forest."""
    rows = [["forest", "models", "all right", "continued right", "named parents that are right", "Brier score",
             "calibration error", "most read", "s a model"]]  # fmt: skip
    for one in forests:
        kinds = {
            kind: [sum(group[kind][key] for group in one["groups"]) for key in ("right", "models")] for kind in KINDS
        }
        right, models = map(sum, zip(*kinds.values(), strict=True))
        hit, named = (sum(group[kind][key] for group in one["groups"] for kind in KINDS) for key in ("hit", "named"))
        error = pooled([one["calibration"]["dates"]])["error"]
        rows.append([one["name"], str(models), share(right, models), share(*kinds["continued"]), f"{hit} of {named}",
                     decimal(one["calibration"]["dates"]["brier"]), decimal(error), f"{one['megabytes']:.1f} MB",
                     decimal(one["seconds"] / models, 2)])  # fmt: skip
    return markdown(rows)


def probabilities(forests: Sequence[Json]) -> str:
    """Said and right by class of probability, with dates and all parents there, and with parents left out."""
    head, columns = ["probability"], []
    for is_chosen_on, name in ((True, "looked at first"), (False, "not chosen on")):
        for way in ("dates", "parent left out"):
            found = [one["calibration"][way] for one in forests if one["is_chosen_on"] == is_chosen_on]
            if found:
                columns.append(pooled(found))
                head.append(f"{name}{'' if way == 'dates' else ', parents left out'}: said, right, steps")
    rows = [head]
    for low, high in pairwise(CLASSES):
        cells = []
        for column in columns:
            row = next((one for one in column["classes"] if one["from"] == low), None)
            cells.append(
                "–" if row is None else f"{decimal(row['mean'], 2)}, {decimal(row['right'], 2)}, {row['steps']}"
            )
        rows.append([f"{decimal(low, 2)} to {decimal(high, 2)}", *cells])
    for key, name in (("brier", "Brier score"), ("error", "calibration error")):
        rows.append([name, *(decimal(column[key]) for column in columns)])
    return markdown(rows)


def share(count: float, of: float) -> str:
    """A share with two digits; a dash where there is nothing."""
    return decimal(count / of, 2) if of else "–"
