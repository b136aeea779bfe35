"""Options that several commands of `index` share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from indexer.console.advice import for_command_line
from indexer.console.completion import complete_base
from indexer.console.messages import say
from indexer.console.option import Described, Option, click_parameter, described, is_negated

if TYPE_CHECKING:
    from indexer.builds.report import BuildEvent

Command = TypeVar("Command", bound=Callable[..., Any])


def print_note(event: BuildEvent) -> None:
    """Print the message of an event: the ``progress`` of commands without a bar."""
    say(for_command_line(event.message))


def base_option(text: str, *name: str, **options: Any) -> Any:
    """``--base``, completed with the bases of the atlas."""
    return click.option("--base", *name, metavar="ID", shell_complete=complete_base, help=text, **options)


def options_for(source: Callable[..., Any], *names: str, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """The options that a data class or a function describes: all, only those in ``names``, or those ``without`` some.

    The command receives them by their names. Of a flag that is True by default there is only ``--no-NAME``, unless it
    has a spelling of its own.
    """
    chosen = [
        option for option in described(source) if (option.name in names or not names) and option.name not in without
    ]
    negated = [option.name for option in chosen if is_negated(option.type, option.option, option.default)]

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(**values: Any) -> Any:
            return command(**values | {name: not values.pop(f"no_{name}") for name in negated})

        made = [_parameter(option) for option in chosen]
        # As click's decorators do: the last of a command's parameters comes first.
        wrapped.__click_params__ = [*getattr(command, "__click_params__", ()), *reversed(made)]  # type: ignore[attr-defined]
        return cast(Command, wrapped)

    return decorated


def _parameter(parameter: Described) -> click.Parameter:
    """The click option, whose text names other options as they are typed."""
    option = parameter.option
    if isinstance(option, Option):
        option = replace(option, help=for_command_line(option.text))
    return click_parameter(parameter.name, parameter.type, option, parameter.default)
