"""What takes the page long, run as a script that can be killed: one JSON object on stdout.

``ROOT place BASE [METHOD]`` places the models of a base (``Placed``). ``ROOT predict ID`` predicts the dataset of an
indexed model.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

from indexer.errors import AtlasError, ModelError, install
from query.browse.model import error_in_words, harmless
from query.browse.places import Placed
from query.map.coloring import ColorGroups, coloring
from query.map.map import MOST_CLUSTERED, models_to_place, place_models
from query.map.points import how_placed, what_axes_are
from query.map.projection import usual_method
from query.reader import AtlasReader


def placed_models(atlas: AtlasReader, base: str, method: str | None = None) -> Placed:
    """The distinct models of ``base``, with the clusters of an atlas that is not too large for them."""
    notes: tuple[str, ...] = ()
    population = models_to_place(atlas, base)
    method = method or usual_method(len(population.ids))
    if method == "umap" and find_spec("umap") is None:
        method, notes = "pca", (f"The map is a PCA, as umap-learn is not installed. {install('studies')}",)
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


def _answer(atlas: AtlasReader, what: str, *words: str) -> bytes:
    if what == "place":
        return placed_models(atlas, *words).to_json()
    from query.predict.predict import predict_indexed

    told = predict_indexed(atlas, int(words[0]))
    answer = {"headline": told.headline, "predictions": told.to_rows(), "notes": list(told.notes)}
    return json.dumps(harmless(answer), allow_nan=False).encode()


def main() -> int:
    """Answer the question in ``sys.argv``."""
    root, *question = sys.argv[1:]
    try:
        with AtlasReader(root) as atlas:
            answer = _answer(atlas, *question)
    except (AtlasError, ModelError, OSError) as error:
        answer = json.dumps({"error": error_in_words(error)}).encode()
    sys.stdout.buffer.write(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
