"""Which datasets are taken for which, against loops, and where it must say nothing."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from query.purity.study import purity
from tests.purity.loops import Models, candidates_of, similarity


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
