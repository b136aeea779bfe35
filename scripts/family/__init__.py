"""A family of small real models: one base, its fine-tunes and adapters, and the oddities of the Hub.

Everything is trained in about two minutes on text that every installation has, and laid out as the loopback Hub
serves it. ``python -m scripts.family --out .demo/family`` from the root of the project.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.family.plan import load_plan
from scripts.family.store import is_finished

PROJECT = Path(__file__).parents[2]


def make_family(out: Path, size: str, architecture: str = "roberta", training_seed: int = 0) -> Path:
    """The folder ``out`` with the family in it, made now unless it is there already.

    Another process makes it, so that the caller's torch, environment and offline switch stay as they are.

    Args:
        out: an empty or new folder, or one that holds a family in part or whole.
        size: ``mini``, ``small`` or ``full``.
        architecture: a table of ``plan.toml``.
        training_seed: another number trains the same models a second time, from other seeds.

    Raises:
        ValueError: an unknown size or architecture.
        RuntimeError: it could not be made; the reason is on stderr.
    """
    if not is_finished(out, load_plan(size, architecture, training_seed).fingerprint):
        options = ["--out", str(out.resolve()), "--size", size, "--architecture", architecture]
        options += ["--training-seed", str(training_seed)]
        command = [sys.executable, "-m", "scripts.family", *options]
        if subprocess.run(command, cwd=PROJECT, stdout=subprocess.DEVNULL, check=False).returncode:
            raise RuntimeError(f"The family could not be made in {out}; see its own message above.")
    return out
