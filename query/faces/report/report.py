"""One page with everything about a base's fine-tunes, for readers who have never seen this tool."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from indexer.console.messages import say
from indexer.console.option import Option
from indexer.errors import AtlasError
from indexer.quantities import size_in_words
from query.contract.columns import BaseId, Notes
from query.contract.figures import checked_output, write_output
from query.contract.glossary import words
from query.contract.options import Base, Seed
from query.contract.registry import Invocation, question
from query.contract.results import After, Doc, Hidden, Result
from query.faces.report import studies, training, views
from query.faces.report.page import Section, Source, as_reason, page
from query.shared.wording import counted

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

# Documentation that several fields share.
_LACK = Doc("What it could not show, and why.")

# Anchor, title, and the function that computes the facts of the section, in the order of the page: the map, below the
# paragraph on what all answers say, is seen first, and the glossary is last. The macro with the name of the anchor, in
# pages/sections.html, has its text.
_SECTIONS: tuple[tuple[str, str, Callable[[Source, Section], dict[str, Any]]], ...] = (
    ("map", "The map", studies.map_section),
    ("crawl", "What was found, read and left out", views.crawl),
    ("names", "Datasets and authors", views.names),
    ("purity", "Do models tuned on the same data lie together?", studies.purity_section),
    ("clusters", "Clusters", studies.clusters_section),
    ("prediction", "What undocumented models were probably tuned on", training.prediction_section),
    ("trace", "Models in their own words", training.trace_section),
    ("rank", "How simple is the change, layer by layer?", studies.rank_section),
    ("depth", "What do layers keep, and is it where the weights changed?", studies.depth_section),
    ("duplicates", "Copies and duplicates", views.duplicates),
    ("lineage", "Lineage", views.lineage),
    ("pairs", "Most similar pairs across authors", views.pairs),
    ("claims", "Suspicious claims", views.claims),
    ("method", "How to make this page again, and what to keep in mind", views.method),
    ("models", "All models", views.models),
    ("words", "The terms used here", lambda *_: {"terms": words()}),
)


@dataclass(frozen=True)
class Missing:
    """Something that a section could not show, and why."""

    section: Annotated[str, Doc("Anchor of a section of the page.")]
    why: Annotated[str, _LACK]


@dataclass(frozen=True)
class SectionOfPage:
    """A section, as a row."""

    section: Annotated[str, Doc("Anchor of the section on the page.")]
    missing: Annotated[list[str], _LACK]


@dataclass(frozen=True, repr=False)
class Report(Result):
    """The page, with facts about it."""

    ROWS = "rows"
    IS_SHEET = True

    base: BaseId
    models: Annotated[int, Doc("Number of indexed models.")]
    sections: Annotated[tuple[str, ...], Doc("Anchors of the sections on the page.")]
    missing: Annotated[tuple[Missing, ...], Doc("What sections could not show.")]
    seconds: Annotated[float, Doc("How long the page took, in seconds.")]
    html: Annotated[str, Hidden()] = field(repr=False)
    notes: Notes = ()

    @property
    def bytes(self) -> Annotated[int, Doc("Size of the page."), After("missing")]:
        """The size of the page."""
        return len(self.html.encode())

    @property
    def headline(self) -> str:
        """The size of the page and the number of models."""
        page = f"A page of {size_in_words(self.bytes)} on {counted(self.models, 'model')} of {self.base}"
        return f'{page}; write("report.html") saves it.'

    @property
    def rows(self) -> list[SectionOfPage]:
        """A row for each section."""
        return [
            SectionOfPage(name, [missing.why for missing in self.missing if missing.section == name])
            for name in self.sections
        ]

    def write(self, path: str | Path) -> None:
        """Write the page. Raises AtlasError if the path does not end in .html or cannot be written."""
        write_output(checked_output(path, (".html",)), self.html.encode())


def _command(
    call: Invocation,
    base: str | None,
    out: Annotated[str, Option("The page to write: one .html file, readable offline.", metavar="FILE")],
    **options: Any,
) -> None:
    file = checked_output(out, (".html",))
    with call.opened() as atlas:
        page = atlas.report(base, **options)
        page.write(file)
        call.show(page, file=file)


@question(example="report --base roberta-base --out report.html", command=_command)
def report(atlas: AtlasReader, base: Base = None, *, seed: Seed = 0) -> Report:
    """Write one page with everything about the fine-tunes of a base.

    Returns:
        The page; its ``write("report.html")`` saves it. The same atlas and ``seed`` (of the map, the intervals and the
        permutations) give the same page. A section that the atlas cannot fill (no model, no dataset, no spectra), or
        whose picture needs a missing library, has a line with the reason.

    Raises:
        AtlasError: the base is unknown.
    """
    started = time.monotonic()
    source = Source(atlas, atlas.base_named(base), seed)
    sections = []
    for number, (anchor, title, facts_of) in enumerate(_SECTIONS, start=1):
        say(f"{number} of {len(_SECTIONS)}: {title}")
        section = Section(anchor, title)
        try:
            section.facts = facts_of(source, section)
        except (AtlasError, ModuleNotFoundError) as error:
            section.facts = {"why": [section.unavailable(as_reason(error, "This section"))]}
        sections.append(section)
    return Report(
        base=source.base,
        models=source.number("SELECT count(*) FROM models WHERE base = ?"),
        sections=tuple(section.anchor for section in sections),
        missing=tuple(Missing(section.anchor, why) for section in sections for why in section.missing),
        seconds=round(time.monotonic() - started, 1),
        html=page(source, sections),
    )
