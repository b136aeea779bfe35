"""A crawl that stopped goes on where it was."""

from __future__ import annotations

import random
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest

from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.sources.questions import CrawlRequest
from indexer.storage import small_database
from indexer.storage.small_database import row_checksum
from tests.conftest import start_python
from tests.hubs import BASE, add_repo, requested, served, tags, update_listing
from tests.listing.conftest import ONE, by_id, execute, many
from tests.patience import wait_for


def pages_asked(hub) -> list[str]:
    return [one.rpartition("cursor=")[2] if "cursor=" in one else "first" for one in requested(hub)]


def interrupt(hub, path, request=ONE, at="cursor=", since=1) -> list[str]:
    """Crawl until the Hub fails (at such requests, from that one on); the pages that were asked for. Then all is well
    again, and the log empty."""
    fault = hub.faults.add(at, since=since, status=503)
    with pytest.raises(AtlasError):
        update_listing(Listing(path), request)
    pages = pages_asked(hub)
    hub.faults.remove(fault)
    hub.reset_log()
    return pages


def test_an_interrupted_crawl_goes_on_without_asking_again(store, monkeypatch, path):
    many(store, 7)
    with served(store, monkeypatch, page_size=2) as hub:
        before = interrupt(hub, path, since=3)  # at the fourth page of the first question
        assert len(by_id(Listing(path))) == 6
        report = update_listing(Listing(path), ONE)
        assert report.resumed
        assert pages_asked(hub)[0] == before[-1]  # the page that failed comes first
        assert not set(pages_asked(hub)[:1]) & set(before[:3])
        assert len(hub.requests) == 1 + 4 + 1  # the rest of the first question, and two more
    assert len(by_id(Listing(path))) == 7
    assert report.new == 1


def test_finished_questions_are_not_asked_again(store, monkeypatch, path):
    many(store, 4)
    with served(store, monkeypatch, page_size=2) as hub:
        interrupt(hub, path, at=f"base_model:{BASE}")
        update_listing(Listing(path), ONE)
        assert not requested(hub, "finetune")
        hub.reset_log()
        assert not update_listing(Listing(path), ONE).resumed  # that one was finished: a new one begins
        assert requested(hub, "finetune")


def test_models_seen_before_the_interruption_are_not_gone_after_it(store, monkeypatch, path):
    many(store, 6)
    with served(store, monkeypatch, page_size=2) as hub:
        update_listing(Listing(path), ONE)
        interrupt(hub, path, since=2)
        report = update_listing(Listing(path), ONE)
        assert (report.resumed, report.gone) == (True, 0)


def test_another_request_starts_over(store, monkeypatch, path):
    many(store, 6)
    with served(store, monkeypatch, page_size=2) as hub:
        interrupt(hub, path, since=2)
        report = update_listing(
            Listing(path), CrawlRequest((BASE,), relations=("finetune", "merge"), descendants=False)
        )
        assert not report.resumed
        assert pages_asked(hub)[0] == "first"


def test_an_old_crawl_starts_over(store, monkeypatch, path):
    many(store, 6)
    with served(store, monkeypatch, page_size=2) as hub:
        interrupt(hub, path, since=2)
        long_ago = (datetime.now(UTC) - timedelta(hours=25)).isoformat()
        ((*values, _),) = execute(path, "SELECT * FROM crawls")
        values[1] = long_ago
        execute(path, "UPDATE crawls SET started = ?, checksum = ?", long_ago, row_checksum(values))
        assert not update_listing(Listing(path), ONE).resumed


@pytest.mark.parametrize("status", [400, 404, 410])
def test_a_saved_cursor_that_is_refused_starts_over(store, monkeypatch, path, status):
    many(store, 7)
    with served(store, monkeypatch, page_size=2) as hub:
        interrupt(hub, path, since=2)
        hub.faults.add("cursor=", nth=1, status=status)
        assert update_listing(Listing(path), ONE).resumed
    assert len(by_id(Listing(path))) == 7


def test_descendants_are_followed_after_an_interruption(store, monkeypatch, path):
    add_repo(store, "a/child", tags=tags(BASE))
    add_repo(store, "a/grandchild", tags=tags("a/child"))
    add_repo(store, "a/great", tags=tags("a/grandchild"))
    request = CrawlRequest((BASE,))
    with served(store, monkeypatch) as hub:
        interrupt(hub, path, request, at="base_model:a/grandchild")
        assert update_listing(Listing(path), request).resumed
        assert not requested(hub, "finetune%3AFacebookAI")
    found = by_id(Listing(path))
    assert {name: model.parent for name, model in found.items()} == {
        "a/child": BASE,
        "a/grandchild": "a/child",
        "a/great": "a/grandchild",
    }


CRAWLER = """
import sys
from pathlib import Path
from indexer.listing.listing import Listing
from indexer.sources.questions import CrawlRequest
from indexer.storage import small_database
from indexer.storage.small_database import row_checksum
from tests.hubs import update_listing
update_listing(Listing(Path(sys.argv[1])), CrawlRequest(("FacebookAI/roberta-base",), relations=("finetune",), descendants=False))
"""


def test_a_killed_crawl_goes_on(store, monkeypatch, path):
    many(store, 20)
    with served(store, monkeypatch, page_size=2) as hub:
        hub.faults.add("cursor=", nth=5, hang=600)
        process = start_python("-c", CRAWLER, path, env={"HF_ENDPOINT": hub.endpoint})
        wait_for(lambda: len(hub.requests) >= 6 or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(by_id(Listing(path))) == 10
        before = pages_asked(hub)
        hub.faults.clear()
        hub.reset_log()
        report = update_listing(Listing(path), ONE)
        assert report.resumed
        assert pages_asked(hub)[0] == before[-1]
        assert len(hub.requests) == 5 + 10 + 1
    assert len(by_id(Listing(path))) == 20


@pytest.mark.slow
def test_a_crawl_killed_again_and_again_asks_no_page_twice(store, monkeypatch, path):
    many(store, 20)
    chance, kills = random.Random(3), 0
    with served(store, monkeypatch, page_size=2) as hub:
        while not (path.exists() and Listing(path).is_crawled):
            process = start_python("-c", CRAWLER, path, env={"HF_ENDPOINT": hub.endpoint})
            before = len(hub.requests)
            wait_for(lambda before=before, process=process: len(hub.requests) > before or process.poll() is not None)
            time.sleep(chance.random() * 0.2)
            process.send_signal(signal.SIGKILL)
            kills += process.wait() != 0
            assert Listing(path).problems() == []
        asked = requested(hub, "/api/models?")
        assert len(asked) <= len(set(asked)) + kills  # the page of a kill that came before it was stored
    assert kills
    assert set(by_id(Listing(path))) == {f"a/model{number}" for number in range(20)}
    assert not path.with_name(f"{path.name}-journal").exists()


WRITER = """
import sys
import time
from pathlib import Path
from indexer.listing.listing import Listing
from tests.listing.test_resumed import WITHOUT_LOCKS
exec(sys.argv[2])
path, number = Path(sys.argv[1]), 0
while not path.with_name("stop").exists():
    Listing(path).add({"id": f"a/model{number}", "text": "x" * 20_000}, "finetune", "org/base")
    number += 1
    time.sleep(0.1)  # as a crawl waits for its next page
"""
WITHOUT_LOCKS = """
import errno, fcntl
def refuse(*_):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.lockf = refuse
"""


@pytest.mark.slow
@pytest.mark.parametrize("has_locks", [True, False])
def test_a_listing_is_read_while_it_is_written(monkeypatch, path, has_locks):
    if not has_locks:
        monkeypatch.setattr(small_database, "_has_locks", lambda folder: False)
    process, counts = start_python("-c", WRITER, path, "" if has_locks else WITHOUT_LOCKS), [0]
    while len(set(counts)) < 8 and process.poll() is None:
        listing = Listing(path)
        counts.append(len(listing.models()))
        assert listing.problems() == []
    path.with_name("stop").touch()
    assert process.wait() == 0
    assert counts == sorted(counts)
    assert [model.id for model in Listing(path).models()][:3] == ["a/model0", "a/model1", "a/model2"]
