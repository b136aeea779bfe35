"""The results as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from scripts.tables import markdown
from scripts.trace.check import CAUSES

Row = Mapping[str, Any]


def shown(value: Any) -> str:
    """Three digits of a number; a dash for nothing."""
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table of values."""
    return markdown([headings, *([shown(cell) for cell in row] for row in rows)])


def rows_table(found: Sequence[Row]) -> str:
    """Where untouched rows end and met ones begin, by three measures of a row."""
    headings = ["run", "dtype", "untouched", "met", "met last", "no gradient"]
    for measure in ("ulp from c·e", "ulp from neighbours", "entries beyond", "norm"):
        headings += [f"{measure}: untouched max", "met min", "overlap"]
    lines = []
    for row in (row for row in found if row["untouched"]):
        line = [row[name] for name in ("run", "dtype", "untouched", "met", "only_last", "without_gradient")]
        for measure in ("units", "curve", "beyond", "norm"):
            line += [row[f"{measure}_{part}"] for part in ("untouched_max", "met_min", "overlap")]
        lines.append(line)
    return table(headings, lines)


TEXTS = ["run", "class", "met", "called untouched", "without gradient", "without mark", "never met", "called met", "unsure", "used",
         "certified", *CAUSES, "of the ids", "with the cut known", "unused certified", "of other data", "Spearman", "AUC"]  # fmt: skip
_TEXTS = ["run", "kind", "met", "met_called_untouched", "of_these_without_gradient", "of_these_without_mark", "never", "never_called_met",
          "unsure", "used", "used_certified", *CAUSES, "seen_certified", "cut_certified", "unused_own", "unused_others", "spearman", "auc"]  # fmt: skip


def check_tables(found: Sequence[Row]) -> str:
    """One line a run, one for each architecture and class, and a total."""
    parts = [table(TEXTS, [[{**row, **row.get("causes", {})}.get(name) for name in _TEXTS] for row in found])]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        groups.setdefault((row["architecture"], row["kind"]), []).append(row)
    lines = [group_line(architecture, kind, rows) for (architecture, kind), rows in sorted(groups.items())]
    lines.append(group_line("all", "all", found))
    parts.append(
        table(
            ["architecture", "class", "models", "met called untouched", "never met called met", "unsure", "used texts",
             "certified", "without a mark", "with the cut known", "unused certified", "of other data", "Spearman", "AUC", "length right", "pairs right", "masked right"],
            lines,
        )
    )  # fmt: skip
    shares = sorted({share for row in found for share in row.get("limits", {})}, key=float)
    if shares:
        lines = []
        for share in shares:
            rows = [row["limits"][share] for row in found if share in row.get("limits", {})]
            lines.append(
                [
                    share,
                    len(rows),
                    fmean(row["covered"] for row in rows),
                    min(row["covered"] for row in rows),
                    fmean(row["limit"] for row in rows),
                ]
            )
        parts.append(
            table(
                ["share of a file used", "exact models", "limit covers it", "in the worst model", "mean limit"], lines
            )
        )
    wrong = [row["run"] for row in found if row.get("used_certified")]
    without = sum(row.get("used_without_mark") or 0 for row in found)
    parts.append(f"Used texts certified absent that changed no bit of the rows it is by: {without}")
    parts.append(
        f"Used texts certified absent though training changed such a row: {sum(row.get('used_certified') or 0 for row in found)}{': ' if wrong else ''}{', '.join(wrong)}"
    )
    return "\n\n".join(parts)


def group_line(architecture: str, kind: str, rows: Sequence[Row]) -> list[Any]:
    """Sums of counts and means of shares."""

    def total(name: str) -> int:
        return sum(row.get(name) or 0 for row in rows)

    def mean(name: str) -> float | None:
        values = [row[name] for row in rows if row.get(name) is not None]
        return fmean(values) if values else None

    def right(claim: str, truth: str) -> str:
        made = [row for row in rows if row.get(claim) is not None]
        return f"{sum(row[claim] == row[truth] for row in made)} of {len(made)}"

    return [
        architecture, kind, len(rows), total("met_called_untouched"), total("never_called_met"), total("unsure"),
        total("used"), total("used_certified"), total("used_without_mark"), total("cut_certified"), mean("unused_own"), mean("unused_others"), mean("spearman"), mean("auc"),
        right("positions", "longest"), right("pairs", "pairs_true"), right("masked", "masked_true"),
    ]  # fmt: skip
