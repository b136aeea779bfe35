"""The generation of the atlas that is on the page, and what was made of it; asked by one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from query.browse.columns import read_columns
from query.browse.model import harmless, model_page
from query.browse.packed import packed
from query.browse.places import Placing
from query.map.columns import shown
from query.reader import AtlasReader
from query.sql import SqlResult, check_condition, run_sql

MOST_ROWS = 1_000
MOST_SECONDS = 20.0
MOST_STATEMENTS = 2  # at a time

T = TypeVar("T")


class HeldAtlas:
    """One generation, until ``renew`` is asked for another. ``placings``: of each base whose map was looked at."""

    def __init__(self, atlas: AtlasReader, method: str) -> None:
        self._atlas, self._method = atlas, method
        self._lock = threading.Lock()
        self._prediction = threading.Lock()
        self._statements = threading.BoundedSemaphore(MOST_STATEMENTS)
        self._placings: dict[str, Placing] = {}
        self._columns: dict[tuple[str, str], bytes] = {}

    def bases(self) -> list[dict[str, Any]]:
        """Every base with a model, and how many it has; the largest first."""
        with self._open() as atlas:
            return atlas.rows("SELECT base, count(*) AS models FROM models GROUP BY base ORDER BY models DESC, base")

    def renew(self) -> None:
        """Hold what was published last."""
        with self._lock:
            if self._atlas.is_overtaken:
                self._atlas.refresh()
                self._columns.clear()
                self.stop()
                self._placings.clear()

    def state(self, base: str) -> dict[str, Any]:
        """Which generation is held, whether a newer one is published, and how far the map of ``base`` is."""
        placing = self.placing(base)
        with self._open() as atlas:
            told = {"generation": atlas.generation, "isOvertaken": atlas.is_overtaken}
        return told | {"places": placing.state, "why": placing.why}

    def placing(self, base: str) -> Placing:
        """Where the models of a base lie; begun when it is first asked for."""
        with self._open() as atlas:
            if base not in self._placings:
                self._placings[base] = Placing(atlas, base, self._method)
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

    def predicted(self, model_id: int) -> dict[str, Any]:
        """What ``query predict`` says of an indexed model, asked of an atlas of its own. Raises AtlasError.

        That can take long, and what the page asks meanwhile is not to wait for it.
        """
        from query.predict.predict import predict_indexed

        with self._prediction, AtlasReader(self._atlas.folder.root) as atlas:
            told = predict_indexed(atlas, model_id)
        return harmless({"headline": told.headline, "predictions": told.to_rows(), "notes": list(told.notes)})

    def fulfilling(self, base: str, condition: str) -> list[int]:
        """Ids of the models for which an SQL condition holds, judged where ``query sql`` runs. Raises AtlasError."""
        ids = self._asked(lambda database, ins: check_condition(database, condition, stand_ins=ins))
        with self._open() as atlas:
            mine = atlas.rows("SELECT model_id FROM models WHERE base = ?", [base])
        return sorted({row["model_id"] for row in mine}.intersection(ids))

    def sql(self, statement: str) -> SqlResult:
        """One SELECT, under the same lock as ``query sql``. Raises AtlasError."""
        return self._asked(
            lambda database, ins: run_sql(database, statement, limit=MOST_ROWS, seconds=MOST_SECONDS, stand_ins=ins)
        )

    def stop(self) -> None:
        """End what is still being placed."""
        for placing in self._placings.values():
            placing.stop()

    def _asked(self, ask: Callable[[Any, list[str]], T]) -> T:
        """A stranger's SQL runs in a process of its own: nobody else waits for it, and few do at a time."""
        with self._open() as atlas:
            database, stand_ins = atlas.database, atlas.stand_ins
        with self._statements:
            return ask(database, stand_ins)

    @contextmanager
    def _open(self) -> Iterator[AtlasReader]:
        with self._lock:
            yield self._atlas
