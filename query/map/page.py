"""A map as a page to explore: one file that holds everything and loads nothing.

What comes from the Hub travels as JSON in a data block, where no markup can end it, and the scripts set it as text
only. The page's policy names its one style and its one script by their hashes and forbids everything else, so nothing
planted would run, and nothing can be fetched or sent.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import asdict
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.names import is_hub_id
from query.figures import THEMES
from query.map.coloring import LEGEND, scaled
from query.map.columns import coloring_data, facet, facet_of_many, number, rounded, shown
from query.map.points import NearPoint

if TYPE_CHECKING:
    from query.map.points import PlacedModels

SCRIPTS = (
    "map_data.js", "map_view.js", "map_paint.js", "map_names.js", "map_panel.js", "map_histograms.js",
    "map_filters.js", "map_table.js", "map_controls.js", "map_address.js",
)  # fmt: skip


def map_page(drawn: PlacedModels) -> str:
    """The page as a string."""
    style = _file("map.css")
    script = '"use strict";\n' + "\n".join(map(_file, SCRIPTS))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(shown(drawn.title)),
        "subtitle": html.escape(shown(drawn.subtitle)),
        "style": style,
        "script": script,
        "data": _harmless_json(page_data(drawn)),
    }
    # One pass: what is put in is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _file("map.html"))


def page_data(drawn: PlacedModels) -> dict[str, Any]:
    """What the scripts of the page read; every list has an entry for each point."""
    points = drawn.points
    near = [[NearPoint(*one) for one in row] for row in drawn.neighbours or [()] * len(points)]
    places = np.array([(point.x, point.y) for point in points])
    return {
        "models": [shown(point.model) for point in points],
        "onHub": [is_hub_id(point.model) for point in points],
        "x": [rounded(point.x) for point in points],
        "y": [rounded(point.y) for point in points],
        "facets": [
            facet_of_many("dataset", [point.datasets for point in points], "no dataset named"),
            facet("author", [point.author for point in points]),
            facet("licence", [point.licence or None for point in points], "none named"),
            facet("relation", [point.relation for point in points]),
        ],
        "numbers": [number(scaled("downloads", [point.downloads for point in points]))],
        "neighbours": [[number for one in row for number in (one.place, round(one.cosine, 4))] for row in near],
        "backgrounds": _backgrounds(near),
        "parents": _parents(drawn),
        "hub": drawn.hub,
        "colorings": [coloring_data(one, places) for one in (drawn.coloring, *drawn.other_colorings)],
        "legend": LEGEND,
        "themes": {name: asdict(theme) for name, theme in THEMES.items()},
        "axes": drawn.axes,
        "notes": list(drawn.notes),
    }


def _parents(drawn: PlacedModels) -> list[list[list[Any]]] | None:
    """Of each model what it was made from, as [place, or -1 for one that is not on the map, name, how]."""
    if not drawn.parents:
        return None
    place = {point.model_id: row for row, point in enumerate(drawn.points)}
    return [
        [
            [-1 if one.model_id is None else place.get(one.model_id, -1), shown(one.model or drawn.base), one.words]
            for one in drawn.parents.get(point.model_id, ())
        ]
        for point in drawn.points
    ]


def _backgrounds(near: list[list[NearPoint]]) -> list[list[float | None]] | None:
    """Of each neighbour the share of pairs at least as similar, or −n: none of n pairs; None where it is not known."""
    if all(one.background is None for row in near for one in row):
        return None
    return [[-one.none_of if one.none_of else _short(one.background) for one in row] for row in near]


def _short(share: float | None) -> float | None:
    return None if share is None else float(f"{share:.3g}")


def _harmless_json(value: Any) -> str:
    """JSON in ASCII without a character that HTML knows."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (files("query.map") / "pages" / name).read_text(encoding="utf-8")
