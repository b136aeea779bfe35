"""Vocabulary vectors in an atlas: published, verified, rebuilt, merged, and asked about."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.records.record import write_record
from indexer.records.store import RecordStore
from indexer.share.merge import merge
from indexer.share.pull import pull
from indexer.upkeep.deep_verification import verify_deeply
from indexer.upkeep.maintenance import rebuild, represent
from indexer.upkeep.verification import verify
from query import Atlas
from tests.share.conftest import NAME, person
from tests.test_publishing import Piecewise
from tests.vocabulary.planted import ROWS, codes_of, with_tokens

BASE = "org/tiny-base"


def plant(folder: AtlasFolder) -> tuple[str, str]:
    """Give the records vocabularies by dataset; one is of a tied head. The names of that model and of one without."""
    store = RecordStore(folder)
    with Atlas(folder.root) as atlas:
        rows = atlas.rows("SELECT model, record_key, datasets FROM models ORDER BY model")
    names = sorted({row["datasets"][0] for row in rows if row["datasets"]})
    tied, bare = rows[0]["model"], rows[-1]["model"]
    for seed, row in enumerate(rows):
        record = store.read(row["record_key"])
        codes = codes_of(names.index(row["datasets"][0]) if row["datasets"] else 99, seed)
        if row["model"] == tied:
            record = with_tokens(record, codes.clip(1), "statistical", is_share=True)
        elif row["model"] != bare:
            record = with_tokens(record, codes)
        write_record(record, folder.record(row["record_key"]))
    return tied, bare


def published(folder: AtlasFolder) -> dict[str, int]:
    with Atlas(folder.root) as atlas:
        return {
            row["representation"]: row["vectors"]
            for row in atlas.rows("SELECT representation, vectors FROM representations ORDER BY ALL")
        }


@pytest.fixture
def planted(atlas):
    """An atlas whose records were given vocabularies after it was published."""
    assert published(atlas) == {"input": 9}
    return atlas, *plant(atlas)


def others_than_rows(folder):
    """Disagreements but for the rows of the table records: these tests change records behind the publisher's back."""
    return [disagreement for disagreement in verify_deeply(folder) if "token_codes" not in disagreement.problem]


def test_it_is_published_verified_and_asked_about(planted):
    folder, tied, bare = planted
    represent(folder, "vocabulary")
    assert published(folder) == {"input": 9, "vocabulary": 8}
    assert verify(folder) == []
    assert others_than_rows(folder) == []
    with Atlas(folder.root) as atlas:
        purity = atlas.purity(BASE, representation="vocabulary")
        # The model with a tied head has nobody to be near to, and hardly anything is subtracted in so small an atlas.
        assert purity.purity >= 0.75 > 2 * purity.chance
        assert any("1 model has no vocabulary vector" in note for note in purity.notes)
        model = next(
            row["model"] for row in atlas.rows("SELECT model FROM models WHERE model NOT IN (?, ?)", [tied, bare])
        )
        near = atlas.similar(model, k=8, representation="vocabulary").neighbours
        assert {neighbour.matrices for neighbour in near} == {None}
        assert {neighbour.model: neighbour.similarity for neighbour in near}[tied] == 0  # a tied head is not comparable
        assert bare not in {neighbour.model for neighbour in near}
        assert max(neighbour.similarity for neighbour in near) > 0.5
        with pytest.raises(AtlasError, match="has no vocabulary vector: it is an adapter"):
            atlas.similar(bare, representation="vocabulary")
        with pytest.raises(AtlasError, match="has no part for each matrix"):
            atlas.similar(model, representation="vocabulary", explain=True)
        assert all(answer.vocabulary is None for answer in atlas.predict(bare).answers)
        assert all(answer.vocabulary is not None for answer in atlas.predict(model).answers)
        assert atlas.evaluate_prediction(BASE).with_vocabulary == 8
        assert atlas.clusters(BASE, representation="vocabulary").left_out.without == 1


@pytest.mark.slow
def test_a_rebuild_publishes_it(planted):
    folder, _, _ = planted
    with folder.locked("test"):
        rebuild(folder)
    assert published(folder) == {"input": 9, "vocabulary": 8}
    assert verify_deeply(folder) == []


@pytest.mark.slow
def test_the_first_model_that_has_one_publishes_it_for_all(made, tmp_path):
    piecewise = Piecewise(made, tmp_path / "atlas")
    entries, store = piecewise.entries, RecordStore(piecewise.folder)
    try:
        piecewise.publish(*entries[:4])
        assert published(piecewise.folder) == {"input": 4}  # no model has one
        for seed, entry in enumerate(entries):
            record = store.read(entry.record_key)
            write_record(with_tokens(record, codes_of(seed % 3, seed)), piecewise.folder.record(entry.record_key))
        piecewise.publish(*entries[:4])
        assert published(piecewise.folder) == {"input": 4}  # nothing new was read
        piecewise.publish(*entries[:7])
        assert published(piecewise.folder) == {"input": 7, "vocabulary": 7}
        piecewise.publish(*entries)
        assert published(piecewise.folder) == {"input": 9, "vocabulary": 9}
        assert others_than_rows(piecewise.folder) == []
    finally:
        piecewise.base.close()


def test_rows_of_another_base_are_refused(planted):
    folder, _, _ = planted
    with Atlas(folder.root) as atlas:
        key = atlas.rows("SELECT model_id, record_key FROM models ORDER BY model")[3]["record_key"]
    record = RecordStore(folder).read(key)
    foreign = replace(record.tokens, codes=np.tile(record.tokens.codes, 2), base_vocabulary=2 * ROWS)
    write_record(replace(record, tokens=foreign), folder.record(key))
    sentences: list[str] = []
    represent(folder, "vocabulary", say=sentences.append)
    assert published(folder)["vocabulary"] == 7
    assert any("the rows of its input embedding are not those of" in sentence for sentence in sentences)


@pytest.mark.slow
def test_atlases_are_merged_with_it(planted, tmp_path):
    folder, _, _ = planted
    with folder.locked("test"):
        rebuild(folder)
    other = AtlasFolder(shutil.copytree(folder.root, tmp_path / "other"))
    merge([folder.root, other.root], tmp_path / "both")
    assert published(AtlasFolder(tmp_path / "both")) == {"input": 9, "vocabulary": 8}
    assert verify(AtlasFolder(tmp_path / "both")) == []


@pytest.mark.slow
def test_a_pulled_atlas_has_it(planted, tmp_path, monkeypatch):
    folder, _, _ = planted
    represent(folder, "vocabulary")
    with person(tmp_path / "ann", monkeypatch) as ann:
        ann.push(folder)
        got = AtlasFolder(tmp_path / "got")
        pull(NAME, got.root, progress=ann.note)
    assert published(got) == {"input": 9, "vocabulary": 8}
    assert verify(got) == []
