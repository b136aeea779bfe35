"""What the Hub said is kept: what changed, what has gone, what was bad."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.sources.questions import CrawlRequest
from indexer.sources.registry import author_of
from indexer.storage.checksummed_jsonl import write_lines
from tests.hubs import BASE, SHORT, add_repo, served, tags, update_listing
from tests.listing.conftest import IDS, ONE, by_id, many

REQUEST = CrawlRequest(IDS)


# What is kept


def test_facts_of_the_hub_are_read_back(store, monkeypatch, path):
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
    assert (model.relation, model.claimed_by, model.parent, model.deleted_at_hub) == ("finetune", "tag", BASE, False)
    assert model.row["downloads"] == 9
    assert model.row["cardData"] == {"license": "mit"}
    assert len(model.row["sha"]) == 40
    assert before <= model.first_seen <= model.last_seen <= datetime.now(UTC)
    assert tuple(model.claims) == (f"tag:finetune:{BASE}", f"tag:*:{BASE}")
    assert found["a/lora"].row["siblings"] == [{"rfilename": "adapter_config.json"}]
    assert listing.aliases() == (SHORT,)
    assert listing.problems() == []
    assert listing.rejected_rows() == []


def test_an_atlas_without_a_listing(path):
    listing = Listing(path)
    assert listing.models() == []
    assert listing.rejected_rows() == []
    assert listing.problems() == []
    assert listing.aliases() == ()
    assert not path.exists()


def test_an_unreadable_listing_is_reported(path):
    path.mkdir(parents=True)
    with pytest.raises(AtlasError, match="cannot be"):
        Listing(path).models()


def test_a_second_crawl_brings_what_changed(store, monkeypatch, path):
    many(store, 3)
    with served(store, monkeypatch):
        update_listing(Listing(path), ONE)
        first = by_id(Listing(path))
        assert update_listing(Listing(path), ONE).new == 0
        add_repo(store, "a/model1", {"config.json": {"x": 1}}, tags=tags(BASE), downloads=77)
        add_repo(store, "a/new", tags=tags(BASE))
        assert update_listing(Listing(path), ONE).new == 1
    found = by_id(Listing(path))
    assert set(found) == {*first, "a/new"}
    assert found["a/model1"].row["downloads"] == 77
    assert found["a/model1"].row["sha"] != first["a/model1"].row["sha"]
    assert found["a/model1"].first_seen == first["a/model1"].first_seen
    assert found["a/model0"].last_seen > first["a/model0"].last_seen


def test_a_shorter_answer_does_not_erase_known_facts(path):
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
    assert next(iter(model.claims)) == "user"


def test_a_local_folder_can_be_listed_by_its_user(path):
    Listing(path).add({"id": "/home/me/model", "sha": "1" * 40}, "finetune", BASE)
    assert Listing(path).problems() == []
    (model,) = Listing(path).models()
    assert (model.id, model.claimed_by, author_of(model.id)) == ("/home/me/model", "user", "local")


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
    (model,) = Listing(path).models()
    assert model.row["cardData"]["x"] == row["cardData"]["x"]
    Listing(path).add({"id": "/home/\udcff"}, "finetune", "x/\ud800")
    write_lines(path.with_suffix(".jsonl"), Listing(path).as_lines())
    assert path.with_suffix(".jsonl").read_bytes().isascii()
    assert [one.id for one in Listing(path).models()] == ["a/b", "/home/\\udcff"]


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
        assert {name for name, model in found.items() if model.deleted_at_hub} == {"a/model1"}
        assert found["a/model1"].relation == "finetune"
        assert found["a/model1"].row["tags"] == tags(BASE)
        assert update_listing(Listing(path), REQUEST).gone == 0
        gone.write_text(kept)
        update_listing(Listing(path), REQUEST)
        assert not any(model.deleted_at_hub for model in Listing(path).models())


def test_one_question_less_is_not_gone(store, monkeypatch, path):
    add_repo(store, "a/b", tags=[f"base_model:finetune:{BASE}", f"base_model:finetune:{SHORT}"])
    with served(store, monkeypatch):
        update_listing(Listing(path), REQUEST)
        add_repo(store, "a/b", tags=[f"base_model:finetune:{SHORT}"])
        assert update_listing(Listing(path), REQUEST).gone == 0
    assert by_id(Listing(path))["a/b"].claims.keys() == {f"tag:finetune:{SHORT}"}


@pytest.mark.parametrize(
    "request_",
    [
        CrawlRequest(IDS, author="somebody"),
        CrawlRequest(IDS, since=datetime(2030, 1, 1, tzinfo=UTC)),
        CrawlRequest(IDS, relations=("adapter",)),
        CrawlRequest((SHORT,)),
    ],
)
def test_a_narrowed_crawl_does_not_mark_models_as_deleted(store, monkeypatch, path, request_):
    many(store, 2)
    add_repo(store, "a/untyped", tags=[f"base_model:{BASE}"])
    with served(store, monkeypatch):
        update_listing(Listing(path), REQUEST)
        assert len(by_id(Listing(path))) == 3
        for name in ("model0", "untyped"):
            (store / f"a/{name}.repo.json").write_text(json.dumps({"private": True}))
        assert update_listing(Listing(path), request_).gone == 0
    assert not any(model.deleted_at_hub for model in Listing(path).models())


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
        for number in range(3):  # new commits, so that each would have to be examined again
            add_repo(store, f"me/roberta-base-{number}", {"config.json": {"_name_or_path": SHORT, "x": 1}})
        report = update_listing(Listing(path), CrawlRequest(IDS, discover="names", max_candidates=1))
    assert report.gone == 0
    assert len(Listing(path).models()) == 3


def test_a_failing_page_erases_nothing(store, monkeypatch, path):
    many(store, 7)
    with served(store, monkeypatch, page_size=3) as hub:
        update_listing(Listing(path), ONE)
        for fault in ({"status": 500}, {"malformed_json": True}, {"status": 401}, {"no_answer": True}):
            struck = hub.faults.add("/api/models", since=2, **fault)
            with pytest.raises(AtlasError):
                update_listing(Listing(path), ONE)
            hub.faults.remove(struck)
    found = Listing(path).models()
    assert len(found) == 7
    assert not any(model.deleted_at_hub for model in found)


def test_a_row_that_has_become_bad_is_not_a_model_that_has_gone(store, monkeypatch, path):
    many(store, 2)
    with served(store, monkeypatch):
        update_listing(Listing(path), ONE)
        add_repo(store, "a/model1")  # without its tags no question shows it, but a row that says nothing does
        hub_row = {"id": "a/model1", "tags": None}
        with served(store, monkeypatch) as hub:
            hub.faults.add("/api/models", splice_row=hub_row)
            report = update_listing(Listing(path), ONE)
    assert (report.gone, report.bad) == (0, 3)  # once for each question
    assert not by_id(Listing(path))["a/model1"].deleted_at_hub


# Bad rows


def test_rejected_rows_are_those_of_the_last_complete_crawl(store, monkeypatch, path):
    many(store, 2)
    with served(store, monkeypatch) as hub:
        hub.faults.add("/api/models", splice_row={"id": "../x", "tags": []})
        report = update_listing(Listing(path), ONE)
        assert report.bad == 3  # once for each question
        (bad,) = Listing(path).rejected_rows()
        row = bad.as_row()
        assert json.loads(row["raw"]) == {"id": "../x", "tags": []}
        assert row["seen"].tzinfo is not None
        hub.faults.clear()
        update_listing(Listing(path), ONE)
        assert Listing(path).rejected_rows() == []
