"""Shared code of the representations that are made from rows of the input embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from indexer.records.representations.representation import Base, Representation
from indexer.records.tokens import EXACT, STATISTICAL, token_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from indexer.records.record import Record


@dataclass(frozen=True, kw_only=True)
class OfEmbedding(Representation):
    """Made from how far the rows of the input embedding moved."""

    def mismatch(self, record: Record, base: Base) -> str:
        """Whether the rows are those of another embedding than the base's."""
        if record.tokens is None or record.tokens.base_vocabulary == base.vocabulary:
            return ""
        return f"the rows of its input embedding are not those of {base.base}"

    def codes_of(self, record: Record) -> NDArray[np.uint8] | None:
        """The codes of the rows that are read today (``records.tokens``); None if none is known to have moved."""
        tokens = record.tokens
        if tokens is None or tokens.kind not in (EXACT, STATISTICAL) or record.is_copy:
            return None
        return tokens.codes if tokens.codes.shape == (len(token_rows(tokens.base_vocabulary)),) else None
