"""The questions of an atlas as functions of plain arguments and typed answers: what agents are given as tools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

from pydantic import Field

from indexer.console.terminal import as_plain
from query.atlas import Atlas
from query.serve.answers import Ancestry, Compared, Datasets, LikelyDataset, Parent, Predicted, Rows, Shown, Similar

MOST_NEIGHBOURS = 200
MOST_ROWS = 1_000
MOST_SECONDS = 30.0

Model = Annotated[str, Field(description="An indexed id (owner/name), any other Hub id, or a local checkpoint folder.")]
Base = Annotated[str | None, Field(description="Base model id; needed where the atlas holds several.")]
Answer = TypeVar("Answer")


class Tools:
    """One open atlas, asked by one client at a time; what is published meanwhile is seen by the next question."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self._lock = threading.Lock()

    @property
    def all(self) -> list[Callable[..., Any]]:
        """Every tool, by the name of its method."""
        return [self.similar, self.predict, self.show, self.compare, self.lineage, self.datasets, self.sql]

    @contextmanager
    def _open(self) -> Iterator[Atlas]:
        with self._lock:
            if self._atlas.is_overtaken:
                self._atlas.refresh()
            yield self._atlas

    def similar(
        self,
        model: Model,
        k: Annotated[int, Field(ge=1, le=MOST_NEIGHBOURS, description="How many.")] = 10,
        where: Annotated[str | None, Field(description='SQL condition on `models`, e.g. "downloads > 100".')] = None,
        other_authors: Annotated[bool, Field(description="Leave the model's own author out.")] = False,
        representation: Annotated[str, Field(description="Which vectors.")] = "input",
        explain: Annotated[bool, Field(description="Also which layers and families make them close.")] = False,
        base: Base = None,
    ) -> Similar:
        """Find the fine-tuned models whose weights changed most like those of a model, nearest first."""
        with self._open() as atlas:
            found = atlas.similar(
                model, k, where=where, other_authors=other_authors, representation=representation, base=base,
                explain=explain,
            )  # fmt: skip
            rows = [{"because": None, **as_plain(one.as_row())} for one in found]
            told = {"model": model, "representation": representation, "neighbours": rows, "notes": list(found.notes)}
            return Similar(**told)  # type: ignore[typeddict-item]

    def predict(
        self, model: Model, k: Annotated[int, Field(ge=1, le=100, description="Voters.")] = 10, base: Base = None
    ) -> Predicted:
        """Say which datasets a model was probably tuned on, by its weights and its head."""
        with self._open() as atlas:
            found = atlas.predict(model, k=k, base=base)
            answers = [
                LikelyDataset(
                    dataset=row["dataset"], probability=row["probability"], votes=row["votes"],
                    calibrated=row["calibrated"],
                )
                for row in as_plain(found.to_rows())
            ]  # fmt: skip
            return Predicted(model=model, answers=answers, notes=list(found.notes))

    def show(self, model: Model, base: Base = None) -> Shown:
        """Tell everything known of one model: card, datasets, norms, ranks, flags, duplicates."""
        with self._open() as atlas:
            return Shown(model=model, facts=as_plain(atlas.show(model, base).to_dict()))

    def compare(self, a: Model, b: Model, base: Base = None) -> Compared:
        """Put two models side by side: how alike their changes are, where, and what their cards say."""
        with self._open() as atlas:
            return Compared(a=a, b=b, facts=as_plain(atlas.compare(a, b, base=base).to_dict()))

    def lineage(
        self,
        model: Model,
        dates: Annotated[bool, Field(description="Let upload dates say who was first.")] = True,
        base: Base = None,
    ) -> Ancestry:
        """Say which model a model was made from (continued, merged, LoRA merged, copied, recast), by its weights."""
        with self._open() as atlas:
            found = atlas.lineage(model, base, dates=dates)
            parents: list[Parent] = as_plain([row.as_row() for row in found.rows])
            return Ancestry(
                model=found.model, base=found.base, parents=parents, bytes_read=found.bytes_read,
                notes=list(found.notes),
            )  # fmt: skip

    def datasets(
        self,
        search: Annotated[str, Field(description="Part of the name; empty for all.")] = "",
        limit: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 100,
        base: Base = None,
    ) -> Datasets:
        """List the datasets that indexed models name, by number of models."""
        with self._open() as atlas:
            chosen = atlas.base_named(base) if base is not None else None
            rows = atlas.rows(
                "SELECT base, dataset, models, authors FROM dataset_counts WHERE contains(lower(dataset), lower(?)) "
                "AND (?::VARCHAR IS NULL OR base = ?) ORDER BY models DESC, dataset LIMIT ?",
                [search, chosen, chosen, limit + 1],
            )
            return Datasets(datasets=as_plain(rows[:limit]), truncated=len(rows) > limit)

    def sql(
        self,
        statement: Annotated[str, Field(description="One SELECT. Start with SHOW TABLES, or DESCRIBE models.")],
        limit: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 100,
        seconds: Annotated[float, Field(gt=0, le=MOST_SECONDS)] = 10.0,
    ) -> Rows:
        """Run one read-only SELECT (DuckDB) on the atlas, in a process that can reach nothing else."""
        with self._open() as atlas:
            found = atlas.sql(statement, limit=limit, seconds=seconds)
            return Rows(columns=found.columns, rows=as_plain(found.rows), truncated=found.truncated)
