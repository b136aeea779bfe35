"""A running ``query browse``, and how a test asks it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import duckdb

from tests.browser import KEYS
from tests.conftest import start_python
from tests.patience import PATIENCE, wait_for

# A statement that would take hours.
ENDLESS = "SELECT count(*) FROM range(10000000000) AS a(i), range(1000) AS b(j) WHERE hash(i, j) % 7 = 1"
_WITH_LIMIT = (
    "from query.faces.browse import session; from query.faces.cli import main; session.MOST_SECONDS = {}; main()"
)


class Served:
    """The command, until the end of the ``with``. ``address`` ends with a slash.

    ``seconds``: time limit of a statement, if another than the command's own.
    """

    def __init__(self, folder: Path, *options: str, seconds: float | None = None) -> None:
        self.folder = folder
        command = ("-m", "query") if seconds is None else ("-c", _WITH_LIMIT.format(seconds))
        self.process = start_python(
            *command, "browse", "--atlas", folder, "--no-open", "--method", "pca", *options,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.printed = self.process.stdout.readline().strip()
        self.address = self.printed.partition("#")[0]
        self.host = urlsplit(self.address).netloc
        self.token = urlsplit(self.address).path.strip("/")

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code, and what it said on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, complaint = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, complaint

    def ask(self, path: str = "", method: str = "GET", host: str | None = None) -> tuple[int, dict[str, str], bytes]:
        """The answer to a path under the token, or to one that begins with a slash as it is."""
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE)
        try:
            full_path = path if path.startswith("/") else f"/{self.token}/{path}"
            connection.request(method, full_path, headers={"Host": host or self.host})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, path: str, **words: str) -> Any:
        """The answer to a path, read as JSON."""
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in words.items())
        return json.loads(self.ask(f"{path}?{query}" if query else path)[2])

    def wait_for_layout(self) -> Served:
        """Wait until the layout of the map is computed, or has failed; returns itself."""
        wait_for(lambda: self.json("state")["places"] != "working")
        return self

    def columns(self) -> dict[str, Any]:
        """The data of the page."""
        return self.json("data")


def publish_again(folder: Path) -> None:
    """Rename a changed copy over the database, as a publish does."""
    copy = folder / "next.duckdb"
    shutil.copyfile(folder / "atlas.duckdb", copy)
    with duckdb.connect(str(copy)) as connection:
        connection.execute("UPDATE atlas_info SET generation = generation + 1")
        connection.execute("UPDATE fine_tunes SET downloads = 123456 WHERE model_id = 1")
    copy.rename(folder / "atlas.duckdb")


def children(running: Served) -> list[str]:
    """Numbers of the processes that the command has started and that have not ended."""
    numbers = []
    for number in (name for name in os.listdir("/proc") if name.isdigit()):
        state, parent = state_of(number)
        if parent == running.process.pid and state != "Z":
            numbers.append(number)
    return numbers


def state_of(number: str) -> tuple[str, int]:
    """The state of a process (Z: has ended) and the number of its parent."""
    try:
        state, parent = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "Z", 0
    return state, int(parent)


# ---- the page in a browser

FIRST = "author0/set0-0"


def opened(page, address):
    page.visit(address)
    page.wait("document.querySelector('#legend button')")


def choose(page, name):
    page.run("part('search').value = ''")
    page.type("#search", name + KEYS["enter"])
    assert name in page.text("#selected h2")


def model_page(page, name):
    choose(page, name)
    page.click("#all-known")
    page.wait("document.querySelector('#model-page dl')")
    page.wait(f"document.querySelector('#model-page h2').innerText.includes({name!r})")
