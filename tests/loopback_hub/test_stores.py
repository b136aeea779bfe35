"""Several stores, one Hub."""

from __future__ import annotations

import pytest

from scripts.loopback_hub import LoopbackHub, StoreError
from tests.loopback_hub.store import add_row, fetch, get_json, pages, write


@pytest.fixture
def two_stores(tmp_path):
    for store, owner, name, old in (("one", "ann", "tiny-bert", "bert"), ("two", "ann", "tiny-t5", "t5")):
        write(tmp_path / store / owner / name / "config.json", {"model_type": old})
        add_row(tmp_path / store, f"{owner}/{name}", old_ids=[old], downloads=len(name), tags=["demo"])
    write(tmp_path / "two" / "bob" / "third" / "config.json", {})
    write(tmp_path / "one" / "zoe" / "last" / "config.json", {})
    return tmp_path / "one", tmp_path / "two"


def test_two_stores_are_listed_and_served_as_one(two_stores):
    with LoopbackHub(*two_stores, page_size=2) as hub:
        assert hub.prepare() == 4
        ids = ["ann/tiny-bert", "ann/tiny-t5", "bob/third", "zoe/last"]
        assert [repository.id for repository in hub.store.repositories()] == ids
        listed = [[row["id"] for row in page] for page in pages(f"{hub.endpoint}/api/models?sort=downloads")]
        assert listed == [ids[:2], ids[2:]]
        for model, kind in (("ann/tiny-bert", "bert"), ("ann/tiny-t5", "t5")):
            assert get_json(f"{hub.endpoint}/{model}/resolve/main/config.json") == {"model_type": kind}
        status, headers, _ = fetch(f"{hub.endpoint}/api/models/t5")
        assert (status, headers["Location"]) == (307, "/api/models/ann/tiny-t5")
        assert fetch(f"{hub.endpoint}/api/models/ann/tiny-gpt2")[0] in (401, 404)


@pytest.mark.parametrize("facts", [{}, {"old_ids": ["bert"]}])
def test_an_id_in_two_stores_is_refused_with_both_named(two_stores, facts):
    one, two = two_stores
    name = "ann/another" if facts else "ann/tiny-bert"
    write(two / name / "config.json", {})
    add_row(two, name, **facts)
    with pytest.raises(StoreError, match=f"{'bert' if facts else name} stands both in .*one and in .*two"):
        LoopbackHub(one, two)
    LoopbackHub(two).stop()
