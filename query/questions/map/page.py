"""The map's page: one file that contains everything and loads nothing; and its data, which `query browse` shares.

Strings from the Hub are JSON in a data block, which no markup can end, and the scripts set them as text only. The
page's policy allows its style and its script by their hashes and forbids everything else, so injected code would not
run, and nothing can be fetched or sent.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from indexer.console.messages import clean
from indexer.sources.registry import page_of
from query.contract.figures import THEMES
from query.questions.map.coloring import LEGEND, ColorGroups, Coloring, Scale
from query.questions.map.groups import NAMED, Positions, group_spots
from query.questions.map.neighbours import NearPoint, Parent

SCRIPTS = (
    "map_data.js", "map_view.js", "map_paint.js", "map_names.js", "map_panel.js", "map_histograms.js",
    "map_filters.js", "map_table.js", "map_controls.js", "map_address.js",
)  # fmt: skip
_LONGEST = 300  # characters of one string


def map_page(title: str, subtitle: str, data: Mapping[str, Any]) -> str:
    """The page as HTML; ``data``: see ``payload``."""
    style = page_file("map.css")
    script = '"use strict";\n' + "\n".join(page_file(name) for name in SCRIPTS)
    style_hash, script_hash = (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (style, script)
    )
    policy = (
        f"default-src 'none'; style-src {style_hash}; script-src {script_hash}; base-uri 'none'; form-action 'none'"
    )
    # JSON in ASCII without characters that are special in HTML.
    harmless = json.dumps(data, separators=(",", ":"), allow_nan=False)
    harmless = harmless.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
    return filled(
        __package__, "map.html", is_served=False, policy=policy, title=page_text(title), subtitle=page_text(subtitle),
        style=Markup(style), script=Markup(script), data=Markup(harmless),
    )  # fmt: skip


def filled(package: str, name: str, **parts: Any) -> str:
    """A page of a package as HTML. It may include pages of the map.

    ``parts`` are the template's variables, escaped unless they are Markup; ``is_served`` among them: the page requests
    data from a server (``query browse``).
    """
    return _environment(package).get_template(name).render(parts)


@cache
def _environment(package: str) -> Environment:
    """The templates (cached, because compiling them takes longer than filling them)."""
    folders = ChoiceLoader([PackageLoader(package, "pages") for package in dict.fromkeys((package, __package__))])
    return Environment(
        loader=folders, autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )


def page_file(name: str, package: str = __package__) -> str:
    """A file of a package's pages, by default of the map's pages."""
    return (files(package) / "pages" / name).read_text(encoding="utf-8")


# ---- the data


def payload(
    *,
    ids: Sequence[int],
    names: Sequence[str],
    base: str,
    positions: Positions,
    facets: list[dict[str, Any]],
    numbers: list[dict[str, Any]],
    colorings: list[dict[str, Any]],
    near: Sequence[Sequence[NearPoint]],
    parents: Mapping[int, Sequence[Parent]],
    hub: str,
    axes: Sequence[str] | None,
    notes: Sequence[str],
    from_folders: Collection[str] = (),
) -> dict[str, Any]:
    """The data of a page, ready for JSON; every list has an entry for each model.

    ``positions`` (n, 2) are NaN for a model that is on no map. ``from_folders``: the names of models that have no page
    on the Hub.

    Keys of the result:
        prefix: the last part of the base's id, which short names of models leave out.
        neighbours: for each model [row, cosine, row, cosine, …], the nearest first.
        backgrounds: for each neighbour the share of pairs of unrelated models that are at least as similar, −n if none
            of n pairs is, or None.
        parents: [row, or -1 if it is not in ``ids``, name, how] for each parent, or None without any lineage.
    """
    backgrounds = [
        [-point.none_of if point.none_of else _rounded(point.background, 3) for point in row] for row in near
    ]
    steps: list[list[list[Any]]] | None = None
    if parents:
        row_of: dict[int | None, int] = {identity: row for row, identity in enumerate(ids)}
        steps = [
            [
                [row_of.get(parent.model_id, -1), page_text(parent.model or base), parent.words]
                for parent in parents.get(identity, ())
            ]
            for identity in ids
        ]
    x, y = ([_rounded(coordinate, 5) for coordinate in axis] for axis in positions.T.tolist())
    return {
        "models": [page_text(name) for name in names],
        "onHub": [page_of(name) is not None and name not in from_folders for name in names],
        "x": x,
        "y": y,
        "facets": facets,
        "numbers": numbers,
        "neighbours": [[number for point in row for number in (point.row, round(point.cosine, 4))] for row in near],
        "backgrounds": backgrounds
        if any(background is not None for row in backgrounds for background in row)
        else None,
        "parents": steps,
        "hub": hub,
        "colorings": colorings,
        "legend": LEGEND,
        "named": NAMED,
        "prefix": page_text(base.rpartition("/")[2]),
        "themes": {name: asdict(theme) for name, theme in THEMES.items()},
        "axes": list(axes) if axes else None,
        "notes": list(notes),
    }


def facet(
    name: str, values: Sequence[str | None] | Sequence[Sequence[str]], none: str = "", *, many: bool = False
) -> dict[str, Any]:
    """A property to filter by: for each model the index of its value in ``names``, -1 for None.

    ``many``: a model has several values, so ``codes`` has a list of indices for each.
    """
    names: dict[str, int] = {}

    def code(value: Any) -> int:
        return -1 if value is None else names.setdefault(value, len(names))

    codes = [[code(value) for value in value or ()] if many else code(value) for value in values]
    return {"name": name, "names": [page_text(value) for value in names], "codes": codes, "none": none, "many": many}


def number(scale: Scale) -> dict[str, Any]:
    """Numbers to filter by, None where not known."""
    bounds = {"kind": scale.kind, "low": scale.low, "high": scale.high}
    return {"name": scale.column, **bounds, "values": list(scale.values)}


def coloring_data(coloring: Coloring, positions: Positions) -> dict[str, Any]:
    """A colouring; ``positions`` (n, 2) give the ``spots`` next to which the names of groups are written.

    A spot is [x, y, radius], with a fourth entry if the group is scattered; see ``groups.Spot``.
    """
    named = {"column": coloring.column, "none": coloring.none}
    if not isinstance(coloring, ColorGroups):
        bounds = {"low": coloring.low, "high": coloring.high}
        return {"kind": coloring.kind, "values": list(coloring.values), **bounds, **named}
    is_placed = np.isfinite(positions).all(axis=1)
    groups = [[page_text(group.group), group.models] for group in coloring.groups]
    # A single group in grey has its name as well.
    named_groups = len(coloring.groups) if len(coloring.rest) == 1 else len(coloring.shown)
    found = group_spots(positions[is_placed], np.asarray(coloring.codes)[is_placed].tolist(), named_groups)
    spots = [
        spot
        and [*(_rounded(number, 5) for number in (spot.x, spot.y, spot.radius)), *([1] if spot.is_scattered else [])]
        for spot in found
    ]
    return {"kind": "groups", "groups": groups, "codes": list(coloring.codes), "spots": spots, **named}


def page_text(text: str) -> str:
    """A string from the Hub with control characters escaped, cut to a length that a page can show."""
    return clean(text)[:_LONGEST]


def _rounded(value: float | None, digits: int) -> float | None:
    """A number rounded to this many significant digits; None for NaN."""
    return None if value is None or np.isnan(value) else float(f"{value:.{digits}g}")
