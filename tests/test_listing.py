"""The listing on disk: pages kept as they come, crawls that go on where they stopped, lines that are damaged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from indexer.crawling.claims import Claim
from indexer.crawling.listing import ListedModel, Listing, select
from indexer.crawling.questions import CrawlRequest
from indexer.errors import AtlasError
from tests.hub_ground import BASE, SHORT, add_base, add_repo, asked, served, tags, update_listing

ROOT = Path(__file__).resolve().parent.parent
IDS = (BASE, SHORT)
REQUEST = CrawlRequest(IDS)
ONE = CrawlRequest((BASE,), relations=("finetune",))


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "store"
    add_base(root)
    return root


@pytest.fixture
def path(tmp_path):
    return tmp_path / "atlas/listing/FacebookAI--roberta-base.jsonl"


def many(store, count: int = 7, **settings) -> None:
    for number in range(count):
        moment = f"2024-01-{number + 1:02d}T00:00:00.000Z"
        add_repo(store, f"a/model{number}", tags=tags(BASE), created_at=moment, **settings)


def by_id(listing) -> dict[str, ListedModel]:
    return {model.id: model for model in listing.models()}


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def pages_asked(hub) -> list[str]:
    return [one.rpartition("cursor=")[2] if "cursor=" in one else "first" for one in asked(hub)]


# What is kept


def test_what_the_hub_said_comes_back(store, monkeypatch, path):
    many(store, 3, downloads=9, card_data={"license": "mit"})
    add_repo(store, "a/lora", {"adapter_config.json": {}}, tags=[f"base_model:adapter:{SHORT}"])
    before = datetime.now(UTC)
    with served(store, monkeypatch, page_size=2):
        report = update_listing(Listing(path), REQUEST)
    assert (report.new, report.bad, report.gone, report.resumed) == (4, 0, 0, False)
    listing = Listing(path)
    found = by_id(listing)
    assert list(found) == ["a/model2", "a/model1", "a/model0", "a/lora"]  # as first seen: newest first
    model = found["a/model1"]
    assert (model.relation, model.claimed_by, model.parent, model.gone) == ("finetune", "tag", BASE, False)
    assert model.row["downloads"] == 9
    assert model.row["cardData"] == {"license": "mit"}
    assert len(model.row["sha"]) == 40
    assert before <= model.first_seen <= model.last_seen <= datetime.now(UTC)
    assert model.asked == (f"tag:finetune:{BASE}", f"tag:*:{BASE}")
    assert found["a/lora"].row["siblings"] == [{"rfilename": "adapter_config.json"}]
    assert listing.aliases() == (SHORT,)
    assert listing.problems() == []
    assert listing.bad_rows() == []


def test_an_atlas_without_a_listing(path):
    listing = Listing(path)
    assert listing.models() == []
    assert listing.bad_rows() == []
    assert listing.problems() == []
    assert listing.aliases() == ()
    assert not path.exists()


def test_a_listing_that_cannot_be_read_says_so(path):
    path.mkdir(parents=True)
    with pytest.raises(AtlasError, match="cannot be"):
        Listing(path).models()


def test_a_second_crawl_brings_what_changed(store, monkeypatch, path):
    many(store, 3)
    with served(store, monkeypatch):
        update_listing(Listing(path), ONE)
        first = by_id(Listing(path))
        before = len(lines(path))
        assert update_listing(Listing(path), ONE).new == 0
        assert not any("row" in line for line in lines(path)[before:])  # what did not change is not written again
        add_repo(store, "a/model1", {"config.json": {"x": 1}}, tags=tags(BASE), downloads=77)
        add_repo(store, "a/new", tags=tags(BASE))
        assert update_listing(Listing(path), ONE).new == 1
    found = by_id(Listing(path))
    assert set(found) == {*first, "a/new"}
    assert found["a/model1"].row["downloads"] == 77
    assert found["a/model1"].row["sha"] != first["a/model1"].row["sha"]
    assert found["a/model1"].first_seen == first["a/model1"].first_seen
    assert found["a/model0"].last_seen > first["a/model0"].last_seen


def test_less_said_does_not_erase_what_was_known(path):
    listing = Listing(path)
    row = {"id": "a/b", "sha": "1" * 40, "cardData": {"x": 1}, "config": {"y": 2}, "siblings": [{"rfilename": "f"}]}
    listing.add(row, "finetune", BASE)
    listing.add({"id": "a/b", "sha": "1" * 40, "cardData": None, "downloads": 5}, "finetune", BASE)
    (model,) = listing.models()
    assert model.row == {**row, "downloads": 5}
    # But the files of one commit are not those of the next.
    listing.add({"id": "a/b", "sha": "2" * 40}, "finetune", BASE)
    (model,) = Listing(path).models()
    assert model.row == {"id": "a/b", "sha": "2" * 40, "cardData": {"x": 1}, "config": {"y": 2}, "downloads": 5}
    listing.add({"id": "a/b", "sha": "2" * 40, "cardData": {}, "downloads": 0}, "finetune", BASE)
    (model,) = Listing(path).models()
    assert model.row["cardData"] == {}
    assert model.row["downloads"] == 0


def test_the_most_trusted_claim_counts(store, monkeypatch, path):
    listing = Listing(path)
    listing.add({"id": "a/model0", "sha": "1" * 40}, "finetune", "somebody/else")
    assert by_id(listing)["a/model0"].claimed_by == "user"
    many(store, 1)
    with served(store, monkeypatch):
        update_listing(listing, ONE)
    model = by_id(Listing(path))["a/model0"]
    assert (model.claimed_by, model.parent) == ("tag", BASE)
    assert model.asked[0] == "user"


def test_a_local_folder_can_be_listed_by_its_user(path):
    Listing(path).add({"id": "/home/me/model", "sha": "1" * 40}, "finetune", BASE)
    assert Listing(path).problems() == []
    (model,) = Listing(path).models()
    assert (model.id, model.claimed_by, model.author) == ("/home/me/model", "user", "local")


def test_a_listing_is_read_again_when_it_changed(path):
    reader, writer = Listing(path), Listing(path)
    assert reader.models() == []
    writer.add({"id": "a/b"}, "finetune", BASE)
    assert [model.id for model in reader.models()] == ["a/b"]
    reader.add({"id": "a/c"}, "finetune", BASE)
    assert [model.id for model in writer.models()] == ["a/b", "a/c"]


def test_strange_characters_survive(path):
    row = {"id": "a/b", "cardData": {"x": "\ud800 \u2028 \x00 \x1b[31m ü", "n": float("nan")}}
    Listing(path).add(row, "finetune", BASE)
    assert path.read_bytes().isascii()
    (model,) = Listing(path).models()
    assert model.row["cardData"]["x"] == row["cardData"]["x"]


# Models that have gone


def test_gone_models_are_marked_and_come_back(store, monkeypatch, path):
    many(store, 3)
    gone = store / "a/model1.repo.json"
    with served(store, monkeypatch):
        update_listing(Listing(path), REQUEST)
        kept = gone.read_text()
        gone.write_text(json.dumps({"private": True, "tags": tags(BASE)}))
        assert update_listing(Listing(path), REQUEST).gone == 1
        found = by_id(Listing(path))
        assert {name for name, model in found.items() if model.gone} == {"a/model1"}
        assert found["a/model1"].relation == "finetune"
        assert found["a/model1"].row["tags"] == tags(BASE)
        assert update_listing(Listing(path), REQUEST).gone == 0
        gone.write_text(kept)
        update_listing(Listing(path), REQUEST)
        assert not any(model.gone for model in Listing(path).models())


def test_one_question_less_is_not_gone(store, monkeypatch, path):
    add_repo(store, "a/b", tags=[f"base_model:finetune:{BASE}", f"base_model:finetune:{SHORT}"])
    with served(store, monkeypatch):
        update_listing(Listing(path), REQUEST)
        add_repo(store, "a/b", tags=[f"base_model:finetune:{SHORT}"])
        assert update_listing(Listing(path), REQUEST).gone == 0
    assert by_id(Listing(path))["a/b"].asked == (f"tag:finetune:{SHORT}",)


@pytest.mark.parametrize(
    "request_",
    [
        CrawlRequest(IDS, author="somebody"),
        CrawlRequest(IDS, since=datetime(2030, 1, 1, tzinfo=UTC)),
        CrawlRequest(IDS, relations=("adapter",)),
        CrawlRequest((SHORT,)),
    ],
)
def test_a_crawl_that_did_not_ask_does_not_know_who_has_gone(store, monkeypatch, path, request_):
    many(store, 2)
    add_repo(store, "a/untyped", tags=[f"base_model:{BASE}"])
    with served(store, monkeypatch):
        update_listing(Listing(path), REQUEST)
        assert len(by_id(Listing(path))) == 3
        for name in ("model0", "untyped"):
            (store / f"a/{name}.repo.json").write_text(json.dumps({"private": True}))
        assert update_listing(Listing(path), request_).gone == 0
    assert not any(model.gone for model in Listing(path).models())


def test_models_found_by_name_stay_when_only_tags_are_asked_for(store, monkeypatch, path):
    add_repo(store, "me/roberta-base-x", {"config.json": {"_name_or_path": SHORT}})
    with served(store, monkeypatch):
        update_listing(Listing(path), CrawlRequest(IDS, discover="names"))
        assert update_listing(Listing(path), REQUEST).gone == 0
        add_repo(store, "me/roberta-base-x", {"config.json": {"_name_or_path": "x/y"}})
        assert update_listing(Listing(path), CrawlRequest(IDS, discover="names")).gone == 1


def test_what_a_bound_left_out_is_not_gone(store, monkeypatch, path):
    for number in range(3):
        add_repo(store, f"me/roberta-base-{number}", {"config.json": {"_name_or_path": SHORT}})
    with served(store, monkeypatch):
        update_listing(Listing(path), CrawlRequest(IDS, discover="names"))
        for number in range(3):  # new commits, so that each would have to be looked into again
            add_repo(store, f"me/roberta-base-{number}", {"config.json": {"_name_or_path": SHORT, "x": 1}})
        report = update_listing(Listing(path), CrawlRequest(IDS, discover="names", max_candidates=1))
    assert report.gone == 0
    assert len(Listing(path).models()) == 3


def test_a_failing_page_erases_nothing(store, monkeypatch, path):
    many(store, 7)
    with served(store, monkeypatch, page_size=3) as hub:
        update_listing(Listing(path), ONE)
        for fault in ({"status": 500}, {"malformed_json": True}, {"status": 401}, {"no_answer": True}):
            monkeypatch.setattr("indexer.network.hub_api._WAITS_FOR_JSON", (0.01,))
            struck = hub.faults.add("/api/models", since=2, **fault)
            with pytest.raises(AtlasError):
                update_listing(Listing(path), ONE)
            hub.faults.remove(struck)
    found = Listing(path).models()
    assert len(found) == 7
    assert not any(model.gone for model in found)


def test_a_row_that_has_become_bad_is_not_a_model_that_has_gone(store, monkeypatch, path):
    many(store, 2)
    with served(store, monkeypatch):
        update_listing(Listing(path), ONE)
        add_repo(store, "a/model1")  # without its tags no question shows it, but a row that says nothing does
        hub_row = {"id": "a/model1", "tags": None}
        with served(store, monkeypatch) as hub:
            hub.faults.add("/api/models", splice_row=hub_row)
            report = update_listing(Listing(path), ONE)
    assert (report.gone, report.bad) == (0, 2)
    assert not by_id(Listing(path))["a/model1"].gone


# Bad rows


def test_bad_rows_are_those_of_the_last_complete_crawl(store, monkeypatch, path):
    many(store, 2)
    with served(store, monkeypatch) as hub:
        hub.faults.add("/api/models", splice_row={"id": "../x", "tags": []})
        report = update_listing(Listing(path), ONE)
        assert report.bad == 2  # once for each question
        (bad,) = Listing(path).bad_rows()
        row = bad.as_row()
        assert json.loads(row["raw"]) == {"id": "../x", "tags": []}
        assert row["seen"].tzinfo is not None
        hub.faults.clear()
        update_listing(Listing(path), ONE)
        assert Listing(path).bad_rows() == []


# Going on where a crawl stopped


def test_an_interrupted_crawl_goes_on_without_asking_again(store, monkeypatch, path):
    many(store, 7)
    with served(store, monkeypatch, page_size=2) as hub:
        broken = hub.faults.add("cursor=", since=3, status=503)  # the fourth page of the first question
        with pytest.raises(AtlasError):
            update_listing(Listing(path), ONE)
        assert len(by_id(Listing(path))) == 6
        before = pages_asked(hub)
        hub.faults.remove(broken)
        hub.reset_log()
        report = update_listing(Listing(path), ONE)
        assert report.resumed
        assert pages_asked(hub)[0] == before[-1]  # the page that failed comes first
        assert not set(pages_asked(hub)[:1]) & set(before[:3])
        assert len(hub.requests) == 1 + 4
    assert len(by_id(Listing(path))) == 7
    assert report.new == 1


def test_finished_questions_are_not_asked_again(store, monkeypatch, path):
    many(store, 4)
    with served(store, monkeypatch, page_size=2) as hub:
        hub.faults.add(f"base_model:{BASE}", status=503)
        with pytest.raises(AtlasError):
            update_listing(Listing(path), ONE)
        hub.faults.clear()
        hub.reset_log()
        update_listing(Listing(path), ONE)
        assert not asked(hub, "finetune")
        hub.reset_log()
        assert not update_listing(Listing(path), ONE).resumed  # that one was finished: a new one begins
        assert asked(hub, "finetune")


def test_models_seen_before_the_interruption_are_not_gone_after_it(store, monkeypatch, path):
    many(store, 6)
    with served(store, monkeypatch, page_size=2) as hub:
        update_listing(Listing(path), ONE)
        hub.faults.add("cursor=", since=2, status=503)
        with pytest.raises(AtlasError):
            update_listing(Listing(path), ONE)
        hub.faults.clear()
        report = update_listing(Listing(path), ONE)
        assert (report.resumed, report.gone) == (True, 0)


def test_another_request_starts_over(store, monkeypatch, path):
    many(store, 6)
    with served(store, monkeypatch, page_size=2) as hub:
        hub.faults.add("cursor=", since=2, status=503)
        with pytest.raises(AtlasError):
            update_listing(Listing(path), ONE)
        hub.faults.clear()
        hub.reset_log()
        report = update_listing(Listing(path), CrawlRequest((BASE,), relations=("finetune", "merge")))
        assert not report.resumed
        assert pages_asked(hub)[0] == "first"


def test_an_old_crawl_starts_over(store, monkeypatch, path):
    many(store, 6)
    with served(store, monkeypatch, page_size=2) as hub:
        hub.faults.add("cursor=", since=2, status=503)
        with pytest.raises(AtlasError):
            update_listing(Listing(path), ONE)
        hub.faults.clear()
        long_ago = (datetime.now(UTC) - timedelta(hours=25)).isoformat()
        told = lines(path)
        started = next(line for line in told if line["kind"] == "start")
        path.write_text(path.read_text().replace(started["seen"], long_ago))
        assert not update_listing(Listing(path), ONE).resumed


@pytest.mark.parametrize("status", [400, 404, 410])
def test_a_saved_cursor_that_is_refused_starts_over(store, monkeypatch, path, status):
    many(store, 7)
    with served(store, monkeypatch, page_size=2) as hub:
        hub.faults.add("cursor=", since=2, status=503)
        with pytest.raises(AtlasError):
            update_listing(Listing(path), ONE)
        hub.faults.clear()
        hub.faults.add("cursor=", nth=1, status=status)
        assert update_listing(Listing(path), ONE).resumed
    assert len(by_id(Listing(path))) == 7


def test_descendants_are_followed_after_an_interruption(store, monkeypatch, path):
    add_repo(store, "a/child", tags=tags(BASE))
    add_repo(store, "a/grandchild", tags=tags("a/child"))
    add_repo(store, "a/great", tags=tags("a/grandchild"))
    request = CrawlRequest((BASE,), descendants=True)
    with served(store, monkeypatch) as hub:
        broken = hub.faults.add("finetune:a/grandchild", status=503)
        with pytest.raises(AtlasError):
            update_listing(Listing(path), request)
        hub.faults.remove(broken)
        hub.reset_log()
        assert update_listing(Listing(path), request).resumed
        assert not asked(hub, "finetune%3AFacebookAI")
    found = by_id(Listing(path))
    assert {name: model.parent for name, model in found.items()} == {
        "a/child": BASE,
        "a/grandchild": "a/child",
        "a/great": "a/grandchild",
    }


CRAWLER = """
import sys
from pathlib import Path
from indexer.crawling.listing import Listing
from indexer.crawling.questions import CrawlRequest
from tests.hub_ground import update_listing
update_listing(Listing(Path(sys.argv[1])), CrawlRequest(("FacebookAI/roberta-base",), relations=("finetune",)))
"""


def test_a_killed_crawl_goes_on(store, monkeypatch, path):
    many(store, 20)
    with served(store, monkeypatch, page_size=2) as hub:
        hub.faults.add("cursor=", nth=5, hang=60)
        environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, "-c", CRAWLER, str(path)], env=environment)
        limit = time.monotonic() + 60
        while len(hub.requests) < 6 and time.monotonic() < limit and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(by_id(Listing(path))) == 10
        before = pages_asked(hub)
        hub.faults.clear()
        hub.reset_log()
        report = update_listing(Listing(path), ONE)
        assert report.resumed
        assert pages_asked(hub)[0] == before[-1]
        assert len(hub.requests) == 5 + 10
    assert len(by_id(Listing(path))) == 20


# Damaged files


def test_a_torn_line_is_dropped_and_repaired(store, monkeypatch, path):
    many(store, 5)
    with served(store, monkeypatch, page_size=2):
        update_listing(Listing(path), ONE)
        whole = path.read_bytes()
        last = whole[:-1].rpartition(b"\n")[0] + b"\n"
        for cut in (len(whole) - 1, len(whole) - 10, len(last) + 1):
            path.write_bytes(whole[:cut])
            listing = Listing(path)
            assert listing.problems() == []
            assert len(listing.models()) == 5
            update_listing(listing, ONE)
            assert Listing(path).problems() == []
            assert path.read_bytes().startswith(last)
            assert all(json.loads(line) for line in path.read_bytes().splitlines())


def test_every_cut_is_a_listing(store, monkeypatch, path):
    many(store, 4)
    with served(store, monkeypatch, page_size=2):
        update_listing(Listing(path), ONE)
    whole = path.read_bytes()
    known = 0
    for cut in range(0, len(whole), 37):
        path.write_bytes(whole[:cut])
        listing = Listing(path)
        assert listing.problems() == []
        assert len(listing.models()) >= known
        known = len(listing.models())
    assert known == 4


@pytest.mark.parametrize(
    "damage",
    [
        b"garbage",
        b"\xff\xfe\x00",
        b"{}",
        b"[]",
        b"null",
        b'{"kind": "model"}',
        b'{"kind": "model", "id": 5, "seen": "x", "claims": {}}',
        b'{"kind": "model", "id": "a/x", "seen": "2024-01-01", "claims": {"t": {"relation": 5}}, "row": {}}',
        b'{"kind": "model", "id": "a/x", "seen": "2024-01-01", "claims": {}, "row": {}}',
        b'{"kind": "model", "id": "a/unseen", "seen": "2024-01-01", "claims": {"t": '
        b'{"relation": "finetune", "claimed_by": "tag", "parent": "x"}}}',
        b'{"kind": "gone", "id": "a/unseen", "questions": []}',
        b'{"kind": "page", "crawl": "x", "question": "q", "next": null, "last": true}',
        b'{"kind": "nonsense"}',
        b'{"kind": ["model"]}',
        b"[" * 100_000,
        b"",
    ],
)  # fmt: skip
def test_a_damaged_line_is_reported_and_costs_no_other(store, monkeypatch, path, damage):
    many(store, 4)
    with served(store, monkeypatch, page_size=2):
        update_listing(Listing(path), ONE)
        whole = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*whole[:3], damage + b"\n", *whole[3:]]))
        listing = Listing(path)
        (problem,) = listing.problems()
        assert problem.startswith("line 4 ")
        assert len(problem) <= 300
        assert len(listing.models()) == 4
        update_listing(listing, ONE)
        assert len(Listing(path).models()) == 4
        assert len(Listing(path).problems()) == 1


def test_a_model_whose_line_is_lost_is_found_again(store, monkeypatch, path):
    many(store, 4)
    with served(store, monkeypatch, page_size=2):
        update_listing(Listing(path), ONE)
        whole = path.read_bytes().splitlines(keepends=True)
        number = next(index for index, line in enumerate(whole) if b'"kind":"model"' in line)
        whole[number] = b"lost\n"
        path.write_bytes(b"".join(whole))
        assert len(Listing(path).models()) == 3
        update_listing(Listing(path), ONE)
        assert len(Listing(path).models()) == 4


def test_a_file_of_something_else(path):
    path.parent.mkdir(parents=True)
    path.write_bytes(os.urandom(200_000))
    listing = Listing(path)
    assert listing.models() == []
    assert 0 < len(listing.problems()) <= 100


# Compaction


def test_superseded_lines_are_cleared_away(store, monkeypatch, path):
    monkeypatch.setattr("indexer.crawling.listing.SUPERSEDED_LINES", 20)
    many(store, 5)
    add_repo(store, "me/roberta-base-x", {"config.json": {"_name_or_path": "x/y"}})
    request = CrawlRequest(IDS, discover="names")
    with served(store, monkeypatch) as hub:
        hub.faults.add("/api/models", splice_row={"id": "../x"})
        update_listing(Listing(path), request)
        order = list(by_id(Listing(path)))
        (store / "a/model3.repo.json").write_text(json.dumps({"private": True}))
        for number in range(4):
            add_repo(store, "a/model1", tags=tags(BASE), downloads=number)
            listing = Listing(path)
            update_listing(listing, request)
            assert listing.models() == Listing(path).models()
            assert listing.bad_rows() == Listing(path).bad_rows()
        assert len(lines(path)) < 40
        assert not list(path.parent.glob(".*"))
        found = by_id(Listing(path))
        assert list(found) == order
        assert found["a/model3"].gone
        assert found["a/model1"].row["downloads"] == 3
        assert Listing(path).aliases() == (SHORT,)
        assert len(Listing(path).bad_rows()) == 1
        hub.reset_log()
        update_listing(Listing(path), request)
        assert not asked(hub, "/resolve/")  # what was looked into is still known


# Selection


def listed(name: str, **row) -> ListedModel:
    now = datetime(2024, 1, 1, tzinfo=UTC)
    relation = row.pop("relation", "finetune")
    return ListedModel(name, row, relation, "tag", BASE, now, now, row.pop("gone", False))


MODELS = [
    listed("b/two", downloads=5, likes=1, createdAt="2024-03-01T00:00:00.000Z"),
    listed("a/one", downloads=5, likes=9, createdAt="2024-01-01T00:00:00.000Z"),
    listed("c/three", downloads=50, likes=0, createdAt="2024-02-01T00:00:00.000Z", relation="adapter"),
    listed("d/odd", downloads="a million", likes=True, createdAt="yesterday"),
    listed("e/none"),
    listed("f/gone", downloads=10**9, gone=True),
]


def names(**choice) -> list[str]:
    return [model.id for model in select(MODELS, **choice)]


def test_selection():
    assert names() == ["c/three", "a/one", "b/two", "d/odd", "e/none"]
    assert names(limit=2) == ["c/three", "a/one"]
    assert names(limit=0) == []
    assert names(sort="likes")[:2] == ["a/one", "b/two"]
    assert names(sort="created") == ["b/two", "c/three", "a/one", "d/odd", "e/none"]
    assert names(relations=("adapter",)) == ["c/three"]
    assert names(author="A") == ["a/one"]
    assert names(since=datetime(2024, 2, 1, tzinfo=UTC)) == ["c/three", "b/two"]
    assert names(since=datetime(2024, 2, 1)) == ["c/three", "b/two"]  # what click gives
    assert [model.id for model in select(list(reversed(MODELS)))] == names()


def test_selection_of_what_cannot_be():
    with pytest.raises(AtlasError, match="downloads"):
        select(MODELS, sort="beauty")
    with pytest.raises(AtlasError, match="-1"):
        select(MODELS, limit=-1)


def test_claims_are_ranked():
    ranked = [
        Claim("adapter", "tag", BASE),
        Claim("finetune", "tag", BASE),
        Claim("adapter", "alias:q/q", "q/q"),
        Claim("adapter", "adapter_config", BASE),
        Claim("finetune", "config", BASE),
        Claim("finetune", "card", BASE),
        Claim("finetune", "user", BASE),
        Claim("finetune", "name", BASE),
        Claim("odd", "odd", BASE),
    ]
    shuffled = ranked[3:] + ranked[:3]
    assert sorted(shuffled, key=lambda claim: claim.rank) == ranked
