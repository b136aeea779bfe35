"""A real browser for tests: headless Chromium, driven by chromedriver's HTTP interface, with the standard library."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.patience import PATIENCE

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
STARTS = 5
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"enter": "\ue007", "escape": "\ue00c", "down": "\ue015", "up": "\ue013", "left": "\ue012", "right": "\ue014"}


def missing_browser() -> str:
    """Why no browser can be driven here; "" where one can."""
    driver, browser = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    return "" if driver and browser else "needs chromedriver and Chromium"


class Browser:
    """One window. Raises RuntimeError with the driver's words where a command fails."""

    def __init__(self, width: int = 1200, height: int = 800) -> None:
        self._driver, port = _started()
        self._folder = tempfile.TemporaryDirectory(prefix="browser-")
        self._address = f"http://127.0.0.1:{port}"
        arguments = [*FLAGS, f"--user-data-dir={self._folder.name}", f"--window-size={width},{height}"]
        wanted = {
            "goog:chromeOptions": {
                "binary": shutil.which("chromium") or shutil.which("google-chrome"), "args": arguments,
            },
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }  # fmt: skip
        self._session = ""
        try:
            self._session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except BaseException:
            self._ended()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._ask("DELETE", "")
        finally:
            self._ended()

    def _ended(self) -> None:
        self._driver.terminate()
        self._driver.wait()
        self._folder.cleanup()

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file afresh."""
        self.visit(page.as_uri() + fragment)

    def visit(self, address: str) -> None:
        """Load an address afresh."""
        self._ask("POST", "/url", {"url": "about:blank"})
        self.console(), self.requests()
        self._ask("POST", "/url", {"url": address})

    def size(self, width: int, height: int, ratio: float = 1.0) -> None:
        """The window's inside, as of another device."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=ratio,
                      mobile=False)  # fmt: skip

    def scheme(self, name: str) -> None:
        """What the system prefers: light or dark."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script: str, *arguments: Any) -> Any:
        """What ``return …`` gives, by the driver's own rights: a page's policy does not bind it."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, condition: str, seconds: float = PATIENCE) -> None:
        """Until an expression is true."""
        ends = time.monotonic() + seconds
        while not self.run(f"return Boolean({condition})"):
            if time.monotonic() > ends:
                raise AssertionError(f"never true: {condition}")
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """What a person reads there."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def texts(self, selector: str) -> list[str]:
        """The same of every element."""
        return list(self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)", selector))

    def click(self, selector: str, number: int = 0) -> None:
        """A real click on the element of that number."""
        found = self._ask("POST", "/elements", {"using": "css selector", "value": selector})
        self._ask("POST", f"/element/{found[number][_ELEMENT]}/click", {})
        self._drawn()

    def type(self, selector: str, text: str) -> None:
        """Real keys; see ``KEYS`` for those without a letter."""
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"/element/{found[_ELEMENT]}/value", {"text": text})
        self._drawn()

    def _drawn(self) -> None:
        """Wait until the page has drawn twice: what a click sets off comes as an event of its own, then as a frame."""
        frames = "const done = arguments[0]; requestAnimationFrame(() => setTimeout(() => requestAnimationFrame(() => done())))"
        self._ask("POST", "/execute/async", {"script": frames, "args": []})

    def pointer(self, *moves: tuple[str, float, float], kind: str = "mouse") -> None:
        """Real pointer movements: ("move", x, y), ("down", 0, 0), ("up", 0, 0), in pixels of the window."""
        actions: list[dict[str, Any]] = []
        for name, x, y in moves:
            if name == "move":
                actions.append({"type": "pointerMove", "duration": 20, "x": round(x), "y": round(y)})
            else:
                actions.append({"type": "pointerDown" if name == "down" else "pointerUp", "button": 0})
        source = {"type": "pointer", "id": kind, "parameters": {"pointerType": kind}, "actions": actions}
        self._ask("POST", "/actions", {"actions": [source]})

    def wheel(self, x: float, y: float, pixels: int) -> None:
        """Turn the wheel; more than 0 is down."""
        turn = {"type": "scroll", "x": round(x), "y": round(y), "deltaX": 0, "deltaY": pixels, "duration": 0}
        self._ask("POST", "/actions", {"actions": [{"type": "wheel", "id": "wheel", "actions": [turn]}]})

    def console(self) -> list[str]:
        """The messages of the console since the last call, except those about preloads that a slow machine gets."""
        entries = [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]
        return [message for message in entries if "was preloaded using link preload but not used" not in message]

    def requests(self) -> list[str]:
        """Addresses that were asked for since this was last asked."""
        messages = [
            json.loads(entry["message"])["message"] for entry in self._ask("POST", "/se/log", {"type": "performance"})
        ]
        sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
        return [entry["request"]["url"] for entry in sent]

    def screenshot(self, file: Path) -> Path:
        """A picture of the window."""
        file.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))
        return file

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        address = self._address + (f"/session/{self._session}" if self._session else "") + path
        payload = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(address, payload, {"Content-Type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=PATIENCE) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from error


def _started() -> tuple[subprocess.Popen[str], int]:
    """A driver and its port. It takes a free port of IPv4, then the same of IPv6, and gives up where another process
    has that one, as happens next to many servers: then it is asked again."""
    said = ""
    for _ in range(STARTS):
        driver = subprocess.Popen(
            [shutil.which("chromedriver") or "", "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert driver.stdout is not None
        for line in driver.stdout:
            said += line
            if "started successfully on port" in line:
                return driver, int(line.rstrip(". \n").rpartition(" ")[2])
        driver.stdout.close()
        driver.wait()
    raise RuntimeError(f"chromedriver did not start, {STARTS} times: {said}")
