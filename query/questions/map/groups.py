"""Where the groups of a map lie, and where their names, or the names of models, are written.

A name stands beside what it names, or has a line to it. The names of a set are all written, or none is: a map on which
only some groups are named says nothing about the others. ``map_names.js`` applies the same rules to a page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.float64]
Pair = tuple[float, float]
Line = tuple[Pair, Pair]
Box = tuple[float, float, float, float]  # x and y of its centre, width, height

NAMED = 30  # with fewer points, each has its own name

_POINTS, _CENTRES = 4000, 400  # points of a group that are used, and that are tried as the centre of its disc
_WIDEST = 0.13  # of the map's longer side: with a larger radius, a group is scattered
_AROUND = 16  # directions in which a name is tried
_STEPS = 7  # distances at which a name is tried beside a group …
_FARTHEST, _FARTHEST_FROM_POINT = 0.06, 0.03  # … up to this share of the longer side
_LONGEST = 0.6  # of the longer side: a line from a name
_AVOIDED = 5000  # points that names avoid; of more points, a sample
_ATTEMPTS = 6  # orders in which the names are placed
_ENOUGH = 200  # places with a line that are tried until one is good
# Faults of a line: it touches a point of another group, crosses another line, or a name.
_AT_POINT, _THROUGH_LINE, _THROUGH_NAME = 1, 2, 6
_NO_ROOM = 1000  # worse than all faults of lines together
_BLOCK = 256  # boxes that are compared with all points at a time
_BETWEEN = "[-_.]"  # words of an id


@dataclass(frozen=True)
class Spot:
    """Where a group lies: the smallest disc that contains half of it; of a scattered group, its central point.

    Attributes:
        x, y: the centre, in the map's own units.
        radius: 0 for a scattered group, and for a single point.
        is_scattered: the smallest disc would be too large to be a place.
    """

    x: float
    y: float
    radius: float = 0.0
    is_scattered: bool = False


@dataclass(frozen=True)
class Place:
    """Where a name is written: ``x`` and ``y`` of its centre; ``line``: the two ends of its line, None without one."""

    x: float
    y: float
    line: Line | None = None


def group_spots(positions: Positions, codes: Sequence[int], count: int) -> tuple[Spot | None, ...]:
    """Where the groups 0 … ``count`` - 1 lie; None for a group without points.

    ``positions`` (n, 2); ``codes``: the group of each point. The disc is the two-dimensional shorth: unlike a mean, it
    does not move if less than half of a group lies elsewhere.
    """
    span = float(np.ptp(positions, axis=0).max()) if len(positions) else 0.0
    group_of = np.asarray(codes)
    spots: list[Spot | None] = []
    for group in range(count):
        points = positions[group_of == group]
        if not len(points):
            spots.append(None)
            continue
        points = points[:: max(1, len(points) // _POINTS)]
        half = max(min(2, len(points)), -(-len(points) // 2))
        centres = points[:: max(1, len(points) // _CENTRES)]
        distances = np.hypot(*(centres[:, None, :] - points[None, :, :]).transpose(2, 0, 1))
        radii = np.partition(distances, half - 1, axis=1)[:, half - 1]
        best = int(radii.argmin())
        if radii[best] > _WIDEST * span:
            spots.append(Spot(float(centres[best, 0]), float(centres[best, 1]), is_scattered=True))
        else:
            x, y = points[distances[best] <= radii[best]].mean(axis=0)
            spots.append(Spot(float(x), float(y), float(radii[best])))
    return tuple(spots)


def are_places(spots: Sequence[Spot | None]) -> bool:
    """Whether most groups lie somewhere: if most are scattered, their names would say nothing about the map."""
    found = [spot for spot in spots if spot is not None]
    return 2 * sum(not spot.is_scattered for spot in found) > len(found)


def place_names(
    points: Positions,
    codes: Sequence[int],
    spots: Sequence[Spot | None],
    sizes: Sequence[Pair],
    frame: tuple[float, float, float, float],
    gap: float,
    radius: float = 0.0,
) -> list[Place | None]:
    """The place of each group's name; None for a group without a spot, and for all if one finds no room.

    A name keeps a ``gap`` to every point and name. Without a line it is closer to a point of its own group than to any
    other, so that it cannot be read as another group's name. If they can, lines pass by other names, do not cross each
    other, and pass by points of other groups.

    Args:
        points: (n, 2) positions, in one unit of the picture like all lengths here.
        codes: the group of each point.
        spots: where the groups lie, in the same unit.
        sizes: (width, height) of the names.
        frame: (left, bottom, right, top) of the area for names.
        gap: see above.
        radius: of a point.
    """
    step = max(1, len(points) // _AVOIDED)
    group_of = np.asarray(codes)[::step]
    points = points[::step]
    # A name in a crowd has the least choice, so it comes first; in the next attempt, that with the worst place.
    order = sorted(range(len(spots)), key=lambda group: _distance_to_others(points, group_of, spots[group], group))
    best: tuple[int, list[Place | None]] | None = None
    for _ in range(_ATTEMPTS):
        room = _Room(points, group_of, frame, gap, radius)
        places: list[Place | None] = [None] * len(spots)
        faults: dict[int, int] = {}
        for group in order:
            if (spot := spots[group]) is None:
                continue
            places[group] = room.beside(spot, group, sizes[group]) or room.with_line(spot, group, sizes[group])
            faults[group] = room.fault if places[group] else _NO_ROOM
            if places[group] is None:
                break
        total = sum(faults.values())
        if total < _NO_ROOM and (best is None or total < best[0]):
            best = total, places
        if not total:
            break
        worst = max(faults, key=lambda group: faults[group])
        order = [worst, *(other for other in order if other != worst)]
    return best[1] if best else [None] * len(spots)


def _distance_to_others(points: Positions, group_of: NDArray[np.intp], spot: Spot | None, group: int) -> float:
    """From a spot to the nearest point of another group."""
    others = points[group_of != group]
    if spot is None or not len(others):
        return np.inf
    return float(np.hypot(*(others - (spot.x, spot.y)).T).min()) - spot.radius


class _Room:
    """The names and lines that are placed so far, and the points that they avoid."""

    def __init__(
        self,
        points: Positions,
        group_of: NDArray[np.intp],
        frame: tuple[float, float, float, float],
        gap: float,
        radius: float,
    ) -> None:
        self.points, self.group_of, self.frame, self.gap = points, group_of, frame, gap
        self.closest = gap + radius
        self.longer = max(frame[2] - frame[0], frame[3] - frame[1])
        self.boxes: list[Box] = []
        self.lines: list[Line] = []
        self.fault = 0  # of the line that was placed last

    def beside(self, spot: Spot, group: int, size: Pair) -> Place | None:
        """A place next to the group, without a line."""
        if spot.is_scattered:
            return None
        reach = (_FARTHEST if spot.radius else _FARTHEST_FROM_POINT) * self.longer
        steps = np.arange(1, _STEPS + 1)[:, None, None]
        away = spot.radius * np.minimum(1.0, steps / 2) + reach * steps / _STEPS + np.array(size) / 2
        centres = ((spot.x, spot.y) + away * _DIRECTIONS).reshape(-1, 2)
        for x, y in self._free(centres, size):
            away = _distances(self.points, (x, y, *size))
            if away[self.group_of == group].min() <= away.min() and not self._covers_line((x, y, *size)):
                self.boxes.append((x, y, *size))
                self.fault = 0
                return Place(x, y)
        return None

    def with_line(self, spot: Spot, group: int, size: Pair) -> Place | None:
        """The nearest place with a line to the group, of those with the least fault."""
        found: dict[int, tuple[Box, Line]] = {}
        for tried, (x, y) in enumerate(self._free(self._everywhere(spot, size), size)):
            box = (x, y, *size)
            line = self._line_to(spot, group, box)
            if self._covers_line(box) or (
                self.boxes and _hits(np.array([line]), np.array(self.boxes), self.gap / 2).any()
            ):
                fault = _THROUGH_NAME
            elif any(_cross(line, other) for other in self.lines):
                fault = _THROUGH_LINE
            else:
                fault = _AT_POINT if self._touches(line, group) else 0
            found.setdefault(fault, (box, line))
            if not fault or tried > _ENOUGH:
                break
        if not found:
            return None
        self.fault = min(found)
        box, line = found[self.fault]
        self.boxes.append(box)
        self.lines.append(line)
        return Place(box[0], box[1], line)

    def _everywhere(self, spot: Spot, size: Pair) -> Positions:
        """Centres of boxes all over the map, those whose edge is nearest to the spot first."""
        (left, bottom, right, top), (width, height) = self.frame, size
        across = np.arange(left + width / 2, right - width / 2, height)
        x, y = np.meshgrid(across, np.arange(bottom + height / 2, top - height / 2, height))
        centres = np.column_stack([x.ravel(), y.ravel()])
        away = _distances(centres, (spot.x, spot.y, width, height))
        order = np.argsort(away, kind="stable")
        return np.asarray(centres[order[away[order] <= _LONGEST * self.longer]])

    def _free(self, centres: Positions, size: Pair) -> Iterator[Pair]:
        """Those of the boxes of one size that are on the map, and keep the gap to all names and points."""
        half = np.array(size) / 2
        left, bottom, right, top = self.frame
        is_free = ((centres - half >= (left, bottom)) & (centres + half <= (right, top))).all(axis=1)
        for x, y, width, height in self.boxes:
            apart = (half[0] + width / 2 + self.gap, half[1] + height / 2 + self.gap)
            is_free &= (np.abs(centres - (x, y)) >= apart).any(axis=1)
        candidates = centres[is_free]
        for block in (candidates[start : start + _BLOCK] for start in range(0, len(candidates), _BLOCK)):
            offsets = np.abs(self.points - block[:, None, :]) - half
            keeps = np.hypot(*np.maximum(offsets, 0).transpose(2, 0, 1)).min(axis=1) >= self.closest
            yield from (tuple(centre) for centre in block[keeps].tolist())

    def _covers_line(self, box: Box) -> bool:
        return bool(self.lines) and bool(_hits(np.array(self.lines), np.array([box]), self.gap / 2).any())

    def _line_to(self, spot: Spot, group: int, box: Box) -> Line:
        """From the edge of a name to the spot; to the nearest point inside a disc."""
        end = (spot.x, spot.y)
        if spot.radius:
            members = self.points[self.group_of == group]
            inside = members[np.hypot(*(members - end).T) <= spot.radius * 1.001]
            if len(inside):
                x, y = inside[_distances(inside, box).argmin()]
                end = (float(x), float(y))
        x, y, width, height = box
        start = (
            float(np.clip(end[0], x - width / 2, x + width / 2)),
            float(np.clip(end[1], y - height / 2, y + height / 2)),
        )
        return start, end

    def _touches(self, line: Line, group: int) -> bool:
        """Whether a line comes near a point of another group."""
        start, end = np.array(line)
        others = self.points[self.group_of != group] - start
        length = max(float((end - start) @ (end - start)), 1e-12)
        nearest = np.clip(others @ (end - start) / length, 0, 1)[:, None] * (end - start)
        return bool((np.hypot(*(others - nearest).T) < self.closest / 2).any())


def _directions() -> Positions:
    """Unit vectors around a spot; above and below before the sides."""
    angles = np.pi / 2 + np.pi * np.arange(_AROUND) / _AROUND * 2
    order = sorted(angles, key=lambda angle: (round(abs(np.cos(angle)), 6), -np.sin(angle)))
    return np.column_stack([np.cos(order), np.sin(order)])


_DIRECTIONS = _directions()


def _distances(points: Positions, box: Box) -> NDArray[np.float64]:
    """From each point to a box; 0 inside."""
    x, y, width, height = box
    return np.asarray(np.hypot(*np.maximum(np.abs(points - (x, y)) - (width / 2, height / 2), 0).T))


def _hits(lines: NDArray[np.float64], boxes: NDArray[np.float64], gap: float) -> NDArray[np.bool_]:
    """(lines, boxes): whether a line comes nearer to a box than the ``gap``; by slabs (Kay & Kajiya, 1986).

    ``lines`` (lines, 2, 2); ``boxes`` (boxes, 4).
    """
    start = lines[:, None, 0]
    run = lines[:, None, 1] - start
    run = np.where(np.abs(run) < 1e-9, 1e-9, run)  # parallel to an edge
    reach = boxes[None, :, 2:] / 2 + gap
    ends = np.stack([boxes[None, :, :2] - reach - start, boxes[None, :, :2] + reach - start]) / run
    enters, leaves = ends.min(axis=0).max(axis=-1), ends.max(axis=0).min(axis=-1)
    return np.asarray(np.maximum(enters, 0) <= np.minimum(leaves, 1))


def _cross(one: Line, other: Line) -> bool:
    """Whether two lines have a point in common."""

    def side(line: Line, point: Pair) -> float:
        (ax, ay), (bx, by) = line
        return (bx - ax) * (point[1] - ay) - (by - ay) * (point[0] - ax)

    return side(one, other[0]) * side(one, other[1]) < 0 and side(other, one[0]) * side(other, one[1]) < 0


def short_names(names: Sequence[str], base: str) -> list[str]:
    """The last part of each id, without the base's name and the words with which all begin.

    The whole id where several models share what is left.
    """
    of_base = re.compile(re.escape(base.rpartition("/")[2]) + f"{_BETWEEN}+(?=.)", re.IGNORECASE)
    last = [of_base.sub("", name.rpartition("/")[2] or name, count=1) for name in names]
    if len(last) > 1:
        first, final = min(last), max(last)
        same = next((at for at, pair in enumerate(zip(first, final, strict=False)) if pair[0] != pair[1]), len(first))
        shared = re.match(f".*{_BETWEEN}|", first[:same])
        last = [name[shared.end() if shared else 0 :] or name for name in last]
    counts = Counter(last)
    return [short if counts[short] == 1 else name for short, name in zip(last, names, strict=True)]
