"""Clusters on a terminal: what a person reads first, in tables that are whole at 80 columns and tables still at 60."""

from __future__ import annotations

from typing import Any

from query.clusters.agreement import Agreement
from query.clusters.clusters import Clusters
from query.clusters.members import Cluster

_SHOWN = 10  # outliers and undocumented models


def sheet(clusters: Clusters) -> dict[str, Any]:
    """The same numbers as ``Clusters.to_dict``, shorter: names in tables of their own, ten outliers at most."""
    members, groups = clusters.members, clusters.clusters
    placed = sum(group.size for group in groups)
    silent = [(model, group) for group in groups for model in group.undocumented]
    outliers = clusters.outliers
    tables = {
        "clusters": [_row(group) for group in groups],
        "most central": [
            {"cluster": group.cluster, "central": group.central, "cohesion": group.cohesion} for group in groups
        ],
        _first("undocumented", silent): [
            {"model": model, "cluster": group.cluster, "probably": group.probably, "share": group.share}
            for model, group in silent[:_SHOWN]
        ],
        _first("most isolated", outliers): [
            {"model": outlier.model, "nearest": outlier.nearest, "dataset": outlier.dataset}
            for outlier in outliers[:_SHOWN]
        ],
        "agreement": [_agreement(row) for row in clusters.agreement if _is_worth_a_line(row, bool(outliers))],
    }
    return {
        "base": clusters.base,
        "representation": clusters.representation,
        "method": clusters.method + (f", at least {clusters.min_size} in a cluster" if clusters.min_size else ""),
        "models": len(members),
        "left_out": clusters.left_out.words() or "none",
        "clustered": f"{placed} in {len(groups)} clusters" if groups else "none",
        "outliers": len(outliers),
        **{title: rows for title, rows in tables.items() if rows},
    }


def _row(group: Cluster) -> dict[str, Any]:
    return {
        "cluster": group.cluster,
        "size": group.size,
        "dataset": group.probably,
        "share": group.share,
        "authors": len(group.authors),
        "undocumented": len(group.undocumented),
    }


def _is_worth_a_line(row: Agreement, are_outliers: bool) -> bool:
    is_repeated = not are_outliers and row.among == "clustered" and row.measure in ("ari", "ami")
    return row.value is not None and not is_repeated


def _agreement(row: Agreement) -> dict[str, Any]:
    return {
        "labels": row.labels,
        "measure": row.measure,
        "among": "against cloud" if row.against == "cloud" else row.among,
        "value": _short(row.value),
        "chance": _short(row.chance),
        "p": row.p_value,
    }


def _short(number: float | None) -> float | None:
    return None if number is None else round(number, 4) + 0.0  # no "-0.0"


def _first(title: str, rows: list[Any]) -> str:
    return title if len(rows) <= _SHOWN else f"{title}, the first {_SHOWN} of {len(rows)}"
