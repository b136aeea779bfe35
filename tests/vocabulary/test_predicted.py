"""``query predict`` with planted vocabularies: what they add, and that they add nothing where they say nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from query.models.population import Head
from query.questions.predict.classifier import NONE_OF_THESE, fit
from query.questions.predict.evaluation import evaluate_models
from query.questions.predict.predict import predict_target
from query.questions.predict.result import Evaluation
from query.questions.predict.scoring import accuracy_at, auroc
from query.questions.predict.training_set import LabelledModels, TrainingSet
from tests.predict.simulated import WAYS, Simulation, target

LENGTH = 20
SIMULATED = Simulation.of(datasets=12, noise=2.2, headless=1.0, novel=0.1)  # vectors that tell little, and no heads
VOCABULARIES = np.random.default_rng(9).normal(size=(12, LENGTH))

OF_VOCABULARY = ("vocabulary", "without_vocabulary")


def vocabulary_of(names: frozenset[str], seed: int, noise: float = 0.4) -> np.ndarray:
    """A vocabulary vector of a model tuned on these data, of sizes."""
    rng = np.random.default_rng(seed)
    (name,) = names
    is_own = not name.startswith("d")
    own = np.random.default_rng(int.from_bytes(name.encode(), "little") if is_own else 0).normal(size=LENGTH)
    block = (own if is_own else VOCABULARIES[int(name[1:])]) + noise * rng.normal(size=LENGTH)
    return np.concatenate([block / np.linalg.norm(block), np.zeros(LENGTH)]).astype(np.float32)


def planted(authors: int = 40, seed: int = 3, lacking: float = 0.0, *, is_random: bool = False) -> LabelledModels:
    """Simulated models with vocabularies; this share of the authors has adapters, without one."""
    models = SIMULATED.draw(authors, "a", seed)
    met = np.stack([vocabulary_of(names, number) for number, names in enumerate(models.datasets)])
    rng = np.random.default_rng(seed)
    if is_random:
        met = rng.permutation(met)
    without = {name for name in set(models.authors) if int(name[1:]) < lacking * authors}
    met[[name in without for name in models.authors]] = 0
    return replace(models, vocabulary=met)


def by_evidence(evaluation: Evaluation) -> tuple[dict, dict]:
    return {row.evidence: row for row in evaluation.scores}, {row.evidence: row for row in evaluation.none_of_these}


@pytest.fixture(scope="module")
def evaluated() -> Evaluation:
    return evaluate_models(planted(), folds=3)


def test_the_vocabulary_predicts_datasets_and_tells_none_of_these(evaluated):
    scores, none = by_evidence(evaluated)
    assert set(scores) == {*WAYS, *OF_VOCABULARY, "majority", "chance"}
    assert set(none) == {*WAYS, *OF_VOCABULARY}
    assert evaluated.with_vocabulary == evaluated.models
    assert scores["vocabulary"].accuracy > scores["vectors"].accuracy + 0.1
    assert scores["together"].log_loss < scores["without_vocabulary"].log_loss - 0.2
    assert none["together"].auroc > 0.95
    assert none["without_vocabulary"].auroc < 0.85
    for share in ("25", "50", "75"):
        with_it, without = (getattr(none[name], f"accuracy_{share}") for name in ("together", "without_vocabulary"))
        assert with_it > without + 0.1


def test_without_it_nothing_changes(evaluated):
    models = planted()
    plain = evaluate_models(replace(models, vocabulary=None), folds=3)
    scores, none = by_evidence(plain)
    assert not set(OF_VOCABULARY) & {*scores, *none}
    with_it, its_none = by_evidence(evaluated)
    assert replace(with_it["without_vocabulary"], evidence="together") == scores["together"]
    assert replace(its_none["without_vocabulary"], evidence="together") == none["together"]
    assert with_it["vectors"] == scores["vectors"]


def test_models_without_one_are_predicted_as_before():
    models = planted(lacking=0.5)
    training, plain = TrainingSet(models, 10), TrainingSet(replace(models, vocabulary=None), 10)
    rows = np.arange(len(models.models))
    probabilities = fit(training, []).probabilities(training.features(rows))
    expected = fit(plain, []).probabilities(plain.features(rows))
    lacks = ~models.vocabulary.any(axis=1)
    assert 0 < lacks.sum() < len(lacks)
    np.testing.assert_array_equal(probabilities["without_vocabulary"], expected["together"])
    np.testing.assert_array_equal(probabilities["together"][lacks], expected["together"][lacks])
    assert not np.array_equal(probabilities["together"][~lacks], expected["together"][~lacks])
    assert np.allclose(probabilities["vocabulary"].sum(axis=1), 1)


def test_a_vocabulary_at_random_adds_nothing():
    scores, none = by_evidence(evaluate_models(planted(authors=60, is_random=True), folds=3))
    assert scores["together"].log_loss < scores["without_vocabulary"].log_loss + 0.1
    assert scores["together"].accuracy < scores["without_vocabulary"].accuracy + 0.08
    assert none["vocabulary"].auroc < 0.65
    assert none["together"].auroc < none["without_vocabulary"].auroc + 0.05


def test_sizes_are_never_compared_with_shares():
    models = planted(authors=20)
    swapped = np.concatenate([models.vocabulary[:, LENGTH:], models.vocabulary[:, :LENGTH]], axis=1)
    is_tied = np.array([int(name[1:]) == 0 for name in models.authors])  # one author: nobody to compare with
    mixed = replace(models, vocabulary=np.where(is_tied[:, None], swapped, models.vocabulary))
    features = TrainingSet(mixed, 10).features(np.arange(len(is_tied)))
    assert not features.vocabulary.is_known[is_tied].any()
    assert features.vocabulary.is_known[~is_tied].all()
    assert np.isnan(features.vocabulary.similarity[is_tied]).all()


def test_one_model_is_predicted_by_its_vocabulary():
    models = planted()
    vector = np.random.default_rng(0).normal(size=models.table.inputs.shape[1])
    met = vocabulary_of(frozenset({"d3"}), 77)
    prediction = predict_target(target(vector, vocabulary=met), models, k=10)
    assert prediction.answers[0].dataset == "d3"
    assert prediction.evidence == "together"
    assert prediction.answers[0].vocabulary > 0.8
    assert prediction.answers[0].head is None
    assert "its vector and its vocabulary" in prediction.headline
    bare = predict_target(target(vector), models, k=10)
    assert (bare.evidence, bare.answers[0].vocabulary) == ("vectors", None)
    plain = predict_target(target(vector), replace(models, vocabulary=None), k=10)
    assert bare.answers == plain.answers
    headed = predict_target(target(vector, Head("ForTokenClassification", 3), vocabulary=met), models, k=10)
    assert "its vector, its vocabulary and its head" in headed.headline
    strange = vocabulary_of(frozenset({"nobody's/own"}), 78)
    assert predict_target(target(vector, vocabulary=strange), models, k=10).answers[0].dataset == NONE_OF_THESE


def test_auroc_is_the_share_of_pairs():
    rng = np.random.default_rng(1)
    high, low = rng.integers(0, 6, 30) / 5, rng.integers(0, 5, 20) / 5
    weights = rng.random(30), rng.random(20)
    pairs = np.sign(high[:, None] - low[None, :]) / 2 + 0.5
    expected = float(weights[0] @ pairs @ weights[1] / weights[0].sum() / weights[1].sum())
    assert auroc(high, low, weights) == pytest.approx(expected)
    assert auroc(high, low, (weights[0], 0 * weights[1])) is None


def test_the_prior_of_none_of_these_is_moved():
    guess = np.array([[0.6, 0.1, 0.3], [0.05, 0.05, 0.9]])
    truth = np.array([[1.0, 0, 0], [0, 0, 1.0]])
    np.testing.assert_array_equal(accuracy_at(guess, truth, 0.3, 0.3), [1, 1])
    np.testing.assert_array_equal(accuracy_at(guess, truth, 0.3, 0.0), [1, 0])
    np.testing.assert_array_equal(accuracy_at(guess, truth, 0.3, 0.75), [0, 1])
