"""Brings a base's listing up to date: crawls the Hub and keeps every page as it comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from indexer.crawl import crawl
from indexer.listing import Listing
from indexer.questions import CrawlRequest, Page


@dataclass
class CrawlReport:
    """What one crawl brought. ``unclaimed``: rows that the Hub showed and that do not claim the base."""

    pages: int = 0
    rows: int = 0
    new: int = 0
    bad: int = 0
    unclaimed: int = 0
    gone: int = 0
    resumed: bool = False


def update_listing(
    listing: Listing, request: CrawlRequest, watch: Callable[[Page, CrawlReport], None] | None = None
) -> CrawlReport:
    """Crawl what ``request`` asks for into ``listing``, from where an interrupted crawl of the same stopped.

    ``watch`` is told of every page once it is on disk. Raises AtlasError where the Hub cannot be asked to the
    end; what came before is kept, and the next call goes on from there.
    """
    progress, resumed = listing.begin(request)
    report = CrawlReport(resumed=resumed)
    for page in crawl(request, progress):
        report.new += listing.append_page(page)
        report.pages += 1
        report.rows += len(page.rows)
        report.bad += len(page.bad)
        report.unclaimed += page.unclaimed
        if watch is not None:
            watch(page, report)
    report.gone = listing.finish(is_complete=not request.is_narrowed)
    return report
