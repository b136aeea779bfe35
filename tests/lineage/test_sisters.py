"""Which of several relatives is the parent, on planted trainings: no file is read."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from query.lineage.answer import Row
from query.lineage.decide import Judge
from query.lineage.kinship import rows_between
from query.lineage.links import CONTINUED, CONTINUED_OR_RUN, TUNED, Reading
from query.lineage.probability import SURE, probability
from query.lineage.sisters import tail_cosine
from query.lineage.thresholds import Limits
from scripts.lineage.merging import int8
from tests.lineage.test_decided import DAY, candidate
from tests.lineage.test_evidence import BASE, NAMES, SHAPES, TOKENS, A, added, matrices, parts

EARLIER = DAY - timedelta(days=9)
# Every word is met by every training.
WORDS = TOKENS.shape


def evenly(start, seed, size=0.01):
    """Embeddings after a training by Adam that met each word a few times: entries move by much the same."""
    draw = np.random.default_rng(seed)
    signs = draw.choice((-1.0, 1.0), WORDS) * draw.uniform(0.3, 1.0, (WORDS[0], 1))
    return (start + size * signs * draw.uniform(0.8, 1.0, WORDS)).astype(np.float32)


def unevenly(start, seed, size=0.01):
    """The same after so many meetings that nothing is left of the even steps."""
    return (start + size * np.random.default_rng(seed).standard_normal(WORDS)).astype(np.float32)


def asked_for(m, *others, tokens=TOKENS):
    base = None if tokens is None else parts(A, tokens=tokens)
    judge = Judge(candidate(9), m, BASE, base, Limits(), dates=True)
    read = [Reading(candidate(number, EARLIER), one) for number, one in others]
    return [link.parent.model_id if link.parent else None for link in judge.verdict(read).links]


def shared_way(seed=31):
    """What the data ask of every model: few directions of each matrix."""
    found = {}
    for name, shape in zip(NAMES, SHAPES, strict=True):
        draw = np.random.default_rng(seed)
        left, right = (draw.standard_normal((size, 4)) for size in shape)
        found[name] = (0.0125 * left @ right.T).astype(np.float32)
    return found


WAY = shared_way()
OWN = [matrices(seed, 0.02) for seed in (41, 42, 43)]


def nearer_than_the_parent(train):
    """A parent, its child, and the child's sister on the same data, nearer to it by her matrices than the parent."""
    words = train(TOKENS, 1)
    parent = parts(added((1, A)), tokens=words)
    sister = parts(added((1, A), (0.9, WAY)), tokens=train(words, 2))
    child = parts(added((1, A), (1, WAY), (0.2, OWN[0])), tokens=train(words, 3))
    return parent, sister, child


def test_of_a_parent_and_a_nearer_sister_the_words_tell_the_parent():
    parent, sister, child = nearer_than_the_parent(evenly)
    assert asked_for(child, (1, parent), (2, sister)) == [1]
    # Rows that many meetings have blurred tell nothing, and the nearer one counts.
    parent, sister, child = nearer_than_the_parent(unevenly)
    assert asked_for(child, (1, parent), (2, sister)) == [2]


def test_a_child_is_not_taken_for_a_sister_of_its_parent():
    words = evenly(TOKENS, 1)
    grandparent = parts(added((1, A)), tokens=words)
    parent = parts(added((1, A), (0.9, WAY)), tokens=evenly(words, 2))
    child = parts(added((1, A), (1.1, WAY), (0.5, OWN[0])), tokens=evenly(evenly(words, 2), 3))
    assert asked_for(child, (1, grandparent), (2, parent)) == [2]


def test_without_words_that_both_have_otherwise_nothing_is_told():
    parent, sister, child = nearer_than_the_parent(evenly)
    frozen = parts(sister.deltas, tokens=parent.tokens)
    assert asked_for(child, (1, parent), (2, frozen)) == [2]
    assert asked_for(child, (1, parent), (2, sister), tokens=None) == [2]


def test_one_training_changes_a_row_more_evenly_than_two():
    once = evenly(TOKENS, 1)
    base, first, second = (parts(A, tokens=one) for one in (TOKENS, once, evenly(once, 2)))
    one, two = rows_between(first, base), rows_between(second, base)
    assert one.changed.all()
    assert one.flatness.min() > 0.98
    assert np.mean(two.flatness < one.flatness) > 0.99
    assert np.median(two.flatness) < 0.85
    assert not rows_between(base, base).changed.any()
    assert rows_between(base, base).flatness.max() == 0
    gauss = rows_between(parts(A, tokens=unevenly(TOKENS, 4)), base)
    assert np.mean(gauss.flatness) == pytest.approx(2 / np.pi, abs=0.03)


def test_a_sister_goes_along_the_shared_way_and_lacks_the_rest():
    parent = parts(added((1, A)))
    step = parts(added((1, A), (1, WAY), (1, OWN[0])))
    child = parts(added((1, A), (1.6, WAY), (1, OWN[0]), (1, OWN[1])))
    sister = parts(added((1, A), (1.6, WAY), (1, OWN[1])))
    limit = Limits().sister
    assert abs(tail_cosine(child, step, parent)) < -limit / 3
    assert tail_cosine(sister, step, parent) < 3 * limit
    # By all directions both would seem to come from the step.
    for one in (child, sister):
        rest = {name: one.weights[name] - step.weights[name] for name in NAMES}
        assert sum(float(np.vdot(rest[name], step.weights[name] - parent.weights[name])) for name in NAMES) > 0
    assert tail_cosine(child, parent, parent) == 0
    assert asked_for(sister, (1, parent), (2, step), tokens=None) == [1]
    assert asked_for(child, (1, parent), (2, step), tokens=None) == [2]


def test_who_goes_on_along_the_parents_way_is_known_by_its_words():
    words = evenly(TOKENS, 1)
    parent = parts(added((1, A)), tokens=words)
    again = added((1.3, A), (0.4, OWN[0]))
    assert asked_for(parts(again, tokens=evenly(words, 2)), (1, parent)) == [1]
    # Another run from the base on the same data went the same way as well.
    assert asked_for(parts(again, tokens=evenly(TOKENS, 3)), (1, parent)) in ([], [None])


def run_with_another_rate(seed):
    """Embeddings after a run on the same data with the same seed as ``evenly(TOKENS, 1)``, at a higher rate."""
    draw = np.random.default_rng(seed)
    steps = evenly(TOKENS, 1) - TOKENS
    return (TOKENS + 1.7 * steps * np.where(draw.random(WORDS) < 0.8, 1, -1)).astype(np.float32)


def test_a_run_from_the_base_with_another_learning_rate_was_not_continued_from_its_sister():
    sister = parts(added((1, A)), tokens=evenly(TOKENS, 1))
    matrix_side = added((1, A), (0.4, OWN[0]))
    assert asked_for(parts(matrix_side, tokens=run_with_another_rate(2)), (1, sister)) == []
    # The same matrices, but words that went through the sister's training.
    assert asked_for(parts(matrix_side, tokens=evenly(evenly(TOKENS, 1), 2)), (1, sister)) == [1]


def test_where_words_do_not_tell_a_sister_run_explains_the_evidence_as_well():
    sister, m = parts(added((1, A))), parts(added((1, A), (0.4, OWN[0])))
    for author, kind in (("author9", CONTINUED_OR_RUN), ("somebody", CONTINUED)):
        other = replace(candidate(1, DAY - timedelta(hours=2)), author=author)
        (link,) = Judge(candidate(9), m, BASE, None, Limits(), dates=True).verdict([Reading(other, sister)]).links
        assert (link.kind, link.direction) == (kind, kind == CONTINUED)
        assert probability(link) < SURE
    row = Row("a/b", CONTINUED_OR_RUN, 1.0, 0.2, "unsure", None, "unknown", "")
    assert row.words == "continued from a/b, or a run with the same data and seed"
    assert replace(row, kind=TUNED).words == "tuned from the base, a/b"


def test_a_copy_in_8_bits_is_no_nearer_relative_than_what_it_is_a_copy_of():
    import torch

    words = unevenly(TOKENS, 1)
    source = parts(added((1, A)), tokens=words)
    coarse = {name: int8(torch.from_numpy(source.weights[name])).numpy() - BASE[name] for name in NAMES}
    # Its embeddings are rounded, and so alike to many.
    copy = parts(coarse, tokens=words + np.float32(1e-6))
    child = parts(added((1, A), (0.4, OWN[0])), tokens=unevenly(words, 2, 1e-5))
    assert asked_for(child, (1, source), (2, copy)) == [1]
