"""The routes below ``/api/models``: the listing, and the info of one model; and who may see what."""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

from scripts.loopback_hub import rows
from scripts.loopback_hub.answers import (
    Answer,
    Request,
    entry_not_found,
    error,
    json_answer,
    redirect,
    repository_not_found,
    revision_not_found,
)
from scripts.loopback_hub.store import MAIN, JoinedStore, Repository, Revision

_VERBS = "revision|tree|discussions|commits"
_MODEL = re.compile(
    rf"/api/models/(?P<id>[^/]+(?:/(?!(?:{_VERBS})(?:/|$))[^/]+)?)(?:/(?P<verb>{_VERBS})(?P<rest>/.*)?)?/?"
)
_DISCUSSIONS_PER_PAGE = 25

_SORTS: Mapping[str, Callable[[Repository], Any]] = {
    "downloads": lambda repository: repository.get("downloads", 0),
    "likes": lambda repository: repository.get("likes", 0),
    "trendingScore": lambda repository: repository.get("trending_score", 0),
    "createdAt": rows.created_at,
    "lastModified": rows.last_modified,
}
_SORT_SPELLINGS = {
    "created_at": "createdAt",
    "last_modified": "lastModified",
    "trending_score": "trendingScore",
    "modified": "lastModified",
    "created": "createdAt",
    "trending": "trendingScore",
}


@dataclass
class Api:
    """Answers for ``/api``. ``page_size`` in rows; ``endpoint`` is what links begin with."""

    store: JoinedStore
    access: Access
    endpoint: str
    page_size: int

    def answer(self, request: Request) -> Answer:
        """The answer to any request below ``/api``."""
        if request.path.rstrip("/") == "/api/models":
            return self._listing(request)
        if request.path == "/api/whoami-v2":
            return self.access.who(request)
        match = _MODEL.fullmatch(request.path)
        if match is None:
            return repository_not_found(request)
        found = self.access.find(request, match.span("id"), files=False)
        if isinstance(found, Answer):
            return found
        answer = self._of_model(request, found, match["verb"], (match["rest"] or "").removeprefix("/"))
        answer.repo_id = found.id
        return answer

    def _of_model(self, request: Request, repository: Repository, verb: str | None, rest: str) -> Answer:
        if verb == "discussions":
            return self._discussions(request, repository)
        name, path = split_revision(rest) if rest else (MAIN, "")
        revision = repository.revision(name)
        if revision is None:
            return revision_not_found(name)
        if verb == "tree":
            return self._tree(request, revision, path)
        if verb == "commits":
            return json_answer(rows.commits(repository, revision))
        if path:
            return error(404, "Sorry, we can't find the page you are looking for.")
        return self._info(request, repository, revision)

    def _info(self, request: Request, repository: Repository, revision: Revision) -> Answer:
        expand = request.all("expand")
        if refused := _refuse_unknown(expand, [*rows.EXPANDABLE, *rows.INFO_ONLY]):
            return refused
        result = rows.row(repository, expand or rows.INFO, revision)
        if request.is_set("blobs"):
            result["siblings"] = rows.siblings(revision, blobs=True)
        return json_answer(result)

    def _listing(self, request: Request) -> Answer:
        expand = request.all("expand")
        if refused := _refuse_unknown(expand, rows.EXPANDABLE):
            return refused
        asked = request.one("sort") or "trendingScore"
        sort = _SORTS.get(_SORT_SPELLINGS.get(asked, asked))
        if sort is None:
            return error(400, f"Invalid sort parameter: {asked}")
        size = _size(request.one("limit"), self.page_size)
        if size is None:
            return error(400, "limit must be a positive number")
        if request.one("direction") is not None:  # clients sent it once; the order is always descending
            return error(400, "Unrecognized parameter: direction")
        listed = [each for each in self.store.repositories() if self._is_listed(request, each)]
        ordered = sorted(((_rank(sort(each)), each) for each in listed), key=lambda pair: pair[1].id)
        ordered.sort(key=lambda pair: pair[0], reverse=True)  # stable: ties stay in the order of ids
        first = 0
        cursor = request.one("cursor")
        if cursor is not None:
            after = _decode_cursor(cursor)
            if after is None:
                return error(400, "Invalid cursor")
            first = bisect_left(ordered, True, key=lambda pair: _is_past(pair[0], pair[1].id, after))
        page = ordered[first : first + size]
        always = rows.LISTED_FULL if request.is_set("full") else rows.LISTED
        names = expand or [*always, *(name for name in ("config", "cardData") if request.is_set(name))]
        answer = json_answer([rows.row(repository, names) for _, repository in page])
        if len(ordered) > first + size:
            rank, last = page[-1]
            answer.headers["Link"] = self._link(request, [*rank, last.id])
        return answer

    def _is_listed(self, request: Request, repository: Repository) -> bool:
        if repository.get("private", False) and not self.access.is_granted(request, repository):
            return False
        pipeline, library = repository.get("pipeline_tag"), repository.get("library_name")
        known = {str(tag) for tag in rows.tags(repository)} | {str(pipeline), str(library)} - {"None"}
        wanted = (part for value in request.all("filter") for part in ([value] if value in known else value.split(",")))
        if not all(part in known for part in wanted):
            return False
        author, search, gated = request.one("author"), request.one("search"), request.one("gated")
        return (
            (not author or repository.id.partition("/")[0] == author)
            and (not search or search.lower() in repository.id.lower())
            and (not gated or bool(repository.get("gated", False)) == request.is_set("gated"))
            and request.one("pipeline_tag") in (None, pipeline)
        )

    def _link(self, request: Request, place: Sequence[Any]) -> str:
        cursor = base64.urlsafe_b64encode(json.dumps(place).encode()).decode()
        pairs = [pair for pair in parse_qsl(request.query, keep_blank_values=True) if pair[0] != "cursor"]
        query = urlencode([*pairs, ("cursor", cursor)])
        return f'<{self.endpoint}{request.path}?{query}>; rel="next"'

    def _tree(self, request: Request, revision: Revision, folder: str) -> Answer:
        folder = folder.strip("/")
        if folder and folder not in revision.folders:
            return entry_not_found(revision.sha)
        paths = rows.paths_below(revision, folder, is_recursive=request.is_set("recursive"))
        return json_answer([rows.tree_entry(revision, path) for path in paths], headers={"X-Repo-Commit": revision.sha})

    def _discussions(self, request: Request, repository: Repository) -> Answer:
        kind, status, author = request.one("type"), request.one("status"), request.one("author")
        page = request.one("p") or "0"
        result = [
            each
            for each in rows.pull_requests(repository)
            if kind in (None, "all", "pull_request")
            and (status in (None, "all") or (each["status"] in ("open", "draft")) == (status == "open"))
            and author in (None, each["author"]["name"])
        ]
        start = _DISCUSSIONS_PER_PAGE * int(page[:9]) if page.isascii() and page.isdigit() else 0
        shown = result[start : start + _DISCUSSIONS_PER_PAGE]
        closed = sum(each["status"] not in ("open", "draft") for each in result)
        return json_answer({"discussions": shown, "count": len(result), "start": start, "numClosedDiscussions": closed})


def split_revision(rest: str) -> tuple[str, str]:
    """``<revision>[/<path>]``, apart and decoded; ``refs/pr/1`` may have its slashes encoded or not."""
    match = re.fullmatch(r"(refs/(?:pr|convert|heads|tags)/[^/]+|[^/]+)(?:/(.*))?", rest, re.DOTALL)
    return (unquote(match[1]), unquote(match[2] or "")) if match else (unquote(rest), "")


def _size(limit: str | None, most: int) -> int | None:
    """The number of rows of a page: ``most``, or fewer if the request says so; None if the request has no valid number."""
    if limit is None:
        return most
    return min(most, int(limit[:9])) or None if limit.isascii() and limit.isdigit() else None


def _refuse_unknown(expand: list[str], known: Collection[str]) -> Answer | None:
    for name in expand:
        if name not in known:
            return error(400, f"Invalid expand parameter {name!r}: expected one of {'|'.join(known)}")
    return None


# A place in the order of a listing: (kind, number, text), so that any two values can be compared.
Rank = tuple[int, float, str]


def _rank(value: Any) -> Rank:
    """Numbers by size, texts by spelling; what should be neither sorts lowest."""
    if isinstance(value, int | float):
        return (2, value, "")
    return (1, 0, value) if isinstance(value, str) else (0, 0, "")


def _is_past(rank: Rank, repo_id: str, after: tuple[Rank, str]) -> bool:
    """Whether a row comes after the one that a cursor names, wherever that one is by now."""
    if rank != after[0]:
        return rank < after[0]
    return repo_id > after[1]


def _decode_cursor(cursor: str) -> tuple[Rank, str] | None:
    try:
        kind, number, text, last = json.loads(base64.urlsafe_b64decode(cursor))
        return (int(kind), number + 0, str(text)), str(last)
    except (ValueError, TypeError, RecursionError):
        return None


# ---- missing, renamed, private, disabled and gated repositories


class Access:
    """``tokens`` maps a bearer token to the ids of the gated and private repositories that it opens.

    A token that is not among them is an account like any other that has been granted nothing. Those in ``narrow`` are
    fine-grained tokens without the right to read public repositories: they are refused where a request without a token is not.
    """

    def __init__(self, store: JoinedStore, tokens: Mapping[str, Collection[str]], narrow: Collection[str] = ()) -> None:
        self._store = store
        self._tokens = tokens
        self._narrow = frozenset(narrow)

    def is_granted(self, request: Request, repository: Repository) -> bool:
        """Whether the request's token opens this repository."""
        return request.token is not None and repository.id in self._tokens.get(request.token, ())

    def who(self, request: Request) -> Answer:
        """``/api/whoami-v2``: whose token came with the request."""
        if request.token in self._narrow or request.token in self._tokens:
            role = "fineGrained" if request.token in self._narrow else "read"
            return json_answer({"type": "user", "name": "somebody", "auth": {"accessToken": {"role": role}}})
        return error(401, "Invalid username or password.")

    def find(self, request: Request, id_span: tuple[int, int], *, files: bool) -> Repository | Answer:
        """The repository whose id is at ``id_span`` of the request's path, or the error answer.

        ``files`` asks for its files, which a gated repository keeps back, rather than for what is said of it.
        """
        if request.token in self._narrow:
            return error(403, "Forbidden: pass a token with the right permissions to read this repository")
        start, end = id_span
        repo_id = unquote(request.path[start:end])
        repository = self._store.repository(repo_id)
        renamed = self._store.renamed(repo_id) if repository is None else None
        known = repository or renamed
        if known is None or (known.get("private", False) and not self.is_granted(request, known)):
            return repository_not_found(request)
        if renamed is not None:
            location = request.path[:start] + renamed.id + request.path[end:]
            answer = redirect(request, 307, location + (f"?{request.query}" if request.query else ""))
            answer.repo_id = renamed.id
            return answer
        if known.get("disabled", False):
            return error(403, "Access to this resource is disabled.")
        if files and known.get("gated", False) and not self.is_granted(request, known):
            return _gated(request, known)
        return known


def _gated(request: Request, repository: Repository) -> Answer:
    result = f"Access to model {repository.id} is restricted"
    if request.token is None:
        hint = "You must have access to it and be authenticated to access it. Please log in."
        answer = error(401, f"{result}. {hint}", "GatedRepo")
    else:
        answer = error(403, f"{result} and you are not in the authorized list.", "GatedRepo")
    answer.repo_id = repository.id
    return answer
