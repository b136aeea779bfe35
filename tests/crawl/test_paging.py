"""Pages of the listing, and servers that mean ill."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.sources.crawl import crawl
from indexer.sources.questions import ClaimedRow, CrawlRequest
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
        assert [len(page.of(ClaimedRow)) for page in pages] == [
            3,
            3,
            1,
            3,
            3,
            1,
            0,
        ]  # the last: the id spelled owner--name
        assert [page.is_last for page in pages] == [False, False, True] * 2 + [True]
        assert len(hub.requests) == 7
        assert all("sort=createdAt" in one and "expand=tags" in one for one in requested(hub))


def test_since_stops_paging_and_author_narrows_it(store, monkeypatch):
    many(store)
    with served(store, monkeypatch, page_size=2) as hub:
        for since in (datetime(2024, 1, 6, tzinfo=UTC), datetime(2024, 1, 6)):
            hub.reset_log()
            request = CrawlRequest((BASE,), relations=("finetune",), descendants=False, since=since)
            assert set(claims(crawl(request))) >= {"a/model6", "a/model5"}
            assert len(hub.requests) == 5
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
    monkeypatch.setattr("indexer.sources.crawl.MOST_ROWS", 20)
    answers = [
        http([{"id": f"a/b{number}", "tags": tags(BASE)}], Link=f'</api/models?cursor={number}>; rel="next"')
        for number in range(100)
    ]
    with RawServer(*answers) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(AtlasError, match="more than 20 rows"):
            list(crawl(ONE))
    monkeypatch.setattr("indexer.sources.crawl.MOST_PAGES", 5)
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


def limits_of(hub, part: str) -> list[str]:
    """The page sizes that were asked for, each once if it follows itself (a failed request is tried again)."""
    found = [one.partition("limit=")[2].partition("&")[0] for one in requested(hub, part)]
    return [size for number, size in enumerate(found) if number == 0 or found[number - 1] != size]


@pytest.mark.parametrize("fault", [{"status": 504}, {"headers": {"Content-Encoding": "br"}}])
def test_a_page_that_is_too_much_for_the_server_is_asked_for_in_parts_and_so_is_the_rest(store, monkeypatch, fault):
    many(store, 9)
    with served(store, monkeypatch, page_size=3) as hub:
        hub.faults.add("limit=200", **fault)
        hub.faults.add("limit=100.*cursor=|cursor=.*limit=100", **fault)
        assert len(claims(crawl(ONE))) == 9
        # The question for finetune, then that for any relation: both find the same out, once.
        assert limits_of(hub, "base_model%3Afinetune") == ["200", "100", "50"]
        assert len([one for one in requested(hub, "base_model%3Afinetune") if "limit=50" in one]) == 2


def test_a_page_is_not_made_smaller_for_ever(store, monkeypatch):
    with served(store, monkeypatch) as hub:
        hub.faults.add("/api/models", status=504)
        with pytest.raises(AtlasError):
            list(crawl(ONE))
        assert limits_of(hub, "") == ["200", "100", "50", "25"]


def test_canonical_bases_are_asked_for_and_a_hub_that_refuses_them_is_asked_without(store, monkeypatch):
    many(store)
    with served(store, monkeypatch, page_size=3) as hub:
        assert len(claims(crawl(ONE))) == 7
        assert all("expand=baseModels" in one and "direction" not in one for one in requested(hub))
        hub.reset_log()
        message = {"X-Error-Message": "Invalid expand parameter: baseModels"}
        hub.faults.add("expand=baseModels", status=400, headers=message)
        assert len(claims(crawl(ONE))) == 7
        assert ["expand=baseModels" in one for one in requested(hub)] == [True] + [False] * 7


@pytest.mark.parametrize("status", [500, 403, 429])
def test_a_listing_that_fails_is_an_error_and_not_an_empty_one(store, monkeypatch, status):
    many(store)
    with served(store, monkeypatch, page_size=3) as hub:
        hub.faults.add("cursor=", status=status, retry_after=0 if status != 429 else 99)
        pages: list = []
        with pytest.raises(AtlasError):
            iter_into(pages, crawl(ONE))
        assert len(pages) == 1


def heavy(hub) -> list[str]:
    """The pages of whole rows that were asked for."""
    return [one for one in requested(hub, "base_model%3Afinetune") if "expand=tags" in one]


@pytest.mark.parametrize("status", [400, 404, 410])
def test_a_cursor_that_is_refused_goes_on_at_the_last_date(store, monkeypatch, status):
    many(store, 24)
    with served(store, monkeypatch, page_size=2) as hub:
        hub.faults.add("expand=tags.*cursor=", nth=9, status=status)
        assert len(claims(crawl(ONE))) == 24
        # 12 pages, the refused one, and one that was read before: not nine of them.
        assert len(heavy(hub)) == 14
        light = [one for one in requested(hub) if "limit=1000" in one]
        assert light
        assert all("expand=createdAt" in one and one.count("expand=") == 1 for one in light)


def test_cursors_that_live_for_a_few_pages_do_not_stop_a_crawl(store, monkeypatch):
    many(store, 24)
    with served(store, monkeypatch, page_size=2) as hub:
        for number in (3, 6, 9):
            hub.faults.add("expand=tags.*cursor=", nth=number, status=400)
        assert len(claims(crawl(ONE))) == 24


def test_cursors_that_are_never_accepted_are_an_error(store, monkeypatch):
    many(store, 12)
    with served(store, monkeypatch, page_size=2) as hub:
        hub.faults.add("cursor=", status=410)
        with pytest.raises(AtlasError):
            list(crawl(ONE))
        assert len(requested(hub)) < 10


def test_a_crawl_that_is_resumed_later_takes_a_refused_cursor_up_at_its_date(store, monkeypatch, tmp_path):
    many(store, 24)
    listing = Listing(tmp_path / "listing.sqlite")
    with served(store, monkeypatch, page_size=2) as hub:
        progress, _ = listing.begin(ONE)
        pages = crawl(ONE, progress)
        for _ in range(8):
            listing.append_page(next(pages))
        hub.faults.add("expand=tags.*cursor=", first=1, status=400)
        hub.reset_log()
        progress, resumed = Listing(tmp_path / "listing.sqlite").begin(ONE)
        assert resumed
        found = claims(crawl(ONE, progress))
        assert len(heavy(hub)) == 6  # refused, the last page before, four more
        assert {model.id for model in listing.models()} | set(found) == {f"a/model{number}" for number in range(24)}


def test_a_page_of_far_more_rows_than_were_asked_for_is_refused(monkeypatch):
    """Each row without an id would be a line of the listing's file."""
    with RawServer(http([{}] * 10_001)) as server:
        use_endpoint(monkeypatch, server.endpoint)
        with pytest.raises(AtlasError, match="far more than requested"):
            list(crawl(ONE))
