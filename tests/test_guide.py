"""README.md and the pages of docs/guide show what their commands print; `python -m scripts.guide` renews them."""

from __future__ import annotations

import re

import pytest

from scripts import guide

PAGES = guide.PAGES


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    printed, _ = guide.renewed(text, tmp_path)
    assert guide.differences(text, printed) == [], "python -m scripts.guide renews the page"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_of_a_page_are_run_or_say_why_not(page):
    text = page.read_text(encoding="utf-8")
    run = {found["text"] for found in guide.BLOCKS.finditer(text)}
    for fence, block in re.findall(r"^( *```\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
        is_session = re.search(r"^ *(?:\$|>>>) ", block, re.MULTILINE)
        assert not is_session or block in run, f"{fence.strip()} with a session: use console or pycon, not indented"
    assert not re.search(r"<!-- (?:page )?not run(?!: \S.* -->)", text), "a reason is missing"


def renewed(text, tmp_path):
    return guide.renewed(text, tmp_path)[0]


def test_what_a_command_prints_stands_below_it_and_prose_stays(tmp_path):
    text = "# A\n\nText.\n\n```console\n$ query help background --json\nold line\n$ query help author --json\n```\n\nMore.\n"
    found = renewed(text, tmp_path)
    assert found.startswith("# A\n\nText.\n\n```console\n$ query help background --json\n[\n")
    assert "old line" not in found
    assert "]\n\n$ query help author --json\n[\n" in found
    assert found.endswith("]\n```\n\nMore.\n")
    assert renewed(found, tmp_path) == found


def test_as_many_lines_are_shown_as_stand_before_the_dots(tmp_path):
    text = "Text.\n```console\n$ printf '1\\n2\\n3\\n'\nold\nold\n…\n$ echo last\n```\n"
    found = renewed(text, tmp_path)
    assert found == "Text.\n```console\n$ printf '1\\n2\\n3\\n'\n1\n2\n…\n\n$ echo last\nlast\n```\n"
    assert renewed(found, tmp_path) == found
    all_lines = "Text.\n```console\n$ echo 1\nold\n…\n```\n"
    assert renewed(all_lines, tmp_path) == "Text.\n```console\n$ echo 1\n1\n```\n"


def test_a_block_and_a_page_with_a_reason_stay_as_they_are(tmp_path):
    block = "```console\n$ index nothing\nshown\n```\n"
    marked = f"Text.\n\n<!-- not run: needs a network -->\n{block}"
    assert guide.renewed(marked, tmp_path) == (marked, [])
    page = f"# A\n<!-- page not run: needs models of your own -->\n\nText.\n\n{block}"
    assert guide.renewed(page, tmp_path) == (page, [])
    text, failed = guide.renewed(f"<!-- not run: -->\n{block}", tmp_path)  # no reason
    assert "shown" not in text
    assert failed == ["index nothing"]


def test_blocks_share_a_folder_variables_and_names(tmp_path):
    text = (
        "Text.\n```console\n$ export A_NAME=there\n$ echo $A_NAME > file.txt\n```\nText.\n"
        "```pycon\n>>> import os\n>>> text = open('file.txt').read()\n>>> for word in text.split():\n...     print(word)\n```\n"
        "Text.\n```pycon\n>>> text, os.environ['A_NAME']\nold\n>>> 1 / 0\n```\n"
    )
    found, failed = guide.renewed(text, tmp_path)
    assert ">>> for word in text.split():\n...     print(word)\n" in found
    assert "there\n```\nText.\n```pycon\n>>> text, os.environ['A_NAME']\n('there\\n', 'there')\n>>> 1 / 0\n" in found
    assert "ZeroDivisionError: division by zero\n```\n" in found
    assert failed == ["1 / 0"]


def test_only_the_last_digit_may_differ():
    assert guide.differences("a 0.3261 x", "a 0.3262 x") == []
    assert guide.differences("a 1.2e-05", "a 1.25e-05") == []
    assert guide.differences("a 0.3261 x", "a 0.326 x") == []  # JSON has no zero at the end
    for other in ("a 0.3264 x", "a 0.3261 y", "a 0.3261  x", "a 1.3261 x"):
        assert len(guide.differences("a 0.3261 x", other)) == 1, other
    assert guide.differences("3 models", "4 models") == ["'3 models' is shown, '4 models' is printed"]
    assert guide.differences("a\nb", "a") == ["2 lines are shown, 1 are printed"]
