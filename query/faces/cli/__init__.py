"""The command `query`: the questions of the registry, and the commands that are not questions."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

import click

from indexer.console.terminal import AtlasGroup
from query.contract import registry
from query.faces.cli.others import OTHERS

__all__ = ["QueryGroup", "main"]


class Commands(MutableMapping[str, click.Command]):
    """The commands by name, each made from its question on first use."""

    def __init__(self) -> None:
        self._commands: dict[str, click.Command] = {str(command.name): command for command in OTHERS}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._commands:
            from query.faces.cli.asking import command_of

            self._commands[name] = command_of(name, registry.commands()[name])
        return self._commands[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __contains__(self, name: object) -> bool:
        return name in self._commands or name in registry.commands()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*registry.commands(), *self._commands]))

    def __len__(self) -> int:
        return len(list(iter(self)))


class QueryGroup(AtlasGroup):
    """A group whose list of commands imports no question. ``program``: its name at the beginning of examples."""

    program = "query"

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, with its example."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.epilog is None and (example := getattr(command, "example", "")):
            command.epilog = f"\b\nExample:\n  {self.program} {example}"
        return command

    def summary(self, ctx: click.Context, name: str) -> str | None:
        """The first paragraph of the help of a command; None if it is hidden."""
        entries = registry.commands().get(name)
        return super().summary(ctx, name) if entries is None else entries[0].summary() or None


@click.group(cls=QueryGroup, commands=Commands())
def main() -> None:
    """Ask an atlas of fine-tuned models."""
