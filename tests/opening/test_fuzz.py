"""Files of an atlas bent in every way: it opens, or is refused in one sentence; see tests/opening/fuzz.py."""

from __future__ import annotations

import os

import pytest

from indexer.atlas import AtlasFolder
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError
from indexer.listing import listing as listings
from indexer.listing.listing import Listing
from indexer.profiles.store import read_profile
from indexer.publish.stored_answers import LINEAGE, read_answers
from indexer.records.record import read_record
from indexer.records.store import RecordStore
from tests.every_kind import make_every_kind
from tests.flips import files_by_kind
from tests.once import made_once
from tests.opening.fuzz import outcomes, read, use

pytestmark = pytest.mark.slow

READ_ALONE = ("listing", "base", "record", "outcome", "profile", "checksums")
USED = ("database", *READ_ALONE, "faiss")


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    return made_once(tmp_path_factory, "every-kind", make_every_kind) / "atlas"


def wrong(found):
    return {seed: said for seed, said in found.items() if said != "fine"}


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

    def traceback(*given):
        raise KeyError("x")

    def death(*given):
        os.kill(os.getpid(), 9)

    assert "KeyError: 'x'" in outcomes(every, "outcome", range(1), traceback)[0]
    assert outcomes(every, "outcome", range(2), death) == dict.fromkeys(range(2), "killed by SIGKILL")


@pytest.mark.parametrize("kind", ["record", "profile", "lineage", "outcome"])
def test_a_file_of_holes_is_not_read_into_memory(every, tmp_path, kind):
    """In an archive it takes no room, in memory a terabyte."""
    atlas = AtlasFolder(tmp_path)
    path = tmp_path / files_by_kind(AtlasFolder(every))[kind][0].relative_to(every)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    if kind == "lineage":
        assert "has more than" in read_answers(LINEAGE, path)[1][0]
        return
    ways = {"record": read_record, "profile": read_profile}
    with pytest.raises((AtlasError, OSError)):
        ways[kind](path) if kind in ways else RecordStore(atlas).checked_failure(path.stem)


def test_a_line_without_end_is_reported_by_number(every, tmp_path, monkeypatch):
    content = files_by_kind(AtlasFolder(every))["listing"][0].read_bytes()
    lines = content.splitlines(keepends=True)
    monkeypatch.setattr(listings, "_MOST_LINE", max(map(len, lines)))
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join([lines[0], b"x" * 3 * len(content) + b"\n", *lines[1:]]))
    assert len(Listing(path).models()) == 6
    assert [one.partition(" has more")[0] for one in Listing(path).problems()] == ["line 2"]
    path.write_bytes(content + b"x" * 3 * len(content))  # as if cut short: the next append overwrites it
    assert (len(Listing(path).models()), len(Listing(path).problems())) == (6, 0)
    Listing(path).note_base(["org/another"])
    assert path.read_bytes().startswith(content + b'{"kind":"base"')


@pytest.mark.parametrize("kind", ["profile", "lineage", "base"])
def test_a_pipe_does_not_hang(every, tmp_path, kind):
    path = tmp_path / files_by_kind(AtlasFolder(every))[kind][0].name
    os.mkfifo(path)
    if kind == "lineage":
        assert "is a pipe" in read_answers(LINEAGE, path)[1][0]
        return
    with pytest.raises(AtlasError):
        read_profile(path) if kind == "profile" else StoredBase(path).check()
