"""The command `model-atlas`: the subcommands of `index` and `query`, where other programs have taken these names."""

from __future__ import annotations

import click

from indexer.cli import EXAMPLES as BUILDING
from indexer.cli import main as index
from indexer.console.terminal import AtlasGroup, handle_sigterm
from query.cli import EXAMPLES as ASKING
from query.cli import main as query

_EXAMPLES = {name: f"model-atlas {text.partition(' ')[2]}" for name, text in (BUILDING | ASKING).items()}


@click.group(cls=AtlasGroup, examples=_EXAMPLES)
@click.pass_context
def main(context: click.Context) -> None:
    """Build an atlas of fine-tuned models and ask it: the subcommands of `index` and `query` in one command."""
    if context.invoked_subcommand in index.commands:
        handle_sigterm()


for command in (*index.commands.values(), *query.commands.values()):
    main.add_command(command)
