"""Purity of vectors of several makes, from the records of an atlas: a table in Markdown for every base."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from indexer.errors import AtlasError
from query import Atlas
from query.purity.purity import PurityScore
from scripts.vectors.scores import scores_of, without_the_asked
from scripts.vectors.variants import makes, read_family

HEAD = "| vectors | all | across authors | adapter → full | full only |\n|---|---|---|---|---|"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m scripts.vectors", description=__doc__)
    parser.add_argument("--atlas", default="atlas", help="an atlas whose records hold factors (default: %(default)s)")
    parser.add_argument("--bases", nargs="+", metavar="ID", help="default: all")
    options = parser.parse_args(arguments)
    try:
        with Atlas(options.atlas) as atlas:
            for base in options.bases or atlas.bases():
                tell(atlas, atlas.base_named(base))
    except AtlasError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def tell(atlas: Atlas, base: str) -> None:
    """Print the table of one base."""
    family = read_family(atlas, base)
    labelled = sum(map(bool, family.population.datasets))
    print(f"\n### {base}: {labelled} models with a data set, {family.matrices} matrices\n\n{HEAD}")
    for name in makes(family):
        found = scores_of(family, name)
        cells = [told(found.all), told(found.across), decimal(found.adapter_to_full), told(found.full)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        if "version 2" in name:
            left_out = decimal(without_the_asked(family, name))
            print(f"| the same, the asked data set left out of the centre | {left_out} | | | |")
            chance = [decimal(one.chance) for one in (found.all, found.across)]
            after = f"| chance | {' | '.join(chance)} | | {decimal(found.full.chance)} |"
    print(after)


def told(score: PurityScore) -> str:
    """.92 (.87–.96)."""
    span = "" if score.ci_low is None else f" ({decimal(score.ci_low)}–{decimal(score.ci_high)})"
    return decimal(score.purity) + span


def decimal(number: float | None) -> str:
    """Three digits, without the zero before the point."""
    return "–" if number is None else f"{number:.3f}".replace("0.", ".", 1)


if __name__ == "__main__":
    sys.exit(main())
