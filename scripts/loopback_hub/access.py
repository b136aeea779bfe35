"""Who may see what: missing, renamed, private, disabled and gated repositories."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import unquote

from scripts.loopback_hub.answers import Answer, Request, error, json_answer, redirect, repository_not_found
from scripts.loopback_hub.store import JoinedStore, Repository


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
