"""A map of the fine-tunes of one base: each model is a point, close to the models with similar vectors.

Unrelated models are left out, because they would squeeze the others into a corner. Copies have no vector, and one model
represents its duplicates. All of them are counted.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from indexer.console.messages import say
from indexer.console.option import Option
from indexer.errors import AtlasError, Call, Text
from indexer.records.representations.registry import has_neighbours
from query.contract.columns import (
    COLOUR_GROUP,
    DOWNLOADS,
    LEFT_OUT,
    SEED,
    Author,
    BaseId,
    Datasets,
    ModelId,
    ModelNumber,
    Notes,
    Relation,
    Vectors,
)
from query.contract.figures import FORMATS, checked_output, draw, write_output
from query.contract.options import Base, Representation, Seed
from query.contract.registry import Invocation, question
from query.contract.results import After, Detail, Doc, Drawn, Hidden, If, Shown
from query.contract.tables import parquet_of
from query.models.across import WordTable
from query.models.across import all_bases as models_of_all_bases
from query.models.population import (
    LeftOut,
    Population,
    distinct,
    leading_datasets,
    notes_on_sampled,
    read_population,
)
from query.models.reader import PUBLIC_HUB
from query.questions.map.coloring import ColorGroups, Coloring, Group, coloring, grouped, scaled
from query.questions.map.neighbours import NearPoint, Parent, known_near, near_points, read_neighbours, read_parents
from query.questions.map.page import coloring_data, facet, map_page, number, payload
from query.questions.map.picture import map_figure
from query.questions.map.projection import METHODS, Projection, exact_near, most_neighbours, project, usual_method
from query.shared.statistics.likeness import points
from query.shared.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.contract.results import ThemeName
    from query.models.reader import AtlasReader

PAGE, TABLE = ".html", ".parquet"
NEIGHBOURS = 8  # nearest models that the page shows for each model
ALSO_BY = ("dataset", "cluster", "author", "relation", "licence", "downloads")  # further colourings of the page
MOST_COMPARED = 20_000  # with more models, UMAP uses the stored neighbours instead of comparing all pairs
MOST_CLUSTERED = 5000  # with more models, finding clusters takes minutes, so they are found only on request


@dataclass(frozen=True)
class MapPoint:
    """One model: ``x`` and ``y`` in the plane; ``group`` or ``value`` gives its colour, None if not known."""

    model_id: ModelNumber
    model: ModelId
    author: Author
    relation: Relation
    datasets: Datasets
    downloads: Annotated[int | None, DOWNLOADS]
    x: Annotated[float, Doc("Place on the map from left to right; it has no unit.")]
    y: Annotated[float, Doc("Place on the map from bottom to top; it has no unit.")]
    group: Annotated[str | None, COLOUR_GROUP]
    value: Annotated[float | None, Doc("The number that gives the point its colour.")]
    licence: Annotated[str | None, Doc("Licence on the card.")] = None
    created: Annotated[datetime | None, Doc("When the repository was made, in UTC.")] = None


@dataclass(frozen=True)
class OtherGroups:
    """The groups that have no colour of their own."""

    groups: Annotated[int, Doc("Number of groups.")]
    models: Annotated[int, Doc("Number of their models.")]


@dataclass(frozen=True)
class ColorScale:
    """A scale of colours."""

    low: Annotated[float, Doc("Lower end of the scale.")]
    high: Annotated[float, Doc("Upper end of the scale.")]
    kind: Annotated[str, Doc("linear, log or time (seconds since 1970).")]


@dataclass(frozen=True, repr=False)
class ModelMap(Drawn):
    """Models in the plane: a picture to print, or a page to explore. ``points`` are in order of id.

    Attributes:
        method: the method that placed the points.
        coloring: the colours, with an entry for each point.
        explained_variance: for pca, the shares of the variance along x and y.
        other_colorings: further colourings that the page offers.
        neighbours: for each point the nearest models on the map, nearest first.
        parents: the parents of each model, by model id, if the atlas stores lineage.
        hub: the address of the crawled Hub.
        islands: the groups whose names are written on the picture, if not those that have the colours.
        from_folders: names of models that have no page there.
    """

    ROWS = "points"
    IS_SHEET = True
    OPTIONAL_COLUMNS = ("model_id", "downloads", "relation", "value", "author")

    base: BaseId
    representation: Vectors
    method: Annotated[str, Doc("How the points were placed: umap, tsne or pca.")]
    seed: Annotated[int, SEED]
    points: Annotated[tuple[MapPoint, ...], Doc("The points."), Shown(), Detail(), After("left_out")]
    coloring: Annotated[Coloring, Hidden()]
    explained_variance: Annotated[
        tuple[float, float] | None, Doc("For pca: the shares of the variance along x and y.")
    ] = None
    left_out: Annotated[LeftOut, LEFT_OUT] = field(default_factory=LeftOut)
    notes: Notes = ()
    other_colorings: Annotated[tuple[Coloring, ...], Hidden()] = field(default=(), repr=False)
    neighbours: Annotated[tuple[tuple[NearPoint, ...], ...], Hidden()] = field(default=(), repr=False)
    parents: Annotated[Mapping[int, tuple[Parent, ...]], Hidden()] = field(default_factory=dict, repr=False)
    hub: Annotated[str, Hidden()] = PUBLIC_HUB
    from_folders: Annotated[frozenset[str], Hidden()] = field(default=frozenset(), repr=False)
    islands: Annotated[ColorGroups | None, Hidden()] = field(default=None, repr=False)

    @property
    def color(self) -> Annotated[str, Doc("The column that the points are coloured by."), After("method")]:
        """See ``coloring``."""
        return self.coloring.column

    @property
    def models(self) -> Annotated[int, Doc("Number of models on the map."), After("color")]:
        """The number of points."""
        return len(self.points)

    @property
    def groups(self) -> Annotated[list[Group], Doc("Groups with a colour of their own."), After("models")]:
        """Empty if the points are coloured by a number."""
        return list(self.coloring.shown) if isinstance(self.coloring, ColorGroups) else []

    @property
    def others(self) -> Annotated[OtherGroups | None, Doc("All other groups, in grey."), If(), After("groups")]:
        """None if the points are coloured by a number."""
        if not isinstance(self.coloring, ColorGroups):
            return None
        return OtherGroups(len(self.coloring.rest), sum(group.models for group in self.coloring.rest))

    @property
    def scale(self) -> Annotated[ColorScale | None, Doc("The scale of the colours."), If(), After("others")]:
        """None if the points are coloured by group."""
        scale = self.coloring
        return None if isinstance(scale, ColorGroups) else ColorScale(scale.low, scale.high, scale.kind)

    @property
    def unknown(self) -> Annotated[int, Doc("Number of models whose group, or number, is not known."), After("scale")]:
        """These points have no colour."""
        coloring = self.coloring
        return coloring.codes.count(-1) if isinstance(coloring, ColorGroups) else coloring.values.count(None)

    @property
    def headline(self) -> str:
        """Title and subtitle."""
        return f"{self.title}, {self.subtitle}"

    @property
    def title(self) -> str:
        """The number of models, and the base."""
        return f"{counted(len(self.points), 'fine-tune')} of {self.base}"

    @property
    def subtitle(self) -> str:
        """The method, and the models that are left out."""
        return projection_in_words(self.method, self.representation, self.left_out)

    @property
    def axes(self) -> tuple[str, str] | None:
        """Labels of x and y for pca; None for other methods, whose axes have no meaning."""
        return axis_labels(self.method, self.explained_variance)

    @property
    def places(self) -> NDArray[np.float64]:
        """The positions (n, 2) of the points."""
        return np.array([(point.x, point.y) for point in self.points])

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The map as a picture for print; ``theme`` is light or dark."""
        is_adapter = np.array([point.relation == "adapter" for point in self.points])
        captions = (self.title, self.subtitle, self.axes)
        models = [point.model for point in self.points]
        return map_figure(self.places, is_adapter, models, self.base, self.coloring, *captions, theme, ax, self.islands)

    def page_data(self) -> dict[str, Any]:
        """The data that the scripts of the page read; see :func:`query.questions.map.page.payload`."""
        points, positions = self.points, self.places
        return payload(
            ids=[point.model_id for point in points],
            names=[point.model for point in points],
            base=self.base,
            positions=positions,
            facets=[
                facet("dataset", [point.datasets for point in points], "no dataset named", many=True),
                facet("author", [point.author for point in points]),
                facet("licence", [point.licence or None for point in points], "none named"),
                facet("relation", [point.relation for point in points]),
            ],
            numbers=[number(scaled("downloads", [point.downloads for point in points]))],
            colorings=[coloring_data(coloring, positions) for coloring in (self.coloring, *self.other_colorings)],
            near=self.neighbours or [()] * len(points),
            parents=self.parents,
            hub=self.hub,
            from_folders=self.from_folders,
            axes=self.axes,
            notes=self.notes,
        )

    def html(self) -> str:
        """The map as a page to explore: one file without dependencies."""
        return map_page(self.title, self.subtitle, self.page_data())

    def write(self, path: str | Path, theme: ThemeName = "light") -> None:
        """Write a .png, .svg, .pdf, .html or .parquet. A page has both themes and follows the reader's settings.

        Raises AtlasError for another suffix, or if the file cannot be written.
        """
        file = checked_map_file(path)
        suffix = file.suffix.lower()
        if suffix == PAGE:
            write_output(file, self.html().encode())
        elif suffix == TABLE:
            write_output(file, map_table(self))
        else:
            write_output(file, draw(self.figure(theme), suffix))


def checked_map_file(path: str | Path) -> Path:
    """The path of a map, checked before any work. Raises AtlasError for another suffix or a missing folder."""
    return checked_output(path, (*FORMATS, PAGE, TABLE))


def _command(
    call: Invocation,
    base: str | None,
    method: Literal["umap", "tsne", "pca"] | None,
    color: str | None,
    out: Annotated[
        str, Option("File: .png, .svg or .pdf to print, .html to explore, .parquet for other viewers.", metavar="FILE")
    ],
    **options: Any,
) -> None:
    file = checked_map_file(out)
    with call.opened() as atlas:
        drawn = atlas.map(base, method=method, color=color, **options)
        drawn.write(file, theme=call.theme or "light")
        call.show(drawn, file=file)
        if file.suffix.lower() == TABLE:
            viewer = f"embedding-atlas {shlex.quote(str(file))} --text model --x x --y y --neighbors neighbors"
            say(f"to view it: {viewer}")


@question(example="map --base roberta-base --out map.html", command=_command)
def model_map(
    atlas: AtlasReader,
    base: Base = None,
    *,
    method: Annotated[
        Literal["umap", "tsne", "pca"] | None,
        Option("Projection method.", usual="tsne below 1,000 models, else umap"),
    ] = None,
    color: Annotated[
        str | None,
        Option(
            "Colour by dataset, author, cluster, base, or any column of the models view.",
            metavar="COLUMN",
            usual="dataset, or cluster if no model names one; base with --all-bases",
        ),
    ] = None,
    representation: Representation = "input",
    seed: Seed = 0,
    all_bases: Annotated[bool, Option("One map of the models of all bases, by the words that they moved.")] = False,
) -> ModelMap:
    """Draw the fine-tunes of a base as points; points are close if the vectors are.

    Returns:
        The distinct fine-tunes placed in the plane, by tsne below 1,000 models and else umap, unless a method is named
        (see :func:`query.questions.map.projection.project`), and coloured
        (see :func:`query.questions.map.coloring.coloring`).

    Raises:
        AtlasError: there is no model to place, no such method or column, or the representation is not published.
    """
    if all_bases:
        if base is not None:
            raise AtlasError("`all_bases` goes without `base`.", "Leave one of them out.")
        population: Population = models_of_all_bases(atlas)
        bases = [row["base"] for row in atlas.rows("SELECT base FROM bases ORDER BY base")]
    else:
        population = models_to_place(atlas, base, representation)
        bases = [population.base]
    color = color or ("base" if all_bases else usual_color(population))
    colors = coloring(atlas, population, color, seed)  # before the slow part: there may be no such column
    projection, notes = place_models(atlas, population, method, seed)
    is_quick = len(population.ids) <= MOST_CLUSTERED
    also_by = (*ALSO_BY, "base") if all_bases else ALSO_BY
    others = [name for name in also_by if name != color and (is_quick or name != "cluster")]
    rows = atlas.rows(
        "SELECT model_id, downloads, licence, created FROM models WHERE model_id IN (SELECT unnest($1::INTEGER[]))",
        [population.ids.tolist()],
    )
    facts = {row["model_id"]: row for row in rows}
    return ModelMap(
        base=population.base,
        representation=population.representation,
        method=projection.method,
        seed=seed,
        points=tuple(
            MapPoint(
                model=population.models[row],
                author=population.authors[row],
                relation=population.relations[row],
                datasets=tuple(sorted(population.datasets[row])),
                x=float(projection.positions[row, 0]),
                y=float(projection.positions[row, 1]),
                group=colors.name_of(row) if isinstance(colors, ColorGroups) else None,
                value=None if isinstance(colors, ColorGroups) else colors.values[row],
                **facts[int(identity)],
            )
            for row, identity in enumerate(population.ids)
        ),
        coloring=colors,
        explained_variance=projection.explained_variance,
        left_out=population.left_out,
        notes=(*notes, *notes_on_sampled(atlas, population)),
        other_colorings=tuple(coloring(atlas, population, name, seed) for name in others),
        neighbours=_near(atlas, population),
        parents={model_id: parents for one in bases for model_id, parents in read_parents(atlas, one).items()},
        hub=atlas.crawl_of(bases[0]).endpoint,
        from_folders=frozenset().union(*(atlas.from_folders(one) for one in bases)),
        islands=grouped("dataset", leading_datasets(population.datasets)) if color == "base" else None,
    )


def _near(atlas: AtlasReader, population: Population) -> tuple[tuple[NearPoint, ...], ...]:
    """The nearest models of each: those that the atlas stores or, of models of several bases, the exact ones."""
    if has_neighbours(population.representation):
        stored = read_neighbours(atlas, population.base, population.representation)
        return near_points(stored, population.ids, NEIGHBOURS)
    table = population.table
    rows, _ = exact_near(table, min(NEIGHBOURS + 1, len(table)))
    owners = np.repeat(np.arange(len(table)), rows.shape[1] - 1)
    similarities = table.unscaled(owners, rows[:, 1:].ravel()) if isinstance(table, WordTable) else None
    if similarities is None:
        similarities = table.pairs(owners, table, rows[:, 1:].ravel())
    near = similarities.reshape(len(table), -1).tolist()
    return tuple(
        tuple(NearPoint(row, similarity) for row, similarity in zip(each[1:], values, strict=True))
        for each, values in zip(rows.tolist(), near, strict=True)
    )


def usual_color(population: Population) -> str:
    """What a map is coloured by if nothing is named: dataset, or cluster where no model names a dataset."""
    return "dataset" if any(population.datasets) or len(population.ids) > MOST_CLUSTERED else "cluster"


def models_to_place(atlas: AtlasReader, base: str | None, representation: str = "input") -> Population:
    """The distinct fine-tunes of ``base``. Raises AtlasError if there are none."""
    population = distinct(read_population(atlas, base, representation))
    if not len(population.ids):
        reasons = f" (left out: {', '.join(population.left_out.words())})" if population.left_out.words() else ""
        raise AtlasError(
            f"No model of {population.base} can be placed on a map{reasons}.",
            Text("Index more: ", Call("build", population.base)),
        )
    return population


def place_models(
    atlas: AtlasReader, population: Population, method: str | None = None, seed: int = 0
) -> tuple[Projection, tuple[str, ...]]:
    """The positions of the models, and notes; see :func:`query.questions.map.projection.project`.

    For many models, UMAP uses the stored neighbours: finding them again would take much longer than the rest.
    """
    near = None
    method = method or usual_method(len(population.ids))
    if method == "umap" and len(population.ids) > MOST_COMPARED:
        stored = read_neighbours(atlas, population.base, population.representation)
        near = known_near(stored, population.ids, most_neighbours(len(population.ids)))
    plain = points(population.table).astype(np.float32)
    projection = project(plain, method, seed, near, population.table)
    notes = []
    if projection.method != method:
        notes.append(f"There are too few distinct vectors for {METHODS[method]}, so the map is a PCA.")
    adapters = population.relations.count("adapter")
    if 0 < adapters < len(population.relations) and not population.blocks:
        notes.append(
            f"Adapters ({adapters}) leave some matrices unchanged, so they cannot be as close to full fine-tunes as "
            "these are to each other."
        )
    return projection, tuple(notes)


def projection_in_words(method: str, representation: str, left_out: LeftOut) -> str:
    """The method of a map, and the models that are left out."""
    text = f"{METHODS[method]} of the vectors “{representation}”, by cosine"
    return text + (f"; left out: {', '.join(left_out.words())}" if left_out.words() else "")


def axis_labels(method: str, explained_variance: tuple[float, float] | None) -> tuple[str, str] | None:
    """The principal components with their shares of the variance; None if the axes have no meaning."""
    if method != "pca":
        return None
    shares = [f" ({share * 100:.1f} % of the variance)" for share in explained_variance or ()] or ["", ""]
    return f"principal component 1{shares[0]}", f"principal component 2{shares[1]}"


# ---- as a table


def map_table(drawn: ModelMap) -> bytes:
    """The map as a Parquet file with a row for each point, in the form that embedding-atlas reads.

    Columns:
        id: the number of the row, from 0.
        neighbors: {"ids": […], "distances": […]}, the nearest first; a distance is 1 minus the similarity.
        cluster: the cluster, if the map has clusters; null for outliers.

    Times are UTC. Names are exactly as on the Hub, without escapes.
    """
    import pyarrow as pa

    points = drawn.points
    near = drawn.neighbours or ((),) * len(points)
    clusters = next(
        (coloring for coloring in (drawn.coloring, *drawn.other_colorings) if coloring.column == "cluster"), None
    )
    cluster_of = clusters.name_of if isinstance(clusters, ColorGroups) else lambda _: None
    text, integer, fraction = pa.string(), pa.int64(), pa.float64()
    schema = pa.schema({
        "id": integer, "model_id": integer, "model": text, "author": text, "datasets": pa.list_(text), "relation": text,
        "licence": text, "downloads": integer, "created": pa.timestamp("s"), "x": fraction, "y": fraction,
        "cluster": text, "neighbors": pa.struct({"ids": pa.list_(integer), "distances": pa.list_(fraction)}),
    })  # fmt: skip
    rows = []
    for row, (point, points_near) in enumerate(zip(points, near, strict=True)):
        distances = [max(0.0, 1 - neighbour.cosine) for neighbour in points_near]
        neighbours = {"ids": [neighbour.row for neighbour in points_near], "distances": distances}
        rows.append(vars(point) | {"id": row, "cluster": cluster_of(row), "neighbors": neighbours})
    return parquet_of(pa.Table.from_pylist(rows, schema))
