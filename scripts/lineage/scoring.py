"""Scores of answers against the truth: exactly right, precision and recall of parents, errors of weights, by kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from scripts.family.plan import Oddity, Plan, Run

# Rows of the table, each with the groups of the forest that it counts.
KINDS: Mapping[str, tuple[str, ...]] = {
    "tuned from the base": ("root", "tuned", "sibling"),
    "sweep (runs from the base with other rates, lengths or seeds)": ("sweep",),
    "adapter on the base": ("adapter",),
    "parent not in the atlas": ("orphan",),
    "continued, first generation": ("child",),
    "continued, second generation": ("grandchild",),
    "continued from a run of a sweep": ("swept",),
    "continued from a run of a sweep, on its data, by its author": ("resumed",),
    "LoRA merged": ("lora",),
    "linear": ("linear",),
    "task arithmetic": ("task_arithmetic",),
    "SLERP": ("slerp",),
    "TIES": ("ties",),
    "DARE": ("dare",),
    "copy": ("plain",),
    "bf16, fp16": ("bfloat16", "float16"),
    "int8": ("int8",),
    "nf4": ("nf4",),
}
NO_PARENT = ("root", "tuned", "sibling", "sweep", "adapter", "orphan")
CONTINUED = ("child", "grandchild", "swept", "resumed")
EXACT = ("linear", "task_arithmetic")
TREE = ("root", "child", "grandchild")
# Boundaries of the classes of a reliability table.
CLASSES = (0.0, 0.1, 0.5, 0.8, 0.9, 0.95, 1.0)


class Answer(NamedTuple):
    """The parents named for one model, their ``weights``, and the bytes read for it."""

    parents: frozenset[str]
    weights: Mapping[str, float]
    bytes: int = 0


class Truth:
    """The plan of a forest. Exact copies of a model count as that model."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        self.nodes = {node["name"]: node for node in nodes}
        self.same = {
            node["name"]: node["parents"][0]
            for node in nodes
            if node["kind"] == "copy" and node["how"]["form"] == "plain"
        }

    @staticmethod
    def of_family(plan: Plan) -> Truth:
        """The demo's family as a forest: its indexed runs and copies, and their parents."""
        sweeps = Counter((run.author, run.dataset) for run in plan.runs if run.adapter is None)
        nodes: list[dict[str, Any]] = []
        for one in plan.repositories:
            parent = one.parent if isinstance(one, Run) else one.of if isinstance(one, Oddity) else None
            if not isinstance(one, Run):
                kind, group, how = ("copy", "plain", {"form": "plain"}) if parent else ("tuned", "tuned", {})
            elif one.adapter is not None:
                kind, group, how = "lora", "adapter", {}
            else:
                group = "child" if parent else "sweep" if sweeps[one.author, one.dataset] > 1 else "tuned"
                kind, how = "continued" if parent else "tuned", {}
            if one.expected.outcome == "indexed":
                nodes.append({"name": one.model, "kind": kind, "group": group, "how": how, "hidden": False,
                              "parents": [parent] if parent else []})  # fmt: skip
        return Truth(nodes)

    def one(self, name: str) -> str:
        """The name of the original, for a model and its plain copies."""
        return self.same.get(name, name)

    def parents(self, name: str) -> frozenset[str]:
        """The parents that could be named: uploaded ones."""
        node = self.nodes[name]
        return frozenset(self.one(parent) for parent in node["parents"] if not self.nodes[parent]["hidden"])

    def weights(self, name: str) -> Mapping[str, float]:
        """The weights of a merge with one recipe for all matrices."""
        node = self.nodes[name]
        given = node["how"].get("weights", ())
        return dict(zip(map(self.one, node["parents"]), given, strict=False)) if node["group"] in EXACT else {}

    def of(self, groups: Sequence[str]) -> list[str]:
        """The uploaded models of some groups."""
        return [name for name, node in self.nodes.items() if node["group"] in groups and not node["hidden"]]


def answers_of(answers: Sequence[Mapping[str, Any]], truth: Truth) -> dict[str, Answer]:
    """The answers in the rows of ``ask``; an edge of unknown direction does not name a parent."""
    found = {}
    for one in answers:
        rows = [
            row for row in one["rows"] if row["parent"] and row["parent"] != one["base"] and row["direction"] == "known"
        ]
        weights = {truth.one(row["parent"]): row["coefficient"] for row in rows}
        found[one["model"]] = Answer(frozenset(weights), weights, one["bytes"])
    return found


def rival_answers(parents: Mapping[str, str | None], root: str, truth: Truth) -> dict[str, Answer]:
    """The answers of the rival, which names one parent for each model; the base counts as no parent."""
    return {
        name: Answer(frozenset({truth.one(parent)} if parent not in (None, root) else ()), {})
        for name, parent in parents.items()
        if name != root
    }


def reliability(answers: Sequence[Mapping[str, Any]], truth: Truth) -> list[dict[str, Any]]:
    """By class of probability: the number of edges, their mean probability, and the share of them that are right.

    An edge is right if it names a parent of the model or of its original, or the base of a model without a parent.
    """
    steps = []
    for one in answers:
        if one["model"] in truth.nodes:
            true = truth.parents(one["model"]) | truth.parents(truth.one(one["model"]))
            for row in one["rows"]:
                right = not true if row["parent"] in (None, one["base"]) else truth.one(row["parent"]) in true
                steps.append((float(row["probability"]), right))
    found = []
    for low, high in pairwise(CLASSES):
        inside = [(probability, right) for probability, right in steps if low <= probability < high]
        if inside:
            probabilities, rights = zip(*inside, strict=True)
            found.append({"from": low, "to": high, "steps": len(inside), "mean": sum(probabilities) / len(inside),
                          "right": sum(rights) / len(inside)})  # fmt: skip
    return found


def score(answers: Mapping[str, Answer], truth: Truth, names: Sequence[str]) -> dict[str, Any]:
    """The scores of these models; a model without an answer counts as wrong, with no parent named.

    ``right``: the share that is exactly right. ``precision`` and ``recall`` of parents are None if none was named, or
    none exists. ``worst_weight``: the largest error of a weight of a merge with right parents. ``megabytes``: the most
    that was read for one model.
    """
    right = named = true = hit = 0
    errors = []
    for name in names:
        answer, parents = answers.get(name), truth.parents(name)
        named_parents = (answer.parents if answer else frozenset()) - ({truth.one(name)} - parents)
        named, true, hit = named + len(named_parents), true + len(parents), hit + len(named_parents & parents)
        if answer is not None and named_parents == parents:
            right += 1
            errors += [abs(answer.weights[one] - weight) for one, weight in truth.weights(name).items()]
    return {
        "models": len(names),
        "right": round(right / len(names), 4) if names else float("nan"),
        "precision": hit / named if named else None,
        "recall": hit / true if true else None,
        "worst_weight": max(errors, default=None),
        "megabytes": round(max((answers[name].bytes for name in names if name in answers), default=0) / 1e6, 2),
    }
