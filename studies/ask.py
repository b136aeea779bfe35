"""Measure `query ask` on a family: ``python -m studies.ask FAMILY --architecture roberta --out DIR``.

Texts are the held-out parts of the family's data sets. For each data set also the models that were *not* tuned on it
or on one with the same texts are asked about, as if they were all there are: then every find is chance. So is every
find for texts from elsewhere, the pages of this project's documentation.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kstest
from sklearn.metrics import average_precision_score

from query import Atlas
from query.models.texts import Texts, read_texts
from query.questions.ask.ask import FALSE_DISCOVERIES
from query.questions.ask.evidence import Features, Reader
from query.questions.ask.models import read_candidates
from query.questions.ask.scoring import VOCABULARY_WEIGHT, Scored, null_of, score, standing_out
from scripts.child import PROJECT, call
from scripts.family import tasks
from scripts.family.plan import Plan, load_plan
from scripts.loopback_hub import LoopbackHub
from scripts.tables import aligned
from scripts.terminal import hub_environment, indexed

# Data sets that share texts, or sources: a model of one is no null for another.
RELATED = (
    {"docs/numeric-docstrings", "docs/numeric-kinds", "docs/numpydoc-sections"},
    {"errors/exception-types", "errors/raised-by"},
)
FEWEST_LINES, SHORTEST_LINE = 20, 30
TEXTS = 200  # held-out texts of each data set


def main() -> None:
    """Build the atlas of a family, write its texts, and measure."""
    parser = argparse.ArgumentParser(prog="python -m studies.ask", description=__doc__)
    parser.add_argument("family", type=Path)
    parser.add_argument("--architecture", default="roberta")
    parser.add_argument("--size", default="demo")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    plan, out = load_plan(options.size, options.architecture), options.out.resolve()
    write_texts(plan, out)
    indexed(options.family, out, plan.base, plan.fingerprint, "--discover names")
    with LoopbackHub(options.family) as hub:
        environment = hub_environment(hub.endpoint, out / "huggingface")
        call(measure, out, options.size, options.architecture, environment=environment)


def write_texts(plan: Plan, out: Path) -> None:
    """The held-out texts of every data set as JSON lines below ``out/texts``."""
    work = out / "work"
    if (out / "texts").is_dir():
        return
    work.mkdir(parents=True, exist_ok=True)
    tasks.prepare(plan, work)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    (out / "texts").mkdir()
    for name in plan.datasets:
        examples = tasks.LabelledTexts.load(work, name).held_out
        lines = [json.dumps({"text": tokenizer.decode(one.ids)}) for one in examples]
        (out / "texts" / f"{name.replace('/', '--')}.jsonl").write_text("\n".join(lines), encoding="utf-8")


def measure(folder: str, size: str, architecture: str) -> None:
    """Print the tables, in a process that talks to the Hub."""
    out, plan = Path(folder), load_plan(size, architecture)
    names = sorted(plan.datasets)
    truth = {run.model: run.dataset for run in plan.runs if not run.scratch}
    with Atlas(out / "atlas") as atlas:
        names_of = {
            row["model_id"]: (row["model"], row["relation"])
            for row in atlas.rows("SELECT model_id, model, relation FROM models WHERE base = ?", [plan.base])
        }
        reader = Reader(atlas, plan.base)
        null, pooled = reader.reference(), reader.pooled_rates()
        files = [out / "texts" / f"{name.replace('/', '--')}.jsonl" for name in names]
        texts = [read_texts(file, most=TEXTS) for file in files]
        asked = joined([reader.features_of(one) for one in texts])
        outside = joined([reader.features_of(one) for one in documentation()])
        models = read_candidates(atlas, plan.base, null.rates.shape[1])
        kept = [place for place, one in enumerate(models.ids.tolist()) if names_of[one][0] in truth]
        models = models.only(np.array(kept, dtype=np.intp))
        named = [names_of[one] for one in models.ids.tolist()]
        labels = np.array([truth[name] for name, _ in named])
        is_adapter = np.array([relation == "adapter" for _, relation in named])

    def kinds(features: Features, some: np.ndarray) -> dict[str, list[tuple[Any, Any, float]]]:
        chosen = models.only(some)
        groups = [null, features]
        (null_vectors, vectors), (null_words, words) = chosen.by_vectors(groups), chosen.by_vocabulary(groups, pooled)
        one = (null_vectors, vectors, 1 - VOCABULARY_WEIGHT)
        other = (null_words, words, VOCABULARY_WEIGHT)
        return {"vectors": [one], "vocabulary": [other], "fused": [other, one]}

    every = np.arange(len(kept))
    found = {name: scored(evidence) for name, evidence in kinds(asked, every).items()}
    elsewhere = {name: scored(evidence) for name, evidence in kinds(outside, every).items()}
    chance: dict[str, list[np.ndarray]] = {name: [] for name in found}
    for place, name in enumerate(names):
        related = next((group for group in RELATED if name in group), {name})
        free = np.flatnonzero(~np.isin(labels, sorted(related)))
        one = Features(asked.blocks[place : place + 1], asked.rates[place : place + 1])
        for kind, evidence in kinds(one, free).items():
            chance[kind].append(scored(evidence).p[0])
    print(f"\n{plan.base}: {len(kept)} models, {int(is_adapter.sum())} adapters, {len(names)} data sets, "
          f"{len(null.blocks)} sets of reference texts")  # fmt: skip
    rows = [["evidence", "models", "n", "AP", "chance", "to data set", "p<.05", "p<.01"]]
    for kind, values in found.items():
        for which, some in (("full", ~is_adapter), ("adapters", is_adapter), ("all", np.ones(len(kept), bool))):
            some = some & ~np.isnan(values.z).any(axis=0)
            if some.any():
                rows.append([kind, which, *shown(row(values, labels, names, some))])
    print(aligned(rows))
    rows = [["by chance", "texts", "n", "p<.05", "p<.01", "KS", "a find"]]
    for kind in found:
        lines = {"of other data sets": chance[kind], "of the documentation": list(elsewhere[kind].p)}
        rows += [[kind, what, *shown(uniformity(shares))] for what, shares in lines.items()]
    print(f"\n{aligned(rows)}")
    rows = [["stand out at", "models", "same texts", "same data set", "of these found"]]
    for rate in (0.05, FALSE_DISCOVERIES, 0.2):
        rows.append([f"{rate}", *shown(those_that_stand_out(found["fused"], labels, names, rate))])
    print(f"\n{aligned(rows)}")


def shown(values: Sequence[float]) -> list[str]:
    """A number of models, and shares."""
    return [f"{one}" if isinstance(one, int) else f"{one:.3f}" for one in values]


def scored(kinds: Sequence[tuple[Any, Any, float]]) -> Scored:
    """From the raw scores of the reference sets and of those asked about, and the weight, of each kind of evidence."""
    null, asked, weights = zip(*kinds, strict=True)
    return score(null_of(null, weights), asked)


def row(found: Scored, labels: np.ndarray, names: Sequence[str], some: np.ndarray) -> list[Any]:
    """n, AP and its chance over data sets, the share of models whose data set comes first, and shares of small p."""
    precision, by_chance, small, tiny = [], [], [], []
    for place, name in enumerate(names):
        is_true = labels[some] == name
        if not is_true.any():
            continue
        precision.append(average_precision_score(is_true, found.z[place, some]))
        by_chance.append(float(is_true.mean()))
        small += (found.p[place, some][is_true] < 0.05).tolist()
        tiny += (found.p[place, some][is_true] < 0.01).tolist()
    right = np.array(names)[found.z[:, some].argmax(axis=0)] == labels[some]
    return [int(some.sum()), np.mean(precision), np.mean(by_chance), right.mean(), np.mean(small), np.mean(tiny)]


def uniformity(sets: Sequence[np.ndarray]) -> list[Any]:
    """n, shares of small p, the distance from uniform (Kolmogorov–Smirnov), the share of sets where a model stands out."""
    finds = [standing_out(p, FALSE_DISCOVERIES) > 0 for p in sets]
    p = np.concatenate(sets)
    p = p[~np.isnan(p)]
    return [len(p), (p < 0.05).mean(), (p < 0.01).mean(), kstest(p, "uniform").statistic, np.mean(finds)]


def those_that_stand_out(found: Scored, labels: np.ndarray, names: Sequence[str], rate: float) -> list[Any]:
    """How many models stand out for the texts of all data sets, and three shares.

    Of those models, the shares that were tuned on the same texts, and on the same data set; last, the share of the
    models tuned on a data set that stand out for it.
    """
    count, same_texts, own = 0, 0, 0
    for place, name in enumerate(names):
        p = found.p[place]
        standing = labels[np.argsort(p, kind="stable")[: standing_out(p, rate)]]  # NaN comes last
        count += len(standing)
        same_texts += int(np.isin(standing, sorted(next((one for one in RELATED if name in one), {name}))).sum())
        own += int((standing == name).sum())
    return [count, same_texts / max(count, 1), own / max(count, 1), own / len(labels)]


def joined(parts: Sequence[Features]) -> Features:
    """Several sets of texts."""
    return Features(*(np.concatenate([getattr(one, name) for one in parts]) for name in ("blocks", "rates")))


def documentation() -> list[Texts]:
    """The lines of the pages of this project that have enough of them."""
    found = []
    for page in sorted([*(PROJECT / "docs").rglob("*.md"), *PROJECT.glob("*.md"), PROJECT / "LICENSE"]):
        lines = [line.strip() for line in page.read_text(encoding="utf-8").splitlines()]
        lines = [line for line in lines if len(line) >= SHORTEST_LINE][:100]
        if len(lines) >= FEWEST_LINES:
            found.append(Texts(page.name, tuple(lines), len(lines)))
    return found


if __name__ == "__main__":
    main()
