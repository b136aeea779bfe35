"""Is the kind of a change recognised? Planted changes, against ordinary trainings of the same base.

    python -m scripts.family --out FAMILY [--architecture gpt2]     # a base with fine-tunes; or studies.arena, for a real one
    python -m studies.kinds FAMILY… [--each 20] [--seeds 2] [--rows ROWS.json] [--json docs/evidence/kinds.json]
    python -m studies.kinds --page docs/evidence/kinds.md

The rows of every family are kept beside ``--rows``; what is there is not made again. ``--json`` adds a summary of each
family, from which ``--page`` writes the tables.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.child import PROJECT
from studies.identify import auroc
from studies.kinds.changes import PLANTED
from studies.kinds.study import ORDINARY, base_of, fine_tunes_in, ordinary, planted, recipes
from studies.kinds.weights import Reader, Weights

SUMMARY = PROJECT / "docs/evidence/kinds.json"
_TRAINED = 4  # fine-tunes in which changes are planted
Rows = Sequence[Mapping[str, Any]]


def rows_of(family: Path, each: int, seeds: int) -> list[dict[str, Any]]:
    """All rows of one family."""
    base = base_of(family)
    fine_tunes = fine_tunes_in(family)
    with tempfile.TemporaryDirectory() as folder:
        reader, weights = Reader(base, Path(folder)), Weights.read(base)
        rows = list(ordinary(reader, fine_tunes))
        rows += recipes(reader, base, weights, range(seeds))
        step = max(1, len(fine_tunes) // _TRAINED)
        trained = [model for path in fine_tunes[::step] if _is_like(model := Weights.read(path), weights)]
        rows += planted(reader, weights, trained, each)
    return rows


def _is_like(weights: Weights, base: Weights) -> bool:
    return weights.keys == base.keys


def summary_of(rows: Rows) -> dict[str, Any]:
    """Counts, false alarms, and for each planted change and strength how often it is recognised."""
    null = [row for row in rows if row["kind"] == ORDINARY]
    alarms = [row for row in null if row["label"] != "trained"]
    kinds = list(dict.fromkeys(row["kind"] for row in rows if row["kind"] != ORDINARY))
    groups: dict[tuple[str, str, Any], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["kind"] != ORDINARY:
            groups[row["kind"], row["change"], row["strength"]].append(row)
    return {
        "ordinary": len(null),
        "false_alarms": [
            {name: row[name] for name in ("label", "probability", "change", "strength", "dtype")} for row in alarms
        ],
        "kinds": {kind: _scores(kind, [row for row in rows if row["kind"] == kind], null) for kind in kinds},
        "changes": [
            {"kind": kind, "change": change, "strength": strength, **_scores(kind, some, null)}
            for (kind, change, strength), some in groups.items()
        ],
    }  # fmt: skip


def _scores(kind: str, rows: Rows, null: Rows) -> dict[str, Any]:
    """How one kind of change is recognised in the base, and in fine-tunes."""
    scores: dict[str, Any] = {"models": len(rows)}
    against = np.array([row["scores"].get(kind, 0.0) for row in null])
    for place, name in (("base", "of_base"), ("fine-tune", "of_fine_tunes")):
        some = [row for row in rows if row["on"] == place]
        if some:
            values = np.array([row["scores"].get(kind, 0.0) for row in some])
            labels = Counter(row["label"] for row in some)
            scores[name] = {
                "models": len(some), "auroc": round(auroc(values, against), 4),
                "labelled": round(labels[kind] / len(some), 4),
                "others": {label: count for label, count in labels.most_common() if label != kind},
            }  # fmt: skip
    return scores


def write_page(page: Path, summary: Mapping[str, Any]) -> None:
    """Write the tables between the marks of a page."""
    bases = list(summary)
    kinds = list(dict.fromkeys(kind for base in bases for kind in summary[base]["kinds"]))
    names = [base.rpartition("/")[2] for base in bases]
    lines = ["| kind | " + " | ".join(names) + " |", "|---" * (1 + len(bases)) + "|"]
    for kind in kinds:
        lines.append(f"| {kind} | " + " | ".join(_cell(summary[base]["kinds"].get(kind)) for base in bases) + " |")
    counts = [f"{len(summary[base]['false_alarms'])} of {summary[base]['ordinary']}" for base in bases]
    lines += ["| ordinary, labelled otherwise | " + " | ".join(counts) + " |", ""]
    lines += ["| planted | strength | " + " | ".join(names) + " |", "|---" * (2 + len(bases)) + "|"]
    rows = {(row["change"], str(row["strength"])): row for base in bases for row in summary[base]["changes"]}
    for change, strength in rows:
        cells = []
        for base in bases:
            found = [
                row for row in summary[base]["changes"] if (row["change"], str(row["strength"])) == (change, strength)
            ]
            cells.append(_cell(found[0] if found else None))
        unit = f" {PLANTED[change].unit}" if change in PLANTED else ""
        lines.append(f"| {change} | {strength}{unit} | " + " | ".join(cells) + " |")
    text = page.read_text(encoding="utf-8")
    before, after = text.partition("<!-- kinds -->")[0], text.partition("<!-- /kinds -->")[2]
    table = "\n".join(lines)
    page.write_text(f"{before}<!-- kinds -->\n{table}\n<!-- /kinds -->{after}", encoding="utf-8")


def _cell(scores: Mapping[str, Any] | None) -> str:
    """AUROC and share labelled right, in the base and in fine-tunes."""
    if scores is None:
        return ""
    cells = [scores[name] for name in ("of_base", "of_fine_tunes") if name in scores]
    return "; ".join(f"{cell['auroc']:.3f} ({cell['labelled']:.0%})" for cell in cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the rows of each family, print a summary, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", type=Path)
    parser.add_argument("--each", type=int, default=20, help="models of each planted change (default: 20)")
    parser.add_argument("--seeds", type=int, default=2, help="of each recipe (default: 2)")
    parser.add_argument("--rows", type=Path, default=Path(".demo/kinds"), help="folder of the rows of each family")
    parser.add_argument("--json", type=Path, default=SUMMARY)
    parser.add_argument("--page", type=Path)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    chosen.rows.mkdir(parents=True, exist_ok=True)
    for family in chosen.families:
        kept = chosen.rows / f"{family.resolve().name}.json"
        if not kept.exists():
            began = time.monotonic()
            kept.write_text(json.dumps(rows_of(family, chosen.each, chosen.seeds)), encoding="utf-8")
            print(f"{family.name}: {time.monotonic() - began:.0f} s")
        rows = json.loads(kept.read_text(encoding="utf-8"))
        base = base_of(family).relative_to(family).as_posix()
        summary = json.loads(chosen.json.read_text(encoding="utf-8")) if chosen.json.exists() else {}
        summary[base] = summary_of(rows)
        chosen.json.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        alarms = summary[base]["false_alarms"]
        print(f"{base}: {len(alarms)} of {summary[base]['ordinary']} ordinary models are labelled otherwise: {alarms}")
        for kind, scores in summary[base]["kinds"].items():
            print(f"  {kind:22} {scores}")
    if chosen.page is not None:
        write_page(chosen.page, json.loads(chosen.json.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
