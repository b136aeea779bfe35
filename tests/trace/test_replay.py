"""The book-keeping of runs whose every batch is kept."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from indexer.records.tokens import EXACT, UNSURE, row_changes
from query.questions.trace.texts import CERTAIN
from studies.trace.check import causes, planted_file, tokens_kept
from studies.trace.plan import Run
from studies.trace.training import Replay, Table, Text, batches, only_once, rate, train_replayed


def record_rows(rows: list[list[int]], replay: Replay) -> None:
    ids = np.array(rows)
    replay.see(ids, (ids != 1).astype(np.int64))


def test_attended_tokens_are_counted_apart_from_padding() -> None:
    replay = Replay.empty(8)
    record_rows([[0, 5, 5, 2], [0, 6, 2, 1]], replay)
    record_rows([[0, 7, 2]], replay)
    assert replay.counts.tolist() == [3, 0, 3, 0, 0, 2, 1, 1]
    assert replay.met.tolist() == [True, False, True, False, False, True, True, True]
    assert replay.longest == 4


def test_a_text_is_kept_once() -> None:
    replay = Replay.empty(8)
    for _ in range(2):
        replay.use("a text", [0, 5, 2])
    assert replay.given == ["a text"]
    assert replay.seen == [[0, 5, 2]]


def test_a_union_has_the_rows_and_texts_of_both() -> None:
    first, second = Replay.empty(8), Replay.empty(10)
    record_rows([[0, 5, 2]], first)
    record_rows([[0, 9]], second)
    first.use("one", [0, 5, 2])
    for text, ids in (("one", [0, 5, 2]), ("two", [0, 9])):
        second.use(text, ids)
    first.scale, second.scale = 0.5, 0.5
    union = first.union(second)
    assert union.counts.tolist() == [2, 0, 1, 0, 0, 1, 0, 0, 0, 1]
    assert union.given == ["one", "two"]
    assert union.scale == 0.25
    assert second.counts.sum() == 2  # the parts are not changed
    second.scale = None
    assert first.union(second).scale is None


def test_a_replay_is_read_as_it_was_written(tmp_path) -> None:
    replay = Replay.empty(8)
    record_rows([[0, 5, 2]], replay)
    replay.use("a text", [0, 5, 2])
    replay.use("", [])
    replay.facts = {"name": "x"}
    replay.save(tmp_path / "x.replay")
    again = Replay.load(tmp_path / "x.replay")
    np.testing.assert_array_equal(again.counts, replay.counts)
    assert (again.given, again.seen, again.facts, again.longest) == (replay.given, [[0, 5, 2], []], {"name": "x"}, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.replay.json", "x.replay.npz"]


def test_planted_texts_stand_in_the_last_batch_alone() -> None:
    texts = [Text(f"text {number}", [0, 5, 6, 2], 0, []) for number in range(20)]
    texts += [Text("rare", [0, 7, 2], 0, []), Text("rarer", [0, 8, 2], 0, [])]
    run = Run("x", steps=6, batch=4, accumulation=2)
    assert only_once([text.ids for text in texts]) == [20, 21]
    planned = list(batches(run, texts))
    assert len(planned) == 12
    assert [text.given for text in planned[-1]] == ["rare", "rarer"]
    assert not {"rare", "rarer"} & {text.given for batch in planned[:-1] for text in batch}


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_last_rate_is_the_smallest_and_not_zero(schedule: str) -> None:
    run = Run("x", steps=50, schedule=schedule, learning_rate=1.0)
    rates = [rate(run, step) for step in range(run.steps)]
    assert 0 < rates[-1] == min(rates[5:])
    assert max(rates) == rates[5] == 1.0


def test_a_row_is_marked_if_a_step_changed_a_bit_of_it() -> None:
    """By what the optimiser makes of a copy that no text meets, decay and all; the last rates of a cosine change nothing."""
    draw = torch.Generator().manual_seed(0)
    start = 0.5 + torch.rand(64, 16, generator=draw)
    texts = [Text(f"text {number}", [5 + number % 20, 30, 31], 0, []) for number in range(40)]
    texts += [Text("rare", [60, 30], 0, []), Text("rarer", [61, 31], 0, [])]
    run = Run("x", steps=40, batch=4, learning_rate=1e-7, decay=1e3, planted=2)
    for schedule, is_marked in (("cosine", False), ("constant", True)):
        torch.manual_seed(0)
        table = Table(start)
        run = replace(run, schedule=schedule)
        replay = train_replayed(table, run, texts, None, 64)  # type: ignore[arg-type]
        assert replay.met[[5, 30, 60, 61]].all()
        assert replay.gradients[[60, 61]].all()
        assert not (replay.marked & ~replay.met).any()
        assert replay.marked[[5, 24, 30, 31]].all()
        assert replay.marked[[60, 61]].tolist() == [is_marked, is_marked]
        assert not torch.equal(table.embedding.weight[60], start[60])  # decay moved it, in any case


class Numbers:
    """A text is its numbers."""

    def encode(self, text, add_special_tokens=True):
        return SimpleNamespace(ids=[int(word) for word in text.split()])


def test_a_certificate_is_wrong_only_if_the_text_left_a_mark() -> None:
    replay = Replay.empty(40)
    replay.given = ["5 6 7", "5 8 9", "5 10 11", "5 12 6", "5 6"]
    replay.counts[[5, 6, 7, 8, 9, 10, 11, 12]] = 1
    replay.gradients[[5, 6, 7, 8, 9, 10, 11]] = 1
    replay.marked[[5, 6, 7]] = True
    untouched = np.isin(np.arange(40), [7, 8, 9, 12, 20])
    verdicts = [CERTAIN, CERTAIN, CERTAIN, CERTAIN, "possible"]
    comparison = SimpleNamespace(by_text=[SimpleNamespace(verdict=verdict) for verdict in verdicts])
    reasons = causes(replay, comparison, Numbers(), untouched, None)  # type: ignore[arg-type]
    assert reasons == ["missed", "no mark", "not seen", "no gradient", ""]


def test_planted_files_have_their_share() -> None:
    used, unused = [("used", number) for number in range(300)], [("unused", number) for number in range(300)]
    for share in (0.0, 0.01, 0.5, 1.0):
        texts, true = planted_file(used, unused, share, seed=3)
        assert true == share == sum(kind == "used" for kind, _ in texts) / len(texts)
        assert len(set(texts)) == len(texts)


def test_what_training_keeps_of_a_text() -> None:
    assert tokens_kept(Run("x", longest=32)) == 30
    assert tokens_kept(Run("x", longest=48, task="pairs")) == 22
    assert tokens_kept(Run("x", base="qwen2", longest=32)) == 32
    assert tokens_kept(Run("x", base="qwen2", longest=32, task="language")) == 31
    assert tokens_kept(Run("x", base="t5", longest=32)) == 31


def test_rows_are_told_by_their_neighbours_where_decay_is_uneven() -> None:
    draw = torch.Generator().manual_seed(0)
    base = torch.randn(600, 32, generator=draw) * 0.05
    tuned = base.clone()
    met = {row: 1999 - row % 100 for row in range(0, 600, 5)}  # in the last hundred steps
    for step in range(2000):
        rate = 2e-5 * (1 - step / 2000)
        tuned *= 1 - 0.01 * rate
        for row in (row for row, last_step in met.items() if last_step == step):
            tuned[row] += rate * torch.randn(32, generator=draw).sign()
    compared = row_changes(tuned, base)
    assert compared is not None
    codes = compared[0].codes
    assert set(np.flatnonzero((codes > 0) & (codes < UNSURE)).tolist()) == set(met)
    assert (codes == UNSURE).mean() < 0.03  # a number of a row that was not met lies a little apart
    half = row_changes(tuned.half(), base, "float16")
    assert half is None or half[0].kind != EXACT
