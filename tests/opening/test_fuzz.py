"""Files of an atlas bent in every way: it opens, or is refused in one sentence; see tests/opening/fuzz.py."""

from __future__ import annotations

import os
import random

import pytest

from indexer.atlas import AtlasFolder
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError
from indexer.listing.exchange import read_exported
from indexer.listing.listing import Listing
from indexer.profiles.store import read_profile
from indexer.publish.stored_answers import LINEAGE, exported_answers, read_answers
from indexer.records.record import read_record
from indexer.records.store import RecordStore
from indexer.storage import checksummed_jsonl
from indexer.storage.checksummed_jsonl import write_lines
from tests.every_kind import make_every_kind
from tests.flips import files_by_kind
from tests.once import made_once
from tests.opening.fuzz import bent_object, outcomes, read, use
from tests.tiny_hub import BASE

pytestmark = pytest.mark.slow

READ_ALONE = ("listing", "base", "record", "outcome", "profile", "checksums")
USED = ("database", *READ_ALONE, "faiss")


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    return made_once(tmp_path_factory, "every-kind", make_every_kind) / "atlas"


def wrong(outcomes):
    return {seed: outcome for seed, outcome in outcomes.items() if outcome != "fine"}


@pytest.mark.parametrize("kind", READ_ALONE)
def test_an_altered_file_is_read_or_refused(every, kind):
    assert wrong(outcomes(every, kind, range(30), read)) == {}


@pytest.mark.parametrize("kind", USED)
def test_an_atlas_with_an_altered_file_is_used_or_refused(every, kind):
    assert wrong(outcomes(every, kind, range(1), use)) == {}


@pytest.mark.study
@pytest.mark.parametrize("kind", USED)
def test_many_atlases_with_an_altered_file_are_used_or_refused(every, kind):
    assert wrong(outcomes(every, kind, range(1, 40), use)) == {}


def test_what_goes_wrong_is_reported(every):
    """The fuzz itself: a traceback, a death and a message that is no sentence are none of them fine."""

    def traceback(*arguments):
        raise KeyError("x")

    def death(*arguments):
        os.kill(os.getpid(), 9)

    assert "KeyError: 'x'" in outcomes(every, "outcome", range(1), traceback)[0]
    assert outcomes(every, "outcome", range(2), death) == dict.fromkeys(range(2), "killed by SIGKILL")


@pytest.mark.parametrize("kind", ["record", "profile", "outcome"])
def test_a_file_of_holes_is_not_read_into_memory(every, tmp_path, kind):
    """In an archive it takes no room, in memory a terabyte."""
    atlas = AtlasFolder(tmp_path)
    path = tmp_path / files_by_kind(AtlasFolder(every))[kind][0].relative_to(every)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    ways = {"record": read_record, "profile": read_profile}
    with pytest.raises((AtlasError, OSError)):
        ways[kind](path) if kind in ways else RecordStore(atlas).checked_failure(path.stem)


def test_listings_and_answers_of_holes_are_not_read_into_memory(tmp_path):
    atlas = AtlasFolder(tmp_path)
    for path in (atlas.listing(BASE), atlas.exported("listing", BASE), atlas.exported("lineage", BASE)):
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(AtlasError, match="is damaged"):
        Listing(atlas.listing(BASE)).models()
    assert len(Listing(atlas.listing(BASE)).problems()) == 1
    atlas.listing(BASE).unlink()
    assert "has more than" in read_answers(LINEAGE, atlas, BASE)[1][0]
    assert "has more than" in read_exported(atlas.exported("listing", BASE))[1][0]


@pytest.fixture(scope="module")
def lines(every):
    """The lines of a listing and of stored answers."""
    listing = Listing(AtlasFolder(every).listing(BASE)).as_lines()
    return {"listing": listing, "lineage": exported_answers(LINEAGE, AtlasFolder(every), BASE)[0]}


@pytest.mark.parametrize("kind", ["listing", "lineage"])
def test_altered_lines_are_read_or_left_out(lines, tmp_path, kind):
    atlas = AtlasFolder(tmp_path)
    path = atlas.exported(kind, BASE)
    write_lines(path, lines[kind])
    content = path.read_bytes()
    for seed in range(200):
        path.write_bytes(bent_object(content, random.Random(seed)))
        lines_read, problems = read_exported(path) if kind == "listing" else read_answers(LINEAGE, atlas, BASE)
        assert len(lines_read) >= len(lines[kind]) - 1, seed
        assert all(len(problem) <= 300 for problem in problems)


def test_a_line_without_end_is_reported_by_number(lines, tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    write_lines(path, lines["listing"])
    first, *rest = path.read_bytes().splitlines(keepends=True)
    monkeypatch.setattr(checksummed_jsonl, "_MOST_LINE", max(map(len, (first, *rest))))
    path.write_bytes(b"".join([first, b"x" * 50_000 + b"\n", *rest]))
    lines_read, problems = read_exported(path)
    assert [line["id"] for line in lines_read if line["kind"] == "model"] == [
        line["id"] for line in lines["listing"][1:7]
    ]
    assert len(problems) == 1
    assert problems[0].startswith("line 2 ")


@pytest.mark.parametrize("kind", ["profile", "lineage", "listing", "base"])
def test_a_pipe_does_not_hang(every, tmp_path, kind):
    atlas = AtlasFolder(tmp_path)
    if kind in ("lineage", "listing"):
        path = atlas.exported(kind, BASE)
        path.parent.mkdir()
        os.mkfifo(path)
        lines_and_problems = read_answers(LINEAGE, atlas, BASE) if kind == "lineage" else read_exported(path)
        assert "is a pipe" in lines_and_problems[1][0]
        return
    path = tmp_path / files_by_kind(AtlasFolder(every))[kind][0].name
    os.mkfifo(path)
    with pytest.raises(AtlasError):
        read_profile(path) if kind == "profile" else StoredBase(path).check()
