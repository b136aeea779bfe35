"""The border of what sources say of models: a row is checked here, once, and counts as read from then on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from indexer.errors import AtlasError, Failed, ModelError
from indexer.names import RELATIONS
from indexer.network.rows import commit_of
from indexer.sources.cards.modelcard import ModelFacts, read_row
from indexer.sources.questions import (
    BadRow,
    CheckedRow,
    ClaimedRow,
    CrawlProgress,
    CrawlRequest,
    Page,
    UnlistedMember,
)
from indexer.sources.registry import SOURCES, ModelRef, check_readable, is_listed_id
from indexer.sources.source import Row, Source
from indexer.untrusted import is_count, is_too_deep, printable, tidy

_LARGEST_ROW = 4 << 20


def bad_row(row: Any, valid_id: Callable[[str], bool]) -> BadRow | None:
    """What is wrong with a row of any kind; None for an object with a valid id, neither too deep nor too long."""
    if is_too_deep(row):
        identifier = row.get("id") if isinstance(row, dict) else None
        named = identifier if isinstance(identifier, str) else None
        return BadRow.of({"id": named}, "the row is nested too deeply")
    if not isinstance(row, dict):
        return BadRow.of(row, "the row is not an object")
    identifier = row.get("id", row.get("modelId"))
    if not isinstance(identifier, str) or not valid_id(identifier):
        return BadRow.of(row, "the row has no valid model id")
    if len(json.dumps(row)) > _LARGEST_ROW:
        return BadRow.of({"id": identifier}, f"the row is longer than {_LARGEST_ROW:,} characters")
    return None


@contextmanager
def errors_of(source: Source) -> Iterator[None]:
    """Raise what goes wrong in the code of another package as Failed("server_error"), which names the source."""
    try:
        yield
    except (ModelError, AtlasError):
        raise
    except Exception as error:
        if source.scheme in SOURCES:
            raise
        what = f"{type(error).__name__}: {tidy(str(error), 200)}"
        raise Failed("server_error", f"{source.title} (source {source.scheme!r}) failed: {what}") from error


def row_of(reference: ModelRef, *, whole: bool = True) -> Row:
    """The row of one model, asked of its source and checked: it has a valid ``id`` and a ``sha``.

    Raises ModelError ("malformed_row" for an answer that is not such a row), and AtlasError as ``Source.row``.
    """
    source = reference.source
    check_readable(reference)
    with errors_of(source):
        row = source.row(reference, whole=whole)
    if reference.is_name:  # else the row was made here, and has no id yet
        bad = bad_row(row, source.valid_id)
        why = "" if bad is None else f"cannot be used: {bad.why}"
        if not why and ("id" not in row or commit_of(row) is None):
            why = "does not name a model and its commit"
        if why:
            raise Failed("malformed_row", f"the answer about {printable(reference.id, 100)} {why}")
    return row


def checked_pages(source: Source, request: CrawlRequest, progress: CrawlProgress) -> Iterator[Page]:
    """What a source lists for a base. A row that is not valid is a BadRow, whoever claims something of it.

    Raises AtlasError if the source cannot go on; pages that were yielded stay valid.
    """
    if source.checks_rows:
        yield from source.list(request, progress)
        return
    try:
        with errors_of(source):
            for page in source.list(request, progress):
                yield replace(page, rows=tuple(_checked(row, source.valid_id) for row in page.rows))
    except ModelError as error:
        raise source.stopped(error, f"what descends from {request.base}") from error


def _checked(row: CheckedRow, valid_id: Callable[[str], bool]) -> CheckedRow:
    """A row of a page as it may be listed, else a BadRow."""
    if isinstance(row, ClaimedRow):
        if (bad := bad_row(row.row, valid_id)) is not None:
            return bad
        if "id" not in row.row or not row.claim.is_known or not is_listed_id(row.claim.parent):
            return BadRow.of(row.row, "the row does not say in a known way what it descends from")
    if isinstance(row, UnlistedMember):
        step, is_valid = row.step, valid_id(row.id)
        if not is_valid or step.relation not in RELATIONS or not is_listed_id(step.of) or not is_count(step.downloads):
            return BadRow.of({"id": row.id}, "the row is not that of a member of the family")
    return row


def facts_of(row: Mapping[str, Any]) -> ModelFacts:
    """The facts of a listing row of any source. Raises MalformedRow if the row names no model."""
    return read_row(as_of_hub(row))


def as_of_hub(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with an id that a repository on the Hub could have, as readers of its cards expect it."""
    identifier = row.get("id")
    is_other = isinstance(identifier, str) and (":" in identifier or identifier.startswith("/"))
    return {**row, "id": "other/source"} if is_other else row
