"""The tables of docs/scale.md, written between their markers from the JSON of a run; the words around them are ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from scripts.scale.breaking import limits_table
from scripts.scale.constants import constants_from, constants_table
from scripts.scale.costs import LARGE, costs_table
from scripts.scale.figures import markdown, table
from scripts.scale.results import Results, likeness_table

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "scale.md"


def write_document(results: Results, path: Path = DOCUMENT) -> None:
    """Fill every marked part. Raises ValueError where the document lacks a marker or the run a figure."""
    text = path.read_text(encoding="utf-8")
    for name, body in sections(results).items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        found = pattern.search(text)
        if found is None:
            raise ValueError(f"{path} has no part <!-- {name} --> … <!-- /{name} -->")
        begin, end = found.span()
        text = f"{text[:begin]}{found[1]}{body}\n{found[2]}{text[end:]}"
    path.write_text(text, encoding="utf-8")


def sections(results: Results) -> dict[str, str]:
    """The marked parts: Markdown by name."""
    if not results.atlases:
        raise ValueError("the run measured no atlas")
    try:
        constants = constants_from(results.atlases, results.vectors)
    except KeyError as missing:
        raise ValueError(f"the run did not measure {missing.args[0]}") from missing
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    return {
        "machine": f"Measured by `python -m scripts.scale`: {machine}.",
        "likeness": markdown(likeness_table(results.likeness)),
        "measured": markdown(table(results.columns())),
        "constants": markdown(constants_table(constants)),
        "costs": markdown(_code(costs_table(constants), 1)),
        "large": markdown(_code(costs_table(constants, LARGE), 1)),
        "limits": markdown(limits_table(constants)),
    }


def _code(rows: Sequence[Sequence[str]], column: int) -> list[list[str]]:
    """The rows with one column set as code, but for its head."""
    return [list(rows[0])] + [[*row[:column], f"`{row[column]}`", *row[column + 1 :]] for row in rows[1:]]
