"""The parts of the arena: what each measures, where its figures are kept, and where its tables stand on the page.

A part is a module of this package with two functions:

``run(out: Path) -> Json`` trains what it needs below ``out`` (once; an interrupted run goes on), asks the questions, and
returns figures as plain JSON.
``tables(figures: Json) -> str`` makes Markdown of them, which stands between the markers of the part on the page.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from scripts.child import PROJECT
from scripts.tables import fill

Json = dict[str, Any]

PAGE, FIGURES = PROJECT / "docs" / "arena.md", PROJECT / "docs" / "arena.json"
# Names the folder of a real pretrained model, for parts that use one (``--pretrained``).
PRETRAINED = "ARENA_PRETRAINED"
# In the order of the page.
PARTS = {
    "adapters": "adapters and their seed",
    "open_set": "texts that no model of the atlas was tuned on",
    "disjoint": "a base that never read the data sets, usual rates",
    "methods": "other methods on the same folds",
    "confounders": "habits that go with the data",
    "lineage": "lineage beyond its generator",
    "ablations": "what each step of the vectors is worth",
}


def run_part(name: str, out: Path) -> Json:
    """The figures of one part, which are kept in docs/arena.json."""
    part = importlib.import_module(f"scripts.arena.{name}")
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    figures: Json = part.run(out)
    everything = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    everything[name] = figures
    ordered = {key: everything[key] for key in PARTS if key in everything}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in ordered.items())  # a line a part
    FIGURES.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    return figures


def tables_of(name: str, figures: Json) -> str:
    """The tables of one part, as Markdown."""
    text: str = importlib.import_module(f"scripts.arena.{name}").tables(figures)
    return text.strip()


def write_page() -> None:
    """Put the tables of every part with figures between its markers in docs/arena.md.

    Raises ValueError if the page has no markers for a part.
    """
    everything = json.loads(FIGURES.read_text(encoding="utf-8"))
    fill(PAGE, {f"arena:{name}": tables_of(name, figures) for name, figures in everything.items()})
