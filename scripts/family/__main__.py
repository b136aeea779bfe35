"""The command line: ``python -m scripts.family --out .demo/family [--size full|small|mini]``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from filelock import FileLock

from indexer.errors import AtlasError
from scripts.family.plan import SIZES, load_plan

# Set before anything imports huggingface_hub or torch, here or in the processes started from here.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore::FutureWarning",  # of transformers and PEFT, about each other
    "OMP_WAIT_POLICY": "PASSIVE",  # two threads that spin for each other crawl on a busy machine
}


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Its folder.")
@click.option("--size", type=click.Choice(SIZES), default="full", show_default=True, help="How much of it.")
@click.option("--architecture", default="roberta", show_default=True, help="A table of plan.toml.")
@click.option("--training-seed", type=click.IntRange(0), default=0, help="Other than 0: the same models trained again.")
def main(out: Path, size: str, architecture: str, training_seed: int) -> None:
    """Make a family of small real models; again, to go on with one that was interrupted."""
    os.environ.update(ENVIRONMENT)
    from scripts.family.family import build

    lock = out.resolve().with_name(f".{out.resolve().name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock):
            build(out, load_plan(size, architecture, training_seed))
    except (AtlasError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo("Stopped; the same command goes on from here.", err=True)
        sys.exit(130)
    click.echo(out)


if __name__ == "__main__":
    main()
