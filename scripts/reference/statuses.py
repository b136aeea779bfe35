"""Exit statuses: those of every command, and what single commands say of theirs in their help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from indexer.console.terminal import EXIT_STATUSES
from scripts.reference.commands import GROUPS, commands_of
from scripts.reference.markup import cell

_HEAD = """\
# Exit statuses

Written by `python -m scripts.reference` from the program and from what `--help` says.

| status | every command |
|---|---|
"""
_SAID = re.compile(r"\bexit(?:s with| status)?\b(?: is)? \d|\bstatus\b", re.IGNORECASE)


def page() -> str:
    """The text of the page."""
    every = "".join(f"| {status} | {cell(about)} |\n" for status, about in EXIT_STATUSES.items())
    own = "".join(f"| `{command}` | {cell(said)} |\n" for command, said in _said())
    return f"{_HEAD}{every}\nSome commands answer by their status:\n\n| command | |\n|---|---|\n{own}"


def _said() -> Iterator[tuple[str, str]]:
    for program, group in GROUPS.items():
        for name, command, context in commands_of(group):
            for sentence in re.split(r"(?<=[.;]) ", " ".join(inspect.cleandoc(command.help or "").split())):
                if _SAID.search(sentence):
                    yield f"{program} {name}", sentence
            for option in command.get_params(context):
                about = getattr(option, "help", None) or ""
                if _SAID.search(about):
                    yield f"{program} {name} {max(option.opts, key=len)}", about
