"""Run as a script: places the models of a base, and writes them (``Placed``) as JSON to stdout, or an error."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

from indexer.errors import AtlasError, install
from query.browse.places import Placed
from query.map.coloring import ColorGroups, coloring
from query.map.map import MOST_CLUSTERED, models_to_place, place_models
from query.map.points import how_placed, what_axes_are
from query.reader import AtlasReader


def placed_models(atlas: AtlasReader, base: str, method: str) -> Placed:
    """The distinct models of ``base``, with the clusters of an atlas that is not too large for them."""
    notes: tuple[str, ...] = ()
    if method == "umap" and find_spec("umap") is None:
        method, notes = "pca", (f"The map is a PCA, as umap-learn is not installed. {install('studies')}",)
    population = models_to_place(atlas, base)
    projection, further = place_models(atlas, population, method)
    clusters: list[str | None] = [None] * len(population.ids)
    if len(population.ids) <= MOST_CLUSTERED:
        found = coloring(atlas, population, "cluster")
        clusters = [found.of(row) for row in range(len(clusters))] if isinstance(found, ColorGroups) else clusters
    return Placed(
        ids=tuple(map(int, population.ids)),
        x=tuple(map(float, projection.places[:, 0])),
        y=tuple(map(float, projection.places[:, 1])),
        clusters=tuple(clusters),
        subtitle=how_placed(projection.method, "input", population.left_out),
        axes=what_axes_are(projection.method, projection.explained_variance),
        notes=(*notes, *further),
    )


def main() -> int:
    """Arguments: the atlas's folder, the base, the method."""
    folder, base, method = sys.argv[1:]
    try:
        with AtlasReader(folder) as atlas:
            sys.stdout.buffer.write(placed_models(atlas, base, method).to_json())
    except AtlasError as error:
        json.dump({"error": str(error)}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
