"""`index verify --strict`: whether somebody else's atlas is what schema.sql and its records say."""

from __future__ import annotations

import os
import re

import pytest

from indexer.upkeep.deep_verification import verify_deeply
from indexer.upkeep.verification import verify
from tests.database import execute

pytestmark = pytest.mark.slow


def change(atlas, statement: str) -> None:
    execute(atlas.database, statement)
    atlas.checksums.unlink(missing_ok=True)  # who changes an atlas can also write them


def test_a_good_atlas_passes_every_check(atlas):
    assert verify_deeply(atlas) == []


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("UPDATE neighbours SET similarity = 0.999 WHERE model_id = 2 AND rank = 1", "neighbours"),
        ("UPDATE neighbours SET neighbour_id = 3 - neighbour_id WHERE model_id = 9 AND neighbour_id IN (1, 2)", "neighbours"),
        ("DELETE FROM neighbours WHERE model_id = 4 AND rank = 8", "neighbours"),
        ("UPDATE deltas SET norm = norm * 2 WHERE model_id = 3 AND layer = 0", "row"),
        ("DELETE FROM deltas WHERE model_id = 3 AND layer = 0", "row"),
        ("UPDATE records SET delta_norm = 7 WHERE model_id = 3", "row"),
        ("UPDATE records SET is_unrelated = true, verified = false WHERE model_id = 3", "row"),
        ("UPDATE records SET weight_files = [] WHERE model_id = 3", "row"),
        ("UPDATE deltas SET singular_values = list_transform(singular_values, lambda s: s * 1.01) WHERE model_id = 3", "row"),
        ("UPDATE deltas SET layer = layer + 7 WHERE model_id = 3 AND layer = 0", "row"),
        ("INSERT INTO adapter_bases VALUES (3, 'a/b', 'foreign', 'a/b', 'it does not fit')", "row"),
        ("UPDATE fine_tunes SET downloads = 12345 WHERE model_id = 3", "row"),
        ("UPDATE fine_tunes SET author = 'eve' WHERE model_id = 3", "row"),
        ("DELETE FROM tags WHERE model_id = 3", "row"),
        ("UPDATE tags SET tag = 'bent' WHERE model_id = 3", "row"),
        ("INSERT INTO model_datasets (model_id, dataset, raw, source) VALUES (3, 'a/b', 'a/b', 'card')", "row"),
        ("UPDATE representations SET version = version + 1", "vectors"),
        ("UPDATE bases SET deltas = deltas[2:], config = '{}'", "row"),
        ("UPDATE representations SET blocks = 7", "vectors"),
        ("UPDATE representations SET blocks = 0", "vectors"),
        ("CREATE VIEW mine AS SELECT 1 AS one", "database"),
        ("CREATE OR REPLACE VIEW failures AS SELECT 1 AS one", "definition"),
    ],
)  # fmt: skip
def test_alterations_are_found(atlas, statement, kind):
    change(atlas, statement)
    assert {problem.kind for problem in verify_deeply(atlas)} == {kind}


def test_values_that_no_publish_writes_are_found(atlas):
    for statement in (
        "UPDATE bases SET config = '[1]'",
        "INSERT INTO null_similarity SELECT base, 'input', 'full', 'full', 300, .5, 'inf', NULL FROM bases",
        "UPDATE neighbours SET similarity = 'nan' WHERE model_id = 2",
    ):
        change(atlas, statement)
    assert [problem.what for problem in verify(atlas)] == ["bases", "neighbours", "null_similarity"]


@pytest.mark.parametrize(
    "broken", ["indexer.upkeep.verification.read_published", "indexer.upkeep.deep_verification.publish"]
)
def test_values_that_end_a_check_are_a_problem(atlas, monkeypatch, broken):
    def fail(*_, **__):
        raise TypeError("'NoneType' object is not iterable")

    monkeypatch.setattr(broken, fail)
    (problem,) = verify_deeply(atlas)
    assert (problem.kind, problem.what) == ("database", "atlas.duckdb")
    assert "no publish writes (TypeError: 'NoneType' object is not iterable): run `index rebuild`" in problem.problem


def test_rows_about_vectors_that_cannot_be_read_are_named(atlas):
    execute(atlas.database, "UPDATE representations SET blocks = 1")
    change(atlas, "INSERT INTO internal.vector_masks SELECT base, 'input', '1', [NULL] FROM bases")
    for check in (verify, verify_deeply):
        (problem,) = {problem for problem in check(atlas) if problem.kind == "vectors"}
        assert re.match("The rows about the vectors of [^ ]+, input, are not valid: ", problem.problem)


def test_a_vector_that_its_record_does_not_make_is_found(atlas):
    """As a forger would: another vector, with a checksum and a name that fit it."""
    import faiss

    from indexer.storage.checksums import file_sha256

    (path,) = atlas.root.glob("*.faiss")
    index = faiss.read_index(str(path))
    matrix = index.index.reconstruct_n(0, index.ntotal)
    ids = faiss.vector_to_array(index.id_map)
    matrix[0] = matrix[1]
    forged = faiss.index_factory(matrix.shape[1], "IDMap,SQfp16", faiss.METRIC_INNER_PRODUCT)
    forged.add_with_ids(matrix, ids)
    faiss.write_index(forged, str(path))
    change(atlas, f"UPDATE representations SET faiss_sha256 = '{file_sha256(path)}'")
    assert verify(atlas) == []
    kinds = {problem.kind for problem in verify_deeply(atlas)}
    assert kinds == {"vectors", "neighbours"}


def test_what_is_not_a_file_is_found_by_name(atlas, tmp_path):
    os.mkfifo(atlas.root / "listing" / "pipe.sqlite")
    os.mkfifo(atlas.records / "pipe")
    (tmp_path / "elsewhere").write_text("{}")
    (atlas.bases / "elsewhere").symlink_to(tmp_path / "elsewhere")
    files = {problem.what for problem in verify_deeply(atlas) if problem.kind == "file"}
    assert files == {"listing/pipe.sqlite", "records/pipe", "bases/elsewhere"}


def test_nothing_is_left_of_a_check_that_is_interrupted(atlas, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        assert list(tmp_path.glob("temporary/*/*"))
        raise KeyboardInterrupt

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr("indexer.upkeep.deep_verification.publish", interrupted)
    before = sorted(path for path in atlas.root.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        verify_deeply(atlas)
    assert not list((tmp_path / "temporary").iterdir())
    assert sorted(path for path in atlas.root.rglob("*")) == before
