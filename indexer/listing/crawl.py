"""Pages through the Hub's listing for the family of a base: every model that says it comes from it.

One question after another: every id of the base by relation and without one; its mirrors; every model found so far that
may have children, the most downloaded first (``indexer.listing.family``); on request, untagged models with the base's
name. Pages are raw JSON, and each row is checked by itself (``indexer.listing.claim_filter``). Everything is bounded,
because the server controls every cursor and every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError

from indexer.errors import AtlasError, Failed
from indexer.listing.claim_filter import ClaimFilter
from indexer.listing.family import Family
from indexer.listing.listing_state import in_utc
from indexer.listing.mirrors import joined_spelling
from indexer.listing.questions import (
    WALKED,
    BadRow,
    ClaimedRow,
    CrawlProgress,
    CrawlRequest,
    Page,
    Passed,
    Question,
    Rejected,
    Step,
)
from indexer.network.hub_errors import as_user_error
from indexer.network.hub_requests import ask, is_own, with_parameter
from indexer.untrusted import Reader, printable

MOST_PAGES = 10_000
MOST_ROWS = 2_000_000
MOST_ROWS_A_PAGE = 10_000
MOST_PAGES_WITHOUT_NEWS = 3
_SMALLER_PAGE = "100"
_CURSOR_REFUSED = (400, 404, 410)


def crawl(request: CrawlRequest, progress: CrawlProgress | None = None) -> Iterator[Page]:
    """Ask every question that is not finished in ``progress``; each page may be stored as soon as it is yielded.

    Raises AtlasError if the Hub cannot be asked, its pages do not end, or they lead to another host; pages that were
    yielded before stay valid.
    """
    return _Crawl(request, progress or CrawlProgress()).run()


class _Crawl:
    def __init__(self, request: CrawlRequest, progress: CrawlProgress) -> None:
        self.request = request
        self.progress = progress
        self.rows = 0
        self.family = Family(request, progress)
        self.filter = ClaimFilter(request, progress.known, self.family.copies)

    def run(self) -> Iterator[Page]:
        # Every id of the base, by relation and without one.
        for identifier in self.request.ids:
            for relation in self.request.relations:
                yield from self._pages(Question("tag", identifier, relation))
        for identifier in self.request.ids:
            yield from self._pages(Question("tag", identifier))
        for mirror in self.request.mirrors:
            yield from self._pages(Question("children", mirror))
        for identifier in (*self.request.ids[:1], *self.request.mirrors) if self.request.mirrors else ():
            if joined := joined_spelling(identifier):
                yield from self._pages(Question("children", joined))
        for question in self.family.questions():
            yield from self._pages(question)
        if self.request.discover == "names":
            for name in dict.fromkeys(name.rpartition("/")[2] for name in self.request.ids):
                yield from self._pages(Question("names", name))

    def _pages(self, question: Question) -> Iterator[Page]:
        if question.key in self.progress.finished:
            return
        first = _first_page(question.parameters(self.request))
        address = (self.progress.link or first) if self.progress.current == question.key else first
        links, ids, without_news, may_restart = {address}, set[str](), 0, True
        for _ in range(MOST_PAGES):
            try:
                rows, next_link = self._ask(address)
            except Exception as error:
                # Where the cursor is no longer accepted, start this question over, once.
                if address == first or not may_restart or _status(error) not in _CURSOR_REFUSED:
                    raise as_user_error(error, question.what) from error
                address, links, ids, without_news, may_restart = first, {first}, set(), 0, False
                continue
            found = [self.filter(question, row) for row in rows]
            claimed = tuple(one for one in found if isinstance(one, ClaimedRow))
            bad = tuple(one for one in found if isinstance(one, BadRow))
            rejected = tuple(one for one in found if isinstance(one, Rejected))
            passed = tuple(one for one in found if isinstance(one, Passed))
            page = Page(question, claimed, bad, rejected, passed, is_cut=self.filter.is_cut)
            for one in claimed:
                if one.claim.relation in WALKED:
                    downloads = Reader().count(one.row.get("downloads"), "downloads") or 0
                    self.family.add(one.id, Step(one.claim.parent, one.claim.relation, downloads))
            for other in passed:
                self.family.add(other.id, other.step)
            before = len(ids)
            ids.update(str(row.get("id")) for row in rows if isinstance(row, dict))
            without_news = 0 if len(ids) > before else without_news + 1
            # Newest first: all later pages are of models created before ``since``.
            since, is_past = in_utc(self.request.since), False
            if since is not None:
                moments = [Reader().moment(row.get("createdAt"), "createdAt") for row in rows if isinstance(row, dict)]
                known = [moment for moment in moments if moment is not None]
                is_past = bool(known) and known == sorted(known, reverse=True) and known[-1] < since
            if next_link is None or is_past:
                self.progress.finished.add(question.key)
                yield replace(page, is_last=True)
                return
            endpoint, problem = constants.ENDPOINT.rstrip("/"), ""
            if not is_own(next_link, endpoint):
                problem = f"its next page is at another host ({printable(next_link, 100)})"
            elif urlsplit(next_link).path != f"{urlsplit(endpoint).path}/api/models":
                problem = f"its next page is not a listing ({printable(next_link, 100)})"
            elif next_link in links or without_news >= MOST_PAGES_WITHOUT_NEWS:
                problem = "its pages repeat themselves"
            if problem:
                yield page
                break
            yield replace(page, next_link=next_link)
            address = next_link
            links.add(address)
        else:
            problem = f"it has more than {MOST_PAGES} pages"
        raise AtlasError(
            f"The Hub's listing of {question.what} was not read to its end: {problem}.",
            "What was read is kept. Check HF_ENDPOINT and run it again.",
        )

    def _ask(self, address: str) -> tuple[list[Any], str | None]:
        """The rows of a page, and the address of the next; asks for a smaller page where one is too large."""
        try:
            answer = ask(address)
        except (HfHubHTTPError, httpx2.DecodingError) as error:
            smaller = with_parameter(address, "limit", _SMALLER_PAGE)
            if _status(error) not in (None, 504) or smaller == address:
                raise
            answer = ask(smaller)
        self.progress.calls += 1
        rows = answer.value
        if not isinstance(rows, list):
            raise as_user_error(Failed("server_error", "the answer is not a list"), "a page of the listing")
        if len(rows) > MOST_ROWS_A_PAGE:
            problem = Failed("server_error", f"it holds {len(rows):,} rows, far more than were asked for")
            raise as_user_error(problem, "a page of the listing")
        self.rows += len(rows)
        if self.rows > MOST_ROWS:
            raise AtlasError(
                f"The Hub's listing has more than {MOST_ROWS:,} rows.", "Narrow it with `since` or `author`."
            )
        return rows, answer.next_link


def _status(error: Exception) -> int | None:
    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def _first_page(parameters: list[tuple[str, str]]) -> str:
    return f"{constants.ENDPOINT.rstrip('/')}/api/models?{urlencode(parameters)}"
