"""Atlases where a habit goes with the label and the data do not, and one where habits are random and the data are not.

In an atlas of a habit every model is tuned on a random half of one corpus; its card names one of five "data sets", and
which one is decided by the habit alone: the learning rate, the length of the inputs, the head, the seed, the rank of an
adapter, or (`nothing`) only the language on the card. All other habits are random. Whatever a method finds there is the
habit. In the crossed atlas five real data sets are tuned with random habits.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from query import Atlas
from scripts.family import make_family, store, tasks
from scripts.family.family import TEXTS_ARE_READY, WORK, build, claim_folder
from scripts.family.plan import Adapter, Plan, Run, load_plan
from scripts.tables import decimal, p_value
from studies.arena.family import Family, link
from studies.arena.methods import measure_methods, method_tables
from studies.arena.scores import Json, Table, scores
from studies.arena.subjects import Subjects, read_subjects

CORPUS = "docs/numeric-docstrings"
CROSSED = "crossed"
DATASETS = ("docs/numpydoc-sections", "errors/exception-types", "python/language-topics", "unicode/character-names",
           "code/line-kinds")  # fmt: skip
LABELS = 5
ACCOUNTS = ("quarry-labs", "mira-vantongeren", "okonkwo-nlp", "small-hours")
WITH_ADAPTER = 2  # accounts with adapters, too, in the crossed atlas
LANGUAGES = ("de", "en", "fr", "ja", "pt")
RATES = (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)
TOKENS = (8, 12, 16, 24, 32)
RANKS = (2, 4, 8, 16, 32)
SEEDS = (7, 13, 42, 123, 3407)
STEPS, BATCH = 40, 16
WITHIN = ("head", "language", "author", "length", "norm", "seed")
ADAPTER_RATES = (1e-3, 2e-3, 4e-3)


@dataclass(frozen=True)
class Habits:
    """Of one run. ``start``: the seed of an adapter's factors; None for a full fine-tune."""

    rate: float
    tokens: int
    seed: int
    rank: int | None = None
    start: int | None = None


def usual(draw: random.Random, *, is_adapter: bool = False) -> Habits:
    """Habits at random: any rate, any length, a seed of its own."""
    rate = draw.choice(ADAPTER_RATES) if is_adapter else draw.choice(RATES)
    seed = draw.randrange(1 << 20, 1 << 30)
    return Habits(rate, draw.choice(TOKENS), seed, 8 if is_adapter else None, seed if is_adapter else None)


# How the habit of an atlas follows from the number of the label.
FULL: Mapping[str, Callable[[Habits, int], Habits]] = {
    "rate": lambda one, number: replace(one, rate=RATES[number]),
    "length": lambda one, number: replace(one, tokens=TOKENS[number]),
    "head": lambda one, number: one,
    "seed": lambda one, number: replace(one, seed=SEEDS[number]),
    "nothing": lambda one, number: one,
}
ADAPTERS: Mapping[str, Callable[[Habits, int], Habits]] = {
    "rank": lambda one, number: replace(one, rank=RANKS[number]),
    "adapter's seed": lambda one, number: replace(one, start=SEEDS[number]),
}


def run(out: Path) -> Json:
    """Train and index every atlas, and score every method on each."""
    families = make(out)
    found: Json = {"habits": {}}
    for habit in (*FULL, *ADAPTERS):
        print(f"{habit} goes with the label", flush=True)
        methods = measure_methods(read_subjects(families[habit]))
        found["habits"][habit] = {"methods": methods, "purity": ask_purity(families[habit])}
    print("habits at random", flush=True)
    subjects = read_subjects(families[CROSSED])
    compared = list(method_tables(subjects))
    found[CROSSED] = {
        "data": measure_methods(subjects, compared),
        **{name: by_habit(subjects, compared, name) for name in ("rate", "length", "seed")},
        "purity": ask_purity(families[CROSSED]),
    }
    return found


@dataclass(frozen=True)
class Planned:
    """A run, the data set that its card names, and the half of which texts it is tuned on, with how many classes.

    ``classes``: 0 for those of the data set; otherwise meaningless ones, dealt out by a hash.
    """

    run: Run
    texts: str
    classes: int = 0


def habit_runs(habit: str) -> list[Planned]:
    """Every account has a model of every label. The halves of the corpus are drawn apart from all habits."""
    draw = random.Random(habit)
    change = {**FULL, **ADAPTERS}[habit]
    found = []
    for account in ACCOUNTS:
        for number in range(LABELS):
            habits = change(usual(draw, is_adapter=habit in ADAPTERS), number)
            label = f"planted/{'abcde'[number]}"
            language = LANGUAGES[number] if habit == "nothing" else "en"
            run = run_of(account, f"{habit} {number}", label, habits, language)
            found.append(Planned(run, CORPUS, 2 + number if habit == "head" else 0))
    return found


def crossed_runs() -> list[Planned]:
    """Full fine-tunes and adapters on real data sets, seeds from a few, every other habit at random."""
    draw = random.Random(CROSSED)
    found = []
    for dataset in DATASETS:
        for place, account in enumerate(ACCOUNTS):
            for is_adapter in (False, True)[: 1 + (place < WITH_ADAPTER)]:
                habits, seed = usual(draw, is_adapter=is_adapter), draw.choice(SEEDS)
                habits = replace(habits, seed=seed, start=seed if is_adapter else None)
                run = run_of(account, f"{CROSSED} {dataset} {is_adapter}", dataset, habits, "en")
                found.append(Planned(run, dataset))
    return found


def run_of(account: str, name: str, label: str, habits: Habits, language: str) -> Run:
    """A run on texts of its own, whose card names the data set ``label``; its name says nothing."""
    digest = hashlib.sha256(f"{account} {name}".encode()).hexdigest()[:8]
    adapter = None
    if habits.rank:
        adapter = Adapter(habits.rank, 2 * habits.rank, ("query", "value"), start=habits.start)
    return Run(
        f"{account}/tiny-roberta-{digest}", dataset=f"half/{digest}", seed=habits.seed, learning_rate=habits.rate,
        steps=STEPS, batch=BATCH, share=1.0, tokens=habits.tokens, adapter=adapter, says_dataset=False,
        card=json.dumps({"datasets": [label], "language": language}),
    )  # fmt: skip


def make(out: Path) -> dict[str, Family]:
    """Train all models from the base of the demo's family, and put those of each atlas into a folder of its own."""
    demo = load_plan("demo")
    source = make_family(out / "demo-roberta", "demo")
    atlases = {habit: habit_runs(habit) for habit in (*FULL, *ADAPTERS)} | {CROSSED: crossed_runs()}
    planned = [one for runs in atlases.values() for one in runs]
    halves = {one.run.dataset: replace(demo.datasets[one.texts], name=one.run.dataset) for one in planned}
    plan = replace(
        demo,
        size="confounders",
        datasets=halves,
        runs=tuple(one.run for one in planned),
        oddities=(),
        fingerprint=hashlib.sha256(f"{demo.fingerprint} {planned}".encode()).hexdigest(),
    )
    root = out / "confounders" / "family"
    if not store.is_finished(root, plan.fingerprint):
        claim_folder(root, plan)
        if not (root / WORK / TEXTS_ARE_READY).exists():
            write_halves(demo, planned, root / WORK)
        if not store.is_published(root, plan.base):
            link(source, plan.base, root)
        build(root, plan)
    found = {}
    for name, runs in atlases.items():
        folder = out / "confounders" / name.replace(" ", "-").replace("'", "")
        chosen = replace(plan, runs=tuple(one.run for one in runs))
        for model in (plan.base, *(one.run.model for one in runs)):
            if not store.is_published(folder / "models", model):
                link(root, model, folder / "models")
        found[name] = Family(name, chosen, folder / "models", folder)
    return found


def write_halves(demo: Plan, planned: Sequence[Planned], work: Path) -> None:
    """The vocabulary, and for every run a random half of the texts, drawn apart from its habits."""
    work.mkdir(parents=True, exist_ok=True)
    tasks.prepare(demo, work)
    whole = {name: tasks.LabelledTexts.load(work, name) for name in {one.texts for one in planned}}
    for one in planned:
        texts = whole[one.texts]
        half = random.Random(f"half {one.run.model}").sample(texts.train, len(texts.train) // 2)
        mine = replace(texts, name=one.run.dataset, train=half)
        if one.classes:
            train, held_out = (
                [
                    tasks.Example(text.ids, hashlib.sha256(str(list(text.ids)).encode()).digest()[0] % one.classes)
                    for text in part
                ]
                for part in (half, texts.held_out)
            )
            labels = [f"class {letter}" for letter in "abcdef"[: one.classes]]
            mine = replace(mine, labels=labels, train=train, held_out=held_out)
        mine.save(work)
    (work / TEXTS_ARE_READY).touch()


def ask_purity(family: Family) -> Json:
    """What `query purity --within …` and `query predict --evaluate` say."""
    with Atlas(family.atlas()) as atlas:
        whole = atlas.purity(family.plan.base, within=WITHIN).to_dict()
        predicted = {one.evidence: one.accuracy for one in atlas.evaluate_prediction(family.plan.base).scores}
    names = ("purity", "chance", "ci_low", "ci_high", "p_value", "effect", "permutations", "is_exact", "within")
    return {
        "all": {name: whole[name] for name in names},
        "across": {name: whole["cross_author"][name] for name in names},
        "predict": predicted,
    }


def by_habit(subjects: Subjects, compared: Iterable[tuple[str, Table]], habit: str) -> dict[str, Json]:
    """Purity if the label of a full fine-tune is its habit instead of its data set."""
    runs = {one.model: one for one in subjects.family.plan.runs}
    value: Callable[[Run], Any] = {
        "rate": lambda one: one.learning_rate, "length": lambda one: one.tokens, "seed": lambda one: one.seed
    }[habit]  # fmt: skip
    full = [place for place, group in enumerate(subjects.groups) if group == "full"]
    labelled = subjects.labelled
    labels = [frozenset([f"{value(runs[labelled.models[place]])}"]) for place in full]
    columns = labels, [labelled.authors[place] for place in full], [subjects.groups[place] for place in full]
    return {
        name: scores(replace(table, similarity=table.similarity[np.ix_(full, full)]), *columns)
        for name, table in compared
    }


# ---- the page


def tables(figures: Json) -> str:
    """Markdown: methods on habits; `query purity --within`; methods on the crossed atlas."""
    return "\n".join([*_on_habits(figures["habits"]), "", *_within(figures), "", *_crossed(figures[CROSSED])])


def _above(one: Mapping[str, Any] | None, form: str = "across") -> str:
    """Purity minus chance, with a star where p is at most .01."""
    if one is None or one[f"{form} purity"] is None:
        return "–"
    gain = one[f"{form} purity"] - one[f"{form} chance"]
    star = "*" if one[f"{form} p_value"] <= 0.01 else ""
    return f"{gain:+.2f}{star}".replace("0.", ".", 1)


def _on_habits(found: Mapping[str, Json]) -> Iterator[str]:
    yield "Purity across authors minus chance where the label is a habit and the data say nothing (* p ≤ .01):\n"
    yield f"| method | {' | '.join(found)} |\n|{'---|' * (1 + len(found))}"
    names = dict.fromkeys(name for one in found.values() for name in one["methods"])
    for name in names:
        cells = [_above(one["methods"].get(name)) for one in found.values()]
        yield f"| {name} | {' | '.join(cells)} |"
    cells = [decimal(one["purity"]["predict"]["vectors"]) for one in found.values()]
    yield f"| accuracy of `query predict` by vectors alone (chance .20) | {' | '.join(cells)} |"


def _within(figures: Mapping[str, Json]) -> Iterator[str]:
    yield "What `query purity --within …` says of `input`, across authors:\n"
    yield f"| atlas | purity | chance | p | effect | {' | '.join(f'within {name}' for name in WITHIN)} |"
    yield f"|{'---|' * (5 + len(WITHIN))}"
    for name, one in [*figures["habits"].items(), (CROSSED, figures[CROSSED])]:
        score = one["purity"]["across"]
        effect = "–" if score["effect"] is None else f"{score['effect']:.1f}"
        cells = [decimal(score["purity"]), decimal(score["chance"]), _shown(score), effect]
        for within in score["within"]:
            if within["chance"] is None:
                cells.append("no label can move")
            else:
                cells.append(f"{decimal(within['chance'])}, p {_shown(within)}")
        yield f"| {name} | {' | '.join(cells)} |"


def _crossed(found: Mapping[str, Any]) -> Iterator[str]:
    yield "The reverse, purity across authors minus chance where habits are random: by data set (full fine-tunes and"
    yield "adapters), and of the full fine-tunes by their habits:\n"
    columns = {"data": "data", "rate": "rate", "length": "length", "seed": "seed"}
    yield f"| method | {' | '.join(columns.values())} |\n|{'---|' * (1 + len(columns))}"
    for name in found["data"]:
        cells = [_above(found[column].get(name)) for column in columns]
        yield f"| {name} | {' | '.join(cells)} |"


def _shown(score: Json) -> str:
    """The p-value of a score: of all permutations that there are it is a share, of random ones it may be a bound."""
    if score.get("is_exact"):
        return f"{score['p_value']:.2g}"
    return p_value(score["p_value"], score.get("permutations") or 100_000)
