"""The command `query`: the questions of the registry, and the commands that are no questions."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

import click

from indexer.console.terminal import AtlasGroup
from query.contract import registry
from query.faces.cli.others import OTHERS

__all__ = ["QueryGroup", "main"]


class Commands(MutableMapping[str, click.Command]):
    """The commands by name, each made from its question when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, click.Command] = {str(one.name): one for one in OTHERS}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._made:
            from query.faces.cli.asking import command_of

            self._made[name] = command_of(name, registry.commands()[name])
        return self._made[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._made or name in registry.commands()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*registry.commands(), *self._made]))

    def __len__(self) -> int:
        return len(list(iter(self)))


class QueryGroup(AtlasGroup):
    """A group whose list of commands imports no question. ``program``: what examples begin with."""

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
