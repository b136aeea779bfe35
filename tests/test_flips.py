"""A bit that a disk turns over is found, wherever it lies, and the command that is then advised mends it."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing

import pytest

from indexer.atlas import AtlasFolder
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.records.store import RecordStore
from indexer.upkeep.verification import verify
from tests.every_kind import make_every_kind
from tests.flips import files_by_kind, flip, flipped, what_verify_says
from tests.once import made_once
from tests.tiny_hub import BASE, served_shell

pytestmark = pytest.mark.slow

KINDS = ["database", "listing", "base", "record", "outcome", "profile", "faiss", "checksums"]
SMALL = ["outcome", "checksums"]


@pytest.fixture(scope="module")
def indexed_store(tmp_path_factory):
    """A Hub's store and an atlas of it with every kind of file."""
    return made_once(tmp_path_factory, "every-kind", make_every_kind)


@pytest.fixture
def atlas(indexed_store, tmp_path):
    shutil.copytree(indexed_store / "atlas", tmp_path / "atlas")
    return AtlasFolder(tmp_path / "atlas")


def test_the_atlas_has_every_kind_of_file_and_is_whole(atlas):
    assert verify(atlas) == []
    assert list(files_by_kind(atlas)) == KINDS


def found(atlas, kind, count):
    """Of the flips that were not found: where they lie."""
    paths = files_by_kind(atlas)[kind]
    missed = []
    before = Listing(atlas.listing(BASE)).as_lines()
    for path, position, bit in flipped(paths, count, kind):
        said = what_verify_says(atlas)
        if not said and not (kind == "listing" and Listing(path).as_lines() == before):
            missed.append((path.name, position, bit, said))
    return missed


@pytest.mark.parametrize("kind", KINDS)
def test_flips_of_every_kind_of_file_are_found(atlas, kind):
    # Of the small files every byte is tried below, by what reads them.
    assert found(atlas, kind, 3 if kind in SMALL else 8) == []
    assert verify(atlas) == []


@pytest.mark.parametrize("kind", SMALL)
def test_every_byte_of_a_small_file_counts(atlas, kind):
    """Where a file is text, each byte is tried, so that no name of a key and no last character is left out."""
    from indexer.publish.staging import damage

    path = files_by_kind(atlas)[kind][0]
    content = path.read_bytes()
    missed = []
    for position in range(len(content)):
        for bit in (0, 3, 6):
            flip(path, position, bit)
            if kind == "outcome":
                is_found = RecordStore(atlas).failure(path.stem) is None
            else:
                is_found = damage(atlas) is not None
            if not is_found:
                missed.append((position, bit))
            flip(path, position, bit)
    assert missed == []


def test_every_byte_of_the_headers_of_a_base_and_a_record_counts(atlas):
    from indexer.deltas.stored_base import StoredBase
    from indexer.errors import AtlasError
    from indexer.records.record import read_record

    base, record = files_by_kind(atlas)["base"][0], files_by_kind(atlas)["record"][0]
    checks = {base: lambda: StoredBase(base).check(recheck=True), record: lambda: read_record(record)}
    for path, check in checks.items():
        length = int.from_bytes(path.read_bytes()[:8], "little")
        missed = []
        for position in range(0, 8 + length):
            bit = position % 8
            flip(path, position, bit)
            try:
                check()
                missed.append((position, bit))
            except AtlasError:
                pass
            flip(path, position, bit)
        assert missed == []


@pytest.fixture
def shell(indexed_store, tmp_path):
    """Where the atlas is, with the Hub that it is of."""
    with served_shell(indexed_store / "store", tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache")) as shell:
        yield shell


ADVISED = re.compile(r"\bindex (?:build|publish|rebuild|represent)(?: --base [\w/-]+)?(?: [a-z_]+(?=`))?")


def commands_in(said):
    """What is advised, in order."""
    return [words.split() for words in ADVISED.findall(said)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "profile"])
def test_what_is_advised_mends_it(atlas, shell, kind):
    path = files_by_kind(atlas)[kind][0]
    # A page of a listing may have room, whose bits say nothing.
    place = path.read_bytes().index(b'"id":"ann/glue-0"') if kind == "listing" else path.stat().st_size // 2
    flip(path, place, 4)
    ran = shell("index", "verify", "--json")
    assert ran.code == 1
    said = " ".join(one["problem"] for one in ran.json["disagreements"]) if ran.out else ran.err
    advised = commands_in(said)
    assert advised, said
    for words in advised:
        words = [*words, "--base", BASE] if words == ["index", "build"] else words
        did = shell(*words)
        assert did.code == 0, did.err
    after = shell("index", "verify", "--json")
    assert (after.code, after.json) == (0, {"ok": True, "disagreements": []})
    assert len(shell("query", "similar", "ann/glue-0", "--json").json) == 5


def test_a_damaged_base_is_reported_by_every_reader_of_its_matrices(atlas, shell):
    """Not blamed on the model, and not answered with numbers that are wrong."""
    (base,) = files_by_kind(atlas)["base"]
    flip(base, base.stat().st_size - 3, 6)
    ran = shell("query", "similar", "bob/glue-1@main", "--json")
    assert ran.code == 1
    assert "The block matrices of org/tiny-base are damaged" in ran.err
    assert f"index build --base {BASE}" in ran.err
    again = shell("index", "build", "--base", BASE, "--json")
    assert again.code == 0
    assert "are damaged" in again.err
    assert again.json["unchanged"] == 6
    assert shell("query", "similar", "bob/glue-1@main", "--json").code == 0


def test_a_base_is_hashed_once(atlas, monkeypatch):
    from indexer.deltas import stored_base
    from indexer.deltas.stored_base import StoredBase

    (base,) = files_by_kind(atlas)["base"]
    hashed = []
    actual = stored_base.actual_checksum
    monkeypatch.setattr(stored_base, "actual_checksum", lambda path: hashed.append(path) or actual(path))
    for _ in range(3):
        StoredBase(base).check()
    assert len(hashed) == 1
    base.write_bytes(base.read_bytes())
    StoredBase(base).check()
    assert len(hashed) == 2


def test_without_its_checksum_nothing_is_believed(atlas):
    """A row of a listing, a stored failure and the block matrices of a base."""
    listing, failure = atlas.listing(BASE), next(atlas.records.glob("*/*.json"))
    failure.write_bytes(re.sub(rb',"sum":"[0-9a-f]{16}"', b"", failure.read_bytes()))
    with closing(sqlite3.connect(listing)) as connection, connection:
        connection.execute("UPDATE models SET checksum = ''")
    (base,) = atlas.bases.iterdir()
    base.write_bytes(base.read_bytes().replace(b'"sha256":"', b'"sha257":"', 1))
    assert len(Listing(listing).problems()) == 6
    assert Listing(listing).models() == []
    with pytest.raises(AtlasError, match="it has no checksum"):
        RecordStore(atlas).checked_failure(failure.stem)
    with pytest.raises(AtlasError, match="its checksum cannot be read"):
        StoredBase(base).check()
    assert {one.kind for one in verify(atlas)} >= {"listing", "record", "base"}
