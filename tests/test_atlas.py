"""The atlas on disk: what a crash, a flipped bit, another program's lock or a newer schema does to it."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.upkeep.maintenance import rebuild, represent, status
from indexer.upkeep.verification import verify
from query import Atlas
from tests.conftest import start_python
from tests.database import execute
from tests.halves import a_few
from tests.patience import PATIENCE
from tests.tiny_hub import BASE, OLD_ID


def answers(folder: AtlasFolder) -> list[tuple[str, str, float]]:
    with Atlas(folder.root) as opened:
        return [
            (row["model"], row["neighbour"], round(row["similarity"], 5))
            for row in opened.rows("SELECT * FROM similar_models ORDER BY model, rank")
        ]


def only(folder: AtlasFolder, pattern: str) -> Path:
    (found,) = folder.root.glob(pattern)
    return found


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(bytes(content))


def test_a_good_atlas_verifies_and_its_status_adds_up(atlas):
    assert verify(atlas) == []
    answer = status(atlas)
    assert answer["bases"][0]["indexed"] == 9
    assert answer["bases"][0]["aliases"] == [OLD_ID]
    assert answer["representations"][0]["vectors"] == 9


@pytest.mark.parametrize("position", [8, 100, -1])
def test_an_altered_faiss_file_is_reported_and_never_loaded(atlas, position):
    path = only(atlas, "*.faiss")
    flip(path, position)
    assert [one.kind for one in verify(atlas)] == ["vectors"]
    with Atlas(atlas.root) as opened:
        with pytest.raises(AtlasError, match="damaged"):
            opened.similar("ann/glue-0", other_authors=True)
        # What the database holds is still there.
        assert opened.similar("ann/glue-0", k=1)[0].model.split("/")[1].startswith("glue")


def test_a_truncated_faiss_file_is_reported(atlas):
    path = only(atlas, "*.faiss")
    path.write_bytes(path.read_bytes()[:-100])
    with Atlas(atlas.root) as opened, pytest.raises(AtlasError, match="bytes instead of"):
        opened.vectors(BASE)
    path.unlink()
    assert "missing" in verify(atlas)[0].problem


def test_an_altered_record_is_reported_and_left_out_of_a_rebuild(atlas):
    path = sorted(atlas.records.glob("*/*.safetensors"))[0]
    flip(path, -5)
    (found,) = verify(atlas)
    assert found.kind == "record"
    report = rebuild(atlas)
    assert report["damaged_records"] == [path.stem]
    assert status(atlas)["bases"][0]["indexed"] == 8


def test_a_rebuild_from_nothing_but_records_and_listing_gives_the_same_answers(atlas):
    represent(atlas, "spectrum")
    before = answers(atlas)
    for path in [*atlas.root.glob("*.faiss"), atlas.database]:
        path.unlink()
    rebuild(atlas)
    assert verify(atlas) == []
    rebuilt = [row for row in answers(atlas) if row in before]
    assert len(rebuilt) == 9 * 8  # all of `input`; `spectrum` was known to the lost database alone
    represent(atlas, "spectrum")
    assert sorted(answers(atlas)) == sorted(before)


def test_ids_survive_a_rebuild(atlas):
    with Atlas(atlas.root) as opened:
        before = opened.rows("SELECT model, model_id FROM models ORDER BY model")
    rebuild(atlas)
    with Atlas(atlas.root) as opened:
        assert opened.rows("SELECT model, model_id FROM models ORDER BY model") == before


@pytest.mark.slow
def test_every_representation_can_be_published_and_asked(atlas):
    for name in ("output", "delta", "seed", "seed_scaled", "spectrum"):
        represent(atlas, name)
        with Atlas(atlas.root) as opened:
            found = opened.similar("ann/glue-0", k=2, representation=name)
            assert len(found) == 2
            purity = opened.purity(BASE, representation=name, draws=20).to_dict()
            assert 0 <= purity["purity"] <= 1
    assert verify(atlas) == []
    with Atlas(atlas.root) as opened, pytest.raises(AtlasError, match="Unknown representation 'nothing'"):
        opened.similar("ann/glue-0", representation="nothing")


CRASH = """
import os, sys
import indexer.publish.staging as staging
import indexer.publish.vector_update as vector_update
import indexer.publish.vectors as vectors
from indexer.atlas import AtlasFolder
from indexer.upkeep.maintenance import represent
point = sys.argv[2]
def die(*arguments, **options):
    os._exit(9)
if point == "vectors":
    real = vectors.write_index
    vectors.write_index = lambda *a, **o: (real(*a, **o), die())
elif point == "neighbours":
    vector_update.renew_neighbours = die
elif point == "commit":
    staging._put_in_place = die
elif point == "checksums":
    real = staging.note_checksum
    staging.note_checksum = lambda *a: (real(*a), die())
elif point == "renamed":
    real = staging._put_in_place
    staging._put_in_place = lambda *a: (real(*a), die())
folder = AtlasFolder(sys.argv[1])
with folder.locked("crash"):
    represent(folder, "output")
"""


@pytest.mark.parametrize("point", a_few(["vectors", "neighbours", "commit", "checksums", "renamed"], {"commit"}))
def test_a_publish_killed_anywhere_leaves_the_state_before_or_after(atlas, point):
    before = answers(atlas)
    assert start_python("-c", CRASH, atlas.root, point).wait(PATIENCE) == 9
    assert verify(atlas) == []
    with Atlas(atlas.root) as opened:
        published = {row["representation"] for row in opened.rows("SELECT representation FROM representations")}
    assert published == ({"input", "output"} if point == "renamed" else {"input"})
    assert [row for row in answers(atlas) if row in before] == before or point == "renamed"
    # The next publish finds nothing in its way and sweeps up.
    with atlas.locked("test"):
        represent(atlas, "output")
    assert verify(atlas) == []
    assert not list(atlas.root.glob(".*"))


def test_an_open_reader_keeps_its_generation_through_two_publishes(atlas):
    with Atlas(atlas.root) as opened:
        generation = opened.generation
        vectors = opened.vectors(BASE)
        represent(atlas, "output")
        represent(atlas, "delta")
        assert opened.generation == generation
        np.testing.assert_array_equal(opened.vectors(BASE).matrix, vectors.matrix)
        opened.refresh()
        assert opened.generation == generation + 2


def test_a_database_that_another_program_writes_to_is_read_from_a_copy(atlas):
    holder = subprocess.Popen(
        [
            sys.executable, "-c",
            "import duckdb, sys, time\nc = duckdb.connect(sys.argv[1])\nprint('held', flush=True)\ntime.sleep(600)",
            str(atlas.database),
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout.readline() == "held\n"
        with Atlas(atlas.root) as opened:
            assert "private copy" in opened.notes[0]
            assert len(opened.similar("ann/glue-0", k=3)) == 3
            assert opened.sql("SELECT count(*) FROM models").rows == [[9]]
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        (BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable"), "is being written to by another process"),
        (OSError(errno.ENOSYS, "Function not implemented"), "cannot be locked: Function not implemented"),
    ],
)  # fmt: skip
def test_a_lock_that_is_held_and_one_that_cannot_be_had_are_distinguished(tmp_path, monkeypatch, refusal, message):
    """Lustre without `-o flock` has no such locks: nobody writes, and waiting would not help."""

    def refuse(*arguments):
        raise refusal

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(AtlasError, match=message), AtlasFolder(tmp_path / "new").locked("test"):
        pass


def test_a_newer_schema_is_refused_with_what_to_do(atlas):
    execute(atlas.database, "UPDATE atlas_info SET schema_version = 99")
    with pytest.raises(AtlasError, match="Upgrade"):
        Atlas(atlas.root)


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 1000])
def test_a_damaged_database_says_how_to_make_it_again(atlas, content):
    atlas.database.write_bytes(content)
    with pytest.raises(AtlasError, match="rebuild"):
        Atlas(atlas.root)
    rebuild(atlas)
    assert verify(atlas) == []


def test_an_atlas_that_is_not_there_says_how_to_make_one(tmp_path):
    with pytest.raises(AtlasError, match=r"`build\("):
        Atlas(tmp_path)
    with pytest.raises(AtlasError, match="does not exist"):
        Atlas(tmp_path / "nowhere")
    (tmp_path / "file").write_text("no atlas")
    with pytest.raises(AtlasError, match="it is a file"):
        Atlas(tmp_path / "file")


def test_every_table_view_and_column_of_the_schema_is_commented(atlas):
    with Atlas(atlas.root) as opened:
        columns = opened.rows("SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal")
        assert len(columns) > 400
        assert [row for row in columns if not row["comment"]] == []
        assert all(row["comment"] for row in opened.rows("SELECT comment FROM duckdb_views() WHERE NOT internal"))
        assert all(row["comment"] for row in opened.rows("SELECT comment FROM duckdb_tables() WHERE NOT internal"))


def test_models_of_two_bases_are_never_compared(atlas):
    with Atlas(atlas.root) as opened:
        with pytest.raises(AtlasError, match="not a base of this atlas"):
            opened.similar("ann/glue-0", base="org/other")
        with pytest.raises(AtlasError, match="not a base"):
            opened.purity("org/other")
