"""The shares of several files in a model's training text, by the tokens that it met and those it did not.

If the training text has v_f tokens of file f, in which a token t has the rate r_f(t), then t occurs Σ v_f r_f(t) times
on average, and is met with probability 1 − exp(−Σ v_f r_f(t)) (Poisson). The v_f ≥ 0 are the most likely ones, found by
expectation–maximisation, where only zero or not is known of each count (Dempster, Laird & Rubin, 1977). One more
component is other text: tokens as common as they are in the other models of the base.

How far a row moved adds little about how often its token was met: on planted mixtures, shares from counts estimated by
sizes were wrong by .20 on average, these by .03 to .09.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from query.questions.trace.evidence import TokenEvidence
    from query.questions.trace.words import Tokenizer

Floats = NDArray[np.float64]

DRAWS = 40  # of texts and rows, for the intervals
STEPS, STEPS_OF_A_DRAW = 300, 80
CONFIDENCE = 0.95
# Texts of one kind differ more than those of one file, so the intervals of the draws are too narrow by about this.
WIDENED = 1.5
_FLOOR = 1e-3  # of a file's rates is spread over all tokens, because a file contains only some texts
_FEWEST_OTHERS = 3


@dataclass(frozen=True)
class Shares:
    """Each file's share of the tokens that the files explain.

    Attributes:
        shares: (files,)
        low, high: (files,) the ends of 95 % intervals.
        other_share: about this share of the tokens that were met is better explained by other text.
    """

    shares: Floats
    low: Floats
    high: Floats
    other_share: float


def token_counts(
    texts: Sequence[str], tokenizer: Tokenizer, evidence: TokenEvidence, length: int
) -> tuple[csr_array, float]:
    """Count the tokens whose rows were read in the first ``length`` tokens of each text, without special tokens.

    Returns the counts (texts, rows), and the share of all tokens that were counted.
    """
    from scipy.sparse import csr_array

    column_of = np.full(int(evidence.rows.max(initial=0)) + 1, -1)
    column_of[evidence.rows] = np.arange(len(evidence.rows))
    column_of[[token for token in tokenizer.special_ids if 0 <= token < len(column_of)]] = -1
    columns, row_ends, total = [np.zeros(0, np.int64)], [0], 0
    for text in texts:
        ids = np.array(tokenizer.encode(text[: 24 * length])[:length], dtype=np.int64)
        total += len(ids)
        text_columns = column_of[ids[(ids >= 0) & (ids < len(column_of))]]
        columns.append(text_columns[text_columns >= 0])
        row_ends.append(row_ends[-1] + len(columns[-1]))
    all_columns = np.concatenate(columns)
    counts = csr_array((np.ones(len(all_columns)), all_columns, row_ends), shape=(len(texts), len(evidence.rows)))
    return counts, len(all_columns) / total if total else 0.0


def other_rates(codes: NDArray[np.uint8]) -> Floats:
    """(rows,) how common each token is in the other models of the base, whose codes are (models, rows)."""
    moved_codes = codes[codes.any(axis=1)]
    if len(moved_codes) < _FEWEST_OTHERS:
        return np.full(codes.shape[1], 1 / codes.shape[1])
    rates: Floats = -np.log1p(-((moved_codes > 0).sum(axis=0) + 0.5) / (len(moved_codes) + 1))
    return rates / rates.sum()


def shares_of(
    counts: Sequence[csr_array], covered: Sequence[float], met_probability: Floats, background_rates: Floats
) -> Shares | None:
    """The shares of files with these token ``counts`` (texts, rows); None if a file has no token that was read.

    ``covered``: see ``token_counts``. ``met_probability`` (rows,): the probability that each token was met, NaN if it
    is not known. ``background_rates`` (rows,): the rates of other text.
    """
    is_known = ~np.isnan(met_probability)
    if not is_known.any() or not np.nansum(met_probability) or any(not file_counts.sum() for file_counts in counts):
        return None
    known_met = np.nan_to_num(met_probability)
    coverage = np.maximum(np.array(covered), 1e-9)
    random = np.random.default_rng(0)

    def rates(weights: Sequence[Floats] | None) -> Floats:
        """(rows, files + 1), columns of sum 1."""
        rows = [
            file_counts.sum(axis=0) if weights is None else weights[file] @ file_counts
            for file, file_counts in enumerate(counts)
        ]
        table = np.stack([*(row / max(row.sum(), 1e-12) for row in rows), background_rates], axis=1)
        return (1 - _FLOOR) * table + _FLOOR / len(table)

    def as_shares(tokens: Floats) -> Floats:
        file_tokens = tokens[:-1] / coverage
        return file_tokens / max(file_tokens.sum(), 1e-12)

    start = np.full(len(counts) + 1, 2 * known_met.sum() / (len(counts) + 1))
    tokens = _most_likely(rates(None), known_met, is_known.astype(float), start, STEPS)
    drawn_shares = []
    for _ in range(DRAWS):
        weights = [
            random.multinomial(file_counts.shape[0], np.full(file_counts.shape[0], 1 / file_counts.shape[0]))
            for file_counts in counts
        ]
        rows = random.exponential(size=len(known_met)) * is_known
        first_guess = tokens + 0.01 * start
        drawn_rates = rates([file_weights.astype(float) for file_weights in weights])
        drawn_shares.append(as_shares(_most_likely(drawn_rates, known_met, rows, first_guess, STEPS_OF_A_DRAW)))
    shares = as_shares(tokens)
    low, high = np.quantile(drawn_shares, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return Shares(
        shares,
        np.clip(shares - WIDENED * np.maximum(shares - low, 0), 0, 1),
        np.clip(shares + WIDENED * np.maximum(high - shares, 0), 0, 1),
        float(tokens[-1] / max(tokens.sum(), 1e-12)),
    )


def _most_likely(rates: Floats, met_probability: Floats, weights: Floats, start: Floats, steps: int) -> Floats:
    """(components,) numbers of tokens of each component. ``weights`` (rows,) of the rows' likelihoods."""
    tokens = start
    weighted = rates * weights[:, None]
    total = np.maximum(weighted.sum(axis=0), 1e-12)
    for _ in range(steps):
        expected = np.maximum(rates @ tokens, 1e-12)
        # The mean of a Poisson number that is not zero, over the mean of any.
        tokens = tokens * (weighted.T @ (met_probability / -np.expm1(-expected))) / total
    return tokens
