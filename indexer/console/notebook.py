"""Results as HTML for notebooks: a sentence, a picture, tables. Strings are escaped; no library is needed."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from indexer.console.messages import clean
from indexer.console.output import cell_text

MOST_ROWS = 20  # of a table; the rest is counted
_TABLE_STYLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"


def shown(sentence: str, table: Any, notes: Iterable[str] = (), picture: bytes | None = None) -> str:
    """The HTML of a result. ``table``: rows, or an object of facts and tables; ``picture``: a PNG, shown instead."""
    parts = [f"<p>{_text(sentence)}</p>"] if sentence else []
    if picture is not None:
        image = base64.b64encode(picture).decode()
        alternative = html.escape(clean(sentence))
        parts.append(f'<img alt="{alternative}" style="max-width:100%" src="data:image/png;base64,{image}">')
    else:
        # An object: its facts as a table of two columns, then the tables in it, each below its name.
        tables = [("", table)]
        if isinstance(table, Mapping):
            tables, lines = [], []
            for name, value in table.items():
                if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
                    tables.append((name, value))
                else:
                    lines.append(f'<tr><th style="text-align:left">{_text(name)}</th>{_cell(value)}</tr>')
            parts += [f'<table style="{_TABLE_STYLE}"><tbody>{"".join(lines)}</tbody></table>'] if lines else []
        for name, rows in tables:
            parts.append((f"<p><b>{_text(name)}</b></p>" if name else "") + _rows(rows))
    parts += [f"<p><small>{_text(note)}</small></p>" for note in notes]
    return f"<div>{''.join(parts)}</div>"


def _text(string: str) -> str:
    """An escaped string, without anything that hides or reorders text."""
    return html.escape(clean(string))


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of rows, at most MOST_ROWS of them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return "<p>no rows</p>"
    head = "".join(f'<th style="text-align:left">{_text(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(_cell(row.get(name)) for name in names)}</tr>" for row in rows[:MOST_ROWS])
    rows_left_out = len(rows) - MOST_ROWS
    more = f"<p><small>{rows_left_out:,} more rows: to_df() has them all</small></p>" if rows_left_out > 0 else ""
    return f'<table style="{_TABLE_STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'


def _cell(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f'<td style="text-align:{"right" if is_number else "left"}">{html.escape(cell_text(value))}</td>'
