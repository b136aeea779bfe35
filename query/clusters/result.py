"""The result of `query clusters`: clusters, members and agreement, as objects, rows and tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from query.clusters.agreement import Agreement
from query.clusters.methods import OUTLIER
from query.population import LeftOut
from query.results import Result, to_frame
from query.wording import counted, decimal

if TYPE_CHECKING:
    import pandas

_SHOWN = 10  # outliers and undocumented models
AGREE = ("datasets", "ami", "all")  # labels, measure and models of the headline's number


@dataclass(frozen=True)
class Member:
    """One model that was clustered. ``dataset``: the one it counts under (``leading_datasets``), or None.

    ``cluster``: -1 for an outlier. ``strength``: how firmly it belongs, 0 to 1 (hdbscan: HDBSCAN's probability;
    kmeans: the cosine with the centre). ``nearest``: an outlier's highest cosine with any other model. ``task``: what
    it does (``population.tasks_of``); None if unknown or not asked for.
    """

    model_id: int
    model: str
    author: str
    relation: str
    dataset: str | None
    datasets: tuple[str, ...]
    cluster: int
    strength: float
    is_central: bool
    nearest: float | None
    task: str | None = None


@dataclass(frozen=True)
class Cluster:
    """One cluster; counts are in descending order. ``datasets`` counts each model once, under its ``dataset``.

    ``central``: the member with the highest cosine with the cluster's centre (its mean direction), which is also the
    member with the highest mean cosine with all members; ties by id. ``cohesion``: mean cosine over pairs of members,
    None for a single member. ``documented``: members that name a dataset. ``probably``: the dataset of most of them,
    and ``share`` their share. ``undocumented``: the members for which ``probably`` is a guess.
    """

    cluster: int
    size: int
    datasets: dict[str, int]
    authors: dict[str, int]
    central: str
    cohesion: float | None
    documented: int
    probably: str | None
    share: float | None
    undocumented: tuple[str, ...]
    relations: dict[str, int]


@dataclass(frozen=True, repr=False)
class Clusters(Result):
    """The clusters of one base, numbered from 0 by size, ties by their lowest model id.

    ``members``: every model that took part, by ascending id. ``min_size``: HDBSCAN's setting. ``count``: the number of
    clusters given to or chosen by k-means. ``agreement``: every measure with its chance level. ``by``: task if the
    clusters were also compared with tasks, which the headline is then about; else dataset.
    """

    HAS_DETAILS = True
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
    by: str = "dataset"

    @property
    def labels(self) -> dict[int, int]:
        """Model id → cluster number, -1 for an outlier; without the models that were left out."""
        return {member.model_id: member.cluster for member in self.members}

    @property
    def outliers(self) -> list[Member]:
        """Models outside every cluster, the most isolated first."""
        outside = [member for member in self.members if member.cluster == OUTLIER]
        return sorted(outside, key=lambda member: (-2.0 if member.nearest is None else member.nearest, member.model_id))

    def value(self, labels: str, measure: str, among: str = "all") -> float | None:
        """One value of ``agreement``."""
        rows = (row for row in self.agreement if (row.labels, row.measure, row.among) == (labels, measure, among))
        return next((row.value for row in rows), None)

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object.

        ``ari`` and ``ami`` compare with datasets, each outlier being a cluster of its own; ``homogeneity`` and
        ``completeness`` compare clustered models with datasets; ``silhouette`` is that of the clusters. ``agreement``
        has their chance levels, and the same for authors.
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
        } | ({"tasks": self.to_rows("task")} if self.by == "task" else {})

    def names_in(self, cluster: int) -> list[str]:
        """The models of one cluster, by id."""
        return [member.model for member in self.members if member.cluster == cluster]

    @property
    def headline(self) -> str:
        """How many models are in how many clusters, and whether clusters and datasets agree."""
        placed = sum(cluster.size for cluster in self.clusters)
        if not placed:
            return f"None of {counted(len(self.members), 'model')} lies in a cluster."
        found = (
            f"Of {counted(len(self.members), 'model')} {placed:,} lie in {counted(len(self.clusters), 'cluster')}, "
            f"{len(self.members) - placed:,} in none."
        )
        asked = (f"{self.by}s", *AGREE[1:])
        row = next((row for row in self.agreement if (row.labels, row.measure, row.among) == asked), None)
        if row is None or row.value is None:
            return found
        chance = "" if row.chance is None else f" (chance {decimal(row.chance)}, p {row.p_value:.2g})"
        agree = f"Clusters and {self.by}s agree to {decimal(row.value)} of 1 by adjusted mutual information"
        return f"{found} {agree}{chance}."

    def to_rows(self, by: str = "cluster") -> list[dict[str, Any]]:
        """A row for each cluster, each member (``by="model"``) or each task. Raises ValueError for another ``by``."""
        if by == "model":
            return [asdict(member) for member in self.members]
        if by == "task":
            names = sorted({member.task for member in self.members if member.task is not None})
            of_task = {name: [one for one in self.members if one.task == name] for name in names}
            return [
                {
                    "task": name,
                    "models": len(held),
                    "datasets": sorted({one.dataset for one in held if one.dataset}),
                    "clusters": sorted({one.cluster for one in held if one.cluster != OUTLIER}),
                    "outliers": sum(one.cluster == OUTLIER for one in held),
                }
                for name, held in of_task.items()
            ]
        if by != "cluster":
            raise ValueError(f"unknown rows {by!r} (choose cluster, model or task)")
        counts = ("datasets", "authors", "relations")
        return [
            {name: list(value) if name in counts else value for name, value in asdict(cluster).items()}
            for cluster in self.clusters
        ]

    def to_df(self, by: str = "model") -> pandas.DataFrame:
        """The rows of :meth:`to_rows`, by default one per model, as a data frame."""
        columns = [field.name for field in fields(Member)] if by == "model" else ()
        return to_frame(self.to_rows(by), columns)

    def table(self, *, details: bool = False) -> dict[str, Any]:
        """The numbers of ``to_dict``, shorter: the first names, in separate tables.

        ``details``: all names, and every number of ``agreement``.
        """
        agreement = [row for row in self.agreement if row.value is not None]
        if not details:
            shown = ("cross_author", "cross_dataset", "within_dataset")
            agreement = [row for row in agreement if row.measure == AGREE[1] or row.among in shown]
        if not any(member.cluster == OUTLIER for member in self.members):
            # Then the numbers among clustered models repeat those among all.
            agreement = [row for row in agreement if row.among != "clustered" or row.measure not in ("ari", "ami")]
        clusters, central, undocumented = [], [], []
        for group in self.clusters:
            probably = {"probably": group.probably, "share": group.share}
            undocumented += [{"model": one, "cluster": group.cluster, **probably} for one in group.undocumented]
            central.append({"cluster": group.cluster, "central": group.central, "cohesion": group.cohesion})
            clusters.append(
                {
                    "cluster": group.cluster,
                    "size": group.size,
                    "dataset": group.probably,
                    "share": group.share,
                    "authors": len(group.authors),
                    "undocumented": len(group.undocumented),
                }
            )
        tables: dict[str, list[dict[str, Any]]] = {"clusters": clusters, "most central": central}
        isolated = [{"model": one.model, "nearest": one.nearest, "dataset": one.dataset} for one in self.outliers]
        for title, rows in (("undocumented", undocumented), ("most isolated", isolated)):
            if details or len(rows) <= _SHOWN:
                tables[title] = rows
            else:
                tables[f"{title}, the first {_SHOWN} of {len(rows)}"] = rows[:_SHOWN]
        tables["tasks"] = self.to_rows("task")
        tables["agreement"] = [
            {
                "labels": row.labels,
                "measure": row.measure,
                "among": "against cloud" if row.against == "cloud" else row.among,
                "value": _short(row.value),
                "chance": _short(row.chance),
                "p": row.p_value,
            }
            for row in agreement
        ]
        return {
            "base": self.base,
            "representation": self.representation,
            "method": self.method + (f", at least {self.min_size} in a cluster" if self.min_size else ""),
            "left_out": self.left_out.words() or "none",
            **{title: rows for title, rows in tables.items() if rows},
        }


def _short(number: float | None) -> float | None:
    return None if number is None else round(number, 4) + 0.0  # no "-0.0"
