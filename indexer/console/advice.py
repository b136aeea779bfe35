"""Advice in terms of Python's arguments, as options of the command line.

Messages of the library name arguments in backticks, `count`, and suggest calls (``indexer.errors.Text``). A Python user
reads them as they are; the command line shows ``--count`` and ``index build --base ID --spectra``. Other text in
backticks (a command, say) stays.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

from indexer.errors import BUILDING, Call, Text

# The options of positional arguments, for calls whose command takes an option ("": the command takes an argument).
_POSITIONAL = {
    "build": ("--base",), "add": ("", "--base"), "deepen": ("",), "find_starts": ("",), "lineages": ("--base",),
}  # fmt: skip
# Functions whose command has another name.
_COMMANDS = {"find_starts": "index starts", "lineages": "query lineage --all"}
# Arguments whose option has another name.
OPTIONS = {
    "k": "-k", "seconds": "--timeout", "path": "--out", "atlas": "--atlas", "images": "--image", "sources": "--from",
    "storage_options": "--storage-option",
}  # fmt: skip
_ARGUMENT = re.compile(r"`([A-Za-z_]\w*)`")


def written(text: str, write: Callable[[Call], str], argument: Callable[[str], str]) -> str:
    """``text`` with what ``write`` makes of each call, and ``argument`` of each argument in backticks."""
    parts = text.parts if isinstance(text, Text) else (text,)
    return "".join(
        write(part) if isinstance(part, Call) else _ARGUMENT.sub(lambda match: argument(match[1]), part)
        for part in parts
    )


def for_command_line(text: str) -> str:
    """``text`` with every argument and call as options and commands."""
    return written(text, as_command, option_of)


def as_command(call: Call) -> str:
    """The command, or the options, that do what the call does."""
    words = []
    if call.function:
        program = "index" if call.function in BUILDING else "query"
        words.append(_COMMANDS.get(call.function, f"{program} {call.function}"))
    options = (*_POSITIONAL.get(call.function, ()), *[""] * len(call.places))
    for option, value in zip(options, call.places, strict=False):
        values = value if isinstance(value, list) else [value]
        words += [*([option] if option else []), *(shlex.quote(str(text)) for text in values)]
    for name, value in call.named.items():
        if (call.function, name) == ("lineages", "store"):  # `query lineage --all` always stores
            continue
        words.append(option_of(name, value))
        if not isinstance(value, bool):
            values = value if isinstance(value, list) else [value]
            words += [shlex.quote(str(text)) for text in values]
    return " ".join(words)


def option_of(name: str, value: Any = True) -> str:
    """The option of an argument: ``--other-authors``, or ``--no-kin`` if ``value`` is False."""
    return OPTIONS.get(name, f"--{'no-' if value is False else ''}{name.replace('_', '-')}")
