"""One forest from training to scores: make it, index it, ask for its lineage in four ways, and compare with a rival.

The rival is MoTHer's published rule (Horwitz et al., ICLR 2025), for full fine-tunes. Distance of two models: the largest
entry of W_i − W_j, for each square attention matrix, scaled between the smallest and the largest of all pairs, averaged
over the matrices. If the kurtosis of the weights says that an edge points the wrong way, λ = 0.3 of the mean distance is
added to it. Then Edmonds' algorithm: the cheapest tree that reaches every model.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.sources.registry import ModelRef
from scripts.child import call, run_shown
from scripts.family import make_family
from scripts.family.plan import Oddity, Plan, Run, load_plan
from scripts.loopback_hub import LoopbackHub
from scripts.terminal import hub_environment

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
# The same of a forest of adapters (studies.lineage.adapters).
ADAPTERS = "adapters"
ADAPTER_KINDS: Mapping[str, tuple[str, ...]] = {
    "from the base": ("fresh", "own start"),
    "with the seed and data of another": ("stranger",),
    "parent not in the atlas": ("orphan",),
    "on a full fine-tune, by its file": ("on full",),
    "checkpoints of one run": ("checkpoint",),
    "continued": ("continued",),
    "continued from a continued one": ("grandchild",),
    "linear": ("linear",),
    "cat, svd": ("cat", "svd"),
    "TIES": ("ties",),
    "DARE": ("dare_linear", "dare_ties"),
    "pruned": ("magnitude_prune",),
    "TIES, DARE with svd": ("ties_svd", "dare_linear_svd"),
    "copies, bf16, fp16": ("copy", "cast"),
}
NO_ADAPTER_PARENT = ("fresh", "own start", "stranger", "orphan")
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


def judged(answers: Sequence[Mapping[str, Any]], truth: Truth) -> list[tuple[float, bool]]:
    """For every edge its probability, and whether it is right.

    An edge is right if it names a parent of the model or of its original, or the base of a model without a parent.
    """
    steps = []
    for one in answers:
        if one["model"] in truth.nodes:
            true = truth.parents(one["model"]) | truth.parents(truth.one(one["model"]))
            for row in one["rows"]:
                right = not true if row["parent"] in (None, one["base"]) else truth.one(row["parent"]) in true
                steps.append((float(row["probability"]), right))
    return steps


def reliability(steps: Sequence[tuple[float, bool]]) -> list[dict[str, Any]]:
    """By class of probability: the number of edges, their mean probability, and the share of them that are right."""
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


PENALTY = 0.3
ATTENTION = ("query", "key", "value", "output")


def read_square(folder: Path) -> NDArray[np.float32]:
    """All square attention matrices of a checkpoint folder: (matrices, n, n)."""
    checkpoint = open_checkpoint(ModelRef.parse(str(folder)))
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    layout = load_architecture(str(checkpoint.config["model_type"])).locate(shapes, checkpoint.config)
    wanted = {one.tensor for one in layout.matrices if one.key.family in ATTENTION}
    found = {}
    for name, tensor in checkpoint.stream(wanted):
        for one in layout.by_tensor[name]:
            if one.key.family in ATTENTION and one.shape[0] == one.shape[1]:
                found[one.key.sort_key] = one.extract(tensor).float().numpy().copy()
    checkpoint.close()
    return np.stack([found[key] for key in sorted(found)])


def parents(
    weights: Mapping[str, NDArray[np.float32]],
    root: str,
    created: Mapping[str, datetime] | None = None,
    *,
    falling: bool = True,
) -> dict[str, str | None]:
    """Every model's parent by the rule.

    ``created``: given root and dates (no edge into ``root``, none from a later model); None: as published. ``falling``:
    whether kurtosis is taken to fall from parent to child, or to rise.
    """
    import networkx  # slow to import, needed by the comparison only

    names = list(weights)
    stacked = np.stack([weights[name] for name in names])
    distance = np.zeros((len(names), len(names)))
    for matrix in range(stacked.shape[1]):
        one = stacked[:, matrix].reshape(len(names), -1)
        apart = np.stack([np.abs(one - row).max(axis=1) for row in one])
        off = apart[~np.eye(len(names), dtype=bool)]
        distance += (apart - off.min()) / max(float(np.ptp(off)), 1e-30) / stacked.shape[1]
    kurtosis = np.array([_kurtosis(weights[name]) for name in names]) * (1 if falling else -1)
    mean = float(distance[~np.eye(len(names), dtype=bool)].mean())
    graph = networkx.DiGraph()
    graph.add_nodes_from(names)
    for i, parent in enumerate(names):
        for j, child in enumerate(names):
            if i == j:
                continue
            if created is not None and (child == root or (parent != root and created[parent] >= created[child])):
                continue
            graph.add_edge(
                parent, child, weight=distance[i, j] + (PENALTY * mean if kurtosis[i] < kurtosis[j] else 0.0)
            )
    tree = networkx.minimum_spanning_arborescence(graph)
    found: dict[str, str | None] = dict.fromkeys(names)
    found.update({child: parent for parent, child in tree.edges})
    return found


def _kurtosis(matrices: NDArray[np.float32]) -> float:
    flat = matrices.reshape(len(matrices), -1).astype(np.float64)
    flat = flat - flat.mean(axis=1, keepdims=True)
    return float(((flat**4).mean(axis=1) / (flat**2).mean(axis=1) ** 2).mean())


# How the atlas is asked, in a process of its own: options of ``answer``.
WAYS: Mapping[str, tuple[str, ...]] = {
    "with dates": (),
    "without dates": ("--no-dates",),
    "with dates, blocks alone": ("--no-embeddings",),
    "without dates, blocks alone": ("--no-dates", "--no-embeddings"),
}
# The shape that uses the demo's family (scripts/family) instead of a forest.
DEMO = "demo"
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}
RIVALS = ("MoTHer as published", "MoTHer given root and dates")


def asked(
    root: Path, architecture: str, shape: str, seed: int, ways: Mapping[str, Sequence[str]], *, is_kept: bool = False
) -> tuple[dict[str, list[dict[str, Any]]], Truth, str, dict[str, float]]:
    """The answers of one forest below ``root`` in some ways, the truth, the base, and the processor seconds of each way.

    The forest and its atlas are not made again if they exist. ``is_kept``: neither are the answers.
    """
    store, atlas = root / f"{shape}-{architecture}", root / f"{shape}-{architecture}-atlas"
    if shape == DEMO:
        make_family(store, "full", architecture)
        plan = load_plan("full", architecture)
        base, known = plan.base, Truth.of_family(plan)
    else:
        from studies.lineage.forest import read_truth

        offline = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"} | _ONE_THREAD
        if shape == ADAPTERS:
            run_shown("studies.lineage.adapters", str(store), str(seed), **offline)
        else:
            run_shown("studies.lineage.forest", str(store), architecture, shape, str(seed), **offline)
        truth = read_truth(store)
        base, known = truth["base"], Truth(truth["nodes"])
    rows, seconds = {}, {}
    with LoopbackHub(store) as hub:
        online = hub_environment(hub.endpoint, atlas.with_suffix(".hf")) | _ONE_THREAD
        if not (atlas / "atlas.duckdb").exists():
            words = ["indexer", "build", "--base", base, "--atlas", str(atlas), "--workers", "1"]
            run_shown(*words, *(("--discover", "names") if shape == DEMO else ()), **online)
        for way, options in ways.items():
            out = atlas.with_suffix(f".{'_'.join(options) or 'dates'}.json")
            if not (is_kept and out.exists()):
                call(answer, store, atlas, out, options, environment=online)
            found = json.loads(out.read_text(encoding="utf-8"))
            rows[way], seconds[way] = found["answers"], found["seconds"]
    return rows, known, base, seconds


def study(root: Path, architecture: str, shape: str, seed: int) -> dict[str, Any]:
    """Scores of one forest below ``root`` by way and by kind; what exists is not made again."""
    rows, known, base, _ = asked(root, architecture, shape, seed, WAYS)
    answers = {way: answers_of(found, known) for way, found in rows.items()}
    if shape not in (DEMO, ADAPTERS):  # the rival's code does not read the forms of some of the family's weights
        answers |= rivals(root / f"{shape}-{architecture}", base, known)
    of_shape = ADAPTER_KINDS if shape == ADAPTERS else KINDS
    every = tuple(group for groups in of_shape.values() for group in groups)
    kinds = (
        {
            "all": every,
            "no parent to name": NO_ADAPTER_PARENT,
            "linear + task arithmetic": EXACT,
            **ADAPTER_KINDS,
        }
        if shape == ADAPTERS
        else {
            "all": every,
            "continued": CONTINUED,
            "no parent to name": NO_PARENT,
            "linear + task arithmetic": EXACT,
            "MoTHer's forest (five trees of 21)": TREE,
            **KINDS,
        }
    )
    return {
        "architecture": architecture,
        "models": len(known.of(every)),
        "reliability": {way: reliability(judged(found, known)) for way, found in rows.items()},
        "ways": {
            way: {name: score(found, known, known.of(groups)) for name, groups in kinds.items()}
            for way, found in answers.items()
        },
    }


def ask(
    atlas: Path, *, dates: bool = True, embeddings: bool = True, hidden: Mapping[str, Collection[str]] | None = None
) -> list[dict[str, Any]]:
    """The lineage of every model: its rows, with the signals behind their probabilities, bytes and notes.

    ``embeddings``: whether the base's embeddings can be read; without them blocks alone decide, as for vision models.
    ``hidden``: for some models, others that are left out of the atlas when they are asked; only these are asked then.
    """
    from query import Atlas
    from query.questions.lineage.lineage import Tracer
    from query.questions.lineage.thresholds import evidence_class

    with Atlas(atlas) as opened:
        tracer = Tracer(opened, opened.base_named(None), dates=dates, embeddings=embeddings)
        rows = opened.rows("SELECT model_id, model FROM models WHERE base = ?", [tracer.base])
        names = {row["model_id"]: row["model"] for row in rows}
        ids = {name: model_id for model_id, name in names.items()}
        found = [
            tracer.of_indexed(model_id, {ids[name] for name in (hidden or {}).get(names[model_id], ()) if name in ids})
            for model_id in tracer.indexed()
            if hidden is None or names[model_id] in hidden
        ]
    return [
        {
            "model": one.model,
            "base": one.base,
            "rows": [
                row | {"signals": {**edge.signals}, "evidence": evidence_class(edge)}
                for row, edge in zip(one.to_rows(), one.edges, strict=True)
            ],
            "bytes": one.bytes_read,
            "models": one.models_read,
            "notes": list(one.notes),
        }
        for one in found
    ]


def rivals(store: Path, base: str, known: Truth) -> dict[str, dict[str, Answer]]:
    """Both forms of the rival, each with the direction of kurtosis that gives it the better score."""
    uploaded = [name for name, node in known.nodes.items() if not node["hidden"]]
    weights = {name: read_square(store / name) for name in [base, *uploaded]}
    created = {name: datetime.fromisoformat(known.nodes[name]["created"]) for name in uploaded}
    found = {}
    for way, dates in zip(RIVALS, (None, created), strict=True):
        tried = [
            rival_answers(parents(weights, base, dates, falling=falling), base, known) for falling in (True, False)
        ]
        found[way] = max(tried, key=lambda answers: score(answers, known, uploaded)["right"])
    return found


def answer(store: str, atlas: str, out: str, options: Sequence[str]) -> None:
    """Ask with the options of WAYS, or without parents, and write the answers to the file ``out``."""
    hidden = None
    if "--no-parents" in options:
        from studies.lineage.forest import read_truth

        known = Truth(read_truth(Path(store))["nodes"])
        hidden = {name: known.parents(name) for name in known.nodes if known.parents(name)}
    dates, embeddings = "--no-dates" not in options, "--no-embeddings" not in options
    started = time.process_time()
    answers = ask(Path(atlas), dates=dates, embeddings=embeddings, hidden=hidden)
    found = {"seconds": round(time.process_time() - started, 2), "answers": answers}
    Path(out).write_text(json.dumps(found), encoding="utf-8")
