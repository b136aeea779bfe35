"""Pages through the Hub's listing for everything that says it comes from a base.

One question after another: every id of the base by relation and without one; adapters of its quantised
copies; where asked for, fine-tunes of fine-tunes and untagged models with the base's name. Pages are raw JSON
and each row is judged by itself (``indexer.listing.judge``). Everything is bounded, because a cursor is whatever the
server says it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError

from indexer.errors import AtlasError, Failed
from indexer.listing.claims import relation_to
from indexer.listing.judge import Judge
from indexer.listing.questions import (
    BadRow,
    ClaimedRow,
    CrawlProgress,
    CrawlRequest,
    Page,
    Question,
    RawRow,
    Rejected,
    static_questions,
)
from indexer.listing.selection import in_utc
from indexer.names import is_hub_id
from indexer.network.hub_requests import HubAnswer, ask, is_own, with_parameter
from indexer.network.session import as_user_error
from indexer.untrusted import Reader, printable

MOST_PAGES = 10_000
MOST_ROWS = 2_000_000
MOST_ROWS_A_PAGE = 10_000
MOST_PAGES_WITHOUT_NEWS = 3
_SMALLER_PAGE = "100"
_CURSOR_REFUSED = (400, 404, 410)


def crawl(request: CrawlRequest, progress: CrawlProgress | None = None) -> Iterator[Page]:
    """Ask every question that ``progress`` does not call finished; a page may be stored as soon as it comes.

    Raises AtlasError where the Hub cannot be asked, or leads on for ever or to another host; the pages that
    came before hold what was learnt.
    """
    return _Crawl(request, progress or CrawlProgress()).run()


class _Crawl:
    def __init__(self, request: CrawlRequest, progress: CrawlProgress) -> None:
        self.request = request
        self.progress = progress
        self.rows = 0
        self.judge = Judge(request, self.progress.known)

    def run(self) -> Iterator[Page]:
        for question in static_questions(self.request):
            yield from self._pages(question)
        if "adapter" in self.request.relations:
            for alias in self._aliases():
                yield from self._pages(Question("alias", alias, "adapter"))
        if self.request.descendants and "finetune" in self.request.relations:
            yield from self._descend()
        if self.request.discover == "names":
            for name in dict.fromkeys(name.rpartition("/")[2] for name in self.request.ids):
                yield from self._pages(Question("names", name))

    def _descend(self) -> Iterator[Page]:
        """Fine-tunes of fine-tunes, breadth first; each is asked about once, even in a circle."""
        asked = {name.lower() for name in self.request.ids}
        level = [name for name, (parent, _) in self.progress.fine_tunes.items() if parent.lower() in asked]
        count = 0
        for _ in range(self.request.max_depth):
            level = sorted(
                (name for name in level if name.lower() not in asked),
                key=lambda name: (-self.progress.fine_tunes[name][1], name),
            )[: self.request.max_parents - count]
            count += len(level)
            asked |= {name.lower() for name in level}
            for parent in level:
                yield from self._pages(Question("descendants", parent, "finetune"))
            parents = set(level)
            level = [name for name, (parent, _) in self.progress.fine_tunes.items() if parent in parents]

    def _aliases(self) -> list[str]:
        """Quantised copies of the base, by downloads: what people attach adapters to in its place."""
        found: dict[str, None] = {}
        for identifier in self.request.ids:
            parameters = [
                ("filter", f"base_model:quantized:{identifier}"),
                ("sort", "downloads"),
                ("direction", "-1"),
                ("limit", str(self.request.max_aliases)),
                ("expand", "tags"),
            ]
            try:
                answer = self._ask(_first_page(parameters))
            except Exception as error:
                raise as_user_error(error, f"the quantised copies of {identifier}") from error
            for row in self._rows_of(answer):
                if isinstance(row, dict) and relation_to(row, self.request.ids, ("quantized",)):
                    name = row.get("id")
                    if isinstance(name, str) and is_hub_id(name) and not self.judge.is_base(name):
                        found[name] = None
        return list(found)[: self.request.max_aliases]

    def _pages(self, question: Question) -> Iterator[Page]:
        if question.key in self.progress.finished:
            return
        first = _first_page(question.parameters(self.request))
        address = (self.progress.link or first) if self.progress.current == question.key else first
        links, ids, quiet, may_restart = {address}, set[str](), 0, True
        for number in range(MOST_PAGES):
            try:
                answer = self._ask(address)
            except Exception as error:
                # A cursor that is no longer accepted: start this question over, once.
                if address == first or not may_restart or _status(error) not in _CURSOR_REFUSED:
                    raise as_user_error(error, question.what) from error
                address, links, ids, quiet, may_restart = first, {first}, set(), 0, False
                continue
            rows = self._rows_of(answer)
            page = self._judged(question, number, rows)
            before = len(ids)
            ids.update(str(row.get("id")) for row in rows if isinstance(row, dict))
            quiet = 0 if len(ids) > before else quiet + 1
            if answer.next_link is None or self._is_past(rows):
                yield self._finished(replace(page, is_last=True))
                return
            problem = _refusal(answer.next_link, links, quiet)
            if problem:
                yield page
                raise _stopped(question, problem)
            yield replace(page, next_link=answer.next_link)
            address = answer.next_link
            links.add(address)
        raise _stopped(question, f"it has more than {MOST_PAGES} pages")

    def _finished(self, page: Page) -> Page:
        self.progress.finished.add(page.question.key)
        return page

    def _ask(self, address: str) -> HubAnswer:
        """One page; where it is too much for the server or for us, a smaller one."""
        try:
            return ask(address)
        except (HfHubHTTPError, httpx2.DecodingError) as error:
            smaller = with_parameter(address, "limit", _SMALLER_PAGE)
            if _status(error) not in (None, 504) or smaller == address:
                raise
        return ask(smaller)

    def _rows_of(self, answer: HubAnswer) -> list[Any]:
        if not isinstance(answer.value, list):
            raise as_user_error(Failed("server_error", "the answer is not a list"), "a page of the listing")
        if len(answer.value) > MOST_ROWS_A_PAGE:
            problem = Failed("server_error", f"it holds {len(answer.value):,} rows, far more than were asked for")
            raise as_user_error(problem, "a page of the listing")
        self.rows += len(answer.value)
        if self.rows > MOST_ROWS:
            raise AtlasError(
                f"The Hub's listing has more than {MOST_ROWS:,} rows.", "Narrow it with `since` or `author`."
            )
        return answer.value

    def _is_past(self, rows: list[Any]) -> bool:
        """Whether, newest first, everything from here on was created before ``since``."""
        since = in_utc(self.request.since)
        if since is None or not rows:
            return False
        moments = [created(row) if isinstance(row, dict) else None for row in rows]
        known = [moment for moment in moments if moment is not None]
        return bool(known) and known == sorted(known, reverse=True) and known[-1] < since

    def _judged(self, question: Question, number: int, rows: list[Any]) -> Page:
        claimed: list[ClaimedRow] = []
        bad: list[BadRow] = []
        rejected: list[Rejected] = []
        for row in rows:
            verdict = self.judge(question, row)
            if isinstance(verdict, ClaimedRow):
                claimed.append(verdict)
                if verdict.claim.relation == "finetune":
                    self.progress.fine_tunes.setdefault(verdict.id, (verdict.claim.parent, _downloads(verdict.row)))
            elif isinstance(verdict, BadRow):
                bad.append(verdict)
            elif isinstance(verdict, Rejected):
                rejected.append(verdict)
        unclaimed = len(rows) - len(claimed) - len(bad) - len(rejected)
        return Page(question, number, tuple(claimed), tuple(bad), tuple(rejected), unclaimed, is_cut=self.judge.is_cut)


def created(row: RawRow) -> datetime | None:
    """When the model was created, UTC; None where the row does not say so in a way that can be read."""
    return Reader().moment(row.get("createdAt"), "createdAt")


def _status(error: Exception) -> int | None:
    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def _downloads(row: RawRow) -> int:
    return Reader().count(row.get("downloads"), "downloads") or 0


def _first_page(parameters: list[tuple[str, str]]) -> str:
    return f"{constants.ENDPOINT.rstrip('/')}/api/models?{urlencode(parameters)}"


def _refusal(link: str, seen: set[str], quiet: int) -> str | None:
    """Why a next page is not asked for, None where there is nothing against it."""
    endpoint = constants.ENDPOINT.rstrip("/")
    if not is_own(link, endpoint):
        return f"its next page is at another host ({printable(link, 100)})"
    if urlsplit(link).path != f"{urlsplit(endpoint).path}/api/models":
        return f"its next page is not a listing ({printable(link, 100)})"
    if link in seen or quiet >= MOST_PAGES_WITHOUT_NEWS:
        return "its pages repeat themselves"
    return None


def _stopped(question: Question, problem: str) -> AtlasError:
    return AtlasError(
        f"The Hub's listing of {question.what} was not read to its end: {problem}.",
        "What was read is kept. Check HF_ENDPOINT and run it again.",
    )
