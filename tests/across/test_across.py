"""Models of different bases compared by words: found, explained, refused; against loops, and under the null."""

from __future__ import annotations

import numpy as np
import pytest

from indexer.errors import AtlasError, BadArgument
from query import Atlas
from query.models.across import FEWEST_MOVED, CommonWords, all_bases, common_parts
from query.models.reader import AtlasReader
from tests.across.planted import PlantedBase, english, family, greek, vector_of, write_bases
from tests.atlas_builder import Model

pytestmark = pytest.mark.slow

SHARED, COUNT = english(160), 4
TOPICS = [SHARED[number::COUNT][:25] for number in range(COUNT)]
ONE, OTHER, APART = "org/one", "org/other", "org/apart"
ONE_WORDS = sorted([*SHARED, *english(90, seed=1)])
OTHER_WORDS = sorted([*SHARED, *english(200, seed=2)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two bases with common words whose models were tuned on the same data, and one whose words are Greek."""
    greeks = greek(150)
    bases = [
        family(ONE, ONE_WORDS, TOPICS, seed=1),
        family(OTHER, OTHER_WORDS, TOPICS, seed=2),
        family(APART, greeks, [greeks[:30], greeks[30:60]], seed=3),
    ]
    return write_bases(tmp_path_factory.mktemp("across") / "atlas", bases)


@pytest.fixture
def atlas(folder):
    with Atlas(folder) as opened:
        yield opened


def dataset_of(model: str) -> str:
    return f"data/{model.rpartition('/')[2].partition('-')[0]}"


def test_the_models_of_the_other_base_that_were_tuned_on_the_same_data_are_found(atlas):
    for row in atlas.rows("SELECT model FROM fine_tunes WHERE base = ?", [ONE]):
        found = atlas.similar(row["model"], base=OTHER, k=6)
        assert {one.base for one in found} == {OTHER}
        assert {dataset_of(one.model) for one in found} == {dataset_of(row["model"])}
        assert found.searched == OTHER
        assert all(one.expected_by_chance < 1 for one in found)
        assert f"set{found[0].datasets[0][-1]}" in found[0].model


def test_all_bases_are_in_one_list(atlas):
    model = atlas.rows("SELECT model FROM fine_tunes WHERE base = ? ORDER BY 1", [ONE])[0]["model"]
    found = atlas.similar(model, across=True, k=11, explain=True)
    assert {one.base for one in found} == {ONE, OTHER}
    assert {dataset_of(one.model) for one in found} == {dataset_of(model)}
    assert model not in {one.model for one in found}
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    topic = set(TOPICS[int(dataset_of(model)[-1])])
    assert all(len(set(one.words) & topic) >= 0.8 * len(one.words) for one in found)
    assert any(f"not compared: {ONE} and {APART} have 0 words in common" in note for note in found.notes)
    as_rows = found.to_rows()
    assert {"base", "score", "words"} <= set(as_rows[0])
    assert "words" not in atlas.similar(model, across=True).to_rows()[0]
    assert "base" not in atlas.similar(model, representation="words").to_rows()[0]


def test_conditions_and_authors(atlas):
    model = atlas.rows("SELECT model, author FROM fine_tunes WHERE base = ? ORDER BY 1", [ONE])[0]
    found = atlas.similar(model["model"], across=True, k=60, other_authors=True)
    assert model["author"] not in {one.author for one in found}
    own = atlas.rows("SELECT count(*) AS models FROM fine_tunes WHERE author = ?", [model["author"]])[0]["models"]
    assert len(found) == 48 - own
    only = atlas.similar(model["model"], across=True, where="list_contains(datasets, 'data/set2')")
    assert {dataset_of(one.model) for one in only} == {"data/set2"}


def test_similarities_are_those_of_loops(folder):
    with AtlasReader(folder) as atlas:
        population = all_bases(atlas)
        table, space = population.table, population.table.space
        rows, columns = np.arange(len(table)), np.roll(np.arange(len(table)), 30)
        found = table.unscaled(rows, columns)
        scaled = table.pairs(rows, table, columns)
        np.testing.assert_allclose(table.similarities(table, np.float64)[rows, columns], scaled, atol=1e-12)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            names = space.words[table.base[row]], space.words[table.base[column]]
            common = sorted(set(names[0]) & set(names[1]))
            expected = 0.0
            if len(common) >= 50:
                parts = [
                    [float(table.inputs[one, words.index(word)]) for word in common]
                    for one, words in ((row, names[0]), (column, names[1]))
                ]
                norms = [sum(value**2 for value in part) ** 0.5 for part in parts]
                expected = sum(left * right for left, right in zip(*parts, strict=True)) / (norms[0] * norms[1])
            assert found[row] == pytest.approx(expected, abs=1e-6)


def test_disjoint_scripts_are_refused_with_the_count(atlas):
    model = atlas.rows("SELECT model FROM fine_tunes WHERE base = ? LIMIT 1", [ONE])[0]["model"]
    with pytest.raises(AtlasError, match=f"{ONE} and {APART} have 0 words in common"):
        atlas.similar(model, base=APART)
    other = atlas.rows("SELECT model FROM fine_tunes WHERE base = ? LIMIT 1", [APART])[0]["model"]
    with pytest.raises(AtlasError, match=f"{APART} and {ONE} have 0 words in common"):
        atlas.similar(other, across=True)


def test_a_text_in_another_language_is_refused(tmp_path):
    """Both bases know English and Greek words. A model of Greek text says nothing over a base of English alone."""
    draw, greeks = np.random.default_rng(5), greek(80)
    both = sorted([*SHARED, *greeks])
    one = family(ONE, both, TOPICS, seed=1)
    vector = vector_of(both, greeks[:30], draw, noise=0.0)
    vector[np.isin(both, SHARED)] = -0.2  # what other models moved, this one did not
    bilingual = PlantedBase(ONE, one.words, (*one.models, Model("eva/greek", vector, ("data/greek",))))
    with Atlas(write_bases(tmp_path / "atlas", [bilingual, family(OTHER, OTHER_WORDS, TOPICS, seed=2)])) as atlas:
        with pytest.raises(AtlasError, match=f"moved fewer than {FEWEST_MOVED} of the common words"):
            atlas.similar("eva/greek", base=OTHER)
        assert "eva/greek" not in {near.model for near in atlas.similar("eva/greek", across=True, k=60)}


def test_models_that_moved_other_words_are_no_nearer_than_strangers(tmp_path):
    """Under the null shares of strangers at least as similar are uniform: models of texts that no other base has."""
    shares = []
    for trial in range(6):
        draw = np.random.default_rng([7, trial])
        own = [draw.choice(SHARED, 25, replace=False) for _ in range(12)]
        others = [draw.choice(SHARED, 25, replace=False) for _ in range(12)]
        bases = [
            family(ONE, ONE_WORDS, own, each=3, seed=trial, authors=36),
            family(OTHER, OTHER_WORDS, others, each=3, seed=50 + trial, authors=36),
        ]
        for place, base in enumerate(bases):  # no data set is that of the other base
            models = tuple(Model(one.model, one.vector, (f"{place}/{one.datasets[0]}",)) for one in base.models)
            bases[place] = PlantedBase(base.name, base.words, models)
        with Atlas(write_bases(tmp_path / str(trial), bases)) as atlas:
            for row in atlas.rows("SELECT model FROM fine_tunes WHERE base = ? ORDER BY model_id LIMIT 12", [ONE]):
                near = atlas.similar(row["model"], base=OTHER, k=36)
                shares += [one.background for one in near]
    shares = np.array(shares)
    for level in (0.05, 0.2, 0.5, 0.8):
        assert np.mean(shares <= level) == pytest.approx(level, abs=0.05)


def test_purity_across_bases(atlas):
    found = atlas.purity(across=True)
    assert found.purity == 1.0
    assert found.models == 48  # those of the Greek base have no model of another base to match
    assert found.chance == pytest.approx(0.25)
    assert found.p_value < 0.01
    assert {row.dataset: row.models for row in found.by_dataset} == {f"data/set{number}": 12 for number in range(4)}
    with pytest.raises(BadArgument, match="`across` takes all bases"):
        atlas.purity(ONE, across=True)


def test_purity_is_that_of_loops_and_labels_at_random_are_at_chance(tmp_path):
    draw, values, chances = np.random.default_rng(11), [], []
    for trial in range(8):
        bases = []
        for place, words in ((ONE, ONE_WORDS), (OTHER, OTHER_WORDS)):
            made = family(place, words, TOPICS, seed=int(draw.integers(1 << 30)))
            names = draw.permutation([one.datasets[0] for one in made.models])
            models = tuple(
                Model(one.model, one.vector, (str(name),)) for one, name in zip(made.models, names, strict=True)
            )
            bases.append(PlantedBase(place, made.words, models))
        folder = write_bases(tmp_path / str(trial), bases)
        with Atlas(folder) as atlas:
            found = atlas.purity(across=True, draws=99)
        values.append(found.p_value)
        chances.append(found.purity - found.chance)
        with AtlasReader(folder) as reader:
            population = all_bases(reader, documented=True)
            table = population.table.similarities(population.table, np.float64)
            purities = []
            for row in range(len(population.ids)):
                others = [one for one in range(len(table)) if population.table.base[one] != population.table.base[row]]
                others.sort(key=lambda one: (-table[row, one], one))
                matches = [bool(population.datasets[one] & population.datasets[row]) for one in others]
                purities.append(np.mean(matches[: sum(matches)]))
            assert found.purity == pytest.approx(np.mean(purities))
    assert abs(np.mean(chances)) < 0.03
    assert min(values) > 0.01
    assert max(values) > 0.3


def test_one_map_of_all_bases(atlas, tmp_path):
    drawn = atlas.map(all_bases=True)
    assert drawn.color == "base"
    assert {group.group for group in drawn.groups} == {ONE, OTHER, APART}
    assert drawn.models == 24 + 24 + 12
    places = np.array([(point.x, point.y) for point in drawn.points])
    near = np.linalg.norm(places[:, None] - places[None, :], axis=2) + 1e9 * np.eye(len(places))
    same = [
        point.datasets == drawn.points[row].datasets
        for point, row in zip(drawn.points, near.argmin(axis=1), strict=True)
    ]
    assert np.mean(same) > 0.9
    is_mixed = [
        drawn.points[row].group != point.group for point, row in zip(drawn.points, near.argmin(axis=1), strict=True)
    ]
    assert np.mean(is_mixed[:48]) > 0.1  # an island holds models of both bases
    assert all(-1 <= one.cosine <= 1 for points in drawn.neighbours for one in points)
    for name in ("map.png", "map.html", "map.parquet"):
        drawn.write(tmp_path / name, theme="dark")
    assert "data/set0" in {text.get_text() for text in drawn.figure().axes[0].texts}
    with pytest.raises(AtlasError, match="without `base`"):
        atlas.map(ONE, all_bases=True)


def test_an_atlas_of_one_base_says_so(tmp_path):
    with Atlas(write_bases(tmp_path / "atlas", [family(ONE, ONE_WORDS, TOPICS)])) as atlas:
        model = atlas.rows("SELECT model FROM fine_tunes LIMIT 1")[0]["model"]
        with pytest.raises(AtlasError, match="this atlas has no other base"):
            atlas.similar(model, across=True)
        for question in (lambda: atlas.purity(across=True), lambda: atlas.map(all_bases=True)):
            with pytest.raises(AtlasError, match="comparing needs two"):
                question()


def test_few_common_parts_are_none():
    common = CommonWords.of(("aaa", "bbb", "ccc", "ddd", "eee", "fff"), ("bbb", "ccc", "ddd", "eee", "fff", "ggg"))
    assert common.words == ("bbb", "ccc", "ddd", "eee", "fff")
    vectors = np.array([[9, 1, 1, 1, 1, 1], [9, 1, 1, -1, 1, 1]], np.float32)
    moved = common_parts(vectors, common.columns)
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), [1, 0])


def test_a_base_without_labels_is_predicted_from_other_bases(tmp_path):
    one, other = (family(base, words, TOPICS, each=8, seed=seed) for base, words, seed in (
        (ONE, ONE_WORDS, 1), (OTHER, OTHER_WORDS, 2),
    ))  # fmt: skip
    truth = {model.model: model.datasets[0] for model in one.models}
    bare = PlantedBase(ONE, one.words, tuple(Model(model.model, model.vector) for model in one.models))
    with Atlas(write_bases(tmp_path / "atlas", [bare, other])) as atlas:
        answers = atlas.predict_many(base=ONE)
        assert len(answers) == len(truth)
        assert all(one.answer.answers[0].dataset == truth[one.answer.model] for one in answers)
        found = atlas.predict(answers[0].answer.model)
        assert found.representation == "words"
        assert any("the models of other bases vote" in note for note in found.notes)
        assert {vote.model.partition("-")[0] for vote in found.voters} == {"other"}
    message = "no model of org/one with a known dataset by another author"
    with Atlas(write_bases(tmp_path / "alone", [bare])) as atlas, pytest.raises(AtlasError, match=message):
        atlas.predict(next(iter(truth)))


def test_labels_of_its_own_base_come_first(atlas):
    model = atlas.rows("SELECT model FROM fine_tunes WHERE base = ? ORDER BY 1", [ONE])[0]["model"]
    assert atlas.predict(model).representation == "input"
