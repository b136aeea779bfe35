"""How probable a step is: calibrated on forests whose truth is known, confirmed on others (docs/lineage.md)."""

from __future__ import annotations

import math

from query.lineage.links import CONTINUED, MERGE, RELATED, TUNED, Link
from query.lineage.thresholds import Limits

# From here on a step counts as found: below, no card is said to contradict it or to keep it back.
SURE = 0.9

_LIMITS = Limits()

# Of every kind of evidence, how many steps of the forests that calibrate were right, and how many were told.
COUNTS = {
    "exact": (101, 102),
    "dropped entries": (51, 51),
    "inherited": (119, 122),
    "few inherited": (10, 10),
    "size alone": (5, 6),
    "run alone": (4, 28),
    "record alone": (0, 0),
    "either way": (1, 2),
    "base": (96, 100),
}
# Of a step that sizes and angles tell: 1 / (1 + exp(-SLOPE · (share of words − MIDDLE))).
SLOPE, MIDDLE = 25.0, 0.78


def probability(link: Link) -> float:
    """The probability that the step is right: that its parent is one, or that no model of the atlas is.

    Where sizes and angles told the step, it follows from the share of words that changed more evenly from the parent
    than from the base; else it is the share that was right of the steps on such evidence.
    """
    which = grade(link)
    if which == "words":
        return 1 / (1 + math.exp(SLOPE * (MIDDLE - link.signals["flatter"])))
    right, told = COUNTS[which]
    return (right + 0.5) / (told + 1)  # Jeffreys: few cases make no certainty


def exact() -> float:
    """The same of what is told by equal weights."""
    right, told = COUNTS["exact"]
    return (right + 0.5) / (told + 1)


def grade(link: Link) -> str:
    """What kind of evidence a step stands on: "words" or a key of COUNTS."""
    if link.kind == TUNED:
        return "base"
    if link.kind not in RELATED:
        if not link.direction:
            return "either way"
        return "dropped entries" if link.kind == MERGE and link.method == "ties or dare" else "exact"
    if not link.signals:
        return "record alone"
    if link.signals["equal"] or link.signals.get("shared", 0) >= _LIMITS.shared:
        return "inherited" if link.proven else "few inherited"
    if link.signals["words"] >= _LIMITS.flat_rows:
        return "words"
    return "size alone" if link.kind == CONTINUED else "run alone"
