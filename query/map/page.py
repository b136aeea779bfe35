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

from indexer.console.messages import clean
from indexer.names import is_hub_id
from query.figures import THEMES
from query.map.coloring import LEGEND, ColorGroups, Coloring
from query.statistics.neighbours import codes_of

if TYPE_CHECKING:
    from query.map.points import PlacedModels

SCRIPTS = ("map_data.js", "map_view.js", "map_panel.js", "map_controls.js")
_DIGITS = 5  # of a place in the plane: finer than any screen
_LONGEST = 300  # characters of one string


def map_page(drawn: PlacedModels) -> str:
    """The page as a string."""
    style = _file("map.css")
    script = '"use strict";\n' + "\n".join(map(_file, SCRIPTS))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(_shown(drawn.title)),
        "subtitle": html.escape(_shown(drawn.subtitle)),
        "style": style,
        "script": script,
        "data": _harmless_json(page_data(drawn)),
    }
    # One pass: what is put in is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _file("map.html"))


def page_data(drawn: PlacedModels) -> dict[str, Any]:
    """What the scripts of the page read; every list has an entry for each point."""
    points = drawn.points
    authors, author = _coded([point.author for point in points])
    relations, relation = _coded([point.relation for point in points])
    datasets, flat = _coded([name for point in points for name in point.datasets])
    of_model = iter(flat)
    return {
        "models": [_shown(point.model) for point in points],
        "onHub": [is_hub_id(point.model) for point in points],
        "x": [_rounded(point.x) for point in points],
        "y": [_rounded(point.y) for point in points],
        "authors": authors,
        "author": author,
        "relations": relations,
        "relation": relation,
        "datasets": datasets,
        "dataset": [[next(of_model) for _ in point.datasets] for point in points],
        "downloads": [point.downloads for point in points],
        "neighbours": [
            [number for place, cosine in nearest for number in (place, round(cosine, 4))]
            for nearest in drawn.neighbours or [()] * len(points)
        ],
        "colorings": [_coloring(one) for one in (drawn.coloring, *drawn.other_colorings)],
        "legend": LEGEND,
        "themes": {name: asdict(theme) for name, theme in THEMES.items()},
        "axes": drawn.axes,
        "notes": list(drawn.notes),
    }


def _coloring(coloring: Coloring) -> dict[str, Any]:
    named = {"column": coloring.column, "none": coloring.none}
    if isinstance(coloring, ColorGroups):
        groups = [[_shown(group.group), group.models] for group in coloring.groups]
        return {"kind": "groups", "groups": groups, "codes": list(coloring.codes), **named}
    return {"kind": coloring.kind, "values": list(coloring.values), "low": coloring.low, "high": coloring.high, **named}


def _coded(names: list[str]) -> tuple[list[str], list[int]]:
    """The different names, as they are shown, and for each entry its place among them."""
    return [_shown(name) for name in dict.fromkeys(names)], [int(code) for code in codes_of(names)]


def _shown(text: str) -> str:
    return clean(text)[:_LONGEST]


def _rounded(place: float) -> float:
    return float(f"{place:.{_DIGITS}g}")


def _harmless_json(value: Any) -> str:
    """JSON in ASCII without a character that HTML knows."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (files("query.map") / "pages" / name).read_text(encoding="utf-8")
