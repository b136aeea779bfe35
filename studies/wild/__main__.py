"""``python -m studies.wild``: index real adapters of strangers from a loopback Hub, and print what the answers are worth.

The adapters are not part of this project. Where their folder is absent, there is nothing to measure, which is no error.
``--starts`` prints instead in how many adapters of each kind the start is found, and what that takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from indexer.errors import AtlasError
from query import Atlas
from query.faces.atlas import opened
from query.models.reader import AtlasReader
from query.questions.predict.evaluation import evaluate_models
from query.questions.predict.training_set import LabelledModelReader
from query.shared.statistics.authors import AuthorRuns
from query.shared.statistics.neighbours import codes_of
from scripts.child import PROJECT
from scripts.family.__main__ import ENVIRONMENT
from scripts.tables import decimal, fill, markdown, write_from_run
from scripts.terminal import CommandFailed, Terminal, exit_status, indexed
from studies.arena.scores import Json, Reals

FOLDER = PROJECT.parent / "shared" / "data" / "wild" / "gpt2"
DOCUMENT = PROJECT / "docs" / "evidence" / "wild.md"
NULLS = 20  # permutations of the labels that predictions are made for


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies.wild", description=__doc__.partition(": ")[2])
    parser.add_argument(
        "--folder",
        type=Path,
        default=FOLDER,
        metavar="PATH",
        help="a folder with one folder for each adapter (default: %(default)s)",
    )
    parser.add_argument(
        "--tsv",
        type=Path,
        metavar="FILE",
        help="the table of these adapters: id, author, dataset and others (default: FOLDER.tsv)",
    )
    parser.add_argument("--base", metavar="ID", help="their base (default: the one that most of them name)")
    parser.add_argument(
        "--base-files",
        type=Path,
        metavar="FOLDER",
        help="config.json and weights of the base (default: random weights of its shape, which only DoRA and its like depend on)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path(".demo/wild"), help="where repositories and atlas go (default: %(default)s)"
    )
    parser.add_argument("--starts", action="store_true", help="print the table of starts instead")
    parser.add_argument(
        "--draws",
        type=int,
        default=300,
        metavar="N",
        help="with --starts: random adapters that have no start (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--doc", type=Path, metavar="RUN", help=f"only fill docs/evidence/{DOCUMENT.name} from the JSON of a run"
    )
    options = parser.parse_args(arguments)
    if options.doc:
        return write_from_run(parser, options.doc, write_document, DOCUMENT)
    table = options.tsv or options.folder.with_name(f"{options.folder.name}.tsv")
    for path in (options.folder, table):
        if not path.exists():
            print(
                f"Skipped: {path} is absent. Name a folder of adapters with --folder, and its table with --tsv.",
                file=sys.stderr,
            )
            return 0
    os.environ.update(ENVIRONMENT)  # before anything imports torch

    return exit_status("The study", lambda: run(options, table))


def run(options: argparse.Namespace, table: Path) -> None:
    """Write the repositories, build the atlas (once), measure, and print."""
    from studies.wild.collection import read_collection, write
    from studies.wild.starts import measure_starts, starts_tables

    collection = read_collection(options.folder, table, options.base, options.base_files)
    out = options.out.resolve() / collection.base.replace("/", "--")
    models, is_there = out / "models", out / f"{collection.fingerprint}.models"
    if not is_there.exists():
        write(collection, models)
        is_there.touch()
    if options.starts:
        found = measure_starts(models, collection.base, [one.model for one in collection.adapters], options.draws)
        print(json.dumps(found, indent=2) if options.json else starts_tables(found))
        return
    with contextlib.redirect_stdout(sys.stderr):
        atlas = indexed(models, out, collection.base, collection.fingerprint)
        published = represent(out)
    found = measure(atlas, collection.base, models, published) | {"absent": collection.absent}
    print(json.dumps(found, indent=2) if options.json else tables_of(found))


def write_document(found: Json) -> None:
    """Fill the tables of a run into the page."""
    from studies.wild.starts import starts_tables

    if "sources" in found:
        fill(DOCUMENT, {"wild:starts": starts_tables(found)})
    else:
        fill(DOCUMENT, {"wild:figures": tables_of(found)})


def represent(out: Path) -> dict[str, str]:
    """Publish every representation that is measured in the atlas of this folder; why one could not be, by name."""
    from studies.wild.methods import MEASURED

    run_command = Terminal(out)
    refused = {}
    there = {
        row["representation"] for row in json.loads(run_command('query sql "FROM representations" --json', show=False))
    }
    for name in MEASURED:
        if name not in there:
            try:
                run_command(f"index represent {name}", progress=False)
            except CommandFailed as failure:
                refused[name] = failure.said
    return refused


def measure(folder: Path, base: str, models: Path, refused: Mapping[str, str]) -> Json:
    """The figures of every method, and of `query predict`, as plain JSON.

    ``models``: the repositories; ``refused``: representations without vectors, and why.
    """
    from studies.wild.methods import LEFT_OUT, MEASURED, of_weights, published, read
    from studies.wild.scores import scores_of

    with Atlas(folder) as atlas, opened(atlas) as reader:
        population = read(reader, base, models)
        known = np.flatnonzero(population.has_start)
        labels, authors = population.labels, population.authors
        methods: Json = {}

        def add(name: str, similarity: Reals) -> None:
            some = similarity[np.ix_(known, known)]
            of_known = scores_of(some, [labels[row] for row in known], [authors[row] for row in known])
            methods[name] = {"all": scores_of(similarity, labels, authors).to_dict(), "known": of_known.to_dict()}
            print(f"  {name}: {_counted(methods[name]['all']['nearest'])}", file=sys.stderr, flush=True)

        for name in MEASURED:
            if name not in refused:
                add(f"`{name}`", published(reader, base, name, population.models))
        for name, similarity in of_weights(population):
            add(name, similarity)
        return {
            "base": base,
            "adapters": len(population.models),
            "authors": len(set(authors)),
            "datasets": len({name for names in labels for name in names}),
            "labelled": sum(map(bool, labels)),
            "starts": {"found": len(known), "adapters": len(population.models)},
            "outcomes": reader.rows(
                "SELECT status, reason, count(*) AS models FROM fine_tunes WHERE base = ? GROUP BY ALL ORDER BY ALL",
                [base],
            ),
            "methods": methods,
            "predict": {name: predicted(reader, base, name) for name in MEASURED if name not in refused},
            "left_out": LEFT_OUT | {f"`{name}`": why for name, why in refused.items()},
        }


def predicted(atlas: AtlasReader, base: str, representation: str) -> Json | None:
    """`query predict --evaluate` by vectors alone, the same with labels exchanged between authors, and two baselines."""
    models = LabelledModelReader(atlas, representation).read(base)
    try:
        found = evaluate_models(models, base=base, representation=representation)
    except AtlasError:  # there are too few authors to predict from
        return None
    scores, ends = ({one.evidence: one for one in rows} for rows in (found.scores, found.intervals))
    sweeps = AuthorRuns(codes_of(models.authors), models.datasets)
    draw = np.random.default_rng(0)
    null = []
    for _ in range(NULLS):
        moved = sweeps.permuted(np.arange(len(sweeps.labels)), draw)
        exchanged = [sweeps.labels[moved[sweep]] for sweep in sweeps.of_model.tolist()]
        again = evaluate_models(replace(models, datasets=exchanged))
        null.append(next(one.accuracy for one in again.scores if one.evidence == "vectors"))
    low, high = ends["vectors"].accuracy or (None, None)
    return {
        "models": found.models,
        "sweeps": found.sweeps,
        "right": scores["vectors"].accuracy,
        "low": low,
        "high": high,
        "null": float(np.mean(null)),
        "commonest": scores["majority"].accuracy,
        "chance": scores["chance"].accuracy,
    }


# ---- what is printed


def tables_of(found: Json) -> str:
    """Markdown: of all adapters, of those with a known start, and predictions."""
    starts, first = found["starts"], next(iter(found["methods"].values()))
    lines = [
        f"{found['adapters']} adapters of {found['base']} by {found['authors']} authors, {found['labelled']} of them on "
        f"public data sets ({found['datasets']}). The start is known of {_counted_of(starts['found'], starts['adapters'])}."
    ]
    lines += [
        f"Not indexed, {row['status']} ({row['reason']}): {row['models']}."
        for row in found["outcomes"]
        if row["status"] != "indexed"
    ]
    if found["absent"]:
        lines.append(f"Rows of the table without a folder: {found['absent']}.")
    lines += [f"Not measured: {name}, because {why}." for name, why in found["left_out"].items()]
    parts = ["\n".join(lines)]
    for form, title in (("all", "All adapters"), ("known", "Only adapters with a known start, among themselves")):
        chances = ", ".join(f"{name} {decimal(first[form][name]['chance'], 2)}" for name in ("nearest", "purity"))
        parts += [f"### {title} (chance: {chances})", markdown(list(_by_method(found["methods"], form)))]
    rows: list[Sequence[str]] = [
        ("representation", "models, sweeps", "right", "95 %", "labels exchanged", "commonest label", "chance")
    ]
    for name, one in found["predict"].items():
        if one is not None:
            figures = (decimal(one[key], 2) for key in ("null", "commonest", "chance"))
            rows.append(
                [f"`{name}`", f"{one['models']}, {one['sweeps']}", decimal(one["right"], 2), _span(one), *figures]
            )
    return "\n\n".join([*parts, "### `query predict --evaluate` by vectors alone", markdown(rows)])


def _by_method(methods: Mapping[str, Json], form: str) -> Iterator[Sequence[str]]:
    yield ("method", "adapters", "nearest by another author", "95 %", "labels exchanged", "purity across authors", "95 %",
           "labels exchanged", "vote", "95 %", "labels exchanged")  # fmt: skip
    for name, both in methods.items():
        one = both[form]
        cells = [name, f"{one['compared']}"]
        for figure in ("nearest", "purity", "vote"):
            score = one[figure]
            share = _counted(score) if figure == "nearest" else decimal(score["share"], 2)
            p = "" if score["p"] is None else f", p {score['p']:.1g}".replace("0.", ".", 1)
            cells += [share, _span(score), f"{decimal(score['null'], 2)}{p}"]
        yield cells


def _counted(score: Mapping[str, Any]) -> str:
    return "–" if score["share"] is None else _counted_of(round(score["share"] * score["models"]), score["models"])


def _counted_of(count: int, models: int) -> str:
    return f"{count} of {models} = {decimal(count / models if models else None, 2)}"


def _span(score: Mapping[str, Any]) -> str:
    return "–" if score["low"] is None else f"{decimal(score['low'], 2)} to {decimal(score['high'], 2)}"


if __name__ == "__main__":
    sys.exit(main())
