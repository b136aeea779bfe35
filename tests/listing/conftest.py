"""Small Hubs to be listed, and how a listing is read."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from indexer.listing.listing import ListedModel
from indexer.sources.questions import CrawlRequest
from tests.hubs import BASE, SHORT, add_base, add_repo, tags

IDS = (BASE, SHORT)


ONE = CrawlRequest((BASE,), relations=("finetune",), descendants=False)


def many(store, count: int = 7, **settings) -> None:
    for number in range(count):
        moment = f"2024-01-{number + 1:02d}T00:00:00.000Z"
        add_repo(store, f"a/model{number}", tags=tags(BASE), created_at=moment, **settings)


def by_id(listing) -> dict[str, ListedModel]:
    return {model.id: model for model in listing.models()}


def execute(path, statement: str, *values) -> list[tuple]:
    """Run SQL on a listing, as somebody who damages it would."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchall()


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "store"
    add_base(root)
    return root


@pytest.fixture
def path(tmp_path):
    return tmp_path / "atlas/listing/FacebookAI--roberta-base.sqlite"
