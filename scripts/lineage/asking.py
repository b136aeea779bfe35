"""Asks an atlas for the lineage of every model and writes the answers; a process of its own, with the Hub it is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def ask(atlas: Path, *, dates: bool, embeddings: bool) -> list[dict[str, Any]]:
    """One row for each model: its rows, bytes and notes.

    ``embeddings``: whether the base's embeddings can be had; without them blocks alone decide, as for vision models.
    """
    from query import Atlas
    from query.lineage.lineage import Tracer

    with Atlas(atlas) as opened:
        tracer = Tracer(opened, opened.base_named(None), dates=dates, embeddings=embeddings)
        found = [tracer.of_indexed(model_id) for model_id in tracer.indexed()]
    return [
        {
            "model": one.model,
            "base": one.base,
            "rows": [row | {"signals": {**edge.signals}} for row, edge in zip(one.to_rows(), one.edges, strict=True)],
            "bytes": one.bytes_read,
            "models": one.models_read,
            "notes": list(one.notes),
        }
        for one in found
    ]


if __name__ == "__main__":
    folder, out, *options = sys.argv[1:]
    told = ask(Path(folder), dates="--no-dates" not in options, embeddings="--no-embeddings" not in options)
    Path(out).write_text(json.dumps(told), encoding="utf-8")
