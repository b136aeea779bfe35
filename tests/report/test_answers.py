"""The report says what the questions answer: the same numbers, headlines and notes."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from indexer.console.output import as_plain, cell_text
from query import Atlas
from query.shared.wording import decimal, percent
from tests.atlas_builder import family, write_atlas
from tests.report_reader import Page


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """An atlas with a dozen undocumented models, and its report."""
    models = family(each=8, tightness=0.5)
    draw = np.random.default_rng(3)
    for number in range(12):
        vector = models[number].vector + draw.normal(size=24) / 4
        models.append(
            replace(models[number], model=f"zoe/silent{number}", vector=vector, datasets=(), downloads=number)
        )
    with pytest.MonkeyPatch.context() as patch, Atlas(write_atlas(tmp_path_factory.mktemp("said"), models)) as atlas:
        patch.setitem(sys.modules, "umap", None)  # its import takes long
        yield atlas, Page(atlas.report().html)


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "ask"),
    [
        ("purity", lambda atlas: atlas.purity()),
        ("clusters", lambda atlas: atlas.clusters()),
        ("prediction", lambda atlas: atlas.evaluate_prediction()),
        ("rank", lambda atlas: atlas.rank()),
    ],
)
def test_headlines_and_notes_are_those_of_the_answers(answered, section, ask):
    atlas, page = answered
    answer, text = ask(atlas), words(page.section_text(section))
    assert words(answer.headline) in text
    for note in answer.notes:
        assert words(note) in text


@pytest.mark.slow
def test_tables_are_those_that_the_commands_print(answered):
    atlas, page = answered

    def printed(rows):
        return [[cell_text(as_plain(value)).strip() or "–" for value in row.values()] for row in rows]

    purity, clusters, rank = atlas.purity(), atlas.clusters(), atlas.rank()
    assert [row[1:] for row in page.table("Purity by representation").rows] == printed(purity.table()["neighbours"])
    assert page.table("Purity by dataset").rows == printed(purity.table(details=True)["by dataset"])
    tables = clusters.table(details=True)
    assert page.table("Clusters, the largest first").rows == printed(tables["clusters"])
    values = {(row["labels"], row["measure"], row["among"]): row["value"] for row in tables["agreement"]}
    assert [value for section, _, value in page.figures if section == "clusters"] == [
        decimal(values[key])
        for key in (("datasets", "ami", "all"), ("datasets", "ari", "cross_author"), ("authors", "ami", "all"))
    ]
    assert page.table("Rank of δW: best fit").rows == printed(rank.table()["best fit (x = layer)"])
    assert page.table("Rank of δW: mean rank").rows == printed(rank.table()["mean rank"])
    assert page.table("Predictions of documented models").rows == printed(atlas.evaluate_prediction().table()["scores"])


@pytest.mark.slow
def test_purity_has_the_caveat_on_habits(answered):
    atlas, page = answered
    assert atlas.purity().on_habits
    assert "But a habit is confounded with the labels" in page.section_text("purity")
    assert "(--within head)" in page.section_text("purity")


@pytest.mark.slow
def test_predictions_are_those_of_one_call(answered, monkeypatch):
    atlas, page = answered
    fitted = []
    fit = sys.modules["query.questions.predict.predict"].fit
    monkeypatch.setattr("query.questions.predict.predict.fit", lambda *arguments: fitted.append(1) or fit(*arguments))
    many = [prediction.answer for prediction in atlas.predict_many()]
    assert len(fitted) == 1  # none of these authors has a labelled model
    table = page.table("Probable datasets of undocumented models")
    assert table.column("model") == [answer.model for answer in many]
    assert table.column("probability") == [f"{answer.best.probability:.4f}" for answer in many]
    assert table.column("dataset") == [answer.answers[0].dataset for answer in many]
    text = page.section_text("prediction")
    assert f"{percent(many[0].unknown_share)} of the models are assumed to be tuned on data that no other" in text
    assert words(many[0].headline) in words(text)
    # One by one they are the same answers with another prior.
    alone = atlas.predict(many[0].model)
    assert alone.with_unknown_share(many[0].unknown_share).answers == many[0].answers


@pytest.mark.slow
def test_five_models_are_no_headline_of_a_hundred_percent(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    models = [*family()[:3], *family()[6:8]]
    with Atlas(write_atlas(tmp_path, models)) as atlas:
        evaluation, page = atlas.evaluate_prediction(), Page(atlas.report().html)
    assert evaluation.headline.startswith(
        "Each of 5 models predicted from models of other authors: the best answer is right for 5 of 5 (too few authors "
        "for an interval: 3)"
    )
    assert "These are too few for a percentage: 5 sweeps by 3 authors." in evaluation.headline
    (meaning,) = [meaning for meaning in page.key_numbers if "hidden datasets" in meaning]
    assert page.key_numbers[meaning] == "5 of 5"
    assert "few models: 5 models by 3 authors, too few authors for an interval" in meaning
    assert "100\u00a0% of" not in page.section_text("prediction")
