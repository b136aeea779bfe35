"""Pages through the Hub's listing for the family of a base: every model that says it comes from it.

One question after another: every id of the base by relation and without one; its mirrors; every model found so far that
may have children, the most downloaded first (``Family``); on request, untagged models with the base's name. Pages are
raw JSON, and each row is checked by itself (``indexer.sources.claim_filter``). Everything is bounded, because the
server controls every cursor and every row.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
from huggingface_hub.errors import HfHubHTTPError

from indexer.errors import AtlasError, Failed
from indexer.network.hub_errors import as_user_error
from indexer.network.hub_requests import get_json, is_own, with_parameter
from indexer.network.session import current_session
from indexer.sources.claim_filter import ClaimFilter
from indexer.sources.claims import hub_spelling
from indexer.sources.questions import (
    WALKED,
    ClaimedRow,
    CrawlProgress,
    CrawlRequest,
    Page,
    Question,
    RowCheck,
    Step,
    UnlistedMember,
    in_utc,
)
from indexer.untrusted import Reader, printable

# Fields that a listing can return (the Hub refuses childrenModelCount and usedStorage there).
_EXPANDED = (
    "author", "baseModels", "cardData", "config", "createdAt", "disabled", "downloads", "gated", "lastModified",
    "library_name", "likes", "pipeline_tag", "private", "safetensors", "sha", "siblings", "tags",
)  # fmt: skip

MOST_PAGES = 10_000
MOST_ROWS = 2_000_000
_MOST_ROWS_A_PAGE = 10_000
_NAMES_A_PAGE = 100
_MOST_PAGES_WITHOUT_NEWS = 3
# Rows of a page that the server cannot make in time, one after the other; the rest of the question stays as small.
_SMALLER_PAGES = (100, 50, 25)
_CURSOR_REFUSED = (400, 404, 410)
# How often a question may be started again because a cursor is not accepted, each time after new rows.
_MOST_RESTARTS = 10
# Rows of a page that is only read to find a place in the order.
_LIGHT_PAGE = "1000"
_EXPAND_BASES = "&expand=baseModels"


def crawl(request: CrawlRequest, progress: CrawlProgress | None = None) -> Iterator[Page]:
    """Ask every question that is not finished in ``progress``; each page may be stored as soon as it is yielded.

    Raises AtlasError if the Hub cannot be asked, its pages do not end, or they lead to another host; pages that were
    yielded before stay valid.
    """
    return _Crawl(request, progress or CrawlProgress()).run()


def answers(question: Question, request: CrawlRequest, progress: CrawlProgress, check: RowCheck) -> Iterator[Page]:
    """The pages of one question, whose rows ``check`` examines. Raises like ``crawl``."""
    for page in _Crawl(request, progress, check).pages(question):
        yield page
        if check.is_full and not page.is_last:
            progress.finished.add(question.key)
            yield Page(question, is_last=True, is_cut=True)
            return


class Family:
    """The family of a base as far as a crawl knows it (``progress.family``), and which member is asked next.

    A model belongs to it if it names the base or another member as what it was made from (by fine-tuning, merging or
    quantising), or if it is a mirror of the base by name. Adapters belong to it too, but are not asked: of 600,000
    models that name a base, 458 name an adapter (July 2025).

    The most downloaded member comes first, wherever it was found, because that one has the most children. The order
    depends on nothing but the members and what is finished, so a resumed crawl goes on with the same questions.
    """

    def __init__(self, request: CrawlRequest, progress: CrawlProgress) -> None:
        self._request = request
        self._progress = progress
        self._depths = {name.lower(): 0 for name in request.ids} | {name.lower(): 1 for name in request.mirrors}
        # Names of the base's own weights.
        self.copies = {hub_spelling(name).lower() for name in request.mirrors}
        self._waiting: list[tuple[int, str]] = []
        self._copies_asked = Counter[str]()
        asked = {Question("children", name).key for name in progress.family} & progress.finished
        self._left = request.max_questions - len(asked)
        # An earlier crawl may name a child before its parent.
        rest = dict(progress.family)
        while placed := [name for name, step in rest.items() if step.of.lower() in self._depths]:
            for name in placed:
                self._place(name, rest.pop(name))

    def add(self, identifier: str, step: Step) -> None:
        """Take a model into account; the first step that leads to it counts."""
        if identifier not in self._progress.family:
            self._progress.family[identifier] = step
            self._place(identifier, step)

    def _place(self, identifier: str, step: Step) -> None:
        name, parent = identifier.lower(), step.of.lower()
        if name in self._depths or parent not in self._depths:
            return
        self._depths[name] = self._depths[parent] + 1
        if step.relation == "quantized" and (not self._depths[parent] or parent in self.copies):
            self.copies.add(name)
        heapq.heappush(self._waiting, (-step.downloads, identifier))

    def questions(self) -> Iterator[Question]:
        """The next questions, one at a time; answers that arrive in between are taken into account.

        Members that a bound leaves out are counted in ``progress.unasked``.
        """
        self._progress.unasked = 0
        while self._waiting:
            _, identifier = heapq.heappop(self._waiting)
            step, name = self._progress.family[identifier], identifier.lower()
            if name not in self.copies and not self._request.descendants:
                continue
            if self._depths[name] >= self._request.max_depth:
                self._progress.unasked += 1
                continue
            question = Question("children", identifier)
            if step.relation == "quantized":
                self._copies_asked[step.of.lower()] += 1
            surplus = self._copies_asked[step.of.lower()] - self._request.max_copies
            if question.key in self._progress.finished:
                continue
            if self._left <= 0 or (step.relation == "quantized" and surplus > 0):
                self._progress.unasked += 1
                continue
            self._left -= 1
            yield question


class _Crawl:
    """One crawl; ``check`` examines the rows of its pages, by default by their claims."""

    def __init__(self, request: CrawlRequest, progress: CrawlProgress, check: RowCheck | None = None) -> None:
        self.request = request
        self.progress = progress
        self.rows = 0
        self.asks_for_bases = True  # until the Hub refuses `baseModels` in a listing
        self.family = Family(request, progress)
        self.filter = ClaimFilter(request, progress.known, self.family.copies)
        self.check = check

    def run(self) -> Iterator[Page]:
        # Every id of the base, by relation and without one.
        for identifier in self.request.ids:
            for relation in self.request.relations:
                yield from self.pages(Question("tag", identifier, relation))
        for identifier in self.request.ids:
            yield from self.pages(Question("tag", identifier))
        for mirror in self.request.mirrors:
            yield from self.pages(Question("children", mirror))
        # Some tools write an id as the name of its folder: owner--name.
        for identifier in (self.request.base, *self.request.mirrors):
            if "/" in identifier:
                yield from self.pages(Question("children", identifier.replace("/", "--")))
        for question in self.family.questions():
            yield from self.pages(question)
        if self.request.discover == "names":
            for name in dict.fromkeys(name.rpartition("/")[2] for name in self.request.ids):
                yield from self.pages(Question("names", name))

    def pages(self, question: Question) -> Iterator[Page]:
        """The pages of one question."""
        if question.key in self.progress.finished:
            return
        first = _first_page(parameters_of(question, self.request))
        address, oldest = first, None
        if self.progress.current == question.key and self.progress.link:
            address, oldest = self.progress.link, Reader().moment(self.progress.oldest, "createdAt")
        links, ids, without_news, size = {address}, set[str](), 0, 0
        restarts, has_news = 0, True
        for _ in range(MOST_PAGES):
            try:
                rows, next_link, size = self._ask(address, size)
            except Exception as error:
                # Where the cursor is no longer accepted, go on from the last date that was seen.
                is_refused = address != first and _status(error) in _CURSOR_REFUSED
                if not (is_refused and has_news and restarts < _MOST_RESTARTS):
                    raise as_user_error(error, question.what) from error
                address = self._find_place(first, oldest)
                links, ids, without_news = {address}, set(), 0
                restarts, has_news = restarts + 1, False
                continue
            found = self.check(rows) if self.check else [self.filter(question, row) for row in rows]
            is_cut = self.check.is_cut if self.check else self.filter.is_cut
            page = Page(question, tuple(one for one in found if one is not None), is_cut=is_cut)
            for one in page.of(ClaimedRow):
                if one.claim.relation in WALKED:
                    downloads = Reader().count(one.row.get("downloads"), "downloads") or 0
                    self.family.add(one.id, Step(one.claim.parent, one.claim.relation, downloads))
            for other in page.of(UnlistedMember):
                self.family.add(other.id, other.step)
            before = len(ids)
            ids.update(str(row.get("id")) for row in rows if isinstance(row, dict))
            without_news = 0 if len(ids) > before else without_news + 1
            # Newest first: all later pages are of models created before ``since``.
            since, known = in_utc(self.request.since), _created(rows)
            is_past = since is not None and bool(known) and known == sorted(known, reverse=True) and known[-1] < since
            if known and (oldest is None or known[-1] < oldest):
                oldest, has_news = known[-1], True
            page = replace(page, oldest=oldest.isoformat() if oldest else None)
            if next_link is None or is_past:
                self.progress.finished.add(question.key)
                yield replace(page, is_last=True)
                return
            problem = _misleading(next_link)
            if not problem and (next_link in links or without_news >= _MOST_PAGES_WITHOUT_NEWS):
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
            f"The Hub's listing of {question.what} was not read completely: {problem}.",
            "What was read is kept. Check HF_ENDPOINT and run it again.",
        )

    def _find_place(self, first: str, oldest: datetime | None) -> str:
        """The address of a page of the question that begins with ``first``: from there models up to ``oldest`` follow.

        Pages of dates alone lead there: a cursor does not depend on what is asked of each row.
        """
        expands = [pair for pair in parse_qsl(urlsplit(first).query) if pair[0] not in ("expand", "limit")]
        address, cursor = _first_page([*expands, ("limit", _LIGHT_PAGE), ("expand", "createdAt")]), None
        for _ in range(MOST_PAGES if oldest is not None else 0):
            try:
                rows, next_link, _ = self._ask(address)
            except (HfHubHTTPError, httpx2.HTTPError, Failed):
                break
            known = _created(rows)
            assert oldest is not None
            if next_link is None or next_link == address or _misleading(next_link) or not known or known[-1] <= oldest:
                break
            cursor = next((value for name, value in parse_qsl(urlsplit(next_link).query) if name == "cursor"), None)
            address = next_link
        return with_parameter(first, "cursor", cursor) if cursor else first

    def _ask(self, address: str, size: int = 0) -> tuple[list[Any], str | None, int]:
        """The rows of a page, the address of the next, and how many rows its pages are to have (0: as it says).

        Asks for a smaller page where one of ``size`` is too large for the server, and without ``baseModels`` where that
        is refused.
        """
        while True:
            if not self.asks_for_bases:
                address = address.replace(_EXPAND_BASES, "")
            try:
                self.progress.calls += 1
                answer = get_json(with_parameter(address, "limit", str(size)) if size else address)
                break
            except (HfHubHTTPError, httpx2.DecodingError, httpx2.TimeoutException) as error:
                if _status(error) == 400 and _EXPAND_BASES in address and "expand" in str(error).lower():
                    self.asks_for_bases = False
                    continue
                asked = size or _limit(address)
                smaller = next((one for one in _SMALLER_PAGES if one < asked), 0)
                if _status(error) not in (None, 504) or not smaller:
                    raise
                size = smaller
        rows = answer.value
        if not isinstance(rows, list):
            raise as_user_error(Failed("server_error", "the answer is not a list"), "a page of the listing")
        if len(rows) > _MOST_ROWS_A_PAGE:
            problem = Failed("server_error", f"it holds {len(rows):,} rows, far more than requested")
            raise as_user_error(problem, "a page of the listing")
        self.rows += len(rows)
        if self.rows > MOST_ROWS:
            raise AtlasError(
                f"The Hub's listing has more than {MOST_ROWS:,} rows.", "Narrow it with `since` or `author`."
            )
        return rows, answer.next_link, size


def parameters_of(question: Question, request: CrawlRequest) -> list[tuple[str, str]]:
    """The query of a question's first page, sorted by creation because the default order changes between pages."""
    relation = f"{question.relation}:" if question.relation else ""
    if question.kind == "names":
        asked = [("search", question.asked)]
    elif question.kind == "weights":
        asked = [("filter", question.asked), ("filter", "safetensors")]
    else:
        asked = [("filter", f"base_model:{relation}{question.asked}")]
    author = [("author", request.author)] if request.author else []
    # Each untagged model costs requests of its own, whose results are stored a page at a time.
    size = min(request.page_size, _NAMES_A_PAGE) if question.kind in ("names", "weights") else request.page_size
    return [*asked, *author, ("sort", "createdAt"), ("limit", str(size)), *(("expand", name) for name in _EXPANDED)]


def _created(rows: Collection[Any]) -> list[datetime]:
    """When the models of these rows were created, where they say so."""
    moments = (Reader().moment(row.get("createdAt"), "createdAt") for row in rows if isinstance(row, dict))
    return [moment for moment in moments if moment is not None]


def _misleading(next_link: str) -> str:
    """What is wrong with the address of a next page; "" if it is one of the endpoint's listing."""
    endpoint = current_session().endpoint
    if not is_own(next_link, endpoint):
        return f"its next page is at another host ({printable(next_link, 100)})"
    if urlsplit(next_link).path != f"{urlsplit(endpoint).path}/api/models":
        return f"its next page is not a listing ({printable(next_link, 100)})"
    return ""


def _limit(address: str) -> int:
    """The rows of a page that an address asks for."""
    text = next((value for name, value in parse_qsl(urlsplit(address).query) if name == "limit"), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else _MOST_ROWS_A_PAGE


def _status(error: Exception) -> int | None:
    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def _first_page(parameters: list[tuple[str, str]]) -> str:
    return f"{current_session().endpoint}/api/models?{urlencode(parameters)}"
