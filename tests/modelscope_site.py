"""A ModelScope on loopback: the search, the facts and the files of models in a folder, as its API answers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.loopback_site import Handler, LoopbackSite


class LoopbackModelScope(LoopbackSite):
    """Serves ``root/OWNER/NAME``. ``facts``: of models by id, besides their names; ``hidden``: ids that are gone.

    ``storage``: the address of another server that files are redirected to. ``asked``: (method, path, headers) of
    every request.
    """

    def __init__(self, root: Path, *, page: int = 100) -> None:
        super().__init__()
        self.root, self.page = root, page
        self.facts: dict[str, dict[str, Any]] = {}
        self.hidden: set[str] = set()
        self.storage = ""
        self.asked: list[tuple[str, str, dict[str, str]]] = []

    def note(self, request: Handler, path: str) -> None:
        self.asked.append((request.command, path, dict(request.headers)))

    def answer(self, request: Handler, path: str, query: dict[str, str], body: dict[str, Any]) -> None:
        file = self.file(path)
        if file is not None and self.storage:
            request.send(302, b"", {"Location": f"{self.storage}{urlsplit(request.path).path}"})
        elif file is not None:
            request.send_part(file.read_bytes())
        elif (found := self.reply(path, query, body)) is not None:
            content = {"Code": 200, "Success": True, "Message": "success", "Data": found}
            request.send(200, json.dumps(content).encode())
        else:
            request.send(404, b'{"Code": 10010205001, "Success": false, "Message": "record not found"}')

    def models(self) -> list[str]:
        """The ids of all models."""
        folders = (folder for folder in sorted(self.root.glob("*/*")) if folder.is_dir())
        return [name for folder in folders if (name := f"{folder.parent.name}/{folder.name}") not in self.hidden]

    def file(self, path: str) -> Path | None:
        """The file at an address; None if it is none of a file."""
        model, resolve, rest = path.removeprefix("/models/").partition("/resolve/")
        file = self.root / model / rest.partition("/")[2]
        return file if resolve and file.is_file() else None

    def reply(self, path: str, query: dict[str, str], body: dict[str, Any]) -> Any:
        """The data of an answer; None for 404."""
        if path == "/api/v1/dolphin/models":
            named = [name for name in self.models() if body["Name"].lower() in name.lower()]
            start = (body["PageNumber"] - 1) * self.page
            shown = [self._facts(name) for name in named[start : start + self.page]]
            return {"Model": {"Models": shown, "TotalCount": len(named)}}
        model, files, _ = path.removeprefix("/api/v1/models/").partition("/repo/files")
        if model not in self.models() or query.get("Revision", "master") not in ("master", "v1"):
            return None
        if not files:
            return self._facts(model)
        folder = self.root / model
        paths = sorted(folder.rglob("*"))
        return {"Files": [
            {"Path": str(one.relative_to(folder)), "Name": one.name, "Type": "tree" if one.is_dir() else "blob"}
            | ({} if one.is_dir() else {"Size": one.stat().st_size, "Sha256": hashlib.sha256(one.read_bytes()).hexdigest()})
            for one in paths
        ]}  # fmt: skip

    def _facts(self, model: str) -> dict[str, Any]:
        owner, _, name = model.partition("/")
        readme = self.root / model / "README.md"
        card = {"ReadMeContent": readme.read_text()} if readme.is_file() else {}
        return {"Path": owner, "Name": name, "Visibility": 5, "Downloads": 7, "Stars": 2, "CreatedTime": 1_760_000_000,
                "LastUpdatedTime": 1_770_000_000, "License": "Apache License 2.0", **card,
                **self.facts.get(model, {})}  # fmt: skip
