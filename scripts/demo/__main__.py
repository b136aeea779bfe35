"""Train a family of real models (once), serve it from a loopback Hub, build the atlas, ask it.

Every command shown is the one a person would type, run as a process of its own against the Hub over HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from scripts.demo.picture import draw_map
from scripts.family import make_family
from scripts.loopback_hub import LoopbackHub

BASE = "atlas-demo/tiny-roberta"
REPRESENTATIONS = ("input", "output", "delta", "spectrum", "seed", "seed_scaled")


class Terminal:
    """Runs commands in the demo's folder and shows them as a terminal would."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(folder / "huggingface"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        }

    def __call__(self, command: str, *, show: bool = True) -> str:
        """Run ``command`` and return what it printed; the demo ends where it fails."""
        if show:
            print(f"\n$ {command}", flush=True)
        program, *rest = shlex.split(command)
        module = {"index": "indexer", "query": "query"}[program]
        done = subprocess.run(
            [sys.executable, "-m", module, *rest],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if show:
            print(done.stdout, end="", flush=True)
        if done.returncode:
            sys.exit(f"the demo stopped: {command!r} ended with exit code {done.returncode}")
        return done.stdout


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".demo"), help="where everything goes")
    parser.add_argument("--size", default="full", choices=["full", "small"])
    arguments = parser.parse_args()
    started = time.monotonic()
    out = arguments.out.resolve()
    family = make_family(out / f"family-{arguments.size}", arguments.size)
    with LoopbackHub(family) as hub:
        print(f"{family.name}: served at {hub.endpoint} ({time.monotonic() - started:.0f} s)")
        _show(Terminal(out, hub.endpoint), hub, json.loads((family / "expected.json").read_text()))
    print(f"\nAll this took {time.monotonic() - started:.0f} s. The atlas: {out / 'atlas'}")


def _show(run: Terminal, hub: LoopbackHub, expected: dict[str, dict[str, str]]) -> None:
    build = f"index build --base {BASE} --discover names"
    run(build + " --dry-run")
    run(build)
    run(build)
    run("index status")
    asked = _typical(json.loads(run('query sql "SELECT model, relation, datasets FROM models" --json', show=False)))
    run(f"query similar {asked} -k 5")
    run(f"query similar {asked} -k 5 --other-authors --explain")
    run(f"query purity --base {BASE}")
    run('query sql "SELECT status, reason, models, example_model FROM failures ORDER BY ALL"')
    for name in REPRESENTATIONS[1:]:
        run(f"index represent {name}", show=False)
    print("\nPurity of every representation (share of nearest neighbours with the same data)")
    print(
        f"{'representation':<16}{'purity':>8}{'95 % interval':>18}{'chance':>8}{'p':>8}{'cross-author':>14}{'chance':>8}"
    )
    for name in REPRESENTATIONS:
        row = json.loads(run(f"query purity --base {BASE} --representation {name} --json", show=False))
        interval = f"{row['ci_low']:.2f}–{row['ci_high']:.2f}"
        other = row["cross_author"]
        print(
            f"{name:<16}{row['purity']:>8.3f}{interval:>18}{row['chance']:>8.3f}{row['p_value']:>8.3f}"
            f"{other['purity']:>14.3f}{other['chance']:>8.3f}"
        )
    run("index verify")
    picture = draw_map(run.folder / "atlas", BASE, run.folder / "map.png")
    print(f"\nThe map: {picture}")
    del hub, expected


def _typical(models: list[dict[str, object]]) -> str:
    """A full fine-tune with a dataset, the same one each time."""
    named = sorted(str(row["model"]) for row in models if row["relation"] == "finetune" and row["datasets"])
    return named[0]


if __name__ == "__main__":
    main()
