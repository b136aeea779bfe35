"""The rows of a model's input embedding that moved, from the atlas or from the model's files."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError, ModelError, unreadable
from indexer.records.tokens import KINDS, MISSING, UNSURE, token_rows
from indexer.sources.registry import ModelRef

if TYPE_CHECKING:
    from indexer.profiles.tokenizer import IsolatedTokenizer
    from indexer.records.record import TokenChanges
    from query.models.reader import AtlasReader
    from query.models.resolved import ResolvedModel

COLUMNS = (
    "token_class", "token_codes", "token_is_share", "token_scale", "token_rows", "base_token_rows", "position_rows",
    "has_pairs",
)  # fmt: skip
MOST_ROWS = 1 << 24


@dataclass(frozen=True)
class TokenEvidence:
    """The changes of a model's input embedding.

    Attributes:
        kind: exact, statistical or frozen.
        rows: (n,) the ids of the tokens whose rows were read, ascending.
        codes: (n,) how far each row moved (``indexer.records.tokens``).
        is_share: whether the codes are shares of the changes; see ``TokenChanges``.
        scale: the common factor.
        vocabulary, base_vocabulary: the number of rows of the two embeddings.
        positions, pairs: see ``TokenChanges``.
    """

    kind: str
    rows: NDArray[np.int64]
    codes: NDArray[np.uint8]
    is_share: bool
    scale: float
    vocabulary: int
    base_vocabulary: int
    positions: int | None
    pairs: bool | None

    @property
    def is_met(self) -> NDArray[np.bool_]:
        """(n,) the rows that moved for certain or, in the class statistical, probably."""
        return (self.codes > 0) & (self.codes < UNSURE)

    @property
    def is_untouched(self) -> NDArray[np.bool_]:
        """(n,) the rows that did not move, which is certain only in the class exact."""
        return self.codes == 0

    @property
    def ranks(self) -> NDArray[np.float64]:
        """(n,) the rank of each row among those that moved, from 0 to 1; 0 for the others, NaN for a missing one."""
        return ranks_of(self.codes)


def ranks_of(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(n,) ranks of codes among those of rows that moved, from 0 to 1: comparable over learning rates."""
    values = np.where(codes == UNSURE, 0, codes)
    is_met = (values > 0) & (codes != MISSING)
    distinct, index, counts = np.unique(values[is_met], return_inverse=True, return_counts=True)
    ranks = np.zeros(len(codes))
    if len(distinct):
        ranks[is_met] = ((np.cumsum(counts) - (counts - 1) / 2) / counts.sum())[index]
    return np.where(codes == MISSING, np.nan, ranks)


def evidence_of_changes(changes: TokenChanges | None) -> TokenEvidence | None:
    """The evidence in a record; None if it has none."""
    if changes is None or changes.kind not in KINDS:
        return None
    rows = token_rows(changes.base_vocabulary)
    if changes.codes.shape != rows.shape:
        return None
    return TokenEvidence(
        changes.kind, rows, changes.codes, changes.is_share, changes.scale, changes.vocabulary,
        changes.base_vocabulary, changes.positions, changes.pairs,
    )  # fmt: skip


def evidence_of_row(row: Mapping[str, Any]) -> TokenEvidence | None:
    """The evidence in COLUMNS of the table records; None if there is none. An atlas may come from anybody."""
    if row["token_class"] not in KINDS or not 0 < (row["base_token_rows"] or 0) <= MOST_ROWS:
        return None
    rows = token_rows(row["base_token_rows"])
    try:
        codes = np.frombuffer(base64.b64decode(row["token_codes"] or "", validate=True), dtype=np.uint8)
    except (binascii.Error, ValueError):
        return None
    scale = row["token_scale"]
    if codes.shape != rows.shape or scale is None or not np.isfinite(scale) or scale <= 0:
        return None
    return TokenEvidence(
        row["token_class"], rows, codes, bool(row["token_is_share"]), float(scale), int(row["token_rows"] or 0),
        int(row["base_token_rows"]), row["position_rows"], row["has_pairs"],
    )  # fmt: skip


def token_evidence(atlas: AtlasReader, resolved: ResolvedModel) -> tuple[dict[str, Any] | None, TokenEvidence | None]:
    """The row of an indexed model, and its evidence."""
    row = None
    if resolved.model_id is not None:
        rows = atlas.rows(
            f'SELECT "commit", relation, {", ".join(COLUMNS)} FROM fine_tunes JOIN records USING (model_id) '
            "WHERE model_id = ?",
            [resolved.model_id],
        )
        row = rows[0] if rows else None
    if resolved.record is not None:
        return row, evidence_of_changes(resolved.record.tokens)
    return row, None if row is None else evidence_of_row(row)


def evidence_of_all_rows(
    model: ModelRef, commit: str | None, relation: str, base: ModelRef, base_commit: str,
    sampled: TokenEvidence | None, say: Callable[[str], None],
) -> TokenEvidence | None:  # fmt: skip
    """Compare all rows of two embeddings; None if they cannot be compared.

    ``say`` is first called with the amount to be read. ``sampled``: the stored evidence, for positions and token types.
    Raises AtlasError if the files cannot be read.
    """
    from indexer.deltas.embeddings import compare_embeddings

    try:
        comparison = compare_embeddings(model, commit, relation, base, base_commit, say)
    except ModelError as error:
        raise unreadable(model.id, error) from error
    if comparison is None:
        return None
    changes, vocabulary, base_vocabulary = comparison
    return TokenEvidence(
        changes.kind, np.arange(len(changes.codes)), changes.codes, changes.is_share, changes.scale, vocabulary,
        base_vocabulary, sampled.positions if sampled else None, sampled.pairs if sampled else None,
    )  # fmt: skip


def tokenizer_of_model(reference: ModelRef, commit: str | None, relation: str = "finetune") -> IsolatedTokenizer:
    """The tokenizer next to a model's weights. Raises AtlasError if there is none or it cannot be read."""
    from indexer.profiles.tokenizer import require_tokenizer, tokenizer_at

    try:
        tokenizer = tokenizer_at(reference, commit, relation)
    except ModelError as error:
        raise AtlasError(f"The tokenizer of {reference.id} cannot be read: {error.detail}.", "") from error
    return require_tokenizer(tokenizer, reference.id, "Its words and texts cannot be named.")
