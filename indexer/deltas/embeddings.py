"""The rows of a model's embeddings that are read: of the tokens, the positions and the token types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.deltas.rounding import narrowest_dtype
from indexer.deltas.stored_base import POSITIONS, TOKEN_TYPES, TOKENS
from indexer.records.record import TokenChanges
from indexer.records.tokens import MISSING, Decay, judge_rows, row_changes, token_stripes
from indexer.weights.checkpoint import Checkpoint
from indexer.weights.stored_tensor import READABLE

_POSITION_NAMES = ("position_embeddings", "wpe", "embed_positions", "position_embedding")
_TYPE_NAMES = ("token_type_embeddings",)
# Positions are read in two steps: every so many rows, then all rows of the piece in which the last one moved.
_STEP = 64
_MOST_POSITIONS = 1 << 15
_MOST_TYPES = 64

# Classes whose head predicts tokens; it is tied to the embedding where the checkpoint has no matrix for it.
_TOKEN_HEADS = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration", "ForPreTraining")
_HEAD_MATRICES = ("lm_head.weight", "embed_out.weight", "output.weight", "decoder.weight", "output_projection.weight")

Stripes = dict[str, list[range]]
ReadStripes = Callable[[Mapping[str, Sequence[range]]], Mapping[str, torch.Tensor]]


def embedding_names(checkpoint: Checkpoint) -> dict[str, str]:
    """The names of the tensors that ``checkpoint`` has, by TOKENS, POSITIONS and TOKEN_TYPES."""
    tokens = checkpoint.token_embedding
    if tokens is None:
        return {}
    found = {TOKENS: tokens}
    width = checkpoint.tensors[tokens].shape[1]
    folder = tokens.removesuffix(".weight").rpartition(".")[0]
    prefixes = [f"{folder}." if folder else "", f"{folder}.encoder." if folder else "encoder."]
    for kind, names, most in ((POSITIONS, _POSITION_NAMES, _MOST_POSITIONS), (TOKEN_TYPES, _TYPE_NAMES, _MOST_TYPES)):
        for name in (f"{prefix}{name}.weight" for prefix in prefixes for name in names):
            info = checkpoint.tensors.get(name)
            if info is not None and info.dtype in READABLE and len(info.shape) == 2:
                if info.shape[1] == width and 1 < info.shape[0] <= most:
                    found[kind] = name
                    break
    return found


def base_stripes(kind: str, rows: int) -> tuple[range, ...]:
    """The rows of an embedding of a base that its file holds: of tokens those that are read, of others all."""
    return token_stripes(rows) if kind == TOKENS else (range(rows),)


def is_head_tied(checkpoint: Checkpoint) -> bool:
    """Whether the model predicts tokens with its input embedding."""
    classes = checkpoint.config.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
    return first.endswith(_TOKEN_HEADS) and not any(name.endswith(_HEAD_MATRICES) for name in checkpoint.tensors)


class EmbeddingReader:
    """Reads the embeddings of one full fine-tune and compares them with ``base``, the base's rows by kind."""

    def __init__(self, checkpoint: Checkpoint, base: Mapping[str, torch.Tensor], base_vocabulary: int) -> None:
        self._checkpoint, self._base, self._base_vocabulary = checkpoint, base, base_vocabulary
        self._names = {
            kind: name
            for kind, name in embedding_names(checkpoint).items()
            if kind in base and checkpoint.tensors[name].shape[1] == base[kind].shape[1]
        }
        if TOKENS not in self._names:
            self._names = {}
        self._kinds = {name: kind for kind, name in self._names.items()}
        self._rows: dict[str, torch.Tensor] = {}
        self._stripes = self._first_stripes()

    def stripes(self) -> Stripes:
        """The rows to read first, by the name of their tensor. A model may have more tokens than the base, or fewer."""
        return self._stripes

    def add(self, name: str, rows: torch.Tensor) -> None:
        """The rows of ``stripes`` of one tensor."""
        self._rows[self._kinds[name]] = rows

    def changes(self, read: ReadStripes) -> TokenChanges | None:
        """What happened to the rows; None if they cannot be compared. ``read`` gets the rest of the positions."""
        if TOKENS not in self._rows:
            return None
        rows, base = self._rows[TOKENS], self._base[TOKENS]
        dtype = str(narrowest_dtype(rows)).removeprefix("torch.")
        compared = row_changes(rows, base[: len(rows)], dtype, tied=is_head_tied(self._checkpoint))
        if compared is None:
            return None
        found, decay = compared
        codes = np.full(len(base), MISSING, dtype=np.uint8)
        codes[: len(rows)] = found.codes
        pairs = None
        if TOKEN_TYPES in self._rows:
            moved = self._moved(TOKEN_TYPES, range(len(self._rows[TOKEN_TYPES])), self._rows[TOKEN_TYPES], decay)
            pairs = None if moved is None else bool(moved[1])
        return TokenChanges(
            codes,
            found.scale,
            vocabulary=self._checkpoint.tensors[self._names[TOKENS]].shape[0],
            base_vocabulary=self._base_vocabulary,
            kind=found.kind,
            is_share=found.is_share,
            positions=self._positions(read, decay),
            pairs=pairs,
        )

    def _first_stripes(self) -> Stripes:
        found: Stripes = {}
        for kind, name in self._names.items():
            end = min(len(self._base[kind]), self._checkpoint.tensors[name].shape[0])
            if kind == TOKENS:
                mine = self._checkpoint.tensors[name].shape[0]
                parts = [range(part.start, min(part.stop, mine)) for part in token_stripes(self._base_vocabulary)]
                found[name] = [part for part in parts if part]
            elif kind == POSITIONS:
                found[name] = [range(row, row + 1) for row in range(_STEP - 1, end, _STEP)] or [range(end)]
            elif end > 1:
                found[name] = [range(end)]
        return {name: parts for name, parts in found.items() if parts}

    def _positions(self, read: ReadStripes, decay: Decay | None) -> int | None:
        """How many rows of the position embeddings there are up to the last that moved; None if that is not known.

        Positions are met from the first on, so the rows that moved are followed by those that did not.
        """
        if POSITIONS not in self._rows:
            return None
        name = self._names[POSITIONS]
        end = min(len(self._base[POSITIONS]), self._checkpoint.tensors[name].shape[0])
        places = [row for part in self._stripes[name] for row in part]
        rows = self._rows[POSITIONS]
        moved = self._moved(POSITIONS, places, rows, decay)
        if moved is None:
            return None
        start = max((place + 1 for place, has_moved in zip(places, moved, strict=True) if has_moved), default=0)
        more = [row for row in range(start, min(start + _STEP, end)) if row not in places]
        if more:
            rows = torch.cat([rows, read({name: [range(more[0], more[-1] + 1)]})[name]])
            places += more
            moved = self._moved(POSITIONS, places, rows, decay)
        if moved is None or not moved.any():
            return None
        return 1 + max(place for place, has_moved in zip(places, moved, strict=True) if has_moved)

    def _moved(
        self, kind: str, places: Sequence[int], rows: torch.Tensor, decay: Decay | None
    ) -> NDArray[np.bool_] | None:
        """Which of the rows in ``places`` moved, more than by the tokens' ``decay``; None if that is not known."""
        base = self._base[kind][list(places)]
        dtype = str(narrowest_dtype(rows)).removeprefix("torch.")
        if decay is None:
            # Of a tied head every token moved. Its positions are told apart only where nothing decayed.
            decay = Decay(1.0, dtype)
            if not (judge_rows(rows, base, decay).is_untouched).any():
                return None
        elif decay.dtype != dtype:
            return None
        judged = judge_rows(rows, base, decay)
        return None if judged.is_unsure.any() else ~judged.is_untouched
