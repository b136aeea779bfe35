"""What clustering found, as programs and people read it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from query.clusters.agreement import Agreement
from query.clusters.members import Cluster, Member
from query.clusters.methods import OUTLIER
from query.extras import to_frame
from query.population import LeftOut
from query.results import Result
from query.wording import counted, decimal

if TYPE_CHECKING:
    import pandas

_SHOWN = 10  # outliers and undocumented models
AGREE = ("datasets", "ami", "all")  # the row of the agreement that one sentence is about


@dataclass(frozen=True, repr=False)
class Clusters(Result):
    """What clustering says of one base. Clusters are numbered from 0 by size, ties by their lowest model id.

    ``members``: every model that took part, ids ascending. ``min_size`` is HDBSCAN's, ``count`` how many clusters
    k-means was asked for or chose, else None. ``agreement``: every number with its chance level.
    """

    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("share", "authors", "cohesion", "among", "p", "nearest", "undocumented")

    base: str
    representation: str
    method: str
    min_size: int | None
    count: int | None
    clusters: tuple[Cluster, ...]
    members: tuple[Member, ...]
    agreement: tuple[Agreement, ...]
    left_out: LeftOut
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[int, int]:
        """Model id → cluster number, -1 for an outlier; models that were left out are not in it."""
        return {member.model_id: member.cluster for member in self.members}

    @property
    def outliers(self) -> list[Member]:
        """Models in no cluster, the most isolated first."""
        outside = [member for member in self.members if member.cluster == OUTLIER]
        return sorted(outside, key=lambda member: (-2.0 if member.nearest is None else member.nearest, member.model_id))

    def value(self, labels: str, measure: str, among: str = "all") -> float | None:
        """One number of ``agreement``."""
        rows = (row for row in self.agreement if (row.labels, row.measure, row.among) == (labels, measure, among))
        return next((row.value for row in rows), None)

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object. ``ari``, ``ami``: with datasets, every outlier a cluster of its own.

        ``homogeneity`` and ``completeness``: with datasets, among clustered models. ``silhouette``: of the
        clusters. Their chance levels, and the same for authors, are in ``agreement``.
        """
        placed = sum(cluster.size for cluster in self.clusters)
        outside = ("model_id", "model", "author", "relation", "datasets", "nearest")
        return {
            "clusters": [asdict(one) | {"members": self.names_in(one.cluster)} for one in self.clusters],
            "ari": self.value("datasets", "ari"),
            "ami": self.value("datasets", "ami"),
            "homogeneity": self.value("datasets", "homogeneity", "clustered"),
            "completeness": self.value("datasets", "completeness", "clustered"),
            "silhouette": self.value("clusters", "silhouette", "clustered"),
            "base": self.base,
            "representation": self.representation,
            "method": self.method,
            "min_size": self.min_size,
            "count": self.count,
            "models": len(self.members),
            "documented": sum(member.dataset is not None for member in self.members),
            "clustered": placed,
            "clustered_share": placed / len(self.members) if self.members else None,
            "outliers": len(self.members) - placed,
            "outlier_models": [{name: getattr(member, name) for name in outside} for member in self.outliers],
            "agreement": [asdict(row) for row in self.agreement],
            "left_out": asdict(self.left_out),
            "notes": list(self.notes),
        }

    def names_in(self, cluster: int) -> list[str]:
        """The models of one cluster, in order of id."""
        return [member.model for member in self.members if member.cluster == cluster]

    @property
    def headline(self) -> str:
        """How many models lie in how many clusters, and whether clusters and datasets agree."""
        placed = sum(cluster.size for cluster in self.clusters)
        if not placed:
            return f"Of {counted(len(self.members), 'model')} none lies in a cluster."
        found = (
            f"Of {counted(len(self.members), 'model')} {placed:,} lie in {counted(len(self.clusters), 'cluster')}, "
            f"{len(self.members) - placed:,} in none."
        )
        row = next((row for row in self.agreement if (row.labels, row.measure, row.among) == AGREE), None)
        if row is None or row.value is None:
            return found
        chance = "" if row.chance is None else f" (chance {decimal(row.chance)}, p {row.p_value:.2g})"
        return (
            f"{found} Clusters and datasets agree to {decimal(row.value)} of 1 by adjusted mutual information{chance}."
        )

    def to_rows(self, by: str = "cluster") -> list[dict[str, Any]]:
        """A row for each cluster, or (``by="model"``) for each model that took part. Raises ValueError on another."""
        if by == "model":
            return [asdict(member) for member in self.members]
        if by != "cluster":
            raise ValueError(f"rows by {by!r}: there are those by cluster and by model")
        counts = ("datasets", "authors", "relations")
        return [
            {name: list(value) if name in counts else value for name, value in asdict(cluster).items()}
            for cluster in self.clusters
        ]

    def to_df(self, by: str = "model") -> pandas.DataFrame:
        """The rows of :meth:`to_rows`, by default one for each model, as a data frame."""
        columns = [field.name for field in fields(Member)] if by == "model" else ()
        return to_frame(self.to_rows(by), columns)

    def table(self, *, details: bool = False) -> dict[str, Any]:
        """The same numbers as ``to_dict``, shorter: names in tables of their own, the first of them.

        ``details``: all names, and every number of the agreement.
        """
        silent = [(model, group) for group in self.clusters for model in group.undocumented]
        outliers = self.outliers
        most = None if details else _SHOWN
        agreement = [_agreement(row) for row in self.agreement if _is_worth_a_line(row, bool(outliers), details)]
        tables = {
            "clusters": [_row(group) for group in self.clusters],
            "most central": [
                {"cluster": group.cluster, "central": group.central, "cohesion": group.cohesion}
                for group in self.clusters
            ],
            _first("undocumented", silent, most): [
                {"model": model, "cluster": group.cluster, "probably": group.probably, "share": group.share}
                for model, group in silent[:most]
            ],
            _first("most isolated", outliers, most): [
                {"model": outlier.model, "nearest": outlier.nearest, "dataset": outlier.dataset}
                for outlier in outliers[:most]
            ],
            "agreement": agreement,
        }
        return {
            "base": self.base,
            "representation": self.representation,
            "method": self.method + (f", at least {self.min_size} in a cluster" if self.min_size else ""),
            "left_out": self.left_out.words() or "none",
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


def _is_worth_a_line(row: Agreement, are_outliers: bool, details: bool) -> bool:
    """Without details: how clusters agree with datasets and with authors, and those across either."""
    if not details and row.measure != AGREE[1] and not row.among.startswith("cross_"):
        return False
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


def _first(title: str, rows: list[Any], most: int | None) -> str:
    return title if most is None or len(rows) <= most else f"{title}, the first {most} of {len(rows)}"
