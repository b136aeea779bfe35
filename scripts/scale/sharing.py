"""``python -m scripts.scale.sharing``: push and pull an atlas of synthetic models through a Hub on loopback.

The Hub accepts everything at once, so seconds are those of this program, and bytes those that would be transferred.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from scripts.child import run_module
from scripts.loopback_hub import LoopbackHub
from scripts.scale.making import BASE, Maker, record_all
from scripts.scale.population import Population, draw_labels
from scripts.terminal import hub_environment

FEW = 10
NAME, TOKEN = "ann/atlas", "of-ann"
SHOWN = ("files", "bytes", "sent_files", "sent_bytes", "fetched_files", "fetched_bytes", "generation")


def main() -> None:
    """Print a line for each command: its seconds, and what its report says about files and bytes."""
    parser = argparse.ArgumentParser(prog="python -m scripts.scale.sharing", description=__doc__)
    parser.add_argument("--models", type=int, default=10_000, help="number of models (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vectors-in-the-wild-sharing-") as temporary:
        measure(Path(temporary), options.models)


def measure(work: Path, models: int) -> None:
    """Push an atlas, push it again, pull it, add ten models, push and pull them; then ask the atlas by hf://."""
    maker = Maker(work / "atlas", Population(draw_labels(models + FEW, 0), 0))
    maker.crawl(range(models))
    record_all(maker, models)
    atlas = ("--atlas", str(maker.folder.root), "--json")
    run_module("indexer", "publish", "--base", BASE, *atlas)
    (work / "models").mkdir()
    with LoopbackHub(work / "models", datasets=work / "datasets", writers={TOKEN: ["ann"]}) as hub:
        os.environ |= hub_environment(hub.endpoint, work / "hf") | {"HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        push = ("indexer", "push", NAME, *atlas)
        pull = ("indexer", "pull", NAME, "--atlas", str(work / "pulled"), "--json")
        _print("push", *push)
        _print("push with nothing new", *push)
        _print("pull", *pull)
        maker.add(range(models, models + FEW))
        run_module("indexer", "publish", "--base", BASE, *atlas)
        _print(f"push with {FEW} models more", *push)
        _print("pull of these", *pull)
        question = ("query", "similar", maker.model(1), "--atlas", f"hf://{NAME}", "--json")
        _print("first question by hf://", *question)
        _print("second question by hf://", *question)


def _print(name: str, *words: str) -> None:
    ran = run_module(*words)
    report = ran.output if isinstance(ran.output, dict) else {}
    shown = ", ".join(f"{key} {report[key]:,}" for key in SHOWN if key in report)
    print(f"{name}: {ran.seconds:.1f} s; {shown}", flush=True)


if __name__ == "__main__":
    main()
