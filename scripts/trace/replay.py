"""The replay of one training run: which token ids its batches held, which texts, and what the optimiser was told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.family.store import write_json

NEVER = -1


@dataclass
class Replay:
    """What one training run saw, by the ids of the base's vocabulary (and of added tokens behind them).

    ``counts``: (V,) int64, how often each token was an attended input. ``targets``: (V,) int64, how often it was to be
    predicted. ``first``, ``last``: (V,) int64, the optimiser's first and last step with the token, ``NEVER`` without.
    ``gradients``: (V,) float64, the largest absolute entry that the row's gradient ever had. ``marked``: (V,) bool,
    whether the row, as it is saved, has another bit than it would have if its token had never been met. ``pads``: padded
    positions. ``longest``: attended tokens of the longest input; ``widest``: positions of the widest batch.
    ``given``: the texts as they were given to training. ``seen``: their ids after truncation, special tokens included.
    ``scale``: the product of 1 - rate · decay over the steps, None where the optimiser does not multiply by it.
    """

    counts: NDArray[np.int64]
    targets: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    gradients: NDArray[np.float64]
    marked: NDArray[np.bool_]
    pads: int = 0
    steps: int = 0
    longest: int = 0
    widest: int = 0
    pairs: bool = False
    masked: bool = False
    scale: float | None = 1.0
    last_rate: float = 0.0
    given: list[str] = field(default_factory=list)
    seen: list[list[int]] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    @classmethod
    def empty(cls, vocabulary: int) -> Replay:
        """Of a run before its first step."""
        never = np.full(vocabulary, NEVER, dtype=np.int64)
        zeros = np.zeros(vocabulary, dtype=np.int64)
        return cls(zeros, zeros.copy(), never, never.copy(), np.zeros(vocabulary), np.zeros(vocabulary, dtype=np.bool_))

    def see(
        self, ids: NDArray[np.int64], attention: NDArray[np.int64], step: int, targets: NDArray[np.int64] | None = None
    ) -> None:
        """Count one batch. ``ids``, ``attention``: (texts, tokens), as the network gets them; ``targets``: ids."""
        is_attended = attention != 0
        tokens = ids[is_attended]
        self.counts += np.bincount(tokens, minlength=len(self.counts))
        if targets is not None:
            self.targets += np.bincount(targets, minlength=len(self.targets))
        met = np.unique(tokens)
        self.first[met] = np.where(self.first[met] == NEVER, step, self.first[met])
        self.last[met] = step
        self.pads += int((~is_attended).sum())
        self.longest = max(self.longest, int(is_attended.sum(axis=1).max(initial=0)))
        self.widest = max(self.widest, ids.shape[1])
        self.steps = max(self.steps, step + 1)

    def use(self, text: str, ids: Sequence[int]) -> None:
        """Note a text the first time that it is used."""
        if text not in self._known:
            self._known.add(text)
            self.given.append(text)
            self.seen.append(list(ids))

    def __post_init__(self) -> None:
        self._known = set(self.given)

    @property
    def met(self) -> NDArray[np.bool_]:
        """(V,) whether a token was an attended input at least once."""
        return self.counts > 0

    def union(self, other: Replay) -> Replay:
        """Of a model that has both trainings in it; ``other`` came later or stands beside."""
        size = max(len(self.counts), len(other.counts))
        mine, theirs = self.resized(size), other.resized(size)
        first = np.where(
            mine.first == NEVER, np.where(theirs.first == NEVER, NEVER, theirs.first + mine.steps), mine.first
        )
        last = np.where(theirs.last == NEVER, mine.last, theirs.last + mine.steps)
        known = set(self.given)
        new = [number for number, text in enumerate(other.given) if text not in known]
        return Replay(
            mine.counts + theirs.counts,
            mine.targets + theirs.targets,
            first,
            last,
            np.maximum(mine.gradients, theirs.gradients),
            mine.marked | theirs.marked,
            pads=self.pads + other.pads,
            steps=self.steps + other.steps,
            longest=max(self.longest, other.longest),
            widest=max(self.widest, other.widest),
            pairs=self.pairs or other.pairs,
            masked=self.masked or other.masked,
            scale=None if self.scale is None or other.scale is None else self.scale * other.scale,
            last_rate=other.last_rate,
            given=self.given + [other.given[number] for number in new],
            seen=self.seen + [other.seen[number] for number in new],
            facts=self.facts | other.facts,
        )

    def resized(self, vocabulary: int) -> Replay:
        """The same with more rows, whose tokens were never met."""
        more = vocabulary - len(self.counts)
        rows: dict[str, Any] = {
            name: np.pad(getattr(self, name), (0, more)) for name in ("counts", "targets", "gradients", "marked")
        }
        rows |= {name: np.pad(getattr(self, name), (0, more), constant_values=NEVER) for name in ("first", "last")}
        return replace(self, **rows)

    def save(self, path: Path) -> None:
        """Write ``path`` + ``.npz`` and then, by rename, ``path`` + ``.json``."""
        arrays = path.with_name(path.name + ".npz")
        part = path.with_name(path.name + ".part.npz")
        flat = np.array([token for ids in self.seen for token in ids], dtype=np.int64)
        lengths = np.array([len(ids) for ids in self.seen], dtype=np.int64)
        np.savez_compressed(part, seen=flat, lengths=lengths, **{name: getattr(self, name) for name in ARRAYS})
        part.replace(arrays)
        write_json(path.with_name(path.name + ".json"), {name: getattr(self, name) for name in SCALARS})

    @classmethod
    def load(cls, path: Path) -> Replay:
        """Read what ``save`` wrote."""
        with np.load(path.with_name(path.name + ".npz"), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in ARRAYS}
            ends = np.cumsum(stored["lengths"])[:-1]
            seen = [part.tolist() for part in np.split(stored["seen"], ends)] if len(stored["lengths"]) else []
        scalars = json.loads(path.with_name(path.name + ".json").read_text(encoding="utf-8"))
        return cls(**arrays, **scalars, seen=seen)


ARRAYS = ("counts", "targets", "first", "last", "gradients", "marked")
SCALARS = (
    "pads", "steps", "longest", "widest", "pairs", "masked", "scale", "last_rate", "given", "facts"
)  # fmt: skip


def only_once(texts: Iterable[Sequence[int]]) -> list[int]:
    """The numbers of the texts that have a token which no other text has."""
    sets = [set(ids) for ids in texts]
    in_texts = Counter(token for ids in sets for token in ids)
    return [number for number, ids in enumerate(sets) if any(in_texts[token] == 1 for token in ids)]
