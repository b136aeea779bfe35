"""Labels in the database: of merges that lineage measured, and of records by strangers."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np
import pytest

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.records.record import read_record, write_record
from indexer.records.store import RecordStore
from query import Atlas
from tests.bom.conftest import FIRST, MERGED, SECOND, chain  # noqa: F401


def test_a_measured_merge_is_one_unless_another_test_says_more(chain):  # noqa: F811
    def changes():
        with Atlas(chain) as atlas:
            return {row["model"]: row for row in atlas.sql("SELECT * FROM changes").to_rows()}

    database = str(AtlasFolder(chain).database)
    with duckdb.connect(database) as connection:
        connection.execute("UPDATE records SET change = 'trained', change_probability = .99, change_evidence = 'x'")
    found = changes()
    assert (found[MERGED]["change"], found[MERGED]["change_probability"]) == ("merge", 0.99)
    assert found[MERGED]["change_evidence"] == f"a merge of {FIRST}, {SECOND}"
    assert found[FIRST]["change"] == "trained"
    with duckdb.connect(database) as connection:
        connection.execute("UPDATE records SET change = 'pruned'")
    assert changes()[MERGED]["change"] == "pruned"


@pytest.mark.parametrize(
    "wrong",
    [
        {"reset_tokens": "3"}, {"rearranged": "a\x1b[31m"}, {"rearranged": 3}, {"rearranged_effect": 2.0},
        {"matrices": np.zeros((1, 3), np.float32)}, {"matrices": np.full((24, 22), np.nan, np.float32)},
    ],
)  # fmt: skip
def test_malformed_signs_are_refused(hub, tmp_path, wrong):
    store = RecordStore(AtlasFolder(hub.folder / "atlas"))
    record = next(record for record in map(store.read, store.digests()) if record.signs is not None)
    assert record.signs.matrices.shape == (24, 22)
    file = tmp_path / "record.safetensors"
    write_record(replace(record, signs=replace(record.signs, **wrong)), file)
    with pytest.raises(AtlasError, match="cannot be read"):
        read_record(file)
