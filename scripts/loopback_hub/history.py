"""The contents of a repository in the Hub's API: files and folders, refs, pull requests, commits."""

from __future__ import annotations

from typing import Any

from scripts.loopback_hub.rows import created_at, last_modified, timestamp
from scripts.loopback_hub.store import MAIN, Repository, Revision


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


def refs(repository: Repository, *, pull_requests: bool) -> dict[str, Any]:
    """Branches, converts, tags and, where asked for, pull requests."""
    result: dict[str, Any] = {"branches": [], "converts": [], "tags": []}
    if pull_requests:
        result["pullRequests"] = []
    kinds = (
        ("refs/pr/", "pullRequests"),
        ("refs/convert/", "converts"),
        ("refs/tags/", "tags"),
        ("refs/heads/", "branches"),
    )
    for name in (MAIN, *repository.described):
        revision = repository.revision(name)
        reference = name if name.startswith("refs/") else f"refs/heads/{name}"
        prefix, kind = next((each for each in kinds if reference.startswith(each[0])), ("", "branches"))
        if revision is not None and kind in result:
            short = reference.removeprefix(prefix)
            result[kind].append({"name": short, "ref": reference, "targetCommit": revision.sha})
    return result


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
