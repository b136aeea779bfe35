"""Licences of models beside those of their parents and of their base."""

from __future__ import annotations

import shutil

import duckdb
import numpy as np
import pytest

from indexer import build
from indexer.atlas import AtlasFolder
from indexer.listing.exchange import join_listings
from indexer.listing.listing import Listing
from indexer.sources.cards.modelcard import Licence
from indexer.upkeep.maintenance import rebuild
from indexer.upkeep.verification import verify
from tests.atlas_builder import Model, write_atlas
from tests.database import read_rows
from tests.hubs import served
from tests.tiny_hub import BASE, describe


@pytest.mark.parametrize(
    ("base_licence", "licence", "verdict", "terms"),
    [
        ("cc-by-nc-4.0", "apache-2.0", "conflict", ["non-commercial"]),
        ("cc-by-nc-4.0", "cc-by-nc-sa-4.0", "differs", []),
        ("cc-by-nc-4.0", "cc-by-nc-4.0", None, None),
        ("cc-by-nc-sa-4.0", "gpl-3.0", "conflict", ["non-commercial"]),
        ("cc-by-nd-4.0", "cc-by-nd-4.0", "conflict", ["no derivatives"]),
        ("gpl-3.0", "mit", "conflict", ["share-alike"]),
        ("gpl-3.0", "agpl-3.0", "differs", []),
        ("llama3.1", "apache-2.0", "conflict", ["terms of Llama"]),
        ("llama3", "llama3.1", "differs", []),
        ("gemma", "llama3", "conflict", ["terms of Gemma"]),
        ("creativeml-openrail-m", "mit", "conflict", ["use restrictions"]),
        ("apache-2.0", "mit", "differs", []),
        ("apache-2.0", "cc-by-nc-4.0", "differs", []),
        ("Apache-2.0", "apache-2.0", None, None),
        ("other", "mit", "differs", []),
        ("cc-by-nc-4.0", "other", "differs", ["non-commercial"]),
        ("cc-by-nc-4.0", "apache-2.0, cc-by-nc-4.0", "differs", []),
        ("cc-by-nc-4.0", None, "none given", ["non-commercial"]),
        (None, "mit", None, None),
    ],
)
def test_a_model_beside_its_base(tmp_path, base_licence, licence, verdict, terms):
    models = [
        Model("ann/one", np.eye(4)[0], licence=licence),
        Model("bob/two", np.eye(4)[1], licence=licence, is_unrelated=True),
    ]
    database = AtlasFolder(write_atlas(tmp_path, models, base="org/base")).database
    with duckdb.connect(str(database)) as connection:
        connection.execute("UPDATE bases SET licence = ?", [base_licence])
    differences = read_rows(database, "SELECT model, parent, verdict, terms FROM licence_differences")
    assert differences == ([] if verdict is None else [("ann/one", "org/base", verdict, terms)])
    conflicts = read_rows(database, "SELECT model, licence, parent_licence, terms FROM licence_conflicts")
    assert conflicts == ([("ann/one", licence, base_licence, terms)] if verdict == "conflict" else [])


@pytest.mark.parametrize(
    ("parent", "child", "verdict", "terms"),
    [
        (("other", "Qwen Research"), ("apache-2.0", None), "conflict", ["non-commercial", "research only"]),
        (("other", "llama-3-community"), ("llama3", None), "differs", []),
        (("other", "MIT-like but mine"), ("mit", None), "differs", []),  # a name proves no permission
        (("cc-by-nc-4.0", None), ("other", "apache-2.0-or-so"), "differs", ["non-commercial"]),
        (("other", "one"), ("other", "two"), "differs", []),
        (("other", "one"), ("other", "One"), None, None),
    ],
)
def test_licences_with_names_of_their_own(tmp_path, parent, child, verdict, terms):
    database = AtlasFolder(write_atlas(tmp_path, [Model("ann/one", np.eye(4)[0])], base="org/base")).database
    with duckdb.connect(str(database)) as connection:
        connection.execute("UPDATE bases SET licence = ?, licence_name = ?", parent)
        connection.execute("UPDATE fine_tunes SET licence = ?, licence_name = ?", child)
    differences = read_rows(database, "SELECT verdict, terms FROM licence_differences")
    assert differences == ([] if verdict is None else [(verdict, terms)])


def test_terms_are_passed_on_through_every_step(tmp_path):
    licences = {
        "a/first": "cc-by-nc-4.0",
        "b/second": "apache-2.0",
        "c/third": "apache-2.0",
        "d/fourth": "cc-by-nc-sa-4.0",
    }
    models = [
        Model(name, np.eye(4)[number], licence=licence) for number, (name, licence) in enumerate(licences.items())
    ]
    database = AtlasFolder(write_atlas(tmp_path, models, base="org/base")).database
    with duckdb.connect(str(database)) as connection:
        connection.execute("UPDATE bases SET licence = 'mit'")
        ids = dict(connection.execute("SELECT model, model_id FROM fine_tunes").fetchall())
        # A chain of four, a second way to the fourth, and a circle, which no measurement should give.
        steps = [("b/second", "a/first"), ("c/third", "b/second"), ("d/fourth", "c/third"), ("d/fourth", "a/first")]
        for child, parent in [*steps, ("a/first", "b/second")]:
            connection.execute(
                "INSERT INTO lineage SELECT ?, record_key, ?, 'continued', NULL, 1, 0, 'not declared', 'known', '', [], 0, now(), 1 "
                "FROM records WHERE model_id = ?",
                [ids[child], ids[parent], ids[child]],
            )
    rows = "SELECT model, parent, steps FROM licence_conflicts ORDER BY model, parent"
    assert read_rows(database, rows) == [("b/second", "a/first", 1), ("c/third", "a/first", 2)]
    assert read_rows(
        database, "SELECT steps FROM licence_differences WHERE model = 'd/fourth' AND parent = 'org/base'"
    ) == [(3,)]


@pytest.mark.slow
def test_the_licence_of_a_base_is_kept(tiny_store, tmp_path, monkeypatch):
    store, atlas = tiny_store(1, tmp_path / "store"), tmp_path / "atlas"
    describe(store, BASE, tags=["transformers", "license:gemma"], old_ids=["tiny-base"], card_data={"license": "gemma"})

    def licence():
        return read_rows(atlas / "atlas.duckdb", "SELECT licence FROM bases")[0][0]

    with served(store, monkeypatch):
        build(BASE, atlas, workers=1)
    assert licence() == "gemma"
    folder = AtlasFolder(atlas)
    listing = folder.listing(BASE)
    assert Listing(listing).licence == Licence("gemma")
    join_listings([AtlasFolder(tmp_path / "missing"), folder], BASE, tmp_path / "joined.sqlite")
    assert Listing(tmp_path / "joined.sqlite").licence == Licence("gemma")
    rebuild(folder)
    assert licence() == "gemma"
    assert verify(folder) == []
    # Without a listing the database says it, and with a database of an earlier schema nothing is lost.
    shutil.move(listing, tmp_path / "moved.sqlite")
    rebuild(folder)
    assert licence() == "gemma"
    with duckdb.connect(str(folder.database)) as connection:
        connection.execute("UPDATE atlas_info SET schema_version = 10")
        for view in ("licence_conflicts", "licence_differences"):
            connection.execute(f"DROP VIEW {view}")
        connection.execute("ALTER TABLE bases DROP COLUMN licence")
    rebuild(folder)
    assert read_rows(folder.database, "SELECT aliases, licence FROM bases") == [(["tiny-base"], None)]
