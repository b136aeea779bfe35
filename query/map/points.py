"""What a map shows: models as points in the plane, what colours them, and what is said of it; not how it is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from query.map.coloring import ColorGroups, Coloring
from query.map.parents import Parent
from query.map.projection import METHODS
from query.population import LeftOut
from query.reader import PUBLIC_HUB
from query.results import Drawn


@dataclass(frozen=True)
class MapPoint:
    """One model: ``x`` and ``y`` in the plane; ``group`` or ``value`` is what colours it, None where not known."""

    model_id: int
    model: str
    author: str
    relation: str
    datasets: tuple[str, ...]
    downloads: int | None
    x: float
    y: float
    group: str | None
    value: float | None
    licence: str | None = None
    created: datetime | None = None


class NearPoint(NamedTuple):
    """A near model: its ``place`` in the points, the cosine, and its background where the atlas has one.

    ``background``: the share of pairs of unrelated models that are at least as similar; ``none_of``: how many pairs
    those are, where none of them is.
    """

    place: int
    cosine: float
    background: float | None = None
    none_of: int | None = None


@dataclass(frozen=True, repr=False)
class PlacedModels(Drawn):
    """Models in the plane. ``points`` are in order of id.

    ``method`` is the one that placed them, ``color`` the column they are coloured by. ``coloring`` and each of
    ``other_colorings`` (which the page offers as well) have an entry for each point, and so has ``neighbours``: the
    nearest models that are on the map, nearest first. ``parents``: what each was made from, by model id, as far as the
    atlas keeps lineage. ``explained_variance``: for pca, the shares of the variance along
    x and y. ``hub`` is the address of the Hub that was crawled.
    """

    COLUMNS = tuple(MapPoint.__dataclass_fields__)
    OPTIONAL_COLUMNS = ("model_id", "downloads", "relation", "value", "author")

    base: str
    representation: str
    method: str
    seed: int
    points: tuple[MapPoint, ...]
    coloring: Coloring
    explained_variance: tuple[float, float] | None = None
    left_out: LeftOut = field(default_factory=LeftOut)
    notes: tuple[str, ...] = ()
    other_colorings: tuple[Coloring, ...] = field(default=(), repr=False)
    neighbours: tuple[tuple[NearPoint, ...], ...] = field(default=(), repr=False)
    parents: Mapping[int, tuple[Parent, ...]] = field(default_factory=dict, repr=False)
    hub: str = PUBLIC_HUB

    @property
    def color(self) -> str:
        """The column that the points are coloured by."""
        return self.coloring.column

    @property
    def headline(self) -> str:
        """What the map shows, and how it was made."""
        return f"{self.title}, {self.subtitle}"

    @property
    def title(self) -> str:
        """What the map shows, in words."""
        models = "1 fine-tune" if len(self.points) == 1 else f"{len(self.points):,} fine-tunes"
        return f"{models} of {self.base}"

    @property
    def subtitle(self) -> str:
        """How it was made, and what is not on it."""
        return how_placed(self.method, self.representation, self.left_out)

    @property
    def axes(self) -> tuple[str, str] | None:
        """What x and y are: the principal components, with their shares of the variance; None where nothing."""
        return what_axes_are(self.method, self.explained_variance)

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object. ``groups``: those with a colour of their own, ``others`` all other groups."""
        facts = {
            "base": self.base,
            "representation": self.representation,
            "method": self.method,
            "color": self.color,
            "models": len(self.points),
        }
        if isinstance(self.coloring, ColorGroups):
            rest = self.coloring.rest
            facts |= {
                "groups": [asdict(group) for group in self.coloring.shown],
                "others": {"groups": len(rest), "models": sum(group.models for group in rest)},
                "unknown": self.coloring.codes.count(-1),
            }
        else:
            scale = self.coloring
            facts |= {
                "groups": [],
                "scale": {"low": scale.low, "high": scale.high, "kind": scale.kind},
                "unknown": scale.values.count(None),
            }
        return facts | {
            "explained_variance": list(self.explained_variance) if self.explained_variance else None,
            "seed": self.seed,
            "left_out": asdict(self.left_out),
            "notes": list(self.notes),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each point; the columns are those of :class:`MapPoint`."""
        return [asdict(point) for point in self.points]

    def table(self, *, details: bool = False) -> dict[str, Any]:
        """The object; ``details``: with the points."""
        told = {name: value for name, value in self.to_dict().items() if name != "notes"}
        return told | ({"points": self.to_rows()} if details else {})


def how_placed(method: str, representation: str, left_out: LeftOut) -> str:
    """How a map was made, and what is not on it."""
    words = f"{METHODS[method]} of the vectors “{representation}”, by cosine"
    return words + (f"; left out: {', '.join(left_out.words())}" if left_out.words() else "")


def what_axes_are(method: str, explained_variance: tuple[float, float] | None) -> tuple[str, str] | None:
    """The principal components, with their shares of the variance; None where the axes are nothing."""
    if method != "pca":
        return None
    shares = [f" ({share * 100:.1f} % of the variance)" for share in explained_variance or ()] or ["", ""]
    return f"principal component 1{shares[0]}", f"principal component 2{shares[1]}"
