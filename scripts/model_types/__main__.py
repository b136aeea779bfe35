"""Write docs/architectures.md; with ``--build`` build every model type first, and write docs/architectures.json."""

from __future__ import annotations

import json

import click
import transformers

from scripts.model_types.sweep import sweep
from scripts.model_types.table import PAGE, STORED, page


@click.command(help=__doc__)
@click.option("--build", is_flag=True, help="Build the types again, a quarter of an hour.")
@click.argument("chosen", nargs=-1)
def main(build: bool, chosen: tuple[str, ...]) -> None:
    """``chosen``: model types to build again; by default all."""
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {"model types": {}}
    if build or chosen:
        stored["transformers"] = transformers.__version__
        found = sweep(chosen)
        stored["model types"] = stored["model types"] | found if chosen else found
        STORED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(stored["model types"], stored["transformers"]), encoding="utf-8")


if __name__ == "__main__":
    main()
