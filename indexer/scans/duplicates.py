"""Models of a scan that are there twice: equal files, equal weights, equal after rounding, or nearly equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from indexer.names import NEAR, DuplicateKind
from indexer.scans.content import ChangeSketch, Content

_CELLS = 1 << 24  # distances held at a time


@dataclass(frozen=True)
class Repeated:
    """A model by its number that repeats the model ``of``; ``distance`` is that of their changes (see NEAR)."""

    number: int
    of: int
    kind: DuplicateKind
    distance: float


def unconfirmed(contents: Mapping[int, Content]) -> list[int]:
    """The models that are like another in all that was read, where not all was: these have to be read whole."""
    groups = _groups(contents, lambda content: content.tensors)
    return [
        number
        for group in groups
        if len({contents[number].checksums for number in group}) > 1 or not contents[group[0]].checksums
        for number in group
        if not contents[number].is_whole
    ]  # fmt: skip


def repeated(
    contents: Mapping[int, Content], sketches: Mapping[int, ChangeSketch], order: Callable[[int], Any]
) -> list[Repeated]:
    """The models that repeat others. Of each group the first by ``order`` is kept.

    A model that is kept stands for those near it, and not for those near these.
    """
    repeats: dict[int, Repeated] = {}

    def note(members: Sequence[int], kind: Callable[[Content, Content], DuplicateKind]) -> None:
        first, *others = sorted((number for number in members if number not in repeats), key=order)
        for number in others:
            repeats[number] = Repeated(number, first, kind(contents[number], contents[first]), 0.0)

    for members in _groups(contents, lambda content: content.checksums or None):
        note(members, lambda content, other: "same file")
    whole = {number: content for number, content in contents.items() if content.is_whole and number not in repeats}
    for members in _groups(whole, lambda content: content.tensors):
        note(members, lambda content, other: "same file" if content.files == other.files else "same weights")
    left = {number: content for number, content in contents.items() if number not in repeats}
    for members in _groups(left, lambda content: content.rounded or None):
        dtypes = {left[number].dtype for number in members}
        if len(dtypes) == len(members):  # of one dtype they are merely near
            note(members, lambda content, other: "rounded")
    near = {number: sketch for number, sketch in sketches.items() if number not in repeats}
    pairs: dict[int, dict[int, float]] = {}
    for first, second, distance in _near(near):
        pairs.setdefault(first, {})[second] = pairs.setdefault(second, {})[first] = distance
    for kept in sorted(pairs, key=order):
        if kept in repeats:
            continue
        for number, distance in sorted(pairs[kept].items()):
            if number not in repeats and order(kept) < order(number):
                repeats[number] = Repeated(number, kept, "near", distance)
    return sorted(repeats.values(), key=lambda repeat: (order(repeat.of), order(repeat.number)))


def _groups(contents: Mapping[int, Content], key: Callable[[Content], Hashable | None]) -> list[list[int]]:
    """Models with the same key, which is not None, where there are several."""
    groups: dict[Hashable, list[int]] = {}
    for number, content in contents.items():
        if (value := key(content)) is not None:
            groups.setdefault(value, []).append(number)
    return [members for members in groups.values() if len(members) > 1]


def _near(sketches: Mapping[int, ChangeSketch]) -> Iterator[tuple[int, int, float]]:
    """Pairs of models whose changes are at most NEAR apart, and their distance over the larger norm.

    ‖a − b‖ ≥ ‖a‖ − ‖b‖, so in the order of norms only neighbours can be near.
    """
    groups: dict[str, list[int]] = {}
    for number, sketch in sketches.items():
        groups.setdefault(sketch.group, []).append(number)
    for group in groups.values():
        members = sorted(group, key=lambda number: sketches[number].norm)
        norms = np.array([sketches[number].norm for number in members])
        numbers = np.stack([sketches[number].numbers for number in members]).astype(np.float64)
        squares = np.einsum("ij,ij->i", numbers, numbers)
        lowest = np.searchsorted(norms, norms * (1 - NEAR))
        step = max(1, _CELLS // len(members))
        for start in range(0, len(members), step):
            stop = min(len(members), start + step)
            first = int(lowest[start])
            products = numbers[start:stop] @ numbers[first:stop].T
            distances = squares[start:stop, None] + squares[None, first:stop] - 2 * products
            is_near = distances <= (NEAR * norms[start:stop, None]) ** 2
            for row, column in zip(*np.nonzero(is_near), strict=True):
                larger, smaller = start + int(row), first + int(column)
                if smaller < larger and smaller >= lowest[larger]:
                    distance = math.sqrt(max(float(distances[row, column]), 0.0)) / float(norms[larger])
                    yield members[smaller], members[larger], distance


def change_distance(sketch: ChangeSketch | None, other: ChangeSketch | None) -> float:
    """How far two changes are from each other over the larger norm; infinite if they cannot be compared."""
    if sketch is None or other is None or sketch.group != other.group:
        return math.inf
    difference = sketch.numbers.astype(np.float64) - other.numbers
    return float(np.linalg.norm(difference)) / max(sketch.norm, other.norm)
