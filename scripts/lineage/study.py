"""One forest from training to scores: make it, index it, ask for its lineage in four ways, and compare with a rival.

``python -m scripts.lineage.study ATLAS OUT [--no-dates] [--no-embeddings]`` only asks, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from scripts.family import PROJECT, make_family
from scripts.family.plan import load_plan
from scripts.lineage.scoring import (
    CONTINUED,
    EXACT,
    KINDS,
    NO_PARENT,
    TREE,
    Answer,
    Truth,
    answers_of,
    reliability,
    rival_answers,
    score,
)
from scripts.loopback_hub import LoopbackHub

# How the atlas is asked: options of this module.
WAYS: Mapping[str, tuple[str, ...]] = {
    "with dates": (),
    "without dates": ("--no-dates",),
    "with dates, blocks alone": ("--no-embeddings",),
    "without dates, blocks alone": ("--no-dates", "--no-embeddings"),
}
# The shape that uses the demo's family (scripts/family) instead of a forest.
DEMO = "demo"
RIVALS = ("MoTHer as published", "MoTHer given root and dates")


def study(root: Path, architecture: str, shape: str, seed: int) -> dict[str, Any]:
    """Scores of one forest below ``root`` by way and by kind; what exists is not made again."""
    store, atlas = root / f"{shape}-{architecture}", root / f"{shape}-{architecture}-atlas"
    if shape == DEMO:
        make_family(store, "full", architecture)
        plan = load_plan("full", architecture)
        base, known = plan.base, Truth.of_family(plan)
    else:
        from scripts.lineage.forest import read_truth

        offline = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
        _run(["scripts.lineage.forest", str(store), architecture, shape, str(seed)], **offline)
        truth = read_truth(store)
        base, known = truth["base"], Truth(truth["nodes"])
    rows = {}
    with LoopbackHub(store) as hub:
        online = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(atlas.with_suffix(".hf")),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        if not (atlas / "atlas.duckdb").exists():
            words = ["indexer", "build", "--base", base, "--atlas", str(atlas), "--workers", "1"]
            _run([*words, *(("--discover", "names") if shape == DEMO else ())], **online)
        for way, options in WAYS.items():
            out = atlas.with_suffix(f".{'_'.join(options) or 'dates'}.json")
            _run(["scripts.lineage.study", str(atlas), str(out), *options], **online)
            rows[way] = json.loads(out.read_text(encoding="utf-8"))
    answers = {way: answers_of(found, known) for way, found in rows.items()}
    if shape != DEMO:  # the rival's code does not read the forms of some of the family's weights
        answers |= _rivals(store, base, known)
    every = tuple(group for groups in KINDS.values() for group in groups)
    kinds = {
        "all": every,
        "continued": CONTINUED,
        "no parent to name": NO_PARENT,
        "linear + task arithmetic": EXACT,
        "MoTHer's forest (five trees of 21)": TREE,
        **KINDS,
    }
    return {
        "architecture": architecture,
        "models": len(known.of(every)),
        "reliability": {way: reliability(found, known) for way, found in rows.items()},
        "ways": {
            way: {name: score(found, known, known.of(groups)) for name, groups in kinds.items()}
            for way, found in answers.items()
        },
    }


def ask(atlas: Path, *, dates: bool, embeddings: bool) -> list[dict[str, Any]]:
    """The lineage of every model: its rows, with the signals behind their probabilities, bytes and notes.

    ``embeddings``: whether the base's embeddings can be read; without them blocks alone decide, as for vision models.
    """
    from query import Atlas
    from query.lineage.lineage import Tracer

    with Atlas(atlas) as opened:
        tracer = Tracer(opened, opened.base_named(None), dates=dates, embeddings=embeddings)
        found = [tracer.of_indexed(model_id) for model_id in tracer.indexed()]
    return [
        {
            "model": one.model,
            "base": one.base,
            "rows": [row | {"signals": {**edge.signals}} for row, edge in zip(one.to_rows(), one.edges, strict=True)],
            "bytes": one.bytes_read,
            "models": one.models_read,
            "notes": list(one.notes),
        }
        for one in found
    ]


def _run(words: list[str], **environment: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    if subprocess.run([sys.executable, "-m", *words], cwd=PROJECT, env=environment, check=False).returncode:
        raise RuntimeError(f"{' '.join(words)} failed; its own message is above.")


def _rivals(store: Path, base: str, known: Truth) -> dict[str, dict[str, Answer]]:
    """Both forms of the rival, each with the direction of kurtosis that gives it the better score."""
    from scripts.lineage.mother import parents, read_square

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


if __name__ == "__main__":
    folder, out, *options = sys.argv[1:]
    answers = ask(Path(folder), dates="--no-dates" not in options, embeddings="--no-embeddings" not in options)
    Path(out).write_text(json.dumps(answers), encoding="utf-8")
