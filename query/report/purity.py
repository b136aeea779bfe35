"""Whether models tuned on one dataset lie together: by representation, compared with chance, and across authors."""

from __future__ import annotations

from functools import partial

from indexer.console.messages import say
from indexer.errors import AtlasError
from query.population import read_population
from query.purity.result import PurityResult, PurityScore, purity_figure, verdict
from query.purity.study import purity
from query.report.page import Section, Source, code, shorten
from query.wording import decimal, percent, span

OURS, ORIGINAL = "input", "seed"

# What each representation keeps of a delta, in the order of the table; others follow by name.
MEANINGS = {
    "input": "which inputs the deltas react to (the default)",
    "output": "which outputs they change",
    "delta": "both at once",
    "spectrum": "only how large the changes are",
    "seed": "the original method: singular vectors, averaged over layers",
    "seed_scaled": "the same, weighted by the singular values",
}

_DATASETS = 25


def every_representation(source: Source, section: Section) -> None:
    """A table and a picture of all published representations, an interpretation, and purity by dataset."""
    results = _results(source, section)
    scored = [result for result in results if result.purity is not None]
    if not scored:
        for note in dict.fromkeys(result.note for result in results):
            section.unavailable(f"Purity cannot be computed. {note}")
        return
    first, across = scored[0], scored[0].cross_author
    for sentence in verdict(first):
        section.paragraph(sentence)
    if first.representation == OURS:
        _comparison(first, scored, section)
    section.key_number(
        decimal(first.purity),
        f"purity: share of nearest neighbours tuned on the same data; by chance {decimal(first.chance)}",
    )
    if across.purity is not None:
        section.key_number(
            decimal(across.purity), f"the same among other authors' models only; by chance {decimal(across.chance)}"
        )
    _representations(results, section)
    purest = sorted(scored, key=lambda one: -(one.purity or 0.0))
    section.picture(
        partial(purity_figure, [(one.representation, one, one.cross_author) for one in purest]),
        "Dot plot of purity by representation: " + "; ".join(map(_in_a_line, scored)) + ".",
        [
            "Purity by representation, the highest first, with 95 % intervals over authors. Filled: all neighbours; "
            "hollow: those by other authors. Grey ticks: chance."
        ],
    )
    others = {row.dataset: row for row in first.cross_author.by_dataset}
    section.table(
        f"Purity by dataset, representation {first.representation}",
        {
            "dataset": "name", "models": "number", "purity": "number", "chance": "number", "cross-author": "number",
            "its chance": "number",
        },
        [
            (
                shorten(row.dataset), row.models, decimal(row.purity), decimal(row.chance, 3),
                decimal(others[row.dataset].purity) if row.dataset in others else None,
                decimal(others[row.dataset].chance, 3) if row.dataset in others else None,
            )
            for row in first.by_dataset
        ],
        most=_DATASETS,
        everything=source.command("purity", "--by dataset"),
    )  # fmt: skip


def _results(source: Source, section: Section) -> list[PurityResult]:
    rows = source.rows("SELECT representation FROM representations WHERE base = ? ORDER BY representation")
    names = [row["representation"] for row in rows]
    results = []
    for name in [*(name for name in MEANINGS if name in names), *(name for name in names if name not in MEANINGS)]:
        say(f"  purity of {name}")
        try:
            population = read_population(source.atlas, source.base, name, documented=True)
            results.append(purity(population, seed=source.seed))
        except AtlasError as error:
            section.unavailable(error)
    if not names:
        section.unavailable("No representation is published for this base.")
    return results


def _comparison(ours: PurityResult, scored: list[PurityResult], section: Section) -> None:
    """Compare with the original method, if it is published."""
    original = next((result for result in scored if result.representation == ORIGINAL), None)
    if original is None:
        command = code(f"index represent {ORIGINAL}")
        section.paragraph("To compare with the method that this project started from, publish it: ", command)
        return
    across = ""
    if original.cross_author.purity is not None and ours.cross_author.purity is not None:
        across = f" (across authors {percent(original.cross_author.purity)} and {percent(ours.cross_author.purity)})"
    section.paragraph(
        f"The method that this project started from, “{ORIGINAL}”, reaches {percent(original.purity)} on the same "
        f"models; “{OURS}” reaches {percent(ours.purity)}{across}."
    )


def _representations(results: list[PurityResult], section: Section) -> None:
    numbers = ("purity", "95 % interval", "chance", "p")

    def cells(score: PurityScore) -> tuple[str, ...]:
        interval = span(score.ci_low, score.ci_high)
        return decimal(score.purity), interval, decimal(score.chance, 3), decimal(score.p_value, 3)

    section.table(
        "Purity by representation",
        {
            "representation": "text",
            **dict.fromkeys([*numbers, *(f"{title}, cross-author" for title in numbers), "models"], "number"),
            "what it keeps": "prose",
        },
        [
            (
                code(result.representation), *cells(result), *cells(result.cross_author), result.models,
                MEANINGS.get(result.representation, ""),
            )
            for result in results
        ],
    )  # fmt: skip
    notes = []
    for result in results:
        own = [result.note, result.interval_note]
        across = [result.cross_author.note, result.cross_author.interval_note]
        found = [*own, *(f"across authors: {note}" for note in across if note and note not in own)]
        notes += [f"{result.representation}: {note}" for note in found if note]
    section.notes(dict.fromkeys(notes))


def _in_a_line(result: PurityResult) -> str:
    across = result.cross_author.purity
    words = f", across authors {decimal(across)}" if across is not None else ""
    return f"{result.representation} {decimal(result.purity)}{words}, chance {decimal(result.chance)}"
