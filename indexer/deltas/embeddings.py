"""Rows of a model's embeddings, compared with the base's: of the tokens, the positions and the token types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.checkpoint import Checkpoint, open_checkpoint
from indexer.checkpoints.stored_tensor import READABLE
from indexer.deltas.rounding import narrowest_name
from indexer.deltas.stored_base import POSITIONS, TOKEN_TYPES, TOKENS
from indexer.network.session import install_session
from indexer.quantities import size_in_words
from indexer.records.decay import Decay, classify_rows
from indexer.records.record import TokenChanges
from indexer.records.tokens import MISSING, RowChanges, row_changes, token_stripes
from indexer.sources.registry import ModelRef

_POSITION_NAMES = ("position_embeddings", "wpe", "embed_positions", "position_embedding")
_TYPE_NAMES = ("token_type_embeddings",)
# Positions are read in two steps: one row of this many, then all rows between the last of them that moved and the next.
_STEP = 64
_MOST_POSITIONS = 1 << 15
_MOST_TYPES = 64
# A row was written anew if its cosine with the base's row is at most this; rows of padding are short.
_NOTHING_IN_COMMON, _LEAST_LENGTH = 0.25, 0.1

# Classes whose head predicts tokens. It is tied to the embedding if the checkpoint has no matrix for it.
_TOKEN_HEADS = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration", "ForPreTraining")
_HEAD_MATRICES = ("lm_head.weight", "embed_out.weight", "output.weight", "decoder.weight", "output_projection.weight")

Stripes = dict[str, list[range]]


def embedding_names(checkpoint: Checkpoint) -> dict[str, str]:
    """The names of the tensors that ``checkpoint`` has, by TOKENS, POSITIONS and TOKEN_TYPES."""
    tokens = checkpoint.token_embedding
    if tokens is None:
        return {}
    names_by_kind = {TOKENS: tokens}
    width = checkpoint.tensors[tokens].shape[1]
    folder = tokens.removesuffix(".weight").rpartition(".")[0]
    prefixes = [f"{folder}." if folder else "", f"{folder}.encoder." if folder else "encoder."]
    for kind, names, most in ((POSITIONS, _POSITION_NAMES, _MOST_POSITIONS), (TOKEN_TYPES, _TYPE_NAMES, _MOST_TYPES)):
        for name in (f"{prefix}{name}.weight" for prefix in prefixes for name in names):
            info = checkpoint.tensors.get(name)
            if info is not None and info.dtype in READABLE and len(info.shape) == 2:
                if info.shape[1] == width and 1 < info.shape[0] <= most:
                    names_by_kind[kind] = name
                    break
    return names_by_kind


def base_stripes(kind: str, rows: int) -> tuple[range, ...]:
    """The rows of a base's embedding that its file holds: sampled rows of the tokens, all rows of the others."""
    return token_stripes(rows) if kind == TOKENS else (range(rows),)


def is_head_tied(checkpoint: Checkpoint) -> bool:
    """Whether the model predicts tokens with its input embedding."""
    classes = checkpoint.config.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
    return first.endswith(_TOKEN_HEADS) and not any(name.endswith(_HEAD_MATRICES) for name in checkpoint.tensors)


class EmbeddingReader:
    """Compares the embeddings of one full fine-tune with ``base``, the base's rows by kind.

    ``stripes``: the rows to read first, by the name of their tensor. A model may have more tokens than the base, or
    fewer. ``reset_tokens``: see ``indexer.records.signs.Signs``; known once changes were asked for.
    """

    def __init__(self, checkpoint: Checkpoint, base: Mapping[str, torch.Tensor], base_vocabulary: int) -> None:
        self._checkpoint, self._base, self._base_vocabulary = checkpoint, base, base_vocabulary
        self.reset_tokens: int | None = None
        self._names = {
            kind: name
            for kind, name in embedding_names(checkpoint).items()
            if kind in base and checkpoint.tensors[name].shape[1] == base[kind].shape[1]
        }
        if TOKENS not in self._names:
            self._names = {}
        self.stripes = self._first_stripes()

    def changes(self, rows_by_name: Mapping[str, torch.Tensor]) -> TokenChanges | None:
        """The changes of the rows; None if they cannot be compared.

        ``rows_by_name``: the rows of ``stripes``, by the name of their tensor. More rows of the positions may be read.
        """
        rows_by_kind = {kind: rows_by_name[name] for kind, name in self._names.items() if name in rows_by_name}
        if TOKENS not in rows_by_kind:
            return None
        rows, base = rows_by_kind[TOKENS], self._base[TOKENS]
        self.reset_tokens = _reset_rows(rows.float(), base[: len(rows)].float())
        compared = row_changes(rows, base[: len(rows)], narrowest_name(rows), tied=is_head_tied(self._checkpoint))
        if compared is None:
            return None
        changes, decay = compared
        codes = np.full(len(base), MISSING, dtype=np.uint8)
        codes[: len(rows)] = changes.codes
        pairs = None
        if (types := rows_by_kind.get(TOKEN_TYPES)) is not None:
            moved = self._moved(TOKEN_TYPES, range(len(types)), types, decay)
            pairs = None if moved is None else bool(moved[1])
        positions = rows_by_kind.get(POSITIONS)
        return TokenChanges(
            codes,
            changes.scale,
            vocabulary=self._checkpoint.tensors[self._names[TOKENS]].shape[0],
            base_vocabulary=self._base_vocabulary,
            kind=changes.kind,
            is_share=changes.is_share,
            positions=None if positions is None else self._positions(positions, decay),
            pairs=pairs,
        )

    def _first_stripes(self) -> Stripes:
        stripes: Stripes = {}
        for kind, name in self._names.items():
            end = min(len(self._base[kind]), self._checkpoint.tensors[name].shape[0])
            if kind == TOKENS:
                vocabulary = self._checkpoint.tensors[name].shape[0]
                parts = [range(part.start, min(part.stop, vocabulary)) for part in token_stripes(self._base_vocabulary)]
                stripes[name] = [part for part in parts if part]
            elif kind == POSITIONS:
                stripes[name] = [range(row, row + 1) for row in range(_STEP - 1, end, _STEP)] or [range(end)]
            elif end > 1:
                stripes[name] = [range(end)]
        return {name: parts for name, parts in stripes.items() if parts}

    def _positions(self, rows: torch.Tensor, decay: Decay | None) -> int | None:
        """How many rows the position embeddings have up to the last that moved; None if that is unknown.

        Texts use positions from the first on, so the rows that moved are followed by those that did not.
        """
        name = self._names[POSITIONS]
        end = min(len(self._base[POSITIONS]), self._checkpoint.tensors[name].shape[0])
        positions = [row for part in self.stripes[name] for row in part]
        moved = self._moved(POSITIONS, positions, rows, decay)
        if moved is None:
            return None
        start = max(
            (position + 1 for position, has_moved in zip(positions, moved, strict=True) if has_moved), default=0
        )
        more = [row for row in range(start, min(start + _STEP, end)) if row not in positions]
        if more:
            ((_, more_rows),) = self._checkpoint.stripes({name: [range(more[0], more[-1] + 1)]})
            rows = torch.cat([rows, more_rows])
            positions += more
            moved = self._moved(POSITIONS, positions, rows, decay)
        if moved is None or not moved.any():
            return None
        return 1 + max(position for position, has_moved in zip(positions, moved, strict=True) if has_moved)

    def _moved(
        self, kind: str, positions: Sequence[int], rows: torch.Tensor, decay: Decay | None
    ) -> NDArray[np.bool_] | None:
        """Which of the rows ``positions`` moved, more than by the tokens' ``decay``; None if that is unknown."""
        base = self._base[kind][list(positions)]
        dtype = narrowest_name(rows)
        if decay is None:
            # A tied head moves every token. Positions that moved can be recognised only if nothing decayed.
            decay = Decay(1.0, dtype)
            if not (classify_rows(rows, base, decay).is_untouched).any():
                return None
        elif decay.dtype != dtype:
            return None
        judged = classify_rows(rows, base, decay)
        return None if judged.is_unsure.any() else ~judged.is_untouched


def _reset_rows(rows: torch.Tensor, base: torch.Tensor) -> int | None:
    """How many rows were written anew: they have nothing in common with the base's, which are not zero.

    None if most rows are like that: then it is another embedding.
    """
    lengths, base_lengths = (torch.linalg.vector_norm(matrix, dim=1) for matrix in (rows, base))
    is_there = base_lengths > _LEAST_LENGTH * base_lengths.median()
    cosines = (rows * base).sum(dim=1) / (lengths * base_lengths).clamp_min(torch.finfo(torch.float32).tiny)
    is_reset = is_there & ~(cosines > _NOTHING_IN_COMMON)
    count = int(is_reset.sum())
    return None if 2 * count > int(is_there.sum()) else count


def compare_embeddings(
    model: ModelRef, commit: str | None, relation: str, base: ModelRef, base_commit: str, say: Callable[[str], None]
) -> tuple[RowChanges, int, int] | None:
    """Compare all rows of two input embeddings; an atlas holds only some of them. Nothing is stored.

    Returns the changes of the rows that both have, and the numbers of rows of the model and of the base; None if they
    cannot be compared. ``say`` is called first, with how much is read. Raises ModelError if a file cannot be read.
    """
    install_session()
    with closing(open_checkpoint(model, commit=commit, relation=relation)) as checkpoint:
        name = checkpoint.token_embedding
        with closing(open_checkpoint(base, commit=base_commit)) as base_checkpoint:
            base_name = base_checkpoint.token_embedding
            if name is None or base_name is None:
                return None
            infos = checkpoint.tensors[name], base_checkpoint.tensors[base_name]
            if infos[0].shape[1] != infos[1].shape[1]:
                return None
            sizes = [size_in_words(info.nbytes) for info in infos]
            say(f"reading all of two input embeddings: {sizes[0]} of the model's and {sizes[1]} of the base's")
            count = min(info.shape[0] for info in infos)
            ((_, rows),) = checkpoint.stripes({name: [range(count)]})
            ((_, base_rows),) = base_checkpoint.stripes({base_name: [range(count)]})
            compared = row_changes(rows, base_rows, narrowest_name(rows), tied=is_head_tied(checkpoint))
    return None if compared is None else (compared[0], infos[0].shape[0], infos[1].shape[0])
