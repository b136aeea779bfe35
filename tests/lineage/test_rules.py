"""The rules of lineage on synthetic weights: nothing is read from a disk or a Hub."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest

from query.questions.lineage.candidates import Candidate, Factors, FactorStore, SampledWeights, best_group
from query.questions.lineage.evidence import as_stored
from query.questions.lineage.result import CONTINUED, CONTINUED_OR_RUN, MERGE, TUNED, Edge
from query.questions.lineage.rules import LineageRules
from query.questions.lineage.search import ReadLog, Search
from query.questions.lineage.siblings import row_updates, sibling_cosine
from query.questions.lineage.thresholds import SURE, Thresholds, probability
from studies.lineage.merging import int8
from tests.lineage.test_evidence import BASE, NAMES, SHAPES, TOKENS, A, B, C, added, in_common, matrices, parts, trained

DAY = datetime(2024, 5, 1)
EARLIER = DAY - timedelta(days=9)


def candidate(number, created=DAY):
    return Candidate(number, f"a/m{number}", f"author{number}", None, "finetune", created, "", None, frozenset())


def decided(target, m, *others, dates=True):
    rules = LineageRules(target, m, BASE, parts(A, tokens=TOKENS), Thresholds(), dates=dates)
    return rules.decide([SampledWeights(parent, weights) for parent, weights in others]).edges


def test_without_words_a_run_on_the_same_data_is_no_parent_and_a_parent_is_one_however_long_the_training():
    m, parent = parts(added((1, A), (2, B))), parts(added((1, A)))
    (edge,) = decided_without_words(m, parent)
    assert edge.residual > 0.7
    shared = in_common()
    m, parent, run = (parts(added((1, shared), *rest)) for rest in (((1, A), (2, B)), ((1, A),), ((1, C),)))
    assert [edge.parent_id for edge in decided_without_words(m, parent, run)] == [0]
    assert decided_without_words(m, run) == ()


def decided_without_words(m, *others):
    rules = LineageRules(candidate(9), m, BASE, None, Thresholds(), dates=True)
    return rules.decide(
        [SampledWeights(candidate(number, EARLIER), weights) for number, weights in enumerate(others)]
    ).edges


def test_a_merge_of_the_asked_model_on_the_same_day_is_not_its_parent():
    root = added((1, A))
    child = added((1, A), (0.5, B))
    merged = added((1, A), (0.35, B))
    words = trained(TOKENS, range(40), 1)
    m = parts(child, tokens=trained(words, range(30, 60), 2))
    other = parts(merged, tokens=trained(words, range(30, 60), 2))
    edges = decided(
        candidate(2),
        m,
        (candidate(1, DAY - timedelta(days=9)), parts(root, tokens=words)),
        (candidate(3, DAY + timedelta(hours=5)), other),
    )
    assert [(edge.parent_id, edge.kind) for edge in edges] == [(1, CONTINUED)]


def test_of_two_models_without_dates_the_child_is_not_a_parent():
    words = trained(TOKENS, range(40), 1)
    parent, child = (
        parts(added((1, A)), tokens=words),
        parts(added((1, A), (0.7, B)), tokens=trained(words, range(30, 60), 2)),
    )
    assert decided(candidate(1), parent, (candidate(2), child), dates=False) == ()
    (edge,) = decided(candidate(2), child, (candidate(1), parent), dates=False)
    assert (edge.parent_id, edge.direction) == (1, "known")


def test_a_sibling_is_ruled_out_by_tokens_that_it_alone_met():
    sibling = parts(
        added((1, A), (0.5, matrices(7, 0.05))), tokens=trained(trained(TOKENS, range(40), 1), range(60, 90), 3)
    )
    child = parts(added((1, A), (0.5, B)), tokens=trained(trained(TOKENS, range(40), 1), range(30, 60), 2))
    assert decided(candidate(2), child, (candidate(1, DAY - timedelta(days=9)), sibling)) == ()


def test_a_sibling_on_the_same_data_is_ruled_out_by_a_token_of_the_parent_that_it_changed():
    parent_tokens = trained(TOKENS, range(40), 1)
    parent = parts(added((1, A)), tokens=parent_tokens)
    sibling = parts(added((1, A), (0.3, B)), tokens=trained(parent_tokens, range(20, 40), 2))
    child = parts(added((1, A), (0.6, B)), tokens=trained(parent_tokens, range(21, 40), 3))
    earlier = EARLIER
    edges = decided(candidate(3), child, (candidate(1, earlier), parent), (candidate(2, earlier), sibling))
    assert [edge.parent_id for edge in edges] == [1]
    # With every token changed again nothing distinguishes them, and the nearer one counts.
    child = parts(added((1, A), (0.6, B)), tokens=trained(parent_tokens, range(20, 40), 3))
    edges = decided(candidate(3), child, (candidate(1, earlier), parent), (candidate(2, earlier), sibling))
    assert [edge.parent_id for edge in edges] == [2]


def test_a_copy_in_fewer_bits_is_not_nearer_than_its_original():
    parent_tokens, earlier = TOKENS.copy(), DAY - timedelta(days=9)
    parent_tokens[:40] += np.random.default_rng(1).standard_normal((40, TOKENS.shape[1])).astype(np.float32)
    other = parts(added((1, A)), tokens=parent_tokens)
    rounded = parts(added((1, A)), "bfloat16", tokens=as_stored(parent_tokens, "bfloat16"))
    # Each token is changed again, by less than bfloat16 can represent.
    child = parts(added((1, A), (0.4, B)), tokens=trained(parent_tokens, range(60), 2))
    edges = decided(candidate(3), child, (candidate(2, earlier), rounded), (candidate(1, earlier), other))
    assert [edge.parent_id for edge in edges] == [1]


def test_a_merge_of_two_parents_does_not_replace_them():
    earlier = EARLIER
    merged = parts(added((0.8, A), (0.7, B)))
    m = parts(added((0.6, A), (0.67, B), (0.97, C)))
    first, second, third = parts(A), parts(B), parts(C)
    # With (merged, two, three) it is as exact, with as many parents and smaller weights.
    edges = decided(
        candidate(9), m, *((candidate(n, earlier), p) for n, p in enumerate((first, second, third, merged), start=1))
    )
    coefficients = {edge.parent_id: edge.coefficient for edge in edges}
    assert coefficients == pytest.approx({1: 0.6, 2: 0.67, 3: 0.97}, abs=1e-3)
    edges = decided(candidate(9), m, *((candidate(n, earlier), p) for n, p in ((2, second), (3, third), (4, merged))))
    assert {edge.parent_id for edge in edges} == {2, 3, 4}


# ---- siblings ----


# Every training meets every token.
WORDS = TOKENS.shape


def evenly(start, seed, size=0.01):
    """Embeddings after a training by Adam that met each token a few times: entries move by much the same."""
    draw = np.random.default_rng(seed)
    signs = draw.choice((-1.0, 1.0), WORDS) * draw.uniform(0.3, 1.0, (WORDS[0], 1))
    return (start + size * signs * draw.uniform(0.8, 1.0, WORDS)).astype(np.float32)


def unevenly(start, seed, size=0.01):
    """The same after many more steps, so that nothing is left of their even size."""
    return (start + size * np.random.default_rng(seed).standard_normal(WORDS)).astype(np.float32)


def parent_ids(m, *others, tokens=TOKENS):
    base = None if tokens is None else parts(A, tokens=tokens)
    rules = LineageRules(candidate(9), m, BASE, base, Thresholds(), dates=True)
    samples = [SampledWeights(candidate(number, EARLIER), weights) for number, weights in others]
    return [edge.parent_id for edge in rules.decide(samples).edges]


def shared_way(seed=31):
    """What the data require of every model: few directions of each matrix."""
    changes = {}
    for name, shape in zip(NAMES, SHAPES, strict=True):
        draw = np.random.default_rng(seed)
        left, right = (draw.standard_normal((size, 4)) for size in shape)
        changes[name] = (0.0125 * left @ right.T).astype(np.float32)
    return changes


WAY = shared_way()
OWN = [matrices(seed, 0.02) for seed in (41, 42, 43)]


def nearer_than_the_parent(train):
    """A parent, its child, and a sibling on the same data whose matrices are nearer to the child than the parent's."""
    words = train(TOKENS, 1)
    parent = parts(added((1, A)), tokens=words)
    sibling = parts(added((1, A), (0.9, WAY)), tokens=train(words, 2))
    child = parts(added((1, A), (1, WAY), (0.2, OWN[0])), tokens=train(words, 3))
    return parent, sibling, child


def test_token_updates_distinguish_the_parent_from_a_nearer_sibling():
    parent, sibling, child = nearer_than_the_parent(evenly)
    assert parent_ids(child, (1, parent), (2, sibling)) == [1]
    # Rows blurred by many steps distinguish nothing, and the nearer one counts.
    parent, sibling, child = nearer_than_the_parent(unevenly)
    assert parent_ids(child, (1, parent), (2, sibling)) == [2]


def test_a_child_is_not_taken_for_a_sibling_of_its_parent():
    words = evenly(TOKENS, 1)
    grandparent = parts(added((1, A)), tokens=words)
    parent = parts(added((1, A), (0.9, WAY)), tokens=evenly(words, 2))
    child = parts(added((1, A), (1.1, WAY), (0.5, OWN[0])), tokens=evenly(evenly(words, 2), 3))
    assert parent_ids(child, (1, grandparent), (2, parent)) == [2]


def test_tokens_are_compared_only_if_they_differ_from_both():
    parent, sibling, child = nearer_than_the_parent(evenly)
    frozen = parts(sibling.deltas, tokens=parent.tokens)
    assert parent_ids(child, (1, parent), (2, frozen)) == [2]
    assert parent_ids(child, (1, parent), (2, sibling), tokens=None) == [2]


def test_one_training_changes_a_row_more_evenly_than_two():
    once = evenly(TOKENS, 1)
    base, first, second = (parts(A, tokens=tokens) for tokens in (TOKENS, once, evenly(once, 2)))
    first_updates, second_updates = row_updates(first, base), row_updates(second, base)
    assert first_updates.changed.all()
    assert first_updates.evenness.min() > 0.98
    assert np.mean(second_updates.evenness < first_updates.evenness) > 0.99
    assert np.median(second_updates.evenness) < 0.85
    assert not row_updates(base, base).changed.any()
    assert row_updates(base, base).evenness.max() == 0
    gauss = row_updates(parts(A, tokens=unevenly(TOKENS, 4)), base)
    assert np.mean(gauss.evenness) == pytest.approx(2 / np.pi, abs=0.03)


def test_a_sibling_goes_along_the_shared_directions_and_lacks_the_rest():
    parent = parts(added((1, A)))
    step = parts(added((1, A), (1, WAY), (1, OWN[0])))
    child = parts(added((1, A), (1.6, WAY), (1, OWN[0]), (1, OWN[1])))
    sibling = parts(added((1, A), (1.6, WAY), (1, OWN[1])))
    limit = Thresholds().sibling_cosine
    assert abs(sibling_cosine(child, step, parent)) < -limit / 3
    assert sibling_cosine(sibling, step, parent) < 3 * limit
    # By all directions both would seem to come from the step.
    for model in (child, sibling):
        difference = {name: model.weights[name] - step.weights[name] for name in NAMES}
        assert sum(float(np.vdot(difference[name], step.weights[name] - parent.weights[name])) for name in NAMES) > 0
    assert sibling_cosine(child, parent, parent) == 0
    assert parent_ids(sibling, (1, parent), (2, step), tokens=None) == [1]
    assert parent_ids(child, (1, parent), (2, step), tokens=None) == [2]


def test_training_on_the_same_data_again_is_recognised_by_token_updates():
    words = evenly(TOKENS, 1)
    parent = parts(added((1, A)), tokens=words)
    again = added((1.3, A), (0.4, OWN[0]))
    assert parent_ids(parts(again, tokens=evenly(words, 2)), (1, parent)) == [1]
    # Another run from the base on the same data went the same way.
    assert parent_ids(parts(again, tokens=evenly(TOKENS, 3)), (1, parent)) in ([], [None])


def run_with_another_rate(seed):
    """Embeddings after a run on the same data with the same seed as ``evenly(TOKENS, 1)``, at a higher rate."""
    draw = np.random.default_rng(seed)
    steps = evenly(TOKENS, 1) - TOKENS
    return (TOKENS + 1.7 * steps * np.where(draw.random(WORDS) < 0.8, 1, -1)).astype(np.float32)


def test_a_run_from_the_base_with_another_learning_rate_was_not_continued_from_another_run():
    sibling = parts(added((1, A)), tokens=evenly(TOKENS, 1))
    matrix_side = added((1, A), (0.4, OWN[0]))
    assert parent_ids(parts(matrix_side, tokens=run_with_another_rate(2)), (1, sibling)) == []
    # The same matrices, but tokens that went through the other run's training.
    assert parent_ids(parts(matrix_side, tokens=evenly(evenly(TOKENS, 1), 2)), (1, sibling)) == [1]


def test_without_comparable_tokens_another_run_explains_the_evidence_as_well():
    sibling, m = parts(added((1, A))), parts(added((1, A), (0.4, OWN[0])))
    for author, kind in (("author9", CONTINUED_OR_RUN), ("somebody", CONTINUED)):
        other = replace(candidate(1, DAY - timedelta(hours=2)), author=author)
        rules = LineageRules(candidate(9), m, BASE, None, Thresholds(), dates=True)
        (edge,) = rules.decide([SampledWeights(other, sibling)]).edges
        assert (edge.kind, edge.direction) == (kind, "known" if kind == CONTINUED else "unknown")
        assert probability(edge) < SURE
    edge = Edge("a/c", "a/b", CONTINUED_OR_RUN, 1.0, 0.2)
    assert edge.description == "continued from a/b, or a run with the same data and seed"
    assert replace(edge, kind=TUNED).description == "tuned from the base, a/b"


def test_a_copy_in_8_bits_is_not_nearer_than_its_original():
    import torch

    words = unevenly(TOKENS, 1)
    source = parts(added((1, A)), tokens=words)
    coarse = {name: int8(torch.from_numpy(source.weights[name])).numpy() - BASE[name] for name in NAMES}
    # Its embeddings are rounded, and so equal to many.
    copy = parts(coarse, tokens=words + np.float32(1e-6))
    child = parts(added((1, A), (0.4, OWN[0])), tokens=unevenly(words, 2, 1e-5))
    assert parent_ids(child, (1, source), (2, copy)) == [1]


# ---- groups ----


WEIGHTS = (0.4, 0.35, 0.25)
RANK = 12


def training(seed: int) -> dict:
    """A change whose energy lies mostly in few directions, as after training."""
    changes = {}
    for name, noise in matrices(seed, 0.002).items():
        random = np.random.default_rng(seed)
        left, right = (random.standard_normal((size, 6)) for size in noise.shape)
        changes[name] = (noise + 0.02 * left @ right.T).astype(np.float32)
    return changes


PARENTS = [training(seed) for seed in (21, 22, 23)]


def factors(change) -> dict:
    """The factors of a record: the leading triplets, (u·σ, v)."""
    factors_of = {}
    for name, matrix in change.items():
        u, s, vt = np.linalg.svd(matrix, full_matrices=False)
        factors_of[name] = Factors((u * s)[:, :RANK].astype(np.float32), vt[:RANK].T.astype(np.float32))
    return factors_of


@pytest.fixture(scope="module")
def planted() -> tuple[list[Candidate], FactorStore, dict]:
    """Three parents, and nine blends of two or three of them, each with a training of its own behind it."""
    changes = [added((1, parent)) for parent in PARENTS]
    for seed in range(9):
        shares = np.random.default_rng(seed).dirichlet((3, 3, 3))
        blend = [(float(share), parent) for share, parent in zip(shares, PARENTS, strict=True)]
        changes.append(added(*blend, (0.2, training(40 + seed))))
    candidates = [candidate(number + 1, EARLIER) for number in range(len(changes))]
    store = FactorStore(None, {})  # type: ignore[arg-type]
    store._factors.update(
        {candidate.model_id: factors(change) for candidate, change in zip(candidates, changes, strict=True)}
    )
    return (
        candidates,
        store,
        {candidate.model_id: parts(change) for candidate, change in zip(candidates, changes, strict=True)},
    )


def merge() -> dict:
    return added(*zip(WEIGHTS, PARENTS, strict=True))


def test_the_parents_are_the_group_that_leaves_least(planted):
    candidates, store, _ = planted
    m = parts(merge())
    _, fitted = store.fit(candidates, m.deltas)
    assert int(np.argmax(fitted)) > 2  # a blend is nearer than each parent
    group, residual = best_group(store, candidates, m.deltas, m.deltas, Thresholds(max_parents=3))
    assert {candidate.model_id for candidate in group} == {1, 2, 3}
    assert residual < 0.2


def test_a_merge_is_found_when_blends_were_read_first(planted):
    candidates, store, parts_of = planted

    def search(**limits) -> Search:
        rules = LineageRules(candidate(90), parts(merge()), BASE, None, Thresholds(max_models=2, **limits), dates=True)
        return Search(lambda candidate: parts_of[candidate.model_id], rules, store, candidates, ReadLog())

    decision = search().run([])
    assert {edge.parent_id: round(edge.coefficient, 3) for edge in decision.edges} == dict(
        zip((1, 2, 3), WEIGHTS, strict=True)
    )
    assert {edge.kind for edge in decision.edges} == {MERGE}
    assert not search(max_group_residual=0.0).run([]).is_settled


def test_nothing_more_is_read_if_no_group_explains_the_model(planted):
    candidates, store, parts_of = planted
    m = parts(added((1, training(77))))
    rules = LineageRules(candidate(90), m, BASE, None, Thresholds(max_models=2), dates=True)
    search = Search(lambda candidate: parts_of[candidate.model_id], rules, store, candidates, ReadLog())
    assert not search.run([]).edges
    assert len(search.samples) <= 2
