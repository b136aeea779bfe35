"""Changes of low rank: abliterated, fact edited, adapter merged."""

from __future__ import annotations

import numpy as np

from indexer.names import FAMILIES
from indexer.records.kinds.change import Subject, Test

_WRITING = frozenset(family for family in FAMILIES if family.endswith(("output", "feedforward2")))
_FEWEST = 3  # matrices that agree on a direction
# ROME changes one matrix, MEMIT some neighbouring layers; in a network of few layers at most half of them.
_MOST_EDITED = 8
# Ranks above this share of what rows allow cannot be told from full ones.
_MOST_RANK = 0.75
# Ranks are equal if they differ by one, or by this share; rank one is what rounding leaves of many a training.
_SAME_RANK, _LEAST_RANK, _OF_EQUALITY = 0.1, 2, 4.0
# The decades of a spectrum that ends, and the share of rounding in a change that float32 keeps.
_SEEN, _UNROUNDED = 5.0, 1e-9


def _changed(subject: Subject) -> np.ndarray:
    """(K,) whether each matrix changed."""
    return subject.signs.column("change") > 0


def _is_writing(subject: Subject) -> np.ndarray:
    return np.array([delta.key.family in _WRITING for delta in subject.record.deltas])


def _one_direction(subject: Subject) -> float:
    """How far the changes of all writing matrices have rank one, and one left direction.

    Without a direction r, W is W − r rᵀW: the change has rank one, and r on its left, in every matrix. Both are 1 then.
    Rounding explains what it may.
    """
    signs, changed, writing = subject.signs, _changed(subject), _is_writing(subject)
    is_written = changed & writing
    if is_written.sum() < max(_FEWEST, 0.75 * writing.sum()):
        return 0.0
    single = np.minimum(signs.column("leading") + np.minimum(signs.column("rounding"), 0.5), 1.0)[is_written]
    return float(np.median(single) * np.median(signs.column("agreement")[is_written]))


def _abliterated_in_words(subject: Subject) -> str:
    signs, is_written = subject.signs, _changed(subject) & _is_writing(subject)
    other_count = (_changed(subject) & ~_is_writing(subject)).sum()
    rest = f"; {other_count} other matrices changed, too" if other_count else "; no other matrix changed"
    return (
        f"the changes of {is_written.sum()} matrices that write into the residual stream have rank one "
        f"({np.median(signs.column('leading')[is_written]):.1%} of their energy) and one left direction "
        f"(cosine {np.median(signs.column('agreement')[is_written]):.3f}){rest}"
    )


def _share_of_rank(subject: Subject) -> np.ndarray:
    """(changed matrices,) the rank of each change by the largest that it could have."""
    signs = subject.signs
    return (signs.column("rank") / np.maximum(signs.column("full_rank"), 1))[_changed(subject)]


def _few_facts(subject: Subject) -> float:
    """How low the ranks are of the changes of one or a few second feed-forward matrices, where nothing else changed."""
    deltas, changed = subject.record.deltas, _changed(subject)
    edited = [delta.key for delta, is_changed in zip(deltas, changed, strict=True) if is_changed]
    families = {(key.stack, key.family) for key in edited}
    if len(families) != 1 or not edited[0].family.endswith("feedforward2"):
        return 0.0
    of_family = sum((delta.key.stack, delta.key.family) in families for delta in deltas)
    if len(edited) > max(1, min(_MOST_EDITED, of_family / 2)):
        return 0.0
    return float(1.0 - _share_of_rank(subject).max())


def _edited_in_words(subject: Subject) -> str:
    deltas, changed = subject.record.deltas, _changed(subject)
    names = [str(delta.key) for delta, is_changed in zip(deltas, changed, strict=True) if is_changed]
    ranks = sorted({int(rank) for rank in subject.signs.column("rank")[changed]})
    return f"only {', '.join(names)} changed, by rank {', '.join(map(str, ranks))}"


def _low_rank(subject: Subject) -> float:
    """How clearly all changes have a low rank: decades by which their spectra fall, and how far their ranks are equal.

    The spectrum of a training decays, but does not end: its median is a hundredth or more of that of independent
    numbers. That of a product of factors is what rounding leaves. Where rounding hides that, as in bfloat16, most
    matrices still show the rank of the factors, while the rank that rounding leaves of a training differs.
    """
    signs, changed = subject.signs, _changed(subject)
    if not changed.any() or np.median(_share_of_rank(subject)) > _MOST_RANK:
        return 0.0
    ranks = signs.column("rank")[changed]
    if not ranks.max():
        return 0.0  # rounding explains all
    usual = float(np.median(ranks))
    is_equal = np.abs(ranks - usual) <= max(1.0, _SAME_RANK * usual)
    equality = max(float(is_equal.mean()) - 0.5, 0.0) if usual >= _LEAST_RANK else 0.0
    if (ranks <= signs.column("full_rank")[changed] / 2).mean() > _MOST_RANK:
        tail = max(float(np.quantile(signs.column("tail")[changed], 0.75)), 1e-9)
        decades = max(-float(np.log10(tail)), 0.0)
    else:
        # The median belongs to a change of a larger rank, but the rank shows where nothing is rounded.
        decades = _SEEN if np.median(signs.column("rounding")[changed]) < _UNROUNDED else 0.0
    return decades + _OF_EQUALITY * equality


def _merged_in_words(subject: Subject) -> str:
    changed = _changed(subject)
    ranks = np.sort(subject.signs.column("rank")[changed])
    span = f"{ranks[0]:.0f}" if ranks[0] == ranks[-1] else f"{ranks[0]:.0f} to {ranks[-1]:.0f}"
    return f"the changes of {changed.sum()} of {len(changed)} matrices have rank {span}, apart from rounding"


ABLITERATED = Test("abliterated", _one_direction, _abliterated_in_words, 0.85, 0.02)
EDITED = Test("fact edited", _few_facts, _edited_in_words, 0.5, 0.05)
MERGED = Test("adapter merged", _low_rank, _merged_in_words, 2.6, 0.15)
