"""The keys of every answer, from the fields of their classes."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from query.contract.glossary import answers_of
from query.contract.registry import OURS, commands
from query.contract.results import Column, Data, Detail, If, OnRequest, Result, Shown, columns, row_class_in

_HEAD = """\
# Keys of answers

Written by `python -m scripts.reference` from the fields of the classes, which `query COMMAND --help`, `query help WORD` and the
schemas of the agents' tools show, too. In Python, each key is an attribute of the same name (`class` is `class_`). A list of
rows is what `--format csv` and `jsonl` print, and JSON where the answer is a list; the object is JSON elsewhere, and
`to_dict()` always.
"""


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for command, entries in commands().items():
        if entries[0].package == OURS:
            parts.append(f"\n## query {command}\n")
            parts += [_answer(answer) for answer in answers_of(command)]
    return "".join(parts)


def _answer(answer: type[Result]) -> str:
    """The tables of one class: its rows, its object, and what stands in these."""
    parts = [f"\n### {answer.__name__}\n"]
    rows = answer.row_columns()
    if rows:
        what = "JSON is the list of rows." if answer.IS_LIST else "JSON is the object."
        parts.append(f"\nRows. {what}\n\n{_table(rows)}")
    if answer.TABLE_COLUMNS:
        lines = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in answer.TABLE_COLUMNS.items())
        parts.append(f"\nOther columns\n\n| column | what it means |\n|---|---|\n{lines}")
    known = columns(answer)
    if known:
        parts.append(f"\nThe object\n\n{_table(known)}")
    parts += [f"\n`{name}`\n\n{_table(columns(inner))}" for name, inner in _within((*known, *rows), {row_of(answer)})]
    return "".join(parts)


def row_of(answer: type[Result]) -> Any:
    """The class of the rows of an answer, which have a table already."""
    return next((row_class_in(one.type) for one in columns(answer) if one.name == answer.ROWS), None)


def _within(known: Iterable[Column], seen: set[Any]) -> list[tuple[str, type[Any]]]:
    """The keys that hold rows or objects, with the classes of these; each class once."""
    found = []
    for column in known:
        if column.is_heading:
            continue
        inner = row_class_in(column.type)
        if inner is not None and inner not in seen and not issubclass(inner, Result):
            seen.add(inner)
            found += [(column.key, inner), *_within(columns(inner), seen)]
    return found


def _table(known: Iterable[Column]) -> str:
    known = list(known)
    headings = {shown.heading for one in known if (shown := one.marker(Shown)) is not None}
    lines = "".join(f"| `{one.key}` | {one.doc}{_remark(one, headings)} |\n" for one in known if not one.is_heading)
    return f"| key | what it means |\n|---|---|\n{lines}"


def _remark(column: Column, headings: Container[str]) -> str:
    condition: If | None = column.marker(If)
    remarks = [
        "in tables only with `--details`" if column.marker(Detail) else "",
        ("in tables in another form" if column.key in headings else "in no table") if column.marker(Data) else "",
        "only on request" if column.marker(OnRequest) else "",
        "only in tables" if column.marker(Shown) else "",
        "left out where there is none" if condition is not None and not condition.in_tables else "",
    ]
    said = "; ".join(filter(None, remarks))
    return f" *({said})*" if said else ""
