"""Advice in terms of Python's arguments, as it is typed on the command line, or given to the tools of an agent.

Messages of the library name arguments and calls in backticks: `base='ID'`, `count`, `build('ID', spectra=True)`. A
Python user reads them as they are; the command line shows them as ``--base ID``, ``--count`` and
``index build --base ID --spectra``. What stands in backticks and is neither (a command, say) stays.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

# Functions and methods, the commands that call them, and the options of their positional arguments ("": none).
COMMANDS = {
    "build": ("index build", ("--base",)),
    "add": ("index add", ("", "--base")),
    "atlas.similar": ("query similar", ("",)),
    "atlas.show": ("query show", ("",)),
    "atlas.layers": ("query layers", ("",)),
    "atlas.compare": ("query compare", ("", "")),
    "atlas.sql": ("query sql", ("",)),
    "atlas.predict": ("query predict", ("",)),
    "atlas.purity": ("query purity", ("--base",)),
    "atlas.clusters": ("query clusters", ("--base",)),
    "atlas.map": ("query map", ("--base",)),
    "atlas.rank": ("query rank", ("--base",)),
    "atlas.report": ("query report", ("--base",)),
    "atlas.lineage": ("query lineage", ("", "--base")),
    "atlas.lineages": ("query lineage --all", ("--base",)),
    "atlas.models": ("query models", ("",)),
    "atlas.datasets": ("query datasets", ("",)),
    "atlas.invert": ("query invert", ("", "")),
}
# Arguments whose option has another name.
OPTIONS = {"k": "-k", "seconds": "--timeout", "path": "--out", "atlas": "--atlas", "images": "--image"}
_IN_BACKTICKS = re.compile(r"`([^`]+)`")


def as_typed(text: str) -> str:
    """``text`` with every argument and call in backticks as the command line spells it."""
    return _IN_BACKTICKS.sub(lambda found: _typed(found[1]) or found[0], text)


def as_called(text: str, tools: Mapping[str, Sequence[str]]) -> str:
    """``text`` with every argument and call in backticks as an agent's tools take them.

    ``tools``: the arguments of each, in order. "" where ``text`` calls a function that is not one of them: the agent
    cannot take that advice.
    """
    calls = [call for code in _IN_BACKTICKS.findall(text) if (call := _call(code)) is not None]
    if any(name and name.removeprefix("atlas.") not in tools for name, _, _ in calls):
        return ""

    def called(found: re.Match[str]) -> str:
        call = _call(found[1])
        if call is None:
            return found[1]
        name, places, named = call
        tool = name.removeprefix("atlas.")
        given = dict(zip(tools[tool], places, strict=False)) | named if tool else named
        words = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items())
        return f"{tool}({words})" if tool else words

    return _IN_BACKTICKS.sub(called, text)


def _call(code: str) -> tuple[str, list[Any], dict[str, Any]] | None:
    """The function ("" for arguments alone), its values by place and by name; None where it is neither."""
    try:
        call = ast.parse(code if code.endswith(")") else f"_({code})", mode="eval").body
        if not isinstance(call, ast.Call):
            return None
        places = [ast.literal_eval(value) for value in call.args]
        named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError):
        return None
    name = ast.unparse(call.func)
    if name != "_":
        return name, places, named
    return None if places or not named else ("", [], named)


def _typed(code: str) -> str | None:
    """One of them; None where it is neither."""
    if code.isidentifier():
        return option_of(code)
    call = _call(code)
    if call is None:
        return None
    name, places, named = call
    if not name:
        return " ".join(_words(named))
    if name not in COMMANDS:
        return None
    command, options = COMMANDS[name]
    words = [command]
    for option, value in zip(options, places, strict=False):
        words += [option, shlex.quote(str(value))] if option else [shlex.quote(str(value))]
    return " ".join(words + _words({key: value for key, value in named.items() if key != "store"}))


def option_of(name: str, value: Any = True) -> str:
    """The option of an argument: ``--other-authors``, ``--no-kin`` where it is False."""
    return OPTIONS.get(name, f"--{'no-' if value is False else ''}{name.replace('_', '-')}")


def _words(named: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in named.items():
        words += [option_of(name, value)] if isinstance(value, bool) else [option_of(name), shlex.quote(str(value))]
    return words
