"""A map as a table for programs: one Parquet file, whose neighbours are as embedding-atlas reads them."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from query.map.coloring import ColorGroups

if TYPE_CHECKING:
    from query.map.points import PlacedModels


def map_table(drawn: PlacedModels) -> bytes:
    """A row for each point, in order.

    ``id``: the number of the row, from 0, which ``neighbors`` speaks of: {"ids": […], "distances": […]}, the nearest
    first, a distance being 1 minus the similarity. ``cluster``: where the map knows clusters; null for outliers. Times
    are UTC. Names are as the Hub has them, not made harmless.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    points = drawn.points
    near = drawn.neighbours or ((),) * len(points)
    clusters = next((one for one in (drawn.coloring, *drawn.other_colorings) if one.column == "cluster"), None)
    of_cluster = clusters.of if isinstance(clusters, ColorGroups) else lambda _: None
    columns = {
        "id": pa.array(range(len(points)), pa.int64()),
        "model_id": pa.array([one.model_id for one in points], pa.int64()),
        "model": pa.array([one.model for one in points], pa.string()),
        "author": pa.array([one.author for one in points], pa.string()),
        "datasets": pa.array([list(one.datasets) for one in points], pa.list_(pa.string())),
        "relation": pa.array([one.relation for one in points], pa.string()),
        "licence": pa.array([one.licence for one in points], pa.string()),
        "downloads": pa.array([one.downloads for one in points], pa.int64()),
        "created": pa.array([one.created for one in points], pa.timestamp("s")),
        "x": pa.array([one.x for one in points], pa.float64()),
        "y": pa.array([one.y for one in points], pa.float64()),
        "cluster": pa.array([of_cluster(row) for row in range(len(points))], pa.string()),
        "neighbors": pa.array(
            [
                {"ids": [one.place for one in row], "distances": [max(0.0, 1 - one.cosine) for one in row]}
                for row in near
            ],
            pa.struct({"ids": pa.list_(pa.int64()), "distances": pa.list_(pa.float64())}),
        ),
    }
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target, compression="zstd")
    return target.getvalue()


def viewer_command(file: Path) -> str:
    """The line that opens the table in embedding-atlas."""
    return f"embedding-atlas {shlex.quote(str(file))} --text model --x x --y y --neighbors neighbors"
