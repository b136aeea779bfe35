"""ModelScope: models by ``modelscope:OWNER/NAME``, and the cache of its client on this machine.

ModelScope has no commits that name a whole repository, so a version is a hash of its file list: paths, sizes and
hashes, or the dates of files without one. Its search goes by names: what descends from a base is looked for among the
models that are named like it, and counts if ModelScope, its card or a configuration names the base.

MODELSCOPE_ENDPOINT (or MODELSCOPE_DOMAIN) names another site, such as https://www.modelscope.ai. MODELSCOPE_API_TOKEN
is for private models. Neither is known to the Hub, and nothing that is the Hub's is sent there.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from indexer.errors import AtlasError, Failed, ModelError, Skipped, UnknownRevision
from indexer.hub_ids import is_hub_id
from indexer.names import RELATIONS
from indexer.sources.cards.readme import MAX_README
from indexer.sources.claims import YES, Claim, classify_path, relation_to
from indexer.sources.file_systems import FileSystem, LocalFiles
from indexer.sources.folder import facts_in_files, json_object
from indexer.sources.mirrors import known_mirrors
from indexer.sources.questions import BadRow, CheckedRow, ClaimedRow, CrawlProgress, CrawlRequest, Page, Question
from indexer.sources.registry import ModelRef
from indexer.sources.source import LONGEST_REVISION, Row, Source, Version
from indexer.untrusted import SHA256, Reader, is_count, printable, shown, tidy

if TYPE_CHECKING:
    from indexer.network.byterange import ByteSource
    from indexer.network.retries import RetryPolicy
    from indexer.network.server import Server

CACHE = "modelscope-cache"
_SCHEME = "modelscope:"
_SITE = "https://modelscope.cn"
_PAGE = re.compile(r"(?:https?://)?(?:www\.)?modelscope\.(?:cn|ai)/models/([\w.\-]+/[\w.\-]+)(?:/.*)?", re.ASCII)
_MASTER = "master"  # the branch that every model has
_LARGEST_CONFIG = 4 << 20
_MOST_FILES = 100_000
_ON_A_PAGE = 100
_MOST_PAGES = 50
_THREADS = 8
_PUBLIC = 5  # of the numbers for who may see a model


@dataclass(frozen=True)
class _File:
    """A file as the list of a repository's files has it; ``mark`` changes with its content."""

    size: int
    sha256: str | None
    mark: str


class ModelScope(Source):
    """Models on ModelScope, or on the site that MODELSCOPE_ENDPOINT names."""

    title = "ModelScope"
    examples = ("modelscope:OWNER/NAME",)
    access = "; for a private model, set MODELSCOPE_API_TOKEN"
    lists = True
    is_remote = is_public = True

    # ---- ids

    def valid_id(self, text: str) -> bool:
        """``modelscope:OWNER/NAME``."""
        name = text.removeprefix(_SCHEME)
        return text.startswith(_SCHEME) and "/" in name and is_hub_id(name)

    @property
    def kind(self) -> str:
        """An id with the scheme."""
        return "a model of ModelScope"

    def parse(self, text: str) -> ModelRef | None:
        """An id, with or without a revision, or the address of a page."""
        page = _PAGE.fullmatch(text)
        identifier, _, revision = (f"{_SCHEME}{page[1]}" if page else text).partition("@")
        if not self.valid_id(identifier) or len(revision) > LONGEST_REVISION:
            return None
        return ModelRef(identifier, revision or None)

    def page(self, identifier: str, endpoint: str | None = None) -> str | None:
        """Its page on ModelScope; ``endpoint`` is the Hub's."""
        return f"{_SITE}/models/{identifier.removeprefix(_SCHEME)}"

    def stopped(self, error: ModelError, what: str) -> AtlasError:
        """Says which variables may be the reason."""
        hint = "Run it again later: what is already here is kept."
        if error.reason == "refused":
            hint = "Correct or unset MODELSCOPE_API_TOKEN."
        elif error.reason == "network":
            hint = "Check the network and MODELSCOPE_ENDPOINT, then run it again; what is already here is kept."
        return AtlasError(f"Cannot get {what} from {self.title}: {error.detail.rstrip('.')}.", hint)

    # ---- models

    def row(self, reference: ModelRef, *, whole: bool = True) -> Row:
        """Its row, by the facts of its page, the list of its files and its card."""
        files = _files(reference)
        if not whole:
            return {"id": reference.id, "sha": _version(files), "siblings": [{"rfilename": name} for name in files]}
        return _row_of(reference, _facts(reference.id), files)

    def open(
        self,
        reference: ModelRef,
        *,
        commit: str | None = None,
        filenames: Sequence[str] | None = None,
        retries: RetryPolicy | None = None,
    ) -> Version:
        """Its files, if they are those of the version."""
        files = _files(reference)
        version = _version(files)
        if commit is not None and commit != version:
            raise Failed("not_found", f"the files of {shown(reference.id)} on ModelScope have changed")
        return Version(
            version,
            files,
            lambda path: _opened(reference, path, files, retries),
            read_small=lambda path, limit: _read_whole(reference, path, files, limit),
            subfolder=reference.subfolder,
        )

    # ---- what descends from a base

    def mirrors(self, ids: Sequence[str]) -> tuple[str, ...]:  # type: ignore[override]
        """The ids that the Hub's mirrors have here."""
        names = [name.removeprefix(_SCHEME) for name in ids]
        return tuple(f"{_SCHEME}{name}" for name in known_mirrors(names))

    def list(self, request: CrawlRequest, progress: CrawlProgress) -> Iterator[Page]:
        """Models named like the base that ModelScope, their card or a configuration calls made of it."""
        names = {name.removeprefix(_SCHEME): None for name in request.ids}
        bases = tuple(dict.fromkeys((*names, *known_mirrors(names))))
        seen = {base.lower() for base in bases}
        for name in dict.fromkeys(base.rpartition("/")[2] for base in names):
            question = Question("names", name)
            if question.key in progress.finished:
                continue
            number = 1
            while True:
                candidates, total = _search(name, number)
                progress.calls += 1
                new = [candidate for candidate in candidates if candidate[0].lower() not in seen]
                seen |= {candidate[0].lower() for candidate in new}
                with ThreadPoolExecutor(_THREADS) as threads:
                    rows = list(threads.map(partial(_checked, request=request, bases=bases), new))
                is_cut = number >= _MOST_PAGES and number * _ON_A_PAGE < total
                is_last = not candidates or number * _ON_A_PAGE >= total or number >= _MOST_PAGES
                claimed = tuple(row for row in rows if row is not None)
                yield Page(question, claimed, None if is_last else str(number + 1), is_last, is_cut)
                if is_last:
                    break
                number += 1
            progress.finished.add(question.key)


def _checked(
    candidate: tuple[str, Mapping[str, Any]], request: CrawlRequest, bases: Sequence[str]
) -> CheckedRow | None:
    """The row of a model that was found, if it was made of the base.

    Raises ModelError if ModelScope cannot be asked now. A model that cannot be read is a BadRow.
    """
    name, shown_facts = candidate
    reference = ModelRef(f"{_SCHEME}{name}")
    stated = _bases_in(shown_facts)
    if stated and not any(classify_path(base, name, bases) == YES for base in stated):
        return None
    try:
        facts, files = {**shown_facts, **_facts(reference.id)}, _files(reference)
        row = _row_of(reference, facts, files)
        relation, claimed_by = relation_to(row, bases, RELATIONS), "tag" if _bases_in(facts) else "card"
        if relation is None and _adapter_base(reference, name, files, bases):
            relation, claimed_by = "adapter", "adapter_config"
    except ModelError as error:
        if error.reason in ("network", "timeout", "rate_limited"):
            raise
        return BadRow.of({"id": reference.id}, f"it cannot be read: {error.detail}")
    is_wanted = relation is not None and relation in request.relations
    return ClaimedRow(row, Claim(relation, claimed_by, request.base)) if relation and is_wanted else None


def _adapter_base(reference: ModelRef, name: str, files: Mapping[str, _File], bases: Sequence[str]) -> bool:
    """Whether the settings of an adapter name the base."""
    if "adapter_config.json" not in files:
        return False
    content = _read_whole(reference, "adapter_config.json", files, _LARGEST_CONFIG)
    path = json_object(content.decode("utf-8", errors="replace")).get("base_model_name_or_path")
    return isinstance(path, str) and classify_path(path, name, bases) == YES


# ---- requests


@lru_cache(maxsize=8)
def _server_at(endpoint: str, token: str) -> Server:
    from indexer.network.server import Server  # what asks no server needs no client of it

    headers = {"Authorization": f"Bearer {token}", "Cookie": f"m_session_id={token}"} if token else {}
    return Server("ModelScope", endpoint, headers)


def _server() -> Server:
    """The site that the environment names. Raises AtlasError if it names none."""
    endpoint = os.environ.get("MODELSCOPE_ENDPOINT", "").strip()
    domain = os.environ.get("MODELSCOPE_DOMAIN", "").strip()
    if not endpoint and domain:
        endpoint = domain if "://" in domain else f"https://{domain}"
    token = os.environ.get("MODELSCOPE_API_TOKEN", "").strip()
    if token and not re.fullmatch(r"[!-:<-~]+", token):
        raise AtlasError("MODELSCOPE_API_TOKEN is none: it holds a character other than letters and digits.", "")
    return _server_at(endpoint or _SITE, token)


def _data(path: str, parameters: Sequence[tuple[str, str]] = (), body: Any = None) -> Mapping[str, Any]:
    """What the API answers. Raises Failed."""
    answer = _server().ask(f"/api/v1{path}", list(parameters), body=body, method="" if body is None else "PUT")
    code = answer.get("Code") if isinstance(answer, dict) else None
    if code not in (200, "200"):
        message = tidy(str(answer.get("Message") or ""), 200).rstrip(".") if isinstance(answer, dict) else ""
        raise Failed("server_error", f"ModelScope answers: {message or shown(code)}")
    data = answer.get("Data")
    return data if isinstance(data, dict) else {}


def _path_of(identifier: str) -> str:
    return f"/models/{quote(identifier.removeprefix(_SCHEME), safe='/')}"


def _search(name: str, number: int) -> tuple[list[tuple[str, Mapping[str, Any]]], int]:
    """A page of models named like this, with their facts; and how many there are."""
    body = {
        "Name": name, "PageNumber": number, "PageSize": _ON_A_PAGE, "SortBy": "Default", "Target": "",
        "Criterion": [], "SingleCriterion": [],
    }  # fmt: skip
    data = _data("/dolphin/models", body=body)
    page = data.get("Model")
    models = page.get("Models") if isinstance(page, dict) else None
    candidates: list[tuple[str, Mapping[str, Any]]] = []
    for facts in models[:1_000] if isinstance(models, list) else []:
        if isinstance(facts, dict) and isinstance(facts.get("Path"), str) and isinstance(facts.get("Name"), str):
            identifier = f"{facts['Path']}/{facts['Name']}"
            if is_hub_id(identifier):
                candidates.append((identifier, facts))
    total = page.get("TotalCount") if isinstance(page, dict) else 0
    return candidates, total if isinstance(total, int) and is_count(total) else 0


def _facts(identifier: str) -> Mapping[str, Any]:
    return _data(_path_of(identifier))


def _files(reference: ModelRef) -> dict[str, _File]:
    """The files of a repository by their paths. Raises Failed, and UnknownRevision."""
    parameters = [("Revision", reference.revision or _MASTER), ("Recursive", "True")]
    try:
        data = _data(f"{_path_of(reference.id)}/repo/files", parameters)
    except Failed as error:
        if error.reason == "not_found" and reference.revision:
            raise UnknownRevision("not_found", f"{reference.id} has no revision {shown(reference.revision)}") from error
        if error.reason == "not_found":
            raise Failed("not_found", "there is no such model on ModelScope, or it is private") from error
        raise
    files: dict[str, _File] = {}
    listed = data.get("Files")
    for entry in listed[:_MOST_FILES] if isinstance(listed, list) else []:
        path = entry.get("Path") if isinstance(entry, dict) else None
        if not isinstance(path, str) or entry.get("Type") == "tree":
            continue
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or not path.isprintable() or "\\" in path or len(path) > 500:
            continue
        size, sha256 = entry.get("Size"), str(entry.get("Sha256") or "").lower()
        mark = next((str(entry[key]) for key in ("Sha256", "Revision", "CommittedDate") if entry.get(key)), "")
        if isinstance(size, int) and is_count(size):
            files[path] = _File(size, sha256 if SHA256.fullmatch(sha256) else None, mark[:200])
    return files


def _version(files: Mapping[str, _File]) -> str:
    """40 hex digits that change with any file."""
    lines = [f"{path}\0{file.size}\0{file.mark}" for path, file in sorted(files.items())]
    return hashlib.sha1("\n".join(lines).encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


def _opened(
    reference: ModelRef, path: str, files: Mapping[str, _File], retries: RetryPolicy | None = None
) -> ByteSource:
    if path not in files:
        raise Failed("not_found", f"there is no file {shown(path)}")
    revision = quote(reference.revision or _MASTER, safe="")
    address = f"{_path_of(reference.id)}/resolve/{revision}/{quote(path, safe='/')}"
    file = _server().file(address, (), path, files[path].size, retries=retries)
    file.sha256 = files[path].sha256
    return file


def _read_whole(reference: ModelRef, path: str, files: Mapping[str, _File], limit: int) -> bytes:
    """A small file, whose hash is that of the list if that states one."""
    with closing(_opened(reference, path, files)) as file:
        if file.size > limit:
            raise Skipped("malformed", f"{shown(path)} is longer than the {limit} bytes that are read")
        content = bytes(file.read(0, file.size))
    stated = files[path].sha256
    if stated is not None and hashlib.sha256(content).hexdigest() != stated:
        raise Failed("file_changed", f"{shown(path)} is not what its Sha256 on ModelScope says")
    return content


# ---- what they say


def _bases_in(facts: Mapping[str, Any]) -> list[str]:
    stated = facts.get("BaseModel")
    named = stated if isinstance(stated, list) else [stated]
    return [tidy(base, 300) for base in named[:20] if isinstance(base, str) and base.strip()]


def _row_of(reference: ModelRef, facts: Mapping[str, Any], files: Mapping[str, _File]) -> Row:
    """The row of a listing, as the Hub would give it."""
    readme = facts.get("ReadMeContent")
    if not isinstance(readme, str):
        readme = ""
        if "README.md" in files and files["README.md"].size <= MAX_README:
            readme = _read_whole(reference, "README.md", files, MAX_README).decode("utf-8", errors="replace")
    reader = Reader()
    times = [_moment(facts.get(key)) for key in ("LastUpdatedTime", "CreatedTime")]
    row: Row = facts_in_files(files, readme[:MAX_README], {}, {}, times[0] or "")
    listed = facts.get("Tags")
    tags = [printable(tag, 200) for tag in listed if isinstance(tag, str)] if isinstance(listed, list) else []
    stated = _bases_in(facts)
    card = row["cardData"]
    licence = facts.get("License")
    if isinstance(licence, str) and licence.strip() and "license" not in card:
        card["license"] = tidy(licence, 100).lower().replace("apache license 2.0", "apache-2.0")
    row |= {
        "id": reference.id,
        "sha": _version(files),
        "tags": [*tags, *(f"base_model:{base}" for base in stated)],
        "siblings": [
            {"rfilename": path, "size": file.size} | ({"lfs": {"sha256": file.sha256}} if file.sha256 else {})
            for path, file in files.items()
        ],
        "createdAt": times[1],
        "lastModified": times[0],
        "downloads": reader.count(facts.get("Downloads"), "Downloads"),
        "likes": reader.count(facts.get("Stars"), "Stars"),
    }
    visibility = facts.get("Visibility")
    if isinstance(visibility, int) and visibility != _PUBLIC:
        row["private"] = True
    return {name: value for name, value in row.items() if value not in (None, "")}


def _moment(value: Any) -> str | None:
    try:
        return datetime.fromtimestamp(value, UTC).isoformat() if isinstance(value, int) and value > 0 else None
    except (ValueError, OverflowError, OSError):
        return None


# ---- the cache of its client


def opened(address: str, options: Mapping[str, Any]) -> FileSystem | None:
    """The cache of ModelScope's client as a tree, for ``modelscope-cache``; None for any other place."""
    if address != CACHE:
        return None
    root = Path(os.environ.get("MODELSCOPE_CACHE", "").strip() or "~/.cache/modelscope").expanduser()
    return LocalFiles(root / "hub" if (root / "hub").is_dir() else root)
