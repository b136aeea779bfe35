"""``python -m scripts.scale.sharing``: push and pull an atlas of many synthetic models, by a Hub on loopback.

The Hub takes whatever it is sent at once: seconds are those of this program, bytes those that would travel.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.loopback_hub import LoopbackHub
from scripts.scale.cards import BASE
from scripts.scale.child import run_module
from scripts.scale.labels import draw_labels
from scripts.scale.making import Maker, record_all
from scripts.scale.population import Population

FEW = 10
NAME, TOKEN = "ann/atlas", "of-ann"


@dataclass(frozen=True)
class Step:
    """One command: its seconds, and what its report says of files and bytes."""

    name: str
    seconds: float
    report: dict[str, Any]

    def __str__(self) -> str:
        told = {key: self.report[key] for key in ("files", "bytes", "sent_files", "sent_bytes", "fetched_files",
                                                  "fetched_bytes", "generation") if key in self.report}  # fmt: skip
        return f"{self.name}: {self.seconds:.1f} s; " + ", ".join(f"{key} {value:,}" for key, value in told.items())


def main() -> int:
    """Print a line for each step."""
    parser = argparse.ArgumentParser(prog="python -m scripts.scale.sharing", description=__doc__)
    parser.add_argument("--models", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--work", type=Path, help="where the atlas is made (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vectors-in-the-wild-sharing-") as temporary:
        work = (options.work or Path(temporary)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        for step in measure(work, options.models):
            print(step, flush=True)
    return 0


def measure(work: Path, models: int) -> list[Step]:
    """An atlas is pushed, pushed again, pulled, grows by ten models, and both once more; then a question by hf://."""
    labels = draw_labels(models + FEW, 0)
    maker = Maker(work / "atlas", Population(labels, 0))
    if not maker.folder.database.exists():
        maker.crawl(range(models))
        record_all(maker, range(models))
        _command("indexer", "publish", "--base", BASE, "--atlas", str(maker.folder.root))
    (work / "models").mkdir(exist_ok=True)
    steps: list[Step] = []
    with LoopbackHub(work / "models", datasets=work / "datasets", writers={TOKEN: ["ann"]}) as hub:
        os.environ.update(HF_ENDPOINT=hub.endpoint, HF_TOKEN=TOKEN, HF_HOME=str(work / "hf"))
        os.environ.update(HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
        push = ("indexer", "push", NAME, "--atlas", str(maker.folder.root))
        pull = ("indexer", "pull", NAME, "--atlas", str(work / "pulled"))
        steps += [_step("push", *push), _step("push with nothing new", *push), _step("pull", *pull)]
        maker.add(range(models, models + FEW))
        _command("indexer", "publish", "--base", BASE, "--atlas", str(maker.folder.root))
        steps += [_step(f"push with {FEW} models more", *push), _step("pull of that", *pull)]
        asked = ("query", "similar", maker.cards.model(1), "--atlas", f"hf://{NAME}")
        steps += [_step("first question by hf://", *asked), _step("second question by hf://", *asked)]
    return steps


def _step(name: str, *words: str) -> Step:
    started = time.perf_counter()
    found = _command(*words)
    return Step(name, time.perf_counter() - started, found if isinstance(found, dict) else {})


def _command(module: str, *words: str) -> Any:
    offline = "push" not in words and "pull" not in words and not any("hf://" in word for word in words)
    return run_module(module, *words, "--json", offline=offline).output


if __name__ == "__main__":
    sys.exit(main())
