"""``python -m studies.lineage --out DIR``: how good lineage is on forests of several families, compared with MoTHer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from scripts.tables import markdown
from studies.lineage.plan import SHAPES
from studies.lineage.study import ADAPTERS, DEMO

# The thresholds were set on the first one.
SEEDS = {"bert": 11, "gpt2": 22, "roberta": 33}


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The folder for forests, atlases and results.",
)
@click.option(
    "--shape",
    type=click.Choice([*sorted(SHAPES), DEMO, ADAPTERS]),
    default="full",
    show_default=True,
    help="Size of the forest; demo is the demo's family, with the architecture of --family; adapters is a forest of "
    "adapters of a small BERT.",
)
@click.option(
    "--family", "families", multiple=True, type=click.Choice(sorted(SEEDS)), help="Only this family; may be repeated."
)
@click.option("--seed", type=int, help="Seed of the plan, for a new forest; use another folder for each.")
def main(out: Path, shape: str, families: tuple[str, ...], seed: int | None) -> None:
    """Make the forests that do not exist yet, ask for every model's lineage, and print the tables."""
    from studies.lineage.study import study

    out.mkdir(parents=True, exist_ok=True)
    for family in families or ("bert", "gpt2"):
        found = study(out.resolve(), family, shape, SEEDS[family] if seed is None else seed)
        (out / f"{shape}-{family}.results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        click.echo(table(found))


def table(found: dict[str, Any]) -> str:
    """The share that is exactly right by kind and way, as Markdown; precision in brackets if it is not 1."""
    ways = found["ways"]
    first = ways["with dates"]
    rows = [[f"{found['architecture']}, {found['models']} models", "models", *ways]]
    for kind in first:
        cells = []
        for scores in ways.values():
            precision = scores[kind]["precision"]
            shown = f" (P {precision:.2f})" if precision not in (None, 1.0) else ""
            cells.append(f"{scores[kind]['right']:.2f}{shown}")
        rows.append([kind, str(first[kind]["models"]), *cells])
    worst = (
        f"Worst error of a linear or task-arithmetic weight: {first['linear + task arithmetic']['worst_weight']}; "
        f"most read for one model: {first['all']['megabytes']} MB."
    )
    steps = [
        [f"{row['from']} to {row['to']}", str(row["steps"]), f"{row['mean']:.2f}", f"{row['right']:.2f}"]
        for row in found["reliability"]["with dates"]
    ]
    head = ["probability, with dates", "steps", "mean probability", "right"]
    return "\n\n".join([markdown(rows), worst, markdown([head, *steps])])


if __name__ == "__main__":
    main()
