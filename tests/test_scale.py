"""scripts.scale: synthetic atlases are like real ones, and what is said of their cost was measured or follows from it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pytest

from indexer.running.report import BuildOptions, Watcher
from indexer.shards import publish_records
from indexer.vectors.search import VectorIndex
from indexer.vectors.segments import OpenSegment, Vectors, write_segment
from indexer.words import RELATIONS
from query import Atlas
from scripts.scale import costs, document, likeness, million
from scripts.scale.asking import recall_of
from scripts.scale.cards import BASE, Cards
from scripts.scale.facts import FAMILIES, LAW
from scripts.scale.figures import MEASURED, Figures, table
from scripts.scale.labels import EVERY_FAMILY, Labels, draw_labels
from scripts.scale.making import Maker
from scripts.scale.measuring import FEW, QUERIES, rows_changed
from scripts.scale.population import Population
from scripts.scale.results import Results, read_results

ROOT = Path(__file__).resolve().parent.parent


# ---- likeness


@pytest.mark.parametrize("seed", [0, 100])
def test_synthetic_models_are_like_real_ones(seed):
    rows = likeness.compare_labels(seed=seed) + likeness.compare(likeness.real_figures(), seed=seed)
    assert {row.name for row in rows} == {*likeness.FIGURES, *likeness.LABEL_FIGURES}
    unlike = [(row.name, row.low, row.high, row.synthetic, row.bound) for row in rows if not row.is_like]
    assert not unlike


@pytest.mark.parametrize(
    ("change", "shows_in"),
    [
        ({"shared": tuple(0.3 for _ in FAMILIES)}, "dataset"),
        ({"common": tuple(0.0 for _ in FAMILIES)}, "across"),
        ({"recipe": (0.01, 1.0)}, "project"),
        ({"adapter": 1.0}, "adapter_dataset"),
        ({"decay": 3.0}, "across_spread"),
    ],
)
def test_vectors_of_another_law_are_not_like_real_ones(change, shows_in):
    rows = {row.name: row for row in likeness.compare(likeness.real_figures(), 4, replace(LAW, **change))}
    assert not rows[shows_in].is_like


def test_the_figures_of_planted_vectors():
    # Two data sets at a right angle; two authors; each model a mixture of its data set's direction and its own.
    labels = _labels(author=[0, 0, 1, 1] * 3, dataset=[0, 0, 0, 1, 1, 1] * 2)
    vectors = np.zeros((12, 14), dtype=np.float32)
    vectors[np.arange(12), labels.dataset] = np.sqrt(0.6)
    vectors[np.arange(12), 2 + np.arange(12)] = np.sqrt(0.4)
    labels = replace(labels, is_adapter=np.arange(12) >= 10)
    figures = likeness.figures_of(vectors, labels)
    expected = {
        "dataset": 0.6, "project": 0.6, "across": 0.0, "author": 0.0, "adapter_dataset": 0.6, "adapter_across": 0.0,
        "dataset_spread": 0.0, "nearest_5": 0.6, "nearest_95": 0.6, "nearest_same": 1.0,
    }  # fmt: skip
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-4)
    # Ten full models, five of each data set: one large axis (0.6·10/4 + 0.4) and eight of 0.4 … by hand from the Gram matrix.
    gram = 0.6 * (labels.dataset[:10, None] == labels.dataset[:10]) + 0.4 * np.eye(10)
    centring = np.eye(10) - 0.1
    variance = np.linalg.eigvalsh(centring @ gram @ centring)
    assert figures["dimension"] == pytest.approx(variance.sum() ** 2 / (variance**2).sum(), rel=1e-3)


def test_hubness_counts_how_often_a_model_is_near_others():
    # One vector in the middle of twelve that are at right angles: everybody's nearest.
    cosines = np.zeros((13, 13))
    cosines[0, 1:] = cosines[1:, 0] = 0.5
    np.fill_diagonal(cosines, -2)
    found = likeness._hubness(cosines, k=1)
    assert found["hub_most"] == 12
    assert found["hub_never"] >= 11 / 13
    times = np.bincount([1, *([0] * 12)], minlength=13)
    assert found["hub_skew"] == pytest.approx(((times - 1) ** 3).mean() / times.std() ** 3)


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
    drawn = maker.population.vectors(0, 80)[order]
    assert likeness.figures_of(drawn, real.labels) == pytest.approx(real.figures, abs=2e-4)
    compared = {row.name for row in likeness.compare(real, 2)}
    assert compared == set(likeness.FIGURES) & set(real.figures)


# ---- labels and vectors


def test_labels_depend_on_the_seed_and_add_up():
    labels = draw_labels(3_000, 5)
    again = draw_labels(3_000, 5)
    assert all(np.array_equal(getattr(labels, name), getattr(again, name)) for name in Labels.__dataclass_fields__)
    assert not np.array_equal(labels.author, draw_labels(3_000, 6).author)
    repeats = np.flatnonzero(labels.original != np.arange(3_000))
    assert 30 < len(repeats) < 90
    assert (labels.original[repeats] < repeats).all()
    assert (labels.original[labels.original] == labels.original).all()
    for column in (labels.dataset, labels.named, labels.changed):
        assert np.array_equal(column[repeats], column[labels.original[repeats]])
    assert ((labels.changed == EVERY_FAMILY) | labels.is_adapter | (labels.changed == 0)).all()
    assert 10 < (labels.changed == 0).sum() < 60
    # A project is one author's on one data set, and named as a whole.
    pairs = {
        (a, d): {p}
        for a, d, p in zip(labels.author.tolist(), labels.dataset.tolist(), labels.project.tolist(), strict=True)
    }
    assert len(pairs) == labels.project.max() + 1


def test_the_largest_author_and_data_set_grow_with_the_atlas_and_stay_a_tenth():
    sizes = np.bincount(draw_labels(50_000, 1).author)
    assert sizes.max() <= 5_000
    assert np.sort(sizes)[-10:].min() > 200


def test_vectors_do_not_depend_on_how_they_are_cut():
    population = Population(draw_labels(300, 2), 2, layers=2)
    whole = population.vectors(0, 300)
    pieces = np.concatenate([block for _, block in Population(population.labels, 2, layers=2).stretches(47)])
    assert np.allclose(whole, pieces, atol=1e-6)
    labels = population.labels
    lengths = np.linalg.norm(whole.astype(np.float64), axis=1)
    assert lengths[labels.changed > 0] == pytest.approx(1, abs=1e-5)
    assert not whole[labels.changed == 0].any()
    blocks = np.linalg.norm(whole.reshape(300, 2, 6, 57), axis=3)
    for model in range(300):
        changed = [bool(labels.changed[model] >> family & 1) for family in range(6)]
        assert (blocks[model] > 0).tolist() == [changed, changed]
        equal = blocks[model][blocks[model] > 0]
        assert equal == pytest.approx(np.full(len(equal), 1 / math.sqrt(max(1, len(equal)))), abs=1e-5)
    repeats = np.flatnonzero(labels.original != np.arange(300))
    assert len(repeats)
    assert np.allclose(whole[repeats], whole[labels.original[repeats]], atol=1e-6)


def test_the_law_gives_the_cosines_that_it_says():
    law = replace(
        LAW, spread_model=0.0, spread_dataset=0.0, domain=0.0, recipe=(1e-3, 1e3), decay=0.0,
        shared=(0.7, 0.5, 0.6, 0.4, 0.8, 0.6), common=(0.9, 0.7, 0.6, 0.5, 0.8, 0.7),
    )  # fmt: skip
    labels = _labels(author=range(200), dataset=[0] * 60 + list(range(1, 141)))
    vectors = Population(labels, 3, 12, law).vectors(0, 200).astype(np.float64)
    same = vectors[:60] @ vectors[:60].T
    other = vectors[60:] @ vectors[60:].T
    assert same[np.triu_indices(60, 1)].mean() == pytest.approx(np.mean(law.shared), abs=0.01)
    expected = np.mean(np.array(law.shared) * np.square(law.common))
    assert other[np.triu_indices(140, 1)].mean() == pytest.approx(expected, abs=0.01)


# ---- an atlas of them


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An atlas of 80 models, published, and its maker; tests that change it come last in this file."""
    root = tmp_path_factory.mktemp("scale") / "atlas"
    maker = Maker(root, Population(draw_labels(100, 1), 1))
    maker.crawl(range(80))
    maker.record(range(80))
    _publish(root)
    return maker, root


def test_an_atlas_is_what_the_indexer_would_have_made(made):
    maker, root = made
    labels, cards = maker.population.labels, maker.cards
    with Atlas(root) as atlas:
        rows = {row["id"]: row for row in atlas.rows("FROM models")}
        vectors = atlas.vectors(BASE)
        ids = {row["model_id"]: row["id"] for row in rows.values()}
    assert set(rows) == {cards.model(number) for number in range(80)}
    drawn = maker.population.vectors(0, 80)
    by_name = {cards.model(number): drawn[number] for number in range(80)}
    assert len(vectors.ids) == drawn.any(axis=1).sum()
    for model_id, vector in zip(vectors.ids.tolist(), vectors.matrix, strict=True):
        assert np.allclose(vector, by_name[ids[model_id]], atol=1e-5)
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
        assert connection.execute("SELECT count(*) FROM bad_rows").fetchall() == [(0,)]
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


def test_added_replaced_and_withdrawn_models_are_published(made):
    maker, root = made
    maker.add(range(80, 84))
    maker.replace(range(4), by=range(90, 94))
    maker.withdraw(range(4, 8))
    before = root.parent / "before.duckdb"
    before.hardlink_to(root / "atlas.duckdb")
    _publish(root)
    changed = rows_changed(before, root / "atlas.duckdb")
    # Four added, four withdrawn; of those replaced two rows for each matrix that is changed before or after.
    drawn = [maker.population.vectors(start, start + 4).reshape(4, 72, 57).any(axis=2) for start in (0, 90)]
    assert changed["deltas"] == (4 + 4) * 72 + 2 * (drawn[0] | drawn[1]).sum()
    assert changed["bases"] == 0
    with Atlas(root) as atlas:
        vectors = atlas.vectors(BASE)
        rows = {row["model"]: row for row in atlas.rows("SELECT model, model_id, status FROM fine_tunes")}
    by_id = dict(zip(vectors.ids.tolist(), vectors.matrix, strict=True))
    expected = maker.population.vectors(90, 94)
    for number in range(4):
        found = by_id.get(rows[maker.cards.model(number)]["model_id"])
        assert (found is None and not expected[number].any()) or np.allclose(found, expected[number], atol=1e-5)
    assert {rows[maker.cards.model(number)]["status"] for number in range(4, 8)} == {"listed"}
    assert {rows[maker.cards.model(number)]["status"] for number in range(80, 84)} == {"indexed"}


# ---- measuring


def test_rows_that_changed_are_counted_by_content(tmp_path):
    paths = [tmp_path / "one.duckdb", tmp_path / "two.duckdb"]
    for path, rows in zip(paths, ([(1, "a"), (1, "a"), (2, "b")], [(2, "b"), (1, "a"), (3, "c")]), strict=True):
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE TABLE kept (x INTEGER)")
            connection.execute("CREATE TABLE things (n INTEGER, name VARCHAR)")
            connection.executemany("INSERT INTO things VALUES (?, ?)", rows)
    assert rows_changed(*paths) == {"kept": 0, "things": 2}


def test_vectors_alone_are_written_added_to_and_searched(tmp_path):
    written = million.step("write", tmp_path, 400, 1)
    assert written["index_type"] == "exact"
    assert sum(path.stat().st_size for path in tmp_path.glob("*.faiss")) == written["vectors_bytes"]
    assert million.step("add", tmp_path, 400, 1)["add_seconds"] > 0
    drawn = Population(draw_labels(400 + FEW + 2 * QUERIES, 1), 1).vectors(0, 400 + FEW)
    with million._database(tmp_path) as tables:
        stored = million._published(tables).opened(tmp_path).vectors()
    assert stored.ids.tolist() == np.flatnonzero(drawn.any(axis=1)).tolist()
    assert np.allclose(stored.matrix, drawn[stored.ids], atol=1e-5)
    for name in ("search", "filtered"):
        figures = million.step(name, tmp_path, 400, 1)
        assert 0 < figures[f"{name}_p50"] <= figures[f"{name}_p99"]
    assert million.step("recall", tmp_path, 400, 1) == {"recall_at_10": 1.0}


def test_recall_is_measured_against_brute_force(tmp_path):
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(500, 16)).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    ids = np.arange(1, 501)
    parts = [Vectors(ids[:300], matrix[:300]), Vectors(ids[300:], matrix[300:])]
    opened = [OpenSegment(tmp_path, write_segment(tmp_path, BASE, "input", part)) for part in parts]
    index = VectorIndex(opened, 16)
    assert recall_of(index, matrix[:20]) == 1.0
    # An index that sees only the first segment finds those of the ten nearest that lie there.
    nearest = np.argsort(-(matrix[:20] @ matrix.T), axis=1)[:, :10]
    half = SimpleNamespace(segments=opened, search=VectorIndex(opened[:1], 16).search)
    assert recall_of(half, matrix[:20]) == pytest.approx((nearest < 300).mean())


def test_a_figure_that_nobody_measures_is_refused_and_others_keep_their_order():
    figures = Figures()
    with pytest.raises(KeyError):
        figures.put("happiness", 1)
    figures.put("publish_peak", 2_000_000_000)
    figures.put("publish_seconds", 61.0)
    figures.put("listing_bytes", 1_234_567)
    assert table({"here": figures}) == [
        ["", "here"], ["listing", "1.23 MB"], ["publish from nothing", "61 s"], ["… peak memory", "2 GB"]
    ]  # fmt: skip


# ---- costs and the document


def _constants() -> costs.Constants:
    return costs.Constants(
        database_bytes=20_000, listing_bytes=1_500, slim_record_bytes=35_000, compressed_bytes=1_000,
        publish_seconds=0.01, publish_again_seconds=0.001, purity_seconds_per_pair=1e-6,
    )  # fmt: skip


def test_costs_by_hand():
    c = _constants()
    found = {cost.what: cost.compute(c, 1_000_000) for cost in costs.COSTS}
    assert found["bytes fetched"] == pytest.approx(1e6 * (0.77 * 340e6 + 0.23 * 1.2e6))
    assert found["core hours"] == pytest.approx(1e6 * 0.77 * 0.55 / 3600)
    assert found["hours under the quota"] == pytest.approx(1e6 * 2 / 5000 * 5 / 60)
    assert found["hours on the line"] == pytest.approx(found["bytes fetched"] / 1.25e9 / 3600)
    assert found["wall, one account and one line"] == max(found["hours on the line"], found["hours under the quota"])
    assert found["rows of deltas"] == 72e6
    assert found["purity, its table"] == pytest.approx(4 * (1e6 / 6) ** 2)
    assert costs.COSTS[-2].compute(c, 100_000) == pytest.approx(2 * (1e5 / 6) ** 2)
    assert set(costs.MEANING) == set(costs.Constants.__dataclass_fields__)


def test_every_limit_is_where_its_cost_reaches_it():
    c = _constants()
    at = {limit.what: limit.models for limit in costs.limits(c)}
    assert list(at.values()) == sorted(at.values())
    cost = {one.what: one.compute for one in costs.COSTS}
    for what, formula, value in (
        ("purity's table outgrows 8 GB", "purity, its table", 8e9),
        ("purity takes an hour", "purity, time", 1.0),
        ("one account's quota takes more than a day", "hours under the quota", 24.0),
        ("a line of 10 Gbit/s takes more than a day", "hours on the line", 24.0),
        ("a publish with nothing new takes a minute", "publish with nothing new", 60.0),
        ("the compressed index outgrows 1 GiB of a reader's memory", "compressed index, in memory", 2**30),
        ("the database outgrows 100 GB, and every publish copies it", "database", 100e9),
        ("records with factors outgrow 1 TB", "records with factors", 1e12),
    ):
        assert cost[formula](c, at.pop(what)) == pytest.approx(value), what
    assert not at


def _results() -> Results:
    numbers = {name: 1_000 for name, measured in MEASURED.items() if measured.unit != "name"}
    real = likeness.compare_labels(2)
    return Results(real, {100: Figures(dict(numbers))}, {200: Figures({"compressed_bytes": 50})}, {"processors": "2"})


def test_results_survive_their_json(tmp_path):
    results = _results()
    results.write(tmp_path / "r.json")
    again = read_results(tmp_path / "r.json")
    assert again == results
    assert "100 models" in again.text()
    assert again.text() == results.text()


def test_the_document_is_filled_between_its_markers(tmp_path):
    copy = tmp_path / "scale.md"
    original = document.DOCUMENT.read_text(encoding="utf-8")
    copy.write_text(original, encoding="utf-8")
    document.write_document(_results(), copy)
    filled = copy.read_text(encoding="utf-8")
    assert "processors 2" in filled
    assert "| `compressed_bytes` | 0.25 B |" in filled
    assert "| rows of deltas |" in filled
    document.write_document(_results(), copy)
    assert copy.read_text(encoding="utf-8") == filled
    assert _words(filled) == _words(original)


def _words(text: str) -> str:
    """Without what stands between markers."""
    return re.sub(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->)", r"\1\3", text, flags=re.DOTALL)


def test_a_document_without_a_marker_and_a_run_without_an_atlas_are_refused(tmp_path):
    (tmp_path / "scale.md").write_text("nothing\n")
    with pytest.raises(ValueError, match="has no part <!-- machine -->"):
        document.write_document(_results(), tmp_path / "scale.md")
    with pytest.raises(ValueError, match="measured no atlas"):
        document.sections(Results())
    lacking = _results()
    del lacking.atlases[100].values["purity_seconds"]
    with pytest.raises(ValueError, match="did not measure purity_seconds"):
        document.sections(lacking)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--models", "ten"], "'ten' is not a list of numbers"),
        (["--models", "50"], "fewer than 200 models"),
        (["--models", "0", "--vectors", "900000000000"], "are needed: give another --work"),
        (["--doc", "nowhere.json"], "nowhere.json"),
        (["--models", "0", "--vectors", "0", "--real", "."], "is not an atlas"),
    ],
)
def test_wrong_use_is_one_line(words, said, tmp_path):
    command = [sys.executable, "-m", "scripts.scale", *words]
    done = subprocess.run(command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_whole_command(tmp_path):
    command = [sys.executable, "-m", "scripts.scale", "--models", "300", "--vectors", "400", "--json", "r.json"]
    done = subprocess.run(command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = read_results(tmp_path / "r.json")
    assert done.stdout == results.text() + "\n"
    assert results.atlases[300].values["deltas_rows"] == 300 * 72
    assert results.atlases[300].values["recall_at_10"] == 1.0
    assert results.vectors[400].values["recall_at_10"] == 1.0
    assert results.atlases[300].values["nothing_neighbours"] == 0


# ---- ground


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _publish(root: Path) -> None:
    publish_records(str(root), [], BuildOptions(relations=RELATIONS), Watcher())


def _labels(author, dataset) -> Labels:
    count = len(list(author))
    return Labels(
        author=np.array(list(author), dtype=np.int32),
        dataset=np.array(list(dataset), dtype=np.int32),
        named=np.ones(count, dtype=bool),
        changed=np.full(count, EVERY_FAMILY, dtype=np.uint8),
        original=np.arange(count, dtype=np.int32),
        is_adapter=np.zeros(count, dtype=bool),
    )
