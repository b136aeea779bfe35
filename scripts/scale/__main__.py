"""``python -m scripts.scale``: make atlases of several sizes, measure what they cost, and print it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

# A model's files while it is measured, and a vector's: segments are written again when they are merged.
_BYTES_A_MODEL, _BYTES_A_VECTOR = 120_000, 40_000


def main() -> int:
    """Exit 1 where synthetic models are unlike real ones, 2 on wrong use."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.scale",
        description="Make synthetic atlases with the statistics of real ones, and measure what they cost.",
    )
    parser.add_argument(
        "--models",
        type=_counts,
        default="10000,100000",
        metavar="N,N",
        help="sizes of atlases (default: %(default)s; 0 for none)",
    )
    parser.add_argument(
        "--vectors",
        type=_counts,
        default="1000000",
        metavar="N,N",
        help="sizes with vectors only (default: %(default)s; 0 for none)",
    )
    parser.add_argument("--work", type=Path, metavar="DIR", help="where atlases are made (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="leave them there")
    parser.add_argument("--seed", type=int, default=0, help="another population (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, too")
    parser.add_argument(
        "--real", type=Path, metavar="ATLAS", help="compare with this atlas instead of the figures that are kept"
    )
    parser.add_argument(
        "--doc", type=Path, metavar="FILE", help="measure nothing: fill docs/scale.md from the JSON of a run"
    )
    options = parser.parse_args()
    if options.doc:
        return _document(parser, options.doc)
    with tempfile.TemporaryDirectory(prefix="vectors-in-the-wild-scale-") as temporary:
        work = (options.work or Path(temporary)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        needed = max(
            [0, *(_BYTES_A_MODEL * n for n in options.models), *(_BYTES_A_VECTOR * n for n in options.vectors)]
        )
        free = shutil.disk_usage(work).free
        if needed > free:
            parser.error(f"{work} has {free / 1e9:.0f} GB free, {needed / 1e9:.0f} are needed: give another --work")
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")  # checks of large files are remembered there, not at home
        os.environ["HF_HUB_OFFLINE"] = "1"
        return _measure(options, work)


def _measure(options: argparse.Namespace, work: Path) -> int:
    from indexer.errors import AtlasError
    from scripts.scale.likeness import compare, compare_labels, measured_figures, real_figures
    from scripts.scale.measuring import measure_atlas
    from scripts.scale.million import measure_vectors
    from scripts.scale.results import Results, this_machine

    results = Results(machine=this_machine())
    try:
        real = measured_figures(options.real) if options.real else real_figures()
    except AtlasError as error:
        _say(f"python -m scripts.scale: error: --real: {error.message} {error.hint}")
        return 2
    results.likeness = compare_labels(seed=options.seed) + compare(real, seed=options.seed)
    atlases = [("atlas", results.atlases, measure_atlas, count) for count in options.models]
    vectors = [("vectors", results.vectors, measure_vectors, count) for count in options.vectors]
    for name, measured, measure, count in [*atlases, *vectors]:
        folder = work / f"{name}-{count}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            measured[count] = measure(folder, count, options.seed, _say)
        finally:
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)
        if options.json:
            results.write(options.json)
    if options.json:
        results.write(options.json)
    print(results.text())
    unlike = [one.name for one in results.likeness if not one.is_like]
    if unlike:
        print(f"\nUnlike real ones: {', '.join(unlike)}", file=sys.stderr)
    return 1 if unlike else 0


def _document(parser: argparse.ArgumentParser, source: Path) -> int:
    from scripts.scale.document import DOCUMENT, write_document
    from scripts.scale.results import read_results

    try:
        write_document(read_results(source))
    except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        parser.error(f"{source}: {error}")
    _say(f"{DOCUMENT} is filled from {source}")
    return 0


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers like 10000,100000") from None
    if any(count < 0 or 0 < count < 200 for count in counts):
        raise argparse.ArgumentTypeError("an atlas of fewer than 200 models says nothing")
    return [count for count in counts if count]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
