"""Groups of like models, found without looking at datasets, and how far they agree with datasets and authors."""

from __future__ import annotations

from indexer.errors import AtlasError
from query.clusters.agreement import Agreement
from query.clusters.result import AGREE, Cluster
from query.clusters.study import Clusters, clusters
from query.glossary import definition
from query.population import read_population
from query.report.markup import Column, Html, Part, element, joined, told
from query.report.section import Section, Source, Writer
from query.wording import count, counted, decimal, percent

ANCHOR, TITLE = "clusters", "Clusters"

_CLUSTERS, _MEMBERS = 20, 15  # rows of the tables
_UNCONVINCING = 0.05  # p above which a number may be chance
_LITTLE = 0.2  # agreement beyond chance, but not much
_NAMES = 3  # of datasets or authors in a cell

_ABBREVIATED = {"ari": "ARI", "ami": "AMI"}
_NAMES_OF = {"ari": "adjusted Rand index", "ami": "adjusted mutual information"}
_MEASURES = ("ari", "ami", "homogeneity", "completeness", "silhouette")
_AMONG = {
    "all": "all with a label",
    "clustered": "those in a cluster",
    "cross_author": "pairs by different authors",
    "cross_dataset": "pairs on different datasets",
}


def write(source: Source) -> Section:
    """The clusters, what their undocumented members probably are, and agreement beside chance."""
    writer = Writer(ANCHOR, TITLE)
    try:
        found = clusters(read_population(source.atlas, source.base), seed=source.seed)
    except AtlasError as error:
        writer.lack(error)
        return writer.done()
    if not found.clusters:
        for note in found.notes:
            writer.lack(note)
        return writer.done()
    placed = sum(cluster.size for cluster in found.clusters)
    writer.paragraph(
        f"Of {counted(len(found.members), 'model')} {placed:,} lie in "
        f"{counted(len(found.clusters), 'cluster')}, {len(found.members) - placed:,} in none. The clusters were found "
        f"by {_method(found)} from the whole vectors alone, not in the picture above. The central model "
        "of a cluster is the one most like the others."
    )
    share = percent(placed / len(found.members))
    writer.key_number(count(len(found.clusters)), f"clusters, in which {share} of the models lie")
    _write_clusters(source, found, writer)
    _write_silent(source, found, writer)
    _write_agreement(found, writer)
    writer.notes(found.notes)
    return writer.done()


def _method(found: Clusters) -> str:
    if found.min_size is not None:
        return f"HDBSCAN (at least {found.min_size} models in a cluster)"
    return f"k-means ({counted(found.count or 0, 'cluster')})"


def _write_clusters(source: Source, found: Clusters, writer: Writer) -> None:
    writer.table(
        "Clusters, the largest first",
        (
            Column("cluster"), Column("models", "number"), Column("datasets (models)", "name"),
            Column("authors (models)", "name"), Column("central model", "name"), Column("mean similarity", "number"),
            Column("undocumented members, probably", "name"),
        ),
        [
            (
                str(cluster.cluster), count(cluster.size), _names(cluster.datasets), _names(cluster.authors),
                source.model(cluster.central), decimal(cluster.cohesion), _probably(cluster),
            )
            for cluster in found.clusters
        ],
        most=_CLUSTERS,
        everything=source.command("clusters", "--json"),
    )  # fmt: skip


def _names(counts: dict[str, int]) -> Html | None:
    """The largest of them, and how many others there are."""
    if not counts:
        return None
    rest = len(counts) - _NAMES
    words = ", ".join(f"{told(name or '(none)', 80)} ({number:,})" for name, number in list(counts.items())[:_NAMES])
    return joined(words, f", {counted(rest, 'other')}" if rest > 0 else None)


def _probably(cluster: Cluster) -> Part:
    if not cluster.undocumented:
        return None
    if cluster.probably is None:
        return f"{len(cluster.undocumented):,}; no member names a dataset"
    return f"{len(cluster.undocumented):,}: {told(cluster.probably, 80)} ({percent(cluster.share)} of those that say)"


def _write_silent(source: Source, found: Clusters, writer: Writer) -> None:
    """The members that name no dataset, and what their cluster says of them."""
    silent = [(identity, cluster) for cluster in found.clusters for identity in cluster.undocumented]
    if not silent:
        writer.paragraph("Every model that lies in a cluster names a dataset.")
        return
    writer.table(
        "Members that name no dataset, and what most of their cluster names",
        (Column("model", "name"), Column("cluster", "number"), Column("probably", "name"), Column("share", "number")),
        [
            (
                source.model(identity), str(cluster.cluster), told(cluster.probably or "") or "nobody in it says",
                percent(cluster.share),
            )
            for identity, cluster in silent
        ],
        most=_MEMBERS,
        everything=source.command("clusters", "--json"),
    )  # fmt: skip


def _write_agreement(found: Clusters, writer: Writer) -> None:
    rows = [row for row in found.agreement if row.value is not None]
    if not rows:
        return
    by_name = {(row.labels, row.measure, row.among): row for row in rows if row.against != "cloud"}
    writer.heading("How far clusters agree with datasets and with authors")
    main = by_name.get(AGREE)
    if main is not None:
        words = f"adjusted mutual information of clusters and datasets (of 1); by chance {decimal(main.chance)}"
        writer.key_number(decimal(main.value), words)
    across, people = by_name.get(("datasets", "ari", "cross_author")), by_name.get(("authors", *AGREE[1:]))
    writer.paragraph(
        "Agreement with datasets says that the clusters are groups of data; agreement with authors, that they are the "
        "habits of people.",
        _in_words("Clusters and datasets", main),
        _in_words("Across authors, clusters and datasets", across),
        _in_words("Clusters and authors", people),
        " Chance is the mean over random shufflings of the labels, or over clusters found in clouds of points "
        "that have no groups.",
    )
    used = {row.measure for row in rows}
    terms = (
        element("div", element("dt", _ABBREVIATED.get(one, one)), element("dd", definition(one, "clusters")))
        for one in _MEASURES
        if one in used
    )
    writer.add(element("dl", *terms, class_="glossary"))
    columns = (
        Column("groups compared", "fixed"), Column("measure", "fixed"), Column("among", "prose"),
        Column("value", "number"), Column("chance", "number"), Column("p", "number"), Column("models", "number"),
    )  # fmt: skip
    writer.table("Agreement beside its chance level", columns, [_agreement(row) for row in _ordered(rows)])


def _in_words(what: str, row: Agreement | None) -> str | None:
    """A sentence on one number."""
    if row is None:
        return None
    beyond = row.p_value is not None and row.p_value <= _UNCONVINCING
    little = row.value is not None and row.value < _LITTLE
    verb = ("agree a little" if little else "agree") if beyond else "agree no more than chance would have it"
    measured = f"{_NAMES_OF.get(row.measure, row.measure)} {decimal(row.value)}"
    return f" {what} {verb}: {measured}, by chance {decimal(row.chance)}, p {decimal(row.p_value, 3)}."


def _ordered(rows: list[Agreement]) -> list[Agreement]:
    """Datasets, authors, then the clusters' own."""
    order = ("datasets", "authors", "clusters")
    return sorted(rows, key=lambda row: order.index(row.labels))


def _agreement(row: Agreement) -> tuple[Part, ...]:
    if row.measure == "silhouette":
        what = {"clusters": "the clusters", "datasets": "the datasets", "authors": "the authors"}[row.labels]
    else:
        what = f"clusters with {row.labels}"
    among = "clustered, against clouds without groups" if row.against == "cloud" else _AMONG.get(row.among, row.among)
    return (
        what, _ABBREVIATED.get(row.measure, row.measure), among, decimal(row.value, 3), decimal(row.chance, 3),
        decimal(row.p_value, 3), count(row.models),
    )  # fmt: skip
