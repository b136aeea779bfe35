"""``python -m tests.browse.figures``: how long the page takes with many models, and its picture for docs/.

Times are those of this machine's Chromium, headless, drawing without a graphics card. They are no test.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from tests.browse.atlases import write_many
from tests.browse.served import Served
from tests.browser import Browser

# Each is run after the page stands still, with the map painted again at its end.
ACTS = {
    "a dataset is chosen": "state.chosen.dataset.add(3); refresh();",
    "all are shown again": "clearFilters(); refresh();",
    "a range of downloads": "state.range.downloads = [10, 1000]; refresh();",
    "another colour": "clearFilters(); state.coloring = 2; forgetLooks(); refresh();",
    "sorted by name": "state.coloring = 0; forgetLooks(); sortBy('model');",
    "sorted by a number": "sortBy('norm', true);",
    "a model is chosen": "choose(5, true);",
    "zoomed": "zoomAt(300, 200, 1.5); forgetSheet();",
}
TIMES = 5
DRAWN = "typeof painted !== 'undefined' && painted !== null"


def main() -> None:
    """One of two: --measure N,N or --atlas DIR --out FILE."""
    parser = argparse.ArgumentParser(prog="python -m tests.browse.figures", description=__doc__)
    parser.add_argument("--measure", metavar="N,N", help="sizes of synthetic atlases")
    parser.add_argument("--atlas", type=Path, metavar="DIR", help="an atlas to make a picture of")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the picture, .png")
    parser.add_argument("--model", help="the model that is chosen on it")
    options = parser.parse_args()
    with Browser() as browser:
        browser.size(1280, 860)
        for models in map(int, options.measure.split(",")) if options.measure else ():
            with tempfile.TemporaryDirectory() as folder:
                _measure(browser, write_many(Path(folder), models), models)
        if options.atlas:
            _draw(browser, options.atlas, options.out, options.model)


def _measure(browser: Browser, folder: Path, models: int) -> None:
    with Served(folder) as running:
        running.wait_for_layout()
        began = time.monotonic()
        size = len(running.ask("data")[2])
        print(f"{models:,} models: columns made in {time.monotonic() - began:.1f} s, {size / 1e6:.1f} MB")
        opened = []
        for _ in range(TIMES):
            browser.visit(running.address)
            browser.wait(DRAWN)
            opened.append(browser.run("return paintedAt"))
        print(f"  {'from the address to the map':30} {_median_and_range(opened)}")
        for name, act in ACTS.items():
            script = f"const start = performance.now(); {act} draw(); pen.getImageData(0, 0, 1, 1); return performance.now() - start"
            print(f"  {name:30} {_median_and_range([browser.run(script) for _ in range(TIMES)])}")
        print(f"  rows in the document: {browser.run('return scroller.querySelectorAll(`tbody tr`).length')}")


def _median_and_range(milliseconds: list[float]) -> str:
    return f"{statistics.median(milliseconds):6.0f} ms (from {min(milliseconds):.0f} to {max(milliseconds):.0f})"


def _draw(browser: Browser, folder: Path, out: Path, model: str | None) -> None:
    with Served(folder, "--method", "tsne") as running:
        running.wait_for_layout()
        browser.visit(running.address)
        browser.wait(DRAWN)
        if model:
            browser.run("choose(data.models.indexOf(arguments[0]), true)", model)
        browser.run("document.querySelector('aside').scrollTop = 0")
        time.sleep(1)  # for the map to come to rest
        browser.screenshot(out)


if __name__ == "__main__":
    main()
