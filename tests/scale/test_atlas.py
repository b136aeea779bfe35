"""A synthetic atlas is what the indexer would have made of these models, and changes are counted by content."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import numpy as np
import pytest

from indexer.builds.shards import publish_records
from query import Atlas
from scripts.synthetic.making import BASE, Maker
from scripts.synthetic.population import BLOCK, Population, draw_labels
from studies.scale.measuring import rows_changed
from tests.vectors import loops

# Published blocks of unit norm are stored in 16 bits, eleven of them for digits.
IN_16_BITS = 2**-11


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An atlas of 80 models, published, and its maker; the test that changes it is the last one."""
    root = tmp_path_factory.mktemp("scale") / "atlas"
    maker = Maker(root, Population(draw_labels(100, 1), 1))
    maker.crawl(range(80))
    maker.record(range(80))
    _publish(root)
    return maker, root


def _publish(root: Path) -> None:
    publish_records((), root)


def _expected(maker: Maker, root: Path, models: range, drawn_as: range) -> np.ndarray:
    """Unit blocks, of full fine-tunes minus their centre, in plain loops; it is that of the 80 models in the atlas."""
    labels = maker.labels
    with Atlas(root) as atlas:
        rows = atlas.rows("SELECT id, is_copy OR is_unrelated OR duplicate_of IS NOT NULL AS is_out FROM models")
    is_out = {row["id"]: row["is_out"] for row in rows}
    numbers = np.array([*range(80), *models])
    votes = np.array([place < 80 and not is_out[maker.model(number)] for place, number in enumerate(numbers)])
    drawn = np.concatenate([maker.population.vectors(one.start, one.stop) for one in (range(80), drawn_as)])
    shaped = drawn.astype(np.float64).reshape(len(drawn), 72, -1)
    norms = np.linalg.norm(shaped, axis=2, keepdims=True)
    unit = np.divide(shaped, norms, out=np.zeros_like(shaped), where=norms > 0)
    found = np.zeros_like(unit)
    is_adapter, authors = labels.is_adapter[numbers], labels.author[numbers].astype(str)
    members = np.flatnonzero(~is_adapter & votes)
    middle = loops.centre([unit[row] for row in members], [authors[row] for row in members])
    found[is_adapter] = unit[is_adapter]
    for row in np.flatnonzero(~is_adapter):
        found[row] = loops.centred(unit[row], middle) if unit[row].any() else 0
    return found.reshape(len(drawn), -1)[80:]


@pytest.mark.slow
def test_an_atlas_is_what_the_indexer_would_have_made(made):
    maker, root = made
    labels = maker.labels
    with Atlas(root) as atlas:
        rows = {row["id"]: row for row in atlas.rows("FROM models")}
        vectors = atlas.vectors(BASE)
        ids = {row["model_id"]: row["id"] for row in rows.values()}
    assert set(rows) == {maker.model(number) for number in range(80)}
    drawn = maker.population.vectors(0, 80)
    expected = _expected(maker, root, range(80), range(80))
    by_name = {maker.model(number): expected[number] for number in range(80)}
    assert len(vectors.ids) == drawn.any(axis=1).sum()
    for model_id, vector in zip(vectors.ids.tolist(), vectors.matrix, strict=True):
        assert np.allclose(vector, by_name[ids[model_id]], atol=IN_16_BITS)
    for number in range(80):
        row = rows[maker.model(number)]
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
    assert 900 < np.mean([len(json.dumps(maker.row(number))) for number in range(80)]) < 1_500  # 1,164 bytes in 2022


@pytest.mark.slow
def test_repeats_are_found_as_duplicates(made):
    maker, root = made
    originals = maker.labels.original[:80]
    is_copy = maker.labels.changed[:80] == 0
    groups = [np.flatnonzero((originals == one) & ~is_copy) for one in np.unique(originals)]
    expected = {frozenset(maker.model(int(number)) for number in group) for group in groups if len(group) > 1}
    assert expected
    with Atlas(root) as atlas:
        rows = atlas.rows(
            "SELECT list(id) AS ids FROM models WHERE duplicate_group IS NOT NULL GROUP BY duplicate_group"
        )
    assert {frozenset(row["ids"]) for row in rows} == expected


def test_rows_that_changed_are_counted_by_content(tmp_path):
    paths = [tmp_path / "one.duckdb", tmp_path / "two.duckdb"]
    for path, rows in zip(paths, ([(1, "a"), (1, "a"), (2, "b")], [(2, "b"), (1, "a"), (3, "c")]), strict=True):
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE TABLE kept (x INTEGER)")
            connection.execute("CREATE TABLE things (n INTEGER, name VARCHAR)")
            connection.executemany("INSERT INTO things VALUES (?, ?)", rows)
    assert rows_changed(*paths) == {"main.kept": 0, "main.things": 2}


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
        found = by_id.get(rows[maker.model(number)]["model_id"])
        assert (found is None and not expected[number].any()) or np.allclose(found, expected[number], atol=IN_16_BITS)
    assert {rows[maker.model(number)]["status"] for number in range(4, 8)} == {"listed"}
    assert {rows[maker.model(number)]["status"] for number in range(80, 84)} == {"indexed"}
