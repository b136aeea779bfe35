"""Options that several commands of `index` share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import click

from indexer.builds.options import Option, options_of
from indexer.console.advice import for_command_line
from indexer.console.completion import complete_base
from indexer.console.messages import say
from indexer.console.terminal import FiniteRange

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
    negated = [name for name, (_, option) in chosen.items() if option.default is True and not option.flag]

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(**given: Any) -> Any:
            return command(**given | {name: not given.pop(f"no_{name}") for name in negated})

        found: Any = wrapped
        for name, (kind, option) in reversed(chosen.items()):
            found = _click_option(f"no_{name}" if name in negated else name, get_args(kind) or (kind,), option)(found)
        return cast(Command, found)

    return decorated


def _click_option(name: str, kinds: tuple[Any, ...], option: Option) -> Any:
    """The option of an argument of one of these types, as click has it."""
    flag = option.flag or f"--{name.replace('_', '-')}"
    settings: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if bool in kinds and "/" not in flag:
        return click.option(flag, name, is_flag=True, **settings)
    if option.default is not None:
        settings |= {"default": option.default, "show_default": True}
    if option.choices:
        settings["type"] = click.Choice(option.choices)
    elif option.least is not None:
        bounds: type[Any] = FiniteRange if float in kinds else click.IntRange
        settings["type"] = bounds(option.least, option.most)
    return click.option(flag, name, multiple=option.is_repeated, **settings)
