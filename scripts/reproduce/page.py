"""``results.md``: tables and pictures of a study; and its own figure, purity by representation and base."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from indexer.console.messages import clean
from indexer.errors import require
from query.contract.figures import THEMES, Panels, draw, write_output
from scripts.reproduce.study import REPRESENTATIONS, SIDE_BY_SIDE, Json
from scripts.tables import markdown

NONE = "–"
PURITY_FIGURE = "figures/purity.png"
EXPLAINED = {
    "seed": "`seed` (U_r, layers averaged: the original method)",
    "seed_scaled": "`seed_scaled` (U_r Σ_r, layers averaged)",
    "input": "`input` (Σ σ v vᵀ per matrix: the default here)",
}
# Agreement of clusters with labels: column titles.
AGREEMENT = {
    ("datasets", "ari", "all"): "ARI with datasets",
    ("datasets", "ami", "all"): "AMI with datasets",
    ("datasets", "ari", "cross_author"): "ARI with datasets, across authors",
    ("datasets", "homogeneity", "clustered"): "homogeneity, in clusters",
    ("authors", "ari", "all"): "ARI with authors",
}


def page(results: Json) -> str:
    """The whole page, in Markdown."""
    limit = f", the first {results['limit']} models of each listing by downloads" if results["limit"] else ""
    used = ", ".join(f"{package} {version}" for package, version in results["versions"].items())
    title = (
        "# The study of the original bases\n\n"
        f"Source: {results['source']}{limit}. Rank 8, full spectra, similarity by cosine.\n\nVersions: {used}."
    )
    bases = results["bases"]
    sections = (section(bases) for section in (found, purity, clusters, ranks, planted, pictures, failed))
    return "\n\n".join(filter(None, [title, *sections])) + "\n"


def answer(one: Json, name: str) -> Any:
    """The answer to a question about a base; None if there is none."""
    return one["replies"].get(name, {}).get("answer")


def found(bases: Sequence[Json]) -> str:
    """Counts by base."""
    columns = (
        "indexed",
        "adapter",
        "copy",
        "duplicate",
        "unrelated",
        "skipped",
        "failed",
        "not_tried",
        "datasets",
        "authors",
    )
    rows = []
    for one in bases:
        counts = {**one["counts"], "adapter": one["counts"]["adapters"]}
        reasons = ", ".join(f"{reason} {count}" for reason, count in counts["reasons"].items())
        rows.append([f"`{one['base']}`", one["original_base"], *(str(counts[name] or 0) for name in columns),
                     f"{one['bytes_read'] / 1e6:,.0f}", reasons or NONE])  # fmt: skip
    head = ("base", "for", "indexed", "adapters", "copies", "duplicates", "unrelated", "skipped", "failed", "not tried",
            "datasets", "authors", "MB read", "why skipped or failed")  # fmt: skip
    return "## What was found\n\n" + markdown([head, *rows])


def purity(bases: Sequence[Json]) -> str:
    """Purity by representation and base, plain and across authors."""
    scored = [
        f"`{one['base']}` {found['models']} models on {found['datasets']} datasets"
        for one in bases
        if (found := answer(one, "purity-input"))
    ]
    return (
        "## Purity\n\n"
        "The share of a model's nearest neighbours that share a dataset with it; in brackets the 95 % interval over "
        "authors, then chance and p (at least 1/1001). The best of each base is bold. Scored: "
        f"{', '.join(scored) or 'nothing'}.\n\n{_by_representation(bases, lambda found: found)}\n\n"
        "The same where a model's own author is left out of its neighbours:\n\n"
        f"{_by_representation(bases, lambda found: found['cross_author'])}"
    )


def _by_representation(bases: Sequence[Json], part: Callable[[Any], Mapping[str, Any]]) -> str:
    """A row for each representation, a column for each base."""
    rows = [[EXPLAINED.get(name, f"`{name}`")] for name in REPRESENTATIONS]
    for one in bases:
        answers = [answer(one, f"purity-{name}") for name in REPRESENTATIONS]
        scores = [part(found) if found else {} for found in answers]
        best = max((score["purity"] for score in scores if score.get("purity") is not None), default=None)
        for row, score in zip(rows, scores, strict=True):
            value = score.get("purity")
            if value is None:
                row.append(score.get("note") or NONE)
                continue
            shown = f"**{value:.2f}**" if value == best else f"{value:.2f}"
            is_known = score.get("ci_low") is not None
            interval = f"({score['ci_low']:.2f}–{score['ci_high']:.2f})" if is_known else "(too few authors)"
            row.append(f"{shown} {interval}, chance {score['chance']:.3f}, p {score['p_value']:.3f}")
    return markdown([("representation", *(f"`{one['base']}`" for one in bases)), *rows])


def clusters(bases: Sequence[Json]) -> str:
    """How clusters agree with datasets and authors, the original vectors and ours side by side."""
    rows = []
    for one in bases:
        for name in SIDE_BY_SIDE:
            found = answer(one, f"clusters-{name}")
            if found is None:
                continue
            agreement = {(row["labels"], row["measure"], row["among"]): row for row in found["agreement"]}
            agreed = [agreement.get(key) for key in AGREEMENT]
            rows.append([
                f"`{one['base']}`", f"`{name}`", str(len(found["clusters"])), f"{found['clustered']} of {found['models']}",
                *(NONE if row is None or row["value"] is None else
                  f"{row['value']:.2f} ({number(row['chance'], 2)}, {number(row['p_value'], 3)})" for row in agreed),
            ])  # fmt: skip
    head = ("base", "vectors", "clusters", "models in them", *AGREEMENT.values())
    about = (
        "HDBSCAN on the vectors themselves; a model outside every cluster counts as a cluster of its own. In brackets "
        "chance and p."
    )
    return f"## Clusters\n\n{about}\n\n{markdown([head, *rows])}" if rows else ""


def ranks(bases: Sequence[Json]) -> str:
    """Rank by depth as equations: of the weights, as in the original study, and of the change."""
    parts = []
    for one in bases:
        families = []
        for of in ("weights", "delta"):
            # Families that exist only as undivided matrices come last.
            split, whole = (
                (answer(one, name) or {}).get("families", {}) for name in (f"rank-{of}", f"rank-{of}-whole")
            )
            families.append({**split, **{family: row for family, row in whole.items() if family not in split}})
        rows = [
            [f"`{family}`", *(cell for found in families for cell in _equation(found.get(family)))]
            for family in dict.fromkeys([*families[0], *families[1]])
        ]
        head = ("family", "W: first to last layer", "best fit", "δW: first to last layer", "best fit")
        parts += [f"`{one['base']}`:\n\n{markdown([head, *rows])}"] if rows else []
    about = "The mean over models of the smallest rank that holds half of Σ σ²; x is the layer, from 0."
    return f"## Rank by depth\n\n{about}\n\n" + "\n\n".join(parts) if parts else ""


def _equation(row: Mapping[str, Any] | None) -> tuple[str, str]:
    known = [rank for rank in row["ranks"] if rank is not None] if row else []
    if row is None or not known:
        return NONE, NONE
    return f"{known[0]:.1f} to {known[-1]:.1f}", f"`{row['fit']['equation']}`" if row.get("fit") else NONE


def planted(bases: Sequence[Json]) -> str:
    """Which of the planted repositories ended as expected."""
    checks = {one["base"]: one["check"] for one in bases if one["check"]}
    if not checks:
        return ""
    kinds = {base: {kind["kind"]: kind for kind in check["kinds"]} for base, check in checks.items()}
    rows = []
    for name in dict.fromkeys(name for of_base in kinds.values() for name in of_base):
        cells = [of_base.get(name) for of_base in kinds.values()]
        why = next(kind["why"] for kind in cells if kind)
        rows.append([name, *(f"{kind['as_expected']} of {kind['models']}" if kind else NONE for kind in cells), why])
    mismatches = [
        [f"`{row['model']}`", row["expected"], row["found"], row["why"]]
        for check in checks.values()
        for row in check["mismatches"]
    ]
    beyond = sum(check["not_tried"] for check in checks.values())
    parts = [
        "## What was planted\n\nHow many ended as expected, of how many there are, and one of the reasons.",
        markdown([("kind", *(f"`{base}`" for base in checks), "why"), *rows]),
        "Not as expected:\n\n" + markdown([("model", "expected", "found", "why"), *mismatches]) if mismatches else "",
        f"{beyond} models are beyond the limit." if beyond else "",
    ]
    return "\n\n".join(filter(None, parts))


def pictures(bases: Sequence[Json]) -> str:
    """Every figure, and links to the pages."""
    parts = [f"## Pictures\n\n![Purity by representation]({PURITY_FIGURE})"]
    for one in bases:
        parts.append(f"### {one['base']}")
        files = {name: reply["file"] for name, reply in one["replies"].items() if reply["file"]}
        parts += [f"{'!' if file.endswith('.png') else ''}[{name}]({file})" for name, file in files.items()]
    return "\n\n".join(parts)


def failed(bases: Sequence[Json]) -> str:
    """Questions without an answer."""
    rows = [
        [f"`{reply['command']}`", from_hub(reply["error"])]
        for one in bases
        for reply in one["replies"].values()
        if reply["error"] is not None
    ]
    return "## Without an answer\n\n" + markdown([("command", "error"), *rows]) if rows else ""


def from_hub(text: str) -> str:
    """Text that others wrote, shown literally: no Markdown, no HTML, no control characters."""
    return re.sub(r"([\\`*_\[\]#!~])", r"\\\1", html.escape(clean(text), quote=False))


def number(value: float | None, digits: int) -> str:
    """A number, or a dash; never "-0.00"."""
    return NONE if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def draw_purity(bases: Sequence[Json], out: Path) -> None:
    """Purity with its interval against chance, plain and across authors."""
    require("A figure", "matplotlib")
    from matplotlib.lines import Line2D

    theme = THEMES["light"]
    ways = {"all models": theme.palette[0], "other authors’ models": theme.palette[4]}
    apart = 0.16  # of a row: distance of the two marks from its middle
    panels = Panels([len(bases)], (2.4, 2.0), margin=(1.4, 1.4))
    for panel, (axes, one) in enumerate(zip(panels, bases, strict=True)):
        for row, name in enumerate(REPRESENTATIONS):
            found = answer(one, f"purity-{name}") or {}
            scores = (found, found.get("cross_author", {}))
            for score, colour, place in zip(scores, ways.values(), (row - apart, row + apart), strict=True):
                if score.get("purity") is None:
                    continue
                if score["ci_low"] is not None:
                    axes.plot([score["ci_low"], score["ci_high"]], [place, place], color=colour, linewidth=2, alpha=0.5)
                axes.plot(score["purity"], place, "o", color=colour, markersize=5)
                axes.plot([score["chance"]] * 2, [place - apart, place + apart], color=theme.ink, linewidth=1.2)
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])  # short, so that panels do not touch
        axes.set_ylim(len(REPRESENTATIONS) - 0.5, -0.5)
        axes.set_yticks(range(len(REPRESENTATIONS)), REPRESENTATIONS if panel == 0 else [""] * len(REPRESENTATIONS))
        axes.set_title(one["base"], fontsize=8, color=theme.ink, parse_math=False)
        axes.grid(axis="x", color=theme.faint, linewidth=0.6)
        axes.set_axisbelow(True)
        if panel:
            axes.tick_params(axis="y", length=0)
    marks = [Line2D([], [], color=colour, marker="o", markersize=5, label=way) for way, colour in ways.items()]
    marks.append(Line2D([], [], color=theme.ink, marker="|", markersize=9, linestyle="none", label="chance"))
    panels.figure.legend(
        handles=marks, loc="outside lower center", ncols=3, frameon=False, fontsize=8, labelcolor=theme.ink
    )
    panels.figure.suptitle("Purity: the share of nearest neighbours that share a dataset", color=theme.ink, fontsize=10)
    write_output(out, draw(panels.figure, out.suffix))
