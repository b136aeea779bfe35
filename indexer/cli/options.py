"""Options that several commands of `index` share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from indexer.builds.options import options_of
from indexer.console.advice import for_command_line
from indexer.console.completion import complete_base
from indexer.console.messages import say
from indexer.console.option import click_parameter, is_negated

if TYPE_CHECKING:
    from indexer.builds.report import BuildEvent

Command = TypeVar("Command", bound=Callable[..., Any])


def print_note(event: BuildEvent) -> None:
    """Print the message of an event: the ``progress`` of commands without a bar."""
    say(for_command_line(event.message))


def base_option(text: str, *name: str, **options: Any) -> Any:
    """``--base``, completed with the bases of the atlas."""
    return click.option("--base", *name, metavar="ID", shell_complete=complete_base, help=text, **options)


def options_for(arguments: type, *names: str) -> Callable[[Command], Command]:
    """The options of a command for the arguments that a TypedDict of ``indexer.builds.options`` lists, or some of them.

    The command receives them by their names. Of a flag that is True by default there is only ``--no-NAME``, unless it
    has a spelling of its own.
    """
    chosen = {name: one for name, one in options_of(arguments).items() if not names or name in names}
    negated = [name for name, (kind, option) in chosen.items() if is_negated(kind, option, option.default)]

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(**given: Any) -> Any:
            return command(**given | {name: not given.pop(f"no_{name}") for name in negated})

        made = [click_parameter(name, kind, option, option.default) for name, (kind, option) in chosen.items()]
        # As click's decorators do: the last of a command's parameters comes first.
        wrapped.__click_params__ = [*getattr(command, "__click_params__", ()), *reversed(made)]  # type: ignore[attr-defined]
        return cast(Command, wrapped)

    return decorated
