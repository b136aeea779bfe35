"""A ModelScope on loopback: the search, the facts and the files of models in a folder, as its API answers."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class LoopbackModelScope:
    """Serves ``root/OWNER/NAME``. ``facts``: of models by id, besides their names; ``hidden``: ids that are gone.

    ``storage``: the address of another server that files are redirected to. ``overrides``: by path, a function of the
    handler that answers in its place. ``asked``: (method, path, headers) of every request.
    """

    def __init__(self, root: Path, *, page: int = 100) -> None:
        self.root, self.page = root, page
        self.facts: dict[str, dict[str, Any]] = {}
        self.hidden: set[str] = set()
        self.storage = ""
        self.overrides: dict[str, Any] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.answer({})

            def do_PUT(self) -> None:
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, body: dict[str, Any]) -> None:
                parts = urlsplit(self.path)
                path, query = unquote(parts.path), {key: one[0] for key, one in parse_qs(parts.query).items()}
                site.asked.append((self.command, path, dict(self.headers)))
                if path in site.overrides:
                    site.overrides[path](self)
                    return
                file = site.file(path)
                if file is not None and site.storage:
                    self.send(302, b"", {"Location": f"{site.storage}{parts.path}"})
                elif file is not None:
                    first, last = self.headers["Range"].removeprefix("bytes=").split("-")
                    content = file.read_bytes()
                    part = content[int(first) : int(last) + 1]
                    self.send(206, part, {"Content-Range": f"bytes {first}-{last}/{len(content)}"})
                elif (found := site.reply(path, query, body)) is not None:
                    self.send(
                        200, json.dumps({"Code": 200, "Success": True, "Message": "success", "Data": found}).encode()
                    )
                else:
                    self.send(404, b'{"Code": 10010205001, "Success": false, "Message": "record not found"}')

            def send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> LoopbackModelScope:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

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
