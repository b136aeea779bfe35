"""What `index verify` finds although sizes, times and remembered checksums say that all is well."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import duckdb
import pytest

from indexer.atlas import AtlasFolder
from indexer.builds.shards import publish_records
from indexer.errors import AtlasError
from indexer.upkeep.maintenance import represent
from indexer.upkeep.verification import verify
from indexer.vectors import files
from query import Atlas
from tests.database import execute, read_rows

MODEL = "ann/glue-0"


@pytest.fixture(scope="module")
def made(made, tmp_path_factory):
    """With two representations."""
    folder = tmp_path_factory.mktemp("made") / "atlas"
    shutil.copytree(made, folder)
    represent(AtlasFolder(folder), "spectrum")
    return folder


def faiss_file(atlas: AtlasFolder, representation: str = "input") -> Path:
    ((name,),) = read_rows(
        atlas.database, "SELECT faiss_file FROM representations WHERE representation = ?", representation
    )
    return atlas.root / name


def flip(path: Path, position: int) -> None:
    """One bit, as a disk does it: nothing else tells."""
    content, status = bytearray(path.read_bytes()), path.stat()
    content[position] ^= 0x10
    path.write_bytes(bytes(content))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def edit(atlas: AtlasFolder, statement: str) -> None:
    """As a publish that goes wrong would write it; without a checksum, as atlases of before are."""
    execute(atlas.database, statement)
    atlas.checksums.unlink(missing_ok=True)


def search(atlas: AtlasFolder) -> None:
    with Atlas(atlas.root) as opened:
        opened.similar(MODEL, k=3, where="downloads >= 0")


def test_a_new_atlas_verifies(atlas):
    assert verify(atlas) == []
    search(atlas)


@pytest.mark.slow
@pytest.mark.parametrize("position", [2000, -1, -60], ids=["vector", "id", "another id"])
def test_a_byte_that_changed_with_its_file_s_time_kept_is_found_and_the_file_is_loaded_no_more(atlas, position):
    search(atlas)  # the check is remembered now
    flip(faiss_file(atlas), position)
    (found,) = verify(atlas)
    assert (found.kind, "checksum" in found.problem) == ("vectors", True)
    with pytest.raises(AtlasError, match="checksum"):
        search(atlas)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE representations SET length = length + 1 WHERE representation = 'input'", "vectors of"),
        ("UPDATE representations SET vectors = vectors + 1 WHERE representation = 'input'", "vectors of"),
        ("UPDATE representations SET faiss_bytes = faiss_bytes + 1 WHERE representation = 'input'", "bytes instead of"),
    ],
)
def test_tables_that_do_not_fit_the_files_are_reported(atlas, statement, message):
    edit(atlas, statement)
    found = verify(atlas)
    assert {one.kind for one in found} == {"vectors"}
    assert any(message in one.problem for one in found), found


def test_a_search_in_what_does_not_fit_is_refused_in_a_sentence(atlas):
    edit(atlas, "UPDATE representations SET length = 7 WHERE representation = 'input'")
    with pytest.raises(AtlasError, match="rebuild"):
        search(atlas)


def test_a_record_that_was_not_published_is_brought_in_by_what_is_advised(atlas, tmp_path):
    """As `index work` or a build that was killed leaves it."""
    path = sorted(atlas.root.glob("records/*/*.safetensors"))[0]
    path.rename(tmp_path / path.name)
    publish(atlas)
    (tmp_path / path.name).rename(path)
    (found,) = verify(atlas)
    assert (found.kind, found.what) == ("record", path.stem)
    assert found.problem.endswith("run `index publish`")
    publish(atlas)
    assert verify(atlas) == []


def publish(atlas: AtlasFolder) -> None:
    publish_records((), atlas.root)


@pytest.mark.parametrize("kind", ["Flat", "nothing of FAISS"])
def test_a_file_of_another_kind_is_refused_though_its_checksum_fits(atlas, kind):
    import faiss

    path = faiss_file(atlas)
    with duckdb.connect(str(atlas.database), read_only=True) as connection:
        count, length = connection.execute(
            "SELECT vectors, length FROM representations WHERE representation = 'input'"
        ).fetchall()[0]
    if kind == "Flat":
        index = faiss.IndexFlatIP(length)
        index.add(faiss.rand((count, length)))
        faiss.write_index(index, str(path))
    else:
        path.write_bytes(b"nothing" * 100)
    edit(
        atlas,
        f"UPDATE representations SET faiss_sha256 = '{files.file_sha256(path)}', faiss_bytes = {path.stat().st_size} "
        f"WHERE faiss_file = '{path.name}'",
    )
    assert {one.kind for one in verify(atlas)} == {"vectors"}
    with pytest.raises(AtlasError, match="rebuild"):
        search(atlas)
