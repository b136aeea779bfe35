"""A map as a page to explore: one file that contains everything and loads nothing.

Strings from the Hub are JSON in a data block, which no markup can end, and the scripts set them as text only. The
page's policy allows its style and its script by their hashes and forbids everything else, so injected code would not
run, and nothing can be fetched or sent.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from query.map.coloring import scaled
from query.map.neighbours import NearPoint
from query.map.payload import coloring_data, facet, facet_of_many, number, parents_data, payload, short_share, shown

if TYPE_CHECKING:
    from query.map.model_map import ModelMap

SCRIPTS = (
    "map_data.js", "map_view.js", "map_paint.js", "map_names.js", "map_panel.js", "map_histograms.js",
    "map_filters.js", "map_table.js", "map_controls.js", "map_address.js",
)  # fmt: skip


def map_page(drawn: ModelMap) -> str:
    """The page as HTML."""
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
    # One pass: inserted text is not searched again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _file("map.html"))


def page_data(drawn: ModelMap) -> dict[str, Any]:
    """What the scripts of the page read; see :func:`query.map.payload.payload`."""
    points = drawn.points
    near = [[NearPoint(*one) for one in row] for row in drawn.neighbours or [()] * len(points)]
    places = np.array([(point.x, point.y) for point in points])
    return payload(
        names=[point.model for point in points],
        places=places,
        facets=[
            facet_of_many("dataset", [point.datasets for point in points], "no dataset named"),
            facet("author", [point.author for point in points]),
            facet("licence", [point.licence or None for point in points], "none named"),
            facet("relation", [point.relation for point in points]),
        ],
        numbers=[number(scaled("downloads", [point.downloads for point in points]))],
        colorings=[coloring_data(one, places) for one in (drawn.coloring, *drawn.other_colorings)],
        neighbours=[[number for one in row for number in (one.place, round(one.cosine, 4))] for row in near],
        backgrounds=[[-one.none_of if one.none_of else short_share(one.background) for one in row] for row in near],
        parents=parents_data(drawn.parents, [point.model_id for point in points], drawn.base),
        hub=drawn.hub,
        axes=drawn.axes,
        notes=drawn.notes,
    )


def _harmless_json(value: Any) -> str:
    """JSON in ASCII without characters that are special in HTML."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (files("query.map") / "pages" / name).read_text(encoding="utf-8")
