"""`index profile` against a Hub: what is stored, what is left alone, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest

from indexer.atlas import AtlasFolder
from indexer.profiles.store import ProfileStore
from tests.world import BASE, indexed, make_world


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    store = make_world(tmp_path_factory.mktemp("profiles") / "store", per_dataset=2)
    with indexed(store) as shell:
        yield shell


def profile(shell, *words: str) -> dict:
    ran = shell("index", "profile", *words, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def rows(shell, statement: str) -> list[tuple]:
    with duckdb.connect(str(Path(shell.folder) / "atlas" / "atlas.duckdb"), read_only=True) as connection:
        return connection.execute(statement).fetchall()


def test_profiles_are_stored_and_left_alone(shell):
    plan = profile(shell, "--base", BASE, "--dry-run")
    assert (plan["due"], plan["layers"]) == (6, 2)
    assert plan["bytes"] > 0
    first = profile(shell, "--base", BASE, "--with-untrained")
    assert (first["discovered"], first["indexed"], first["refused"]) == (6, 6, [])
    store = ProfileStore(AtlasFolder(Path(shell.folder) / "atlas"))
    files = {digest: store.folder.profile(digest).read_bytes() for digest in store.digests()}
    assert len(files) == 8
    again = profile(shell, "--base", BASE, "--with-untrained")
    assert (again["indexed"], again["unchanged"]) == (0, 6)
    assert {digest: store.folder.profile(digest).read_bytes() for digest in store.digests()} == files
    assert rows(shell, "SELECT subject, count(*) FROM profiles GROUP BY ALL ORDER BY ALL") == [
        ("base", 1), ("fine_tune", 6), ("untrained", 1),
    ]  # fmt: skip
    (counted,) = rows(
        shell,
        "SELECT count(*) FROM depth_of_models WHERE subject = 'fine_tune' AND drift > 0 AND cka < 1 AND delta > 0 "
        "AND tolerance > 0 AND tolerance_error > 0 AND readable IS NOT NULL AND reach >= 1 AND recovered IS NULL",
    )
    assert counted == (12,)
    # delta grows with depth: layer 1 of a profile is layer 0 of the weights.
    assert rows(
        shell,
        "SELECT count(*) FROM depth_of_models AS up JOIN depth_of_models AS low USING (profile_id) "
        "WHERE up.layer = 2 AND low.layer = 1 AND abs(up.delta ** 2 - low.delta ** 2 - up.own_delta ** 2) > 1e-6",
    ) == [(0,)]
    assert json.loads(shell("index", "verify", "--json").out)["ok"]


def test_the_database_is_made_again_from_the_files(shell):
    profile(shell, "--base", BASE)
    before = rows(shell, "SELECT * EXCLUDE (profile_id) FROM depth_of_models ORDER BY ALL")
    assert shell("index", "rebuild").code == 0
    assert rows(shell, "SELECT * EXCLUDE (profile_id) FROM depth_of_models ORDER BY ALL") == before


def test_a_damaged_profile_is_found(shell):
    profile(shell, "--base", BASE)
    store = ProfileStore(AtlasFolder(Path(shell.folder) / "atlas"))
    path = store.folder.profile(next(iter(store.digests())))
    whole = path.read_bytes()
    path.write_bytes(whole[:-4] + b"\0\0\0\1")
    try:
        found = json.loads(shell("index", "verify", "--json").out)
        assert [(one["kind"], "altered" in one["problem"]) for one in found["disagreements"]] == [("profile", True)]
    finally:
        path.write_bytes(whole)


def test_depth_is_a_representation_of_profiled_models(shell):
    profile(shell, "--base", BASE)
    assert shell("index", "represent", "depth").code == 0
    found = json.loads(shell("query", "similar", "ann/glue-0", "--representation", "depth", "--json").out)
    assert len(found) == 5
    assert json.loads(shell("query", "purity", "--representation", "depth", "--json").out)["models"] == 6
    assert json.loads(shell("index", "verify", "--json").out)["ok"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--base", BASE, "--layers", "3"], "no layer 3"),
        (["--base", BASE, "--layers", "0"], "no layer 0"),
        (["--base", BASE, "--layers", "one"], "no list of layers"),
        (["--base", BASE, "--probe", "text"], "no tokenizer"),
        (["--base", BASE, "--probe", "image"], "takes words"),
        (["--base", BASE, "--text", "missing.txt"], "cannot be read"),
        (["--base", BASE, "--steps", "3"], "--recipe seed"),
        (["--base", BASE, "--device", "cuda:7"], "cannot be used here"),
        (["nobody/at-all"], "not indexed"),
        (["--base", "no/base"], "is not a base"),
    ],
)
def test_bad_input_is_one_line(shell, words, told):
    ran = shell("index", "profile", *words)
    assert ran.code == 1
    assert told in ran.err
    assert len(ran.err.strip().splitlines()) == 1
