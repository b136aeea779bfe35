"""Predictions from Python and on the command line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from indexer.errors import AtlasError
from query import Atlas
from query.models.population import Head
from query.questions.predict.classifier import NONE_OF_THESE, fit
from query.questions.predict.predict import predict_many, predict_target
from query.questions.predict.result import Duplicate
from query.questions.predict.scoring import with_prior
from query.questions.predict.training_set import TrainingSet
from tests.halves import a_few
from tests.predict.simulated import CLASSIFIER, WAYS, Simulation, answer, labelled_models, target
from tests.tiny_hub import AUTHORS, BASE, SIZES, add_model, indexed, shift_weights


@pytest.fixture(scope="module")
def population():
    return Simulation.of(datasets=12, noise=0.5).draw(60, "a", seed=1)


def test_answers_sum_to_one_and_the_rows_are_json(population):
    prediction = predict_target(target(population.table.inputs[3], Head(CLASSIFIER, 3)), population, k=10)
    chances = [one.probability for one in prediction.answers]
    assert sum(chances) == pytest.approx(1)
    assert chances == sorted(chances, reverse=True)
    for column in ("vectors", "head"):
        assert sum(getattr(one, column) for one in prediction.answers) == pytest.approx(1)
    rows = prediction.to_rows()
    assert NONE_OF_THESE in [row["dataset"] for row in rows]
    assert list(rows[0])[:3] == ["dataset", "probability", "votes"]
    assert all(row["calibrated"] for row in rows)
    assert len(rows) < len(prediction.answers)
    left_out = {one.dataset for one in prediction.answers} - {row["dataset"] for row in rows}
    assert all(answer(prediction, name).probability < 0.01 for name in left_out)
    assert json.loads(json.dumps(prediction.to_dict()))["model"] == "asker/model"
    frame = prediction.to_df()
    assert len(frame) == len(prediction.answers)
    assert frame["probability"].sum() == pytest.approx(1)


def test_voters_add_up_to_the_votes(population):
    prediction = predict_target(target(population.table.inputs[3]), population, k=7)
    assert len(prediction.voters) == 7
    assert prediction.voters[0].vote == pytest.approx(1)
    for one in prediction.answers:
        heard = [voter for voter in prediction.voters if one.dataset in voter.datasets]
        assert one.votes == pytest.approx(sum(voter.vote / len(voter.datasets) for voter in heard), abs=1e-5)
        assert one.models == tuple(voter.model for voter in heard if voter.vote > 0)
    for voter in prediction.voters:
        row = population.models.index(voter.model)
        assert voter.similarity == pytest.approx(
            float(population.table.inputs[row] @ population.table.inputs[3]), abs=1e-5
        )


def test_only_the_head_is_used_if_the_change_says_nothing(population):
    row = next(row for row, head in enumerate(population.heads) if head.names and "d0" in population.datasets[row])
    prediction = predict_target(target(None, population.heads[row]), population, k=10)
    assert prediction.evidence == "head"
    assert prediction.answers[0].dataset == "d0"
    assert prediction.voters == ()
    assert all(one.vectors is None and one.probability == one.head for one in prediction.answers)


def test_only_the_vector_is_used_without_a_head(population):
    prediction = predict_target(target(population.table.inputs[0]), population, k=10)
    assert prediction.evidence == "vectors"
    assert all(one.head is None and one.probability == one.vectors for one in prediction.answers)
    assert any("uses only its vector" in note for note in prediction.notes)


def test_declared_datasets_and_duplicates_are_named_and_change_nothing(population):
    plain = predict_target(target(population.table.inputs[0]), population, k=10)
    facts = {"declared": ("glue", "d1"), "duplicates": (Duplicate("bob/copy", ("d2",)),)}
    found = predict_target(target(population.table.inputs[0], **facts), population, k=10)
    assert [one.probability for one in found.answers] == [one.probability for one in plain.answers]
    assert [one.dataset for one in found.answers if one.declared] == ["d1"]
    assert any("glue, d1" in note for note in found.notes)
    assert any("bob/copy" in note and "d2" in note for note in found.notes)


def test_without_models_by_other_authors_there_is_no_prediction():
    found = labelled_models(np.eye(3), ["asker"] * 3, ["x", "y", "z"])
    with pytest.raises(AtlasError, match="by another author than asker to compare with"):
        predict_target(target(np.ones(3)), found, k=10)
    empty = labelled_models(np.zeros((0, 3)), [], [])
    with pytest.raises(AtlasError, match="by another author than asker to compare with"):
        predict_target(target(np.ones(3)), empty, k=10)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_small_atlases_get_an_answer_and_a_word_of_caution(count):
    rng = np.random.default_rng(count)
    found = labelled_models(rng.normal(size=(count, 6)), [f"author{n}" for n in range(count)], ["x"] * count)
    prediction = predict_target(target(found.table.inputs[0]), found, k=10)
    assert not prediction.calibrated
    assert {one.dataset for one in prediction.answers} == {"x", NONE_OF_THESE}
    assert sum(one.probability for one in prediction.answers) == pytest.approx(1)
    assert answer(prediction, "x").probability >= 0.5
    assert any("not calibrated" in note for note in prediction.notes)


def test_nothing_of_the_askers_author_is_fitted_from(population):
    author = population.authors[0]
    mine = [row for row, name in enumerate(population.authors) if name == author]
    altered = [frozenset({"d3"}) if row in mine else names for row, names in enumerate(population.datasets)]
    vector = population.table.inputs[mine[0]] + 0.1
    first = predict_target(target(vector, author=author), population, k=10)
    second = predict_target(target(vector, author=author), replace(population, datasets=altered), k=10)
    known = {one.dataset: one.probability for one in second.answers}
    assert {one.dataset: one.probability for one in first.answers} == pytest.approx(known, abs=1e-9)
    everybody = fit(TrainingSet(population, 10), [])
    others = fit(TrainingSet(population, 10), [0])
    assert everybody.by(WAYS["vectors"]).weights[0] != others.by(WAYS["vectors"]).weights[0]


# ---- the command, with a small Hub ----


@pytest.fixture(scope="module")
def shell(tiny_store, tmp_path_factory):
    """Twelve models of three datasets by four authors; then some that say nothing of their data."""
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification, RobertaModel

    folder = tmp_path_factory.mktemp("predict")
    store = tiny_store(4, folder / "store")
    body = RobertaModel.from_pretrained(store / BASE)
    torch.manual_seed(1)
    scratch = RobertaForSequenceClassification(RobertaConfig(**SIZES, id2label={0: "bad", 1: "good", 2: "so so"}))
    add_model(store, "eve/from-scratch", scratch, dataset=None)
    config = RobertaConfig(**SIZES, id2label={0: "bad", 1: "good", 2: "so so"})
    model = RobertaForSequenceClassification(config)
    model.roberta.load_state_dict(body.state_dict(), strict=False)
    add_model(store, "eve/frozen", model, dataset=None)
    add_model(store, "eve/mirror", body, dataset=None)
    shift_weights(model.roberta, 1, seed=999)
    add_model(store, "eve/in-house", model, dataset=None)
    add_model(store, "fay/in-house-again", model, dataset="imdb", created="2025-01-01T00:00:00.000Z")
    shutil.copytree(store / "eve/in-house", folder / "local")
    with indexed(store) as shell:
        yield shell


@pytest.mark.slow
def test_an_undocumented_model_on_the_command_line(shell):
    ran = shell("query", "predict", "eve/in-house", "--json")
    assert ran.code == 0, ran.err
    rows = {row["dataset"]: row for row in ran.json}
    assert ran.json[0]["dataset"] == "imdb"
    assert len(rows) >= 3
    assert NONE_OF_THESE in rows
    assert rows["imdb"]["votes"] > 1
    assert rows["imdb"]["authors"] == len(AUTHORS) + 1
    assert not rows["imdb"]["calibrated"]
    assert "fay/in-house-again has the same weights and names imdb" in ran.err
    assert "not calibrated" in ran.err
    table = shell("query", "predict", "eve/in-house")
    assert max(map(len, table.out.splitlines()[1:])) <= 80  # the first line is a sentence
    assert table.out.splitlines()[3].startswith("imdb")


def test_a_local_folder_and_what_it_repeats(shell):
    ran = shell("query", "predict", "./local", "--json")
    assert ran.code == 0, ran.err
    assert ran.json[0]["dataset"] == "imdb"
    assert ran.json[0]["votes"] >= 1
    assert "fay/in-house-again has the same weights" in ran.err
    assert ran.json[0]["models"][0] == "eve/in-house"  # the earlier of the two speaks for both


def test_its_own_card_has_no_vote(shell):
    with Atlas(shell.folder / "atlas") as atlas:
        prediction = atlas.predict("fay/in-house-again")
        assert prediction.declared == ("imdb",)
        assert prediction.repeats == ()  # its twin names nothing
        assert "fay/in-house-again" not in {voter.model for voter in prediction.voters}
        assert all(one.author in AUTHORS for one in prediction.voters)
        assert answer(prediction, "imdb").declared


def test_copies_and_unrelated_models(shell):
    mirror = shell("query", "predict", "eve/mirror")
    assert mirror.code == 1
    assert "copy of org/tiny-base" in mirror.err
    assert len(mirror.err.splitlines()) == 1
    with Atlas(shell.folder / "atlas") as atlas:
        for name, reason in (("eve/frozen", "copy of"), ("eve/from-scratch", "not made from")):
            prediction = atlas.predict(name)
            assert prediction.evidence == "head"
            assert any(reason in note for note in prediction.notes)
        with pytest.raises(AtlasError, match="must be at least 1"):
            atlas.predict("eve/in-house", k=0)
        with pytest.raises(AtlasError, match="not published"):
            atlas.predict("eve/in-house", representation="spectrum")
    unknown = shell("query", "predict", "eve/in-hous")
    assert unknown.code == 1
    assert "eve/in-house" in unknown.err
    assert shell("query", "predict").code == 2
    assert shell("query", "predict", "eve/in-house", "--out", "x.png").code == 2


def test_the_evaluation_on_the_command_line(shell):
    ran = shell("query", "predict", "--evaluate", "--out", "r.svg", "--json")
    assert ran.code == 0, ran.err
    found = ran.json
    assert (found["models"], found["authors"], found["datasets"], found["calibrated"]) == (13, 5, 3, False)
    scores = {row["evidence"]: row for row in found["scores"]}
    assert set(scores) == {"together", "vectors", "head", "majority", "chance"}
    assert scores["vectors"]["accuracy"] == 1
    assert scores["chance"]["accuracy"] == pytest.approx(1 / 4)
    assert found["file"] == "r.svg"
    assert (shell.folder / "r.svg").read_text().startswith("<?xml")
    assert "not calibrated" in ran.err
    assert shell("query", "predict", "--evaluate", "--out", "r.gif").code == 2
    assert max(map(len, shell("query", "predict", "--evaluate").out.splitlines()[1:])) <= 80


def test_another_share_of_unknown_data_changes_the_odds_of_all_evidence(population):
    found = predict_target(target(population.table.inputs[3], Head(CLASSIFIER, 3)), population, k=10)
    moved = found.with_unknown_share(0.6)
    factor = (0.6 / 0.4) / (found.unknown_share / (1 - found.unknown_share))
    for column in ("probability", "vectors", "head"):
        before, after = (getattr(answer(one, NONE_OF_THESE), column) for one in (found, moved))
        assert after / (1 - after) == pytest.approx(factor * before / (1 - before))
        assert sum(getattr(one, column) for one in moved.answers) == pytest.approx(1)
    best, second = (one.dataset for one in found.answers[:2])
    ratio = [answer(one, best).probability / answer(one, second).probability for one in (found, moved)]
    assert NONE_OF_THESE in (best, second) or ratio[0] == pytest.approx(ratio[1])
    assert [one.probability for one in moved.answers] == sorted(
        (one.probability for one in moved.answers), reverse=True
    )
    back = moved.with_unknown_share(found.unknown_share)
    assert [one.dataset for one in back.answers] == [one.dataset for one in found.answers]
    assert answer(found.with_unknown_share(0.0), NONE_OF_THESE).probability == 0


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_of_none_or_all_loses_no_evidence(population, share):
    found = predict_target(target(population.table.inputs[3], Head(CLASSIFIER, 3)), population, k=10)
    moved = found.with_unknown_share(share)
    assert answer(moved, NONE_OF_THESE).probability == share
    assert moved.with_unknown_share(0.4) == found.with_unknown_share(0.4)
    assert moved.with_unknown_share(1 - share).with_unknown_share(found.unknown_share).answers == pytest.approx(
        found.with_unknown_share(found.unknown_share).answers
    )
    assert "fitted" not in moved.to_dict()
    with pytest.raises(ValueError, match="between 0 and 1"):
        with_prior(np.array([[0.5, 0.5]]), share, 0.4)


@pytest.mark.parametrize("unknown", a_few([9, 0], 1))
def test_of_many_models_the_share_of_unknown_data_is_estimated(population, monkeypatch, unknown):
    rng = np.random.default_rng(4)
    strange = rng.normal(size=(unknown, population.table.inputs.shape[1]))
    vectors = np.concatenate([population.table.inputs[: 12 - unknown], strange])

    def ask(atlas, model, *rest):
        return predict_target(target(vectors[int(model)]), population, k=10)

    monkeypatch.setattr("query.questions.predict.predict._predict", ask)
    monkeypatch.setattr("query.questions.predict.predict.has_vocabulary", lambda atlas, base: has_vectors)
    has_vectors = False
    few, many, given = (
        [one.answer for one in predict_many(None, map(str, range(count)), unknown_share=share)]
        for count, share in ((9, None), (12, None), (12, 0.25))
    )
    assert {one.unknown_share for one in few} == {predict_target(target(vectors[0]), population, k=10).unknown_share}
    assert len({one.unknown_share for one in many}) == 1
    assert many[0].unknown_share < 0.25 if not unknown else many[0].unknown_share > 0.5
    assert {one.unknown_share for one in given} == {0.25}
    has_vectors = True  # but none of these models has one
    assert {one.answer.unknown_share for one in predict_many(None, map(str, range(12)))} == {few[0].unknown_share}
    with pytest.raises(AtlasError, match="from 0 to 1"):
        predict_many(None, ["0"], unknown_share=2.0)
