"""One page with everything there is to say of a base's fine-tunes, for somebody who has never seen this tool."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.console.messages import say
from indexer.quantities import size_in_words
from query.report import (
    claims,
    clusters,
    crawl,
    depth,
    documentation,
    duplicates,
    introduction,
    lineage,
    map,
    models,
    pairs,
    prediction,
    purity,
    rank,
    reproduction,
)  # fmt: skip
from query.report.page import page
from query.report.section import Section, Source
from query.results import Result
from query.wording import counted

if TYPE_CHECKING:
    from query.reader import AtlasReader

# In the order in which a reader needs them.
_SECTIONS: tuple[tuple[str, Callable[[Source], Section]], ...] = (
    ("words", introduction.write),
    ("what was crawled", crawl.write),
    ("datasets and authors", documentation.write),
    ("purity of every representation", purity.write),
    ("the map", map.write),
    ("clusters and their agreement", clusters.write),
    ("predictions", prediction.write),
    ("ranks by depth", rank.write),
    ("what layers keep", depth.write),
    ("copies and duplicates", duplicates.write),
    ("lineage", lineage.write),
    ("most similar pairs", pairs.write),
    ("suspicious claims", claims.write),
    ("how to make it again", reproduction.write),
    ("all models", models.write),
)


@dataclass(frozen=True)
class Missing:
    """Something that a section could not say, and why."""

    section: str
    why: str


@dataclass(frozen=True, repr=False)
class Report(Result):
    """The page. ``models``: how many are indexed; ``sections``: the anchors on it; ``seconds``: what it took."""

    base: str
    models: int
    sections: tuple[str, ...]
    missing: tuple[Missing, ...]
    seconds: float
    html: str = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """What was written, JSON-ready, without the page itself."""
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
        """What is on the page."""
        size = size_in_words(len(self.html.encode()))
        return f'a page of {size} on {counted(self.models, "model")} of {self.base}; write("report.html") keeps it'

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each section: its anchor, and what it could not say."""
        return [
            {"section": name, "missing": [one.why for one in self.missing if one.section == name]}
            for name in self.sections
        ]

    def write(self, path: str | Path) -> None:
        """Write the page. Raises AtlasError where it is no .html, or cannot be written."""
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
        html=page(source, introduction.opening(source), sections),
    )
