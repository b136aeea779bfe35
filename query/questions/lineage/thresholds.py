"""All thresholds of lineage, and the probability of an edge.

The thresholds were set on one forest of small trained models (BERT, seed 11) and checked on forests of three
architectures. The search started from the values of a matching pursuit on merges of known parents. The probabilities
were calibrated on four more forests (RoBERTa 301, BERT 302, RoBERTa 401, ViT 402) and confirmed on families that were
not used for calibration. Those of adapters were set and counted on two forests of adapters (seeds 1 and 2).
Measurements: docs/evidence/lineage.md; to repeat them: ``python -m studies.lineage``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from query.questions.lineage.result import (
    CONTINUED,
    CONTINUED_OR_RUN,
    MERGE,
    OF_ADAPTER,
    SPARSE_METHODS,
    STATED,
    TUNED,
    Edge,
)


@dataclass(frozen=True)
class Thresholds:
    """Shares are of ‖δ‖², the energy of the asked model's change, unless the comment says otherwise."""

    # Limits on reading. The search starts from the matching pursuit on merges of known parents.
    max_bytes: int = 30_000_000  # of weights for one model
    max_models: int = 8  # candidates whose weights are read
    min_gain: float = 0.02  # with a smaller gain of the best candidate no more are read
    max_group_residual: float = 0.5  # left by the stored factors of a group of models, for the group to be read
    reads_after_group: int = 2  # models that may be read after such a group
    sibling_gain: float = 0.65  # a parent's gain over that of the relative that looked like the parent
    original_gain: float = 0.9  # share of a copy in fewer bits that the record of its original explains
    record_gain: float = 0.35  # share that a record alone must explain; other runs on the same data explain less

    # Exact sums.
    exact_residual: float = 1e-6  # left beyond rounding by an exact explanation
    rounding_factor: float = 2.0  # this many times the expected rounding error counts as rounding
    max_rounding: float = 0.05  # with a larger share of rounding nothing is called exact
    max_parents: int = 4  # of a merge
    min_weight: float = 0.03  # of a parent in a merge
    max_weight: float = 1.6  # the same; larger weights fit only by cancelling each other
    same_run_hours: float = 24.0  # uploads of one author on one dataset this close in time are runs of one sweep

    # Continued training.
    max_residual: float = 0.6  # left after a parent with coefficient 1, without other evidence
    max_far_residual: float = 0.9  # the same, with evidence by token embeddings or ``min_kept``
    # Share of the parent's change, outside its leading directions, in a child, and its variation between matrices.
    min_kept: float = 0.8
    max_kept_spread: float = 0.3
    max_cosine: float = 0.5  # |cosine| of that residual with the parent's change
    reversed_cosine: float = 0.1  # if |cosine| is larger one way than the other by this much, the order is reversed
    sibling_cosine: float = -0.15  # below this cosine of m − s with s − p, without leading directions, s is a sibling

    # Token embeddings. An update is more even from a relative that is fewer trainings away (found on RoBERTa, seed 33).
    min_shared: int = 8  # embeddings that must be equal to count as inherited
    weak_share: float = 0.1  # of the embeddings that both changed; fewer equal ones are weak evidence
    weak_residual: float = 0.5  # left over, at most, where the evidence is weak
    min_tokens: int = 32  # needed to compare updates
    even_update: float = 0.8  # evenness of a token's update from one of the two, at least; Gaussian updates have .64
    more_even: float = 0.55  # share of tokens whose update is more even from the nearer of two relatives
    more_even_than_base: float = 0.85  # the same against the base; siblings with an unknown parent reach two thirds
    more_even_than_run: float = 0.8  # the same, above which a run with the same data and seed is ruled out

    # Adapters: of changes by their factors (docs/evidence/lineage.md, "Adapters").
    max_adapters: int = 24  # candidates whose factors are read, in place of ``max_models``
    max_unexplained: int = 10  # of these, as long as none explains anything: it may be a merge of others
    min_adapter_gain: float = (
        0.01  # in place of ``min_gain``: a merge of factors contains a ninth of each of three parents
    )
    max_adapter_residual: float = 0.9  # left after a parent with coefficient 1
    min_adapter_cosine: float = -0.25  # of that residual with the parent's change
    # How far from 1 a parent's coefficient may be, outside the leading quarter (kept) or half (fine) of its directions.
    max_kept_error: float = 0.15
    adapter_sibling_cosine: float = (
        -0.07
    )  # as ``sibling_cosine``; in whole matrices the cosine of a child is above -.05
    max_fine_error: float = 0.25
    min_compressed_weight: float = 0.1  # of a parent in a merge that was cut to a lower rank after dropping entries
    min_compressed_gain: float = 0.03  # share of the change that each parent of such a merge must explain
    max_compressed_residual: float = 0.6  # left by all of its parents

    # Sparse merges, quantised copies, LoRA.
    sparse_share: float = 0.02  # share of entries equal to the base's, above which a sparse merge is looked for
    multiple_share: float = 0.02  # share of a parent's entries that are in a sparse merge, times one number
    multiple_contrast: float = 6.0  # how much denser that multiple is than those around it
    level_share: float = 0.995  # share of the entries of a quantised copy that are where its source rounds to
    max_rank: float = 0.5  # of a LoRA, as a share of the largest possible rank
    rank_drop: float = 10.0  # energy of a LoRA's last singular value over that of the next, in most matrices


_DEFAULT = Thresholds()

# Edges of at least this probability count as found; a card can contradict only such an edge.
SURE = 0.9

# For each kind of evidence: how many edges of the calibrating forests were right, and how many there were.
_COUNTS = {
    "exact": (143, 147),
    "dropped entries": (51, 51),
    "inherited": (151, 155),
    "few inherited": (11, 11),
    "size alone": (53, 67),
    "run alone": (4, 28),
    "record alone": (0, 0),
    "base": (110, 119),
    "base, no words": (59, 65),
    "base, adapter": (59, 63),
    "factors, exact": (131, 131),
    "factors, continued": (46, 50),
    "factors, run": (4, 7),
}
_OF_ADAPTERS = {TUNED: "base, adapter", CONTINUED: "factors, continued", CONTINUED_OR_RUN: "factors, run"}
# For the model that an adapter's own file names: an assumption, not measured. Few names are wrong or stale.
_STATED = 0.95
# For an edge decided by sizes and angles: 1 / (1 + exp(-SLOPE · (share of tokens - MIDDLE))), by Firth's regression.
SLOPE, MIDDLE = 25.0, 0.78
SIZES = "sizes and angles"


def evidence_class(edge: Edge) -> str:
    """The kind of evidence for an edge: a key of ``_COUNTS``, or SIZES if sizes and angles decided."""
    signals = edge.signals
    if STATED in signals:
        return STATED
    if OF_ADAPTER in signals:
        return _OF_ADAPTERS.get(edge.kind, "factors, exact")
    if edge.kind == TUNED:
        return "base" if signals.get("words", 0) >= _DEFAULT.min_tokens else "base, no words"
    if edge.kind not in (CONTINUED, CONTINUED_OR_RUN):
        is_sparse = edge.kind == MERGE and edge.method == SPARSE_METHODS
        return "dropped entries" if is_sparse else "exact"
    if not signals:
        return "record alone"
    if signals["equal"] or signals.get("shared", 0) >= _DEFAULT.min_shared:
        return "inherited" if edge.is_proven else "few inherited"
    if signals["words"] >= _DEFAULT.min_tokens:
        return SIZES
    return "size alone" if edge.kind == CONTINUED else "run alone"


def probability(edge: Edge) -> float:
    """The probability that an edge is right: that its parent is a parent or, for the base, that no other model is.

    For a copy of unknown direction, that the two models have the same weights.

    Where sizes and angles decided, it depends on the share of tokens whose update is more even from the parent than
    from the base. For all other evidence it is the share of the calibrating edges that were right.
    """
    evidence = evidence_class(edge)
    if evidence == STATED:
        return _STATED
    if evidence == SIZES:
        return 1 / (1 + math.exp(SLOPE * (MIDDLE - edge.signals["more_even"])))
    right, count = _COUNTS[evidence]
    return (right + 0.5) / (count + 1)  # Jeffreys' prior, so that a few cases do not give certainty
