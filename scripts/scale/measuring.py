"""What an atlas of a given size costs: made, published, changed a little, and asked, each in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np

from indexer.listing.listing import Listing
from scripts.child import run_module, run_python
from scripts.scale.making import BASE, Maker, make_checkpoint, record_all
from scripts.scale.population import Population, draw_labels
from scripts.scale.steps import QUERIES, WHERE

# Models that are added to, replaced in and withdrawn from a finished atlas.
FEW = 10
# Questions by kind; each condition is judged in a process of its own, which takes longer.
QUESTIONS = {"stored": QUERIES, "search": QUERIES, "other_authors": QUERIES, "where": 100}
SHELL_REPEATS = 5

Figures = dict[str, float | str]
Say = Callable[[str], None]


def measure_atlas(work: Path, count: int, say: Say) -> Figures:
    """Make an atlas of ``count`` models in ``work`` and measure it; the figures have the names of ``report.MEASURED``."""
    atlas = work / "atlas"
    maker = Maker(atlas, Population(draw_labels(count + 2 * FEW, 0), 0))
    figures: Figures = {}

    say(f"{count:,} models: listing and records")
    started = time.perf_counter()
    maker.crawl(range(count))
    figures["listing_seconds"] = time.perf_counter() - started
    started = time.perf_counter()
    record_all(maker, count)
    figures["records_a_second"] = count / (time.perf_counter() - started)
    started = time.perf_counter()
    assert len(Listing(maker.listing.path).models()) == count
    figures["listing_read_seconds"] = time.perf_counter() - started

    say(f"{count:,} models: publishing from nothing")
    publish = ("indexer", "publish", "--base", BASE, "--atlas", str(atlas), "--json")
    published = run_module(*publish)
    figures |= {"publish_seconds": published.seconds, "publish_peak": published.peak_bytes, **sizes(maker)}

    say(f"{count:,} models: adding, replacing and withdrawing {FEW}")
    steps: dict[str, Callable[[], None]] = {
        "nothing": lambda: None,
        "add": lambda: maker.add(range(count, count + FEW)),
        "replace": lambda: maker.replace(range(FEW), by=range(count + FEW, count + 2 * FEW)),
        "withdraw": lambda: maker.withdraw(range(FEW, 2 * FEW)),
    }
    before = work / "before.duckdb"
    for name, change in steps.items():
        change()
        before.unlink(missing_ok=True)
        os.link(maker.folder.database, before)  # a publish replaces the file and does not change it
        published = run_module(*publish)
        changed = rows_changed(before, maker.folder.database)
        figures |= {f"{name}_seconds": published.seconds, f"{name}_peak": published.peak_bytes,
                    f"{name}_rows": sum(changed.values()), f"{name}_neighbours": changed["main.neighbours"]}  # fmt: skip

    say(f"{count:,} models: questions")
    for question, number in QUESTIONS.items():
        asked = run_module("scripts.scale.steps", question, str(atlas), str(number))
        figures |= {f"{question}_{name}": value for name, value in asked.output.items()}
        figures[f"{question}_peak"] = asked.peak_bytes
    figures |= run_module("scripts.scale.steps", "recall", str(atlas), str(QUERIES)).output
    with duckdb.connect(str(maker.folder.database), read_only=True) as connection:
        ((model,),) = connection.execute(
            "SELECT model FROM models WHERE NOT is_copy ORDER BY hash(model) LIMIT 1"
        ).fetchall()
    for name, words in {
        "shell_stored": [model],
        "shell_where": [model, "--where", WHERE],
        "shell_other_authors": [model, "--other-authors"],
        "shell_folder": [str(make_checkpoint(work / "newcomer", seed=1))],
    }.items():
        command = ("-m", "query", "similar", *words, "--atlas", str(atlas), "--json")
        seconds = [run_python(*command)[0] for _ in range(1 + SHELL_REPEATS)]
        figures[f"{name}_seconds"] = float(np.median(seconds[1:]))

    say(f"{count:,} models: purity")
    asked = run_module("query", "purity", "--base", BASE, "--atlas", str(atlas), "--json")
    return figures | {
        "purity_seconds": asked.seconds, "purity_peak": asked.peak_bytes, "purity_models": asked.output["models"]
    }  # fmt: skip


def measure_vectors(root: Path, count: int, say: Say) -> Figures:
    """Write ``count`` vectors without models into ``root`` and search them."""
    root.mkdir(parents=True, exist_ok=True)
    figures: Figures = {}
    for name, step in (("write", "vectors_written"), ("search", "vectors_searched")):
        say(f"{count:,} vectors: {name}")
        ran = run_module("scripts.scale.steps", step, str(root), str(count))
        figures |= {**ran.output, f"{name}_peak": ran.peak_bytes}
    return figures


def sizes(maker: Maker) -> Figures:
    """Bytes of files, rows of large tables, and the index of a published atlas."""
    root, database = maker.folder.root, maker.folder.database
    with duckdb.connect(str(database), read_only=True) as connection:
        compressed = connection.execute(
            "SELECT faiss_file, factory, recall_at_10 FROM internal.compressed_indexes"
        ).fetchone()
        ((deltas,),) = connection.execute("SELECT count(*) FROM deltas").fetchall()
        ((neighbours,),) = connection.execute("SELECT count(*) FROM neighbours").fetchall()
    file, factory, recall = compressed or (None, "exact", None)
    figures: Figures = {
        "listing_bytes": maker.listing.path.stat().st_size,
        "record_bytes": sum(path.stat().st_size for path in maker.folder.records.glob("??/*.safetensors")),
        "database_bytes": database.stat().st_size,
        "vectors_bytes": sum(path.stat().st_size for path in root.glob("*.faiss") if path.name != file),
        "deltas_rows": deltas,
        "neighbours_rows": neighbours,
        "index_type": factory,
    }
    if recall is not None:
        figures["recall_at_publish"] = recall
    if file:  # no file is kept if neither compression found enough
        figures["compressed_bytes"] = (root / file).stat().st_size
    return figures


def rows_changed(before: Path, after: Path) -> dict[str, int]:
    """Rows that are in only one of two databases, by table with its schema ("main.deltas")."""
    with duckdb.connect() as connection:
        connection.execute("SET memory_limit = '4GB'")
        connection.execute(f"ATTACH '{before}' AS before_atlas (READ_ONLY)")
        connection.execute(f"ATTACH '{after}' AS after_atlas (READ_ONLY)")
        tables = connection.execute(
            "SELECT schema_name || '.' || table_name FROM duckdb_tables() WHERE database_name = 'after_atlas' ORDER BY ALL"
        ).fetchall()
        counts = {}
        for (table,) in tables:
            one, other = (
                f"(SELECT hash(t) AS h, count(*) AS n FROM {name}.{table} AS t GROUP BY h)"
                for name in ("before_atlas", "after_atlas")
            )
            ((rows,),) = connection.execute(
                "SELECT coalesce(sum(abs(coalesce(one.n, 0) - coalesce(other.n, 0))), 0) "
                f"FROM {one} AS one FULL JOIN {other} AS other USING (h)"
            ).fetchall()
            counts[table] = int(rows)
    return counts
