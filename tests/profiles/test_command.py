"""`index profile` with a Hub: what is stored, what is left alone, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import numpy as np
import pytest

from indexer.atlas import AtlasFolder
from indexer.builds.options import ProfileOptions
from indexer.builds.profiling import base_and_models, profile_plan
from indexer.errors import AtlasError
from indexer.machine import check_device
from indexer.profiles.store import ProfileStore
from indexer.upkeep.maintenance import rebuild, represent
from indexer.upkeep.verification import verify
from query import Atlas
from tests.atlas_builder import Model, insert_base, write_atlas
from tests.database import read_rows
from tests.tiny_hub import BASE, indexed


@pytest.fixture(scope="module")
def shell(tiny_store, tmp_path_factory):
    with indexed(tiny_store(2), tmp_path_factory.mktemp("profiles")) as shell:
        yield shell


def profile(shell, *words: str) -> dict:
    command = shell("index", "profile", *words, "--json")
    assert command.code == 0, command.err
    return json.loads(command.out)


def rows(shell, statement: str) -> list[tuple]:
    return read_rows(Path(shell.folder) / "atlas" / "atlas.duckdb", statement)


@pytest.fixture(scope="module")
def first(shell) -> dict:
    """The report of the first run; its profiles exist from then on."""
    plan = profile_plan(folder_of(shell), BASE, [], ProfileOptions())
    assert (plan["due"], plan["layers"]) == (6, 2)
    assert plan["bytes"] > 0
    return profile(shell, "--base", BASE, "--with-untrained", "--limit", "4")


@pytest.mark.slow
def test_profiles_are_stored_and_left_alone(shell, first):
    assert (first["discovered"], first["indexed"], first["refused"]) == (4, 4, [])
    store = ProfileStore(AtlasFolder(Path(shell.folder) / "atlas"))
    files = {digest: store.folder.profile(digest).read_bytes() for digest in store.digests()}
    assert len(files) == 6
    again = profile(shell, "--base", BASE, "--with-untrained", "--limit", "4")
    assert (again["indexed"], again["unchanged"]) == (0, 4)
    assert {digest: store.folder.profile(digest).read_bytes() for digest in store.digests()} == files
    assert rows(shell, "SELECT subject, count(*) FROM profiles GROUP BY ALL ORDER BY ALL") == [
        ("base", 1), ("fine_tune", 4), ("untrained", 1),
    ]  # fmt: skip
    (counted,) = rows(
        shell,
        "SELECT count(*) FROM depth_of_models WHERE subject = 'fine_tune' AND drift > 0 AND cka < 1 AND delta > 0 "
        "AND tolerance > 0 AND tolerance_error > 0 AND readable IS NOT NULL AND reach >= 1 AND recovered IS NULL",
    )
    assert counted == (8,)
    # delta grows with depth: layer 1 of a profile is layer 0 of the weights.
    assert rows(
        shell,
        "SELECT count(*) FROM depth_of_models AS up JOIN depth_of_models AS low USING (profile_id) "
        "WHERE up.layer = 2 AND low.layer = 1 AND abs(up.delta ** 2 - low.delta ** 2 - up.own_delta ** 2) > 1e-6",
    ) == [(0,)]
    assert not verify(folder_of(shell))


def folder_of(shell) -> AtlasFolder:
    return AtlasFolder(Path(shell.folder) / "atlas")


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_the_database_is_made_again_from_the_files(shell):
    before = rows(shell, "SELECT * EXCLUDE (profile_id) FROM depth_of_models ORDER BY ALL")
    assert len(before) == 12
    rebuild(folder_of(shell))
    assert rows(shell, "SELECT * EXCLUDE (profile_id) FROM depth_of_models ORDER BY ALL") == before


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_a_damaged_profile_is_found(shell):
    folder = folder_of(shell)
    path = folder.profile(next(iter(ProfileStore(folder).digests())))
    content = path.read_bytes()
    path.write_bytes(content[:-4] + b"\0\0\0\1")
    try:
        assert [(problem.kind, "altered" in problem.problem) for problem in verify(folder)] == [("profile", True)]
    finally:
        path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_depth_is_a_representation_of_profiled_models(shell):
    folder = folder_of(shell)
    represent(folder, "depth")
    with Atlas(folder.root) as atlas:
        assert len(atlas.similar("ann/squad-0", representation="depth")) == 3
        assert atlas.purity(representation="depth").models == 4
        (row,) = atlas.rows("SELECT count(*) - 4 AS others FROM models WHERE NOT is_copy")
        left_out = atlas.clusters(representation="depth", draws=20).left_out
        assert (left_out.without, left_out.sampled) == (row["others"], 0)
        (other,) = atlas.rows("SELECT min(model) AS model FROM models WHERE model NOT IN (SELECT model FROM profiles)")
        with pytest.raises(AtlasError, match="has no depth profile in this atlas"):
            atlas.similar(other["model"], representation="depth")
    assert not verify(folder)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"layers": "0"}, "no layer 0"),
        ({"layers": "one"}, "not a valid list of layers"),
        ({"layers": "1," * 5000}, "not a valid list of layers"),
        ({"steps": 3}, "recipe='original'"),
        ({"text": "a.txt", "probe": "random"}, "can only be used with --probe text"),
        ({"images": ("a.png",), "probe": "text"}, "can only be used with --probe image"),
    ],
)
def test_contradictory_options(chosen, expected):
    with pytest.raises(AtlasError, match=re.escape(expected)):
        ProfileOptions(**chosen)


def test_models_and_bases_that_are_not_there(shell):
    with pytest.raises(AtlasError, match="not indexed"):
        base_and_models(folder_of(shell), None, ["nobody/at-all"])
    with pytest.raises(AtlasError, match="is not a base"):
        base_and_models(folder_of(shell), "no/base", [])
    assert base_and_models(folder_of(shell), "tiny-base", ["ANN/glue-0"]) == (BASE, ["ann/glue-0"])


def test_a_model_of_another_base(tmp_path):
    folder = AtlasFolder(write_atlas(tmp_path, [Model("ann/one", np.eye(8)[0])], base="org/first"))
    with duckdb.connect(str(folder.database)) as connection:
        insert_base(connection, "org/other", layers=[{"stack": "", "layers": 6}])
    assert base_and_models(folder, None, ["one"]) == ("org/first", ["ann/one"])
    with pytest.raises(
        AtlasError, match="ann/one is not indexed"
    ):  # else all models of the other base would be profiled
        base_and_models(folder, "org/other", ["ann/one"])
    with pytest.raises(AtlasError, match="several bases"):
        base_and_models(folder, None, [])


@pytest.mark.slow
def test_the_error_of_the_command_for_bad_input(shell):
    command = shell("index", "profile", "--base", BASE, "--probe", "image")
    assert (command.code, len(command.err.strip().splitlines())) == (1, 1)
    assert "takes words" in command.err


def test_an_unavailable_device():
    with pytest.raises(AtlasError, match="cannot be used here"):
        check_device("cuda:7")
