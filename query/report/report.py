"""One page with everything about a base's fine-tunes, for readers who have never seen this tool."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.console.messages import say
from indexer.quantities import size_in_words
from query.report import clusters, crawl, method, prediction, purity, ranks, views
from query.report.page import Section, Source, page
from query.results import Result
from query.wording import counted

if TYPE_CHECKING:
    from query.reader import AtlasReader

# In the order of the page.
_SECTIONS: tuple[tuple[str, Callable[[Source], Section]], ...] = (
    ("words", method.glossary),
    ("what was crawled", crawl.crawl),
    ("datasets and authors", views.names),
    ("purity of every representation", purity.write),
    ("the map", clusters.map_section),
    ("clusters and their agreement", clusters.clusters_section),
    ("predictions", prediction.write),
    ("ranks by depth", ranks.rank_section),
    ("what layers keep", ranks.depth_section),
    ("copies and duplicates", views.duplicates),
    ("lineage", views.lineage),
    ("most similar pairs", views.pairs),
    ("suspicious claims", views.claims),
    ("how to make it again", method.method),
    ("all models", views.models),
)


@dataclass(frozen=True)
class Missing:
    """Something that a section could not show, and why."""

    section: str
    why: str


@dataclass(frozen=True, repr=False)
class Report(Result):
    """The page. ``models``: how many are indexed; ``sections``: the anchors on it; ``seconds``: how long it took."""

    base: str
    models: int
    sections: tuple[str, ...]
    missing: tuple[Missing, ...]
    seconds: float
    html: str = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """A summary, JSON-ready, without the page itself."""
        return {
            "base": self.base,
            "models": self.models,
            "sections": list(self.sections),
            "missing": [vars(one) for one in self.missing],
            "bytes": len(self.html.encode()),
            "seconds": round(self.seconds, 1),
            "notes": list(self.notes),
        }

    @property
    def headline(self) -> str:
        """The size of the page and the number of models."""
        size = size_in_words(len(self.html.encode()))
        return f'A page of {size} on {counted(self.models, "model")} of {self.base}; write("report.html") saves it.'

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each section: its anchor, and what it could not show."""
        return [
            {"section": name, "missing": [one.why for one in self.missing if one.section == name]}
            for name in self.sections
        ]

    def write(self, path: str | Path) -> None:
        """Write the page. Raises AtlasError if the path does not end in .html or cannot be written."""
        from query.figures import checked_output, write_output

        write_output(checked_output(path, (".html",)), self.html.encode())


def report(atlas: AtlasReader, base: str | None = None, *, seed: int = 0) -> Report:
    """One page with everything about ``base``; ``write("report.html")`` keeps it.

    The same atlas and ``seed`` (of the map, the intervals and the permutations) give the same page. A section that the
    atlas cannot fill (no model, no dataset, no spectra), or whose picture needs a missing library, says so in one line.
    Raises AtlasError if the base is unknown.
    """
    started = time.monotonic()
    source = Source(atlas, atlas.base_named(base), seed)
    sections = []
    for number, (what, write) in enumerate(_SECTIONS, start=1):
        say(f"{number} of {len(_SECTIONS)}: {what}")
        sections.append(write(source))
    return Report(
        base=source.base,
        models=source.number("SELECT count(*) FROM models WHERE base = ?"),
        sections=tuple(section.anchor for section in sections),
        missing=tuple(Missing(section.anchor, why) for section in sections for why in section.missing),
        seconds=time.monotonic() - started,
        html=page(source, method.opening(source), sections),
    )
