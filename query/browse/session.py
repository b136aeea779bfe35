"""The generation of the atlas that the page shows, and what was computed from it; one thread uses it at a time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from indexer.errors import AtlasError
from query.browse.layout import LayoutJob, start_process
from query.browse.model import model_page
from query.browse.payload import read_payload
from query.map.page import shown
from query.reader import AtlasReader
from query.sql import SqlResult, Started, asked_condition, run_sql

MOST_ROWS = 1_000
MOST_SECONDS = 20.0
_END_SECONDS = 3.0  # how long ``stop`` waits for a thread that reads the atlas


class BrowseSession:
    """One generation of the atlas, until ``renew``. The folder of ``atlas`` is opened again for it."""

    def __init__(self, atlas: AtlasReader, method: str | None) -> None:
        self._atlas, self._method = AtlasReader(atlas.folder.root), method
        self._lock = threading.Lock()
        self._is_over = False
        self._layouts: dict[str, LayoutJob] = {}
        self._payloads: dict[tuple[str, str], bytes] = {}

    def bases(self) -> list[dict[str, Any]]:
        """Every base with models, and how many it has, the largest first."""
        with self._open() as atlas:
            return atlas.rows("SELECT base, count(*) AS models FROM models GROUP BY base ORDER BY models DESC, base")

    def renew(self) -> None:
        """Switch to the latest generation."""
        with self._lock:
            if self._atlas.is_outdated:
                self._atlas.refresh()
                self._payloads.clear()
                for layout in self._layouts.values():
                    layout.stop()
                self._layouts.clear()

    def state(self, base: str) -> dict[str, Any]:
        """The generation, whether a newer one is published, and the state of the layout of ``base``."""
        layout = self.layout(base)
        with self._open() as atlas:
            generation = {"generation": atlas.generation, "isOvertaken": atlas.is_outdated}
        return generation | {"places": layout.state, "why": layout.why}

    def layout(self, base: str) -> LayoutJob:
        """The layout of a base, which is started when it is first needed."""
        with self._open() as atlas:
            if base not in self._layouts:
                self._layouts[base] = LayoutJob(atlas, base, self._method)
                if self._is_over:
                    self._layouts[base].stop()
            return self._layouts[base]

    def payload(self, base: str) -> bytes:
        """See ``read_payload``; as JSON."""
        layout = self.layout(base)
        state = layout.state  # it may change at any moment
        found = layout.found if state == "ready" else None
        with self._open() as atlas:
            key = (base, state)
            if key not in self._payloads:
                bases = [row["base"] for row in atlas.rows("SELECT DISTINCT base FROM models ORDER BY base")]
                payload = read_payload(atlas, base, found) | {
                    "bases": [[one, shown(one)] for one in bases],
                    "generation": atlas.generation,
                    "places": state,
                    "why": shown(layout.why),
                    "subtitle": shown(found.subtitle) if found else "",
                }
                self._payloads[key] = json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
            return self._payloads[key]

    def model(self, model_id: int) -> dict[str, Any]:
        """See ``model_page``. Raises AtlasError if there is no such model."""
        with self._open() as atlas:
            return model_page(atlas, model_id)

    def predicted(self, model_id: int, started: Started) -> dict[str, Any]:
        """The answer of ``query predict`` for an indexed model, from a process of its own. Raises AtlasError.

        ``started``: see ``run_sql``.
        """
        process = start_process(self._atlas.folder.root, "predict", str(model_id))
        started(process)
        payload, _ = process.communicate()
        try:
            answer: dict[str, Any] = json.loads(payload)
        except ValueError as error:
            raise AtlasError("The prediction ended without an answer.", "Try again.") from error
        if "error" in answer:
            raise AtlasError(answer["error"])
        return answer

    def fulfilling(self, base: str, condition: str, started: Started) -> list[int]:
        """Ids of the models that satisfy an SQL condition, run in the sandbox of ``query sql``. Raises AtlasError."""
        with self._open() as atlas:
            database, stand_ins = atlas.database, atlas.stand_ins
        ids = asked_condition(database, condition, stand_ins=stand_ins, started=started).model_ids()
        with self._open() as atlas:
            mine = atlas.rows("SELECT model_id FROM models WHERE base = ?", [base])
        return sorted({row["model_id"] for row in mine}.intersection(ids))

    def sql(self, statement: str, started: Started) -> SqlResult:
        """The result of a SELECT, run in the sandbox of ``query sql``. Raises AtlasError."""
        with self._open() as atlas:
            database, stand_ins = atlas.database, atlas.stand_ins
        return run_sql(database, statement, limit=MOST_ROWS, seconds=MOST_SECONDS, stand_ins=stand_ins, started=started)

    def tables(self) -> list[dict[str, Any]]:
        """Every table and view, with its columns and their types."""
        with self._open() as atlas:
            return atlas.rows(
                "SELECT table_name AS name, list([column_name, data_type] ORDER BY column_index) AS columns "
                "FROM duckdb_columns() WHERE NOT internal AND schema_name = 'main' GROUP BY ALL ORDER BY ALL"
            )

    def stop(self) -> None:
        """Stop everything and close the atlas. No request is answered after that."""
        self._is_over = True
        for layout in list(self._layouts.values()):
            layout.stop()
        ends = time.monotonic() + _END_SECONDS
        while time.monotonic() < ends:
            self._atlas.connection.interrupt()
            if self._lock.acquire(timeout=0.05):  # and never released
                self._atlas.close()
                break

    @contextmanager
    def _open(self) -> Iterator[AtlasReader]:
        with self._lock:
            yield self._atlas
