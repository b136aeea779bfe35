"""The generation of the atlas that is on the page, and what was made of it; asked by one thread at a time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from indexer.errors import AtlasError
from query.browse.columns import read_columns
from query.browse.model import model_page
from query.browse.packed import packed
from query.browse.places import Placing, start_child
from query.map.columns import shown
from query.reader import AtlasReader
from query.sql import SqlResult, Started, asked_condition, run_sql

MOST_ROWS = 1_000
MOST_SECONDS = 20.0
_END_SECONDS = 3.0  # that the end waits for a thread that reads the atlas


class HeldAtlas:
    """One generation, until ``renew`` is asked for another. The folder of ``atlas`` is opened again for it."""

    def __init__(self, atlas: AtlasReader, method: str | None) -> None:
        self._atlas, self._method = AtlasReader(atlas.folder.root), method
        self._lock = threading.Lock()
        self._is_over = False
        self._placings: dict[str, Placing] = {}
        self._columns: dict[tuple[str, str], bytes] = {}

    def bases(self) -> list[dict[str, Any]]:
        """Every base with a model, and how many it has; the largest first."""
        with self._open() as atlas:
            return atlas.rows("SELECT base, count(*) AS models FROM models GROUP BY base ORDER BY models DESC, base")

    def renew(self) -> None:
        """Hold what was published last."""
        with self._lock:
            if self._atlas.is_outdated:
                self._atlas.refresh()
                self._columns.clear()
                self._stop_placing()
                self._placings.clear()

    def state(self, base: str) -> dict[str, Any]:
        """Which generation is held, whether a newer one is published, and how far the map of ``base`` is."""
        placing = self.placing(base)
        with self._open() as atlas:
            told = {"generation": atlas.generation, "isOvertaken": atlas.is_outdated}
        return told | {"places": placing.state, "why": placing.why}

    def placing(self, base: str) -> Placing:
        """Where the models of a base lie; begun when it is first asked for."""
        with self._open() as atlas:
            if base not in self._placings:
                self._placings[base] = Placing(atlas, base, self._method)
                if self._is_over:
                    self._placings[base].stop()
            return self._placings[base]

    def columns(self, base: str) -> bytes:
        """See ``read_columns`` and ``packed``."""
        placing = self.placing(base)
        state = placing.state  # it may change at any moment
        found = placing.found if state == "ready" else None
        with self._open() as atlas:
            key = (base, state)
            if key not in self._columns:
                bases = [row["base"] for row in atlas.rows("SELECT DISTINCT base FROM models ORDER BY base")]
                told = read_columns(atlas, base, found) | {
                    "bases": [[one, shown(one)] for one in bases],
                    "generation": atlas.generation,
                    "places": state,
                    "why": shown(placing.why),
                    "subtitle": shown(found.subtitle) if found else "",
                }
                self._columns[key] = packed(told)
            return self._columns[key]

    def model(self, model_id: int) -> dict[str, Any]:
        """See ``model_page``. Raises AtlasError where there is no such model."""
        with self._open() as atlas:
            return model_page(atlas, model_id)

    def predicted(self, model_id: int, started: Started) -> dict[str, Any]:
        """What ``query predict`` says of an indexed model, found in a process of its own. Raises AtlasError.

        ``started``: see ``run_sql``.
        """
        process = start_child(self._atlas.folder.root, "predict", str(model_id))
        started(process)
        payload, _ = process.communicate()
        try:
            told: dict[str, Any] = json.loads(payload)
        except ValueError as error:
            raise AtlasError("The prediction ended without an answer.", "Try again.") from error
        if "error" in told:
            raise AtlasError(told["error"])
        return told

    def fulfilling(self, base: str, condition: str, started: Started) -> list[int]:
        """Ids of the models for which an SQL condition holds, judged where ``query sql`` runs. Raises AtlasError."""
        database, stand_ins = self._sandboxed()
        ids = asked_condition(database, condition, stand_ins=stand_ins, started=started).model_ids()
        with self._open() as atlas:
            mine = atlas.rows("SELECT model_id FROM models WHERE base = ?", [base])
        return sorted({row["model_id"] for row in mine}.intersection(ids))

    def sql(self, statement: str, started: Started) -> SqlResult:
        """One SELECT, under the same lock as ``query sql``. Raises AtlasError."""
        database, stand_ins = self._sandboxed()
        return run_sql(database, statement, limit=MOST_ROWS, seconds=MOST_SECONDS, stand_ins=stand_ins, started=started)

    def tables(self) -> list[dict[str, Any]]:
        """Every table and view that a statement can name, with its columns and their types."""
        with self._open() as atlas:
            return atlas.rows(
                "SELECT table_name AS name, list([column_name, data_type] ORDER BY column_index) AS columns "
                "FROM duckdb_columns() WHERE NOT internal AND schema_name = 'main' GROUP BY ALL ORDER BY ALL"
            )

    def stop(self) -> None:
        """End what is under way and close the atlas. Nothing is answered from then on."""
        self._is_over = True
        self._stop_placing()
        ends = time.monotonic() + _END_SECONDS
        while time.monotonic() < ends:
            self._atlas.connection.interrupt()
            if self._lock.acquire(timeout=0.05):  # and never released
                self._atlas.close()
                break

    def _stop_placing(self) -> None:
        for placing in list(self._placings.values()):
            placing.stop()

    def _sandboxed(self) -> tuple[Path, list[str]]:
        """What a statement's process needs to open the database."""
        with self._open() as atlas:
            return atlas.database, atlas.stand_ins

    @contextmanager
    def _open(self) -> Iterator[AtlasReader]:
        with self._lock:
            yield self._atlas
