"""Writes two stubs for type checkers and editors: the methods that questions give to Atlas, and the functions of ``indexer``.

    python -m scripts.methods

Run it after a change of the entry points in pyproject.toml, or of an option of a command of `index`.
``query/faces/methods.pyi`` names the function of each question; what it takes and answers is not copied.
``indexer/__init__.pyi`` has the signature of each function, into which its options are written (``indexer.console.options``).
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_overloads

import indexer
from indexer.console.options import options_of
from query.contract.registry import GROUP

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "query" / "faces" / "methods.pyi"
INDEXER_STUB = ROOT / "indexer" / "__init__.pyi"

_NAME = re.compile(r"[A-Za-z_]\w*")
# Names of types that have no module of their own, and where they are defined.
_ALIASES = {"Any": "typing", "Confirm": "indexer.builds.report", "Progress": "indexer.builds.report"}

_HEAD = '''\
# Written by scripts/methods.py from the entry points in pyproject.toml.
"""The methods of Atlas that are questions, for type checkers and editors."""

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar, overload

{imports}

P = ParamSpec("P")
R = TypeVar("R")

class Method(Generic[P, R]):
    @overload
    def __get__(self, atlas: None, owner: type) -> Callable[Concatenate[Methods, P], R]: ...
    @overload
    def __get__(self, atlas: Methods, owner: type) -> Callable[P, R]: ...

def method(function: Callable[Concatenate[AtlasReader, P], R]) -> Method[P, R]: ...

class Methods:
{methods}
'''


def stub() -> str:
    """The text of the stub of Atlas."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    imports, methods = ["from query.models.reader import AtlasReader"], []
    for name, place in project["entry-points"][GROUP].items():
        module, _, function = place.partition(":")
        name = name.rpartition(".")[2]
        imports.append(f"from {module} import {function} as _{name}")
        methods.append(f"    {name} = method(_{name})")
    return _HEAD.format(imports="\n".join(sorted(imports)), methods="\n".join(sorted(methods)))


def indexer_stub() -> str:
    """The text of the stub of ``indexer``."""
    types, kept, written = _Types(), [], []
    for name in indexer.__all__:
        function = getattr(indexer, name)
        if not hasattr(function, "__options__"):
            module = "indexer.version" if name == "__version__" else function.__module__
            kept.append(f"from {module} import {name} as {name}")
            continue
        overloads = get_overloads(inspect.unwrap(function))
        if overloads:
            types.imported["typing"].add("overload")
        for declared in overloads or [function]:
            written.append(("@overload\n" if overloads else "") + _signature(name, function, declared, types))
    imports = [f"from {module} import {', '.join(sorted(names))}" for module, names in types.imported.items()]
    return "\n".join(
        [
            "# Written by scripts/methods.py.",
            f'"""{inspect.cleandoc(indexer.__doc__ or "").splitlines()[0]}"""\n',
            *sorted(one for one in imports if not one.startswith("from indexer")),
            "",
            *sorted([*(one for one in imports if one.startswith("from indexer")), *kept]),
            "",
            "__all__ = [",
            *(f'    "{name}",' for name in indexer.__all__),
            "]",
            "\n" + "\n".join(written) + "\n",
        ]
    )


class _Types:
    """Writes types as source, and keeps what has to be imported for that: names by module."""

    def __init__(self) -> None:
        self.imported: dict[str, set[str]] = defaultdict(set)

    def written(self, kind: Any) -> str:
        """The source of a type."""
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            return " | ".join(map(self.written, arguments))
        if origin is Literal:
            self.imported["typing"].add("Literal")
            return f"Literal[{', '.join(map(repr, arguments))}]"
        if origin is not None:
            inner = ["..." if one is ... else self.written(one) for one in arguments]
            return f"{self._named(origin)}[{', '.join(inner)}]"
        return "None" if kind in (None, NoneType) else self._named(kind)

    def copied(self, annotation: str, function: Callable[..., Any]) -> str:
        """An annotation of ``function``, as its source has it."""
        known = inspect.unwrap(function).__globals__
        for name in set(_NAME.findall(annotation)) & known.keys():
            self.imported[_ALIASES.get(name) or known[name].__module__].add(name)
        return annotation

    def _named(self, kind: Any) -> str:
        if kind.__module__ != "builtins":
            self.imported[kind.__module__].add(kind.__name__)
        return str(kind.__name__)


def _signature(name: str, function: Callable[..., Any], declared: Callable[..., Any], types: _Types) -> str:
    """The ``declared`` signature of ``function``, or one of its overloads, with all options."""
    narrowed = inspect.signature(declared)
    options = {one.name for one in options_of(function.__options__)}  # type: ignore[attr-defined]
    lines, is_keyword = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            lines.append("*")
            is_keyword = True
        own = narrowed.parameters.get(parameter.name, parameter)
        is_option = parameter.name in options
        text = types.written(parameter.annotation) if is_option else types.copied(own.annotation, function)
        default = "" if own.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"{parameter.name}: {text}{default}".replace("'", '"'))
    answer = types.copied(narrowed.return_annotation, function)
    return f"def {name}(\n" + "".join(f"    {line},\n" for line in lines) + f") -> {answer}: ..."


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
    INDEXER_STUB.write_text(indexer_stub(), encoding="utf-8")
