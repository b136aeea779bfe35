"""A repository in the Hub's API: rows of the listing and of model info, files and folders, pull requests, commits."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Collection
from typing import Any

from scripts.loopback_hub.store import Repository, Revision, StoredFile, hub_time

# The Hub began to keep creation dates on that day.
_EPOCH = "2022-03-02T23:29:04.000Z"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_JSON_LIMIT = 16 << 20
_HEADER_LIMIT = 100 << 20

# What a request may ask for by ``expand``; the first two not in a listing.
INFO_ONLY = ("childrenModelCount", "usedStorage")
EXPANDABLE = (
    "author", "baseModels", "cardData", "config", "createdAt", "disabled", "downloads", "downloadsAllTime",
    "evalResults", "gated", "gguf", "inference", "inferenceProviderMapping", "lastModified", "library_name", "likes",
    "mask_token", "model-index", "pipeline_tag", "private", "resourceGroup", "safetensors", "sha", "siblings",
    "spaces", "tags", "transformersInfo", "trendingScore", "widgetData",
)  # fmt: skip
LISTED = (
    "modelId", "likes", "trendingScore", "private", "downloads", "tags", "pipeline_tag", "library_name", "createdAt",
)  # fmt: skip
LISTED_FULL = (*LISTED, "author", "sha", "lastModified", "gated", "disabled", "siblings")
INFO = (*LISTED_FULL, "model-index", "config", "cardData", "spaces", "safetensors", "usedStorage")


def row(repository: Repository, names: Collection[str], revision: Revision | None = None) -> dict[str, Any]:
    """``_id``, ``id`` and the named fields; a field without a value is left out, as the Hub does.

    Files are only looked at where a field needs them.
    """
    result = {"_id": _id_of(repository.id), "id": repository.id}
    for name in names:
        value = _field(repository, name, revision)
        if value is not None:
            result[name] = value
    return result


def _field(repository: Repository, name: str, revision: Revision | None) -> Any:
    if name in ("sha", "siblings", "config", "safetensors", "usedStorage"):
        revision = revision or repository.revision()
        assert revision is not None  # every repository has main
        return _FROM_FILES[name](revision)
    if name in ("createdAt", "lastModified"):
        return created_at(repository) if name == "createdAt" else last_modified(repository)
    if name == "model-index":
        card = repository.get("card_data")
        return card.get("model-index") if isinstance(card, dict) else None
    if name == "baseModels":
        return _base_models(repository)
    if name == "childrenModelCount":
        return _children(repository)
    simple = {
        "modelId": repository.id,
        "author": repository.id.partition("/")[0],
        "likes": repository.get("likes", 0),
        "downloads": repository.get("downloads", 0),
        "trendingScore": repository.get("trending_score", 0),
        "private": repository.get("private", False),
        "disabled": repository.get("disabled", False),
        "gated": repository.get("gated", False),
        "tags": repository.get("tags", []),
        "pipeline_tag": repository.get("pipeline_tag"),
        "library_name": repository.get("library_name"),
        "cardData": repository.get("card_data"),
        "spaces": [],
    }
    return simple.get(name)


def tags(repository: Repository) -> list[Any]:
    """The tags, where there is a list of them."""
    listed = repository.get("tags", [])
    return listed if isinstance(listed, list) else []


def created_at(repository: Repository) -> Any:
    """When the repository was made, in the Hub's spelling."""
    return timestamp(repository.get("created_at", _EPOCH))


def last_modified(repository: Repository) -> Any:
    """From the store's settings, else the last change of a file of ``main``."""
    if "last_modified" in repository.settings:
        return timestamp(repository.get("last_modified"))
    revision = repository.revision()
    newest = max((file.modified_ns for file in revision.files.values()), default=0) if revision else 0
    return hub_time(datetime.datetime.fromtimestamp(newest / 1e9, datetime.UTC)) if newest else created_at(repository)


def timestamp(value: Any) -> Any:
    """A full date and time in the Hub's format; anything else unchanged, for tests of malformed rows."""
    if isinstance(value, str) and "T" in value:
        try:
            parsed = datetime.datetime.fromisoformat(value)
        except ValueError:
            return value
        if parsed.tzinfo is not None:
            return hub_time(parsed.astimezone(datetime.UTC))
    return value


def siblings(revision: Revision, *, blobs: bool = False) -> list[dict[str, Any]]:
    """The files' names; with ``blobs`` their sizes and hashes too."""
    if not blobs:
        return [{"rfilename": path} for path in revision.files]
    result = []
    for path, file in revision.files.items():
        entry: dict[str, Any] = {"rfilename": path, "blobId": file.oid, "size": file.size}
        if file.is_lfs:
            entry["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": file.pointer_size}
        result.append(entry)
    return result


def _read_json(revision: Revision, path: str) -> dict[str, Any]:
    file = revision.files.get(path)
    if file is None or file.size > _JSON_LIMIT:
        return {}
    try:
        value = json.loads(file.location.read_bytes())
    except (ValueError, OSError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _config(revision: Revision) -> dict[str, Any] | None:
    """The few keys of config.json that the Hub passes on; label names are not among them."""
    config = _read_json(revision, "config.json")
    shown = ("architectures", "model_type", "quantization_config")
    result: dict[str, Any] = {name: config[name] for name in shown if name in config}
    adapter = _read_json(revision, "adapter_config.json")
    if adapter:
        result["peft"] = {name: adapter[name] for name in ("base_model_name_or_path", "task_type") if name in adapter}
    return result or None


def _safetensors(revision: Revision) -> dict[str, Any] | None:
    """Numbers of parameters by dtype, read from the headers of the model's file or its shards."""
    parameters: dict[str, int] = {}
    whole = revision.files.get("model.safetensors")
    shards = [file for path, file in revision.files.items() if _SHARD.fullmatch(path)]
    for file in [whole] if whole else shards:
        for tensor in _safetensors_header(file).values():
            try:
                count = 1
                for length in tensor["shape"]:
                    count *= int(length)
                parameters[str(tensor["dtype"])] = parameters.get(str(tensor["dtype"]), 0) + count
            except (TypeError, KeyError, ValueError):
                continue
    return {"parameters": parameters, "total": sum(parameters.values())} if parameters else None


def _safetensors_header(file: StoredFile) -> dict[str, Any]:
    try:
        with file.location.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > min(_HEADER_LIMIT, file.size - 8):
                return {}
            header = json.loads(stream.read(length))
    except (ValueError, OSError, RecursionError):
        return {}
    return {name: value for name, value in header.items() if name != "__metadata__"} if isinstance(header, dict) else {}


_FROM_FILES = {
    "sha": lambda revision: revision.sha,
    "siblings": siblings,
    "config": _config,
    "safetensors": _safetensors,
    "usedStorage": lambda revision: sum(file.size for file in revision.files.values() if file.is_lfs),
}


def _children(repository: Repository) -> dict[str, int]:
    """How many models name the repository as their base, by relation; a relation without any is left out."""
    found: dict[str, int] = {}
    for other in repository.store.repositories():
        for relation in ("adapter", "finetune", "merge", "quantized"):
            if f"base_model:{relation}:{repository.id}" in tags(other):
                found[relation] = found.get(relation, 0) + 1
    return found


def _base_models(repository: Repository) -> Any:
    """The relation and the bases' canonical ids, as the tags say, or what the settings say instead."""
    if "base_models" in repository.settings:
        return repository.get("base_models")
    pairs = [parts for tag in tags(repository) if len(parts := str(tag).split(":")) == 3 and parts[0] == "base_model"]
    if not pairs:
        return None
    bases = dict.fromkeys(base for _, _, base in pairs)
    return {"relation": pairs[0][1], "models": [{"_id": _id_of(base), "id": base} for base in bases]}


def _id_of(name: str) -> str:
    return hashlib.md5(name.encode()).hexdigest()[:24]


# ---- files, pull requests and commits


def tree_entry(revision: Revision, path: str) -> dict[str, Any]:
    """One file or folder as in trees."""
    file = revision.files.get(path)
    if file is None:
        return {"type": "directory", "oid": revision.folders[path], "size": 0, "path": path}
    entry: dict[str, Any] = {"type": "file", "oid": file.oid, "size": file.size, "path": path}
    if file.is_lfs:
        entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": file.pointer_size}
    return entry


def paths_below(revision: Revision, folder: str, *, is_recursive: bool) -> list[str]:
    """The files and folders in a folder ("" for the root), sorted; with ``is_recursive`` at any depth."""
    inside = f"{folder.strip('/')}/" if folder.strip("/") else ""
    return sorted(
        path
        for path in (*revision.files, *revision.folders)
        if path.startswith(inside) and (is_recursive or "/" not in path.removeprefix(inside))
    )


def pull_requests(repository: Repository) -> list[dict[str, Any]]:
    """The pull requests among the revisions as in the discussions' listing, newest first."""
    result = []
    owner = repository.id.partition("/")[0]
    for name, described in repository.described.items():
        number = name.removeprefix("refs/pr/")
        if name == number or not (number.isascii() and number.isdigit()):
            continue
        result.append(
            {
                "num": int(number),
                "author": {"name": described.get("author", owner), "type": "user"},
                "repo": {"name": repository.id, "type": "model"},
                "title": described.get("title", f"Pull request {number}"),
                "createdAt": timestamp(described.get("created_at", created_at(repository))),
                "isPullRequest": True,
                "status": described.get("status", "open"),
                "numComments": 1,
                "pinned": False,
            }
        )
    return sorted(result, key=lambda each: -each["num"])


def commits(repository: Repository, revision: Revision) -> list[dict[str, Any]]:
    """The commit of ``main``; before it that of another revision, shown as built on ``main``."""
    main = repository.revision()
    assert main is not None  # every repository has main
    owner = repository.id.partition("/")[0]
    result = [(main.sha, "Upload files", owner)]
    if revision.sha != main.sha:
        described = repository.described.get(revision.name, {})
        title = described.get("title", f"Commit of {revision.name}")
        result.insert(0, (revision.sha, title, described.get("author", owner)))
    date = last_modified(repository)
    return [
        {"id": sha, "title": title, "message": "", "authors": [{"user": author}], "date": date}
        for sha, title, author in result
    ]
