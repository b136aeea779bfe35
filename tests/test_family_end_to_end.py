"""The whole path on the family of real fine-tunes: every repository ends as was expected of it."""

from __future__ import annotations

import json

import pytest

from tests.conftest import BASE
from tests.database import read_rows

pytestmark = pytest.mark.slow  # the family is trained


def rows(built, statement, *parameters):
    return read_rows(built.folder / "atlas" / "atlas.duckdb", statement, *parameters)


def test_every_repository_ends_as_expected(built, expected):
    found = {
        model: (status, reason) for model, status, reason in rows(built, "SELECT model, status, reason FROM fine_tunes")
    }
    flags = {
        model: [name for name, is_set in zip(("copy", "unrelated", "duplicate", "partly_frozen"), marks, strict=True) if is_set]
        for model, *marks in rows(
            built, "SELECT model, is_copy, is_unrelated, duplicate_of IS NOT NULL, is_partly_frozen FROM models"
        )
    }  # fmt: skip
    wrong = {}
    for model, answer in expected.items():
        status, reason = found.get(model, ("not listed", None))
        is_right = status == answer["outcome"] and (answer.get("reason") in (None, reason))
        if answer.get("flag"):
            is_right = is_right and answer["flag"] in flags.get(model, [])
        elif status == "indexed":
            is_right = is_right and not set(flags[model]) & {"copy", "unrelated", "duplicate"}
        if not is_right:
            wrong[model] = (answer, status, reason, flags.get(model))
    assert wrong == {}


def test_the_counts_of_the_report_add_up(built):
    report = json.loads((built.folder / "report.json").read_text())
    assert report["discovered"] == report["indexed"] + report["unchanged"] + report["skipped"] + report["failed"]
    assert report["indexed"] == rows(built, "SELECT count(*) FROM models")[0][0]


def test_no_token_went_to_another_host_and_no_pickle_ran(built, hub):
    assert hub.leaks == []
    assert not [
        path for path in built.folder.rglob("*") if "pwned" in path.name.lower() or "marker" in path.name.lower()
    ]


def test_little_more_than_the_block_matrices_was_read(built, hub):
    for model, block_bytes, files in rows(built, "SELECT model, block_bytes, weight_files FROM models"):
        sent = sum(hub.body_bytes(model, file["name"]) for file in files)
        assert sent <= 1.02 * block_bytes + 65536 * len(files), model


def test_models_on_one_dataset_lie_together_and_authors_do_not_explain_it(built):
    ran = built("query", "purity", "--base", "tiny-roberta", "--json")
    assert ran.code == 0, ran.err
    answer = ran.json
    assert answer["purity"] > 2 * answer["chance"]
    assert answer["p_value"] < 0.01
    assert answer["ci_low"] <= answer["purity"] <= answer["ci_high"]
    assert answer["cross_author"]["purity"] > 1.5 * answer["cross_author"]["chance"]


def test_strings_of_the_hub_reach_neither_terminal_nor_table_with_escape_sequences(built):
    for words in (
        ["index", "status"],
        ["query", "sql", "FROM tags"],
        ["query", "sql", "SELECT model, oddities FROM fine_tunes"],
    ):
        ran = built(*words)
        assert ran.code == 0, ran.err
        assert "\x1b" not in ran.out
        assert "\u202e" not in ran.out


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv"])
def test_similar_prints_every_format(built, form):
    (model,) = rows(built, "SELECT min(model) FROM models WHERE relation = 'finetune' AND NOT is_copy")[0]
    ran = built("query", "similar", model, "-k", "3", "--format", form)
    assert ran.code == 0, ran.err
    if form == "json":
        assert [list(row) for row in ran.json] == [
            [
                "rank",
                "model",
                "similarity",
                "similarity_error",
                "background",
                "background_high",
                "background_pairs",
                "background_floor",
                "expected_by_chance",
                "is_like_unrelated",
                "author",
                "relation",
                "datasets",
                "matrices",
            ]
        ] * 3
    else:
        assert (
            len(ran.out.strip().splitlines()) == {"jsonl": 3, "csv": 4, "table": 6}[form]
        )  # a table stands below a sentence


def test_a_copy_of_the_base_has_no_neighbours_but_an_answer(built, expected):
    copies = [model for model, answer in expected.items() if answer.get("flag") == "copy"]
    assert copies
    ran = built("query", "similar", copies[0])
    assert ran.code == 1
    assert "copy" in ran.err
    assert BASE in ran.err
