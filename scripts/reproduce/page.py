"""``results.md``, tables and pictures of what a study found, and its figure: purity by representation and base."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from indexer.console.messages import clean
from indexer.errors import require
from query.figures import THEMES, draw, styled_grid, write_output
from scripts.reproduce.study import REPRESENTATIONS, SIDE_BY_SIDE, BaseResults, Results

NONE = "–"
_MARKDOWN = re.compile(r"([\\`*_\[\]#!~])")
SHOWN = (".png", ".svg")
MOST_DATASETS = 15
EXPLAINED = {
    "seed": "`seed` (U_r, layers averaged: the original method)",
    "seed_scaled": "`seed_scaled` (U_r Σ_r, layers averaged)",
    "input": "`input` (Σ σ v vᵀ per matrix: the default here)",
}
THEME = "light"
OWN, ACROSS = THEMES[THEME].palette[0], THEMES[THEME].palette[4]
APART = 0.16  # of a row: how far the two marks stand from its middle


def page(results: Results) -> str:
    """The whole page, in Markdown."""
    sections = (run, found, purity, datasets, clusters, ranks, planted, pictures, seconds, commands)
    return "\n\n".join(filter(None, (section(results) for section in sections))) + "\n"


def run(results: Results) -> str:
    """Title, source and versions."""
    limit = f", the first {results.limit} models of each listing by downloads" if results.limit else ""
    used = ", ".join(f"{package} {version}" for package, version in results.versions.items())
    return (
        "# The study of the seed's bases\n\n"
        f"Source: {results.source}{limit}. Rank 8, full spectra, similarity by cosine.\n\n"
        f"Versions: {used}."
    )


def found(results: Results) -> str:
    """Counts by base."""
    rows = []
    for one in results.bases:
        counts = one.counts
        reasons = ", ".join(f"{reason} {count}" for reason, count in counts.reasons.items())
        rows.append([
            f"`{one.base}`", one.seed_base, str(counts.indexed), str(counts.adapters),
            f"{counts.copies} / {counts.duplicates} / {counts.unrelated}", str(counts.skipped), str(counts.failed),
            str(counts.not_tried), str(counts.datasets), str(counts.authors), f"{one.bytes_read / 1e6:,.0f}",
            reasons or NONE,
        ])  # fmt: skip
    head = (
        "base", "for", "indexed", "of these adapters", "copies / duplicates / unrelated", "skipped", "failed",
        "not tried", "datasets", "authors", "MB read", "why skipped or failed",
    )  # fmt: skip
    return "## What was found\n\n" + table(head, rows)


def purity(results: Results) -> str:
    """Purity by representation and base, plain and across authors."""
    scored = [
        f"`{one.base}` {answer['models']} models on {answer['datasets']} datasets"
        for one in results.bases
        if (answer := one.answer("purity-input"))
    ]
    return (
        "## Purity\n\n"
        "The share of a model's nearest neighbours that share a dataset with it; in brackets the 95 % interval over "
        "authors, then chance and p (at least 1/1001). The best of each base is bold. Scored: "
        f"{', '.join(scored) or 'nothing'}.\n\n{_by_representation(results, lambda answer: answer)}\n\n"
        "The same where a model's own author is left out of its neighbours:\n\n"
        f"{_by_representation(results, lambda answer: answer['cross_author'])}"
    )


def _by_representation(results: Results, part: Callable[[Any], Mapping[str, Any]]) -> str:
    """A row for each representation, a column for each base."""
    columns = []
    for one in results.bases:
        answers = {name: one.answer(f"purity-{name}") for name in REPRESENTATIONS}
        scores = {name: part(answer) if answer else {} for name, answer in answers.items()}
        best = max((score["purity"] for score in scores.values() if score.get("purity") is not None), default=None)
        columns.append([_score(score, best) for score in scores.values()])
    rows = [
        [EXPLAINED.get(name, f"`{name}`"), *cells]
        for name, cells in zip(REPRESENTATIONS, zip(*columns, strict=True), strict=True)
    ]
    return table(("representation", *(f"`{one.base}`" for one in results.bases)), rows)


def _score(score: Mapping[str, Any], best: float | None) -> str:
    """A purity with its interval, chance and p; the note where there is no number."""
    value = score.get("purity")
    if value is None:
        return score.get("note") or NONE
    shown = f"**{value:.2f}**" if value == best else f"{value:.2f}"
    is_known = score.get("ci_low") is not None
    interval = f"({score['ci_low']:.2f}–{score['ci_high']:.2f})" if is_known else "(too few authors)"
    return f"{shown} {interval}, chance {score['chance']:.3f}, p {score['p_value']:.3f}"


def datasets(results: Results) -> str:
    """Purity of the largest datasets, with ours."""
    by_base = [
        {row["dataset"]: row for row in (one.answer("purity-input") or {}).get("by_dataset", ())}
        for one in results.bases
    ]
    sizes: dict[str, int] = {}
    for answer in by_base:
        for name, row in answer.items():
            sizes[name] = sizes.get(name, 0) + row["models"]
    names = sorted(sizes, key=lambda name: (-sizes[name], name))[:MOST_DATASETS]
    if not names:
        return ""
    rows = [[from_hub(name), *(_of_dataset(answer.get(name)) for answer in by_base)] for name in names]
    head = ("dataset", *(f"`{one.base}`" for one in results.bases))
    return "## Purity by dataset, `input`\n\nThe number of models, purity, and chance.\n\n" + table(head, rows)


def _of_dataset(row: Mapping[str, Any] | None) -> str:
    return NONE if row is None else f"{row['models']}: {row['purity']:.2f}, {row['chance']:.2f}"


def clusters(results: Results) -> str:
    """How clusters agree with datasets and authors, the seed's vectors and ours side by side."""
    rows = []
    for one in results.bases:
        for name in SIDE_BY_SIDE:
            answer = one.answer(f"clusters-{name}")
            if answer is None:
                continue
            agreement = {(row["labels"], row["measure"], row["among"]): row for row in answer["agreement"]}
            rows.append([
                f"`{one.base}`", f"`{name}`", str(len(answer["clusters"])), f"{answer['clustered']} of {answer['models']}",
                *(_agreed(agreement.get(key)) for key in AGREEMENT),
            ])  # fmt: skip
    head = ("base", "vectors", "clusters", "models in them", *AGREEMENT.values())
    about = (
        "HDBSCAN on the vectors themselves, a model outside every cluster counted as one of its own. In brackets "
        "chance and p."
    )
    return f"## Clusters\n\n{about}\n\n{table(head, rows)}" if rows else ""


AGREEMENT = {
    ("datasets", "ari", "all"): "ARI with datasets",
    ("datasets", "ami", "all"): "AMI with datasets",
    ("datasets", "ari", "cross_author"): "ARI with datasets, across authors",
    ("datasets", "homogeneity", "clustered"): "homogeneity, in clusters",
    ("authors", "ari", "all"): "ARI with authors",
}


def _agreed(row: Mapping[str, Any] | None) -> str:
    if row is None or row["value"] is None:
        return NONE
    return f"{row['value']:.2f} ({number(row['chance'], 2)}, {number(row['p_value'], 3)})"


def ranks(results: Results) -> str:
    """Rank by depth as equations: of the weights, which is the seed's question, and of the change."""
    parts = []
    for one in results.bases:
        weights, delta = (_families(one, of) for of in ("weights", "delta"))
        rows = [
            [f"`{family}`", *_equation(weights.get(family)), *_equation(delta.get(family))]
            for family in dict.fromkeys([*weights, *delta])
        ]
        head = ("family", "W: first to last layer", "best fit", "δW: first to last layer", "best fit")
        parts += [f"`{one.base}`:\n\n{table(head, rows)}"] if rows else []
    about = "The mean over models of the smallest rank that holds half of Σ σ²; x is the layer, from 0."
    return f"## Rank by depth\n\n{about}\n\n" + "\n\n".join(parts) if parts else ""


def _families(one: BaseResults, of: str) -> dict[str, Any]:
    """Families of one study of rank, and after them those that only the undivided matrices have."""
    split, whole = ((one.answer(name) or {}).get("families", {}) for name in (f"rank-{of}", f"rank-{of}-whole"))
    return {**split, **{family: answer for family, answer in whole.items() if family not in split}}


def _equation(answer: Mapping[str, Any] | None) -> tuple[str, str]:
    known = [rank for rank in answer["ranks"] if rank is not None] if answer else []
    if answer is None or not known:
        return NONE, NONE
    return f"{known[0]:.1f} to {known[-1]:.1f}", f"`{answer['fit']['equation']}`" if answer.get("fit") else NONE


def planted(results: Results) -> str:
    """Which of the planted repositories ended as they should."""
    checks = [(one.base, one.check) for one in results.bases if one.check]
    if not checks:
        return ""
    kinds = {base: {kind.kind: kind for kind in check.kinds} for base, check in checks}
    names = dict.fromkeys(kind.kind for _, check in checks for kind in check.kinds)
    rows = []
    for name in names:
        of_bases = [kinds[base].get(name) for base, _ in checks]
        why = next(kind.why for kind in of_bases if kind)
        rows.append([name, *(f"{kind.as_expected} of {kind.models}" if kind else NONE for kind in of_bases), why])
    mismatches = [
        [f"`{mismatch.model}`", mismatch.expected, mismatch.found, mismatch.why]
        for _, check in checks
        for mismatch in check.mismatches
    ]
    beyond = sum(check.not_tried for _, check in checks)
    parts = [
        "## What was planted\n\nHow many ended as they should, of how many there are, and one of the reasons.",
        table(("kind", *(f"`{base}`" for base, _ in checks), "why"), rows),
        "Otherwise than expected:\n\n" + table(("model", "expected", "found", "why"), mismatches) if mismatches else "",
        f"{beyond} models lie beyond the limit." if beyond else "",
    ]
    return "\n\n".join(filter(None, parts))


def pictures(results: Results) -> str:
    """Every figure, and links to the pages."""
    parts = [_shown("Purity by representation", results.purity_figure)]
    for one in results.bases:
        parts.append(f"### {one.base}")
        parts += [_shown(reply.name, reply.file) for reply in one.replies.values() if reply.file]
    return "## Pictures\n\n" + "\n\n".join(parts)


def _shown(title: str, file: str) -> str:
    """A picture that Markdown shows, else a link."""
    return f"{'!' if file.endswith(SHOWN) else ''}[{title}]({file})"


def seconds(results: Results) -> str:
    """How long everything took, when it was done."""
    parts = list(dict.fromkeys(part for one in results.bases for part in one.seconds))
    rows = [[f"`{one.base}`", *(number(one.seconds.get(part), 0) for part in parts)] for one in results.bases]
    publishing = sum(results.represent_seconds.values())
    total = sum(sum(one.seconds.values()) for one in results.bases) + publishing
    return (
        f"## Seconds\n\n{table(('base', *parts), rows)}\n\n"
        f"Publishing the representations of all bases: {publishing:.0f}. All together: {total:.0f}. "
        "What was there already counts with the time that it took."
    )


def commands(results: Results) -> str:
    """Every question as it was typed, and what had no answer."""
    replies = [reply for one in results.bases for reply in one.replies.values()]
    lines = "\n".join(f"$ {reply.command}" for reply in replies)
    failed = [[f"`{reply.command}`", from_hub(reply.error)] for reply in replies if reply.error is not None]
    without = "\n\nWithout an answer:\n\n" + table(("command", "it said"), failed) if failed else ""
    return f"## Commands\n\n```console\n{lines}\n```{without}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; what would end a cell or a line is made harmless."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def from_hub(text: str) -> str:
    """Text that somebody else wrote, shown as it stands: neither Markdown nor HTML, no control characters."""
    return _MARKDOWN.sub(r"\\\1", html.escape(clean(text), quote=False))


def number(value: float | None, digits: int) -> str:
    """A number, or a dash; nothing is "-0.00"."""
    return NONE if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def draw_purity(results: Results, out: Path) -> None:
    """Purity with its interval against chance, plain and across authors; ``out`` is .png, .svg or .pdf."""
    require("A figure", "matplotlib")
    from matplotlib.lines import Line2D

    ink, bases = THEMES[THEME].ink, results.bases
    figure, grid = styled_grid(2.4 * len(bases) + 1.4, 3.4, 1, len(bases), THEME)
    for panel, (axes, one) in enumerate(zip([grid] if len(bases) == 1 else grid.flat, bases, strict=True)):
        _draw_base(axes, one, is_first=panel == 0)
    marks = [
        Line2D([], [], color=OWN, marker="o", markersize=5, label="all models"),
        Line2D([], [], color=ACROSS, marker="o", markersize=5, label="other authors’ models"),
        Line2D([], [], color=ink, marker="|", markersize=9, linestyle="none", label="chance"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=3, frameon=False, fontsize=8, labelcolor=ink)
    figure.suptitle("Purity: the share of nearest neighbours that share a dataset", color=ink, fontsize=10)
    write_output(out, draw(figure, out.suffix))


def _draw_base(axes: Any, one: BaseResults, *, is_first: bool) -> None:
    ink = THEMES[THEME].ink
    for row, name in enumerate(REPRESENTATIONS):
        answer = one.answer(f"purity-{name}") or {}
        for score, colour, place in (
            (answer, OWN, row - APART),
            (answer.get("cross_author", {}), ACROSS, row + APART),
        ):
            if score.get("purity") is None:
                continue
            if score["ci_low"] is not None:
                axes.plot([score["ci_low"], score["ci_high"]], [place, place], color=colour, linewidth=2, alpha=0.5)
            axes.plot(score["purity"], place, "o", color=colour, markersize=5)
            axes.plot([score["chance"]] * 2, [place - APART, place + APART], color=ink, linewidth=1.2)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])  # neighbours' ends do not touch
    axes.set_ylim(len(REPRESENTATIONS) - 0.5, -0.5)
    axes.set_yticks(range(len(REPRESENTATIONS)), REPRESENTATIONS if is_first else [""] * len(REPRESENTATIONS))
    axes.set_title(one.base, fontsize=8, color=ink, parse_math=False)
    axes.grid(axis="x", color=THEMES[THEME].faint, linewidth=0.6)
    axes.set_axisbelow(True)
    if not is_first:
        axes.tick_params(axis="y", length=0)
