"""Which texts cannot have been in the training data: those with a token whose row did not move.

More exactly, no step that changed a number of the token's row had the token in its batch. Steps whose learning rate is
zero, or too small to change a number of the row, cannot be detected: without them, the embedding would be the same, bit
for bit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray

from indexer.untrusted import tidy
from query.contract.results import Doc, If
from query.questions.trace.evidence import TokenEvidence

if TYPE_CHECKING:
    from query.questions.trace.words import Tokenizer

CERTAIN, POSSIBLE = "certainly_not_used", "possible"
CONFIDENCE = 0.95
# Training cuts long texts, and without position embeddings it is not known where. Then only this many tokens count,
# which is less than the shortest usual limit of 32, special tokens included.
USUAL_LENGTH = 24
SHOWN_CHARACTERS = 80

_LAST_MARKS = re.compile(r"[^\w]+$")


@dataclass(frozen=True)
class ComparedText:
    """A text, shortened, compared with one model. ``met`` is None if no row of its tokens was read."""

    text: Annotated[str, Doc("The text, shortened.")]
    verdict: Annotated[
        str,
        Doc("certainly_not_used (in no step that changed the embedding, as the text is written here) or possible."),
    ]
    untouched: Annotated[list[str], Doc("Tokens of the text whose rows did not move.")]
    met: Annotated[float | None, Doc("Mean probability that a token of the text was met.")]


@dataclass(frozen=True)
class ComparedTexts:
    """The texts of a file compared with one model.

    ``certainly_not_used`` and ``possible`` add up to ``texts``; both are None unless the class is exact.
    """

    texts: Annotated[int, Doc("Number of texts.")]
    certainly_not_used: Annotated[
        int | None,
        Doc(
            "Number of texts with a token whose row did not move: no step that changed the embedding used them as they "
            "are written."
        ),
    ]
    possible: Annotated[int | None, Doc("Number of the other texts. A text that is possible was not necessarily used.")]
    share_upper: Annotated[float | None, Doc("At most this share of the texts was used, with 95 % confidence.")]
    likelihood: Annotated[
        float | None, Doc("Mean probability that a token of the texts was met, among tokens whose rows were read.")
    ]
    by_text: Annotated[list[ComparedText] | None, Doc("The same for each text."), If()] = None


def compare_texts(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    evidence: TokenEvidence,
    probabilities: NDArray[np.float64],
    length: int | None,
    *,
    each: bool = False,
) -> ComparedTexts:
    """Compare texts with a model's ``evidence``.

    Args:
        texts: the texts.
        tokenizer: splits them into tokens.
        evidence: the rows of the model's embedding that moved.
        probabilities: (n,) that each row was met.
        length: how many tokens of a text training kept; None if that is not known.
        each: also return a verdict on each text.

    A token is evidence against a text only if it occurs however the text was embedded in a prompt. So the first word is
    read with and without a space before it, and marks at the end, which may merge with the following text, are left
    out. The last token is left out, too: if the model predicts the next token, the end of an input has no gradient.
    """
    row_of = np.full(max(evidence.vocabulary, evidence.base_vocabulary, int(evidence.rows.max(initial=0)) + 1), -1)
    row_of[evidence.rows] = np.arange(len(evidence.rows))
    length = length or USUAL_LENGTH
    is_untouched = evidence.is_untouched
    all_untouched = set(np.flatnonzero(is_untouched).tolist())
    is_exact = evidence.kind == "exact"
    by_text: list[ComparedText] = []
    texts_with: dict[int, int] = {}  # rows that were read: the number of texts with the token
    total, weight, certain = 0.0, 0, 0
    for text in texts:
        core = _LAST_MARKS.sub("", text)
        ids_of = [
            tokenizer.encode(text)[:length],
            *(tokenizer.encode(variant)[:-1][:length] for variant in (core, f" {core.lstrip()}")),
        ]
        readings = [_rows_of(ids, row_of) for ids in ids_of]
        rows = readings[0]
        if len(rows):
            total += float(probabilities[rows].sum())
            weight += len(rows)
        # Unigram models split a text as a whole, so a token must be in the text's own reading, too.
        own_rows = set(rows.tolist())
        counting = [own_rows.intersection(reading.tolist()) for reading in readings[1:]]
        for row in counting[0] & counting[1]:
            texts_with[row] = texts_with.get(row, 0) + 1
        against = [tokens & all_untouched for tokens in counting]
        is_certain = is_exact and all(against)
        certain += is_certain
        if each:
            ids = evidence.rows[sorted(against[0])]
            by_text.append(
                ComparedText(
                    tidy(text, SHOWN_CHARACTERS),
                    CERTAIN if is_certain else POSSIBLE,
                    [word.strip() or word for word in tokenizer.words(ids.tolist())] if is_certain else [],
                    float(probabilities[rows].mean()) if len(rows) else None,
                )
            )
    counts = np.array([texts_with[row] for row in sorted(texts_with)], dtype=np.int64)
    untouched = np.array([is_untouched[row] for row in sorted(texts_with)], dtype=bool)
    return ComparedTexts(
        texts=len(texts),
        certainly_not_used=certain if is_exact else None,
        possible=len(texts) - certain if is_exact else None,
        share_upper=min(share_upper(counts, untouched), 1 - certain / len(texts)) if is_exact else None,
        likelihood=total / weight if weight else None,
        by_text=by_text if each else None,
    )


def kept_tokens(longest: int | None, pairs: bool | None) -> int | None:
    """How many tokens of a text training kept for certain, from the ``longest`` input; None if that is not known.

    Special tokens take two or four positions. If inputs may be pairs, training kept at least half of the longest.
    """
    if longest is None:
        return None
    return max(1, longest - 2 if pairs is False else (longest - 4) // 2)


def share_upper(counts: NDArray[np.int64], untouched: NDArray[np.bool_]) -> float:
    """An upper limit, with 95 % confidence, on the share f of the texts that was used.

    ``counts`` (m,): how many of the texts contain a token; ``untouched`` (m,): whether its row did not move. If each
    text was used with probability f, a token of n texts is untouched with probability (1 - f)^n at most. Let U be the
    number of untouched tokens among the T tokens of n texts or more. By Markov's inequality P(U ≥ u) ≤ T·(1 - f)^n / u.
    The limit is the lowest over several n, each with its part of the error (Bonferroni); it is valid however tokens
    depend on each other.
    """
    floors = [1 << power for power in range(int(np.log2(max(1, counts.max(initial=1)))) + 1)]
    limit = 1.0
    for least in floors:
        is_common = counts >= least
        number = int((is_common & untouched).sum())
        if number:
            limit = min(limit, 1 - ((1 - CONFIDENCE) / len(floors) * number / int(is_common.sum())) ** (1 / least))
    return limit


def _rows_of(ids: Sequence[int], row_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """(m,) the indices of these tokens' rows in the evidence, without rows that were not read."""
    numbers = np.array([token for token in ids if 0 <= token < len(row_of)], dtype=np.int64)
    rows = row_of[numbers]
    return rows[rows >= 0]
