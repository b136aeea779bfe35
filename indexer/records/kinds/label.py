"""The label of one model: the first kind, in order, whose test says so."""

from __future__ import annotations

from indexer.records.kinds.arrangement import BROKEN, MOVED, REARRANGED, UNTRAINED
from indexer.records.kinds.change import MOST, Change, Subject, Test
from indexer.records.kinds.directions import ABLITERATED, EDITED, MERGED
from indexer.records.kinds.embedding import ADDED, RESET, added_rows
from indexer.records.kinds.numbers import NOISE, PRUNED, QUANTISED
from indexer.records.record import Record

# Numbers that are zero or on a grid explain matrices without a number left, and columns without one, so that these
# tests come before those of constant and of scaled matrices. Of the changes of low rank the special ones come first. A
# flat spectrum comes after the changes whose errors have one.
TESTS: tuple[Test, ...] = (
    UNTRAINED, MOVED, QUANTISED, PRUNED, BROKEN, REARRANGED, EDITED, ABLITERATED, MERGED, NOISE, RESET, ADDED
)  # fmt: skip
# Stored as codes and scales (``Record.dtype``).
_CODES = ("fp8", "mlx", "int8", "nf4", "fp4")
_HALF = 0.5


def change_of(record: Record) -> Change | None:
    """What was done to the base's weights; None for a full checkpoint whose record has no signs.

    A merge of models is not told from training by one record: ``query lineage`` compares it with others.
    """
    if record.is_adapter:
        return _of_adapter(record)
    if record.signs is None:
        return None
    subject = Subject(record, record.signs)
    probabilities = [(test, test.probability(subject)) for test in TESTS]
    added = f"; {count:,} rows were appended to its token embedding" if (count := added_rows(subject)) else ""
    for test, probability in probabilities:
        if probability >= _HALF:
            return Change(test.kind, probability, test.evidence(subject) + (added if test is not ADDED else ""))
    if record.is_copy:
        sameness = "all that was read of its block matrices is the base's"
        if record.dtype in _CODES:
            return Change("quantised", MOST, f"it is stored in {record.dtype}; apart from that, {sameness}")
        return Change("unchanged", MOST, sameness + added)
    likeliest = max(probabilities, key=lambda pair: pair[1])
    return Change("trained", 1.0 - likeliest[1], f"no sign of any other kind of change{added}")


def _of_adapter(record: Record) -> Change:
    if record.is_copy:
        return Change("untrained", MOST, "an adapter that adds zero")
    return Change("adapter", MOST, f"its files are those of an adapter ({record.adapter_kind})")


# Reasons for which a build skips a model, that are kinds of change by themselves.
OF_SKIPPED = {"not_finite": "broken", "layers_moved": "layers moved"}
