"""Votes and heads against loops."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from indexer.vectors.table import VectorTable
from query.models.population import Head, head_of, own_datasets
from query.questions.predict.heads import SMOOTHING
from query.questions.predict.predict import predict_target
from query.questions.predict.training_set import COMMON_SHARE, DatasetRuns, TrainingSet
from tests.predict.simulated import CLASSIFIER, answer, labelled_models, target

K = 4


# ---- votes, against loops ----


def own(names):
    return [name for name in names if not any(other.startswith(name + "/") for other in names)]


def are_kin(first, second):
    return first == second or first.startswith(second + "/") or second.startswith(first + "/")


def loop_sweeps(found, row, withheld, is_hidden):
    """[(similarity, datasets, author)] of all sweeps that may vote on a model, nearest first."""
    best = {}
    for other, names in enumerate(found.datasets):
        author = found.authors[other]
        if not names or author == found.authors[row] or author in withheld:
            continue
        if is_hidden and any(are_kin(a, b) for a in own(found.datasets[row]) for b in own(names)):
            continue
        near = float(np.dot(found.table.inputs[row].astype(float), found.table.inputs[other].astype(float)))
        key = (author, tuple(sorted(own(names))))
        best[key] = max(best.get(key, -2), near)
    return sorted(((near, names, author) for (author, names), near in best.items()), reverse=True)


def loop_votes(sweeps, k):
    """{dataset: votes} and the prominence, as the docstring words them."""
    if not sweeps:
        return {}, 0.0
    near = [similarity for similarity, *_ in sweeps]
    count = len(near)
    middle = float(np.median(near))
    low = near[math.ceil(3 * count / 4) - 1]
    votes: dict[str, float] = {}
    for similarity, names, _ in sweeps[:k]:
        vote = 1.0 if near[0] - middle < 1e-6 else max(0.0, (similarity - middle) / (near[0] - middle)) ** 3
        for name in names:
            votes[name] = votes.get(name, 0) + vote / len(names)
    return votes, math.log((near[0] - middle + 1e-4) / (middle - low + 1e-4))


def loop_nearness(sweeps):
    """The two nearest sweeps of a dataset, of the dataset that is nearest by them."""
    of_dataset: dict[str, list[float]] = {}
    for similarity, names, _ in sweeps:  # nearest first
        for name in names:
            of_dataset.setdefault(name, []).append(similarity)
    return max((float(np.mean(two[:2])) for two in of_dataset.values()), default=math.nan)


def tangled(seed=0, count=40):
    """Models of several datasets each, with collections and their tasks, by few authors."""
    rng = np.random.default_rng(seed)
    choices = [{"a"}, {"b"}, {"a", "c"}, {"glue", "glue/mrpc"}, {"glue", "glue/sst2"}, {"glue"}, {"b", "c", "d"}, set()]
    return labelled_models(
        rng.normal(size=(count, 6)),
        [f"author{number}" for number in rng.integers(0, 7, count)],
        [choices[number] for number in rng.integers(0, len(choices), count)],
    )


@pytest.mark.parametrize("withheld", [[], ["author1", "author4"]])
@pytest.mark.parametrize("is_hidden", [False, True])
def test_votes_are_those_of_a_double_loop(withheld, is_hidden):
    found = tangled()
    training = TrainingSet(found, K)
    codes = dict(zip(found.authors, training.sweeps.authors.tolist(), strict=True))
    features = training.features(np.arange(len(found.models)), [codes[author] for author in withheld], is_hidden)
    votes = features.vectors.votes.toarray()
    for row in range(len(found.models)):
        heard = loop_sweeps(found, row, withheld, is_hidden)
        expected, prominence = loop_votes(heard, K)
        got = dict(zip(training.sweeps.answers, votes[row], strict=True))
        assert {name for name, _ in got.items() if _ > 0} == {name for name, vote in expected.items() if vote > 0}
        assert all(got[name] == pytest.approx(vote, abs=2e-5) for name, vote in expected.items())
        assert features.vectors.prominence[row] == pytest.approx(prominence, abs=2e-3)
        assert features.nearness[row] == pytest.approx(loop_nearness(heard), abs=1e-5, nan_ok=True)
        named = [name for _, names, _ in heard for name in names]
        present = {name for name, there in zip(training.sweeps.answers, features.present[row], strict=True) if there}
        assert present == set(named)
        for name in present:
            column = training.sweeps.answers.index(name)
            common = sum(1 / len(names) for _, names, _ in heard if name in names) / len(heard)
            share = expected.get(name, 0) / max(sum(expected.values()), 1e-12)
            assert math.exp(features.log_common[row, column]) == pytest.approx(common, rel=1e-4)
            mixed = (1 - COMMON_SHARE) * share + COMMON_SHARE * common
            assert math.exp(features.vectors.log_votes[row, column]) == pytest.approx(mixed, rel=1e-3, abs=1e-5)


def test_the_truth_is_shared_out_and_a_task_that_no_other_model_names_counts_as_its_collection():
    found = labelled_models(
        np.eye(5),
        ["ann", "bob", "cyd", "dan", "eve"],
        [{"a", "b"}, {"glue", "glue/mrpc"}, {"glue"}, {"a"}, {"rare"}],
    )
    training = TrainingSet(found, K)
    answers = training.sweeps.answers
    assert answers == ("a", "b", "glue", "glue/mrpc", "rare")
    truth = training.features(np.arange(5)).truth
    assert dict(zip(answers, truth[0], strict=True)) == {"a": 0.5, "b": 0, "glue": 0, "glue/mrpc": 0, "rare": 0}
    assert dict(zip(answers, truth[1], strict=True)) == {"a": 0, "b": 0, "glue": 1, "glue/mrpc": 0, "rare": 0}
    assert truth[2].sum() == 0  # others name a task of the collection, which it may not be
    assert truth[4].sum() == 0


def test_a_collection_next_to_its_task_has_no_share():
    assert own_datasets(frozenset({"glue", "glue/mrpc", "imdb"})) == ("glue/mrpc", "imdb")
    assert own_datasets(frozenset({"glue", "gluee"})) == ("glue", "gluee")
    sweeps = DatasetRuns(
        ["ann", "ann", "bob", "ann"], [frozenset({"x"}), frozenset({"y"}), frozenset({"x"}), frozenset()]
    )
    assert sweeps.of_model.tolist() == [0, 1, 2, -1]
    assert sweeps.author.tolist() == [0, 0, 1]


def test_a_sweep_does_not_outvote():
    """A hundred runs of one author lie a little nearer than one run each of three others."""
    rng = np.random.default_rng(1)
    asked = np.zeros(12)
    asked[0] = 1
    near = np.concatenate(
        [0.80 * asked + 0.05 * rng.normal(size=(100, 12)), 0.78 * asked + 0.05 * rng.normal(size=(3, 12))]
    )
    rest = rng.normal(size=(8, 12)) - 0.3 * asked
    found = labelled_models(
        np.concatenate([near, rest]),
        ["sweeper"] * 100 + ["bob", "cyd", "dan"] + [f"far{number}" for number in range(8)],
        ["swept"] * 100 + ["shared"] * 3 + [f"other{number}" for number in range(8)],
    )
    prediction = predict_target(target(asked), found, k=10)
    assert answer(prediction, "shared").votes > 2
    assert answer(prediction, "swept").votes == pytest.approx(1, abs=0.05)
    assert answer(prediction, "shared").probability > answer(prediction, "swept").probability
    assert answer(prediction, "shared").probability > answer(prediction, "swept").probability
    assert answer(prediction, "shared").authors == 3
    assert len([voter for voter in prediction.voters if voter.author == "sweeper"]) == 1


def test_no_model_of_the_same_author_votes_and_the_nearest_is_named():
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(30, 8))
    asked = vectors[0] + 0.01 * rng.normal(size=8)
    authors = ["asker"] * 5 + [f"author{number % 5}" for number in range(25)]
    datasets = ["own"] * 5 + [f"d{number % 4}" for number in range(25)]
    prediction = predict_target(target(asked), labelled_models(vectors, authors, datasets), k=10)
    assert "own" not in {one.dataset for one in prediction.answers}
    assert "asker" not in {voter.author for voter in prediction.voters}
    assert any("asker/m0" in note and "own" in note for note in prediction.notes)
    other = predict_target(target(asked, author="else"), labelled_models(vectors, authors, datasets), k=10)
    assert answer(other, "own").votes >= 1


# ---- heads, against loops ----


def loop_log_ratio(found, row, dataset):
    """ln P(head | dataset) / P(head), written out: every sweep counts once, through the mean of its members."""
    asked = found.heads[row]
    sweeps: dict = {}
    for other, names in enumerate(found.datasets):
        if names and found.authors[other] != found.authors[row]:
            sweeps.setdefault((found.authors[other], tuple(sorted(own(names)))), []).append(found.heads[other])

    def overlap(one, other):
        return len(one & other) / len(one | other)

    links = [
        (lambda h: asked.kind and h.kind, lambda h: h.kind == asked.kind),
        (lambda h: asked.kind and h.kind == asked.kind, lambda h: h.labels == asked.labels),
        (
            lambda h: asked.names and h.names and (h.kind, h.labels) == (asked.kind, asked.labels),
            lambda h: overlap(h.names, asked.names),
        ),
    ]
    total = 0.0
    for comparable, matching in links:
        sums = {"all": [0.0, 0.0], "here": [0.0, 0.0]}
        for (_, names), heads in sweeps.items():
            seen = sum(bool(comparable(h)) for h in heads) / len(heads)
            matched = sum(float(matching(h)) for h in heads if comparable(h)) / len(heads)
            for key, share in (("all", 1), ("here", names.count(dataset) / len(names))):
                sums[key][0] += share * seen
                sums[key][1] += share * matched
        average = (sums["all"][1] + 0.1) / (sums["all"][0] + 0.2)
        total += math.log((sums["here"][1] + SMOOTHING * average) / (sums["here"][0] + SMOOTHING) / average)
    return total


def test_head_ratios_are_those_of_a_loop():
    rng = np.random.default_rng(3)
    names = [None, frozenset({"x", "y"}), frozenset({"x", "z"}), frozenset({"p", "q"})]
    kinds = [None, CLASSIFIER, "ForTokenClassification"]
    found = tangled(4)
    heads = [
        Head(kinds[rng.integers(3)], int(rng.integers(2, 4)), names[rng.integers(4)]) for _ in range(len(found.models))
    ]
    heads = [Head() if head.kind is None else head for head in heads]
    found = replace(found, heads=heads)
    training = TrainingSet(found, K)
    features = training.features(np.arange(len(found.models)))
    for row in range(len(found.models)):
        for column, dataset in enumerate(training.sweeps.answers):
            expected = loop_log_ratio(found, row, dataset) if features.present[row, column] else 0.0
            assert features.head[row, column] == pytest.approx(expected, abs=1e-4)
        assert features.has_head[row] == (heads[row].kind is not None)


@pytest.mark.parametrize(
    ("written", "head"),
    [
        ((None, 3, ["a", "b", "c"], None), Head()),
        (("RobertaForMaskedLM", None, None, None), Head("ForMaskedLM")),
        (("RobertaModel", None, None, None), Head("no head")),
        (
            ("BertForX", 2, ["Not Entailment", "ENTAILMENT"], None),
            Head("ForX", 2, frozenset({"notentailment", "entailment"})),
        ),
        (("BertForX", 2, ["0", "1"], "single_label_classification"), Head("ForX", 2)),
        (("BertForX", 2, ["class_0", "LABEL-1"], None), Head("ForX", 2)),
        (("BertForX", 1, None, "regression"), Head("ForX regression", 1)),
    ],
)
def test_heads_as_config_json_writes_them(written, head):
    assert head_of(*written) == head


def test_generic_names_say_only_their_number():
    found = labelled_models(
        np.eye(4),
        ["ann", "bob", "cyd", "dan"],
        ["two", "two", "three", "three"],
        [Head(CLASSIFIER, 2, frozenset({"no", "yes"})), Head(CLASSIFIER, 2), Head(CLASSIFIER, 3), Head(CLASSIFIER, 3)],
    )
    asked = found.with_unlabelled(VectorTable(np.ones((1, 4), np.float32) / 2), "eve/m", "eve", Head(CLASSIFIER, 2))
    ratios = TrainingSet(asked, K).features(np.array([4])).head[0]
    named = replace(asked, heads=[*asked.heads[:4], Head(CLASSIFIER, 2, frozenset({"no", "yes"}))])
    by_name = TrainingSet(named, K).features(np.array([4])).head[0]
    assert ratios[1] > 0 > ratios[0]
    assert by_name[1] > ratios[1]


def test_label_names_decide_between_datasets_that_share_their_text():
    """Sixteen authors, two datasets whose vectors cannot be distinguished, different label names."""
    rng = np.random.default_rng(5)
    text = rng.normal(size=(6, 16))
    vectors, authors, datasets, heads = [], [], [], []
    labels = {"tone": frozenset({"calm", "cross"}), "topic": frozenset({"sport", "trade"})}
    for author in range(16):
        for number in range(6):
            dataset = ("tone", "topic")[author % 2] if number == 0 else f"d{number}"
            vectors.append(text[number] + 0.3 * rng.normal(size=16))
            authors.append(f"author{author}")
            datasets.append(dataset)
            heads.append(Head(CLASSIFIER, 2, labels.get(dataset, frozenset({f"{dataset} a", f"{dataset} b"}))))
    found = labelled_models(vectors, authors, datasets, heads)
    for dataset, names in labels.items():
        prediction = predict_target(target(text[0], Head(CLASSIFIER, 2, names)), found, k=10)
        assert prediction.calibrated
        assert prediction.evidence == "together"
        assert prediction.answers[0].dataset == dataset
        assert prediction.answers[0].probability > 0.9
        assert answer(prediction, dataset).vectors < 0.7
    nameless = predict_target(target(text[0], Head(CLASSIFIER, 2)), found, k=10)
    assert {one.dataset for one in nameless.answers[:2]} == set(labels)
    assert nameless.answers[0].probability < 0.75
