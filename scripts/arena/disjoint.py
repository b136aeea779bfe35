"""The headline figures on a base that never read the data sets, beside those of the demo's family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.arena.family import build_family, in_process, load_real_plan, read_twice
from scripts.arena.headline import HELD_OUT, OTHERS, USED, write_texts
from scripts.arena.pretrained import SKIPPED, prepare, pretrained_folder, write_data_sets
from scripts.family import make_family, tasks
from scripts.family.family import build
from scripts.family.plan import Plan, load_plan
from scripts.family.store import RESULTS, read_json
from scripts.loopback_hub import LoopbackHub
from scripts.tables import decimal, markdown
from scripts.terminal import Terminal

Json = dict[str, Any]

DISJOINT, REAL = "disjoint", "minilm"
LEARNT = 0.05  # a model has learnt something if its accuracy is this much above the commonest label's share


def run(out: Path) -> Json:
    """Train the families and ask everything once.

    The networks of the first two are so small that `index build` reads their matrices whole, and a full reading would
    give the same vectors. The third is a real pretrained network, where it is installed.
    """
    family = build_family(out)
    demo = load_plan("demo", "roberta")
    models = make_family(out / "demo-roberta", "demo")
    folder = out / "disjoint"
    sources: dict[str, tuple[Plan, Path, Path, Callable[[Plan, Path], None]]] = {
        DISJOINT: (family.plan, family.models, family.atlas, tasks.prepare),
        "demo": (demo, models, read_twice(demo, models, folder / "demo")["sample"], tasks.prepare),
    }
    source = pretrained_folder()
    if source is not None:
        plan, root = load_real_plan(source), folder / REAL / "models"
        prepare(root, plan, source, apart=True)
        build(root, plan)
        atlas = read_twice(plan, root, folder / REAL, ("sample",))["sample"]
        sources[REAL] = plan, root, atlas, partial(write_data_sets, source=source, apart=True)
    found: Json = {"columns": {}, "learnt": {}}
    for name, (plan, root, atlas, prepare_texts) in sources.items():
        texts = folder / f"texts-{name}"
        write_texts(plan, texts, prepare_texts)
        with LoopbackHub(root) as hub:
            print(f"asking about {plan.base} …", flush=True)
            asked = ("scripts.arena.headline", str(atlas), plan.base, str(texts))
            terminal = Terminal.of_hub(atlas.parent, hub.endpoint)
            column = in_process(terminal, folder / f"{name}.json", *asked)
        right, purity = (column.pop(f"{one}_by_model") for one in ("right", "purity"))
        found["columns"][name] = column
        if name != "demo":
            found["learnt"][name] = learnt(plan, root, right, purity)
    return found | ({} if source else {"skipped": SKIPPED})


def learnt(plan: Plan, models: Path, right: Mapping[str, float], purity: Mapping[str, float]) -> list[Json]:
    """By rate, adapters apart: held-out accuracy, and how well predictions and purity do on these models.

    The last two rows are the full fine-tunes whose accuracy is above the commonest label by .05 or more, and the others.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    measured = {run.model: read_json(models / run.model / RESULTS) for run in plan.runs}
    above_majority = {model: one["eval_accuracy"] - one["eval_majority"] for model, one in measured.items()}
    runs = sorted(plan.runs, key=lambda run: (run.adapter is not None, run.learning_rate))
    for run in runs:
        kind = "adapter" if run.adapter else "full"
        groups.setdefault((kind, f"{run.learning_rate:g}"), []).append(run.model)
    for is_above, name in ((True, "learnt"), (False, "did not learn")):
        groups["full", name] = [
            run.model for run in runs if not run.adapter and (above_majority[run.model] > LEARNT) == is_above
        ]
    found = []
    for (kind, rate), names in groups.items():
        if not names:
            continue
        results, above = [measured[model] for model in names], [above_majority[model] for model in names]
        found.append(
            {
                "kind": kind,
                "rate": rate,
                "models": len(names),
                "accuracy": float(np.mean([one["eval_accuracy"] for one in results])),
                "majority": float(np.mean([one["eval_majority"] for one in results])),
                "least_above": float(np.min(above)),
                "most_above": float(np.max(above)),
                "learnt": float(np.mean(np.array(above) > LEARNT)),
                "right": float(np.mean([right[model] for model in names])),
                "purity": float(np.mean([purity[model] for model in names if model in purity])),
            }
        )
    return found


def tables(figures: Json) -> str:
    """Markdown: what was learnt, and all figures of the families."""
    head = ["family", "models", "rate", "number", "held-out accuracy", "commonest label", "above it, least to most",
            "above by .05", "predicted rightly", "purity"]  # fmt: skip
    rows = [head] + [
        [
            name,
            row["kind"],
            row["rate"],
            str(row["models"]),
            decimal(row["accuracy"], 2),
            decimal(row["majority"], 2),
            f"{decimal(row['least_above'], 2)} to {decimal(row['most_above'], 2)}",
            *(decimal(row[key], 2) for key in ("learnt", "right", "purity")),
        ]
        for name, found in figures["learnt"].items()
        for row in found
    ]
    columns = {name: lines_of(one) for name, one in figures["columns"].items()}
    names = dict.fromkeys(name for lines in columns.values() for name in lines)
    lines = [["figure", *columns]] + [[name, *(one.get(name, "–") for one in columns.values())] for name in names]
    skipped = [f"Skipped: {figures['skipped']}."] if "skipped" in figures else []
    return "\n\n".join([markdown(rows), markdown(lines), *skipped])


def lines_of(one: Json) -> dict[str, str]:
    """The cells of one column by the name of their line."""

    def of_purity(score: Mapping[str, Any]) -> str:
        interval = "" if score.get("ci_low") is None else f" ({decimal(score['ci_low'])}–{decimal(score['ci_high'])})"
        p_value = f", p {score['p_value']:.1g}" if score.get("p_value") is not None else ""
        return f"{decimal(score['purity'])}{interval}, chance {decimal(score['chance'])}{p_value}"

    lines = {
        "models that were sampled": str(one["sampled"]),
        "labelled models, data sets": f"{one['purity']['models']}, {one['purity']['datasets']}",
        "purity": of_purity(one["purity"]),
        "purity across authors": of_purity(one["purity_across_authors"]),
        "adapter → full": decimal(one["adapter_to_full"]),
    }
    for evidence in ("together", "vectors", "vocabulary", "head", "majority", "chance"):
        score = one["prediction"].get(evidence)
        if score is None:
            continue
        name = f"prediction, {evidence}: accuracy, Brier, log loss, calibration error"
        numbers = (score[key] for key in ("accuracy", "brier", "log_loss", "calibration_error"))
        lines[name] = ", ".join(map(decimal, numbers))
    lines["clusters: ARI, AMI"] = ", ".join(decimal(one["clusters"][name]) for name in ("ari", "ami"))
    for kind, words in (("all", "retrieval: AP (chance)"), ("across_authors", "retrieval across authors: AP (chance)")):
        found = one["retrieval"][kind]
        lines[words] = f"{decimal(found['ap'])} ({decimal(found['chance'])})"
    trace = one["trace"]
    lines["trace: classes"] = ", ".join(f"{count} {name}" for name, count in sorted(trace["classes"].items()))
    for kind, words in ((USED, "used"), (HELD_OUT, "held-out"), (OTHERS, "other data sets'")):
        if kind in trace:
            lines[f"trace: share of tokens of {words} texts that were met"] = decimal(trace[kind]["met"])
    lines["trace: used texts ruled out"] = f"{trace['used_texts_ruled_out']:,} of {trace['used_texts']:,}"
    for kind, words in ((HELD_OUT, "held-out"), (OTHERS, "other data sets'")):
        if kind in trace:
            lines[f"trace: share of {words} texts ruled out"] = decimal(trace[kind]["ruled_out"])
    ask = one["ask"]
    lines["ask: AP (chance)"] = f"{decimal(ask['ap'])} ({decimal(ask['chance'])})"
    lines["ask: model to data set (chance)"] = f"{decimal(ask['to_dataset'])} ({decimal(ask['to_dataset_chance'])})"
    lines["ask: p < .05 where true"] = decimal(ask["p_below_.05"])
    return lines
