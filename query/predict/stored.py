"""Predictions that are kept: the lines that the atlas's one writer keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from query.predict.predict import Answer, Prediction
    from query.reader import AtlasReader


def store(atlas: AtlasReader, predictions: Sequence[Prediction]) -> int:
    """Keep predictions in the atlas, in place of what it kept of the same models; of how many models.

    Models that the atlas does not hold are passed over. The query layer only reads: the lines are handed to the
    indexer, which alone writes, behind its lock. ``atlas`` then shows the new generation. Raises AtlasError where
    somebody else is writing.
    """
    from indexer.publish.stored_answers import PREDICTIONS, store_answers

    kept = 0
    for base in sorted({one.base for one in predictions}):
        keys = {
            row["model"]: row["record_key"]
            for row in atlas.rows("SELECT model, record_key FROM models WHERE base = ?", [base])
        }
        held = [one for one in predictions if one.base == base and one.model in keys]
        if held:
            now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
            lines = [line | {"record_key": keys[line["model"]], "answered_at": now} for line in _lines(held)]
            store_answers(atlas.folder, PREDICTIONS, base, [one.model for one in held], lines)
            kept += len(held)
    if kept:
        atlas.refresh()
    return kept


def _lines(predictions: Iterable[Prediction]) -> Iterator[dict[str, Any]]:
    for prediction in predictions:
        for rank, answer in enumerate(prediction.worth_telling(), start=1):
            yield {
                "model": prediction.model,
                "rank": rank,
                "dataset": answer.dataset,
                "probability": answer.probability,
                "votes": answer.votes,
                "agreement": agreement(prediction, answer),
                "authors": answer.authors,
                "vectors": answer.vectors,
                "head": answer.head,
                "declared": answer.declared,
                "calibrated": prediction.calibrated,
                "models": list(answer.models),
                "representation": prediction.representation,
                "k": prediction.k,
            }


def agreement(prediction: Prediction, answer: Answer) -> float:
    """The share of all votes whose voters name a dataset, from 0 to 1; 0 where nobody voted."""
    every = sum(voter.vote for voter in prediction.voters)
    heard = sum(voter.vote for voter in prediction.voters if answer.dataset in voter.datasets)
    return heard / every if every else 0.0
