"""A map of the fine-tunes of one base: each model a point, near where its vector is near. Printed, or explored.

Unrelated models are left out, because they would squeeze the others into a corner; copies have no vector, and one
model stands for its duplicates. All are counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from indexer.errors import AtlasError
from query.figures import FORMATS, checked_output, draw, write_output
from query.map.coloring import ColorGroups, Coloring, coloring
from query.map.nearest import known_near, read_nearest
from query.map.parents import read_parents
from query.map.points import MapPoint, NearPoint, PlacedModels
from query.map.projection import METHODS, Projection, most_neighbours, project, usual_method
from query.population import Population, distinct, read_population
from query.statistics.likeness import points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.reader import AtlasReader
    from query.results import ThemeName

PAGE, TABLE = ".html", ".parquet"
NEIGHBOURS = 8  # nearest models that the page shows of each model
ALSO_BY = ("dataset", "cluster", "author", "relation", "licence", "downloads")  # colours that the page offers besides
MOST_COMPARED = 20_000  # models up to which UMAP compares each with each
MOST_CLUSTERED = 5000  # models up to which clusters are found without being asked for: more take minutes


@dataclass(frozen=True, repr=False)
class ModelMap(PlacedModels):
    """A map, drawn on request: as a picture to print or a page to explore."""

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """The map as a picture fit for print; ``theme`` is light or dark."""
        from query.map.picture import map_figure

        return map_figure(self, theme, ax)

    def html(self) -> str:
        """The map as a page to explore: one file that needs nothing else."""
        from query.map.page import map_page

        return map_page(self)

    def write(self, path: str | Path, theme: ThemeName = "light") -> None:
        """Write a .png, .svg, .pdf, .html or .parquet. A page has both themes and follows the reader's.

        Raises AtlasError on another suffix, or where the file cannot be written.
        """
        file = checked_map_file(path)
        suffix = file.suffix.lower()
        if suffix == PAGE:
            write_output(file, self.html().encode())
        elif suffix == TABLE:
            from query.map.parquet import map_table

            write_output(file, map_table(self))
        else:
            write_output(file, draw(self.figure(theme), suffix))


def checked_map_file(path: str | Path) -> Path:
    """A file that a map can be written to, before any work. Raises AtlasError: another suffix, no such folder."""
    return checked_output(path, (*FORMATS, PAGE, TABLE))


def model_map(
    atlas: AtlasReader,
    base: str | None = None,
    *,
    method: Literal["umap", "tsne", "pca"] | None = None,
    color: str = "dataset",
    representation: str = "input",
    seed: int = 0,
) -> ModelMap:
    """Place the distinct fine-tunes of ``base`` in the plane, and say what colours them.

    ``method``: umap, tsne or pca (see :func:`query.map.projection.project`); None: tsne below 1,000 models, else umap.
    ``color``: dataset, author, cluster or a column of the view ``models`` (see :func:`query.map.coloring.coloring`).
    Raises AtlasError where there is no model to place, an unknown method or column, or a representation that is not
    published.
    """
    population = models_to_place(atlas, base, representation)
    chosen = coloring(atlas, population, color, seed)  # before the work: there may be no such column
    placed, notes = place_models(atlas, population, method, seed)
    is_quick = len(population.ids) <= MOST_CLUSTERED
    others = [name for name in ALSO_BY if name != color and (is_quick or name != "cluster")]
    return ModelMap(
        base=population.base,
        representation=representation,
        method=placed.method,
        seed=seed,
        points=_points(atlas, population, placed, chosen),
        coloring=chosen,
        explained_variance=placed.explained_variance,
        left_out=population.left_out,
        notes=notes,
        other_colorings=tuple(coloring(atlas, population, name, seed) for name in others),
        neighbours=_neighbours(atlas, population),
        parents=read_parents(atlas, population.base),
        hub=atlas.crawl_of(population.base).endpoint,
    )


def models_to_place(atlas: AtlasReader, base: str | None, representation: str = "input") -> Population:
    """The distinct fine-tunes of ``base``. Raises AtlasError where there is none."""
    population = distinct(read_population(atlas, base, representation))
    if not len(population.ids):
        why = f" (left out: {', '.join(population.left_out.words())})" if population.left_out.words() else ""
        raise AtlasError(
            f"There is no model of {population.base} to place{why}.",
            f"Index more: `build({population.base!r})`",
        )
    return population


def place_models(
    atlas: AtlasReader, population: Population, method: str | None = None, seed: int = 0
) -> tuple[Projection, tuple[str, ...]]:
    """Where the models lie, and what is to be said of that; see :func:`query.map.projection.project`.

    Of many, UMAP is given the neighbours that the atlas keeps: to find them again would take much longer than the rest.
    """
    near = None
    method = method or usual_method(len(population.ids))
    if method == "umap" and len(population.ids) > MOST_COMPARED:
        stored = read_nearest(atlas, population.base, population.representation)
        near = known_near(stored, population.ids, most_neighbours(len(population.ids)))
    placed = project(points(population.vectors, population.blocks).astype(np.float32), method, seed, near)
    return placed, tuple(_notes(population, placed, method))


def _points(atlas: AtlasReader, population: Population, placed: Projection, chosen: Coloring) -> tuple[MapPoint, ...]:
    rows = atlas.rows("SELECT model_id, downloads, licence, created FROM models WHERE base = ?", [population.base])
    facts = {row["model_id"]: row for row in rows}
    return tuple(
        MapPoint(
            model_id=int(identity),
            model=population.models[row],
            author=population.authors[row],
            relation=population.relations[row],
            datasets=tuple(sorted(population.datasets[row])),
            downloads=facts[int(identity)]["downloads"],
            licence=facts[int(identity)]["licence"],
            created=facts[int(identity)]["created"],
            x=float(placed.places[row, 0]),
            y=float(placed.places[row, 1]),
            group=chosen.of(row) if isinstance(chosen, ColorGroups) else None,
            value=None if isinstance(chosen, ColorGroups) else chosen.values[row],
        )
        for row, identity in enumerate(population.ids)
    )


def _neighbours(atlas: AtlasReader, population: Population) -> tuple[tuple[NearPoint, ...], ...]:
    place = {int(identity): row for row, identity in enumerate(population.ids)}
    found: list[list[NearPoint]] = [[] for _ in place]
    near = read_nearest(atlas, population.base, population.representation)
    columns = (near.models, near.neighbours, near.similarities, near.backgrounds, near.coded)
    for model, neighbour, similarity, background, coded in zip(*(one.tolist() for one in columns), strict=True):
        row = place.get(model)
        if row is not None and neighbour in place and len(found[row]) < NEIGHBOURS:
            share = None if math.isnan(background) else background
            found[row].append(NearPoint(place[neighbour], similarity, share, round(-coded) if coded < 0 else None))
    return tuple(map(tuple, found))


def _notes(population: Population, placed: Projection, asked: str) -> list[str]:
    notes = []
    if placed.method != asked:
        notes.append(f"The vectors are too few, or too plain, for {METHODS[asked]}: their places are those of a PCA.")
    adapters = population.relations.count("adapter")
    if 0 < adapters < len(population.relations) and not population.blocks:
        notes.append(
            f"Adapters ({adapters}) have a shape of their own: they leave matrices untouched, and so cannot lie as "
            "close to full fine-tunes as these lie to each other."
        )
    return notes
