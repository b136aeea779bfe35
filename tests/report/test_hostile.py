"""What comes from the Hub stays text; and the page in a browser."""

from __future__ import annotations

import re
import shlex
import xml.etree.ElementTree as ElementTree

import pytest

from query import Atlas
from tests.browser import Browser, missing_browser
from tests.report.conftest import EVIL, SECTIONS
from tests.report_reader import Page

TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "footer", "nav", "section", "h1", "h2", "h3", "p",
    "ul", "ol", "li", "a", "code", "pre", "strong", "em", "span", "div", "dl", "dt", "dd", "table", "caption", "thead",
    "tbody", "tr", "th", "td", "figure", "figcaption", "picture", "source", "img",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "rel", "scope", "tabindex", "src", "srcset",
    "media", "alt", "aria-labelledby",
}  # fmt: skip


@pytest.mark.slow
def test_hostile_markup_is_text(hostile):
    _, report = hostile
    page = Page(report.html)
    assert {name for name, _ in page.elements} <= TAGS
    assert {name for _, attributes in page.elements for name in attributes} <= ATTRIBUTES
    assert {text for text in report.html if not text.isprintable()} == {"\n", "\u00a0"}
    assert list(report.sections) == SECTIONS
    for evil in (EVIL[0], EVIL[1], EVIL[2], EVIL[6], EVIL[9]):
        assert evil in page.text
    assert "x\\u202egnp.exe" in page.text
    assert "\\x1b[31mred" in page.text
    assert {"purity", "clusters", "map"}.isdisjoint(missing.section for missing in report.missing)
    for attributes in page.attributes("a"):
        assert attributes["href"].startswith(("#", "https://huggingface.co/"))
        assert re.fullmatch(r"[\w#:/.-]+", attributes["href"])


@pytest.mark.slow
def test_hostile_markup_is_text_in_pictures(hostile):
    _, report = hostile
    pictures = Page(report.html).pictures()
    assert len(pictures) >= 6
    for _, content in pictures:
        text = content.decode()
        assert "\u202e" not in text
        assert "\x1b" not in text
        for element in ElementTree.fromstring(text).iter():
            assert element.tag.rpartition("}")[2] not in ("script", "b", "foreignObject")
            assert not [name for name in element.attrib if name.startswith("on")]


@pytest.mark.slow
def test_commands_and_statements_survive_a_hostile_base(hostile):
    folder, report = hostile
    commands = [
        re.search(r"All: (.*)", text, re.S)[1] for _, kind, text in Page(report.html).paragraphs if kind == "rest"
    ]
    assert len(commands) >= 1
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "query"
        if words[1] == "sql":
            with Atlas(folder) as atlas:
                atlas.sql(words[2])  # a statement that can be run; its base is shown with escapes
        else:
            assert words[2] == "--base"


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_browser()), reason=missing_browser())
def test_in_a_browser_it_asks_for_nothing_and_fits(report, hostile, tmp_path):
    for name, html in (("plain", report.html), ("hostile", hostile[1].html)):
        file = tmp_path / f"{name}.html"
        file.write_text(html)
        with Browser() as browser:
            sources = {}
            for scheme in ("light", "dark"):
                browser.size(390, 800)
                browser.scheme(scheme)
                browser.open(file)
                browser.wait("[...document.images].every((one) => one.complete && one.naturalWidth)")
                sources[scheme] = browser.run("return [...document.images].map((one) => one.currentSrc)")
                assert browser.run("return document.documentElement.scrollWidth") == 390
                assert browser.run("return window.pwned === undefined && !document.getElementById('planted')")
                assert [address for address in browser.requests() if not address.startswith("data:")] == [file.as_uri()]
                assert browser.console() == []
            assert not set(sources["light"]) & set(sources["dark"])
            assert len(sources["light"]) == len(Page(html).attributes("img"))
