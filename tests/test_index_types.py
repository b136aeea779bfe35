"""A compressed index finds, filters, replaces and withdraws models as exact search does; and how an index is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from indexer.atlas import AtlasFolder
from indexer.builds.options import index_change
from indexer.cli import main
from indexer.database.reading import Reading
from indexer.publish import vectors as publish_vectors
from indexer.publish.maintenance import rebuild, represent
from indexer.vectors import compressed, search
from indexer.vectors.choice import COMPRESSED, IndexChange, IndexChoice
from indexer.vectors.published import read_published
from indexer.vectors.segments import Vectors
from indexer.vectors.table import VectorTable
from tests.test_neighbours import Store
from tests.tiny_hub import BASE

LENGTH = 32
COUNT = 3000


@pytest.fixture(autouse=True)
def nothing_is_instant(monkeypatch):
    """So that candidates are asked for at once."""
    monkeypatch.setattr(search, "INSTANT_BYTES", 0)
    monkeypatch.setattr(publish_vectors, "INSTANT_BYTES", 0)
    monkeypatch.setattr(publish_vectors, "EXTEND_ABOVE", 4 * LENGTH * 100)


def groups(ids: range, seed: int = 0) -> dict[int, np.ndarray]:
    """Unit vectors around a hundred centres, as models around data sets."""
    centres = np.random.default_rng(99).normal(size=(100, LENGTH))
    rng = np.random.default_rng(seed)
    rows = centres[rng.integers(0, 100, len(ids))] + 0.6 * rng.normal(size=(len(ids), LENGTH))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return dict(zip(ids, rows.astype(np.float32), strict=True))


def nearest(vectors: Vectors, query: np.ndarray, k: int, allowed: np.ndarray | None = None) -> list[int]:
    kept = np.ones(len(vectors.ids), bool) if allowed is None else np.isin(vectors.ids, allowed)
    order = np.argsort(-(vectors.matrix[kept].astype(np.float64) @ query), kind="stable")
    return vectors.ids[kept][order][:k].tolist()


def recall_of(index, vectors: Vectors, queries: np.ndarray, allowed: np.ndarray | None = None) -> float:
    shares = []
    for query in queries:
        found = index.search(VectorTable(query[None], index.masks.blocks), 10, allowed)
        exact = nearest(vectors, query, 10, allowed)
        assert len(found) == len(exact)
        truth = dict(zip(vectors.ids.tolist(), vectors.matrix.astype(np.float64) @ query, strict=True))
        assert all(abs(similarity - truth[model_id]) < 1e-5 for model_id, similarity in found)
        assert [pair[1] for pair in found] == sorted((pair[1] for pair in found), reverse=True)
        shares.append(len({model_id for model_id, _ in found} & set(exact)) / max(len(exact), 1))
    return float(np.mean(shares))


@pytest.fixture(scope="module", params=COMPRESSED)
def published(request, tmp_path_factory):
    """COUNT models under one index type, with the store that tells the truth."""
    store = Store(tmp_path_factory.mktemp("types"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish_vectors, "INSTANT_BYTES", 0)
        store.publish(groups(range(1, COUNT + 1)), neighbours=False, choice=IndexChoice(request.param, promised=0.9))
    return store


QUERIES = np.stack(list(groups(range(40), seed=5).values()))


def test_its_recall_is_measured_and_stored_and_that_of_a_search(published):
    stored = published.published().compressed
    assert stored.recall >= 0.9
    assert stored.queries >= 200
    index = published.published().opened(published.root)
    assert recall_of(index, published.vectors(), QUERIES) >= 0.9
    assert all(one.in_compressed for one in published.published().segments)


@pytest.mark.parametrize("size", [1, 7, 60, 1200])
def test_a_filter_gets_k_results_where_k_exist(published, size):
    index = published.published().opened(published.root)
    allowed = np.random.default_rng(size).choice(np.arange(1, COUNT + 1), size, replace=False)
    assert recall_of(index, published.vectors(), QUERIES[:10], allowed) >= 0.9


def test_a_filter_that_leaves_only_the_farthest_still_finds_them(published):
    index, vectors = published.published().opened(published.root), published.vectors()
    farthest = np.array(nearest(vectors, -QUERIES[0], 30))
    assert {found for found, _ in index.search(VectorTable(QUERIES[0][None], index.masks.blocks), 10, farthest)} == set(
        nearest(vectors, QUERIES[0], 10, farthest)
    )


def test_everything_can_be_asked_for(published):
    index = published.published().opened(published.root)
    assert len(index.search(VectorTable(QUERIES[0][None], index.masks.blocks), 10 * COUNT)) == COUNT


@pytest.mark.parametrize("factory", COMPRESSED)
def test_models_come_go_and_change(tmp_path, factory):
    store = Store(tmp_path)
    store.publish(groups(range(1, 1501)), neighbours=False, choice=IndexChoice(factory, promised=0.85))
    trained = store.published().compressed
    store.publish(groups(range(1490, 1520), seed=1), tuple(range(1, 60)), neighbours=False)
    beside = store.published()
    assert beside.compressed.file == trained.file, "thirty more models are searched in addition to the index"
    check(store)
    store.publish(groups(range(1520, 1700), seed=2), (1495,), neighbours=False)
    extended = store.published()
    assert extended.compressed.file != trained.file
    assert all(one.in_compressed for one in extended.segments)
    check(store)


def check(store: Store) -> None:
    index, vectors = store.published().opened(store.root), store.vectors()
    np.testing.assert_array_equal(index.ids, vectors.ids)
    assert recall_of(index, vectors, QUERIES[:15]) >= 0.85
    for model_id in (1495, 1500, 1510):  # replaced, replaced, new
        if model_id in store.truth:
            assert index.search(VectorTable(store.truth[model_id][None], index.masks.blocks), 1)[0][0] == model_id
    everything = {
        found for query in QUERIES[:5] for found, _ in index.search(VectorTable(query[None], index.masks.blocks), 400)
    }
    assert everything <= set(store.truth)


def test_a_publish_that_leaves_the_index_as_it_is_does_not_open_it(tmp_path, monkeypatch):
    store, opened = Store(tmp_path), []
    store.publish(groups(range(1, 301)), neighbours=False, choice=IndexChoice("RaBitQ", promised=0.5))
    monkeypatch.setattr(publish_vectors, "open_index", lambda *named, **options: opened.append(named))
    store.publish(groups(range(301, 311)))
    assert opened == []
    assert store.published().compressed.file.count == 300


def test_an_index_that_would_outgrow_its_memory_is_chosen_again(tmp_path, monkeypatch):
    store, choice = Store(tmp_path), IndexChoice("auto", memory=64_000, promised=0.5)
    monkeypatch.setattr(publish_vectors, "COMPRESSED", {"RaBitQ2": 2, "RaBitQ": 1})
    store.publish(groups(range(1, 1501)), neighbours=False, choice=choice)
    assert store.published().compressed.factory == "RaBitQ2"
    store.publish(groups(range(1501, 1801)), neighbours=False)
    grown = store.published().compressed
    assert (grown.factory, grown.trained_on) == ("RaBitQ", 1800)
    assert grown.file.size <= 64_000
    check(store)


def test_a_named_index_that_outgrows_its_memory_is_published_no_more(tmp_path):
    store, said = Store(tmp_path), []
    choice = IndexChoice("RaBitQ2", memory=64_000, promised=0.5)
    store.publish(groups(range(1, 1501)), neighbours=False, choice=choice)
    store.publish(groups(range(1501, 1801)), neighbours=False, log=said)
    assert store.published().compressed.file is None
    assert "64,000 are allowed" in said[-1]
    assert not any(one.in_compressed for one in store.published().segments)


@pytest.mark.slow
def test_codes_that_count_no_more_are_dropped_once_they_are_most(tmp_path):
    store = Store(tmp_path)
    store.publish(groups(range(1, 501)), neighbours=False, choice=IndexChoice("RaBitQ", promised=0.5))
    held = []
    for seed in range(1, 6):
        store.publish(groups(range(1, 201), seed=seed), neighbours=False)
        held.append(store.published().compressed.file.count)
    assert held == [700, 900, 500, 700, 900]
    check(store)
    store.publish({}, tuple(range(201, 401)), neighbours=False)
    assert store.published().compressed.file.count == 300, "though nothing came in"


def test_one_that_breaks_its_promise_is_measured_but_not_published(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "CANDIDATES", (10,))
    store, said = Store(tmp_path), []
    choice = IndexChoice("RaBitQ", promised=0.99)
    store.publish(groups(range(1, 2001)), neighbours=False, choice=choice, log=said)
    published = store.published()
    assert 0 < published.compressed.recall < 0.99
    assert published.compressed.file is None
    assert not any(one.in_compressed for one in published.segments)
    assert "RaBitQ finds" in said[-1]
    assert "not published" in said[-1]
    assert recall_of(published.opened(tmp_path), store.vectors(), QUERIES[:5]) == 1.0
    said.clear()
    store.publish(groups(range(2001, 2011)), neighbours=False, log=said)
    assert said == [], "it is not trained again before the atlas has doubled"
    store.publish(groups(range(2011, 4100)), neighbours=False, log=said)
    assert "training" in said[0]


def test_an_unknown_index_leaves_the_publish_whole(tmp_path):
    """A foreign atlas may name any index."""
    store, said = Store(tmp_path), []
    store.publish(groups(range(1, 101)), choice=IndexChoice("IVF256,Flat"), log=said)
    assert "Unknown index 'IVF256,Flat'" in said[-1]
    assert len(store.published().opened(tmp_path)) == 100
    attempt = store.published().compressed
    assert (attempt.factory, attempt.file, attempt.recall, attempt.queries) == ("IVF256,Flat", None, 0.0, 0)


def test_auto_that_nothing_fits_is_not_tried_by_every_publish(tmp_path):
    store, said = Store(tmp_path), []
    store.publish(groups(range(1, 601)), neighbours=False, choice=IndexChoice("auto", memory=100), log=said)
    assert said == ["no compressed index of at most 100 bytes can be built: searches stay exact"]
    assert store.published().compressed.factory == "auto"
    said.clear()
    store.publish(groups(range(601, 701)), neighbours=False, log=said)
    assert said == []


def test_auto_is_exact_while_that_is_instant_then_compressed_then_exact_again_if_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(publish_vectors, "INSTANT_BYTES", 4 * LENGTH * 2000)
    store = Store(tmp_path)
    store.publish(groups(range(1, 1001)), neighbours=False)
    assert store.published().compressed is None
    monkeypatch.setattr(compressed, "CANDIDATES", (20,))
    store.publish(groups(range(1001, 2101)), neighbours=False)
    assert store.published().compressed.factory == "RaBitQ2", "the first that keeps the promise"
    store.publish({}, neighbours=False, choice=IndexChoice("exact"))
    assert store.published().compressed is None
    assert not any(one.in_compressed for one in store.published().segments)


def test_auto_reports_that_no_index_reaches_the_promised_recall(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "CANDIDATES", (12,))
    store, said = Store(tmp_path), []
    store.publish(groups(range(1, COUNT + 1)), neighbours=False, choice=IndexChoice("auto"), log=said)
    assert "RaBitQ2 finds" in said[-1]
    assert "searches stay exact" in said[-1]
    attempt = store.published().compressed
    assert attempt.factory == "RaBitQ2", "the better of the two"
    assert attempt.file is None
    assert 0 < attempt.recall < 0.95
    assert recall_of(store.published().opened(store.root), store.vectors(), QUERIES) == 1.0
    said.clear()
    store.publish(groups(range(COUNT + 1, COUNT + 101)), neighbours=False, log=said)
    assert said == [], "the same is not tried by every publish"


def test_more_results_take_more_candidates_so_that_the_promise_holds_for_them_too(tmp_path, monkeypatch):
    monkeypatch.setattr(compressed, "CANDIDATES", (20,))
    store = Store(tmp_path)
    store.publish(groups(range(1, COUNT + 1)), neighbours=False, choice=IndexChoice("RaBitQ2", promised=0.5))
    index, vectors = store.published().opened(tmp_path), store.vectors()
    asked = []
    candidates = compressed.CompressedSearch.candidates
    monkeypatch.setattr(
        compressed.CompressedSearch,
        "candidates",
        lambda search, query, count: (asked.append(count), candidates(search, query, count))[1],
    )
    shares = {}
    for k in (10, 50):
        pairs = [
            (
                {found for found, _ in index.search(VectorTable(query[None], index.masks.blocks), k)},
                set(nearest(vectors, query, k)),
            )
            for query in QUERIES
        ]
        shares[k] = np.mean([len(found & exact) / k for found, exact in pairs])
    assert set(asked) == {20, 100}
    assert shares[50] >= shares[10] - 0.03


ASKED = IndexChoice("RaBitQ2", 2 << 30, 0.5)


def chosen(atlas: AtlasFolder, representation: str = "input") -> IndexChoice:
    with Reading(atlas.database) as connection:
        published = read_published(connection, BASE, representation)
    assert published is not None
    return published.choice


def test_each_option_changes_one_thing():
    assert ASKED.changed(None) == ASKED
    assert ASKED.changed(IndexChange()) == ASKED
    assert ASKED.changed(IndexChange(index="exact")) == IndexChoice("exact", 2 << 30, 0.5)
    assert ASKED.changed(IndexChange(memory=1)) == IndexChoice("RaBitQ2", 1, 0.5)
    assert ASKED.changed(IndexChange(promised=0.0)) == IndexChoice("RaBitQ2", 2 << 30, 0.0)
    assert IndexChoice().changed(ASKED) == ASKED


def test_options_of_the_command_say_no_more_than_they_were_given():
    asked = [index_change(**chosen) for chosen in ({"index_memory": "4G"}, {"recall": 0.0}, {"index": "exact"}, {})]
    assert asked == [IndexChange(memory=4 * 10**9), IndexChange(promised=0.0), IndexChange("exact"), None]


@pytest.mark.slow
def test_a_publish_that_says_one_thing_leaves_the_rest_and_a_later_representation_takes_it(atlas):
    represent(atlas, "spectrum", ASKED)
    assert chosen(atlas) == chosen(atlas, "spectrum") == ASKED
    ran = CliRunner().invoke(main, ["publish", "--atlas", str(atlas.root), "--index-memory", "4G", "--json"])
    assert ran.exit_code == 0, ran.output
    after = IndexChoice("RaBitQ2", 4 * 10**9, 0.5)
    assert chosen(atlas) == chosen(atlas, "spectrum") == after
    represent(atlas, "output")
    assert chosen(atlas, "output") == after


@pytest.mark.slow
def test_a_rebuild_keeps_the_choice_and_says_what_becomes_of_it(atlas):
    represent(atlas, "spectrum", ASKED)
    said: list[str] = []
    rebuild(atlas, say=said.append)
    assert chosen(atlas) == chosen(atlas, "spectrum") == ASKED
    assert any("RaBitQ2" in sentence for sentence in said)
