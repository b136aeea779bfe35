"""The map: every model a point, coloured by its dataset."""

from __future__ import annotations

from indexer.errors import AtlasError
from query.map.coloring import ColorGroups
from query.map.map import ModelMap, model_map
from query.map.projection import METHODS
from query.report.markup import Part, code, joined, told
from query.report.pictures import add_picture
from query.report.section import Section, Source, Writer
from query.wording import counted

ANCHOR, TITLE = "map", "The map"

_TOLD = 6  # groups in the words for who does not see the picture


def write(source: Source) -> Section:
    """The map, and what may be read from it."""
    writer = Writer(ANCHOR, TITLE)
    try:
        drawn = model_map(source.atlas, source.base, color="dataset", seed=source.seed)
    except AtlasError as error:
        writer.lack(error)
        return writer.done()
    writer.paragraph(
        "Every point is a model. Points that lie close together stand for models whose weights were changed alike; "
        + (
            "the two axes are the directions in which the models differ most."
            if drawn.method == "pca"
            else "how far apart distant groups lie, and in which direction, means nothing."
        )
        + " The colours are the datasets that the models name, and had no part in placing them: where one colour forms "
        "one heap, the weights know the data."
    )
    add_picture(writer, drawn.figure, _alternative(drawn), _caption(drawn), marks=len(drawn.points))
    writer.notes(drawn.notes)
    writer.paragraph(
        "To explore it (hover, search, filter, colour by author): ",
        code(source.command("map", "--out map.html")),
    )
    return writer.done()


def _alternative(drawn: ModelMap) -> str:
    words = f"Map of {counted(len(drawn.points), 'model')} by {METHODS[drawn.method]}, coloured by dataset"
    if isinstance(drawn.coloring, ColorGroups) and drawn.coloring.groups:
        groups = drawn.coloring.groups[:_TOLD]
        words += ". The largest groups: " + ", ".join(f"{told(one.group, 60)} ({one.models:,})" for one in groups)
    return words + "."


def _caption(drawn: ModelMap) -> Part:
    unknown = drawn.coloring.codes.count(-1) if isinstance(drawn.coloring, ColorGroups) else 0
    silent = f", of which {counted(unknown, 'names', 'name')} no dataset (rings)" if unknown else ""
    adapters = "; triangles are adapters" if any(point.relation == "adapter" for point in drawn.points) else ""
    return joined(
        f"{counted(len(drawn.points), 'model')}{silent}, placed by {METHODS[drawn.method]} of the vectors ",
        code(drawn.representation), f", seed {drawn.seed}{adapters}.",
    )  # fmt: skip
