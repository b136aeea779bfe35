"""The files themselves: ``/resolve`` on the Hub's port, signed URLs on the CDN's."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, unquote, urlencode

from scripts.loopback_hub.answers import (
    Answer,
    Request,
    canned,
    content_answer,
    entry_not_found,
    error,
    redirect,
    replaced_etag,
    revision_not_found,
    stored_content,
    text_answer,
)
from scripts.loopback_hub.api import Access, split_revision
from scripts.loopback_hub.faults import Effects
from scripts.loopback_hub.store import JoinedStore, Repository, Revision, StoredFile

_RESOLVE = re.compile(r"/(?P<id>[^/]+(?:/[^/]+)?)/resolve/(?P<rest>.+)", re.DOTALL)
_CACHED = re.compile(r"/api/resolve-cache/models/(?P<id>[^/]+/[^/]+)/(?P<sha>[0-9a-f]{40})/(?P<path>.+)", re.DOTALL)
_SIGNED = re.compile(r"/repos/(?P<id>[^/]+/[^/]+)/(?P<sha256>[0-9a-f]{64})/(?P<file>.+)", re.DOTALL)
_AMZ_DATE = "%Y%m%dT%H%M%SZ"


@dataclass
class Files:
    """Answers with files. ``url_lifetime``: seconds for which a signed URL opens; ``signs_like``: cloudfront or s3.

    ``expired``: status and body of the answer to a signed URL that has run out.

    A GET with a Range on ``/resolve`` is answered with an address that opens for this range alone, as on the Hub since
    August 2026 (xet-core issues 897 and 956); one of a HEAD opens for any.
    """

    store: JoinedStore
    access: Access
    cdn_endpoint: str
    url_lifetime: float
    signs_like: str = "cloudfront"
    expired: tuple[int, str] = (403, "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def resolve(self, request: Request) -> Answer:
        """``/<id>/resolve/<revision>/<path>``: a redirect, to the CDN for a file in LFS, else to ``deliver_small``."""
        match = _RESOLVE.fullmatch(request.path)
        if match is None:
            return error(404, "Sorry, we can't find the page you are looking for.")
        found = self.access.find(request, match.span("id"), files=True)
        if isinstance(found, Answer):
            return found
        name, path = split_revision(match["rest"])
        revision = found.revision(name)
        if revision is None:
            answer = revision_not_found(name)
        else:
            answer = self._resolve_file(request, found, revision, path)
        answer.repo_id, answer.filename = found.id, path
        return answer

    def _resolve_file(self, request: Request, repository: Repository, revision: Revision, path: str) -> Answer:
        file = revision.files.get(path)
        if file is None:
            return entry_not_found(revision.sha)
        content = stored_content(file.location, file.size, request.effects)
        if file.is_lfs:
            span = request.headers.get("range", "") if request.method == "GET" else ""
            answer = redirect(request, 302, self._signed_url(repository.id, file, request.effects, span))
            answer.headers["X-Linked-Size"] = str(content.size)
            answer.headers["X-Linked-Etag"] = replaced_etag(request.effects, f'"{file.sha256}"')
            answer.headers["Accept-Ranges"] = "bytes"
        else:
            place = f"/api/resolve-cache/models/{repository.id}/{revision.sha}/{quote(path)}"
            etag = replaced_etag(request.effects, f'"{file.oid}"')
            answer = redirect(request, 307, f"{place}?{urlencode({'etag': etag})}")
            answer.headers["X-Linked-Size"] = str(content.size)
            answer.headers["X-Linked-Etag"] = etag
        answer.headers["X-Repo-Commit"] = revision.sha
        return answer

    def deliver_small(self, request: Request) -> Answer:
        """``/api/resolve-cache/models/<id>/<commit>/<path>``: a small file itself."""
        match = _CACHED.fullmatch(request.path)
        if match is None:
            return error(404, "Sorry, we can't find the page you are looking for.")
        found = self.access.find(request, match.span("id"), files=True)
        if isinstance(found, Answer):
            return found
        revision, path = found.revision(match["sha"]), unquote(match["path"])
        file = revision.files.get(path) if revision else None
        if revision is None or file is None or file.is_lfs:
            return entry_not_found(match["sha"])
        content = stored_content(file.location, file.size, request.effects)
        answer = content_answer(request, content, replaced_etag(request.effects, f'"{file.oid}"'), path)
        answer.headers |= {"Content-Type": "text/plain; charset=utf-8", "X-Repo-Commit": revision.sha}
        answer.repo_id, answer.filename = found.id, path
        return answer

    def deliver(self, request: Request) -> Answer:
        """The CDN: bytes for a signed URL that has not expired; requests with a token are refused."""
        match = _SIGNED.fullmatch(request.path)
        if match is None:
            return canned(404, "cdn", None)
        repo_id, path = unquote(match["id"]), unquote(match["file"])
        answer = self._deliver(request, repo_id, match["sha256"], path)
        answer.repo_id, answer.filename = repo_id, path
        return answer

    def _deliver(self, request: Request, repo_id: str, sha256: str, path: str) -> Answer:
        if "authorization" in request.headers:
            return text_answer("A signed URL and an Authorization header are one credential too many.", 400)
        span, signature = request.one("range") or "", request.one("Signature") or request.one("X-Amz-Signature") or ""
        expires = request.one("Expires") or ""
        if signed := request.one("X-Amz-Date"):
            at = datetime.strptime(signed, _AMZ_DATE).replace(tzinfo=UTC).timestamp()
            expires = f"{at + float(request.one('X-Amz-Expires') or 0):.3f}"
        if not hmac.compare_digest(signature.encode(), self._sign(request.path, expires, span).encode()):
            return canned(403, "cdn", None)
        if float(expires) <= time.time():
            return text_answer(self.expired[1], self.expired[0])
        if span and span != request.headers.get("range"):
            return text_answer("Auth failed: invalid range", 403)
        file = self._stored(repo_id, sha256, path)
        if file is None:
            return canned(404, "cdn", None)
        # As on the real CDN, the ETag is not the sha256 that /resolve names.
        etag = replaced_etag(request.effects, f'"{hashlib.md5(sha256.encode()).hexdigest()}"')
        return content_answer(request, stored_content(file.location, file.size, request.effects), etag, path)

    def _stored(self, repo_id: str, sha256: str, path: str) -> StoredFile | None:
        """The file with that content: a signed URL names bytes, and never opens others of the same name."""
        repository = self.store.repository(repo_id)
        if repository is None:
            return None
        for name in ("main", *repository.described):
            revision = repository.revision(name)
            file = revision.files.get(path) if revision else None
            if file is not None and file.sha256 == sha256:
                return file
        return None

    def _signed_url(self, repo_id: str, file: StoredFile, effects: Effects, span: str = "") -> str:
        path = f"/repos/{repo_id}/{file.sha256}/{quote(file.path)}"
        lifetime = -60.0 if effects.expired_url else self.url_lifetime
        pairs = {"range": span} if span else {}
        if self.signs_like == "s3":  # whole seconds, from when it was signed
            now = math.floor(time.time()) + min(0.0, lifetime)
            expires = f"{now + max(0.0, lifetime):.3f}"
            pairs |= {
                "X-Amz-Date": datetime.fromtimestamp(now, UTC).strftime(_AMZ_DATE),
                "X-Amz-Expires": f"{max(0.0, lifetime):g}",
                "X-Amz-Signature": self._sign(path, expires, span),
            }
        else:
            expires = f"{time.time() + lifetime:.3f}"
            pairs |= {"Expires": expires, "Signature": self._sign(path, expires, span), "Key-Pair-Id": "loopback"}
        return f"{self.cdn_endpoint}{path}?{urlencode(pairs)}"

    def _sign(self, path: str, expires: str, span: str) -> str:
        # Of the decoded path: clients differ in what they leave percent-encoded.
        return hmac.new(self._key, f"{unquote(path)} {expires} {span}".encode(), hashlib.sha256).hexdigest()
