"""Purity: models without a dataset change nothing, which datasets are confused, and p values where nothing is true."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from scipy.stats import binom, kstest

from query import Atlas
from query.models.population import Population, read_population, representatives
from query.questions.clusters.agreement import compared, compared_across, silhouette_of
from query.questions.predict.training_set import LabelledModelReader
from query.questions.purity.study import purity
from tests.atlas_builder import BASE, Model, write_atlas
from tests.purity.loops import Models, candidates_of, similarity

NUMBERS = np.random.default_rng(5).normal(size=(40, 12))


@pytest.fixture(scope="module")
def atlas(tmp_path_factory):
    """Every third model names a dataset; of two groups of repeats one member does, the first upload or a later one."""
    models = [
        Model(
            f"author{number % 7}/model{number}",
            NUMBERS[number] * (number != 9),  # a copy, though it names a dataset
            datasets=(f"data{number % 4}",) if number % 3 == 0 else (),
            is_unrelated=number == 12,
            duplicate_of={3: 3, 4: 3, 5: 3, 19: 19, 21: 19}.get(number + 1),
        )
        for number in range(40)
    ]
    with Atlas(write_atlas(tmp_path_factory.mktemp("atlas"), models)) as opened:
        yield opened


def test_models_without_a_dataset_change_nothing(atlas):
    few, everyone = read_population(atlas, BASE, documented=True), read_population(atlas, BASE)
    repeats = {2, 3, 4, 18, 20}
    assert {identity - 1 for identity in few.ids.tolist()} == {*range(0, 40, 3), *repeats} - {9}
    assert len(everyone.ids) == 39
    assert _voices(few) == _voices(everyone)
    assert {("author4/model18", ("data2",)), ("author2/model2", ("data3",))} == {
        (model, names) for model, names, _ in _voices(few) if model.endswith(("model18", "model2"))
    }
    assert atlas.purity(draws=50).to_dict(by_model=True) == purity(everyone, draws=50).to_dict(by_model=True)


def test_all_models_that_name_a_dataset_vote(atlas):
    found = LabelledModelReader(atlas).read(BASE)
    assert [(model, tuple(sorted(names))) for model, names in zip(found.models, found.datasets, strict=True)] == [
        (model, names) for model, names, _ in _voices(read_population(atlas, BASE))
    ]


def _voices(population: Population) -> list[tuple[str, tuple[str, ...], list[float]]]:
    """Model, datasets and vector of each that stands for itself or its repeats, where any of these names one."""
    rows, datasets = representatives(population)
    return [
        (population.models[row], tuple(sorted(names)), population.vectors[row].tolist())
        for row, names in zip(rows, datasets, strict=True)
        if names
    ]


def in_loops(models, k, cross):
    """{(a, b): (neighbours, share, chance)} of every ordered pair of datasets."""
    found = candidates_of(models)
    counts, expected, totals = {}, {}, {}
    for identity, vector, author, mine in found:
        pool = [g for g in found if g[0] != identity and not (cross and g[2] == author)]
        matching = [g for g in pool if g[3] & mine]
        if not matching:
            continue
        near = sorted(pool, key=lambda g: (-similarity(vector, g[1]), g[0]))[: k or len(matching)]
        missed = [g for g in near if not g[3] & mine]
        others = [g for g in pool if not g[3] & mine]
        for a in mine:
            totals[a] = totals.get(a, 0) + len(missed)
            for g in missed:
                for b in g[3]:
                    counts[a, b] = counts.get((a, b), 0) + 1
            for g in others:
                for b in g[3]:
                    expected[a, b] = expected.get((a, b), 0) + len(missed) / len(others)
    return {
        (a, b): (counts.get((a, b), 0), counts.get((a, b), 0) / max(totals[a], 1), chance / max(totals[a], 1))
        for (a, b), chance in expected.items()
    }


@pytest.mark.parametrize("k", [None, 6])
@pytest.mark.parametrize("most", [1, 2])
def test_like_loops(most, k):
    rng = np.random.default_rng(most)
    datasets = [set(rng.choice(list("abcde"), rng.integers(1, most + 1), replace=False)) for _ in range(60)]
    authors = [f"a{row}" for row in rng.integers(0, 9, 60)]
    models = Models(rng.standard_normal((60, 4)), datasets, authors)
    result = purity(models, k=k, draws=1, confusions=True)
    for form, cross in ((result, False), (result.cross_author, True)):
        expected = in_loops(models, k, cross)
        confused = {(pair.dataset, pair.taken_for): pair for pair in form.confusions}
        assert {frozenset(pair) for pair in confused} == {frozenset(pair) for pair, row in expected.items() if row[0]}
        for (a, b), pair in confused.items():
            there, back = expected.get((a, b), (0, 0, 0)), expected.get((b, a), (0, 0, 0))
            assert [pair.neighbours, pair.share, pair.chance] == pytest.approx(list(there))
            assert [pair.back_neighbours, pair.back_share, pair.back_chance] == pytest.approx(list(back))
            assert pair.is_notable == (there[1] > there[2] + 1e-12 and back[1] > back[2] + 1e-12)


def test_two_datasets_of_one_text_are_the_notable_pair():
    rng = np.random.default_rng(0)
    places = {"sst2": 0, "sst5": 0, "mnli": 1, "squad": 2, "cola": 3}
    datasets = [name for name in places for _ in range(12)]
    vectors = [3 * np.eye(6)[places[name]] + 0.5 * rng.standard_normal(6) for name in datasets]
    result = purity(Models(vectors, datasets, [f"a{row % 6}" for row in range(60)]), draws=1, confusions=True)
    for form in (result, result.cross_author):
        assert (form.confusions[0].dataset, form.confusions[0].taken_for) == ("sst2", "sst5")
        assert form.confusions[0].share > 0.9 > 0.3 > form.confusions[0].chance
    rows = result.to_rows("confusion")
    assert rows[0] == {"among": "all"} | asdict(result.confusions[0])
    assert result.to_dict(confusions=True)["cross_author"]["confusions"][0]["taken_for"] == "sst5"
    assert "confusions" not in result.to_dict()
    (title,) = [name for name in result.table(by="confusion") if name.startswith("taken for each other")]
    assert result.table(by="confusion")[title][0]["dataset"] == "sst2"


def test_where_nothing_is_taken_for_anything_nothing_is_listed():
    vectors = np.eye(4)[[0, 0, 1, 1]]
    result = purity(Models(vectors, list("aabb")), draws=1, confusions=True)
    assert result.confusions == result.cross_author.confusions == ()
    assert result.to_rows("confusion") == []
    one = purity(Models(np.eye(2)[:1], ["a"]), draws=1, confusions=True)
    assert one.to_rows("confusion") == []
    assert isinstance(one.table(by="confusion"), dict)


RUNS = 200


def nothing(seed, authors=14, care=0.3):
    """Each author has a place; every other one has one dataset, the rest two; every fourth owns one of them."""
    rng = np.random.default_rng(seed)
    vectors, labels, names = [], [], []
    for author in range(authors):
        manner = rng.standard_normal(8)
        choices = [f"d{number}" for number in rng.choice(4, 1 + author % 2, replace=False)]
        if author % 4 == 3:
            choices[-1] = f"own{author}"
        for label in choices:
            place = manner + rng.standard_normal(8)
            for _ in range(int(rng.integers(1, 9 if author % 4 == 3 else 4))):
                vectors.append(place + care * rng.standard_normal(8))
                labels.append(label)
                names.append(f"a{author}")
    return Models(np.array(vectors), labels, names)


def check_uniform(found):
    found = np.array(found)
    for level in (0.05, 0.1, 0.25, 0.5):
        low, high = binom.interval(0.999, len(found), level)
        assert low <= (found <= level).sum() <= high, level
    assert kstest(found, "uniform").pvalue > 0.001


def check_not_small(values, what=""):
    """At no level more small ones than there would be if nothing is true."""
    for level in (0.05, 0.1, 0.25, 0.5):
        assert (np.array(values) <= level).sum() <= binom.interval(0.999, len(values), level)[1], (what, level)


@pytest.mark.slow
def test_neither_p_is_small_where_only_authors_and_their_sweeps_differ():
    """Purity is far above chance, as sweeps are close; no label says anything of another author's models."""
    found = [purity(nothing(seed), draws=99, seed=seed) for seed in range(RUNS)]
    assert np.mean([one.purity - one.chance for one in found]) > 0.2
    check_uniform([one.p_value for one in found])
    check_uniform([one.cross_author.p_value for one in found])


@pytest.mark.slow
def test_p_within_strata_is_not_small_either(monkeypatch):
    """Each sweep has a habit, which makes its models alike and goes with no label."""
    monkeypatch.setattr("query.questions.purity.study._CHANCE_DRAWS", 1)
    plain, cross = [], []
    for seed in range(RUNS):
        m, rng = nothing(seed), np.random.default_rng(seed)
        sweeps = list(zip(m.authors, map(tuple, m.datasets), strict=True))
        habit = {sweep: int(rng.integers(2)) for sweep in dict.fromkeys(sweeps)}
        habits = [habit[sweep] for sweep in sweeps]
        vectors = m.vectors + 0.5 * np.eye(8)[habits]
        found = purity(Models(vectors, m.datasets, m.authors), draws=99, seed=seed, within={"habit": habits})
        plain += [one.p_value for one in found.within if one.p_value is not None]
        cross += [one.p_value for one in found.cross_author.within if one.p_value is not None]
    for values in (plain, cross):
        assert len(values) > RUNS / 2
        check_not_small(values)


@pytest.mark.study
def test_plain_p_is_uniform_where_models_are_independent():
    found = []
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        m = nothing(seed)
        m.vectors = rng.standard_normal(m.vectors.shape).astype(np.float32)
        m.vectors /= np.linalg.norm(m.vectors, axis=1, keepdims=True)
        found.append(purity(m, draws=99, seed=seed).p_value)
    check_uniform(found)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["place", "author"])
def test_clusters_across_authors_p_is_uniform(by):
    """Clusters that follow each author's hand, or each sweep's place, and know nothing of datasets."""
    found = []
    for seed in range(RUNS):
        m, clusters, rng = clustered_nothing(seed, by)
        row, _ = compared_across("datasets", "cross_author", clusters, first_names(m), m.authors, 99, rng)
        found.append(row.p_value)
    check_uniform(found)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["place", "author"])
def test_no_p_of_clusters_and_datasets_is_small(by):
    """The headline's p and the others of the same clusters: each is uniform or larger."""
    found = {}
    for seed in range(RUNS):
        m, clusters, rng = clustered_nothing(seed, by)
        for row in compared("datasets", clusters, first_names(m), 39, rng, m.authors):
            found.setdefault((row.labels, row.measure, row.among), []).append(row.p_value or 1.0)
        if by == "place":  # else authors are what clusters follow
            for row in compared("authors", clusters, m.authors, 39, rng, first_names(m)):
                found.setdefault((row.labels, row.measure, row.among), []).append(row.p_value or 1.0)
    assert len(found) == (12 if by == "place" else 6)
    for name, values in found.items():
        check_not_small(values, name)


@pytest.mark.slow
def test_silhouette_p_is_uniform():
    values = []
    for seed in range(RUNS):
        m, rng = nothing(seed), np.random.default_rng(seed)
        row = silhouette_of("datasets", m.vectors.astype(np.float64), first_names(m), 99, rng, m.authors)
        values.append(row.p_value)
    check_uniform(values)


def first_names(models):
    return [next(iter(names)) for names in models.datasets]


def clustered_nothing(seed, by):
    """``nothing``, with a random cluster for each author or for each sweep."""
    m, rng = nothing(seed), np.random.default_rng(seed)
    units = m.authors if by == "author" else list(zip(m.authors, first_names(m), strict=True))
    cluster = {unit: int(rng.integers(5)) for unit in dict.fromkeys(units)}
    return m, np.array([cluster[unit] for unit in units]), rng
