"""The options of a command as a data class, from which its click options and its function's signature are made.

Each field is described once, by an :class:`~indexer.console.option.Option`::

    @dataclass(frozen=True, kw_only=True)
    class GreetOptions(Options):
        count: Annotated[int, Option("How often.", least=1)] = 1

    @with_options(GreetOptions)
    def greet(name: str, *, options: GreetOptions) -> None: ...

``greet("Ann", count=2)`` is how it is called, and what ``help(greet)`` shows. ``python -m scripts.methods`` writes the
same for type checkers.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, TypeVar

from indexer.arguments import kinds_of, plain_value
from indexer.console.option import Described, Option, choices_in, described, is_negated
from indexer.errors import BadArgument

R = TypeVar("R")

_WIDTH = 100  # of a line of a docstring


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a command, checked: a subclass has a described field for each of them. Raises BadArgument.

    Numbers of numpy become Python's. None stands for the default where it is no value of its own.
    """

    def __post_init__(self) -> None:
        for field in options_of(type(self)):
            value = getattr(self, field.name)
            if value is None and "None" not in kinds_of(field.type):
                value = field.default
            self._set(**{field.name: value if value is None else _checked(field, value)})

    def _set(self, **values: Any) -> None:
        """Set fields to what their values mean; for ``__post_init__`` alone."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def part(self, options: type[Options]) -> dict[str, Any]:
        """Those that ``options``, a class that this one is derived from, has too, by name."""
        return {field.name: getattr(self, field.name) for field in fields(options)}


def options_of(options: type[Options]) -> list[Described]:
    """The options that a data class describes, in order."""
    return list(described(options))


def with_options(options: type[Options]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A decorator for a function that takes the fields of ``options`` as keyword arguments.

    The function gets them as one object, ``options``. Its signature and its docstring name them. A call raises
    BadArgument where the data class does.
    """
    described_options = options_of(options)
    names = {described.name for described in described_options}

    def decorated(function: Callable[..., R]) -> Callable[..., R]:
        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> R:
            values = {name: kwargs.pop(name) for name in names & kwargs.keys()}
            return function(*args, **kwargs, options=options(**values))

        signature, keyword = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
        parameters = [described for described in signature.parameters.values() if described.name != "options"]
        added = [inspect.Parameter(described.name, keyword, default=described.default, annotation=described.type)
                 for described in described_options]  # fmt: skip
        wrapped.__signature__ = signature.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
        wrapped.__options__ = options  # type: ignore[attr-defined]  # for scripts.methods
        about = inspect.cleandoc(function.__doc__ or "")
        wrapped.__doc__ = f"{about}\n\nOptions:\n\n{_listed(described_options)}\n"
        return wrapped

    return decorated


def _checked(described: Described, value: Any) -> Any:
    """The value of an option as a plain value. Raises BadArgument if it is outside its type, choices or bounds."""
    value, option = plain_value(described.name, value, kinds_of(described.type)), described.option
    assert isinstance(option, Option)
    if (choices := choices_in(described.type, option)) and value not in choices:
        raise BadArgument(f"`{described.name}` {value!r} is not one of {', '.join(choices)}.", "")
    if option.least is not None and not option.least <= value <= (value if option.most is None else option.most):
        bounds = f"at least {option.least}" if option.most is None else f"from {option.least} to {option.most:,}"
        raise BadArgument(f"`{described.name}` is {value}; it must be {bounds}.", "")
    return value


def _listed(options: Iterable[Described]) -> str:
    """Options as a list for a docstring, each with its default and its text."""
    lines = []
    for option in options:
        default = "" if option.default in (None, ()) else f" ({option.default!r})"
        choices = choices_in(option.type, option.option) if isinstance(option.option, Option) else ()
        about = f"{option.option.brief} One of: {', '.join(choices)}." if choices else option.option.brief
        if is_negated(option.type, option.option, option.default):  # its text says what leaving it out does
            about = f"False: {about[:1].lower()}{about[1:]}"
        text = f"- ``{option.name}``{default}: {about}"
        lines.append(textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join(lines)
