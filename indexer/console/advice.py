"""Advice in terms of Python's arguments, as options of the command line.

Messages of the library name arguments and calls in backticks: `base='ID'`, `count`, `build('ID', spectra=True)`. A
Python user reads them as they are; the command line shows ``--base ID``, ``--count`` and
``index build --base ID --spectra``. Other text in backticks (a command, say) stays.
"""

from __future__ import annotations

import ast
import re
import shlex
from typing import Any

# The options of positional arguments, for calls whose command takes an option ("": the command takes an argument).
_POSITIONAL = {
    "build": ("--base",), "add": ("", "--base"), "deepen": ("",), "find_starts": ("",), "atlas.lineages": ("--base",),
}  # fmt: skip
# Functions whose command has another name.
_COMMANDS = {"find_starts": "starts"}
# Arguments whose option has another name.
OPTIONS = {"k": "-k", "seconds": "--timeout", "path": "--out", "atlas": "--atlas", "images": "--image"}
IN_BACKTICKS = re.compile(r"`([^`]+)`")


def for_command_line(text: str) -> str:
    """``text`` with every argument and call in backticks as options and commands."""
    return IN_BACKTICKS.sub(lambda found: _as_options(found[1]) or found[0], text)


def parse_call(code: str) -> tuple[str, list[Any], dict[str, Any]] | None:
    """The function ("" for arguments alone), its values by place and by name; None if ``code`` is neither."""
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


def _as_options(code: str) -> str | None:
    if code.isidentifier():
        return option_of(code)
    call = parse_call(code)
    if call is None:
        return None
    name, places, named = call
    words = []
    if name.startswith("atlas."):
        words = ["query lineage --all" if name == "atlas.lineages" else f"query {name.removeprefix('atlas.')}"]
        named.pop("store", None)  # `query lineage --all` always stores
    elif name in _POSITIONAL:
        words = [f"index {_COMMANDS.get(name, name)}"]
    elif name:
        return None
    options = (*_POSITIONAL.get(name, ()), *[""] * len(places))
    for option, value in zip(options, places, strict=False):
        values = value if isinstance(value, list) else [value]
        words += [*([option] if option else []), *(shlex.quote(str(one)) for one in values)]
    for argument, value in named.items():
        words.append(option_of(argument, value))
        if not isinstance(value, bool):
            words.append(shlex.quote(str(value)))
    return " ".join(words)


def option_of(name: str, value: Any = True) -> str:
    """The option of an argument: ``--other-authors``, or ``--no-kin`` if ``value`` is False."""
    return OPTIONS.get(name, f"--{'no-' if value is False else ''}{name.replace('_', '-')}")
