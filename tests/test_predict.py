"""Predictions: votes and heads against loops, who may speak, what is told; and the command on a planted Hub."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

from indexer.errors import AtlasError
from query import Atlas
from query.predict import predict_subject
from query.prediction.answers import NONE_OF_THESE
from query.prediction.evidence import COMMON_SHARE, Witnesses
from query.prediction.head_evidence import SMOOTHING, Head, head_of
from query.prediction.learning import learn
from query.prediction.subject import Repeat, Subject
from query.prediction.voices import own_datasets, voices_of
from scripts.loopback_hub import LoopbackHub
from tests.conftest import Shell
from tests.planted_documents import CLASSIFIER, World, documents
from tests.world import AUTHORS, BASE, SIZES, add_model, make_world, plant

K = 4


def subject(vector, head=None, author="asker", **facts) -> Subject:
    given = {"declared": (), "repeats": (), "notes": (), "model_id": None}
    found = None if vector is None else np.asarray(vector, np.float32) / np.linalg.norm(vector)
    return Subject("asker/model", "base", author, vector=found, head=head or Head(), **given | facts)


def answer(prediction, dataset):
    (found,) = [one for one in prediction.answers if one.dataset == dataset]
    return found


# ---- votes, against loops ----


def own(names):
    return [name for name in names if not any(other.startswith(name + "/") for other in names)]


def are_kin(first, second):
    return first == second or first.startswith(second + "/") or second.startswith(first + "/")


def loop_voices(found, row, withheld, is_hidden):
    """[(similarity, datasets, author)] of everybody who may speak of a model, nearest first."""
    best = {}
    for other, names in enumerate(found.datasets):
        author = found.authors[other]
        if not names or author == found.authors[row] or author in withheld:
            continue
        if is_hidden and any(are_kin(a, b) for a in own(found.datasets[row]) for b in own(names)):
            continue
        near = float(np.dot(found.vectors[row].astype(float), found.vectors[other].astype(float)))
        key = (author, tuple(sorted(own(names))))
        best[key] = max(best.get(key, -2), near)
    return sorted(((near, names, author) for (author, names), near in best.items()), reverse=True)


def loop_votes(voices, k):
    """{dataset: votes} and the prominence, as the docstring words them."""
    if not voices:
        return {}, 0.0
    near = [similarity for similarity, *_ in voices]
    count = len(near)
    middle = float(np.median(near))
    low = near[math.ceil(3 * count / 4) - 1]
    votes: dict[str, float] = {}
    for similarity, names, _ in voices[:k]:
        vote = 1.0 if near[0] - middle < 1e-6 else max(0.0, (similarity - middle) / (near[0] - middle)) ** 3
        for name in names:
            votes[name] = votes.get(name, 0) + vote / len(names)
    return votes, math.log((near[0] - middle + 1e-4) / (middle - low + 1e-4))


def tangled(seed=0, count=40):
    """Models of several datasets each, with collections and their tasks, by few authors."""
    rng = np.random.default_rng(seed)
    choices = [{"a"}, {"b"}, {"a", "c"}, {"glue", "glue/mrpc"}, {"glue", "glue/sst2"}, {"glue"}, {"b", "c", "d"}, set()]
    return documents(
        rng.normal(size=(count, 6)),
        [f"author{number}" for number in rng.integers(0, 7, count)],
        [choices[number] for number in rng.integers(0, len(choices), count)],
    )


@pytest.mark.parametrize("withheld", [[], ["author1", "author4"]])
@pytest.mark.parametrize("is_hidden", [False, True])
def test_votes_are_those_of_a_double_loop(withheld, is_hidden):
    found = tangled()
    witnesses = Witnesses.of(found, K)
    codes = dict(zip(found.authors, witnesses.voices.authors.tolist(), strict=True))
    evidence = witnesses.evidence(np.arange(len(found.models)), [codes[author] for author in withheld], is_hidden)
    votes = evidence.votes.toarray()
    for row in range(len(found.models)):
        heard = loop_voices(found, row, withheld, is_hidden)
        expected, prominence = loop_votes(heard, K)
        got = dict(zip(witnesses.voices.answers, votes[row], strict=True))
        assert {name for name, _ in got.items() if _ > 0} == {name for name, vote in expected.items() if vote > 0}
        assert all(got[name] == pytest.approx(vote, abs=2e-5) for name, vote in expected.items())
        assert evidence.prominence[row] == pytest.approx(prominence, abs=2e-3)
        named = [name for _, names, _ in heard for name in names]
        present = {name for name, there in zip(witnesses.voices.answers, evidence.present[row], strict=True) if there}
        assert present == set(named)
        for name in present:
            column = witnesses.voices.answers.index(name)
            common = sum(1 / len(names) for _, names, _ in heard if name in names) / len(heard)
            share = expected.get(name, 0) / max(sum(expected.values()), 1e-12)
            assert math.exp(evidence.log_common[row, column]) == pytest.approx(common, rel=1e-4)
            mixed = (1 - COMMON_SHARE) * share + COMMON_SHARE * common
            assert math.exp(evidence.log_votes[row, column]) == pytest.approx(mixed, rel=1e-3, abs=1e-5)


def test_the_truth_is_shared_out_and_a_task_nobody_names_counts_as_its_collection():
    found = documents(
        np.eye(5),
        ["ann", "bob", "cyd", "dan", "eve"],
        [{"a", "b"}, {"glue", "glue/mrpc"}, {"glue"}, {"a"}, {"rare"}],
    )
    witnesses = Witnesses.of(found, K)
    answers = witnesses.voices.answers
    assert answers == ("a", "b", "glue", "glue/mrpc", "rare")
    truth = witnesses.evidence(np.arange(5)).truth
    assert dict(zip(answers, truth[0], strict=True)) == {"a": 0.5, "b": 0, "glue": 0, "glue/mrpc": 0, "rare": 0}
    assert dict(zip(answers, truth[1], strict=True)) == {"a": 0, "b": 0, "glue": 1, "glue/mrpc": 0, "rare": 0}
    assert truth[2].sum() == 0  # others name a task of the collection, which it may not be
    assert truth[4].sum() == 0


def test_a_collection_beside_its_task_has_no_share():
    assert own_datasets(frozenset({"glue", "glue/mrpc", "imdb"})) == ("glue/mrpc", "imdb")
    assert own_datasets(frozenset({"glue", "gluee"})) == ("glue", "gluee")
    voices = voices_of(
        ["ann", "ann", "bob", "ann"], [frozenset({"x"}), frozenset({"y"}), frozenset({"x"}), frozenset()]
    )
    assert voices.of_model.tolist() == [0, 1, 2, -1]
    assert voices.author.tolist() == [0, 0, 1]


def test_a_sweep_does_not_outvote():
    """A hundred runs of one author lie a little nearer than one run each of three others."""
    rng = np.random.default_rng(1)
    asked = np.zeros(12)
    asked[0] = 1
    near = np.concatenate(
        [0.80 * asked + 0.05 * rng.normal(size=(100, 12)), 0.78 * asked + 0.05 * rng.normal(size=(3, 12))]
    )
    rest = rng.normal(size=(8, 12)) - 0.3 * asked
    found = documents(
        np.concatenate([near, rest]),
        ["sweeper"] * 100 + ["bob", "cyd", "dan"] + [f"far{number}" for number in range(8)],
        ["swept"] * 100 + ["shared"] * 3 + [f"other{number}" for number in range(8)],
    )
    prediction = predict_subject(subject(asked), found, k=10)
    assert answer(prediction, "shared").votes > 2
    assert answer(prediction, "swept").votes == pytest.approx(1, abs=0.05)
    assert answer(prediction, "shared").probability > answer(prediction, "swept").probability
    assert answer(prediction, "shared").probability > answer(prediction, "swept").probability
    assert answer(prediction, "shared").authors == 3
    assert len([voter for voter in prediction.voters if voter.author == "sweeper"]) == 1


def test_no_model_of_the_same_author_has_a_vote_and_the_nearest_is_told():
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(30, 8))
    asked = vectors[0] + 0.01 * rng.normal(size=8)
    authors = ["asker"] * 5 + [f"author{number % 5}" for number in range(25)]
    datasets = ["own"] * 5 + [f"d{number % 4}" for number in range(25)]
    prediction = predict_subject(subject(asked), documents(vectors, authors, datasets), k=10)
    assert "own" not in {one.dataset for one in prediction.answers}
    assert "asker" not in {voter.author for voter in prediction.voters}
    assert any("asker/m0" in note and "own" in note for note in prediction.notes)
    stranger = predict_subject(subject(asked, author="else"), documents(vectors, authors, datasets), k=10)
    assert answer(stranger, "own").votes >= 1


# ---- heads, against loops ----


def loop_log_ratio(found, row, dataset):
    """ln P(head | dataset) / P(head), written out: every voice counts once, through the mean of its members."""
    asked = found.heads[row]
    voices: dict = {}
    for other, names in enumerate(found.datasets):
        if names and found.authors[other] != found.authors[row]:
            voices.setdefault((found.authors[other], tuple(sorted(own(names)))), []).append(found.heads[other])

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
        for (_, names), heads in voices.items():
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
    witnesses = Witnesses.of(found, K)
    evidence = witnesses.evidence(np.arange(len(found.models)))
    for row in range(len(found.models)):
        for column, dataset in enumerate(witnesses.voices.answers):
            expected = loop_log_ratio(found, row, dataset) if evidence.present[row, column] else 0.0
            assert evidence.head[row, column] == pytest.approx(expected, abs=1e-4)
        assert evidence.has_head[row] == (heads[row].kind is not None)


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
    found = documents(
        np.eye(4),
        ["ann", "bob", "cyd", "dan"],
        ["two", "two", "three", "three"],
        [Head(CLASSIFIER, 2, frozenset({"no", "yes"})), Head(CLASSIFIER, 2), Head(CLASSIFIER, 3), Head(CLASSIFIER, 3)],
    )
    asked = found.with_undocumented(np.ones(4, np.float32) / 2, "eve/m", "eve", Head(CLASSIFIER, 2))
    ratios = Witnesses.of(asked, K).evidence(np.array([4])).head[0]
    named = replace(asked, heads=[*asked.heads[:4], Head(CLASSIFIER, 2, frozenset({"no", "yes"}))])
    by_name = Witnesses.of(named, K).evidence(np.array([4])).head[0]
    assert ratios[1] > 0 > ratios[0]
    assert by_name[1] > ratios[1]


def test_label_names_decide_between_datasets_that_share_their_text():
    """Sixteen authors, two datasets whose vectors cannot be told apart, different label names."""
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
    found = documents(vectors, authors, datasets, heads)
    for dataset, names in labels.items():
        prediction = predict_subject(subject(text[0], Head(CLASSIFIER, 2, names)), found, k=10)
        assert prediction.calibrated
        assert prediction.evidence == "together"
        assert prediction.answers[0].dataset == dataset
        assert prediction.answers[0].probability > 0.9
        assert answer(prediction, dataset).vectors < 0.7
    nameless = predict_subject(subject(text[0], Head(CLASSIFIER, 2)), found, k=10)
    assert {one.dataset for one in nameless.answers[:2]} == set(labels)
    assert nameless.answers[0].probability < 0.75


# ---- what is told ----


@pytest.fixture(scope="module")
def population():
    return World.of(datasets=12, noise=0.5).draw(60, "a", seed=1)


def test_answers_sum_to_one_and_the_rows_are_json(population):
    prediction = predict_subject(subject(population.vectors[3], Head(CLASSIFIER, 3)), population, k=10)
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
    prediction = predict_subject(subject(population.vectors[3]), population, k=7)
    assert len(prediction.voters) == 7
    assert prediction.voters[0].vote == pytest.approx(1)
    for one in prediction.answers:
        heard = [voter for voter in prediction.voters if one.dataset in voter.datasets]
        assert one.votes == pytest.approx(sum(voter.vote / len(voter.datasets) for voter in heard), abs=1e-5)
        assert one.models == tuple(voter.model for voter in heard if voter.vote > 0)
    for voter in prediction.voters:
        row = population.models.index(voter.model)
        assert voter.similarity == pytest.approx(float(population.vectors[row] @ population.vectors[3]), abs=1e-5)


def test_the_head_speaks_alone_where_the_delta_says_nothing(population):
    row = next(row for row, head in enumerate(population.heads) if head.names and "d0" in population.datasets[row])
    prediction = predict_subject(subject(None, population.heads[row]), population, k=10)
    assert prediction.evidence == "head"
    assert prediction.answers[0].dataset == "d0"
    assert prediction.voters == ()
    assert all(one.vectors is None and one.probability == one.head for one in prediction.answers)


def test_the_vectors_speak_alone_where_there_is_no_head(population):
    prediction = predict_subject(subject(population.vectors[0]), population, k=10)
    assert prediction.evidence == "vectors"
    assert all(one.head is None and one.probability == one.vectors for one in prediction.answers)
    assert any("vectors speak alone" in note for note in prediction.notes)


def test_what_it_declares_and_who_has_its_weights_is_told_but_changes_nothing(population):
    plain = predict_subject(subject(population.vectors[0]), population, k=10)
    facts = {"declared": ("glue", "d1"), "repeats": (Repeat("bob/copy", ("d2",)),)}
    told = predict_subject(subject(population.vectors[0], **facts), population, k=10)
    assert [one.probability for one in told.answers] == [one.probability for one in plain.answers]
    assert [one.dataset for one in told.answers if one.declared] == ["d1"]
    assert any("glue, d1" in note for note in told.notes)
    assert any("bob/copy" in note and "d2" in note for note in told.notes)


def test_nobody_to_ask():
    found = documents(np.eye(3), ["asker"] * 3, ["x", "y", "z"])
    with pytest.raises(AtlasError, match="nobody to ask"):
        predict_subject(subject(np.ones(3)), found, k=10)
    empty = documents(np.zeros((0, 3)), [], [])
    with pytest.raises(AtlasError, match="nobody to ask"):
        predict_subject(subject(np.ones(3)), empty, k=10)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_small_atlases_get_an_answer_and_a_word_of_caution(count):
    rng = np.random.default_rng(count)
    found = documents(rng.normal(size=(count, 6)), [f"author{n}" for n in range(count)], ["x"] * count)
    prediction = predict_subject(subject(found.vectors[0]), found, k=10)
    assert not prediction.calibrated
    assert {one.dataset for one in prediction.answers} == {"x", NONE_OF_THESE}
    assert sum(one.probability for one in prediction.answers) == pytest.approx(1)
    assert answer(prediction, "x").probability >= 0.5
    assert any("not calibrated" in note for note in prediction.notes)


def test_nothing_of_the_askers_author_is_learnt_from(population):
    author = population.authors[0]
    mine = [row for row, name in enumerate(population.authors) if name == author]
    altered = [frozenset({"d3"}) if row in mine else names for row, names in enumerate(population.datasets)]
    vector = population.vectors[mine[0]] + 0.1
    first = predict_subject(subject(vector, author=author), population, k=10)
    second = predict_subject(subject(vector, author=author), replace(population, datasets=altered), k=10)
    known = {one.dataset: one.probability for one in second.answers}
    assert {one.dataset: one.probability for one in first.answers} == pytest.approx(known, abs=1e-9)
    everybody = learn(Witnesses.of(population, 10), [])
    others = learn(Witnesses.of(population, 10), [0])
    assert everybody.calibrations["vectors"].weights[0] != others.calibrations["vectors"].weights[0]


# ---- the command, on a planted Hub ----


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Twelve models of three datasets by four authors; then some that say nothing of their data."""
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification, RobertaModel

    folder = tmp_path_factory.mktemp("predict")
    store = make_world(folder / "store", per_dataset=4)
    body = RobertaModel.from_pretrained(store / BASE)
    torch.manual_seed(1)
    scratch = RobertaForSequenceClassification(RobertaConfig(**SIZES, id2label={0: "bad", 1: "good", 2: "so so"}))
    add_model(store, "eve/from-scratch", scratch, dataset=None)
    config = RobertaConfig(**SIZES, id2label={0: "bad", 1: "good", 2: "so so"})
    model = RobertaForSequenceClassification(config)
    model.roberta.load_state_dict(body.state_dict(), strict=False)
    add_model(store, "eve/frozen", model, dataset=None)
    add_model(store, "eve/mirror", body, dataset=None)
    plant(model.roberta, 1, seed=999)
    add_model(store, "eve/in-house", model, dataset=None)
    add_model(store, "fay/in-house-again", model, dataset="imdb", created="2025-01-01T00:00:00.000Z")
    shutil.copytree(store / "eve/in-house", folder / "local")
    with LoopbackHub(store) as hub:
        shell = Shell(hub.endpoint, folder, {"HF_HOME": str(folder / "hf")})
        ran = shell("index", "build", "--base", BASE, "--workers", "1")
        assert ran.code == 0, ran.err
        yield shell


def test_an_undocumented_model_on_the_command_line(planted):
    ran = planted("query", "predict", "eve/in-house", "--json")
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
    table = planted("query", "predict", "eve/in-house")
    assert max(map(len, table.out.splitlines())) <= 80
    assert table.out.splitlines()[1].startswith("imdb")


def test_a_local_folder_and_what_it_repeats(planted):
    ran = planted("query", "predict", "./local", "--json")
    assert ran.code == 0, ran.err
    assert ran.json[0]["dataset"] == "imdb"
    assert ran.json[0]["votes"] >= 1
    assert "fay/in-house-again has the same weights" in ran.err
    assert ran.json[0]["models"][0] == "eve/in-house"  # the earlier of the two speaks for both


def test_its_own_card_has_no_vote(planted):
    with Atlas(planted.folder / "atlas") as atlas:
        prediction = atlas.predict("fay/in-house-again")
        assert prediction.declared == ("imdb",)
        assert prediction.repeats == ()  # its twin names nothing
        assert "fay/in-house-again" not in {voter.model for voter in prediction.voters}
        assert all(one.author in AUTHORS for one in prediction.voters)
        assert answer(prediction, "imdb").declared


def test_copies_and_strangers(planted):
    mirror = planted("query", "predict", "eve/mirror")
    assert mirror.code == 1
    assert "copy of org/tiny-base" in mirror.err
    assert len(mirror.err.splitlines()) == 1
    with Atlas(planted.folder / "atlas") as atlas:
        for name, reason in (("eve/frozen", "copy of"), ("eve/from-scratch", "not made from")):
            prediction = atlas.predict(name)
            assert prediction.evidence == "head"
            assert any(reason in note for note in prediction.notes)
        with pytest.raises(AtlasError, match="must be at least 1"):
            atlas.predict("eve/in-house", k=0)
        with pytest.raises(AtlasError, match="not published"):
            atlas.predict("eve/in-house", representation="spectrum")
    unknown = planted("query", "predict", "eve/in-hous")
    assert unknown.code == 1
    assert "eve/in-house" in unknown.err
    assert planted("query", "predict").code == 2
    assert planted("query", "predict", "eve/in-house", "--out", "x.png").code == 2


def test_the_evaluation_on_the_command_line(planted):
    ran = planted("query", "predict", "--evaluate", "--out", "r.svg", "--json")
    assert ran.code == 0, ran.err
    told = ran.json
    assert (told["models"], told["authors"], told["datasets"], told["calibrated"]) == (13, 5, 3, False)
    scores = {row["evidence"]: row for row in told["scores"]}
    assert set(scores) == {"together", "vectors", "head", "majority", "chance"}
    assert scores["vectors"]["accuracy"] == 1
    assert scores["chance"]["accuracy"] == pytest.approx(1 / 4)
    assert told["file"] == "r.svg"
    assert (planted.folder / "r.svg").read_text().startswith("<?xml")
    assert "not calibrated" in ran.err
    assert planted("query", "predict", "--evaluate", "--out", "r.gif").code == 1
    assert max(map(len, planted("query", "predict", "--evaluate").out.splitlines())) <= 80
