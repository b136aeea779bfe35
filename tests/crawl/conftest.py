"""Crawls of a small Hub, and what they claim."""

from __future__ import annotations

import pytest

from indexer.sources.claims import Claim
from indexer.sources.crawl import crawl
from indexer.sources.questions import ClaimedRow, CrawlRequest
from tests.hubs import BASE, SHORT, add_base, served

IDS = (BASE, SHORT)
REQUEST = CrawlRequest(IDS)


def claims(pages) -> dict[str, Claim]:
    found: dict[str, Claim] = {}
    for page in pages:
        for row in page.of(ClaimedRow):
            found.setdefault(row.id, row.claim)
    return found


def crawled(store, monkeypatch, request=REQUEST, **settings) -> dict[str, Claim]:
    with served(store, monkeypatch, **settings):
        return claims(crawl(request))


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "store"
    add_base(root)
    return root
