"""Atlases where a habit goes with the label and the data do not, and one where habits are random and the data are not.

In an atlas of a habit every model is tuned on a random half of one corpus; its card names one of five "data sets", and
which one is decided by the habit alone: the learning rate, the length of the inputs, the head, the seed, the rank of an
adapter, or (`nothing`) only the language on the card. All other habits are random. Whatever a method finds there is the
habit. In the crossed atlas five real data sets are tuned with random habits.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from query import Atlas
from scripts.arena.methods import measure_methods, method_tables
from scripts.arena.scores import Json, Table, scores
from scripts.arena.subjects import SAMPLE, Family, Subjects, read_subjects
from scripts.family import make_family, store, tasks
from scripts.family.family import TEXTS_ARE_READY, WORK, build, claim_folder
from scripts.family.plan import Adapter, DataSet, Run, load_plan
from scripts.vectors import decimal

CORPUS = "docs/numeric-docstrings"
CROSSED = ("docs/numpydoc-sections", "errors/exception-types", "python/language-topics", "unicode/character-names",
           "code/line-kinds")  # fmt: skip
LABELS = 5
ACCOUNTS = ("quarry-labs", "mira-vantongeren", "okonkwo-nlp", "small-hours", "h-lindqvist")
LANGUAGES = ("de", "en", "fr", "ja", "pt")
RATES = (1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)
TOKENS = (8, 12, 16, 24, 32)
RANKS = (2, 4, 8, 16, 32)
SEEDS = (7, 13, 42, 123, 3407)
STEPS, BATCH = 60, 16
WITHIN = ("head", "language", "author", "length")
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
    texts = prepare_texts(out)
    found: Json = {"habits": {}}
    for habit in (*FULL, *ADAPTERS):
        family = make(out, habit, habit_runs(habit), texts)
        found["habits"][habit] = {"methods": measure_methods(read_subjects(family)), "purity": ask_purity(family)}
    family = make(out, "crossed", crossed_runs(), texts)
    subjects = read_subjects(family)
    compared = list(method_tables(subjects))
    found["crossed"] = {
        "data": measure_methods(subjects, compared),
        **{name: by_habit(subjects, compared, name) for name in ("rate", "length", "seed")},
        "purity": ask_purity(family),
    }
    return found


def planted(habit: str, number: int) -> str:
    """The name of a data set that exists on cards alone."""
    return f"planted/{habit.replace(' ', '-').replace(chr(39), '')}-{number + 1}"


def habit_runs(habit: str) -> list[Run]:
    """Every account has a model of every label. The halves of the corpus are drawn apart from all habits."""
    draw = random.Random(habit)
    is_adapter = habit in ADAPTERS
    change = {**FULL, **ADAPTERS}[habit]
    found = []
    for place, account in enumerate(ACCOUNTS):
        for number in range(LABELS):
            habits = change(usual(draw, is_adapter=is_adapter), number)
            name = f"{account}/tiny-roberta-{number + 1}{'abcde'[place]}"
            language = LANGUAGES[number] if habit == "nothing" else "en"
            found.append(run_of(name, planted(habit, number), habits, 1000 * place + number, language))
    return found


def crossed_runs() -> list[Run]:
    """Full fine-tunes and adapters on real data sets, seeds from a few, every other habit at random."""
    draw = random.Random("crossed")
    found = []
    for number, dataset in enumerate(CROSSED):
        for place, account in enumerate(ACCOUNTS):
            for is_adapter in (False, True)[: 1 + (place < 3)]:
                habits = usual(draw, is_adapter=is_adapter)
                seed = draw.choice(SEEDS)
                habits = replace(habits, seed=seed, start=seed if is_adapter else None)
                kind = "lora" if is_adapter else "full"
                name = f"{account}/tiny-roberta-{dataset.partition('/')[2]}-{kind}"
                found.append(run_of(name, dataset, habits, 1000 * place + 10 * number + is_adapter, "en"))
    return found


def run_of(model: str, dataset: str, habits: Habits, draw: int, language: str) -> Run:
    """A run on half of the texts."""
    adapter = None
    if habits.rank:
        adapter = Adapter(habits.rank, 2 * habits.rank, ("query", "value"), start=habits.start)
    return Run(
        model, dataset=dataset, seed=habits.seed, learning_rate=habits.rate, steps=STEPS, batch=BATCH, share=0.5,
        draw=draw, tokens=habits.tokens, adapter=adapter, card=f'{{"language": "{language}"}}',
    )  # fmt: skip


def prepare_texts(out: Path) -> Path:
    """The folder with the vocabulary, the real data sets, and under planted names the corpus."""
    texts = out / "confounders" / "texts"
    if (texts / TEXTS_ARE_READY).exists():
        return texts
    texts.mkdir(parents=True, exist_ok=True)
    tasks.prepare(load_plan("demo"), texts)
    corpus = tasks.LabelledTexts.load(texts, CORPUS)
    for habit in (*FULL, *ADAPTERS):
        for number in range(LABELS):
            one = replace(corpus, name=planted(habit, number))
            if habit == "head":  # the classes of a text are meaningless, and their number is the habit
                classes = 2 + number
                train, held_out = (
                    [tasks.Example(text.ids, _class_of(text.ids, classes)) for text in part]
                    for part in (corpus.train, corpus.held_out)
                )
                labels = [f"class {place}" for place in "abcdef"[:classes]]
                one = replace(one, labels=labels, train=train, held_out=held_out)
            one.save(texts)
    (texts / TEXTS_ARE_READY).touch()
    return texts


def _class_of(ids: Sequence[int], classes: int) -> int:
    return hashlib.sha256(str(list(ids)).encode()).digest()[0] % classes


def make(out: Path, name: str, runs: Sequence[Run], texts: Path) -> Family:
    """Train the models of one atlas from the base of the demo's family."""
    demo = load_plan("demo")
    source = make_family(out / "demo-roberta", "demo")
    about = "A part of our texts."
    datasets = {
        one.dataset: DataSet(one.dataset, "", "", (), about) for one in runs if one.dataset not in demo.datasets
    }
    plan = replace(
        demo,
        size="confounders",
        datasets={**demo.datasets, **datasets},
        runs=tuple(runs),
        oddities=(),
        fingerprint=hashlib.sha256(f"{demo.fingerprint} {runs}".encode()).hexdigest(),
    )
    folder = out / "confounders" / name.replace(" ", "-").replace("'", "")
    root = folder / "family"
    if not store.is_finished(root, plan.fingerprint):
        claim_folder(root, plan)
        if not (root / WORK).exists():
            shutil.copytree(texts, root / WORK)
        if not store.is_published(root, plan.base):
            shutil.copytree(source / plan.base, root / plan.base)
            shutil.copy(source / f"{plan.base}.repo.json", root / f"{plan.base}.repo.json")
        build(root, plan)
    return Family(name, plan, root, folder)


def ask_purity(family: Family) -> Json:
    """What `query purity --within …` and `query predict --evaluate` say."""
    with Atlas(family.atlas(SAMPLE)) as atlas:
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
    return "\n".join([*_on_habits(figures["habits"]), "", *_within(figures), "", *_crossed(figures["crossed"])])


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
    for name, one in [*figures["habits"].items(), ("crossed", figures["crossed"])]:
        score = one["purity"]["across"]
        effect = "–" if score["effect"] is None else f"{score['effect']:.1f}"
        cells = [decimal(score["purity"]), decimal(score["chance"]), f"{score['p_value']:.2g}", effect]
        for within in score["within"]:
            if within["chance"] is None:
                cells.append("no label can move")
            else:
                cells.append(f"{decimal(within['chance'])}, p {within['p_value']:.2g}")
        yield f"| {name} | {' | '.join(cells)} |"


def _crossed(found: Mapping[str, Any]) -> Iterator[str]:
    yield "The reverse, purity across authors minus chance where habits are random: by data set (full fine-tunes and "
    yield "adapters), and of the full fine-tunes by their habits:\n"
    columns = {"data": "data", "rate": "rate", "length": "length", "seed": "seed"}
    yield f"| method | {' | '.join(columns.values())} |\n|{'---|' * (1 + len(columns))}"
    for name in found["data"]:
        cells = [_above(found[column].get(name)) for column in columns]
        yield f"| {name} | {' | '.join(cells)} |"
