"""Pages through the Hub's listing for every model that says it comes from a base.

One question after another: every id of the base by relation and without one; adapters of its quantised copies; on
request, fine-tunes of fine-tunes and untagged models with the base's name. Pages are raw JSON, and each row is checked
by itself. Everything is bounded, because the server controls every cursor and every row.

For a model without a base_model tag the first piece of evidence that names a base decides, for or against:

1. ``adapter_config.json: base_model_name_or_path``
2. ``config.json: _name_or_path``
3. the Trainer's sentence in the card: "fine-tuned version of [X](…)"
4. the name, which is wrong for about 5 models in 100 and therefore only a reason to look at the weights.

A local folder of the author does not name a base, unless its last part is the base's own name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError

from indexer.cards.readme import MAX_README, trainer_sentence
from indexer.errors import AtlasError, Failed, ModelError
from indexer.listing.claims import NO, UNSURE, YES, Claim, path_verdict, relation_to, stated_bases, untyped_relation
from indexer.listing.listing_state import in_utc
from indexer.listing.questions import (
    BadRow,
    CheckedRow,
    ClaimedRow,
    CrawlProgress,
    CrawlRequest,
    Page,
    Question,
    RawRow,
    Rejected,
    Unrelated,
)
from indexer.names import is_hub_id
from indexer.network.hub import fetch_json
from indexer.network.hub_errors import as_user_error
from indexer.network.hub_requests import ask, fetch_small, is_own, with_parameter
from indexer.network.rows import filenames_in
from indexer.untrusted import Reader, is_too_deep, printable

MOST_PAGES = 10_000
MOST_ROWS = 2_000_000
MOST_ROWS_A_PAGE = 10_000
MOST_PAGES_WITHOUT_NEWS = 3
LARGEST_ROW = 4 << 20
_LONGEST_NAME = 500
# Rows of a page that the server cannot make in time, one after the other; the rest of the question stays as small.
_SMALLER_PAGES = (100, 50, 25)
_CURSOR_REFUSED = (400, 404, 410)
# How often a question may be taken up again because a cursor is not accepted, each time after new rows.
MOST_RESTARTS = 10
# Rows of a page that is only read to find a place in the order.
_LIGHT_PAGE = "1000"
_EXPAND_BASES = "&expand=baseModels"

# Words next to a base's name that make it the name of another base (xlm-roberta-base, roberta-base-bne).
_OTHER_BASES = frozenset((
    "albert", "bigbird", "biomed", "biomedical", "bne", "ca", "camembert", "chinese", "clip", "code", "deberta",
    "distil", "electra", "flan", "german", "indonesian", "japanese", "ke", "klue", "korean", "long", "m",
    "mdeberta", "mini", "mt", "multilingual", "norwegian", "small", "spanish", "tiny", "umt", "xlm",
))  # fmt: skip
# Why an untagged model is rejected whose config.json says less than it used to.
NO_PATH = "nothing names the base, and its config.json has no _name_or_path, as transformers 5 saves it"
_WORD = re.compile(r"[a-z0-9.]+")

# (file, key, what a claim made there is called)
_NAMED_IN = (
    ("adapter_config.json", "base_model_name_or_path", "adapter_config"),
    ("config.json", "_name_or_path", "config"),
)


def crawl(request: CrawlRequest, progress: CrawlProgress | None = None) -> Iterator[Page]:
    """Ask every question that is not finished in ``progress``; each page may be stored as soon as it is yielded.

    Raises AtlasError if the Hub cannot be asked, its pages do not end, or they lead to another host; pages that were
    yielded before stay valid.
    """
    return _Crawl(request, progress or CrawlProgress()).run()


class RowCheck(Protocol):
    """Checks the rows of a page that the crawl itself cannot: ``is_full`` once it takes no more of them."""

    is_cut: bool

    @property
    def is_full(self) -> bool:
        """Whether further pages would not be checked."""
        ...

    def __call__(self, rows: Sequence[Any]) -> list[CheckedRow | None]:
        """What the rows of a page are."""
        ...


def answers(question: Question, request: CrawlRequest, progress: CrawlProgress, check: RowCheck) -> Iterator[Page]:
    """The pages of one question, whose rows ``check`` examines. Raises like ``crawl``."""
    for page in _Answers(request, progress, check).pages(question):
        yield page
        if check.is_full and not page.is_last:
            progress.finished.add(question.key)
            yield Page(question, is_last=True, is_cut=True)
            return


class ClaimFilter:
    """Checks the rows of one crawl: a row is a fine-tune of the base, is not, or cannot be used.

    ``known``: what earlier crawls found out about untagged models, and at which commit. A bad row
    never raises: it becomes a BadRow with a reason.
    """

    def __init__(self, request: CrawlRequest, known: Mapping[str, tuple[str, Claim | None]]) -> None:
        self.request = request
        self._known = known
        self.ids = {name.lower() for name in request.ids}
        self._candidates = 0
        self.is_cut = False  # whether untagged models were left out by a bound

    def __call__(self, question: Question, row: Any) -> ClaimedRow | BadRow | Rejected | None:
        """What a row is that answers ``question``; None for one that makes no claim.

        Raises AtlasError if the files of an untagged model are needed and the Hub cannot be asked at all.
        """
        if is_too_deep(row):
            identifier = row.get("id") if isinstance(row, dict) else None
            named = identifier if isinstance(identifier, str) else None
            return BadRow.of({"id": named}, "the row is nested too deeply")
        if not isinstance(row, dict):
            return BadRow.of(row, "the row is not an object")
        identifier = row.get("id", row.get("modelId"))
        if not isinstance(identifier, str) or not is_hub_id(identifier):
            return BadRow.of(row, "the row has no valid model id")
        if identifier.lower() in self.ids:
            return None
        if len(json.dumps(row)) > LARGEST_ROW:
            return BadRow.of({"id": identifier}, f"the row is longer than {LARGEST_ROW:,} characters")
        row = {**row, "id": identifier}
        stated = stated_bases(row)
        if question.kind == "names" and not stated:
            return self._untagged(row)
        if not isinstance(row.get("tags"), list) and not stated.keys() & self.ids:
            return BadRow.of(row, "the row has no tags, so nothing says that it comes from this base")
        direct = relation_to(row, self.request.ids, self.request.relations)
        if direct:
            return ClaimedRow(row, Claim(direct, "tag", self.request.base))
        if question.kind == "alias" and relation_to(row, (question.asked,), ("adapter",)):
            return ClaimedRow(row, Claim("adapter", f"alias:{question.asked}", question.asked))
        if question.kind == "descendants" and relation_to(row, (question.asked,), ("finetune",)):
            return ClaimedRow(row, Claim("finetune", "tag", question.asked))
        return None

    def _untagged(self, row: RawRow) -> ClaimedRow | BadRow | Rejected | None:
        identifier, commit = str(row["id"]), str(row.get("sha") or "")
        known = self._known.get(identifier)
        if known is not None and commit and known[0] == commit:
            claim, why = known[1], "it was examined before"
        else:
            if self._candidates >= self.request.max_candidates:
                self.is_cut = True
                return None
            self._candidates += 1
            try:
                claim, why = find_claim(row, self.request.ids)
            except Failed as error:
                if error.reason in ("network", "rate_limited"):
                    raise as_user_error(error, f"the files of {identifier}") from error
                why = f"its files could not be read to find its base: {error.detail}"
                return BadRow.of({"id": identifier}, why)
        if claim is None:
            return Rejected(identifier, commit, why)
        return ClaimedRow(row, claim) if claim.relation in self.request.relations else None


class _Crawl:
    def __init__(self, request: CrawlRequest, progress: CrawlProgress) -> None:
        self.request = request
        self.progress = progress
        self.rows = 0
        self.asks_for_bases = True  # until the Hub refuses `baseModels` in a listing
        self.filter = ClaimFilter(request, self.progress.known)

    def run(self) -> Iterator[Page]:
        # Every id of the base, by relation and without one.
        for identifier in self.request.ids:
            for relation in self.request.relations:
                yield from self._pages(Question("tag", identifier, relation))
        for identifier in self.request.ids:
            yield from self._pages(Question("tag", identifier))
        if "adapter" in self.request.relations:
            for alias in self._aliases():
                yield from self._pages(Question("alias", alias, "adapter"))
        if self.request.descendants and "finetune" in self.request.relations:
            # Fine-tunes of fine-tunes, breadth first; each is asked about once, even in a circle.
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
        if self.request.discover == "names":
            for name in dict.fromkeys(name.rpartition("/")[2] for name in self.request.ids):
                yield from self._pages(Question("names", name))

    def _aliases(self) -> list[str]:
        """Quantised copies of the base, by downloads: people often attach adapters to them instead."""
        found: dict[str, None] = {}
        for identifier in self.request.ids:
            parameters = [
                ("filter", f"base_model:quantized:{identifier}"),
                ("sort", "downloads"),
                ("limit", str(self.request.max_aliases)),
                ("expand", "tags"),
            ]
            try:
                rows, _, _ = self._ask(_first_page(parameters))
            except Exception as error:
                raise as_user_error(error, f"the quantised copies of {identifier}") from error
            for row in rows:
                if isinstance(row, dict) and relation_to(row, self.request.ids, ("quantized",)):
                    name = row.get("id")
                    if isinstance(name, str) and is_hub_id(name) and name.lower() not in self.filter.ids:
                        found[name] = None
        return list(found)[: self.request.max_aliases]

    def _pages(self, question: Question) -> Iterator[Page]:
        if question.key in self.progress.finished:
            return
        first = _first_page(question.parameters(self.request))
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
                if not (is_refused and has_news and restarts < MOST_RESTARTS):
                    raise as_user_error(error, question.what) from error
                address = self._find_place(first, oldest)
                links, ids, without_news = {address}, set(), 0
                restarts, has_news = restarts + 1, False
                continue
            found = self.checked(question, rows)
            claimed = tuple(one for one in found if isinstance(one, ClaimedRow))
            bad = tuple(one for one in found if isinstance(one, BadRow))
            rejected = tuple(one for one in found if isinstance(one, Rejected))
            unrelated = tuple(one for one in found if isinstance(one, Unrelated))
            page = Page(question, claimed, bad, rejected, unrelated, is_cut=self.is_cut)
            for one in claimed:
                if one.claim.relation == "finetune":
                    downloads = Reader().count(one.row.get("downloads"), "downloads") or 0
                    self.progress.fine_tunes.setdefault(one.id, (one.claim.parent, downloads))
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
            if not problem and (next_link in links or without_news >= MOST_PAGES_WITHOUT_NEWS):
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

    def checked(self, question: Question, rows: list[Any]) -> list[CheckedRow | None]:
        """What the rows of a page are."""
        return [self.filter(question, row) for row in rows]

    @property
    def is_cut(self) -> bool:
        """Whether models were left out by a bound."""
        return self.filter.is_cut

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
                answer = ask(with_parameter(address, "limit", str(size)) if size else address)
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
        if len(rows) > MOST_ROWS_A_PAGE:
            problem = Failed("server_error", f"it holds {len(rows):,} rows, far more than were asked for")
            raise as_user_error(problem, "a page of the listing")
        self.rows += len(rows)
        if self.rows > MOST_ROWS:
            raise AtlasError(
                f"The Hub's listing has more than {MOST_ROWS:,} rows.", "Narrow it with `since` or `author`."
            )
        return rows, answer.next_link, size


class _Answers(_Crawl):
    def __init__(self, request: CrawlRequest, progress: CrawlProgress, check: RowCheck) -> None:
        super().__init__(request, progress)
        self.check = check

    def pages(self, question: Question) -> Iterator[Page]:
        """The pages of this question alone."""
        return self._pages(question)

    def checked(self, question: Question, rows: list[Any]) -> list[CheckedRow | None]:
        """What the rows of a page are."""
        return self.check(rows)

    @property
    def is_cut(self) -> bool:
        """Whether models were left out by a bound."""
        return self.check.is_cut


def _created(rows: Collection[Any]) -> list[datetime]:
    """When the models of these rows were created, where they say so."""
    moments = (Reader().moment(row.get("createdAt"), "createdAt") for row in rows if isinstance(row, dict))
    return [moment for moment in moments if moment is not None]


def _misleading(next_link: str) -> str:
    """What is wrong with the address of a next page; "" if it is one of the endpoint's listing."""
    endpoint = constants.ENDPOINT.rstrip("/")
    if not is_own(next_link, endpoint):
        return f"its next page is at another host ({printable(next_link, 100)})"
    if urlsplit(next_link).path != f"{urlsplit(endpoint).path}/api/models":
        return f"its next page is not a listing ({printable(next_link, 100)})"
    return ""


def _limit(address: str) -> int:
    """The rows of a page that an address asks for."""
    text = next((value for name, value in parse_qsl(urlsplit(address).query) if name == "limit"), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else MOST_ROWS_A_PAGE


def _status(error: Exception) -> int | None:
    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def _first_page(parameters: list[tuple[str, str]]) -> str:
    return f"{constants.ENDPOINT.rstrip('/')}/api/models?{urlencode(parameters)}"


def find_claim(row: Mapping[str, Any], ids: Collection[str]) -> tuple[Claim | None, str]:
    """Whether the model of ``row`` comes from the base that ``ids`` name, the canonical id first.

    Returns its claim, None for a model of another base, and the evidence in words. Reads up to three small files.
    Raises Failed if one of them cannot be read now, but may be readable later.
    """
    identifier, revision = str(row["id"]), str(row.get("sha") or "main")
    base, names, relation = next(iter(ids)), filenames_in(row), untyped_relation(row)
    is_unclear = lacks_path = False
    for filename, key, claimed_by in _NAMED_IN:
        if names and filename not in names:
            continue
        try:
            config = fetch_json(identifier, filename, revision)
        except ModelError as error:
            if isinstance(error, Failed) and error.reason not in ("not_found", "malformed_row", "refused"):
                raise
            config = None
        path = config.get(key) if isinstance(config, dict) else None
        lacks_path = lacks_path or (isinstance(config, dict) and key == "_name_or_path" and key not in config)
        is_text = isinstance(path, str) and len(path) <= _LONGEST_NAME
        verdict = path_verdict(path if is_text else None, identifier, ids)
        if verdict == YES:
            found = "adapter" if claimed_by == "adapter_config" else relation
            return Claim(found, claimed_by, base), f"{filename} names it"
        if verdict == NO:
            return None, f"{filename} names another model"
        is_unclear = is_unclear or verdict == UNSURE
    if not names or "README.md" in names:
        try:
            card = fetch_small(identifier, "README.md", revision, MAX_README)
        except ModelError as error:
            if isinstance(error, Failed) and error.reason not in ("not_found", "refused"):
                raise
            card = b""
        sentence = trainer_sentence(card.decode("utf-8", errors="replace"))
        if sentence is not None:
            is_ours = sentence[0].lower() in {name.lower() for name in ids}
            if is_ours:
                return Claim(relation, "card", base), "its card names it"
            return None, "its card names another model"
    if is_unclear:
        return None, "its configuration names something else, or a folder"
    if is_named_after(identifier, ids):
        return Claim(relation, "name", base), "its name"
    return None, NO_PATH if lacks_path else "nothing names the base"


def is_named_after(identifier: str, ids: Collection[str]) -> bool:
    """Whether the model's name contains the base's, word by word, and not as part of another base's name."""
    words = _WORD.findall(identifier.lower().rpartition("/")[2])
    for name in ids:
        wanted = _WORD.findall(name.lower().rpartition("/")[2])
        for start in range(len(words) - len(wanted) + 1):
            if wanted and words[start : start + len(wanted)] == wanted:
                around = words[max(start - 1, 0) : start] + words[start + len(wanted) :][:1]
                return not _OTHER_BASES.intersection(around)
    return False
