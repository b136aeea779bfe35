"""The command `model-atlas`: the subcommands of `index` and `query`, for machines where other programs are so named."""

from __future__ import annotations

import click

from indexer.cli import EXAMPLES
from indexer.cli import main as index
from indexer.console.terminal import handle_sigterm
from query.faces.cli import Commands, QueryGroup

_EXAMPLES = {
    name: "\n".join(f"model-atlas {line.partition(' ')[2]}" for line in lines.splitlines())
    for name, lines in EXAMPLES.items()
}


class Both(QueryGroup):
    """The questions, and the commands of `index`."""

    program = "model-atlas"


@click.group(cls=Both, examples=_EXAMPLES, commands=Commands())
@click.pass_context
def main(context: click.Context) -> None:
    """Build an atlas of fine-tuned models and ask it: the subcommands of `index` and `query` in one command."""
    if context.invoked_subcommand in index.commands:
        handle_sigterm()


for command in index.commands.values():
    main.add_command(command)
