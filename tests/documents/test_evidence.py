"""Pages of docs/evidence say what they claim and on what it was measured; pages of docs/guide have few numbers."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

EVIDENCE = sorted(path for path in (ROOT / "docs/evidence").glob("*.md") if path.name != "index.md")
GUIDE = sorted((ROOT / "docs/guide").glob("*.md"))
MOST_FIGURES = 2.0  # decimal numbers in a hundred words

_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_FIGURE = re.compile(r"(?<![\w.])\d*\.\d+(?![\w.]*\w)|\d+ %")


@pytest.mark.parametrize("page", EVIDENCE, ids=lambda page: page.stem)
def test_a_page_of_evidence_begins_with_claim_and_population(page):
    beginning = page.read_text(encoding="utf-8").partition("\n## ")[0]
    assert re.search(r"^\*\*Claims?\.\*\* ", beginning, re.MULTILINE)
    assert re.search(r"^\*\*Population\.\*\* |^\| what \| population \|", beginning, re.MULTILINE)
    assert f"]({page.name})" in (ROOT / "docs/evidence/index.md").read_text(encoding="utf-8")


def test_a_script_that_is_gone_is_named_with_its_commit():
    for page in [*EVIDENCE, *GUIDE]:
        assert not re.search(r"(?:is|are|in|of) the\s+history\b", page.read_text(encoding="utf-8")), page


def figures(text: str) -> float:
    """Decimal numbers and percentages in a hundred words, without blocks of code."""
    text = _FENCED.sub("", text)
    return 100 * len(_FIGURE.findall(text)) / len(text.split())


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_a_page_of_the_guide_has_few_figures(page):
    assert figures(page.read_text(encoding="utf-8")) <= MOST_FIGURES


def test_figures_are_counted():
    assert figures("a .91 b 3.4 % c version 4 d e\n```text\n.5 .6\n```\n") == pytest.approx(100 * 2 / 10)
    assert figures("0.2.0 and 1.10") == pytest.approx(100 / 3)
