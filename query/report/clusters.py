"""The map, and the clusters: found without datasets or authors, and compared with both."""

from __future__ import annotations

from query.clusters.agreement import Agreement
from query.clusters.result import AGREE, Cluster, Clusters
from query.clusters.study import clusters
from query.glossary import definition
from query.map.coloring import ColorGroups
from query.map.model_map import model_map
from query.map.projection import METHODS
from query.population import read_population
from query.report.page import Section, Source, code, shorten
from query.wording import count, counted, decimal, percent

_GROUPS = 6  # named in the map's text alternative
_CLUSTERS, _MEMBERS = 20, 15  # rows of the tables
_NAMES = 3  # datasets or authors in a cell
_UNCONVINCING = 0.05  # a larger p may be chance
_LITTLE = 0.2  # agreement below this is weak

_ABBREVIATED = {"ari": "ARI", "ami": "AMI"}
_IN_FULL = {"ari": "adjusted Rand index", "ami": "adjusted mutual information"}
_MEASURES = ("ari", "ami", "homogeneity", "completeness", "silhouette")
_AMONG = {
    "all": "all with a label",
    "clustered": "those in a cluster",
    "cross_author": "pairs by different authors",
    "cross_dataset": "pairs on different datasets",
}


def map_section(source: Source, section: Section) -> None:
    """The map: every model is a point, coloured by its dataset."""
    drawn = model_map(source.atlas, source.base, color="dataset", seed=source.seed)
    section.paragraph(
        "Every point is a model. Points that are close together are models whose weights were changed in a similar "
        "way; "
        + (
            "the two axes are the directions in which the models differ most."
            if drawn.method == "pca"
            else "how far apart distant groups lie, and in which direction, means nothing."
        )
        + " The colours are the datasets that the models name. They had no part in placing the points: if one colour "
        "forms one group, the weights reflect the data."
    )
    groups = drawn.coloring.groups[:_GROUPS] if isinstance(drawn.coloring, ColorGroups) else ()
    largest = ", ".join(f"{shorten(one.group, 60)} ({one.models:,})" for one in groups)
    unnamed = drawn.coloring.codes.count(-1) if isinstance(drawn.coloring, ColorGroups) else 0
    placed = counted(len(drawn.points), "model")
    rings = f", {counted(unnamed, 'names', 'name')} no dataset (rings)" if unnamed else ""
    triangles = "; triangles are adapters." if any(point.relation == "adapter" for point in drawn.points) else "."
    section.picture(
        drawn.figure,
        f"Map of {placed} by {METHODS[drawn.method]}, coloured by dataset"
        + (f". The largest groups: {largest}." if groups else "."),
        [
            f"{placed}{rings}, placed by {METHODS[drawn.method]} of the vectors ", code(drawn.representation),
            f", seed {drawn.seed}{triangles}",
        ],
        marks=len(drawn.points),
    )  # fmt: skip
    section.notes(drawn.notes)
    section.paragraph(
        "To explore it (hover, search, filter, colour by author): ", code(source.command("map", "--out map.html"))
    )


def clusters_section(source: Source, section: Section) -> None:
    """The clusters, guesses for their undocumented members, and agreement with its chance level."""
    found = clusters(read_population(source.atlas, source.base), seed=source.seed)
    if not found.clusters:
        for note in found.notes:
            section.unavailable(note)
        return
    placed = sum(cluster.size for cluster in found.clusters)
    if found.min_size is not None:
        method = f"HDBSCAN (at least {found.min_size} models in a cluster)"
    else:
        method = f"k-means ({counted(found.count or 0, 'cluster')})"
    section.paragraph(
        f"Of {counted(len(found.members), 'model')} {placed:,} are in {counted(len(found.clusters), 'cluster')} and "
        f"{len(found.members) - placed:,} in none. The clusters were found by {method} from the whole vectors, not "
        "from the picture above. The central model of a cluster is the one most similar to the others."
    )
    share = percent(placed / len(found.members))
    section.key_number(count(len(found.clusters)), f"clusters, which contain {share} of the models")
    section.table(
        "Clusters, the largest first",
        {
            "cluster": "text", "models": "number", "datasets (models)": "name", "authors (models)": "name",
            "central model": "name", "mean similarity": "number", "undocumented members, probably": "name",
        },
        [
            (
                str(one.cluster), one.size, _counts(one.datasets), _counts(one.authors), source.model(one.central),
                decimal(one.cohesion), _probably(one),
            )
            for one in found.clusters
        ],
        most=_CLUSTERS,
        everything=source.command("clusters", "--json"),
    )  # fmt: skip
    undocumented = [(name, cluster) for cluster in found.clusters for name in cluster.undocumented]
    if undocumented:
        section.table(
            "Members that name no dataset, and what most of their cluster names",
            {"model": "name", "cluster": "number", "probably": "name", "share": "number"},
            [
                (
                    source.model(name), str(cluster.cluster), shorten(cluster.probably or "") or "no member names any",
                    percent(cluster.share),
                )
                for name, cluster in undocumented
            ],
            most=_MEMBERS,
            everything=source.command("clusters", "--json"),
        )  # fmt: skip
    else:
        section.paragraph("Every model in a cluster names a dataset.")
    _agreement(found, section)
    section.notes(found.notes)


def _counts(counts: dict[str, int]) -> str:
    """The largest of them, and how many others there are."""
    rest = len(counts) - _NAMES
    words = ", ".join(f"{shorten(name or '(none)', 80)} ({number:,})" for name, number in list(counts.items())[:_NAMES])
    return words + (f", {counted(rest, 'other')}" if rest > 0 else "")


def _probably(cluster: Cluster) -> str | None:
    if not cluster.undocumented:
        return None
    if cluster.probably is None:
        return f"{len(cluster.undocumented):,}; no member names a dataset"
    return (
        f"{len(cluster.undocumented):,}: {shorten(cluster.probably, 80)} ({percent(cluster.share)} of the documented)"
    )


def _agreement(found: Clusters, section: Section) -> None:
    rows = [row for row in found.agreement if row.value is not None]
    if not rows:
        return
    by_name = {(row.labels, row.measure, row.among): row for row in rows if row.against != "cloud"}
    section.heading("How well clusters agree with datasets and with authors")
    main = by_name.get(AGREE)
    if main is not None:
        words = f"adjusted mutual information of clusters and datasets (at most 1); by chance {decimal(main.chance)}"
        section.key_number(decimal(main.value), words)
    across, people = by_name.get(("datasets", "ari", "cross_author")), by_name.get(("authors", *AGREE[1:]))
    section.paragraph(
        "Agreement with datasets means that the clusters are groups of data; agreement with authors, that they reflect "
        "the habits of people.",
        _in_words("Clusters and datasets", main),
        _in_words("Across authors, clusters and datasets", across),
        _in_words("Clusters and authors", people),
        " Chance is the mean over random permutations of the labels, or over clusters found in clouds of random points "
        "without groups.",
    )
    used = [one for one in _MEASURES if any(row.measure == one for row in rows)]
    section.add("terms", terms=[(_ABBREVIATED.get(one, one), definition(one, "clusters")) for one in used])
    order = ("datasets", "authors", "clusters")
    section.table(
        "Agreement and its chance level",
        {
            "groups compared": "fixed", "measure": "fixed", "among": "prose", "value": "number", "chance": "number",
            "p": "number", "models": "number",
        },
        [
            (
                f"the {row.labels}" if row.measure == "silhouette" else f"clusters with {row.labels}",
                _ABBREVIATED.get(row.measure, row.measure),
                "clustered, against clouds without groups" if row.against == "cloud" else _AMONG[row.among],
                decimal(row.value, 3), decimal(row.chance, 3), decimal(row.p_value, 3), row.models,
            )
            for row in sorted(rows, key=lambda row: order.index(row.labels))
        ],
    )  # fmt: skip


def _in_words(what: str, row: Agreement | None) -> str | None:
    """One number as a sentence."""
    if row is None:
        return None
    is_convincing = row.p_value is not None and row.p_value <= _UNCONVINCING
    is_little = row.value is not None and row.value < _LITTLE
    verb = ("agree a little" if is_little else "agree") if is_convincing else "agree no more than by chance"
    measured = f"{_IN_FULL.get(row.measure, row.measure)} {decimal(row.value)}"
    return f" {what} {verb}: {measured}, by chance {decimal(row.chance)}, p {decimal(row.p_value, 3)}."
