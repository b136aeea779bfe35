"""How often the source of a conversion is found and proved.

    python -m studies.conversions [--models 60] [--out docs/evidence/conversions.json] [--page docs/evidence/conversions.md]

Fine-tunes of two bases, with the shapes of Qwen2 and of Llama (whose queries and keys llama.cpp permutes), at
‖δW‖ / ‖W‖ of .1, .01 and .002. Every fourth continues another by a tenth of that, so that each atlas holds models that
are nearly the same. Each is written in each format; nulls are files whose source is not in the atlas.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.tables import markdown
from studies.conversions.study import CALIBRATED, FORMATS, Family, absent, calibrated, sources, tampered

DISTANCES = (0.1, 0.01, 0.002)
BASES = ("qwen2", "llama")


def measure(
    distances: Sequence[float], models: int, asked: int, nulls: int, folder: Path, out: Path | None
) -> dict[str, Any]:
    """All figures, by base, distance and format; those that are in ``out`` are not measured again."""
    figures: dict[str, Any] = {"cells": [], "calibrated": []}
    if out is not None and out.exists():
        figures = json.loads(out.read_text(encoding="utf-8"))
    known = {(cell["base"], cell["distance"], cell["format"]) for cells in figures.values() for cell in cells}
    for distance in sorted(distances):
        for base in BASES:
            if all((base, distance, form) in known for form in (*FORMATS, *CALIBRATED)):
                continue
            with tempfile.TemporaryDirectory(dir=folder) as place:
                family = Family.plant(base, distance, models, Path(place))
                for form in FORMATS:
                    if (base, distance, form) in known:
                        continue
                    cell = {"base": base, "distance": distance, "format": form}
                    cell |= sources(family, form, asked)
                    cell |= {"absent": absent(family, form, nulls), "tampered": tampered(family, form, nulls)}
                    figures["cells"].append(cell)
                    write(out, figures)
                for form in CALIBRATED:
                    if (base, distance, form) in known:
                        continue
                    cell = {"base": base, "distance": distance, "format": form, **calibrated(family, form, nulls)}
                    figures["calibrated"].append(cell)
                    write(out, figures)
    return figures


def write(out: Path | None, figures: dict[str, Any]) -> None:
    """Write the figures so far."""
    if out is not None:
        out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _sum(cells: list[dict[str, Any]], *path: str) -> int:
    total = 0
    for cell in cells:
        value: Any = cell
        for key in path:
            value = value[key]
        total += int(value)
    return total


def _table(rows: list[dict[str, str]]) -> str:
    return markdown([list(rows[0]), *(list(row.values()) for row in rows)]) if rows else ""


def tables(figures: dict[str, Any]) -> str:
    """The tables of the page."""
    rows = []
    for form in FORMATS:
        for distance in DISTANCES:
            cells = [cell for cell in figures["cells"] if (cell["format"], cell["distance"]) == (form, distance)]
            if not cells:
                continue
            rows.append(
                {
                    "format": form,
                    "‖δW‖ / ‖W‖": str(distance).removeprefix("0"),
                    "source first": f"{_sum(cells, 'first')} of {_sum(cells, 'models')}",
                    "first by records": f"{_sum(cells, 'first_by_records')}",
                    "proved": f"{_sum(cells, 'proved')}",
                    "false proofs": f"{_sum(cells, 'false_proofs')} of {_sum(cells, 'pairs'):,} pairs",
                    "residual of the source, of the best other": " / ".join(
                        f"{sum(cell[name] for cell in cells) / len(cells):.3f}" for name in ("residual", "other")
                    ),
                    "asked as by a build": f"{_sum(cells, 'right')} of {_sum(cells, 'asked')} exactly",
                    "source absent": f"{_sum(cells, 'absent', 'unknown')} of {_sum(cells, 'absent', 'models')} unknown",
                    "base alone": f"{_sum(cells, 'absent', 'alone')}",
                    "tampered tensor": f"{_sum(cells, 'tampered', 'named')} of {_sum(cells, 'tampered', 'files')}",
                }
            )
    others = [
        {
            "format": cell["format"], "base": cell["base"], "‖δW‖ / ‖W‖": str(cell["distance"]).removeprefix("0"),
            "consistent with its source, or a model nearly the same": f"{cell['right']} of {cell['models']}",
            "a source named, if its own and those nearly the same are absent": f"{cell['false']} of {cell['models']}",
            "odds, typically": "" if cell["log_odds"] is None else f"10^{cell['log_odds']:.0f}",
        }
        for cell in figures["calibrated"]
    ]  # fmt: skip
    return f"{_table(rows)}\n\n{_table(others)}"


def write_page(page: Path, figures: dict[str, Any]) -> None:
    """Write the tables between the marks of a page."""
    text = page.read_text(encoding="utf-8")
    before, after = text.partition("<!-- conversions -->")[0], text.partition("<!-- /conversions -->")[2]
    page.write_text(f"{before}<!-- conversions -->\n{tables(figures)}\n<!-- /conversions -->{after}", encoding="utf-8")


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distances", type=float, nargs="+", default=DISTANCES, help="‖δW‖ / ‖W‖ of the fine-tunes")
    parser.add_argument("--models", type=int, default=60, help="fine-tunes of each base at each distance")
    parser.add_argument("--asked", type=int, default=20, help="files of each cell that are asked about as by a build")
    parser.add_argument("--nulls", type=int, default=20, help="files of each null, and tampered files, of each cell")
    parser.add_argument("--out", type=Path, help="write the figures there (JSON); a later run goes on")
    parser.add_argument("--read", type=Path, help="figures of an earlier run, in place of a run")
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    chosen = parser.parse_args()
    if chosen.read is not None:
        figures = json.loads(chosen.read.read_text(encoding="utf-8"))
    else:
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(chosen.distances, chosen.models, chosen.asked, chosen.nulls, Path(folder), chosen.out)
    if chosen.page is not None:
        write_page(chosen.page, figures)
    print(tables(figures))


if __name__ == "__main__":
    main()
