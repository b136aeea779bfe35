"""The result of `query clusters`: clusters, members and agreement, as objects, rows and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from query.contract.columns import (
    CLUSTERED_MODELS,
    LEFT_OUT,
    Author,
    BaseId,
    ModelId,
    ModelNumber,
    Notes,
    Relation,
    Vectors,
)
from query.contract.results import Detail, Doc, Format, Hidden, If, Result, Shown, plain
from query.models.population import LeftOut
from query.questions.clusters.agreement import Agreement
from query.questions.clusters.methods import OUTLIER
from query.shared.wording import counted, decimal

if TYPE_CHECKING:
    pass

# Documentation that several fields share.
_DATASETS = Doc("Datasets of the members, and how many models each has.")
_CLUSTER = Doc("Number of the cluster, the largest being 0; -1 for a model in none.")

_SHOWN = 10  # outliers and undocumented models
AGREE = ("datasets", "ami", "all")  # labels, measure and models of the headline's number


@dataclass(frozen=True)
class Member:
    """One model that was clustered.

    ``dataset``: see ``leading_datasets``. ``task``: see ``population.tasks_of``. ``strength``: HDBSCAN's probability,
    or, for k-means, the cosine with the centre. ``nearest``: a cosine.
    """

    model_id: ModelNumber
    model: ModelId
    author: Author
    relation: Relation
    dataset: Annotated[str | None, Doc("The dataset that most members name; for a model, the one it counts under.")]
    datasets: Annotated[tuple[str, ...], _DATASETS]
    cluster: Annotated[int, _CLUSTER]
    strength: Annotated[float, Doc("How firmly the model belongs to its cluster, from 0 to 1.")]
    is_central: Annotated[bool, Doc("Whether it is the central model of its cluster.")]
    nearest: Annotated[float | None, Doc("Similarity of a model in no cluster to its nearest model, from -1 to 1.")]
    task: Annotated[
        str | None, Doc("What the model does, by its head and its labels; empty if not known or not asked for.")
    ] = None


@dataclass(frozen=True)
class Cluster:
    """One cluster; counts are in descending order. ``datasets`` counts each model once, under its ``dataset``.

    ``central``: the member with the highest cosine with the cluster's centre (its mean direction), which is also the
    member with the highest mean cosine with all members; ties by id. ``cohesion``: None for a single member.
    """

    cluster: Annotated[int, _CLUSTER]
    size: Annotated[int, Doc("Number of models in it.")]
    datasets: Annotated[dict[str, int], _DATASETS]
    authors: Annotated[dict[str, int], Doc("Authors of the members, and how many models each has.")]
    central: Annotated[str, Doc("The member that is most like the others.")]
    cohesion: Annotated[float | None, Doc("Mean similarity over pairs of members, from -1 to 1.")]
    documented: Annotated[int, Doc("Number of members that name a dataset.")]
    probably: Annotated[str | None, Doc("The dataset that most members name: a guess for members that name none.")]
    share: Annotated[float | None, Doc("Share of the documented members that name this dataset, from 0 to 1.")]
    undocumented: Annotated[tuple[str, ...], Doc("Members that name no dataset.")]
    relations: Annotated[dict[str, int], Doc("Relations of the members, and how many models have each.")]
    members: Annotated[tuple[str, ...], Doc("Models of the cluster, by id.")] = ()


@dataclass(frozen=True)
class ClusteredTask:
    """The models of one task (``population.tasks_of``)."""

    task: Annotated[str, Doc("What the models do, by their heads and their labels.")]
    models: Annotated[int, Doc("Number of models of the task.")]
    datasets: Annotated[list[str], Doc("Datasets of these models.")]
    clusters: Annotated[list[int], Doc("Clusters that hold these models.")]
    outliers: Annotated[int, Doc("Number of these models in no cluster.")]


def _method_in_words(method: str, min_size: int | None) -> str:
    return method + (f", at least {min_size} in a cluster" if min_size else "")


@dataclass(frozen=True, repr=False)
class Clusters(Result):
    """The clusters of one base, numbered from 0 by size, ties by their lowest model id.

    Attributes:
        min_size: HDBSCAN's setting.
        count: the number of clusters given to k-means or chosen by it.
        members: every model that was clustered, by ascending id.
        agreement: every measure with its chance level.
        by: task if the clusters were also compared with tasks, which the headline then mentions; else dataset.
    """

    ROWS = "clusters"
    COLUMNS = ()  # rows are of three kinds
    ROWS_BY: ClassVar[Mapping[str, str]] = {"cluster": "cluster_rows", "model": "members", "task": "tasks"}
    FRAME = "members"
    SHEET = (
        "base", "representation", "method", "left_out", "sizes", "most_central", "undocumented", "most_isolated",
        "tasks", "main_agreement", "whole_agreement",
    )  # fmt: skip
    TABLE_COLUMNS: ClassVar[Mapping[str, str]] = {
        "dataset": "The dataset that most members name; for a model, the one it counts under.",
        "p": (
            "How often randomly shuffled labels score at least as high; all runs of one author on one dataset "
            "keep one label. Below 0.05 is usually taken as more than chance."
        ),
    }
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("share", "authors", "cohesion", "among", "p", "nearest", "undocumented")

    base: BaseId
    representation: Vectors
    method: Annotated[str, Doc("How the clusters were found: hdbscan or kmeans."), Format(_method_in_words, "min_size")]
    min_size: Annotated[int | None, Doc("Size of the smallest cluster (hdbscan).")]
    count: Annotated[int | None, Doc("Number of clusters (kmeans).")]
    clusters: Annotated[tuple[Cluster, ...], Doc("The clusters, the largest first.")]
    members: Annotated[tuple[Member, ...], Hidden()]
    agreement: Annotated[tuple[Agreement, ...], Doc("Every measure of agreement, with its chance level.")]
    left_out: Annotated[LeftOut, LEFT_OUT, Format(lambda left_out: left_out.words() or "none")]
    notes: Notes = ()
    by: Annotated[str, Hidden()] = "dataset"

    @property
    def labels(self) -> dict[int, int]:
        """Model id → cluster number, -1 for an outlier; without the models that were left out."""
        return {member.model_id: member.cluster for member in self.members}

    @property
    def models(self) -> Annotated[int, CLUSTERED_MODELS]:
        """The number of members."""
        return len(self.members)

    @property
    def documented(self) -> Annotated[int, Doc("Number of models that name a dataset.")]:
        """The models that count in the agreement with datasets."""
        return sum(member.dataset is not None for member in self.members)

    @property
    def clustered(self) -> Annotated[int, Doc("Number of models in a cluster.")]:
        """The others are outliers."""
        return sum(cluster.size for cluster in self.clusters)

    @property
    def clustered_share(
        self,
    ) -> Annotated[float | None, Doc("Share of the models that are in a cluster, from 0 to 1.")]:
        """None without models."""
        return self.clustered / self.models if self.members else None

    @property
    def outliers(self) -> Annotated[int, Doc("Number of models in no cluster.")]:
        """See ``outlier_models``."""
        return self.models - self.clustered

    @property
    def ari(
        self,
    ) -> Annotated[
        float | None,
        Doc(
            "Adjusted Rand index: how many pairs of models both put together or both keep apart; 1: the same "
            "groups, 0: chance."
        ),
    ]:
        """With datasets, each outlier being a cluster of its own."""
        return self.value("datasets", "ari")

    @property
    def ami(
        self,
    ) -> Annotated[
        float | None,
        Doc(
            "Adjusted mutual information: how far the cluster of a model determines its label; 1: fully, 0: by chance."
        ),
    ]:
        """With datasets, each outlier being a cluster of its own."""
        return self.value("datasets", "ami")

    @property
    def homogeneity(
        self,
    ) -> Annotated[float | None, Doc("How close the clusters come to holding one label each; 1: no cluster is mixed.")]:
        """Of clustered models, with datasets."""
        return self.value("datasets", "homogeneity", "clustered")

    @property
    def completeness(
        self,
    ) -> Annotated[
        float | None, Doc("How close the labels come to lying in one cluster each; 1: no label is scattered.")
    ]:
        """Of clustered models, with datasets."""
        return self.value("datasets", "completeness", "clustered")

    @property
    def silhouette(
        self,
    ) -> Annotated[float | None, Doc("How much closer models are to their own group than to the next, from −1 to 1.")]:
        """The silhouette of the clusters."""
        return self.value("clusters", "silhouette", "clustered")

    @property
    def tasks(self) -> Annotated[list[ClusteredTask], Doc("A row for each task (--by task)."), If()]:
        """Empty unless the clusters were compared with tasks."""
        if self.by != "task":
            return []
        names = sorted({member.task for member in self.members if member.task is not None})
        members_of_task = {name: [member for member in self.members if member.task == name] for name in names}
        return [
            ClusteredTask(
                task=name,
                models=len(members),
                datasets=sorted({member.dataset for member in members if member.dataset}),
                clusters=sorted({member.cluster for member in members if member.cluster != OUTLIER}),
                outliers=sum(member.cluster == OUTLIER for member in members),
            )
            for name, members in members_of_task.items()
        ]

    @property
    def outlier_models(self) -> Annotated[list[Member], Doc("Models in no cluster, the most isolated first.")]:
        """Models outside every cluster, the most isolated first."""
        outliers = [member for member in self.members if member.cluster == OUTLIER]
        return sorted(
            outliers, key=lambda member: (-2.0 if member.nearest is None else member.nearest, member.model_id)
        )

    def value(self, labels: str, measure: str, among: str = "all") -> float | None:
        """One value of ``agreement``."""
        rows = (row for row in self.agreement if (row.labels, row.measure, row.among) == (labels, measure, among))
        return next((row.value for row in rows), None)

    def names_in(self, cluster: int) -> list[str]:
        """The models of one cluster, by id."""
        return [member.model for member in self.members if member.cluster == cluster]

    @property
    def headline(self) -> str:
        """How many models are in how many clusters, and whether clusters and datasets agree."""
        clustered = self.clustered
        if not clustered:
            return f"None of {counted(len(self.members), 'model')} lies in a cluster."
        sentence = (
            f"{clustered:,} of {counted(len(self.members), 'model')} lie in {counted(len(self.clusters), 'cluster')}, "
            f"{len(self.members) - clustered:,} in none."
        )
        key = (f"{self.by}s", *AGREE[1:])
        row = next((row for row in self.agreement if (row.labels, row.measure, row.among) == key), None)
        if row is None or row.value is None:
            return sentence
        chance = "" if row.chance is None else f" (chance {decimal(row.chance)}, p {row.p_value:.2g})"
        agreement = f"Clusters and {self.by}s agree to {decimal(row.value)} of 1 by adjusted mutual information"
        return f"{sentence} {agreement}{chance}."

    @property
    def cluster_rows(self) -> list[dict[str, Any]]:
        """The clusters with names instead of counts, which would be as many columns of a CSV, and without members."""
        counts = ("datasets", "authors", "relations")
        return [
            {
                name: list(value) if name in counts else value
                for name, value in plain(cluster).items()
                if name != "members"
            }
            for cluster in self.clusters
        ]

    # Separate tables of the numbers and the first names, which have more columns than a terminal.

    @property
    def sizes(self) -> Annotated[list[dict[str, Any]], Shown("clusters"), If()]:
        """The contents of the clusters."""
        return [
            {
                "cluster": cluster.cluster,
                "size": cluster.size,
                "dataset": cluster.probably,
                "share": cluster.share,
                "authors": len(cluster.authors),
                "undocumented": len(cluster.undocumented),
            }
            for cluster in self.clusters
        ]

    @property
    def most_central(self) -> Annotated[list[dict[str, Any]], Shown("most central"), If()]:
        """The central model of each cluster."""
        return [
            {"cluster": cluster.cluster, "central": cluster.central, "cohesion": cluster.cohesion}
            for cluster in self.clusters
        ]

    @property
    def undocumented(self) -> Annotated[list[dict[str, Any]], Shown("undocumented", most=_SHOWN), If()]:
        """The members without a dataset, and their probable dataset."""
        return [
            {"model": model, "cluster": cluster.cluster, "probably": cluster.probably, "share": cluster.share}
            for cluster in self.clusters
            for model in cluster.undocumented
        ]

    @property
    def most_isolated(self) -> Annotated[list[dict[str, Any]], Shown("most isolated", most=_SHOWN), If()]:
        """The models in no cluster."""
        return [
            {"model": outlier.model, "nearest": outlier.nearest, "dataset": outlier.dataset}
            for outlier in self.outlier_models
        ]

    @property
    def main_agreement(
        self,
    ) -> Annotated[list[dict[str, Any]], Shown("agreement", in_details=False), If()]:
        """The headline's measure, and all that compare models of different authors or datasets."""
        selections = ("cross_author", "cross_dataset", "within_dataset")
        return self._agreement(row for row in self.agreement if row.measure == AGREE[1] or row.among in selections)

    @property
    def whole_agreement(self) -> Annotated[list[dict[str, Any]], Shown("agreement"), Detail(), If()]:
        """Every measure."""
        return self._agreement(self.agreement)

    def _agreement(self, agreement: Iterable[Agreement]) -> list[dict[str, Any]]:
        # Without outliers, the numbers among clustered models repeat those among all.
        has_outliers = any(member.cluster == OUTLIER for member in self.members)
        return [
            {
                "labels": row.labels,
                "measure": row.measure,
                "among": "against cloud" if row.against == "cloud" else row.among,
                "value": _short(row.value),
                "chance": _short(row.chance),
                "p": row.p_value,
            }
            for row in agreement
            if row.value is not None and (has_outliers or row.among != "clustered" or row.measure not in ("ari", "ami"))
        ]


def _short(number: float | None) -> float | None:
    return None if number is None else round(number, 4) + 0.0  # no "-0.0"
