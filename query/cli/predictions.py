"""`query predict` of many models, and what of it is kept in the atlas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from indexer.console.terminal import emit, say
from query.cli.batch import print_batch

if TYPE_CHECKING:
    from query.atlas import Atlas
    from query.batches import Answered
    from query.predict.predict import Prediction


def predict_batch(
    opened: Atlas, names: Sequence[str] | None, base: str | None, store: bool, output: str, options: Mapping[str, Any]
) -> None:
    """The answers for ``names``, or for the undocumented models of a base: all of each, in a table its first one.

    Raises AtlasError, after everything else is done, where a model had no answer.
    """
    from query.predict.many import predict_many, undocumented

    asked = undocumented(opened, base) if names is None else list(names)
    if not asked:
        emit([], output)
        return
    kept: list[Prediction] = []
    found = _noted(predict_many(opened, asked, base=base, are_indexed=names is None, **options), kept)
    try:
        print_batch(found, len(asked), output, lambda one: _rows(one, output))
        if output == "table":
            say("the first answer for each model; every answer: --format jsonl")
    finally:
        # Behind the answers: where another process is writing, what was found out is not lost.
        if store:
            keep_predictions(opened, kept)


def keep_predictions(opened: Atlas, predictions: Sequence[Prediction]) -> None:
    """Keep them, and say how many."""
    from query.predict.stored import store

    kept = store(opened, predictions)
    left = len(predictions) - kept
    beside = f"; {left} of models that it does not hold are not" if left else ""
    say(f"the atlas keeps the predictions for {kept} models{beside}")


def _noted(found: Iterable[Answered[Prediction]], kept: list[Prediction]) -> Iterator[Answered[Prediction]]:
    for one in found:
        if one.answer is not None:
            kept.append(one.answer)
        yield one


def _rows(one: Answered[Prediction], output: str) -> list[dict[str, Any]]:
    prediction = one.answer
    assert prediction is not None
    named = {"asked": one.asked} if one.asked == prediction.model else {"asked": one.asked, "model": prediction.model}
    if output != "table":
        return [{"asked": one.asked, "model": prediction.model} | row for row in prediction.to_rows()]
    from query.predict.stored import agreement

    best = prediction.answers[0]
    return [
        named
        | {
            "dataset": best.dataset,
            "probability": best.probability,
            "agreement": agreement(prediction, best),
            "authors": best.authors,
        }
    ]
