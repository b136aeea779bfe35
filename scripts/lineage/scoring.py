"""Answers against the truth: exactly right, precision and recall of parents, errors of weights, by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Rows of the table: what is counted together, by the forest's own groups.
KINDS: Mapping[str, tuple[str, ...]] = {
    "tuned from the base": ("root", "tuned", "sibling"),
    "sweep (one seed, three learning rates)": ("sweep",),
    "parent not in the atlas": ("orphan",),
    "continued, first generation": ("child",),
    "continued, second generation": ("grandchild",),
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
NO_PARENT = ("root", "tuned", "sibling", "sweep", "orphan")
CONTINUED = ("child", "grandchild")
EXACT = ("linear", "task_arithmetic")
TREE = ("root", "child", "grandchild")


@dataclass(frozen=True)
class Answer:
    """What was named for one model; ``weights`` by parent, where they were told."""

    parents: frozenset[str]
    weights: Mapping[str, float]
    bytes: int = 0
    models: int = 0


@dataclass(frozen=True)
class Score:
    """Of a set of models. ``worst_weight``: the largest error of a merge's weight where its parents are right."""

    models: int
    right: int
    named: int
    true: int
    hit: int
    worst_weight: float | None
    megabytes: float

    @property
    def share(self) -> float:
        """Exactly right."""
        return self.right / self.models if self.models else float("nan")

    @property
    def precision(self) -> float | None:
        """Of the parents that were named, those that are."""
        return self.hit / self.named if self.named else None

    @property
    def recall(self) -> float | None:
        """Of the parents that are, those that were named."""
        return self.hit / self.true if self.true else None

    def as_row(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "models": self.models,
            "right": round(self.share, 4),
            "precision": self.precision,
            "recall": self.recall,
            "worst_weight": self.worst_weight,
            "megabytes": round(self.megabytes, 2),
        }


class Truth:
    """The plan of a forest, as the scores need it. Models that are copies bit by bit count as one another."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        self.nodes = {node["name"]: node for node in nodes}
        self.same = {
            node["name"]: node["parents"][0]
            for node in nodes
            if node["kind"] == "copy" and node["how"]["form"] == "plain"
        }

    def one(self, name: str) -> str:
        """The name that stands for a model and its plain copies."""
        return self.same.get(name, name)

    def parents(self, name: str) -> frozenset[str]:
        """Those that could be named: uploaded ones."""
        node = self.nodes[name]
        return frozenset(self.one(parent) for parent in node["parents"] if not self.nodes[parent]["hidden"])

    def weights(self, name: str) -> Mapping[str, float]:
        """Of a merge by one recipe for all matrices."""
        node = self.nodes[name]
        given = node["how"].get("weights", ())
        return dict(zip(map(self.one, node["parents"]), given, strict=False)) if node["group"] in EXACT else {}

    def of(self, groups: Sequence[str]) -> list[str]:
        """The uploaded models of some groups."""
        return [name for name, node in self.nodes.items() if node["group"] in groups and not node["hidden"]]


def answers_of(told: Sequence[Mapping[str, Any]], truth: Truth) -> dict[str, Answer]:
    """From the command's rows; an edge of unknown direction names no parent."""
    found = {}
    for one in told:
        rows = [
            row for row in one["rows"] if row["parent"] and row["parent"] != one["base"] and row["direction"] == "known"
        ]
        weights = {truth.one(row["parent"]): row["coefficient"] for row in rows}
        found[one["model"]] = Answer(frozenset(weights), weights, one["bytes"], one["models"])
    return found


def rival_answers(parents: Mapping[str, str | None], root: str, truth: Truth) -> dict[str, Answer]:
    """The rival names one parent each; the base is none to name, nor is having none."""
    return {
        name: Answer(frozenset({truth.one(parent)} if parent not in (None, root) else ()), {})
        for name, parent in parents.items()
        if name != root
    }


def score(answers: Mapping[str, Answer], truth: Truth, names: Sequence[str]) -> Score:
    """Of these models; one without an answer counts as wrong, with no parent named."""
    right = named = true = hit = 0
    errors = []
    for name in names:
        answer, parents = answers.get(name), truth.parents(name)
        told = (answer.parents if answer else frozenset()) - ({truth.one(name)} - parents)
        right += answer is not None and told == parents
        named, true, hit = named + len(told), true + len(parents), hit + len(told & parents)
        if answer is not None and told == parents:
            errors += [abs(answer.weights[one] - weight) for one, weight in truth.weights(name).items()]
    read = [answers[name].bytes for name in names if name in answers]
    return Score(len(names), right, named, true, hit, max(errors, default=None), max(read, default=0) / 1e6)
