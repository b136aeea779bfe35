"""An atlas of synthetic models is what the indexer would have made of them."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import numpy as np
import pytest

from indexer.builds.commands import publish_records
from indexer.builds.options import BuildOptions
from indexer.builds.report import Watcher
from indexer.names import RELATIONS
from query import Atlas
from scripts.scale import likeness
from scripts.scale.cards import BASE, Cards
from scripts.scale.facts import BLOCK
from scripts.scale.labels import draw_labels
from scripts.scale.making import Maker
from scripts.scale.measuring import rows_changed
from scripts.scale.population import Population
from tests.scale.centred import published

# Published blocks of unit norm are kept in 16 bits, eleven of them for digits.
IN_16_BITS = 2**-11


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An atlas of 80 models, published, and its maker; tests that change it come last in this file."""
    root = tmp_path_factory.mktemp("scale") / "atlas"
    maker = Maker(root, Population(draw_labels(100, 1), 1))
    maker.crawl(range(80))
    maker.record(range(80))
    _publish(root)
    return maker, root


def _publish(root: Path) -> None:
    publish_records(str(root), [], BuildOptions(relations=RELATIONS), Watcher())


def _expected(maker: Maker, root: Path, models: range, drawn_as: range | None = None) -> np.ndarray:
    """What is published of some models (with the vectors of others); the centre is that of the 80 in the atlas."""
    labels = maker.population.labels
    with Atlas(root) as atlas:
        rows = atlas.rows("SELECT id, is_copy OR is_unrelated OR duplicate_of IS NOT NULL AS is_out FROM models")
    is_out = {row["id"]: row["is_out"] for row in rows}
    numbers = [*range(80), *models]
    votes = np.array([place < 80 and not is_out[maker.cards.model(number)] for place, number in enumerate(numbers)])
    drawn = np.concatenate([maker.population.vectors(one.start, one.stop) for one in (range(80), drawn_as or models)])
    authors = labels.author.astype(str)
    return published(drawn, 72, labels.is_adapter[numbers], authors[numbers].tolist(), votes)[80:]


@pytest.mark.slow
def test_an_atlas_is_what_the_indexer_would_have_made(made):
    maker, root = made
    labels, cards = maker.population.labels, maker.cards
    with Atlas(root) as atlas:
        rows = {row["id"]: row for row in atlas.rows("FROM models")}
        vectors = atlas.vectors(BASE)
        ids = {row["model_id"]: row["id"] for row in rows.values()}
    assert set(rows) == {cards.model(number) for number in range(80)}
    drawn = maker.population.vectors(0, 80)
    expected = _expected(maker, root, range(80))
    by_name = {cards.model(number): expected[number] for number in range(80)}
    assert len(vectors.ids) == drawn.any(axis=1).sum()
    for model_id, vector in zip(vectors.ids.tolist(), vectors.matrix, strict=True):
        assert np.allclose(vector, by_name[ids[model_id]], atol=IN_16_BITS)
    for number in range(80):
        row = rows[cards.model(number)]
        assert bool(row["datasets"]) == bool(labels.named[number])
        assert row["relation"] == ("adapter" if labels.is_adapter[number] else "finetune")
        assert row["author"] == f"author-{labels.author[number]}"
        assert row["is_copy"] == (labels.changed[number] == 0)
        assert not row["is_unrelated"]
        assert row["created"] is not None
    with duckdb.connect(str(root / "atlas.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM deltas").fetchall() == [(80 * 72,)]
        assert connection.execute("SELECT count(*) FROM rejected_listing_rows").fetchall() == [(0,)]
        (energy,) = connection.execute("SELECT avg(energy) FROM deltas WHERE family = 'value' AND norm > 0").fetchall()
    assert energy[0] == pytest.approx(0.77, abs=0.01)


def test_repeats_are_found_as_duplicates(made):
    maker, root = made
    originals = maker.population.labels.original[:80]
    is_copy = maker.population.labels.changed[:80] == 0
    groups = [np.flatnonzero((originals == one) & ~is_copy) for one in np.unique(originals)]
    expected = {frozenset(maker.cards.model(int(number)) for number in group) for group in groups if len(group) > 1}
    assert expected
    with Atlas(root) as atlas:
        rows = atlas.rows(
            "SELECT list(id) AS ids FROM models WHERE duplicate_group IS NOT NULL GROUP BY duplicate_group"
        )
    assert {frozenset(row["ids"]) for row in rows} == expected


def test_rows_look_like_the_hubs(made):
    maker, _ = made
    rows = [maker.cards.row(number) for number in range(80)]
    assert 900 < np.mean([len(json.dumps(row)) for row in rows]) < 1_500  # 1,164 bytes in 2022
    assert len({row["id"] for row in rows}) == 80
    assert Cards(maker.population.labels, 1).row(7) == rows[7]


def test_the_figures_of_an_atlas_are_those_of_its_vectors(made):
    maker, root = made
    labels = maker.population.labels
    real = likeness.measured_figures(root)
    chosen = np.flatnonzero((labels.changed[:80] > 0) & (labels.original[:80] == np.arange(80)))
    assert real.layers == 12
    assert len(json.loads(json.dumps(likeness.as_json(real)))["models"]) == len(chosen) == len(real.labels)
    with Atlas(root) as atlas:
        rows = atlas.rows("SELECT id FROM models WHERE NOT is_copy AND duplicate_of IS NULL ORDER BY model_id")
    by_name = {maker.cards.model(number): number for number in range(80)}
    order = [by_name[row["id"]] for row in rows]
    assert np.array_equal(real.labels.changed, labels.changed[order])
    assert np.array_equal(real.labels.is_adapter, labels.is_adapter[order])
    same_author = labels.author[order][:, None] == labels.author[order]
    assert np.array_equal(real.labels.author[:, None] == real.labels.author, same_author)
    expected = _expected(maker, root, range(80))[order]
    assert likeness.figures_of(expected, real.labels, 72) == pytest.approx(real.figures, abs=2e-4)
    compared = {row.name for row in likeness.compare(real, 2)}
    assert compared == set(likeness.FIGURES) & set(real.figures)


def test_added_replaced_and_withdrawn_models_are_published(made):
    maker, root = made
    expected = _expected(maker, root, range(4), drawn_as=range(90, 94))
    maker.add(range(80, 84))
    maker.replace(range(4), by=range(90, 94))
    maker.withdraw(range(4, 8))
    before = root.parent / "before.duckdb"
    before.hardlink_to(root / "atlas.duckdb")
    _publish(root)
    changed = rows_changed(before, root / "atlas.duckdb")
    # Four added, four withdrawn; of those replaced two rows for each matrix that is changed before or after.
    drawn = [maker.population.vectors(start, start + 4).reshape(4, 72, BLOCK).any(axis=2) for start in (0, 90)]
    assert changed["main.deltas"] == (4 + 4) * 72 + 2 * (drawn[0] | drawn[1]).sum()
    assert changed["main.bases"] == 0
    with Atlas(root) as atlas:
        vectors = atlas.vectors(BASE)
        rows = {row["model"]: row for row in atlas.rows("SELECT model, model_id, status FROM fine_tunes")}
    by_id = dict(zip(vectors.ids.tolist(), vectors.matrix, strict=True))
    for number in range(4):
        found = by_id.get(rows[maker.cards.model(number)]["model_id"])
        assert (found is None and not expected[number].any()) or np.allclose(found, expected[number], atol=IN_16_BITS)
    assert {rows[maker.cards.model(number)]["status"] for number in range(4, 8)} == {"listed"}
    assert {rows[maker.cards.model(number)]["status"] for number in range(80, 84)} == {"indexed"}
