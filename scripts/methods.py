"""Writes ``query/faces/methods.pyi``: the methods that questions give to Atlas, for type checkers and editors.

    python -m scripts.methods

Run it after a change of the entry points in pyproject.toml. What a question takes and answers is not copied: the stub names
its function.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from query.contract.registry import GROUP

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "query" / "faces" / "methods.pyi"

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
    """The text of the stub."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    imports, methods = ["from query.models.reader import AtlasReader"], []
    for name, place in project["entry-points"][GROUP].items():
        module, _, function = place.partition(":")
        name = name.rpartition(".")[2]
        imports.append(f"from {module} import {function} as _{name}")
        methods.append(f"    {name} = method(_{name})")
    return _HEAD.format(imports="\n".join(sorted(imports)), methods="\n".join(sorted(methods)))


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
