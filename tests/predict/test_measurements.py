"""The design matrix: what is not known is 0 or missing, and a further kind of evidence is one entry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from query.questions.predict import classifier, measurements
from query.questions.predict.classifier import fit
from query.questions.predict.evaluation import evaluate_models
from query.questions.predict.measurements import (
    EVIDENCE,
    OF_ANSWERS,
    OF_MODELS,
    Evidence,
    Measurement,
    columns_of,
    design_of,
    evidence_of,
    in_words,
    way_in_words,
    ways,
)
from query.questions.predict.predict import predict_target
from query.questions.predict.training_set import TrainingSet
from tests.predict.simulated import Simulation, labelled_models, target
from tests.vocabulary.test_predicted import planted


def test_what_a_model_lacks_is_not_in_its_rows():
    models = planted(authors=20, lacking=0.5)
    heads = Simulation.of(datasets=12, headless=0.4).draw(20, "a", seed=3).heads
    models = replace(models, heads=(heads * 2)[: len(models.models)])
    training = TrainingSet(models, 10)
    features = training.features(np.arange(len(models.models)))
    design = design_of(features)
    has = {"vectors": features.vectors.is_known, "head": features.has_head, "vocabulary": features.vocabulary.is_known}
    for number, kind in enumerate(EVIDENCE):
        np.testing.assert_array_equal(design.is_known[:, number], has[kind.name])
    assert all(0 < has[name].sum() < len(models.models) for name in ("head", "vocabulary"))
    for measurement, values in zip(OF_ANSWERS, design.of_answers, strict=True):
        known = has.get(measurement.evidence, np.ones(len(models.models), bool))
        assert not values[~known].any()
        np.testing.assert_array_equal(values[known], measurement.values(features)[known])
    for measurement, values in zip(OF_MODELS, design.of_models, strict=True):
        known = has[measurement.evidence]
        assert np.isnan(values[~known]).all()
        np.testing.assert_array_equal(values[known], measurement.values(features)[known])
    part = design.take(has["head"])
    np.testing.assert_array_equal(part.of_answers, design.of_answers[:, has["head"]])
    np.testing.assert_array_equal(design.has({"head", "vocabulary"}), has["head"] & has["vocabulary"])


def test_every_measurement_belongs_to_a_kind_of_evidence_and_says_what_it_is():
    kinds = {kind.name for kind in EVIDENCE}
    for one in (*OF_ANSWERS, *OF_MODELS):
        assert one.evidence is None or one.evidence in kinds
        assert one.values.__doc__
    assert [OF_ANSWERS[column].evidence for column in columns_of(OF_ANSWERS, {"head"})] == [None, "head"]


def test_ways_use_all_evidence_each_kind_alone_and_all_but_the_optional():
    assert ways(("vectors", "head")) == {
        "together": {"vectors", "head"}, "vectors": {"vectors"}, "head": {"head"},
    }  # fmt: skip
    assert ways(("vectors", "vocabulary", "head")) == {
        "together": {"vectors", "vocabulary", "head"}, "vectors": {"vectors"}, "head": {"head"},
        "vocabulary": {"vocabulary"}, "without_vocabulary": {"vectors", "head"},
    }  # fmt: skip


def test_ways_and_evidence_in_words():
    assert way_in_words("together") == "vectors and head together, with the vocabulary of models that have one"
    assert way_in_words("without_vocabulary") == "vectors and head together, without the vocabulary"
    assert way_in_words("vectors") == "the vectors alone: votes of similar models"
    assert in_words({"head"}) == "its head"
    assert in_words({"head", "vectors", "vocabulary"}) == "its vector, its vocabulary and its head"
    found = Simulation.of(datasets=4, headless=0.5).draw(10, "a", seed=2)
    features = TrainingSet(found, 10).features(np.arange(len(found.models)))
    for row, head in enumerate(found.heads):
        assert evidence_of(features, row) == (["vectors", "head"] if head.kind else ["vectors"])


def test_a_model_without_any_evidence_is_predicted_by_how_common_datasets_are():
    found = Simulation.of(datasets=6).draw(40, "a", seed=2)
    training = TrainingSet(found, 10)
    features = training.features(np.arange(len(found.models)))
    fitted = fit(training, [])
    headless = ~features.has_head
    expected = (1 - fitted.none) * features.common
    np.testing.assert_allclose(fitted.probabilities(features)["head"][headless, :-1], expected[headless], atol=1e-6)


@pytest.fixture
def model_names(monkeypatch):
    """A kind of evidence that the program does not have: models whose names say something of their data."""

    def named(features):
        names = [features.training.models.models[row].partition("/")[2] for row in features.training.rows]
        return [names[place].split("-")[0] for place in features.indices]

    def is_known(features):
        return np.array([name != "m" for name in named(features)])

    def name_matches(features):
        answers = features.training.sweeps.answers
        return np.array([[float(name == answer) for answer in answers] for name in named(features)])

    def name_is_an_answer(features):
        return name_matches(features).max(axis=1)

    kinds = (*EVIDENCE, Evidence("name", "its name", "names that name data", 1.0, is_known))
    for module in (measurements, classifier):
        monkeypatch.setattr(module, "EVIDENCE", kinds)
        monkeypatch.setattr(module, "OF_ANSWERS", (*OF_ANSWERS, Measurement("name", name_matches, 1.0)))
        monkeypatch.setattr(module, "OF_MODELS", (*OF_MODELS, Measurement("name", name_is_an_answer)))


def test_a_further_kind_of_evidence_is_one_entry(model_names):
    rng = np.random.default_rng(4)
    authors = [f"author{number % 12}" for number in range(96)]
    datasets = [f"d{number // 12}" for number in range(96)]
    names = [
        f"{author}/{dataset if number % 2 else 'm'}-{number}"
        for number, (author, dataset) in enumerate(zip(authors, datasets, strict=True))
    ]
    found = labelled_models(rng.normal(size=(96, 8)), authors, datasets, models=names)
    scores = {one.evidence: one for one in evaluate_models(found, folds=3).scores}
    assert scores["name"].accuracy > 0.5
    assert scores["together"].accuracy > scores["vectors"].accuracy + 0.3
    asked = replace(target(rng.normal(size=8)), name="asker/d3-1")
    answer = predict_target(asked, found, k=10).answers[0]
    assert (answer.dataset, answer.probability > 0.8) == ("d3", True)
