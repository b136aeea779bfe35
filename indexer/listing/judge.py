"""Judges one row of the Hub's listing: a fine-tune of the base, none, or a row that cannot be used.

A row is whatever a server sends. What is wrong with it becomes a BadRow with a reason; nothing here raises
because of a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from indexer.errors import Failed
from indexer.listing.claims import Claim, names_any, relation_to, stated_bases
from indexer.listing.questions import BadRow, ClaimedRow, CrawlRequest, Question, RawRow, Rejected
from indexer.listing.untagged import weigh
from indexer.names import is_hub_id
from indexer.network.session import as_user_error
from indexer.untrusted import is_too_deep

LARGEST_ROW = 4 << 20

Verdict = ClaimedRow | BadRow | Rejected | None


class Judge:
    """Judges rows for one crawl; ``known`` is what earlier crawls made of untagged models at which commit."""

    def __init__(self, request: CrawlRequest, known: Mapping[str, tuple[str, Claim | None]]) -> None:
        self.request = request
        self._known = known
        self._ids = {name.lower() for name in request.ids}
        self._candidates = 0
        self.is_cut = False

    def is_base(self, identifier: str) -> bool:
        """Whether that is the base itself."""
        return identifier.lower() in self._ids

    def __call__(self, question: Question, row: Any) -> Verdict:
        """What to make of a row that answers ``question``; None for one that makes no claim.

        Raises AtlasError where files of an untagged model have to be read and the Hub cannot be asked at all.
        """
        if is_too_deep(row):
            identifier = row.get("id") if isinstance(row, dict) else None
            named = identifier if isinstance(identifier, str) else None
            return BadRow.of({"id": named}, "the row is nested too deeply")
        if not isinstance(row, dict):
            return BadRow.of(row, "the row is not an object")
        identifier = row.get("id", row.get("modelId"))
        if not isinstance(identifier, str) or not is_hub_id(identifier):
            return BadRow.of(row, "the row has no id that a model can have")
        if self.is_base(identifier):
            return None
        if len(json.dumps(row)) > LARGEST_ROW:
            return BadRow.of({"id": identifier}, f"the row is longer than {LARGEST_ROW:,} characters")
        row = {**row, "id": identifier}
        if question.kind == "names" and not stated_bases(row):
            return self._untagged(row)
        if not isinstance(row.get("tags"), list) and not names_any(row, self.request.ids):
            return BadRow.of(row, "the row has no tags, so nothing says that it comes from this base")
        claim = self._claim(question, row)
        return ClaimedRow(row, claim) if claim else None

    def _claim(self, question: Question, row: RawRow) -> Claim | None:
        direct = relation_to(row, self.request.ids, self.request.relations)
        if direct:
            return Claim(direct, "tag", self.request.base)
        if question.kind == "alias" and relation_to(row, (question.asked,), ("adapter",)):
            return Claim("adapter", f"alias:{question.asked}", question.asked)
        if question.kind == "descendants" and relation_to(row, (question.asked,), ("finetune",)):
            return Claim("finetune", "tag", question.asked)
        return None

    def _untagged(self, row: RawRow) -> Verdict:
        identifier, commit = str(row["id"]), str(row.get("sha") or "")
        known = self._known.get(identifier)
        if known is not None and commit and known[0] == commit:
            claim, why = known[1], "looked into before"
        else:
            if self._candidates >= self.request.max_candidates:
                self.is_cut = True
                return None
            self._candidates += 1
            try:
                evidence = weigh(row, self.request.ids)
            except Failed as error:
                if error.reason in ("network", "rate_limited"):
                    raise as_user_error(error, f"the files of {identifier}") from error
                why = f"its files could not be read, to tell its base: {error.detail}"
                return BadRow.of({"id": identifier}, why)
            claim, why = evidence.claim, evidence.why
        if claim is None:
            return Rejected(identifier, commit, why)
        return ClaimedRow(row, claim) if claim.relation in self.request.relations else None
