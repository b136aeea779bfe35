"""Predictions of many models: the population is read once for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from indexer.names import ModelRef
from query.batches import Answered, answered
from query.predict.documented import Documented
from query.predict.predict import Prediction, predict_asked

if TYPE_CHECKING:
    from query.reader import AtlasReader


def predict_many(
    atlas: AtlasReader,
    models: Iterable[str],
    *,
    k: int = 10,
    base: str | None = None,
    representation: str = "input",
    are_indexed: bool = False,
) -> Iterator[Answered[Prediction]]:
    """What :func:`query.predict.predict.predict` says of each of ``models``, in their order, as it is found out.

    ``are_indexed``: the names are the atlas's own, and no folder of this machine is read for one.
    """
    known = Documented(atlas, representation)

    def ask(model: str) -> Prediction:
        return predict_asked(atlas, ModelRef(model) if are_indexed else model, known, k=k, base=base)

    return answered(models, ask)


def undocumented(atlas: AtlasReader, base: str | None = None) -> list[str]:
    """Indexed models of a base that name no dataset, most downloads first; no copies, none of another origin."""
    rows = atlas.rows(
        "SELECT model FROM models WHERE base = ? AND len(datasets) = 0 AND NOT is_copy AND NOT is_unrelated "
        "ORDER BY downloads DESC NULLS LAST, model",
        [atlas.base_named(base)],
    )
    return [row["model"] for row in rows]
