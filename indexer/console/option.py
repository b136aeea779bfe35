"""The one description of an option: its text, bounds and spelling, for calls from Python, a shell and an agent.

An argument of a function is described where it is declared: ``k: Annotated[int, Option("Number of models.")]``. What
checks calls, the command line and the agents' tools are made from that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from indexer.arguments import annotation_of

if TYPE_CHECKING:
    import click

Completes = Literal["", "model", "base", "representation"]


@dataclass(frozen=True)
class Option:
    """What is known of an option besides its name and type.

    Attributes:
        help: its text in ``--help``, or a function of no arguments that gives it and is called only where it is shown;
            elsewhere its docstring stands for it.
        least: the smallest number allowed. With ``is_open`` it is itself excluded.
        most: the largest number allowed.
        choices: the only values; those of a Literal need not be repeated.
        metavar: what ``--help`` shows for the value.
        flag: its spellings, separated by spaces, if they are not made from its name: "-k --neighbours".
        is_repeated: it may be given several times.
        is_open: see ``least``.
        usual: what ``--help`` says happens if the option is not given, where that is not a value.
        completes: what a shell offers to complete it with.
        agents: its text for agents, if that is not ``help``.
    """

    help: str | Callable[[], str]
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    flag: str = ""
    is_repeated: bool = False
    is_open: bool = False
    usual: str = ""
    completes: Completes = ""
    agents: str = ""

    @property
    def text(self) -> str:
        """The text in ``--help``."""
        return self.help if isinstance(self.help, str) else self.help()

    @property
    def brief(self) -> str:
        """The same without importing anything."""
        return self.help if isinstance(self.help, str) else inspect.getdoc(self.help) or ""


@dataclass(frozen=True)
class Argument:
    """An argument that a command takes by its place; ``is_repeated``: any number of them.

    Commands show no text for an argument: their help explains it. ``help`` and ``agents`` are as in :class:`Option`.
    """

    help: str = ""
    metavar: str | None = None
    is_repeated: bool = False
    completes: Completes = ""
    agents: str = ""

    @property
    def text(self) -> str:
        """What is known of it."""
        return self.help

    brief = text


@dataclass(frozen=True)
class Described:
    """One argument of a function that has a description. ``default`` is inspect.Parameter.empty if it is required."""

    name: str
    type: Any
    option: Option | Argument
    default: Any

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.default is inspect.Parameter.empty


def described(function: Callable[..., Any]) -> Iterator[Described]:
    """The arguments of ``function``, or the fields of a data class, that have a description, in order."""
    hints = get_type_hints(function, include_extras=True) if isinstance(function, type) else {}
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints.get(parameter.name) or annotation_of(function, parameter.annotation)
        for option in getattr(annotation, "__metadata__", ()):
            if isinstance(option, Option | Argument):
                yield Described(parameter.name, annotation.__origin__, option, parameter.default)


def is_negated(type_: Any, option: Option | Argument, default: Any) -> bool:
    """Whether a command has only ``--no-NAME`` for it: a flag that is True by default, not spelt in its own way."""
    return bool in types_in(type_) and default is True and isinstance(option, Option) and not option.flag


def click_parameter(name: str, type_: Any, option: Option | Argument, default: Any) -> click.Parameter:
    """The parameter of a command for an argument of this type; ``default`` may be inspect.Parameter.empty.

    The command receives the value by ``name``, or that of ``no_NAME`` if it ``is_negated``.
    """
    import click

    settings: dict[str, Any] = {"metavar": option.metavar}
    if option.completes:
        from indexer.console import completion

        settings["shell_complete"] = getattr(completion, f"complete_{option.completes}")
    is_required = default is inspect.Parameter.empty
    if isinstance(option, Argument):
        if option.is_repeated:
            return click.Argument([name], nargs=-1, **settings)
        if not is_required and default is not None:
            settings["default"] = default
        return click.Argument([name], required=is_required, **settings)
    types = types_in(type_)
    if is_negated(type_, option, default):
        name, default = f"no_{name}", False
    spellings = option.flag.split() or [f"--{name.replace('_', '-')}"]
    kind: type[click.Option] = click.Option
    if callable(option.help):
        kind = _explained_late()
        settings |= {"text": option.help, "help": option.brief}
    else:
        settings["help"] = option.help
    if bool in types and "/" not in spellings[0]:
        return kind([*spellings, name], is_flag=True, **settings)
    if is_required:
        settings["required"] = True
    elif default is not None and not (option.is_repeated and not default):
        settings |= {"default": default, "show_default": True}
    if option.usual:
        settings["show_default"] = option.usual
    if choices := choices_in(type_, option):
        settings["type"] = click.Choice(choices)
    elif option.least is not None or option.most is not None:
        settings["type"] = _range(types, option)
    elif default is not None and bool not in types and types <= {int, float, NoneType}:
        settings["type"] = click.FLOAT if float in types else click.INT
    return kind([*spellings, name], multiple=option.is_repeated, **settings)


def choices_in(type_: Any, option: Option) -> tuple[str, ...]:
    """The only values that an option may have; () if there are others."""
    literals = (one for part in types_in(type_) if get_origin(part) is Literal for one in get_args(part))
    return option.choices or tuple(literals)


def types_in(type_: Any) -> set[Any]:
    """The members of a union, or the one type."""
    return set(get_args(type_)) if get_origin(type_) in (Union, UnionType) else {type_}


def _range(types: set[Any], option: Option) -> click.ParamType:
    import click

    from indexer.console.terminal import FiniteRange

    if float in types:
        return FiniteRange(option.least, option.most, min_open=option.is_open)
    least, most = (None if bound is None else int(bound) for bound in (option.least, option.most))
    return click.IntRange(least, most, min_open=option.is_open)


def _explained_late() -> type[click.Option]:
    import click

    class ExplainedLate(click.Option):
        """An option whose text is asked for only when ``--help`` is shown."""

        def __init__(self, *arguments: Any, text: Callable[[], str], **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self._text = text

        def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
            """The option and its text in ``--help``."""
            self.help = self._text()
            return super().get_help_record(ctx)

    return ExplainedLate
