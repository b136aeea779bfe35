"""Whether models tuned on one dataset lie together: by representation, beside chance, and across authors."""

from __future__ import annotations

from functools import partial

from indexer.console.messages import say
from indexer.errors import AtlasError
from query.population import read_population
from query.purity.picture import purity_figure
from query.purity.result import PurityResult, PurityScore, verdict
from query.purity.study import purity
from query.report.markup import Column, Part, code, told
from query.report.pictures import add_picture
from query.report.section import Section, Source, Writer
from query.wording import count, decimal, percent, span

ANCHOR, TITLE = "purity", "Do models tuned on the same data lie together?"

OURS, SEEDS = "input", "seed"

# What each representation keeps of a delta, in the order in which they are told; others follow by name.
MEANINGS = {
    "input": "which inputs the deltas react to (the default)",
    "output": "which outputs they change",
    "delta": "both at once",
    "spectrum": "only how large the changes are",
    "seed": "the original method: singular vectors, averaged over layers",
    "seed_scaled": "the same, weighted by the singular values",
}

_DATASETS = 25


def write(source: Source) -> Section:
    """A table and a picture of all published representations, a verdict in words, and purity by dataset."""
    writer = Writer(ANCHOR, TITLE)
    results = _results(source, writer)
    scored = [result for result in results if result.purity is not None]
    if not scored:
        for note in dict.fromkeys(result.note for result in results):
            writer.lack(f"Purity cannot be computed. {note}")
        return writer.done()
    first = scored[0]
    for sentence in verdict(first):
        writer.paragraph(sentence)
    if first.representation == OURS:
        writer.paragraph(*_comparison(first, scored))
    writer.key_number(
        decimal(first.purity),
        f"purity: share of nearest neighbours tuned on the same data; by chance {decimal(first.chance)}",
    )
    if first.cross_author.purity is not None:
        other = first.cross_author
        writer.key_number(
            decimal(other.purity), f"the same among other authors' models alone; by chance {decimal(other.chance)}"
        )
    _write_table(results, writer)
    purest = sorted(scored, key=lambda one: -(one.purity or 0.0))
    add_picture(
        writer,
        partial(purity_figure, [(one.representation, one, one.cross_author) for one in purest]),
        "Dot plot of purity by representation: " + "; ".join(map(_in_a_line, scored)) + ".",
        "Purity by representation, the highest first, with 95 % intervals over authors. Filled: all neighbours, hollow:"
        " those by other authors. The grey ticks are chance: dots to the right of them know more than chance.",
    )
    _write_datasets(source, first, writer)
    return writer.done()


def _results(source: Source, writer: Writer) -> list[PurityResult]:
    rows = source.rows("SELECT representation FROM representations WHERE base = ? ORDER BY representation")
    names = [row["representation"] for row in rows]
    order = [name for name in MEANINGS if name in names] + [name for name in names if name not in MEANINGS]
    results = []
    for name in order:
        say(f"  purity of {name}")
        try:
            population = read_population(source.atlas, source.base, name, documented=True)
            results.append(purity(population, seed=source.seed))
        except AtlasError as error:
            writer.lack(error)
    if not names:
        writer.lack("No representation is published for this base.")
    return results


def _comparison(ours: PurityResult, scored: list[PurityResult]) -> list[Part]:
    """The original method beside ours, where both are published."""
    seeds = next((result for result in scored if result.representation == SEEDS), None)
    if seeds is None:
        return [
            "To compare with the method that this project started from, publish it: ",
            code(f"index represent {SEEDS}"),
        ]
    across = ""
    if seeds.cross_author.purity is not None and ours.cross_author.purity is not None:
        across = f" (across authors {percent(seeds.cross_author.purity)} and {percent(ours.cross_author.purity)})"
    return [
        f"The method that this project started from, “{SEEDS}”, reaches {percent(seeds.purity)} on the same models; "
        f"“{OURS}” {percent(ours.purity)}{across}."
    ]


def _write_table(results: list[PurityResult], writer: Writer) -> None:
    numbers = ("purity", "95 % interval", "chance", "p")
    titles = [*numbers, *(f"{title}, cross-author" for title in numbers), "models"]
    writer.table(
        "Purity by representation",
        (Column("representation"), *(Column(title, "number") for title in titles), Column("what it keeps", "prose")),
        [
            (
                code(result.representation), *_cells(result), *_cells(result.cross_author), count(result.models),
                MEANINGS.get(result.representation, ""),
            )
            for result in results
        ],
    )  # fmt: skip
    writer.notes(
        dict.fromkeys(f"{result.representation}: {note}" for result in results for note in _notes(result) if note)
    )


def _cells(score: PurityScore) -> tuple[str, ...]:
    return (
        decimal(score.purity), span(score.ci_low, score.ci_high), decimal(score.chance, 3), decimal(score.p_value, 3)
    )  # fmt: skip


def _notes(result: PurityResult) -> list[str]:
    across = [result.cross_author.note, result.cross_author.interval_note]
    own = [result.note, result.interval_note]
    return [*own, *(f"across authors: {note}" for note in across if note and note not in own)]


def _in_a_line(result: PurityResult) -> str:
    across = result.cross_author.purity
    return f"{result.representation} {decimal(result.purity)}" + (
        f", across authors {decimal(across)}" if across is not None else ""
    ) + f", chance {decimal(result.chance)}"  # fmt: skip


def _write_datasets(source: Source, result: PurityResult, writer: Writer) -> None:
    across = {row.dataset: row for row in result.cross_author.by_dataset}
    writer.table(
        f"Purity by dataset, representation {result.representation}",
        (
            Column("dataset", "name"), Column("models", "number"), Column("purity", "number"),
            Column("chance", "number"), Column("cross-author", "number"), Column("its chance", "number"),
        ),
        [
            (
                told(row.dataset), count(row.models), decimal(row.purity), decimal(row.chance, 3),
                decimal(across[row.dataset].purity) if row.dataset in across else None,
                decimal(across[row.dataset].chance, 3) if row.dataset in across else None,
            )
            for row in result.by_dataset
        ],
        most=_DATASETS,
        everything=source.command("purity", "--by dataset"),
    )  # fmt: skip
