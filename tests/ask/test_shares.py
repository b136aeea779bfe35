"""In what shares a training text came from several files: planted mixtures, drawn and really trained on."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from query.questions.ask.shares import other_rates, shares_of, token_counts
from query.questions.trace.evidence import TokenEvidence

ROWS = 400


def kinds(number: int, seed: int = 0) -> np.ndarray:
    """(number, ROWS) rates of kinds of text: Zipf's law, each in an order of its own with common words in front."""
    draw = np.random.default_rng(seed)
    zipf = 1 / np.arange(1, ROWS + 1)
    rates = np.stack([zipf[np.argsort(np.argsort(np.arange(ROWS) * draw.lognormal(0, 1.2, ROWS)))]
                      for _ in range(number)])  # fmt: skip
    return rates / rates.sum(axis=1, keepdims=True)


def file_of(rates: np.ndarray, seed: int, texts: int = 200) -> csr_array:
    return csr_array(np.random.default_rng(seed).poisson(20 * rates, (texts, ROWS)).astype(float))


def met_by(rates: np.ndarray, tokens: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).poisson(tokens * rates) > 0).astype(float)


UNIFORM = np.full(ROWS, 1 / ROWS)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5])
def test_planted_shares(share: float) -> None:
    kind_rates = kinds(2)
    files = [file_of(rates, seed) for seed, rates in enumerate(kind_rates)]
    errors, covered = [], 0
    for seed in range(6):
        shares = shares_of(
            files, [1, 1], met_by(share * kind_rates[0] + (1 - share) * kind_rates[1], 1500, seed), UNIFORM
        )
        assert shares is not None
        assert shares.shares.sum() == pytest.approx(1)
        assert (shares.low <= shares.shares).all()
        assert (shares.shares <= shares.high).all()
        errors.append(abs(shares.shares[0] - share))
        covered += shares.low[0] - 1e-3 <= share <= shares.high[0] + 1e-3
    assert np.mean(errors) < 0.12
    assert covered >= 5


def test_files_whose_tokens_are_read_in_part_count_in_full() -> None:
    kind_rates = kinds(2)
    files = [file_of(rates, seed) for seed, rates in enumerate(kind_rates)]
    met = met_by(0.5 * kind_rates.sum(axis=0), 1500, 3)
    shares, half = shares_of(files, [1, 1], met, UNIFORM), shares_of(files, [0.5, 1], met, UNIFORM)
    assert shares is not None
    assert half is not None
    assert half.shares[0] == pytest.approx(2 * shares.shares[0] / (2 * shares.shares[0] + shares.shares[1]))


def test_other_text_is_not_given_to_the_files() -> None:
    rates = kinds(3)
    files = [file_of(file_rates, seed) for seed, file_rates in enumerate(rates[:2])]
    codes = np.stack([met_by(rates[2], 1500, seed) for seed in range(9)]).astype(np.uint8)
    shares = shares_of(files, [1, 1], met_by(0.3 * rates[0] + 0.7 * rates[2], 1500, 20), other_rates(codes))
    assert shares is not None
    assert shares.other_share > 0.4
    assert shares.shares[0] > 0.6


def test_what_says_nothing() -> None:
    file = file_of(kinds(1)[0], 0)
    assert shares_of([file, csr_array((3, ROWS))], [1, 1], np.ones(ROWS), UNIFORM) is None
    assert shares_of([file, file], [1, 1], np.zeros(ROWS), UNIFORM) is None
    assert shares_of([file, file], [1, 1], np.full(ROWS, np.nan), UNIFORM) is None
    assert other_rates(np.zeros((9, ROWS), np.uint8)) == pytest.approx(UNIFORM)


def test_tokens_are_counted_where_rows_were_read() -> None:
    class Words:
        special_ids = (2,)

        def encode(self, text: str) -> list[int]:
            return [int(token) for token in text.split()]

    rows = np.array([2, 5, 9])
    evidence = TokenEvidence("exact", rows, np.ones(3, np.uint8), False, 1.0, 20, 20, None, None)
    counts, covered = token_counts(["5 5 9 1", "2 5 7", "", "5 9 9 9 9"], Words(), evidence, 3)
    assert counts.toarray().tolist() == [[0, 2, 1], [0, 1, 0], [0, 0, 0], [0, 1, 2]]
    assert covered == pytest.approx(7 / 9)
