"""Texts against the rows that moved: what is certain, and the limit on the share that was used."""

from __future__ import annotations

import numpy as np
import pytest

import query.questions.trace.trace
from query import Atlas
from query.questions.trace.evidence import TokenEvidence, evidence_of_row, ranks_of
from query.questions.trace.texts import compare_texts, share_upper
from query.questions.trace.words import distinctive_scores, scripts_of, words_of

WORDS = [f"w{number}" for number in range(200)]


class SplitByWord:
    """A tokenizer for which every word is one token; a leading space changes nothing."""

    special_ids = (0,)

    def encode(self, text: str) -> list[int]:
        return [int(word[1:].rstrip(".!")) for word in text.split() if word[1:].rstrip(".!").isdigit()]

    def words(self, ids: list[int]) -> list[str]:
        return [WORDS[token] for token in ids]


def evidence(met: set[int], kind: str = "exact", rows: range = range(200)) -> TokenEvidence:
    codes = np.array([120 if row in met else 0 for row in rows], np.uint8)
    return TokenEvidence(kind, np.array(rows), codes, False, 1.0, 200, 200, None, None)


def compared(texts: list[str], token_evidence: TokenEvidence, length: int | None = 100):
    return compare_texts(texts, SplitByWord(), token_evidence, token_evidence.is_met.astype(float), length, each=True)


def test_a_text_with_an_untouched_token_was_certainly_not_used() -> None:
    comparison = compared(["w1 w2 w3", "w1 w150 w2", "w1 w150", ""], evidence(set(range(100))))
    assert (comparison.texts, comparison.certainly_not_used, comparison.possible) == (4, 1, 3)
    assert [text.verdict for text in comparison.by_text or []] == [
        "possible",
        "certainly_not_used",
        "possible",
        "possible",
    ]
    assert (comparison.by_text or [])[1].untouched == ["w150"]


def test_nothing_is_certain_of_other_classes_or_of_rows_that_were_not_read() -> None:
    comparison = compared(["w1 w150 w2"], evidence(set(range(100)), "statistical"))
    assert (comparison.certainly_not_used, comparison.possible, comparison.share_upper) == (None, None, None)
    assert comparison.likelihood == pytest.approx(2 / 3)
    assert compared(["w1 w150 w2"], evidence(set(range(100)), rows=range(100))).certainly_not_used == 0


def test_what_training_cut_off_does_not_count() -> None:
    text = " ".join(["w1"] * 40 + ["w150", "w2"])
    assert compared([text], evidence(set(range(100))), 41).certainly_not_used == 1
    assert compared([text], evidence(set(range(100))), 40).certainly_not_used == 0
    assert compared([text], evidence(set(range(100))), None).certainly_not_used == 0  # only the first 24


def test_marks_at_the_end_do_not_count() -> None:
    class Marks(SplitByWord):
        def encode(self, text: str) -> list[int]:
            return [*super().encode(text), *([150] if text.rstrip().endswith("!") else [])]

    known = evidence(set(range(100)))
    assert compare_texts(["w1 w2!"], Marks(), known, known.is_met.astype(float), 100).certainly_not_used == 0


def test_a_token_that_only_a_shortened_text_has_does_not_count() -> None:
    """Unigram models split a text as a whole: without the marks at its end it may have other tokens."""

    class Unigram(SplitByWord):
        def encode(self, text: str) -> list[int]:
            return [1, 2, 3] if text.endswith(".") else [1, 150, 2, 3]

    known = evidence(set(range(100)))
    comparison = compare_texts(["w1 w2 w3."] * 50, Unigram(), known, known.is_met.astype(float), 100)
    assert (comparison.certainly_not_used, comparison.share_upper) == (0, 1.0)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_the_limit_covers_the_share_that_was_used(share: float) -> None:
    """Zipf's law of tokens, texts of twenty, and a random share of them used: too low in 5 % of the draws at most."""
    rng = np.random.default_rng(5)
    frequencies = 1 / np.arange(2, 402)
    frequencies /= frequencies.sum()
    missed, limits, draws = 0, [], 60
    for _ in range(draws):
        texts = [rng.choice(400, 20, p=frequencies) for _ in range(300)]
        is_used = rng.random(300) < share
        met = set(np.concatenate([[0], *[text for text, used in zip(texts, is_used, strict=True) if used]]).tolist())
        texts_with = np.zeros(400, int)
        for text in texts:
            texts_with[np.unique(text)] += 1
        occurs = texts_with > 0
        untouched = np.array([token not in met for token in range(400)])
        limit = share_upper(texts_with[occurs], untouched[occurs])
        limits.append(limit)
        missed += limit < is_used.mean()
    assert missed <= 0.05 * draws
    assert np.median(limits) < {0.0: 0.1, 0.01: 0.2, 0.1: 0.5, 0.5: 1.01, 1.0: 1.01}[share]


def test_rows_that_cannot_be_compared_are_offered_to_be_read_only_once(made, monkeypatch) -> None:
    row = {"token_class": None, "commit": "a" * 40, "relation": "finetune"}
    monkeypatch.setattr(query.questions.trace.trace, "token_evidence", lambda *arguments: (row, None))
    monkeypatch.setattr(query.questions.trace.trace, "evidence_of_all_rows", lambda *arguments: None)
    with Atlas(made) as atlas:
        (before,) = atlas.trace("ann/squad-0").notes
        (after,) = atlas.trace("ann/squad-0", all_rows=True).notes
    assert before.endswith("`all_rows=True` reads them now.")
    assert after.startswith("Its input embedding cannot be compared with the base's: its vocabulary was pruned or")


def test_words_that_set_a_model_apart() -> None:
    rng = np.random.default_rng(1)
    others = rng.random((10, 200)) * 0.3
    ranks = rng.random(200) * 0.3
    ranks[[5, 6]] = 1.0
    scores = distinctive_scores(ranks, others)
    assert set(np.argsort(scores)[-2:].tolist()) == {5, 6}
    pieces = [" river", "stone", " 12", " ab", " stone"]
    words = words_of(np.arange(5), pieces, np.array([2.0, 9.0, 8.0, 7.0, 1.0]), 5)
    assert [(word.word, word.tokens) for word in words] == [("stone", [1, 4]), ("river", [0])]
    assert [(script.script, script.tokens) for script in scripts_of(["ab", "жук", "12", "cd"])] == [
        ("latin", 2),
        ("cyrillic", 1),
    ]


def test_ranks_do_not_depend_on_the_learning_rate() -> None:
    codes = np.array([0, 10, 20, 30, 254, 255], np.uint8)
    ranks = ranks_of(codes)
    np.testing.assert_allclose(ranks[:5], [0, 1 / 3, 2 / 3, 1, 0])
    assert np.isnan(ranks[5])
    np.testing.assert_allclose(ranks_of(np.where((codes > 0) & (codes < 200), codes + 40, codes))[:5], ranks[:5])


@pytest.mark.parametrize(
    "change",
    [{"token_codes": "!!"}, {"token_codes": "AAAA"}, {"base_token_rows": 10**12}, {"token_scale": float("nan")},
     {"token_class": "sure"}, {"token_codes": None}],
)  # fmt: skip
def test_a_row_of_an_atlas_that_somebody_made_is_checked(change: dict[str, object]) -> None:
    row = {
        "token_class": "exact", "token_codes": "AAECAw==", "token_is_share": False, "token_scale": 1.0, "token_rows": 4,
        "base_token_rows": 4, "position_rows": None, "has_pairs": None,
    }  # fmt: skip
    assert evidence_of_row(row) is not None
    assert evidence_of_row(row | change) is None
