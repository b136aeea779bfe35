"""Relative links and anchors of all pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_MENTION = re.compile(r"\bdocs/(?:guide|reference|evidence|[\w-]+\.(?:md|json|png|ipynb))[\w./-]*(?:#[\w-]+)?")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCED.sub("", text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 0
        while (anchor := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(anchor)
    return found


def broken(page: Path) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading of one."""
    text = page.read_text(encoding="utf-8")
    found = []
    for target in _LINK.findall(re.sub(r"`[^`\n]*`", "", _FENCED.sub("", text))):
        if _ADDRESS.match(target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        is_there = file.exists() and file.is_relative_to(ROOT)
        if not is_there or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_somewhere(page):
    assert broken(page) == []


def test_pages_that_code_names_exist():
    """In messages, docstrings, comments, options and defaults."""
    missing = []
    folders = [ROOT / name for name in ("indexer", "query", "scripts", "studies", "tests")]
    files = [
        path for folder in folders for ending in ("py", "pyi", "toml", "sql") for path in folder.rglob(f"*.{ending}")
    ]
    for path in [*files, ROOT / "schema.sql", ROOT / "pyproject.toml", ROOT / "Makefile"]:
        for mention in _MENTION.findall(path.read_text(encoding="utf-8")):
            name, _, anchor = mention.rstrip(".").partition("#")
            file = ROOT / name
            if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
                missing.append(f"{path.relative_to(ROOT)}: {mention}")
    assert missing == []


def test_a_link_to_nothing_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.documents.test_links.ROOT", tmp_path)
    (tmp_path / "b.md").write_text("# One `two`, three\n\n## One\n\n## One\n\n```text\n# Not one\n```\n")
    page = tmp_path / "a.md"
    good = "[x](b.md) [x](b.md#one-two-three) [x](b.md#one-1) [x](https://a/b.md#c) [x](#here) `[x](no.md)`\n\n# Here\n"
    page.write_text(good)
    assert broken(page) == []
    bad = ["c.md", "b.md#two", "b.md#one-2", "b.md#not-one", "#there", "../a.md", "../../etc/passwd"]
    page.write_text(good + " ".join(f"[x]({target})" for target in bad))
    assert broken(page) == bad
