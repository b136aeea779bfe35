"""The table of facts about a model, which show, compare, lists and the page in the browser share."""

from __future__ import annotations

import numpy as np
import pytest

from query import Atlas
from query.faces.atlas import opened
from query.faces.browse.model import model_page
from query.models.facts import FACTS, Place, facts_of, names_of
from query.questions.compare import Comparison, Fact
from tests.atlas_builder import Model, write_atlas

START = {"generator": "uniform", "seed": 42, "offset": 9, "tool": "PEFT", "found": 4, "modules": 4, "distance": 0.25}


def test_facts_are_columns_or_words_made_of_columns(tmp_path):
    models = [Model(f"ann/m{number}", np.eye(2) + number, ("imdb",)) for number in range(2)]
    with Atlas(write_atlas(tmp_path / "atlas", models)) as atlas, opened(atlas) as reader:
        columns = {row["column_name"] for row in reader.rows("DESCRIBE models")}
        assert set(names_of(Place.COMPARE)) <= columns
        shown = atlas.show("ann/m0")
        for fact in FACTS:
            assert fact.words is not None or fact.name in {*shown, *columns, "rows_read"}
        table = shown.table()
        order = [name for name in names_of(Place.SHOW) if name in table]
        assert list(table)[: len(order)] == order
        named = [fact.fact for fact in atlas.compare("ann/m0", "ann/m1").facts]
        assert named == [name for name in names_of(Place.COMPARE) if name in named]
        page = list(model_page(reader, 1)["facts"])
        assert page == [name for name in names_of(Place.PAGE) if name in page]
        assert {"relation", "author", "read"} <= set(page)


@pytest.mark.parametrize(
    ("name", "known", "words"),
    [
        ("read", {"read": "full"}, None),
        ("read", {"read": "sample", "rows_read": "16 rows of each matrix"}, "a sample: 16 rows of each matrix"),
        ("relative_norm", {"read": "full", "relative_norm": 0.5, "delta_norm": 2.0, "delta_norm_error": 0.0}, 0.5),
        (
            "relative_norm",
            {"read": "sample", "relative_norm": 0.5, "delta_norm": 2.0, "delta_norm_error": 0.1},
            "0.5000 ± 0.0250 (estimated)",
        ),
        ("delta_norm_error", {"read": "full", "delta_norm_error": 0.0}, None),
        ("copy_evidence", {"copy_evidence": "untrained", "is_copy": True}, "untrained adapter"),
        ("is_copy", {"copy_evidence": "untrained", "is_copy": True}, None),
        ("is_copy", {"copy_evidence": "checksum", "is_copy": True}, True),
        ("flags", {"is_unrelated": True, "duplicate_of": "ann/m"}, ["unrelated to the base", "duplicate of ann/m"]),
        ("probably", {"predictions": [{"dataset": "imdb", "probability": 0.5}]}, "imdb (50\u00a0%)"),
    ],
)
def test_what_a_person_reads(name, known, words):
    fact = next(fact for fact in FACTS if fact.name == name)
    assert fact.in_words(known) == words


def test_what_goes_without_saying_is_not_shown():
    known = {"read": "full", "parent": "base", "base": "base"}
    usual = {fact.name for fact in facts_of(Place.SHOW) if fact.is_usual(known)}
    assert usual == {"read", "parent"}


def test_a_comparison_prints_a_start_as_a_person_reads_it():
    facts = (Fact("relation", "adapter", "finetune"), Fact("start", START, None))
    compared = Comparison("a/m", "b/m", "base", "input", 0.5, None, None, None, None, 4, (), (), facts)
    relation, start = compared.table()["facts"]
    assert relation == {"fact": "relation", "a": "adapter", "b": "finetune"}
    assert (start["a"].startswith("uniform numbers of seed 42"), start["b"]) == (True, None)
    assert compared.to_dict()["facts"][1]["a"] == START
