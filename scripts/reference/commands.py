"""The commands and their options, from what ``--help`` prints."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from indexer.cli import main as index
from query.contract.glossary import answers_of
from query.faces.cli import main as query
from scripts.reference.markup import cell, code, prose

GROUPS = {"index": index, "query": query}
_HEAD = """\
# Commands

Written by `python -m scripts.reference` from what `--help` prints. `index` builds atlases, `query` asks them, and `model-atlas` has the
commands of both. [Keys of answers](answers.md) explains the columns, [exit statuses](exit-statuses.md) what a script can test.
"""


def commands_of(group: click.Group) -> Iterator[tuple[str, click.Command, click.Context]]:
    """The commands of a program: name, command, and a context in which its help can be asked for."""
    above = click.Context(group, **group.context_settings)
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        assert command is not None
        if not command.hidden:
            yield name, command, click.Context(command, info_name=name, parent=above)


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for program, group in GROUPS.items():
        for name, command, context in commands_of(group):
            parts.append(f"\n## {program} {name}\n\n{_command(program, name, command, context)}")
    return "".join(parts)


def _command(program: str, name: str, command: click.Command, context: click.Context) -> str:
    usage = " ".join([program, name, *command.collect_usage_pieces(context)])
    lines = [f"```text\n{usage}\n```", *_help(inspect.cleandoc(command.help or ""))]
    records = [record for one in command.get_params(context) if (record := one.get_help_record(context))]
    if records:
        rows = "\n".join(f"| {code(left)} | {cell(right)} |" for left, right in records)
        lines.append(f"| option | |\n|---|---|\n{rows}")
    if program == "query" and _has_answers(name):
        lines.append(f"What it prints: [keys of `query {name}`](answers.md#query-{name}).")
    return "\n\n".join(lines) + "\n"


def _has_answers(name: str) -> bool:
    try:
        return bool(answers_of(name))
    except KeyError:
        return False


def _help(text: str) -> Iterator[str]:
    """Paragraphs; those that click is told not to wrap are examples."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield f"```text\n{inspect.cleandoc(paragraph[2:])}\n```"
        elif paragraph.strip():
            yield prose(" ".join(paragraph.split()))
