"""Where the groups of a map lie, and where there is room to write their names beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.float64]

_POINTS, _CENTRES = 4000, 400  # points of a group that are looked at, and that are tried as the middle of its heap
_WIDEST = 0.13  # of the map's longer side: the radius beyond which a group is no heap
_FEWEST = 2  # points of a heap
_DIRECTIONS = 16
_FARTHEST = 0.1  # of the longer side, between a heap and its name
_STEPS = 7


@dataclass(frozen=True)
class Heap:
    """The smallest disc that holds half of a group's points: its middle and its radius, in the map's own units."""

    x: float
    y: float
    radius: float


def heaps(places: Places, codes: Sequence[int], count: int) -> tuple[Heap | None, ...]:
    """The heaps of groups 0 … ``count`` - 1; None for one that is scattered, or that is a single point.

    ``places`` (n, 2); ``codes`` the group of each point. The disc is the two-dimensional shorth: it does not move when
    less than half of a group lies elsewhere, as a mean would.
    """
    span = float(np.ptp(places, axis=0).max()) if len(places) else 0.0
    of = np.asarray(codes)
    return tuple(_heap(places[of == group], span) for group in range(count))


def _heap(points: Places, span: float) -> Heap | None:
    if len(points) < _FEWEST or not span:
        return None
    points = points[:: max(1, len(points) // _POINTS)]
    half = max(_FEWEST, -(-len(points) // 2))
    tried = points[:: max(1, len(points) // _CENTRES)]
    distances = np.hypot(*(tried[:, None, :] - points[None, :, :]).transpose(2, 0, 1))
    radii = np.partition(distances, half - 1, axis=1)[:, half - 1]
    best = int(radii.argmin())
    if radii[best] > _WIDEST * span:
        return None
    middle = points[distances[best] <= radii[best]].mean(axis=0)
    return Heap(float(middle[0]), float(middle[1]), float(radii[best]))


def room_for_names(
    points: Places,
    codes: Sequence[int],
    found: Sequence[Heap | None],
    sizes: Sequence[tuple[float, float]],
    frame: tuple[float, float, float, float],
    gap: float,
) -> list[tuple[float, float] | None]:
    """The middle of each name's box where there is room for it beside its heap, else None; the largest group first.

    All in one unit of the picture: ``points`` (n, 2), ``found`` heaps, ``sizes`` (width, height) of the names and
    ``frame`` (left, bottom, right, top) that they must stay in. A box keeps ``gap`` from every point and name, and is
    nearer to a point of its own group than to any other: a name that could be read as its neighbour's is not written.
    """
    of = np.asarray(codes)
    taken: list[tuple[float, float, float, float]] = []
    reach = _FARTHEST * max(frame[2] - frame[0], frame[3] - frame[1])
    answers: list[tuple[float, float] | None] = []
    for group, (heap, (width, height)) in enumerate(zip(found, sizes, strict=True)):
        answer = None
        for x, y in _candidates(heap, width, height, reach) if heap else ():
            if not (frame[0] <= x - width / 2 and x + width / 2 <= frame[2]):
                continue
            if not (frame[1] <= y - height / 2 and y + height / 2 <= frame[3]):
                continue
            if any(abs(x - a) < (width + w) / 2 + gap and abs(y - b) < (height + h) / 2 + gap for a, b, w, h in taken):
                continue
            away = np.hypot(*np.maximum(np.abs(points - (x, y)) - (width / 2, height / 2), 0).T)
            own = away[of == group].min()
            if away.min() >= gap and own <= away.min():
                answer = (float(x), float(y))
                taken.append((x, y, width, height))
                break
        answers.append(answer)
    return answers


def _candidates(heap: Heap, width: float, height: float, reach: float) -> list[tuple[float, float]]:
    """Middles of boxes around a heap, the nearest first; at one distance above and below before the sides."""
    angles = np.pi / 2 + np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS * 2
    order = sorted(angles, key=lambda angle: (round(abs(np.cos(angle)), 6), -np.sin(angle)))
    found = []
    for step in range(1, _STEPS + 1):
        distance = heap.radius * min(1.0, step / 2) + reach * step / _STEPS
        found += [
            (heap.x + np.cos(angle) * (distance + width / 2), heap.y + np.sin(angle) * (distance + height / 2))
            for angle in order
        ]
    return found
