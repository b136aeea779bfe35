"""Which texts cannot have been in the training data: those with a token whose row did not move.

Exactly: no step that changed a number of the token's row had it. Steps with a learning rate of zero, or one so small
that no number of the row changes, cannot be detected: without them, the embedding would be the same, bit for bit.
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
    """A text, shortened, against one model. None if no row of its tokens was read."""

    text: Annotated[str, Doc("The text, shortened.")]
    verdict: Annotated[str, Doc("certainly_not_used or possible.")]
    untouched: Annotated[list[str], Doc("Tokens of the text whose rows did not move.")]
    met: Annotated[float | None, Doc("Mean probability that a token of the text was met.")]


@dataclass(frozen=True)
class ComparedTexts:
    """The texts of a file against one model.

    ``certainly_not_used`` and ``possible`` add up to ``texts``; both are None unless the class is exact.
    """

    texts: Annotated[int, Doc("Number of texts.")]
    certainly_not_used: Annotated[
        int | None,
        Doc(
            "Number of texts with a token whose row did not move: they cannot have been in the training text as "
            "they are written."
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

    ``probabilities`` (n,): that each row was met. ``length``: how many tokens of a text training kept.

    A token counts against a text only if it is there however the text was embedded in a prompt. So the first word is
    read with and without a space before it, and marks at the end, which may merge with what follows, are left out. So
    is the last token: where the model predicts the next one, the end of an input has no gradient.
    """
    place = np.full(max(evidence.vocabulary, evidence.base_vocabulary, int(evidence.rows.max(initial=0)) + 1), -1)
    place[evidence.rows] = np.arange(len(evidence.rows))
    kept = length or USUAL_LENGTH
    is_untouched = evidence.is_untouched
    all_untouched = set(np.flatnonzero(is_untouched).tolist())
    is_exact = evidence.kind == "exact"
    judged: list[ComparedText] = []
    holders: dict[int, int] = {}  # rows that were read: the number of texts that hold the token
    total, weight, certain = 0.0, 0, 0
    for text in texts:
        core = _LAST_MARKS.sub("", text)
        ids_of = [
            tokenizer.encode(text)[:kept],
            *(tokenizer.encode(one)[:-1][:kept] for one in (core, f" {core.lstrip()}")),
        ]
        readings = [_places(one, place) for one in ids_of]
        every = readings[0]
        if len(every):
            total += float(probabilities[every].sum())
            weight += len(every)
        # Unigram models split a text as a whole, so a token must be in the text's own reading, too.
        own = set(every.tolist())
        counting = [own.intersection(one.tolist()) for one in readings[1:]]
        for row in counting[0] & counting[1]:
            holders[row] = holders.get(row, 0) + 1
        against = [one & all_untouched for one in counting]
        is_certain = is_exact and all(against)
        certain += is_certain
        if each:
            ids = evidence.rows[sorted(against[0])]
            judged.append(
                ComparedText(
                    tidy(text, SHOWN_CHARACTERS),
                    CERTAIN if is_certain else POSSIBLE,
                    [word.strip() or word for word in tokenizer.words(ids.tolist())] if is_certain else [],
                    float(probabilities[every].mean()) if len(every) else None,
                )
            )
    counts = np.array([holders[row] for row in sorted(holders)], dtype=np.int64)
    untouched = np.array([is_untouched[row] for row in sorted(holders)], dtype=bool)
    return ComparedTexts(
        texts=len(texts),
        certainly_not_used=certain if is_exact else None,
        possible=len(texts) - certain if is_exact else None,
        share_upper=min(share_upper(counts, untouched), 1 - certain / len(texts)) if is_exact else None,
        likelihood=total / weight if weight else None,
        by_text=judged if each else None,
    )


def kept_tokens(longest: int | None, pairs: bool | None) -> int | None:
    """How many tokens of a text training kept for certain, from the ``longest`` input; None if that is not known.

    Special tokens take two or four places. Where inputs may be pairs, half of the longest is what all texts kept.
    """
    if longest is None:
        return None
    return max(1, longest - 2 if pairs is False else (longest - 4) // 2)


def share_upper(counts: NDArray[np.int64], untouched: NDArray[np.bool_]) -> float:
    """An upper limit, with 95 % confidence, on the share f of the texts that was used.

    ``counts`` (m,): how many of the texts hold a token; ``untouched`` (m,): whether its row did not move. If each text
    was used with probability f, a token of n texts is untouched with probability (1 - f)^n at most. Of the T tokens of
    n texts or more U are untouched, and by Markov's inequality P(U ≥ u) ≤ T·(1 - f)^n / u. The limit is the lowest over
    several n, each with its part of the error (Bonferroni); it holds however tokens depend on each other.
    """
    floors = [1 << power for power in range(int(np.log2(max(1, counts.max(initial=1)))) + 1)]
    limit = 1.0
    for least in floors:
        held = counts >= least
        number = int((held & untouched).sum())
        if number:
            limit = min(limit, 1 - ((1 - CONFIDENCE) / len(floors) * number / int(held.sum())) ** (1 / least))
    return limit


def _places(ids: Sequence[int], place: NDArray[np.int64]) -> NDArray[np.int64]:
    """(m,) where the rows of these tokens are in the evidence, without those that were not read."""
    numbers = np.array([one for one in ids if 0 <= one < len(place)], dtype=np.int64)
    found = place[numbers]
    return found[found >= 0]
