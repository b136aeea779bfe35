"""The headline figures on a base that never read the data sets, compared with those of the demo's family.

They are purity, prediction, clusters, retrieval, trace and `ask`, by the published questions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score

from indexer.vectors.centre import ADAPTER, FULL
from query import Atlas
from query.models.population import distinct, read_population
from query.questions.ask.result import LikelyModels
from query.shared.statistics.likeness import similarities
from scripts.family import make_family, tasks
from scripts.family.family import build
from scripts.family.plan import Plan, Run, load_plan
from scripts.family.store import RESULTS, read_json
from scripts.loopback_hub import LoopbackHub
from scripts.tables import decimal, markdown, p_value
from studies.arena.family import (
    SKIPPED,
    Family,
    asked,
    build_family,
    load_real_plan,
    prepare,
    pretrained_folder,
    write_data_sets,
)
from studies.vectors import matches_of_nearest

Json = dict[str, Any]

MOST_USED, MOST_OTHERS = 200, 100  # texts of a file that are traced
HELD_OUT, USED, OTHERS = "held-out", "used", "others"
DISJOINT, REAL = "disjoint", "minilm"
LEARNT = 0.05  # a model has learnt something if its accuracy is this much above the commonest label's share


def run(out: Path) -> Json:
    """Train the families and ask everything once.

    The networks of the first two are so small that `index build` reads their matrices whole, and a full reading would
    give the same vectors. The third is a real pretrained network, where it is installed.
    """
    folder = out / "disjoint"
    demo = make_family(out / "demo-roberta", "demo")
    families: list[tuple[Family, Callable[[Plan, Path], None]]] = [
        (replace(build_family(out), name=DISJOINT), tasks.prepare),
        (Family("demo", load_plan("demo", "roberta"), demo, folder / "demo" / "sample"), tasks.prepare),
    ]
    source = pretrained_folder()
    if source is not None:
        plan, root = load_real_plan(source), folder / REAL / "models"
        prepare(root, plan, source, apart=True)
        build(root, plan)
        real = Family(REAL, plan, root, folder / REAL / "sample")
        families.append((real, partial(write_data_sets, source=source, apart=True)))
    found: Json = {"columns": {}, "learnt": {}}
    for family, prepare_texts in families:
        name, plan, atlas, texts = family.name, family.plan, family.atlas(), folder / f"texts-{family.name}"
        write_texts(plan, texts, prepare_texts)
        with LoopbackHub(family.models) as hub:
            print(f"asking about {plan.base} …", flush=True)
            column = asked(hub.endpoint, family.folder, folder / f"{name}.json", headline, atlas, plan.base, texts)
        right, purity = (column.pop(f"{one}_by_model") for one in ("right", "purity"))
        found["columns"][name] = column
        if name != "demo":
            found["learnt"][name] = learnt(plan, family.models, right, purity)
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


def write_texts(plan: Plan, out: Path, prepare: Callable[[Plan, Path], None] = tasks.prepare) -> None:
    """JSON lines below ``out``: held-out texts of every data set, texts used by every model, and texts of others.

    ``others`` of a data set: held-out texts of the data sets that have no package in common with it. ``prepare`` writes
    the tokenizer and the data sets of a plan into a folder, as for the training.
    """
    if (out / "ready").exists():
        return
    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)
    prepare(plan, work)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    loaded = {name: tasks.LabelledTexts.load(work, name) for name in plan.datasets}

    def write(kind: str, name: str, examples: Sequence[tasks.Example]) -> None:
        (out / kind).mkdir(exist_ok=True)
        lines = [json.dumps({"text": tokenizer.decode(one.ids)}) for one in examples]
        (out / kind / file_name(name)).write_text("\n".join(lines), encoding="utf-8")

    for name, texts in loaded.items():
        write(HELD_OUT, name, texts.held_out)
        own = set(plan.datasets[name].packages)
        apart = [
            text
            for other, one in loaded.items()
            if other != name and own.isdisjoint(plan.datasets[other].packages)
            for text in one.held_out
        ]
        write(OTHERS, name, random.Random(0).sample(apart, min(MOST_OTHERS, len(apart))))
    for run in plan.runs:
        write(USED, run.model, used_texts(plan, run, loaded[run.dataset].train)[:MOST_USED])
    (out / "ready").touch()


def used_texts(plan: Plan, run: Run, train: Sequence[tasks.Example]) -> list[tasks.Example]:
    """The texts that were in a batch of a run, drawn as training draws them."""
    from scripts.family.training import endless  # imports torch

    chosen = random.Random(run.seed).sample(train, round(run.share * len(train)))
    numbered = [tasks.Example(one.ids, number) for number, one in enumerate(chosen)]
    batches = endless(numbered, run.batch, run.tokens or plan.text.tokens, run.seed)
    steps = max(1, round(run.steps * plan.settings.steps))
    used = {number for _ in range(steps) for number in next(batches).labels.tolist()}
    return [chosen[number] for number in sorted(used)]


def file_name(name: str) -> str:
    """The file of a data set or a model; an atlas writes names of data sets in small letters."""
    return f"{name.replace('/', '--').lower()}.jsonl"


def headline(folder: str, base: str, held: str) -> Json:
    """All figures of a base; ``held``: the folder of ``write_texts``.

    It is asked in a process of its own, because the base is fetched from the Hub that its environment names.
    """
    texts = Path(held)
    with Atlas(folder) as atlas:
        found, predicted = atlas.purity(base), atlas.evaluate_prediction(base)
        purity, evaluation = found.to_dict(), predicted.to_dict()
        clusters = atlas.clusters(base)
        (read,) = atlas.rows(
            "SELECT count(*) FILTER (\"read\" = 'sample') AS sampled FROM models WHERE base = ?", [base]
        )
        figures = {
            **read,
            "purity": _scores(purity),
            "purity_across_authors": _scores(purity["cross_author"]),
            "adapter_to_full": adapter_to_full(atlas, base),
            "prediction": {one["evidence"]: one for one in evaluation["scores"]},
            "none_of_these": {one["evidence"]: one for one in evaluation["none_of_these"]},
            "clusters": {name: clusters.value("datasets", name) for name in ("ari", "ami")},
            "retrieval": retrieval(atlas, base),
            "trace": traces(atlas, base, texts),
            "ask": by_texts(atlas, base, texts / HELD_OUT),
            "right_by_model": {one.model: one.right for one in predicted.outcomes},
            "purity_by_model": {one.model: one.purity for one in found.by_model},
        }
    return figures


def _scores(found: Mapping[str, Any]) -> Json:
    names = ("models", "datasets", "purity", "chance", "ci_low", "ci_high", "p_value")
    return {name: found[name] for name in names if name in found}


def adapter_to_full(atlas: Atlas, base: str) -> float | None:
    """Mean over adapters of the share of matches among the m nearest full fine-tunes, where m match."""
    population = distinct(read_population(atlas, base))
    rows = atlas.rows("SELECT model_id, vector_group FROM models WHERE base = ?", [base])
    group_of = {row["model_id"]: row["vector_group"] for row in rows}
    adapters, full = (
        [row for row, one in enumerate(population.ids.tolist()) if population.datasets[row] and group_of[one] == group]
        for group in (ADAPTER, FULL)
    )
    found = matches_of_nearest(population.table, population.datasets, adapters, full)
    return float(np.mean([share for share, _ in found])) if found else None


def retrieval(atlas: Atlas, base: str) -> Json:
    """Mean average precision of the models of a model's data set among all others, and among those of other authors.

    ``chance``: the mean share of these models among the others.
    """
    population = distinct(read_population(atlas, base))
    rows = [row for row, names in enumerate(population.datasets) if names]
    vectors = population.vectors[rows].astype(np.float64)
    table = similarities(vectors, vectors, population.blocks)
    datasets = [population.datasets[row] for row in rows]
    authors = np.array([population.authors[row] for row in rows])
    found: Json = {}
    for name in ("all", "across_authors"):
        precision, chance = [], []
        for place, own in enumerate(datasets):
            is_candidate = np.arange(len(rows)) != place
            if name == "across_authors":
                is_candidate &= authors != authors[place]
            is_match = np.array([not own.isdisjoint(other) for other in datasets])[is_candidate]
            if is_match.any():
                precision.append(average_precision_score(is_match, table[place][is_candidate]))
                chance.append(is_match.mean())
        found[name] = {"models": len(precision), "ap": float(np.mean(precision)), "chance": float(np.mean(chance))}
    return found


def traces(atlas: Atlas, base: str, texts: Path) -> Json:
    """What the traces of full fine-tunes say of texts that were used, of held-out ones, and of those of other data sets.

    ``met``: the share of tokens whose rows were read that were met. ``ruled_out``: the share of texts certified absent.
    """
    rows = atlas.rows(
        "SELECT model, datasets FROM models WHERE base = ? AND relation <> 'adapter' AND len(datasets) > 0 "
        "AND NOT is_copy AND NOT is_unrelated ORDER BY model",
        [base],
    )
    classes: dict[str, int] = {}
    found: dict[str, list[tuple[float, float]]] = {USED: [], HELD_OUT: [], OTHERS: []}
    used, ruled_out = 0, 0
    for row in rows:
        name = row["datasets"][0]
        files = {USED: row["model"], HELD_OUT: name, OTHERS: name}
        for kind, key in files.items():
            file = texts / kind / file_name(key)
            if not file.exists():  # a copy of another model, say
                break
            traced = atlas.trace(row["model"], base, text=file)
            if kind == USED:
                classes[traced.class_] = classes.get(traced.class_, 0) + 1
            if traced.text is None or traced.text.certainly_not_used is None or traced.text.likelihood is None:
                break
            found[kind].append((traced.text.likelihood, traced.text.certainly_not_used / traced.text.texts))
            if kind == USED:
                used += traced.text.texts
                ruled_out += traced.text.certainly_not_used
    shares = {
        kind: dict(zip(("met", "ruled_out"), np.mean(values, axis=0).tolist(), strict=True)) | {"models": len(values)}
        for kind, values in found.items()
        if values
    }
    return {"classes": classes, "used_texts": used, "used_texts_ruled_out": ruled_out, **shares}


def by_texts(atlas: Atlas, base: str, folder: Path) -> Json:
    """`ask` with the held-out texts of every data set.

    ``ap``: mean average precision over the data sets, of their models among all. ``to_dataset``: the share of models
    whose own data set has the highest score of all. ``p_below_.05``: the share of true pairs with such a p-value.
    """
    scores: dict[str, dict[str, float]] = {}
    truth: dict[str, list[str]] = {}
    precision, chance, small = [], [], []
    files = sorted(folder.glob("*.jsonl"))
    names = [file.stem.replace("--", "/") for file in files]
    for name, file in zip(names, files, strict=True):
        answer = atlas.ask(file, 100_000, base=base)
        assert isinstance(answer, LikelyModels)
        for one in answer.models:
            scores.setdefault(one.model, {})[name] = one.score
            truth[one.model] = one.datasets
        is_own = np.array([name in one.datasets for one in answer.models])
        if is_own.any():
            precision.append(average_precision_score(is_own, [one.score for one in answer.models]))
            chance.append(is_own.mean())
            small += [one.p_value < 0.05 for one in answer.models if name in one.datasets]
    labelled = {model: found for model, found in scores.items() if set(truth[model]) & set(names)}
    right = [max(found, key=lambda name: found[name]) in truth[model] for model, found in labelled.items()]
    return {
        "datasets": len(precision),
        "models": len(labelled),
        "ap": float(np.mean(precision)),
        "chance": float(np.mean(chance)),
        "to_dataset": float(np.mean(right)),
        "to_dataset_chance": 1 / len(names),
        "p_below_.05": float(np.mean(small)),
    }


# ---- the page


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
        p = f", p {p_value(score['p_value'], digits=1)}" if score.get("p_value") is not None else ""
        return f"{decimal(score['purity'])}{interval}, chance {decimal(score['chance'])}{p}"

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
