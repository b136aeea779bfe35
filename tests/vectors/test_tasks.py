"""Two tasks on one text: what the script says of known models."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.vectors import Text, shared, without_mean

pytestmark = pytest.mark.study


def planted(of_text, of_task, rng):
    """24 models by eight authors, three matrices of 16 numbers: the text's direction, the task's, and noise."""
    tasks = np.arange(24) % 2
    text, task = rng.standard_normal((1, 3, 16)), rng.standard_normal((2, 3, 16))
    blocks = of_text * text + of_task * task[tasks] + rng.standard_normal((24, 3, 16))
    blocks /= np.linalg.norm(blocks, axis=2, keepdims=True)
    blocks[0, 1] = 0
    return Text(blocks, blocks, tasks, [f"a{row // 3}" for row in range(24)], np.arange(3), ["query.0"] * 3)


def test_what_the_text_hides_is_seen_without_its_mean():
    text = planted(6.0, 1.0, np.random.default_rng(1))
    plain, without = shared(text, text.blocks), shared(text, without_mean(text.blocks))
    assert without.share > plain.share
    assert without.share > 0.8 > 0.6 > without.chance
    assert without.p_models < 0.01
    assert not without_mean(text.blocks)[0, 1].any()


def test_where_tasks_are_nothing_p_is_uniform_and_the_share_is_chance():
    found = []
    for seed in range(8):
        text = planted(3.0, 0.0, np.random.default_rng(100 + seed))
        found.append(shared(text, without_mean(text.blocks)))
    assert np.mean([one.share - one.chance for one in found]) == pytest.approx(0, abs=0.05)
    for name in ("p_models", "p_sweeps"):
        assert 0.25 < np.mean([getattr(one, name) for one in found]) < 0.75
