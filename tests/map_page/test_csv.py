"""The CSV that a page saves, cell by cell as the commands write it."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess

import pytest

from indexer.console.output import as_csv
from query.questions.map.page import page_file

CELLS = [
    "=1+1", "+1", "-2", "@x", "\tx", "\rx", "\nx", "＝1", " =1", "'", "a,b", 'a"b', "a;b", "a\nb", "a\r\nb", "\x00\x1b[31mx\x7f\x9f",
    "", None, 0, -2, 1.5, True, False, "é 😀", "\ud83d", "\ude00x", "a\u2028b",
]  # fmt: skip


def saved(rows):
    """What the script of a page writes for rows of cells."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    script = page_file("map_table.js").partition("// ---- CSV ----")[2].partition("// Saves rows")[0]
    script += f"process.stdout.write({json.dumps(rows)}.map(csvLine).join(''));"
    return subprocess.run(["node", "-"], input=script.encode(), stdout=subprocess.PIPE, check=True).stdout.decode()


def test_it_is_that_of_the_commands():
    rows = [[cell, "x"] for cell in CELLS]
    written = saved(rows)
    assert (
        list(csv.reader(io.StringIO(written, newline="")))
        == list(
            csv.reader(
                io.StringIO(as_csv([{"a": first, "b": second} for first, second in rows], ["a", "b"]), newline="")
            )
        )[1:]
    )


def test_a_row_of_one_empty_cell_is_a_row():
    assert saved([["=a"], [None], ["x"], [""]]) == '\'=a\n""\nx\n""\n'


def test_an_entry_of_a_list_is_part_of_one_cell():
    (row,) = csv.reader(io.StringIO(saved([[["=1", 'a"b', None], {"a": [1]}]]), newline=""))
    assert [json.loads(cell) for cell in row] == [["=1", 'a"b', None], {"a": [1]}]
