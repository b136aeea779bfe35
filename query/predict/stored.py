"""Stores predictions in the atlas."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from query.predict.predict import Prediction
    from query.reader import AtlasReader


def store(atlas: AtlasReader, predictions: Sequence[Prediction]) -> int:
    """Store predictions in the atlas in place of earlier ones for the same models; return the number of models.

    Models that the atlas does not contain are skipped. The query layer only reads: the indexer writes, under its lock.
    ``atlas`` then shows the new state. Raises AtlasError if another process is writing.
    """
    from indexer.publish.stored_answers import PREDICTIONS, store_answers

    now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    stored = 0
    for base in sorted({one.base for one in predictions}):
        keys = {
            row["model"]: row["record_key"]
            for row in atlas.rows("SELECT model, record_key FROM models WHERE base = ?", [base])
        }
        known = [one for one in predictions if one.base == base and one.model in keys]
        lines = [
            {
                "model": one.model,
                "record_key": keys[one.model],
                "rank": rank,
                "dataset": answer.dataset,
                "probability": answer.probability,
                "votes": answer.votes,
                "agreement": one.agreement(answer),
                "authors": answer.authors,
                "vectors": answer.vectors,
                "head": answer.head,
                "declared": answer.declared,
                "calibrated": one.calibrated,
                "models": list(answer.models),
                "representation": one.representation,
                "k": one.k,
                "answered_at": now,
            }
            for one in known
            for rank, answer in enumerate(one.shown_answers(), start=1)
        ]
        if known:
            store_answers(atlas.folder, PREDICTIONS, base, [one.model for one in known], lines)
            stored += len(known)
    if stored:
        atlas.refresh()
    return stored
