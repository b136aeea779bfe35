"""What an atlas publishes, against plain loops over the blocks."""

from __future__ import annotations

import itertools

import duckdb
import numpy as np
import pytest

from indexer.vectors.background import Background
from indexer.vectors.centre import FULL, Centre, centre_of
from query import Atlas
from query.contract.results import plain
from query.models.lookup import resolve_model
from query.questions.similar import similarity_of
from tests.atlas_builder import BASE, Model, block_family, publish, unit, write_atlas
from tests.vectors import loops

pytestmark = pytest.mark.slow

# Vectors are kept in 16 bits.
CLOSE = 1e-3


def expected(models: list[Model]) -> list[np.ndarray]:
    members = [
        one for one in models
        if one.group == "full" and one.vector.any() and not one.is_unrelated and one.duplicate_of is None
    ]  # fmt: skip
    middle = loops.centre([one.vector for one in members], [one.owner for one in members])
    return [
        loops.centred(one.vector, middle) if one.group == "full" and one.vector.any() else one.vector for one in models
    ]


@pytest.fixture(scope="module")
def models() -> list[Model]:
    rng = np.random.default_rng(1)
    odd = [
        Model("eve/unrelated", unit(rng.normal(size=(6, 24))), ("data-0",), is_unrelated=True),
        Model("eve/copy", np.zeros((6, 24)), ("data-0",)),
        Model("eve/again", block_family(0)[0].vector, ("data-0",), duplicate_of=1),
    ]
    one_matrix = np.zeros((6, 24))
    one_matrix[2] = unit(rng.normal(size=(1, 24)))
    return [*block_family(0), *odd, Model("eve/little", one_matrix, ("data-1",), relation="adapter")]


@pytest.fixture(scope="module")
def atlas(models, tmp_path_factory):
    with Atlas(write_atlas(tmp_path_factory.mktemp("blocks") / "atlas", models)) as opened:
        yield opened


def test_vectors_are_blocks_and_those_of_full_fine_tunes_minus_their_centre(atlas, models):
    vectors = atlas.index(BASE).vectors()
    wanted = expected(models)
    assert vectors.ids.tolist() == [number for number, one in enumerate(models, 1) if one.vector.any()]
    for model_id, vector in zip(vectors.ids.tolist(), vectors.matrix, strict=True):
        np.testing.assert_allclose(vector.reshape(6, 24), wanted[model_id - 1], atol=CLOSE)


def test_neighbours_are_the_nearest_by_the_mean_cosine_of_shared_blocks(atlas, models):
    wanted = expected(models)
    rows = atlas.rows("SELECT model_id, neighbour_id, similarity FROM neighbours ORDER BY model_id, rank")
    by_model: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        by_model.setdefault(row["model_id"], []).append((row["neighbour_id"], row["similarity"]))
    for model_id, found in by_model.items():
        exact = {
            other: loops.similarity(wanted[model_id - 1], wanted[other - 1])
            for other, one in enumerate(models, 1)
            if other != model_id and one.vector.any()
        }
        best = sorted(exact.values(), reverse=True)[:50]
        np.testing.assert_allclose([value for _, value in found], best, atol=CLOSE)
        np.testing.assert_allclose([exact[other] for other, _ in found], best, atol=CLOSE)


@pytest.mark.parametrize("model", ["a0/d0-0", "a3/d2-2", "eve/little"])
@pytest.mark.parametrize("where", [None, "model_id % 3 = 0"])
def test_a_search_finds_what_brute_force_finds(atlas, models, model, where):
    wanted = expected(models)
    mine = next(number for number, one in enumerate(models, 1) if one.model == model)
    exact = sorted(
        (
            loops.similarity(wanted[mine - 1], wanted[number - 1])
            for number, one in enumerate(models, 1)
            if number != mine and one.vector.any() and (where is None or number % 3 == 0)
        ),
        reverse=True,
    )
    found = atlas.similar(model, 25, where=where, explain=True)
    np.testing.assert_allclose([one.similarity for one in found], exact[:25], atol=CLOSE)
    for one in found:
        other = wanted[next(place for place, each in enumerate(models) if each.model == one.model)]
        both = sum(a.any() and b.any() for a, b in zip(wanted[mine - 1], other, strict=True))
        assert (one.matrices, one.is_shrunk) == (both, both < 4)
        assert one.because is not None
        assert sum(one.because["layers"].values()) == pytest.approx(one.similarity, abs=1e-4)


def test_stored_neighbours_say_the_same_as_a_search(atlas):
    stored, searched = atlas.similar("a0/d0-2", 20), atlas.similar("a0/d0-2", 20, where="true")
    assert [plain(one) | {"similarity": 0, "background": 0} for one in stored] == [
        plain(one) | {"similarity": 0, "background": 0} for one in searched
    ]
    for one, other in zip(stored, searched, strict=True):
        assert one.similarity == pytest.approx(other.similarity, abs=1e-5)
        assert one.background == pytest.approx(other.background, abs=1e-4)


def test_the_background_is_the_share_of_unrelated_pairs_at_least_as_similar(atlas, models):
    wanted = expected(models)
    people = [
        place for place, one in enumerate(models)
        if one.vector.any() and not one.is_unrelated and one.duplicate_of is None and one.datasets
    ]  # fmt: skip
    for groups in (("full", "full"), ("adapter", "full"), ("adapter", "adapter")):
        exact = np.array([
            loops.similarity(wanted[one], wanted[other])
            for one, other in itertools.combinations(people, 2)
            if models[one].owner != models[other].owner and not set(models[one].datasets) & set(models[other].datasets)
            and tuple(sorted((models[one].group, models[other].group))) == groups
        ])  # fmt: skip
        for value in (-0.9, -0.2, 0.0, 0.1, 0.3, 0.95):
            share = (1 + (exact >= value).sum()) / (1 + len(exact))
            assert atlas.background(BASE, groups, value) == pytest.approx(share, abs=0.03), (groups, value)
        assert atlas.background(BASE, groups, 0.999) == pytest.approx(1 / (1 + len(exact)))


def test_sql_and_python_read_a_background_alike(atlas):
    rows = atlas.rows(
        "SELECT similarity, share, pairs FROM null_similarity WHERE one_group = 'full' ORDER BY similarity DESC"
    )
    points = (np.array([row[name] for row in rows]) for name in ("similarity", "share"))
    known = Background(rows[0]["pairs"], *points)
    for value in [*np.linspace(-1, 1, 41), rows[0]["similarity"], rows[7]["similarity"], rows[-1]["similarity"]]:
        assert atlas.background(BASE, ("full", "full"), float(value)) == pytest.approx(known.share(float(value)))


def test_two_models_compared_are_described_as_neighbours_are(atlas):
    (near,) = atlas.similar("a0/d0-0", 1)
    asked = [resolve_model(atlas, name, None, "input") for name in ("a0/d0-0", near.model)]
    similarity, background, _, matrices = similarity_of(atlas, *asked)
    assert similarity == pytest.approx(near.similarity, abs=1e-5)
    assert background == pytest.approx(near.background, abs=1e-4)
    assert matrices == near.matrices


def nearest_of(asked: Model, others: list[Model], voters: list[Model] | None) -> Model:
    """The most similar, with the centre of ``voters``, or without a centre."""

    middles = {}
    for group in ("adapter", "full") if voters is not None else ():
        members = [each for each in voters if each.group == group]
        middles[group] = loops.centre([each.vector for each in members], [each.owner for each in members])

    def placed(one: Model) -> np.ndarray:
        return loops.centred(one.vector, middles[one.group]) if middles else one.vector

    mine = placed(asked)
    return max(others, key=lambda one: loops.similarity(mine, placed(one)))


def test_centring_finds_the_data_and_needs_no_model_of_it():
    """With the asked data set's models left out of the centre the nearest are of that data set all the same."""
    models = block_family(0, datasets=4, authors=3)
    found = dict.fromkeys(("before", "after", "without"), 0)
    for asked in models:
        others = [one for one in models if one is not asked]
        voters = {"before": None, "after": models, "without": [one for one in models if one.datasets != asked.datasets]}
        for name, chosen in voters.items():
            found[name] += nearest_of(asked, others, chosen).datasets == asked.datasets
    assert found["after"] > found["before"]
    assert found["without"] >= 0.95 * found["after"]


def test_the_centre_stays_until_its_group_has_grown_by_half_and_then_all_vectors_are_new(tmp_path):
    start, more = block_family(2, authors=4), block_family(3, authors=4)
    folder = write_atlas(tmp_path / "atlas", start)
    kept = [Model(f"z{number}/x", one.vector, one.datasets, relation=one.relation) for number, one in enumerate(more)]
    adapters, full = ([one for one in kept if one.group == group] for group in ("adapter", "full"))
    with Atlas(folder) as atlas:
        first = atlas.centre(BASE)
        before = atlas.index(BASE).vectors()
    few = [*full[:19], *adapters[:15]]
    with duckdb.connect(str(folder / "atlas.duckdb")) as connection:
        assert not publish(connection, folder, few, 61, start)  # of 40 full fine-tunes: 59
    with Atlas(folder) as atlas:
        assert atlas.centre(BASE).version == first.version
        np.testing.assert_array_equal(atlas.index(BASE).vectors().matrix[:60], before.matrix)
    with duckdb.connect(str(folder / "atlas.duckdb")) as connection:
        assert publish(connection, folder, [*full[19:20], *adapters[15:16]], 95, [*start, *few])
    everyone = [*start, *full[:19], *adapters[:15], full[19], adapters[15]]
    with Atlas(folder) as atlas:
        now, vectors = atlas.centre(BASE), atlas.index(BASE).vectors()
        assert now.version != first.version
        assert set(now.groups) == {"full"}
        assert {row["centre"] for row in atlas.rows("SELECT centre FROM representations")} == {now.version}
        middle = loops.centre(*zip(*((one.vector, one.owner) for one in everyone if one.group == "full"), strict=True))
        np.testing.assert_allclose(now.groups["full"].blocks, middle, atol=CLOSE)
        for number, one in enumerate(everyone, 1):
            wanted = loops.centred(one.vector, middle) if one.group == "full" else one.vector
            np.testing.assert_allclose(vectors.row(number).reshape(6, 24), wanted, atol=2 * CLOSE)


def test_a_block_that_is_its_centre_gives_no_nan(models):
    from indexer.vectors.centre import Centre, GroupCentre

    blocks = models[0].vector.astype(np.float32)
    same = Centre({"full": GroupCentre(blocks, np.full(6, 9), 9)})
    assert not same.centred(blocks.reshape(1, -1), "full").any()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_a_small_centre_gives_unrelated_models_no_similarity_far_below_zero(count):
    """Blocks at right angles, each of another author: a cosine of -.23 at the lowest, for three and four of them."""
    raw = np.eye(12, dtype=np.float32)[:count]
    centre = centre_of(raw, [f"author{number}" for number in range(count)], 1)
    cosines = (centred := Centre({FULL: centre}).centred(raw, FULL)) @ centred.T
    kept = max(count - 2, 0) / count
    expected = (kept**2 - 2 * kept) / (count + kept**2 - 2 * kept)
    assert cosines[np.triu_indices(count, 1)] == pytest.approx(expected, abs=1e-6)
    assert expected > -0.24
    assert centre.votes == pytest.approx(count)
