"""The pages of docs/reference are those that the code gives: `python -m scripts.reference` renews them."""

from __future__ import annotations

import re

import pytest

from scripts.reference.commands import GROUPS
from scripts.reference.markup import cell, prose
from scripts.reference.pages import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_that_of_the_code(name, monkeypatch):
    monkeypatch.delenv("VECTORS_ATLAS", raising=False)
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == PAGES[name]()


def test_every_command_and_option_is_there():
    text = (FOLDER / "commands.md").read_text(encoding="utf-8")
    for program, group in GROUPS.items():
        for name, command in group.commands.items():
            section = re.split(r"^## ", text.partition(f"\n## {program} {name}\n")[2], maxsplit=1, flags=re.MULTILINE)[
                0
            ]
            assert section, f"{program} {name}"
            for option in command.params:
                if option.param_type_name == "option" and not option.hidden:
                    assert max(option.opts, key=len) in section, (program, name, option.name)


def test_signs_of_a_docstring_are_signs_on_the_page():
    assert prose("``a_b`` of :class:`indexer.Error`, 2*3 <tag> a_b") == "`a_b` of `indexer.Error`, 2\\*3 &lt;tag> a_b"
    assert cell("a | b `c|<d>` `e`\n f") == "a \\| b <code>c&#124;&lt;d&gt;</code> `e` f"
