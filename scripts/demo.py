"""Train a family of real models (once), serve it from a loopback Hub, build the atlas, ask it.

Every command shown is the one a person would type, run as a process of its own against the Hub over HTTP.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from indexer.atlas import DEMO_FOLDER
from scripts.family import make_family
from scripts.loopback_hub import LoopbackHub
from scripts.ship import BASE, BUILD, MAP, SWEEP, make_atlas, ship
from scripts.terminal import Terminal, exit_status
from scripts.tiny_models import GPT_STEPS, VIT_STEPS, make_gpt2, make_vit

# A model that names no data set. In truth it was tuned on docs/numpydoc-sections.
UNDOCUMENTED = (
    "query predict small-hours/tiny-roberta-in-house",
    "query trace small-hours/tiny-roberta-in-house",
)
INVERT = 'query invert tiny-gpt2 "The value of the parameter is returned as a list of strings." --out words.png'
FEATURES = "query features tiny-vit --layers 1,4 --out features.png"


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".demo"), help="where everything goes")
    parser.add_argument("--size", default="demo", choices=["demo", "full", "small"])
    parser.add_argument(
        "--ship",
        action="store_true",
        help="Only make again, of the same models, the atlas that comes with the package.",
    )
    arguments = parser.parse_args()
    work = ship_demo if arguments.ship else run_demo
    sys.exit(exit_status("The demo", lambda: work(arguments.out.resolve(), arguments.size)))


def ship_demo(out: Path, size: str) -> None:
    """Make the family unless it is there, an atlas of it in ``out``/ship, and put its files into the package."""
    with LoopbackHub(make_family(out / f"family-{size}", size)) as hub:
        (out / "ship").mkdir(exist_ok=True)
        run = Terminal.of_hub(out / "ship", hub.endpoint)
        sizes = ship(make_atlas(run))
        run(f"query map --out {shlex.quote(str(MAP))}", show=False)
    for name, size_of_file in sizes.items():
        print(f"{size_of_file:>9,}  {name}")
    print(f"{sum(sizes.values()):>9,}  {DEMO_FOLDER}\n")
    print(
        "Now: python -m scripts.guide, which renews what README.md and the pages of docs/guide show. Read what their "
        "sentences say of it."
    )


def run_demo(out: Path, size: str) -> None:
    """Make the family unless it is there, serve it, and show every command."""
    started = time.monotonic()
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare_process) as pool,
        ThreadPoolExecutor(2) as beside,
    ):
        # Two models to look into are trained meanwhile: the base's texts and most questions leave a processor free.
        vit = pool.submit(make_vit, out / "tiny-vit", VIT_STEPS // 2)
        family = make_family(out / f"family-{size}", size)
        gpt2 = pool.submit(make_gpt2, out / "tiny-gpt2", family / BASE / "tokenizer.json", GPT_STEPS // 2)
        with LoopbackHub(family) as hub:
            print(f"{family.name}: served at {hub.endpoint} ({time.monotonic() - started:.0f} s)", flush=True)
            _show(Terminal.of_hub(out, hub.endpoint), beside, {FEATURES: vit, INVERT: gpt2})
    print(f"\nAll this took {time.monotonic() - started:.0f} s. The atlas: {out / 'atlas'}")


def _prepare_process() -> None:
    """One thread, and no traceback at Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    import torch

    torch.set_num_threads(1)


def _show(run: Terminal, beside: ThreadPoolExecutor, trained: Mapping[str, Future[Any]]) -> None:
    run(BUILD + " --dry-run")
    run(BUILD)
    small = beside.submit(_ask_small_models, run, trained)
    run(BUILD)
    run("index status")
    run("index verify")
    models = json.loads(run('query sql "SELECT model, relation, datasets FROM models" --json', show=False))
    indexed = sorted(str(row["model"]) for row in models)
    sweep = [name for name in SWEEP if name in indexed] or indexed[:5]  # the small family has no sweep
    # What writes to the atlas runs beside the questions, and is shown after them.
    writing = ("index represent spectrum", f"index profile {' '.join(sweep)} --base {BASE} --with-untrained --recover")
    written = beside.submit(lambda: {command: run(command, show=False, progress=False) for command in writing})
    asked = min(str(row["model"]) for row in models if row["relation"] == "finetune" and row["datasets"])
    run(f"query similar {asked} -k 5")
    run(f"query similar {asked} -k 5 --other-authors --explain")
    run(f"query purity --base {BASE}")
    run('query sql "SELECT status, reason, models, example_model FROM failures ORDER BY ALL"')
    run(f"query clusters --base {BASE}")
    for command in UNDOCUMENTED:
        run(command)
    run(f"query rank --base {BASE} --out rank.png")
    for file in ("map.png", "map.html"):
        run(f"query map --base {BASE} --method tsne --out {file}", show=file == "map.png")
    for command, reply in (written.result() | small.result()).items():
        print(f"\n$ {command}\n{reply}", end="", flush=True)
    run(f"query purity --base {BASE} --representation spectrum")
    run(f"query depth {sweep[-1]} --out depth.png")
    run(f"query report --base {BASE} --out report.html")
    print(f"\nThe map: {run.folder / 'map.png'}, and to explore in a browser: {run.folder / 'map.html'}")
    print(f"What layers keep, words again, what neurons see: {run.folder / 'depth.png'}, words.png, features.png")
    print(f"All of it on one page: {run.folder / 'report.html'}")


def _ask_small_models(run: Terminal, trained: Mapping[str, Future[Any]]) -> dict[str, str]:
    replies = {}
    for command, model in trained.items():
        model.result()  # it is trained
        replies[command] = run(command, show=False, progress=False)
    return replies


if __name__ == "__main__":
    main()
