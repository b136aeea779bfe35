"""Arguments of the functions for users as plain Python values: numbers of numpy become int, float and bool.

The annotation of an argument says what it may be. A boolean is no number here, and a number with a fraction is no
whole number: both are refused in one line that names the argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache, wraps
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

from indexer.errors import BadArgument

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS = ("a whole number", "a number")
_LONGEST = 60  # characters of a value in a message


def plain_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which gets its arguments as ``plain_value`` gives them. It raises BadArgument."""

    @wraps(function)
    def with_plain_arguments(*args: P.args, **kwargs: P.kwargs) -> R:
        places, named = plain_call(function, args, kwargs)
        return function(*places, **named)

    return with_plain_arguments


def plain_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call as ``plain_value`` gives them. Raises BadArgument."""
    kinds = _kinds_by_name(function)
    places = [plain_value(name, value, kinds[name]) for name, value in zip(kinds, args, strict=False)]
    places += args[len(places) :]  # too many: Python says so
    return places, {name: plain_value(name, value, kinds.get(name, frozenset())) for name, value in kwargs.items()}


def plain_value(name: str, value: Any, kinds: frozenset[str]) -> Any:
    """The value of an argument that may be of some ``kinds`` (see ``kinds_of``). Raises BadArgument."""
    value = _plain(value)
    kind = {bool: "bool", int: "int", float: "float", str: "str", type(None): "None"}.get(type(value), "other")
    if not kinds & {"int", "float"} or kind in kinds or kind == "int":
        return value
    if kind == "float" and value.is_integer():
        return int(value)
    if kind in ("str", "None", "other") and "other" in kinds:
        return value
    raise BadArgument(f"`{name}` is {_shown(value)}; it must be {_NUMBERS['float' in kinds]}.", "")


def kinds_of(annotation: Any) -> frozenset[str]:
    """What an annotation, a type or its text, allows: int, float, bool, str, None; "other" for any other type."""
    if isinstance(annotation, str):
        names = [part.strip() for part in annotation.split("|")] if "[" not in annotation else []
    else:
        annotation = (
            getattr(annotation, "__origin__", annotation) if hasattr(annotation, "__metadata__") else annotation
        )
        parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
        names = [getattr(part, "__name__", "") for part in parts]
        names = ["None" if part == "NoneType" else part for part in names]
    plain_names = {"int", "float", "bool", "str", "None"}
    return frozenset(part if part in plain_names else "other" for part in names) or frozenset({"other"})


def annotation_of(function: Callable[..., Any], annotation: Any) -> Any:
    """The type that an annotation of ``function`` means; its text if only type checkers know that."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, inspect.unwrap(function).__globals__)  # the function's own source
    except (NameError, TypeError):
        return annotation


@cache
def _kinds_by_name(function: Callable[..., Any]) -> dict[str, frozenset[str]]:
    parameters = inspect.signature(function).parameters.values()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        parameter.name: kinds_of(annotation_of(function, parameter.annotation))
        for parameter in parameters
        if parameter.kind not in variable
    }


def _plain(value: Any) -> Any:
    """Scalars of numpy as Python's own, also in lists; an iterator as a list, so that it can be read again."""
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    if type(value) is dict:
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterator):
        return [_plain(item) for item in value]
    # Not by the types of numpy, which an argument alone should not import.
    if hasattr(value, "dtype") and hasattr(value, "tolist") and getattr(value, "ndim", 2) < 2:
        return value.tolist()
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
