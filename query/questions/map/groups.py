"""The discs that the groups of a map fill, and positions for the names of the groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.float64]
# x, y and radius of the smallest disc that contains half of a group's points, in the map's own units.
Disc = tuple[float, float, float]

_POINTS, _CENTRES = 4000, 400  # points of a group that are used, and that are tried as the centre of its disc
_WIDEST = 0.13  # of the map's longer side: with a larger radius, a group is scattered
_FEWEST = 2  # points of a group with a disc
_DIRECTIONS = 16
_FARTHEST = 0.1  # of the longer side, between a disc and its name
_STEPS = 7


def group_discs(positions: Positions, codes: Sequence[int], count: int) -> tuple[Disc | None, ...]:
    """The discs of groups 0 … ``count`` - 1; None for a group that is scattered or has a single point.

    ``positions`` (n, 2); ``codes``: the group of each point. The disc is the two-dimensional shorth: unlike a mean, it
    does not move if less than half of a group lies elsewhere.
    """
    span = float(np.ptp(positions, axis=0).max()) if len(positions) else 0.0
    group_of = np.asarray(codes)
    discs: list[Disc | None] = []
    for group in range(count):
        points = positions[group_of == group]
        if len(points) < _FEWEST or not span:
            discs.append(None)
            continue
        points = points[:: max(1, len(points) // _POINTS)]
        half = max(_FEWEST, -(-len(points) // 2))
        centres = points[:: max(1, len(points) // _CENTRES)]
        distances = np.hypot(*(centres[:, None, :] - points[None, :, :]).transpose(2, 0, 1))
        radii = np.partition(distances, half - 1, axis=1)[:, half - 1]
        best = int(radii.argmin())
        x, y = points[distances[best] <= radii[best]].mean(axis=0)
        is_scattered = radii[best] > _WIDEST * span
        discs.append(None if is_scattered else (float(x), float(y), float(radii[best])))
    return tuple(discs)


def room_for_names(
    points: Positions,
    codes: Sequence[int],
    discs: Sequence[Disc | None],
    sizes: Sequence[tuple[float, float]],
    frame: tuple[float, float, float, float],
    gap: float,
) -> list[tuple[float, float] | None]:
    """The centre of each name's box if there is room for it next to its disc, else None; the largest group first.

    A box keeps a ``gap`` to every point and name, and is closer to a point of its own group than to any other, so that
    it cannot be read as another group's name.

    Args:
        points: (n, 2) positions, in one unit of the picture like all lengths here.
        codes: the group of each point.
        discs: the discs of the groups.
        sizes: (width, height) of the names.
        frame: (left, bottom, right, top) of the area for names.
        gap: see above.
    """
    group_of = np.asarray(codes)
    boxes: list[tuple[float, float, float, float]] = []
    reach = _FARTHEST * max(frame[2] - frame[0], frame[3] - frame[1])
    centres: list[tuple[float, float] | None] = []
    for group, (disc, (width, height)) in enumerate(zip(discs, sizes, strict=True)):
        centre = None
        for x, y in _candidates(disc, width, height, reach) if disc else ():
            if not (frame[0] <= x - width / 2 and x + width / 2 <= frame[2]):
                continue
            if not (frame[1] <= y - height / 2 and y + height / 2 <= frame[3]):
                continue
            if any(abs(x - a) < (width + w) / 2 + gap and abs(y - b) < (height + h) / 2 + gap for a, b, w, h in boxes):
                continue
            distances = np.hypot(*np.maximum(np.abs(points - (x, y)) - (width / 2, height / 2), 0).T)
            to_group = distances[group_of == group].min()
            if distances.min() >= gap and to_group <= distances.min():
                centre = (float(x), float(y))
                boxes.append((x, y, width, height))
                break
        centres.append(centre)
    return centres


def _candidates(disc: Disc, width: float, height: float, reach: float) -> list[tuple[float, float]]:
    """Centres of boxes around a disc, the nearest first; at each distance, above and below before the sides."""
    centre_x, centre_y, radius = disc
    angles = np.pi / 2 + np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS * 2
    order = sorted(angles, key=lambda angle: (round(abs(np.cos(angle)), 6), -np.sin(angle)))
    centres = []
    for step in range(1, _STEPS + 1):
        distance = radius * min(1.0, step / 2) + reach * step / _STEPS
        centres += [
            (centre_x + np.cos(angle) * (distance + width / 2), centre_y + np.sin(angle) * (distance + height / 2))
            for angle in order
        ]
    return centres
