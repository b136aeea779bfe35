"""Pages of the listing, and servers that mean ill."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from indexer.errors import AtlasError
from indexer.listing.crawl import crawl
from indexer.listing.questions import CrawlRequest
from tests.crawl.conftest import claims
from tests.hubs import BASE, RawServer, add_repo, http, requested, served, tags, use_endpoint


def many(store, count: int = 7) -> None:
    for number in range(count):
        moment = f"2024-01-{number + 1:02d}T00:00:00.000Z"
        add_repo(store, f"a/model{number}", tags=tags(BASE), created_at=moment)


ONE = CrawlRequest((BASE,), relations=("finetune",), descendants=False)


def test_every_page_is_asked_for_once_by_creation(store, monkeypatch):
    many(store)
    with served(store, monkeypatch, page_size=3) as hub:
        pages = list(crawl(ONE))
        assert [len(page.rows) for page in pages] == [3, 3, 1, 3, 3, 1]
        assert [page.is_last for page in pages] == [False, False, True] * 2
        assert len(hub.requests) == 6
        assert all("sort=createdAt" in one and "expand=tags" in one for one in requested(hub))


def test_since_stops_paging_and_author_narrows_it(store, monkeypatch):
    many(store)
    with served(store, monkeypatch, page_size=2) as hub:
        for since in (datetime(2024, 1, 6, tzinfo=UTC), datetime(2024, 1, 6)):
            hub.reset_log()
            request = CrawlRequest((BASE,), relations=("finetune",), descendants=False, since=since)
            assert set(claims(crawl(request))) >= {"a/model6", "a/model5"}
            assert len(hub.requests) == 4
        assert claims(crawl(CrawlRequest((BASE,), author="somebody"))) == {}


def hostile(monkeypatch, link: str):
    row = {"id": "a/b", "tags": tags(BASE)}
    server = RawServer(b"")
    server._answers = [http([row], Link=f'<{link.format(server.endpoint)}>; rel="next"')]
    use_endpoint(monkeypatch, server.endpoint)
    return server


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("http://evil.invalid/api/models?cursor=x", "another host"),
        ("http://127.0.0.1:1/api/models?cursor=x", "another host"),
        ("https://evil.invalid\\@127.0.0.1/api/models", "another host"),
        ("//evil.invalid/api/models", "another host"),
        ("file:///etc/passwd", "another host"),
        ("{0}/api/whoami-v2", "not a listing"),
        ("/api/models/a/b", "not a listing"),
        ("/api/models?cursor=same", "repeat"),
    ],
)
def test_a_next_page_that_leads_astray(monkeypatch, link, problem):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pages = []
    with hostile(monkeypatch, link) as server:
        with pytest.raises(AtlasError, match=problem) as caught:
            pages.extend(iter_into(pages, crawl(ONE)))
        assert len(server.requests) <= 5
    assert pages  # what was on the first page is not lost
    assert claims(pages).keys() == {"a/b"}
    assert not pages[-1].is_last
    assert str(caught.value).isprintable()


def iter_into(pages, source):
    """Keep what came before an error."""
    for page in source:
        pages.append(page)
    return []


def test_a_link_to_itself(monkeypatch):
    with hostile(monkeypatch, "/api/models?cursor=1") as server:
        with pytest.raises(AtlasError, match="repeat"):
            list(crawl(ONE))
        assert len(server.requests) == 2


def test_cursors_without_end_and_without_news(monkeypatch):
    row = {"id": "a/b", "tags": tags(BASE)}
    answers = [http([row], Link=f'</api/models?cursor={number}>; rel="next"') for number in range(50)]
    with RawServer(*answers) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(AtlasError, match="repeat"):
            list(crawl(ONE))
        assert len(server.requests) < 10


def test_rows_without_end(monkeypatch):
    monkeypatch.setattr("indexer.listing.crawl.MOST_ROWS", 20)
    answers = [
        http([{"id": f"a/b{number}", "tags": tags(BASE)}], Link=f'</api/models?cursor={number}>; rel="next"')
        for number in range(100)
    ]
    with RawServer(*answers) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(AtlasError, match="more than 20 rows"):
            list(crawl(ONE))
    monkeypatch.setattr("indexer.listing.crawl.MOST_PAGES", 5)
    with RawServer(*answers) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(AtlasError, match="more than 5 pages"):
            list(crawl(ONE))


@pytest.mark.parametrize("answer", [{"error": "x"}, "x", 5, None])
def test_a_page_of_the_wrong_type(monkeypatch, answer):
    with RawServer(http(answer)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(AtlasError, match="not a list"):
            list(crawl(ONE))


def test_a_page_that_is_too_much_for_the_server_is_asked_for_in_parts(store, monkeypatch):
    many(store)
    with served(store, monkeypatch) as hub:
        hub.faults.add("limit=500", status=504)
        assert len(claims(crawl(ONE))) == 7


@pytest.mark.parametrize("status", [500, 403, 429])
def test_a_listing_that_fails_is_an_error_and_not_an_empty_one(store, monkeypatch, status):
    many(store)
    with served(store, monkeypatch, page_size=3) as hub:
        hub.faults.add("cursor=", status=status, retry_after=0 if status != 429 else 99)
        pages: list = []
        with pytest.raises(AtlasError):
            iter_into(pages, crawl(ONE))
        assert len(pages) == 1


def test_a_cursor_that_is_refused_starts_its_question_over_once(store, monkeypatch):
    many(store, 12)
    with served(store, monkeypatch, page_size=2) as hub:
        hub.faults.add("cursor=", nth=5, status=400)  # after five pages, which are no news then
        assert len(claims(crawl(ONE))) == 12
        hub.faults.clear()
        hub.faults.add("cursor=", status=410)
        with pytest.raises(AtlasError):
            list(crawl(ONE))


def test_a_page_of_far_more_rows_than_were_asked_for_is_refused(monkeypatch):
    """Each row without an id would be a line of the listing's file."""
    with RawServer(http([{}] * 10_001)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(AtlasError, match="far more than were asked for"):
            list(crawl(ONE))
