"""A clock that is set back, or was wrong when something was written, postpones nothing for ever."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from indexer.atlas import AtlasFolder
from indexer.builds.plan import plan
from indexer.deltas.stored_base import date_as_newest
from indexer.errors import Failed, Skipped
from indexer.listing.listing import ListedModel
from indexer.network.rate_limit import RateLimiter, requested_wait
from indexer.records import store as records
from indexer.records.identity import Identity, Spec, Unit
from indexer.records.store import BACK_OFF_SECONDS, PATIENCE, READER, FailureRecord, RecordStore
from indexer.sources.registry import ModelRef
from indexer.storage.atomic_files import LEFT_SECONDS, remove_leftovers, temporary_path
from query.faces.browse.layout import _remove_old

IDENTITY = Identity("a/b", "c" * 40, "org/base", "d" * 40, "finetune", Spec())


def later(days: int) -> type[datetime]:
    """A clock that is ``days`` ahead."""

    class Later(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) + timedelta(days=days)

    return Later


def failed(when: datetime, attempts: int = PATIENCE) -> FailureRecord:
    return FailureRecord(
        IDENTITY, "failed", "timeout", "too slow", attempts, when.isoformat(timespec="seconds"), READER
    )


def test_a_retry_waits_for_as_long_as_it_should_and_no_longer():
    now = datetime.now(UTC)
    assert not failed(now - timedelta(seconds=BACK_OFF_SECONDS / 2)).is_due
    assert failed(now - timedelta(seconds=BACK_OFF_SECONDS * 2)).is_due
    assert failed(now, attempts=PATIENCE - 1).is_due


@pytest.mark.parametrize("ahead", [60, 3600, 86400 * 365 * 50])
@pytest.mark.parametrize("attempts", [1, PATIENCE, 100])
def test_a_failure_in_the_future_is_tried_again_now(ahead, attempts):
    assert failed(datetime.now(UTC) + timedelta(seconds=ahead), attempts).is_due


def test_attempts_go_on_being_counted(tmp_path, monkeypatch):
    """The next failure is written at the time that it is now, and waits as ever."""
    store = RecordStore(AtlasFolder(tmp_path))

    with monkeypatch.context() as patched:
        patched.setattr(records, "datetime", later(3))
        for _ in range(PATIENCE):
            store.write_failure(IDENTITY, Failed("timeout", "too slow"))
    found = store.failure(IDENTITY.digest)
    assert found is not None
    assert datetime.fromisoformat(found.when) > datetime.now(UTC)
    assert found.is_due
    again = store.write_failure(IDENTITY, Failed("timeout", "too slow"))
    assert again.attempts == PATIENCE + 1
    assert not again.is_due


@pytest.mark.parametrize("change", [
    {"when": "yesterday"}, {"when": "2024-01-01T00:00:00"}, {"when": 5}, {"attempts": "3"}, {"attempts": 10**30},
    {"attempts": True}, {"status": "indexed"}, {"reason": None}, {"detail": ["x"]}, {"identity": []}, {"more": 1},
])  # fmt: skip
def test_an_invalid_failure_record_is_ignored(tmp_path, change):
    import json

    store = RecordStore(AtlasFolder(tmp_path))
    store.write_failure(IDENTITY, Failed("timeout", "too slow"))
    path = store.folder.failure(IDENTITY.digest)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert store.failure(IDENTITY.digest) is None
    assert store.write_failure(IDENTITY, Failed("timeout", "too slow")).attempts == 1


def test_what_killed_writers_left_before_the_clock_was_set_back_is_swept_up(tmp_path):
    folder = AtlasFolder(tmp_path)
    left = temporary_path(folder.record("ab" + 62 * "0"))
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x")
    os.utime(left, (0, time.time() + LEFT_SECONDS + 60))
    remove_leftovers(folder)
    assert not left.exists()


def test_a_date_to_wait_for_is_one_of_the_servers_clock():
    headers = {"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    assert requested_wait(429, headers) == 30
    assert requested_wait(429, {**headers, "date": "never"}) == 1


def test_processes_do_not_wait_for_a_clock_that_was_set_back(tmp_path, monkeypatch):
    path = tmp_path / "clock"
    RateLimiter(path).pause("api", 5)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 1800)
    turn = RateLimiter(path).take_turn("api", 3600)
    assert turn is not None
    assert turn <= 5


def test_what_an_earlier_version_skipped_is_tried_once_more(tmp_path, monkeypatch):
    """A version that reads more kinds of models has a larger READER."""
    store = RecordStore(AtlasFolder(tmp_path / "atlas"))
    template = Unit(ModelRef("org/base"), "", "org/base", "b" * 40, "finetune", Spec())
    now = datetime.now(UTC)
    row = {"id": "a/b", "sha": "c" * 40, "siblings": [], "config": {}}
    listed = [ListedModel("a/b", row, "finetune", "tag", "org/base", now, now)]

    def is_planned() -> bool:
        (one,) = plan(listed, listed, store, template, retry_failed=False)
        return one.unit is not None

    assert is_planned()
    identity = replace(template, model=ModelRef("a/b"), commit="c" * 40).identity
    store.write_failure(identity, Skipped("adapter_unsupported", "it uses DoRA"))
    assert not is_planned()
    monkeypatch.setattr("indexer.builds.plan.READER", READER + 1)
    assert is_planned()
    monkeypatch.setattr(records, "READER", READER + 1)
    store.write_failure(identity, Skipped("adapter_unsupported", "still"))
    assert not is_planned()


@pytest.mark.parametrize("ahead", [0, 86400 * 365])
def test_the_base_that_was_stored_last_is_the_newest_whatever_the_clock_says(tmp_path, ahead):
    paths = [tmp_path / "bases" / f"org--base@{commit * 40}.safetensors" for commit in "ab"]
    for path, seconds in zip(paths, (time.time() + ahead, time.time()), strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (seconds, seconds))
        date_as_newest(path)
    assert max(paths, key=lambda path: path.stat().st_mtime_ns) == paths[1]


def test_of_two_failures_one_in_the_future_is_the_older(atlas, monkeypatch):
    """Else its model would be tried by every build until then."""
    store = RecordStore(atlas)
    template = Unit(ModelRef("org/base"), "", "org/base", "b" * 40, "finetune", Spec())
    identity = replace(template, model=ModelRef("a/b"), commit="c" * 40).identity
    now = datetime.now(UTC)
    listed = ListedModel(
        "a/b", {"id": "a/b", "sha": "c" * 40, "siblings": [], "config": {}}, "finetune", "tag", "org/base", now, now
    )
    full, sampled = identity, replace(identity, spec=replace(identity.spec, sample=True))
    for one, days in ((full, 3000), (sampled, 0)):
        monkeypatch.setattr(records, "datetime", later(days))
        for _ in range(PATIENCE):
            store.write_failure(one, Failed("timeout", "too slow"))
    monkeypatch.undo()
    (planned,) = plan([listed], [listed], store, template, retry_failed=False)
    assert planned.unit is None


def test_layouts_of_the_future_do_not_push_out_new_ones(tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.json").write_text("{}")
        seconds = time.time() + 86400 * (365 if number < 3 else -number)
        os.utime(tmp_path / f"{number}.json", (seconds, seconds))
    written = tmp_path / "written.json"
    written.write_text("{}")
    _remove_old(written, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.json", "4.json", "written.json"]
