"""Adapters that began at the same random numbers: their labels are not repeated, and data that only they name is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from query import Atlas
from query.faces.atlas import opened
from query.models.population import read_population
from query.questions.predict import training_set
from query.questions.predict.dataset_runs import DatasetRuns
from query.questions.predict.evaluation import evaluate_models
from query.questions.predict.predict import Target, predict_target
from query.questions.predict.training_set import LabelledModelReader, LabelledModels, TrainingSet, are_starts_confounded
from query.questions.purity.study import habits_with_labels, strata_of
from tests.atlas_builder import BASE, Model, write_atlas
from tests.predict.simulated import labelled_models

DATA, STARTS, RUNS, SIZE = 5, 4, 4, 60


def runs(seed: int) -> tuple[LabelledModels, list[str], list[str]]:
    """Adapters on five data sets from four starts, and their data and starts.

    Runs on one data set from one start are the most alike, as those are that see their batches in one order. Nobody
    has two runs of them.
    """
    rng = np.random.default_rng(seed)
    data, both = rng.normal(size=(DATA, SIZE)), rng.normal(size=(DATA, STARTS, SIZE))
    places = [(one, start, run) for one in range(DATA) for start in range(STARTS) for run in range(RUNS)]
    vectors = [data[one] + 0.8 * both[one, start] + 0.7 * rng.normal(size=SIZE) for one, start, _ in places]
    authors = [f"author{(one + 3 * start + 2 * run) % 8}" for one, start, run in places]
    names, starts = [f"data-{one}" for one, _, _ in places], [f"uniform {start} 0" for _, start, _ in places]
    models = [f"{author}/m{number}" for number, author in enumerate(authors)]
    return replace(labelled_models(vectors, authors, names, models=models), starts=starts), names, starts


def habit(names: list[str], starts: list[str], share: float, seed: int) -> list[frozenset[str]]:
    """Labels of which this share goes with the start, and the rest is random."""
    rng = np.random.default_rng(seed)
    found = rng.permutation(names).tolist()
    for place, start in enumerate(starts):
        if rng.random() < share:
            found[place] = f"data-{start.split()[1]}"
    return [frozenset([name]) for name in found]


@pytest.fixture
def starts_are_confounded(monkeypatch):
    monkeypatch.setattr(training_set, "are_starts_confounded", lambda sweeps, starts: True)


def goes(labels: list[frozenset[str]], starts: list[int], authors: list[str]) -> bool:
    return are_starts_confounded(DatasetRuns(authors, labels), np.array(starts))


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0.0, 0.08), (0.5, 0.9, 1.0), (0.8, 1.0, 1.0)])
def test_whether_starts_are_confounded_with_labels(share, least, most):
    found = []
    for seed in range(100 if share == 0 else 30):
        models, names, starts = runs(seed)
        codes = [int(start.split()[1]) for start in starts]
        found.append(goes(habit(names, starts, share, seed), codes, models.authors))
    assert least <= np.mean(found) <= most


def test_models_of_one_author_or_of_unknown_start_say_nothing_of_it():
    names = [frozenset([f"data-{number // 10}"]) for number in range(40)]
    of_one_start = [number // 10 for number in range(40)]
    authors = [f"author{number % 8}" for number in range(40)]
    assert goes(names, of_one_start, authors)
    assert not goes(names, [-1] * 40, authors)
    assert not goes(names, of_one_start, [f"author{number // 10}" for number in range(40)])
    assert not goes([frozenset()] * 40, of_one_start, authors)
    assert not goes([frozenset(["x"])] * 40, of_one_start, authors)


def gain(models: LabelledModels) -> float:
    """Accuracy by vectors alone, above the share of the commonest label."""
    hits = [one.right > 0 for one in evaluate_models(models, k=10).outcomes]
    names = [min(one) for one in models.datasets]
    return float(np.mean(hits)) - max(names.count(name) for name in set(names)) / len(names)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.5, 0.8])
def test_a_label_that_goes_with_the_start_is_not_predicted(share):
    found = {True: [], False: []}
    for seed in range(4):
        models, names, starts = runs(seed)
        labelled = replace(models, datasets=habit(names, starts, share, seed))
        found[True].append(gain(labelled))
        found[False].append(gain(replace(labelled, starts=None)))
    assert np.mean(found[True]) <= 0.05
    if share == 0.8:
        assert np.mean(found[False]) > 0.2  # so it is the starts that make the difference


@pytest.mark.slow
def test_data_are_predicted_all_the_same():
    models, names, _ = runs(0)
    assert gain(models) > 0.95 - 1 / len(set(names))


def test_who_votes_against_loops_over_models(starts_are_confounded):
    models, names, starts = runs(1)
    mixed = replace(
        models,
        starts=[None if place % 7 == 0 else start for place, start in enumerate(starts)],
        datasets=[frozenset(["rare"]) if place in (3, 18) else one for place, one in enumerate(models.datasets)],
    )
    training = TrainingSet(mixed, 10)
    places = np.arange(0, len(names), 9)
    sweeps = training.sweeps
    allowed = sweeps.allowed(places, ())
    found = training.voting(places, allowed)
    for row, place in enumerate(places.tolist()):
        own = mixed.starts[place]

        def begins_elsewhere(sweep: int, own: str | None = own) -> bool:
            members = [other for other in range(len(names)) if sweeps.of_model[other] == sweep]
            return any(own is None or mixed.starts[other] != own for other in members)

        for sweep, label in enumerate(sweeps.labels):
            others = [
                other for other, named in enumerate(sweeps.labels)
                if allowed[row, other] and set(named) & set(label) and begins_elsewhere(other)
            ]  # fmt: skip
            assert found[row, sweep] == (allowed[row, sweep] and (begins_elsewhere(sweep) or not others))


def test_of_a_sweep_those_that_began_elsewhere_are_compared(starts_are_confounded):
    vectors = [[1, 0, 0], [0.9, 0.1, 0], [0.5, 0.5, 0], [0, 0, 1]]
    models = labelled_models(vectors, ["ann", "bob", "bob", "cyd"], ["x", "x", "x", "y"])
    starts = ["one", "one", "two", None]
    vote = TrainingSet(replace(models, starts=starts), 10).nearest
    plain = TrainingSet(models, 10).nearest
    (sweep,) = [number for number, label in enumerate(TrainingSet(models, 10).sweeps.labels) if label == ("x",)][1:]
    similarity = [
        dict(zip(one.order[0].tolist(), one.similarity[0].tolist(), strict=True))[sweep] for one in (vote, plain)
    ]
    assert similarity == pytest.approx([2**-0.5, 0.9 / np.hypot(0.9, 0.1)])


def test_data_that_only_models_of_one_start_name_are_still_predicted():
    """Many follow one tutorial: one seed, one data set."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, SIZE))
    authors = [f"author{number % 8}" for number in range(40)]
    names = [f"data-{number // 10}" for number in range(40)]
    vectors = [centres[number // 10] + 0.5 * rng.normal(size=SIZE) for number in range(40)]
    models = replace(labelled_models(vectors, authors, names), starts=[f"uniform {name} 0" for name in names])
    asked = labelled_models([centres[0] + 0.5 * rng.normal(size=SIZE)], ["zoe"], ["none"]).table
    facts = {"model_id": None, "declared": (), "duplicates": (), "notes": ()}
    target = Target("zoe/m", "base", "zoe", vector=asked, head=models.heads[0], start="uniform data-0 0", **facts)
    found = predict_target(target, models, k=10)
    assert found.answers[0].dataset == "data-0"
    assert not any("same random numbers" in note for note in found.notes)


def test_a_note_says_that_some_had_no_vote(starts_are_confounded):
    models, _, starts = runs(2)
    facts = {"model_id": None, "declared": (), "duplicates": (), "notes": ()}
    target = Target(
        "zoe/m", "base", "zoe", vector=models.table.take([0]), head=models.heads[0], start=starts[0], **facts
    )
    found = predict_target(target, models, k=10)
    assert any(note.startswith("Adapters that began at the same random numbers do not vote") for note in found.notes)
    voters = {voter.model for voter in found.voters}
    assert not voters & {model for model, start in zip(models.models, starts, strict=True) if start == starts[0]}


def test_if_no_two_began_alike_nothing_changes():
    models, names, _ = runs(3)
    places = np.arange(len(names))
    one, other = (
        TrainingSet(replace(models, starts=given), 10).features(places)
        for given in (None, [f"uniform {number} 0" for number in range(len(names))])
    )
    for name in ("share", "log_votes", "prominence"):
        np.testing.assert_array_equal(getattr(one.vectors, name), getattr(other.vectors, name))
    np.testing.assert_array_equal(one.nearness, other.nearness)


def test_starts_are_read_from_the_atlas_and_are_purity_s_habit_of_the_seed(tmp_path):
    rng = np.random.default_rng(0)
    models = [
        Model(f"a{number % 5}/m{number}", rng.normal(size=8), (f"data-{number // 6}",), relation="adapter",
              initialisation=1 + 6 * (number // 6) if number != 23 else None)
        for number in range(24)
    ]  # fmt: skip
    with Atlas(write_atlas(tmp_path / "atlas", models)) as atlas, opened(atlas) as reader:
        labelled = LabelledModelReader(reader).read(BASE)
        assert labelled.starts == [None if number == 23 else f"as {1 + 6 * (number // 6)}" for number in range(24)]
        population = read_population(reader, BASE)
        strata = strata_of(reader, population, ["seed"])
        assert strata["seed"] == labelled.starts
        (note,) = habits_with_labels(population, strata)
        assert note.startswith(
            "Labels and seed are confounded: only 0 of 24 models share the seed with a model of another label"
        )
