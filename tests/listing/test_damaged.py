"""Damaged listings are read as far as they go, repaired and cleared; models are selected from them."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime

import pytest

from indexer.listing.listing import ListedModel, Listing, select
from indexer.sources.claims import Claim
from indexer.sources.questions import CrawlRequest
from tests.hubs import BASE, SHORT, add_repo, requested, served, tags, update_listing
from tests.listing.conftest import IDS, ONE, by_id, lines, many


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
    monkeypatch.setattr("indexer.listing.listing.SUPERSEDED_LINES", 20)
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
            assert listing.rejected_rows() == Listing(path).rejected_rows()
        assert len(lines(path)) < 40
        assert not list(path.parent.glob(".*"))
        found = by_id(Listing(path))
        assert list(found) == order
        assert found["a/model3"].deleted_at_hub
        assert found["a/model1"].row["downloads"] == 3
        assert Listing(path).aliases() == (SHORT,)
        assert len(Listing(path).rejected_rows()) == 1
        hub.reset_log()
        update_listing(Listing(path), request)
        assert not requested(hub, "/resolve/")  # what was examined is still known


# Selection


def listed(name: str, **row) -> ListedModel:
    now = datetime(2024, 1, 1, tzinfo=UTC)
    relation = row.pop("relation", "finetune")
    return ListedModel(name, row, relation, "tag", BASE, now, now, row.pop("deleted_at_hub", False))


MODELS = [
    listed("b/two", downloads=5, likes=1, createdAt="2024-03-01T00:00:00.000Z"),
    listed("a/one", downloads=5, likes=9, createdAt="2024-01-01T00:00:00.000Z"),
    listed("c/three", downloads=50, likes=0, createdAt="2024-02-01T00:00:00.000Z", relation="adapter"),
    listed("d/odd", downloads="a million", likes=True, createdAt="yesterday"),
    listed("e/none"),
    listed("f/gone", downloads=10**9, deleted_at_hub=True),
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
