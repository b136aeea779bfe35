"""The pages by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scripts.child import PROJECT
from scripts.reference import answers, commands, python, schema, statuses

FOLDER = PROJECT / "docs" / "reference"

PAGES: Mapping[str, Callable[[], str]] = {
    "answers": answers.page,
    "commands": commands.page,
    "exit-statuses": statuses.page,
    "python": python.page,
    "schema": schema.page,
}
