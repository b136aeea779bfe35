"""The advice to read the rest of sampled models, with its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from indexer.errors import AtlasError, Call, Text
from indexer.quantities import duration_in_words, size_in_words


class Readable(Protocol):
    """An open atlas."""

    def rows(self, statement: str, parameters: Sequence[Any] = ..., /) -> list[dict[str, Any]]:
        """The rows of a statement."""


def deepening(atlas: Readable, base: str, models: Sequence[str] = (), *, spectra: bool = False) -> str:
    """Advice to read the rest of ``models``, or of all sampled models of ``base``: the call, its bytes and its time.

    ``spectra``: with all singular values. The time is given if a build of the atlas has read models in full: samples
    are read at a lower rate.
    """
    (row,) = atlas.rows(
        "SELECT sum(block_bytes)::BIGINT AS bytes FROM models "
        "WHERE base = $1 AND \"read\" = 'sample' AND (len($2::VARCHAR[]) = 0 OR list_contains($2, model))",
        [base, list(models)],
    )
    bytes_left = row["bytes"] or 0
    (rate,) = atlas.rows(
        "SELECT sum(bytes_read) / sum(seconds) AS per_second FROM builds WHERE bytes_read > 0 AND seconds > 0 "
        "AND NOT contains(coalesce(spec::VARCHAR, ''), '\"sample\":true')"
    )
    cost = size_in_words(bytes_left)
    if rate["per_second"]:
        cost += f", ≈ {duration_in_words(bytes_left / rate['per_second'])} at {size_in_words(rate['per_second'])}/s"
    arguments = [models[0] if len(models) == 1 else list(models)] if models else []
    keywords = ({} if models else {"base": base}) | ({"spectra": True} if spectra else {})
    return Text(f"Read the rest ({cost}): ", Call("deepen", *arguments, **keywords))


def without_a_full_model(atlas: Readable, base: str, count: int, measure: str, *, spectra: bool = False) -> AtlasError:
    """The error for a study of ``measure`` without a model: all ``count`` models of ``base`` are sampled."""
    of_all = "the only model" if count == 1 else f"all {count:,} models"
    return AtlasError(
        f"Only a sample of rows was read of {of_all} of {base}, which gives no {measure}.",
        deepening(atlas, base, spectra=spectra),
    )
