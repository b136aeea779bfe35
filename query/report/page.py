"""The sections put together as one page: head, key numbers, contents, sections."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from query.figures import THEMES
from query.report.markup import Html, element, listed, within
from query.report.section import Section, Source
from query.wording import day

# Nothing may be fetched or run, whatever slipped through.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(source: Source, opening: Html, sections: Sequence[Section]) -> str:
    """The whole page as a string; ``opening`` says what it is."""
    title = f"Fine-tunes of {source.base}"
    (atlas,) = source.atlas.rows("SELECT published FROM atlas_info")
    body = [
        element(
            "header",
            element("p", f"An atlas of fine-tuned models · as of {day(atlas['published'])}", class_="kicker"),
            element("h1", title),
            opening,
        ),
        element("main", _key_numbers(sections), _contents(sections), *_numbered(sections)),
        element("footer", element("p", "Made by vectors-in-the-wild. This page is one file and needs no network.")),
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        Html(f"<style>\n{_style()}</style>"),
    )
    return f"<!doctype html>\n{element('html', head, element('body', *body), lang='en')}\n"


def _style() -> str:
    """The style sheet, with the colours that pictures have."""
    sheet = files("query.report").joinpath("style.css").read_text(encoding="utf-8")
    for name, theme in THEMES.items():
        for role in ("background", "ink", "faint"):
            sheet = sheet.replace(f"{{{{{name}.{role}}}}}", getattr(theme, role))
    return sheet


def _key_numbers(sections: Sequence[Section]) -> Html:
    """Every section's numbers, each leading to where it comes from."""
    entries = (
        element("div", element("dt", within(number.meaning, section.anchor)), element("dd", number.value))
        for section in sections
        for number in section.key_numbers
    )
    return element(
        "section",
        element("h2", "Key numbers", id="key-numbers"),
        element("dl", *entries, class_="key-numbers"),
        aria_labelledby="key-numbers",
    )


def _contents(sections: Sequence[Section]) -> Html:
    entries = (within(section.title, section.anchor) for section in sections)
    return element("nav", element("h2", "Contents", id="contents"), listed(entries, "ol"), aria_labelledby="contents")


def _numbered(sections: Sequence[Section]) -> list[Html]:
    return [
        element(
            "section",
            element("h2", element("span", f"{number}", class_="number"), " ", section.title, id=section.anchor),
            section.body,
            aria_labelledby=section.anchor,
        )
        for number, section in enumerate(sections, start=1)
    ]
