"""What is measured is what was asked: rows, seconds, recall."""

from __future__ import annotations

from types import SimpleNamespace

import duckdb
import numpy as np
import pytest

from indexer.vectors.search import VectorIndex
from indexer.vectors.segments import OpenSegment, Vectors, write_segment
from scripts.scale import million
from scripts.scale.asking import recall_of
from scripts.scale.cards import BASE
from scripts.scale.figures import Figures, table
from scripts.scale.labels import draw_labels
from scripts.scale.measuring import FEW, QUERIES, _sizes, rows_changed
from scripts.scale.population import Population
from tests.scale.centred import published

# Published blocks of unit norm are kept in 16 bits, eleven of them for digits.
IN_16_BITS = 2**-11


def test_rows_that_changed_are_counted_by_content(tmp_path):
    paths = [tmp_path / "one.duckdb", tmp_path / "two.duckdb"]
    for path, rows in zip(paths, ([(1, "a"), (1, "a"), (2, "b")], [(2, "b"), (1, "a"), (3, "c")]), strict=True):
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE TABLE kept (x INTEGER)")
            connection.execute("CREATE TABLE things (n INTEGER, name VARCHAR)")
            connection.executemany("INSERT INTO things VALUES (?, ?)", rows)
    assert rows_changed(*paths) == {"main.kept": 0, "main.things": 2}


@pytest.mark.parametrize(("file", "bytes_of_it"), [("small.faiss", 7), (None, None)], ids=["kept", "refused"])
def test_a_compressed_index_has_bytes_only_where_it_is_kept(file, bytes_of_it, tmp_path):
    (tmp_path / "listing.jsonl").write_text("{}\n")
    (tmp_path / "large.faiss").write_bytes(b"0" * 100)
    if file:
        (tmp_path / file).write_bytes(b"0" * 7)
    database = tmp_path / "atlas.duckdb"
    with duckdb.connect(str(database)) as connection:
        connection.execute(
            "CREATE SCHEMA internal; CREATE TABLE internal.compressed_indexes (faiss_file VARCHAR, factory VARCHAR, recall_at_10 DOUBLE)"
        )
        connection.execute("INSERT INTO internal.compressed_indexes VALUES (?, 'RaBitQ', 0.8)", [file])
        for name in ("deltas", "neighbours"):
            connection.execute(f"CREATE TABLE {name} (model_id BIGINT)")
    folder = SimpleNamespace(root=tmp_path, database=database, records=tmp_path / "records")
    figures = Figures()
    _sizes(SimpleNamespace(folder=folder, listing=SimpleNamespace(path=tmp_path / "listing.jsonl")), figures)
    assert figures.values.get("compressed_bytes") == bytes_of_it
    assert figures.values["vectors_bytes"] == 100
    assert figures.values["index_type"] == "RaBitQ"


@pytest.mark.slow
def test_vectors_alone_are_written_added_to_and_searched(tmp_path):
    written = million.step("write", tmp_path, 400, 1)
    assert written["index_type"] == "exact"
    assert sum(path.stat().st_size for path in tmp_path.glob("*.faiss")) == written["vectors_bytes"]
    assert million.step("add", tmp_path, 400, 1)["add_seconds"] > 0
    labels = draw_labels(400 + FEW + 2 * QUERIES, 1)
    drawn = Population(labels, 1).vectors(0, 400 + FEW)
    numbers = np.arange(400 + FEW)
    votes = (labels.original[: 400 + FEW] == numbers) & (numbers < 400)  # the centre does not move for a few more
    expected = published(drawn, 72, labels.is_adapter[: 400 + FEW], labels.author, votes)
    with million._database(tmp_path) as tables:
        stored = million._published(tables).opened(tmp_path).vectors()
    assert stored.ids.tolist() == np.flatnonzero(drawn.any(axis=1)).tolist()
    assert np.allclose(stored.matrix, expected[stored.ids], atol=IN_16_BITS)
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
    half = SimpleNamespace(segments=opened, search=VectorIndex(opened[:1], 16).search, masks=index.masks)
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
