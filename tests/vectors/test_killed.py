"""A publish that is killed while the centre moves leaves the vectors of one centre: the old one's or the new one's."""

from __future__ import annotations

import shutil

import pytest

from indexer.atlas import AtlasFolder
from indexer.builds.shards import publish_records
from indexer.upkeep.maintenance import rebuild
from indexer.upkeep.verification import verify
from query import Atlas
from tests.conftest import start_python
from tests.halves import a_few
from tests.patience import PATIENCE
from tests.tiny_hub import BASE

# In the child: publish, and end at once at some point.
CRASH = """
import os, sys
import indexer.publish.centring as centring
import indexer.publish.staging as staging
import indexer.publish.vector_update as vector_update
import indexer.publish.vectors as vectors
from indexer.builds.options import BuildOptions
from indexer.builds.report import Watcher
from indexer.builds.shards import publish_records
from indexer.names import RELATIONS
def die(*arguments, **options):
    os._exit(9)
def after(real):
    return lambda *arguments, **options: (real(*arguments, **options), die())
point = sys.argv[2]
if point == "centre written":
    centring.Centring._write = after(centring.Centring._write)
elif point == "vectors written":
    vectors.write_index = after(vectors.write_index)
elif point == "vectors named":
    vectors.PublishedVectors._write = after(vectors.PublishedVectors._write)
elif point == "neighbours":
    vector_update.renew_neighbours = die
elif point == "backgrounds":
    vector_update.renew_null_similarity = die
elif point == "commit":
    staging._put_in_place = die
elif point == "renamed":
    staging._put_in_place = after(staging._put_in_place)
publish_records((), sys.argv[1])
"""


def _publish(root):
    publish_records((), root)


def _state(root):
    """What readers see: the centres that vectors name, the published one, and the vectors with their neighbours."""
    with Atlas(root) as atlas:
        named = {row["centre"] for row in atlas.rows("SELECT centre FROM representations")}
        vectors = atlas.index(BASE).vectors()
        neighbours = atlas.rows("FROM neighbours ORDER BY ALL")
        return named, atlas.centre(BASE).version, vectors.ids.tolist(), vectors.matrix.tolist(), neighbours


@pytest.fixture(scope="module")
def made_to_grow(made, tmp_path_factory):
    """An atlas of five models whose next publish finds four more, so that the centre moves; tests must not change it."""
    folder = tmp_path_factory.mktemp("growing")
    atlas = AtlasFolder(shutil.copytree(made, folder / "atlas"))
    hidden = sorted(atlas.records.glob("*/*.safetensors"))[:4]
    aside = [path.rename(folder / path.name) for path in hidden]
    rebuild(atlas, force=True)
    for path, place in zip(aside, hidden, strict=True):
        path.rename(place)
    return atlas.root


@pytest.fixture
def growing(made_to_grow, tmp_path):
    return AtlasFolder(shutil.copytree(made_to_grow, tmp_path / "atlas"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    a_few(
        ["centre written", "vectors written", "vectors named", "neighbours", "backgrounds", "commit", "renamed"],
        {"vectors named", "commit"},
    ),
)
def test_a_publish_killed_while_the_centre_moves_leaves_one_centre(point, growing):
    before = _state(growing.root)
    assert len(before[2]) == 5
    with Atlas(growing.root) as reader:
        held = reader.index(BASE).vectors().matrix.tolist()
        assert start_python("-c", CRASH, growing.root, point).wait(PATIENCE) == 9
        assert reader.index(BASE).vectors().matrix.tolist() == held  # opened before, it sees nothing of it
    now = _state(growing.root)
    assert now[0] == {now[1]}
    assert (now == before) == (point != "renamed")
    assert {one.kind for one in verify(growing)} == ({"record"} if now == before else set())  # not published yet
    # The next publish finds nothing in its way, and makes what would have been made at once.
    _publish(growing.root)
    named, version, ids, *_ = _state(growing.root)
    assert named == {version} != before[0]
    assert len(ids) == 9
    assert verify(growing) == []
    assert not list(growing.root.glob(".*"))


@pytest.mark.slow
def test_a_record_that_is_damaged_when_the_centre_moves_costs_only_its_model(growing):
    """Its file is read for nothing else by then."""
    with Atlas(growing.root) as atlas:
        (row,) = atlas.rows("SELECT model, model_id, record_key FROM models ORDER BY model_id LIMIT 1")
    path = growing.record(row["record_key"])
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    _publish(growing.root)
    with Atlas(growing.root) as atlas:
        assert atlas.rows("SELECT status, reason FROM fine_tunes WHERE model_id = ?", [row["model_id"]]) == [
            {"status": "skipped", "reason": "does_not_fit"}
        ]
        ids = atlas.index(BASE).ids.tolist()
        assert len(ids) == 8
        assert row["model_id"] not in ids
        assert atlas.rows("SELECT 1 FROM neighbours WHERE ? IN (model_id, neighbour_id)", [row["model_id"]]) == []
    assert {(one.kind, one.what) for one in verify(growing)} == {("record", row["record_key"])}
    path.unlink()
    assert verify(growing) == []
