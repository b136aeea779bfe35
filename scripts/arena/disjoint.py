"""The headline figures on a base that never read the data sets, beside those of the demo's family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from indexer.names import READS
from scripts.arena.family import ArenaFamily, build_family, in_process
from scripts.arena.headline import HELD_OUT, OTHERS, USED, write_texts
from scripts.family import make_family
from scripts.family.plan import load_plan
from scripts.loopback_hub import LoopbackHub
from scripts.terminal import Terminal
from scripts.vectors import decimal

Json = dict[str, Any]


def run(out: Path) -> Json:
    """Train both families, read each of them twice, and ask everything once."""
    family = build_family(out)
    demo = load_plan("demo", "roberta")
    models = make_family(out / "demo-roberta", "demo")
    folder = out / "disjoint"
    columns: dict[str, Json] = {}
    for name, plan, root in (("disjoint", family.plan, family.models), ("demo", demo, models)):
        texts = folder / f"texts-{name}"
        write_texts(plan, texts)
        with LoopbackHub(root) as hub:
            for read in READS:
                here = folder / f"{name}-{read}"
                here.mkdir(parents=True, exist_ok=True)
                terminal = Terminal.of_hub(here, hub.endpoint)
                terminal.environment.pop("HF_HUB_OFFLINE", None)  # it was for training
                terminal(f"index build --base {plan.base} --discover names --read {read}")
                print(f"asking about {plan.base}, read: {read} …", flush=True)
                asked = ("scripts.arena.headline", str(here / "atlas"), plan.base, str(texts))
                columns[f"{name}, {read}"] = in_process(terminal, here / "headline.json", *asked)
    return {"learnt": learnt(family), "columns": columns}


def learnt(family: ArenaFamily) -> list[Json]:
    """For each rate, adapters apart: models, mean held-out accuracy, that of the commonest label, the share above."""
    groups: dict[tuple[str, float], list[Mapping[str, float]]] = {}
    for run in family.plan.runs:
        kind = "adapter" if run.adapter else "full"
        groups.setdefault((kind, run.learning_rate), []).append(family.results[run.model])
    found = []
    for (kind, rate), results in sorted(groups.items(), key=lambda pair: (pair[0][0] == "adapter", pair[0][1])):
        above = [one["eval_accuracy"] - one["eval_majority"] for one in results]
        found.append(
            {
                "kind": kind,
                "rate": rate,
                "models": len(results),
                "accuracy": float(np.mean([one["eval_accuracy"] for one in results])),
                "majority": float(np.mean([one["eval_majority"] for one in results])),
                "least_above": float(np.min(above)),
                "most_above": float(np.max(above)),
                "above_by_.05": float(np.mean(np.array(above) > 0.05)),
            }
        )
    return found


def tables(figures: Json) -> str:
    """Markdown: what was learnt, and all figures of both families."""
    return "\n".join([*_learnt_lines(figures["learnt"]), "", *_headline_lines(figures["columns"])])


def _learnt_lines(rows: Sequence[Json]) -> Iterator[str]:
    yield "| models | rate | number | held-out accuracy | commonest label | above it, least to most | above by .05 |"
    yield f"|{'---|' * 7}"
    for row in rows:
        cells = [
            row["kind"],
            f"{row['rate']:g}",
            str(row["models"]),
            f"{row['accuracy']:.2f}",
            f"{row['majority']:.2f}",
            f"{row['least_above']:+.2f} to {row['most_above']:+.2f}",
            f"{row['above_by_.05']:.2f}",
        ]
        yield f"| {' | '.join(cells)} |"


def _headline_lines(columns: Mapping[str, Json]) -> Iterator[str]:
    yield f"| figure | {' | '.join(columns)} |"
    yield f"|{'---|' * (1 + len(columns))}"
    found = [lines_of(one) for one in columns.values()]
    for name in dict.fromkeys(name for lines in found for name in lines):
        cells = [lines.get(name, "–") for lines in found]
        yield f"| {name} | {' | '.join(cells)} |"


def lines_of(one: Json) -> dict[str, str]:
    """The cells of one column by the name of their line."""

    def of_purity(score: Mapping[str, Any]) -> str:
        interval = "" if score.get("ci_low") is None else f" ({decimal(score['ci_low'])}–{decimal(score['ci_high'])})"
        p_value = f", p {decimal(score['p_value'])}" if score.get("p_value") is not None else ""
        return f"{decimal(score['purity'])}{interval}, chance {decimal(score['chance'])}{p_value}"

    lines = {
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
