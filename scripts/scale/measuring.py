"""What an atlas of a given size costs: made, published, changed a little, and asked, each in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np

from indexer.listing.listing import Listing
from scripts.scale.cards import BASE
from scripts.scale.child import Ran, run_module, time_module
from scripts.scale.figures import Figures
from scripts.scale.labels import draw_labels
from scripts.scale.making import Maker, make_checkpoint, record_all
from scripts.scale.population import Population

# Models that are added to, replaced in and withdrawn from a finished atlas.
FEW = 10
QUERIES = 200
# Each condition is judged in a process of its own.
CONDITIONS = 100
SHELL_REPEATS = 5

Say = Callable[[str], None]


def measure_atlas(work: Path, count: int, seed: int, say: Say) -> Figures:
    """Make an atlas of so many models in ``work`` and measure it."""
    figures = Figures()
    labels = draw_labels(count + 2 * FEW, seed)
    atlas = work / "atlas"
    say(f"{count:,} models: listing and records")
    maker = Maker(atlas, Population(labels, seed))
    _make(maker, count, figures)
    say(f"{count:,} models: publishing from nothing")
    published = _publish(atlas)
    figures.put("publish_seconds", published.seconds)
    figures.put("publish_peak", published.peak_bytes)
    _sizes(maker, figures)
    say(f"{count:,} models: adding, replacing and withdrawing {FEW}")
    _changes(maker, work, count, figures)
    say(f"{count:,} models: questions")
    _questions(atlas, work, figures)
    say(f"{count:,} models: purity")
    asked = run_module("query", "purity", "--base", BASE, "--atlas", str(atlas), "--json")
    figures.put("purity_seconds", asked.seconds)
    figures.put("purity_peak", asked.peak_bytes)
    figures.put("purity_models", asked.output["models"])
    return figures


def _make(maker: Maker, models: int, figures: Figures) -> None:
    started = time.perf_counter()
    maker.crawl(range(models))
    figures.put("listing_seconds", time.perf_counter() - started)
    started = time.perf_counter()
    record_all(maker, range(models))
    figures.put("records_a_second", models / (time.perf_counter() - started))
    started = time.perf_counter()
    listed = Listing(maker.listing.path).models()
    figures.put("listing_read_seconds", time.perf_counter() - started)
    assert len(listed) == models


def _publish(atlas: Path) -> Ran:
    return run_module("indexer", "publish", "--base", BASE, "--atlas", str(atlas), "--json")


def _sizes(maker: Maker, figures: Figures) -> None:
    root = maker.folder.root
    figures.put("database_bytes", maker.folder.database.stat().st_size)
    figures.put("listing_bytes", maker.listing.path.stat().st_size)
    figures.put("record_bytes", sum(path.stat().st_size for path in _records(maker)))
    with duckdb.connect(str(maker.folder.database), read_only=True) as connection:
        compressed = connection.execute(
            "SELECT faiss_file, factory, recall_at_10 FROM internal.compressed_indexes"
        ).fetchall()
        for table in ("deltas", "neighbours"):
            (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
            figures.put(f"{table}_rows", rows[0])
    figures.put("index_type", compressed[0][1] if compressed else "exact")
    if compressed:
        figures.put("recall_at_publish", compressed[0][2])
        if compressed[0][0]:  # none is kept where no compression found enough
            figures.put("compressed_bytes", (root / compressed[0][0]).stat().st_size)
    exact = [path for path in root.glob("*.faiss") if path.name not in {row[0] for row in compressed}]
    figures.put("vectors_bytes", sum(path.stat().st_size for path in exact))


def _records(maker: Maker) -> Iterator[Path]:
    return maker.folder.records.glob("??/*.safetensors")


def _changes(maker: Maker, work: Path, models: int, figures: Figures) -> None:
    """Publish again: with nothing new, with a few models more, others at another commit, others gone."""
    few = range(models, models + FEW)
    steps: dict[str, Callable[[], None]] = {
        "nothing": lambda: None,
        "add": lambda: maker.add(few),
        "replace": lambda: maker.replace(range(FEW), by=range(models + FEW, models + 2 * FEW)),
        "withdraw": lambda: maker.withdraw(range(FEW, 2 * FEW)),
    }
    database = maker.folder.database
    before = work / "before.duckdb"
    for name, step in steps.items():
        step()
        before.unlink(missing_ok=True)
        os.link(database, before)  # a publish puts another file in its place and leaves this one as it is
        published = _publish(maker.folder.root)
        figures.put(f"{name}_seconds", published.seconds)
        figures.put(f"{name}_peak", published.peak_bytes)
        changed = rows_changed(before, database)
        figures.put(f"{name}_rows", sum(changed.values()))
        figures.put(f"{name}_neighbours", changed["main.neighbours"])
    before.unlink()


def rows_changed(before: Path, after: Path) -> dict[str, int]:
    """Rows that are in one of two databases and not in the other, by table with its schema ("main.deltas")."""
    with duckdb.connect() as connection:
        connection.execute("SET memory_limit = '4GB'")
        for name, path in (("before", before), ("after", after)):
            connection.execute(f"ATTACH '{path}' AS {name}_atlas (READ_ONLY)")
        tables = connection.execute(
            "SELECT schema_name || '.' || table_name FROM duckdb_tables() WHERE database_name = 'after_atlas' ORDER BY ALL"
        ).fetchall()
        counts = {}
        for (table,) in tables:
            sides = [
                f"(SELECT hash(t) AS h, count(*) AS n FROM {name}_atlas.{table} AS t GROUP BY h)"
                for name in ("before", "after")
            ]
            (row,) = connection.execute(
                "SELECT coalesce(sum(abs(coalesce(one.n, 0) - coalesce(other.n, 0))), 0) "
                f"FROM {sides[0]} AS one FULL JOIN {sides[1]} AS other USING (h)"
            ).fetchall()
            counts[table] = int(row[0])
    return counts


def _questions(atlas: Path, work: Path, figures: Figures) -> None:
    for question, count in (
        ("stored", QUERIES),
        ("search", QUERIES),
        ("other_authors", QUERIES),
        ("where", CONDITIONS),
    ):
        asked = run_module("scripts.scale.asking", str(atlas), question, str(count))
        milliseconds = 1000 * np.array(asked.output["seconds"])
        figures.put(f"{question}_p50", float(np.percentile(milliseconds, 50)))
        figures.put(f"{question}_p99", float(np.percentile(milliseconds, 99)))
        figures.put(f"{question}_peak", asked.peak_bytes)
    recall = run_module("scripts.scale.asking", str(atlas), "recall", str(QUERIES))
    figures.put("recall_at_10", recall.output["recall"])
    with duckdb.connect(str(atlas / "atlas.duckdb"), read_only=True) as connection:
        (row,) = connection.execute(
            "SELECT model FROM models WHERE NOT is_copy ORDER BY hash(model) LIMIT 1"
        ).fetchall()
    newcomer = make_checkpoint(work / "newcomer", seed=1)
    for name, words in {
        "shell_stored": [row[0]],
        "shell_where": [row[0], "--where", "downloads > 20"],
        "shell_other_authors": [row[0], "--other-authors"],
        "shell_folder": [str(newcomer)],
    }.items():
        runs = [
            time_module("query", "similar", *words, "--atlas", str(atlas), "--json") for _ in range(1 + SHELL_REPEATS)
        ]
        figures.put(f"{name}_seconds", float(np.median(runs[1:])))
