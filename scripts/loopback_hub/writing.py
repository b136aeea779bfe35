"""The routes of dataset repositories: made, written to by LFS, committed, tagged, listed, read."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from scripts.loopback_hub import rows
from scripts.loopback_hub.answers import (
    Answer,
    Request,
    canned,
    content_answer,
    entry_not_found,
    error,
    json_answer,
    redirect,
    replaced_etag,
    repository_not_found,
    revision_not_found,
    stored_content,
)
from scripts.loopback_hub.api import split_revision
from scripts.loopback_hub.datasets import MAIN, TAGS, Conflict, Dataset, Datasets, is_ignored, upload_mode
from scripts.loopback_hub.store import Revision

_VERBS = "preupload|commit|tag|revision|tree|refs"
_API = re.compile(rf"/api/datasets/(?P<id>[^/]+/[^/]+?)(?:/(?P<verb>{_VERBS})(?P<rest>/.*)?)?/?")
_BATCH = re.compile(r"/datasets/(?P<id>[^/]+/[^/]+)\.git/info/lfs/objects/(?P<verb>batch|verify)")
_RESOLVE = re.compile(r"/datasets/(?P<id>[^/]+/[^/]+)/resolve/(?P<rest>.+)", re.DOTALL)
_OBJECT = re.compile(r"/dataset-objects/(?P<sha256>[0-9a-f]{64})")
_WRITES = frozenset({"preupload", "commit", "tag", "batch", "verify"})


@dataclass
class Writing:
    """``writers``: which owners a token may write as."""

    datasets: Datasets
    writers: Mapping[str, Collection[str]]
    endpoint: str
    cdn_endpoint: str
    url_lifetime: float = 3600.0
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def takes(self, path: str) -> bool:
        """Whether a path is one of these routes."""
        return path.startswith(("/api/datasets", "/datasets/", "/api/repos/create", "/api/validate-yaml"))

    def answer(self, request: Request) -> Answer:
        """The answer of the Hub's own port."""
        if request.path == "/api/repos/create":
            return self._create(request)
        if request.path == "/api/validate-yaml":
            return json_answer({"errors": [], "warnings": []})
        if request.path.rstrip("/") == "/api/datasets":
            return self._listing(request)
        for pattern, route in ((_API, self._api), (_BATCH, self._lfs), (_RESOLVE, self._resolve)):
            match = pattern.fullmatch(request.path)
            if match is not None:
                return self._of_one(request, match, route)
        return error(404, "Sorry, we can't find the page you are looking for.")

    def _of_one(
        self, request: Request, match: re.Match[str], route: Callable[[Request, Dataset, re.Match[str]], Answer]
    ) -> Answer:
        repo_id = unquote(match["id"])
        found = self.datasets.find(repo_id)
        if found is None or (found.private and not self._may_write(request, repo_id)):
            return repository_not_found(request)
        is_writing = match.groupdict().get("verb") in _WRITES
        if is_writing and not self._may_write(request, repo_id):
            return self._refused(request, repo_id)
        answer = route(request, found, match)
        answer.repo_id = repo_id
        return answer

    def _may_write(self, request: Request, repo_id: str) -> bool:
        return request.token is not None and repo_id.split("/")[0] in self.writers.get(request.token, ())

    def _refused(self, request: Request, repo_id: str) -> Answer:
        if request.token is None:
            return error(401, "Invalid username or password.")
        return error(403, f"You don't have the rights to write to {repo_id}")

    def _create(self, request: Request) -> Answer:
        result = json.loads(request.body)
        repo_id = f"{result.get('organization')}/{result['name']}"
        if not self._may_write(request, repo_id):
            if request.token is None:
                return error(401, "Invalid username or password.")
            owner = result.get("organization")
            return error(403, f'You don\'t have the rights to create a dataset under the namespace "{owner}"')
        url = f"{self.endpoint}/datasets/{repo_id}"
        try:
            self.datasets.create(repo_id, private=result.get("visibility") == "private")
        except Conflict as conflict:
            answer = json_answer({"error": str(conflict), "url": url}, 409)
            return answer
        except ValueError as wrong:
            return error(400, str(wrong))
        return json_answer({"url": url, "id": repo_id})

    def _api(self, request: Request, repository: Dataset, match: re.Match[str]) -> Answer:
        verb, rest = match["verb"], (match["rest"] or "").removeprefix("/")
        if verb == "refs":
            return json_answer(_refs(repository))
        name, path = split_revision(rest) if rest else (MAIN, "")
        revision = self.datasets.revision(repository, name)
        if revision is None:
            return revision_not_found(name)
        if verb in (None, "revision"):
            return json_answer(self._row(repository, revision, siblings=True))
        if verb == "tree":
            return self._tree(request, revision, path)
        if verb == "preupload":
            return self._preupload(request, revision)
        if verb == "commit":
            return self._commit(request, repository)
        return self._tag(request, repository, revision)

    def _row(self, repository: Dataset, revision: Revision, *, siblings: bool = False) -> dict[str, Any]:
        card = self.datasets.card(repository, revision.sha)
        tags = [str(one) for one in card.get("tags", [])]
        tags += [f"size_categories:{one}" for one in card.get("size_categories", [])]
        row = {
            "_id": hashlib.sha1(repository.id.encode()).hexdigest()[:24],
            "id": repository.id,
            "author": repository.id.split("/")[0],
            "sha": revision.sha,
            "createdAt": repository.created,
            "lastModified": repository.modified,
            "private": repository.private,
            "gated": False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": tags,
            "cardData": card,
        }
        if siblings:
            row["siblings"] = [{"rfilename": path} for path in revision.files]
        return row

    def _listing(self, request: Request) -> Answer:
        found = []
        for repository in self.datasets.all():
            revision = self.datasets.revision(repository, MAIN)
            if revision is None or (repository.private and not self._may_write(request, repository.id)):
                continue
            row = self._row(repository, revision)
            wanted = [one for value in request.all("filter") for one in value.split(",")]
            if all(one in row["tags"] for one in wanted) and request.one("author") in (None, row["author"]):
                found.append(row)
        found.sort(key=lambda row: row["lastModified"], reverse=True)
        limit = request.one("limit")
        return json_answer(found[: int(limit)] if limit else found)

    def _tree(self, request: Request, revision: Revision, folder: str) -> Answer:
        paths = rows.paths_below(revision, folder, is_recursive=request.is_set("recursive"))
        if folder.strip("/") and not paths:
            return entry_not_found(revision.sha)
        result = [rows.tree_entry(revision, path) for path in paths]
        return json_answer(result, headers={"X-Repo-Commit": revision.sha})

    def _preupload(self, request: Request, revision: Revision) -> Answer:
        result = []
        for one in json.loads(request.body)["files"]:
            path, sample = one["path"], base64.b64decode(one["sample"])
            mode = upload_mode(path, sample, one["size"])
            answer = {"path": path, "uploadMode": mode, "shouldIgnore": is_ignored(path)}
            known = revision.files.get(path)
            if known is not None:
                answer["oid"] = known.sha256 or known.oid
            result.append(answer)
        return json_answer({"files": result, "commitOid": revision.sha})

    def _lfs(self, request: Request, repository: Dataset, match: re.Match[str]) -> Answer:
        result = json.loads(request.body)
        if match["verb"] == "verify":
            is_there = self.datasets.holds(result["oid"], result["size"])
            return json_answer({}) if is_there else error(404, "The object is not there, or of another size")
        verify = f"{self.endpoint}/datasets/{repository.id}.git/info/lfs/objects/verify"
        objects = []
        for one in result["objects"]:
            answer = {"oid": one["oid"], "size": one["size"]}
            if not self.datasets.holds(one["oid"], one["size"]):
                upload = {"href": self._signed(f"/dataset-objects/{one['oid']}", "PUT"), "header": {}}
                answer["actions"] = {"upload": upload, "verify": {"href": verify, "header": {}}}
            objects.append(answer)
        return json_answer({"transfer": "basic", "objects": objects})

    def _commit(self, request: Request, repository: Dataset) -> Answer:
        lines = [json.loads(line) for line in request.body.splitlines() if line.strip()]
        header: dict[str, Any] = {}
        added: dict[str, dict[str, Any]] = {}
        deleted: list[str] = []
        for line in lines:
            key, value = line["key"], line["value"]
            if key == "header":
                header = value
            elif key == "file":
                added[value["path"]] = self.datasets.describe_regular(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                if not self.datasets.holds(value["oid"], value["size"]):
                    return error(400, f"The LFS object of {value['path']} was not uploaded")
                added[value["path"]] = self.datasets.describe_lfs(value["oid"], value["size"])
            else:
                deleted.append(value["path"].rstrip("/") + ("/" if key == "deletedFolder" else ""))
        try:
            sha = self.datasets.commit(repository.id, header.get("parentCommit"), header["summary"], added, deleted)
        except Conflict as conflict:
            return error(412, str(conflict))
        except KeyError as missing:
            return error(404, f"A file with this name doesn't exist: {missing}", "EntryNotFound")
        url = f"{self.endpoint}/datasets/{repository.id}/commit/{sha}"
        return json_answer({"commitOid": sha, "commitUrl": url, "pullRequestUrl": None, "success": True})

    def _tag(self, request: Request, repository: Dataset, revision: Revision) -> Answer:
        try:
            self.datasets.tag(repository.id, json.loads(request.body)["tag"], revision.sha)
        except Conflict as conflict:
            return error(409, str(conflict))
        return json_answer({})

    def _resolve(self, request: Request, repository: Dataset, match: re.Match[str]) -> Answer:
        name, path = split_revision(match["rest"])
        revision = self.datasets.revision(repository, name)
        if revision is None:
            return revision_not_found(name)
        file = revision.files.get(path)
        if file is None:
            return entry_not_found(revision.sha)
        if file.is_lfs:
            answer = redirect(request, 302, self._signed(f"/dataset-objects/{file.sha256}", "GET"))
            size = len(request.effects.replace_content) if request.effects.replace_content is not None else file.size
            answer.headers["X-Linked-Size"] = str(size)
            answer.headers["X-Linked-Etag"] = replaced_etag(request.effects, f'"{file.sha256}"')
        else:
            content = stored_content(file.location, file.size, request.effects)
            answer = content_answer(request, content, replaced_etag(request.effects, f'"{file.oid}"'), path)
        answer.headers["X-Repo-Commit"] = revision.sha
        answer.filename = path
        return answer

    def deliver(self, request: Request) -> Answer | None:
        """The CDN's part: bytes out of, and into, the objects; None for other paths."""
        match = _OBJECT.fullmatch(request.path)
        if match is None:
            return None
        if "authorization" in request.headers:
            return error(400, "A signed URL and an Authorization header are one credential too many.")
        kind = "PUT" if request.method == "PUT" else "GET"
        expires = request.one("Expires") or "0"
        if request.one("Signature") != self._signature(request.path, kind, expires) or float(expires) < time.time():
            return canned(403, "cdn", None)
        return self._put(request, match["sha256"]) if kind == "PUT" else self._get(request, match["sha256"])

    def _put(self, request: Request, sha256: str) -> Answer:
        if request.spooled is None:
            self.datasets.keep(request.body)
            arrived = hashlib.sha256(request.body).hexdigest()
        else:
            with request.spooled.open("rb") as file:
                arrived = hashlib.file_digest(file, "sha256").hexdigest()
            request.spooled.replace(self.datasets.objects / arrived)
        return Answer(200, {"ETag": f'"{arrived}"'}) if arrived == sha256 else canned(400, "cdn", None)

    def _get(self, request: Request, sha256: str) -> Answer:
        path = self.datasets.objects / sha256
        if not path.is_file():
            return canned(404, "cdn", None)
        content = stored_content(path, path.stat().st_size, request.effects)
        answer = content_answer(request, content, replaced_etag(request.effects, f'"{sha256[:32]}"'), sha256)
        answer.filename = sha256
        return answer

    def _signed(self, path: str, kind: str) -> str:
        expires = f"{time.time() + self.url_lifetime:.3f}"
        signature = self._signature(path, kind, expires)
        return f"{self.cdn_endpoint}{path}?Expires={expires}&Signature={quote(signature)}"

    def _signature(self, path: str, kind: str, expires: str) -> str:
        return hmac.new(self._key, f"{kind} {path} {expires}".encode(), hashlib.sha256).hexdigest()


def _refs(repository: Dataset) -> dict[str, Any]:
    result: dict[str, Any] = {"branches": [], "converts": [], "tags": []}
    for name, sha in repository.refs.items():
        kind, short = ("tags", name.removeprefix(TAGS)) if name.startswith(TAGS) else ("branches", name)
        reference = name if kind == "tags" else f"refs/heads/{name}"
        result[kind].append({"name": short, "ref": reference, "targetCommit": sha})
    return result
