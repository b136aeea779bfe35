"""The `index` command: build an atlas and look after it."""

from __future__ import annotations

import click

from indexer.cli.building import BUILDING
from indexer.cli.examples import EXAMPLES
from indexer.cli.profile import profile
from indexer.cli.share import SHARING
from indexer.cli.upkeep import UPKEEP
from indexer.console.terminal import AtlasGroup, handle_sigterm


@click.group(cls=AtlasGroup, examples=EXAMPLES)
def main() -> None:
    """Build an atlas of fine-tuned models: crawl, read, vectorise, publish."""
    handle_sigterm()


for command in (*BUILDING, profile, *UPKEEP, *SHARING):
    main.add_command(command)
