"""What an atlas of a given size costs: made, published, changed a little, and asked, each in a process of its own.

Steps that are no command are functions of this module, called by ``child.call``: ``ask`` of an atlas.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np

from indexer.atlas import NEIGHBOURS
from indexer.listing.listing import Listing
from query import Atlas
from scripts.child import call, run_module, run_python
from scripts.synthetic.making import BASE, Maker, make_checkpoint, record_all
from scripts.synthetic.population import Population, draw_labels

WHERE = "downloads > 20"
QUERIES = 200
# Models that are added to, replaced in and withdrawn from a finished atlas.
FEW = 10
# Questions by kind; each condition is judged in a process of its own, which takes longer.
QUESTIONS = {"stored": QUERIES, "search": QUERIES, "other_authors": QUERIES, "where": 100}
SHELL_REPEATS = 5

Figures = dict[str, float | str]


def measure_atlas(work: Path, count: int) -> Figures:
    """Make an atlas of ``count`` models in ``work`` and measure it; the figures have the names of ``__main__.MEASURED``."""
    atlas = work / "atlas"
    maker = Maker(atlas, Population(draw_labels(count + 2 * FEW, 0), 0))
    figures: Figures = {}

    _say(f"{count:,} models: listing and records")
    started = time.perf_counter()
    maker.crawl(range(count))
    figures["listing_seconds"] = time.perf_counter() - started
    started = time.perf_counter()
    record_all(maker, count)
    figures["records_a_second"] = count / (time.perf_counter() - started)
    started = time.perf_counter()
    assert len(Listing(maker.listing.path).models()) == count
    figures["listing_read_seconds"] = time.perf_counter() - started

    _say(f"{count:,} models: publishing from nothing")
    publish = ("indexer", "publish", "--base", BASE, "--atlas", str(atlas), "--json")
    published = run_module(*publish)
    figures |= {"publish_seconds": published.seconds, "publish_peak": published.peak_bytes, **sizes(maker)}

    _say(f"{count:,} models: adding, replacing and withdrawing {FEW}")
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

    _say(f"{count:,} models: questions")
    for question, number in QUESTIONS.items():
        asked = call(ask, atlas, question, number)
        figures |= {f"{question}_{name}": value for name, value in asked.output.items()}
        figures[f"{question}_peak"] = asked.peak_bytes
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

    _say(f"{count:,} models: purity")
    asked = run_module("query", "purity", "--base", BASE, "--atlas", str(atlas), "--json")
    return figures | {
        "purity_seconds": asked.seconds, "purity_peak": asked.peak_bytes, "purity_models": asked.output["models"]
    }  # fmt: skip


def sizes(maker: Maker) -> Figures:
    """Bytes of files and rows of large tables of a published atlas."""
    root, database = maker.folder.root, maker.folder.database
    with duckdb.connect(str(database), read_only=True) as connection:
        ((deltas,),) = connection.execute("SELECT count(*) FROM deltas").fetchall()
        ((neighbours,),) = connection.execute("SELECT count(*) FROM neighbours").fetchall()
    return {
        "listing_bytes": maker.listing.path.stat().st_size,
        "record_bytes": sum(path.stat().st_size for path in maker.folder.records.glob("??/*.safetensors")),
        "database_bytes": database.stat().st_size,
        "vectors_bytes": sum(path.stat().st_size for path in root.glob("*.faiss")),
        "deltas_rows": deltas,
        "neighbours_rows": neighbours,
    }


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


# ---- steps, each in a process of its own


def ask(folder: str, question: str, count: int) -> dict[str, float]:
    """Time ``count`` questions about random models; the first answer, which opens the files, is not counted."""
    with Atlas(folder) as atlas:
        asked: dict[str, Callable[[str], object]] = {
            "stored": lambda model: atlas.similar(model, 10),
            "search": lambda model: atlas.similar(model, NEIGHBOURS + 1),  # more than the database stores
            "other_authors": lambda model: atlas.similar(model, 10, other_authors=True),
            "where": lambda model: atlas.similar(model, 10, where=WHERE),
        }
        rows = atlas.rows("SELECT model FROM models WHERE NOT is_copy ORDER BY hash(model) LIMIT ?", [count + 1])
        seconds = []
        for row in rows:
            started = time.perf_counter()
            asked[question](row["model"])
            seconds.append(time.perf_counter() - started)
    return {f"p{percent}": float(np.percentile(1000 * np.array(seconds[1:]), percent)) for percent in (50, 99)}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
