"""What is made of evidence, on planted models: no file is read."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import pytest

from query.lineage.candidates import Candidate
from query.lineage.decide import Judge
from query.lineage.evidence import as_stored
from query.lineage.links import CONTINUED, Reading
from query.lineage.thresholds import Limits
from tests.lineage.test_evidence import BASE, TOKENS, A, B, C, added, matrices, parts, trained

DAY = datetime(2024, 5, 1)


def candidate(number, created=DAY):
    return Candidate(
        number, f"a/m{number}", f"author{number}", None, "finetune", created, None, "", None, None, frozenset()
    )


def judged(asked, m, *others, dates=True):
    judge = Judge(asked, m, BASE, parts(A, tokens=TOKENS), Limits(), dates=dates)
    return judge.verdict([Reading(one, found) for one, found in others]).links


def test_a_merge_of_the_asked_model_on_the_same_day_is_not_its_parent():
    root = added((1, A))
    child = added((1, A), (0.5, B))
    merged = added((1, A), (0.35, B))
    words = trained(TOKENS, range(40), 1)
    m = parts(child, tokens=trained(words, range(30, 60), 2))
    other = parts(merged, tokens=trained(words, range(30, 60), 2))
    links = judged(
        candidate(2),
        m,
        (candidate(1, DAY - timedelta(days=9)), parts(root, tokens=words)),
        (candidate(3, DAY + timedelta(hours=5)), other),
    )
    assert [(link.parent.model_id, link.kind) for link in links] == [(1, CONTINUED)]


def test_of_two_models_without_dates_the_child_is_no_parent():
    words = trained(TOKENS, range(40), 1)
    parent, child = (
        parts(added((1, A)), tokens=words),
        parts(added((1, A), (0.7, B)), tokens=trained(words, range(30, 60), 2)),
    )
    assert judged(candidate(1), parent, (candidate(2), child), dates=False) == ()
    (link,) = judged(candidate(2), child, (candidate(1), parent), dates=False)
    assert (link.parent.model_id, link.direction) == (1, True)


def test_a_sister_is_refused_by_words_that_she_alone_met():
    sister = parts(
        added((1, A), (0.5, matrices(7, 0.05))), tokens=trained(trained(TOKENS, range(40), 1), range(60, 90), 3)
    )
    child = parts(added((1, A), (0.5, B)), tokens=trained(trained(TOKENS, range(40), 1), range(30, 60), 2))
    assert judged(candidate(2), child, (candidate(1, DAY - timedelta(days=9)), sister)) == ()


def test_a_sister_on_the_same_data_is_refused_by_a_word_of_the_parent_that_she_changed():
    of_parent = trained(TOKENS, range(40), 1)
    parent = parts(added((1, A)), tokens=of_parent)
    sister = parts(added((1, A), (0.3, B)), tokens=trained(of_parent, range(20, 40), 2))
    child = parts(added((1, A), (0.6, B)), tokens=trained(of_parent, range(21, 40), 3))
    earlier = DAY - timedelta(days=9)
    links = judged(candidate(3), child, (candidate(1, earlier), parent), (candidate(2, earlier), sister))
    assert [link.parent.model_id for link in links] == [1]
    # With every word changed again nothing tells, and the nearer one counts.
    child = parts(added((1, A), (0.6, B)), tokens=trained(of_parent, range(20, 40), 3))
    links = judged(candidate(3), child, (candidate(1, earlier), parent), (candidate(2, earlier), sister))
    assert [link.parent.model_id for link in links] == [2]


def test_a_copy_in_fewer_bits_is_no_nearer_relative_than_what_it_is_a_copy_of():
    of_parent, earlier = TOKENS.copy(), DAY - timedelta(days=9)
    of_parent[:40] += np.random.default_rng(1).standard_normal((40, TOKENS.shape[1])).astype(np.float32)
    other = parts(added((1, A)), tokens=of_parent)
    rounded = parts(added((1, A)), "bfloat16", tokens=as_stored(of_parent, "bfloat16"))
    # Each word is changed again, by less than bfloat16 can tell.
    child = parts(added((1, A), (0.4, B)), tokens=trained(of_parent, range(60), 2))
    links = judged(candidate(3), child, (candidate(2, earlier), rounded), (candidate(1, earlier), other))
    assert [link.parent.model_id for link in links] == [1]


def test_a_merge_of_two_of_a_merges_parents_is_not_its_parent_in_their_place():
    earlier = DAY - timedelta(days=9)
    merged = parts(added((0.8, A), (0.7, B)))
    m = parts(added((0.6, A), (0.67, B), (0.97, C)))
    one, two, three = parts(A), parts(B), parts(C)
    # With (merged, two, three) it is as exact, with as many parents and smaller weights.
    links = judged(
        candidate(9), m, *((candidate(n, earlier), p) for n, p in enumerate((one, two, three, merged), start=1))
    )
    found = {link.parent.model_id: link.coefficient for link in links}
    assert found == pytest.approx({1: 0.6, 2: 0.67, 3: 0.97}, abs=1e-3)
    links = judged(candidate(9), m, *((candidate(n, earlier), p) for n, p in ((2, two), (3, three), (4, merged))))
    assert {link.parent.model_id for link in links} == {2, 3, 4}
