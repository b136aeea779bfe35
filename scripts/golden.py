"""Every number that a refactoring must not change, as JSON; and the differences between two such files.

Run it on one atlas before and after: purity of every model, all probabilities of predictions, clusters, lineage, ranks,
depth profiles and search results, base by base.

    python -m scripts.golden --atlas .demo/reproduce/atlas --out before.json
    python -m scripts.golden --atlas .demo/reproduce/atlas --out after.json --against before.json
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from indexer.errors import AtlasError
from query import Atlas

DIGITS = 7  # single precision has no more
NEIGHBOURS = 20
# Fields about when, where or how long something was done, not results.
LEFT_OUT = {"seconds", "answered_at", "bytes_read", "notes", "atlas"}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; exit status 1 where numbers differ by more than ``--tolerance``."""
    parser = argparse.ArgumentParser(prog="python -m scripts.golden", description=__doc__.partition("\n")[0])
    parser.add_argument("--atlas", default="atlas", help="the atlas to ask (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--against", type=Path, help="an earlier such file: print what differs")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of a number (default: %(default)s)")
    options = parser.parse_args(arguments)
    with Atlas(options.atlas) as atlas:
        numbers = {base: dict(answers(atlas, base)) for base in atlas.bases()}
    options.out.write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if options.against is None:
        return 0
    before = json.loads(options.against.read_text(encoding="utf-8"))
    found = list(differences(before, json.loads(options.out.read_text(encoding="utf-8")), options.tolerance))
    for line in found:
        print(line)
    print(f"{len(found)} differences above {options.tolerance:g}", file=sys.stderr)
    return int(bool(found))


def answers(atlas: Atlas, base: str) -> Iterator[tuple[str, Any]]:
    """(question, its answer as plain JSON) of one base; a question that cannot be answered gives its error."""
    models = [row["model"] for row in atlas.rows("SELECT model FROM models WHERE base = ? ORDER BY model", [base])]
    names = [
        row["representation"] for row in atlas.rows("SELECT representation FROM representations WHERE base = ?", [base])
    ]
    profiled = [row["model"] for row in atlas.rows("SELECT DISTINCT model FROM depth_of_models WHERE base = ?", [base])]
    evaluation = atlas.evaluate_prediction
    asked: dict[str, Callable[[], Any]] = {
        **{f"purity {name}": lambda name=name: atlas.purity(base, representation=name).to_dict(by_model=True)
           for name in sorted(names)},
        "evaluation": lambda: evaluation(base).to_dict(),
        "predictions": lambda: {
            one.asked: str(one.error) if one.answer is None else one.answer.to_rows()
            for one in atlas.predict_many(models, base=base)
        },
        "clusters": lambda: atlas.clusters(base).to_dict(),
        "kmeans": lambda: atlas.clusters(base, method="kmeans").to_dict(),
        "ranks of delta": lambda: atlas.rank(base).to_dict(),
        "ranks of weights": lambda: atlas.rank(base, of="weights").to_dict(),
        "lineage": lambda: atlas.rows(
            "SELECT child.model, parent.model AS parent, lineage.* EXCLUDE (model_id, parent_id) FROM lineage "
            "JOIN fine_tunes AS child USING (model_id) LEFT JOIN fine_tunes AS parent ON parent.model_id = parent_id "
            "WHERE child.base = ? ORDER BY ALL", [base],
        ),
        "search": lambda: {
            one.asked: str(one.error) if one.answer is None else one.answer.to_rows()
            for one in atlas.similar_many(models, NEIGHBOURS, base=base)
        },
        "search by others": lambda: {
            one.asked: str(one.error) if one.answer is None else one.answer.to_rows()
            for one in atlas.similar_many(models, NEIGHBOURS, base=base, other_authors=True)
        },
        "depth": lambda: {model: atlas.depth(model, base=base).to_dict() for model in sorted(profiled)},
        "layers": lambda: {model: atlas.layers(model, base).to_rows() for model in models},
    }  # fmt: skip
    for question, answer in asked.items():
        try:
            yield question, plain(answer())
        except AtlasError as error:
            yield question, f"error: {error.message}"


def plain(value: Any) -> Any:
    """The value as JSON has it, numbers rounded to DIGITS, without LEFT_OUT."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items() if name not in LEFT_OUT}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def differences(before: Any, after: Any, tolerance: float, where: str = "") -> Iterator[str]:
    """A line for each place at which two answers differ by more than ``tolerance``."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            if name not in before or name not in after:
                yield f"{where}/{name}: only {'after' if name in after else 'before'}"
            else:
                yield from differences(before[name], after[name], tolerance, f"{where}/{name}")
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{where}: {len(before)} entries before, {len(after)} after"
        for place, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from differences(one, other, tolerance, f"{where}[{place}]")
    elif isinstance(before, float) and isinstance(after, float | int):
        if abs(before - after) > tolerance * max(1.0, abs(before)):
            yield f"{where}: {before} before, {after} after"
    elif before != after:
        yield f"{where}: {before!r} before, {after!r} after"


if __name__ == "__main__":
    sys.exit(main())
