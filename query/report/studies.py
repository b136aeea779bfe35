"""What the sections say that come from studies: purity, map, clusters, ranks, and what layers keep."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from indexer.console.messages import say
from indexer.errors import AtlasError, Text
from query.clusters.agreement import Agreement
from query.clusters.question import clusters
from query.clusters.result import AGREE, Cluster, Clusters
from query.depth.study import depth_study
from query.map.coloring import ColorGroups
from query.map.model_map import model_map
from query.map.projection import METHODS
from query.purity.question import purity
from query.purity.result import PurityScore, purity_figure, verdict
from query.rank.study import SYMBOLS, RankStudy, rank_by_depth
from query.report.page import Section, Source, shorten
from query.results import columns
from query.wording import NOTHING, count, counted, decimal, percent, span

# What each representation keeps of a delta, in the order of the table; others follow by name.
_MEANINGS = {
    "input": "which inputs the deltas react to (the default)",
    "output": "which outputs they change",
    "delta": "both at once",
    "spectrum": "only how large the changes are",
    "vocabulary": "which tokens the training text had (full fine-tunes)",
    "seed": "the original method: singular vectors, averaged over layers",
    "seed_scaled": "the same, weighted by the singular values",
}
_DATASETS = 25  # rows
_GROUPS = 6  # named in the map's text alternative
_CLUSTERS, _MEMBERS = 20, 15  # rows
_NAMES = 3  # datasets or authors in a cell
_ABBREVIATED = {"ari": "ARI", "ami": "AMI"}
_MEASURES = ("ari", "ami", "homogeneity", "completeness", "silhouette")
_AMONG = {
    "all": "all with a label",
    "clustered": "those in a cluster",
    "cross_author": "pairs by different authors",
    "cross_dataset": "pairs on different datasets",
    "within_dataset": "pairs on one dataset",
}
_FORGETFUL = 15  # rows


def purity_section(source: Source, section: Section) -> dict[str, Any]:
    """A table and a picture of all published representations, an interpretation, and purity by dataset."""
    published = source.rows("SELECT representation FROM representations WHERE base = ? ORDER BY representation")
    names = [row["representation"] for row in published]
    results, failed = [], []
    for name in [*(name for name in _MEANINGS if name in names), *(name for name in names if name not in _MEANINGS)]:
        say(f"  purity of {name}")
        try:
            results.append(purity(source.atlas, source.base, representation=name, seed=source.seed))
        except AtlasError as error:
            failed.append(section.unavailable(error))
    if not names:
        failed.append(section.unavailable("No representation is published for this base."))
    scored = [result for result in results if result.purity is not None]
    if not scored:
        for note in dict.fromkeys(result.note for result in results):
            failed.append(section.unavailable(f"Purity cannot be computed. {note}"))
        return {"why": failed}
    first, across = scored[0], scored[0].cross_author
    section.key_number(
        decimal(first.purity),
        f"purity: share of nearest neighbours tuned on the same data; by chance {decimal(first.chance)}",
    )
    if across.purity is not None:
        section.key_number(
            decimal(across.purity), f"the same among other authors' models only; by chance {decimal(across.chance)}"
        )
    notes = []
    for result in results:
        of_others = result.cross_author.note
        further = [f"across authors: {of_others}"] if of_others and of_others != result.note else []
        notes += [Text(f"{result.representation}: ", note) for note in (result.note, *further, *result.notes) if note]
    numbers = ("purity", "95 % interval", "chance", "p")

    def cells(score: PurityScore) -> tuple[str, ...]:
        interval = span(score.ci_low, score.ci_high)
        return decimal(score.purity), interval, decimal(score.chance, 3), decimal(score.p_value, 3)

    purest = sorted(scored, key=lambda one: -(one.purity or 0.0))
    others = {row.dataset: row for row in across.by_dataset}
    return {
        "failed": failed,
        "verdict": verdict(first),
        "ours": first if first.representation == "input" else None,
        "original": next((result for result in scored if result.representation == "seed"), None),
        "representations": source.table(
            "Purity by representation",
            {
                "representation": "code",
                **dict.fromkeys([*numbers, *(f"{title}, cross-author" for title in numbers), "models"], "number"),
                "what it keeps": "prose",
            },
            [
                (
                    result.representation, *cells(result), *cells(result.cross_author), result.models,
                    _MEANINGS.get(result.representation, ""),
                )
                for result in results
            ],
        ),
        "notes": list(dict.fromkeys(notes)),
        "scored": scored,
        "picture": section.picture(
            partial(purity_figure, [(one.representation, one, one.cross_author) for one in purest])
        ),
        "datasets": source.table(
            f"Purity by dataset, representation {first.representation}",
            {
                "dataset": "name", "models": "number", "purity": "two digits", "chance": "three digits",
                "cross-author": "two digits", "its chance": "three digits",
            },
            [
                (
                    row.dataset, row.models, row.purity, row.chance, getattr(others.get(row.dataset), "purity", None),
                    getattr(others.get(row.dataset), "chance", None),
                )
                for row in first.by_dataset
            ],
            most=_DATASETS,
            everything=source.command("purity", "--by dataset"),
        ),
    }  # fmt: skip


def map_section(source: Source, section: Section) -> dict[str, Any]:
    """The map: every model is a point, coloured by its dataset."""
    drawn = model_map(source.atlas, source.base, color="dataset", seed=source.seed)
    assert isinstance(drawn.coloring, ColorGroups)
    return {
        "map": drawn,
        "method": METHODS[drawn.method],
        "groups": drawn.coloring.groups[:_GROUPS],
        "unnamed": drawn.coloring.codes.count(-1),
        "has_adapters": any(point.relation == "adapter" for point in drawn.points),
        "picture": section.picture(drawn.figure, marks=len(drawn.points)),
    }


def clusters_section(source: Source, section: Section) -> dict[str, Any]:
    """The clusters, guesses for their undocumented members, and agreement with its chance level."""
    found = clusters(source.atlas, source.base, seed=source.seed)
    if not found.clusters:
        return {"why": [section.unavailable(note) for note in found.notes]}
    placed = sum(cluster.size for cluster in found.clusters)
    share = percent(placed / len(found.members))
    section.key_number(count(len(found.clusters)), f"clusters, which contain {share} of the models")

    def counts(of: dict[str, int]) -> str:
        """The largest of them, and how many others there are."""
        first = list(of.items())[:_NAMES]
        words = ", ".join(f"{shorten(name or '(none)', 80)} ({number:,})" for name, number in first)
        return words + (f", {counted(len(of) - _NAMES, 'other')}" if len(of) > _NAMES else "")

    def probably(one: Cluster) -> str:
        if not one.undocumented:
            return ""
        if one.probably is None:
            return f"{len(one.undocumented):,}; no member names a dataset"
        return f"{len(one.undocumented):,}: {shorten(one.probably, 80)} ({percent(one.share)} of the documented)"

    return {
        "found": found,
        "placed": placed,
        "clusters": source.table(
            "Clusters, the largest first",
            {
                "cluster": "text", "models": "number", "datasets (models)": "name", "authors (models)": "name",
                "central model": "model", "mean similarity": "two digits", "undocumented members, probably": "name",
            },
            [
                (
                    str(one.cluster), one.size, counts(one.datasets), counts(one.authors), one.central, one.cohesion,
                    probably(one),
                )
                for one in found.clusters
            ],
            most=_CLUSTERS,
            everything=source.command("clusters", "--json"),
        ),
        "undocumented": source.table(
            "Members that name no dataset, and what most of their cluster names",
            {"model": "model", "cluster": "number", "probably": "name", "share": "percent"},
            [
                (name, str(cluster.cluster), cluster.probably or "no member names any", cluster.share)
                for cluster in found.clusters
                for name in cluster.undocumented
            ],
            most=_MEMBERS,
            everything=source.command("clusters", "--json"),
        ),
        **_agreement(source, section, [row for row in found.agreement if row.value is not None]),
    }  # fmt: skip


def _agreement(source: Source, section: Section, rows: list[Agreement]) -> dict[str, Any]:
    """How well clusters agree with datasets and with authors, as a table."""
    by_name = {(row.labels, row.measure, row.among): row for row in rows if row.against != "cloud"}
    main = by_name.get(AGREE)
    if main is not None:
        words = f"adjusted mutual information of clusters and datasets (at most 1); by chance {decimal(main.chance)}"
        section.key_number(decimal(main.value), words)
    used = [one for one in _MEASURES if any(row.measure == one for row in rows)]
    order = ("datasets", "authors", "clusters")
    meanings = {one.key: one.doc for one in columns(Clusters)}
    return {
        "agreement": source.table(
            "Agreement and its chance level",
            {
                "groups compared": "fixed", "measure": "fixed", "among": "prose", "value": "three digits",
                "chance": "three digits", "p": "three digits", "models": "number",
            },
            [
                (
                    f"the {row.labels}" if row.measure == "silhouette" else f"clusters with {row.labels}",
                    _ABBREVIATED.get(row.measure, row.measure),
                    "clustered, against clouds without groups" if row.against == "cloud" else _AMONG[row.among],
                    row.value, row.chance, row.p_value, row.models,
                )
                for row in sorted(rows, key=lambda row: order.index(row.labels))
            ],
        ),
        "measures": [(_ABBREVIATED.get(one, one), meanings[one]) for one in used],
    }  # fmt: skip


def rank_section(source: Source, section: Section) -> dict[str, Any]:
    """Curves and equations for δW, and for W if its singular values are known."""
    unknown: dict[Text, list[str]] = {}
    kinds = []
    for of, title in {"delta": "change δW", "weights": "weights W"}.items():
        try:
            study = rank_by_depth(source.atlas, source.base, of=of)
        except AtlasError as error:
            unknown.setdefault(error.text, []).append(title)
            continue
        if of == "delta":
            meaning = "mean rank of a change at half its energy, over families and layers"
            section.key_number(decimal(study.mean_rank, 1), meaning)
        caption = f"Rank of {SYMBOLS[of]} by family, and its best fit (x: layer from 0)"
        kind = {
            "title": title,
            "symbol": SYMBOLS[of],
            "study": study,
            "picture": section.picture(
                study.figure, marks=sum(len(family.ranks) for family in study.families.values())
            ),
            "equations": _equations(source, caption, study),
            "fused": None,
            "not_fused": None,
        }
        # Matrices that the base stores fused (GPT-2's c_attn), taken whole.
        if source.number("SELECT count(*) FROM fused_matrices JOIN fine_tunes USING (model_id) WHERE base = ?"):
            try:
                whole = rank_by_depth(source.atlas, source.base, of=of, whole=True)
            except AtlasError as error:
                kind["not_fused"] = section.unavailable(error)
            else:
                only = {name: one for name, one in whole.families.items() if name not in study.families}
                caption = "Rank of the fused matrices, taken whole"
                kind["fused"] = list(only)
                kind["fused_equations"] = _equations(source, caption, replace(whole, families=only))
        kinds.append(kind)
    failed = [section.unavailable(Text(f"The {' and the '.join(titles)}: ", why)) for why, titles in unknown.items()]
    return {"kinds": kinds, "failed": failed}


def _equations(source: Source, caption: str, study: RankStudy) -> dict[str, Any] | None:
    return source.table(
        caption,
        {
            "family": "fixed", "equation": "fixed", "form": "fixed", "error at a layer left out": "two digits",
            "first layer": "one digit", "last layer": "one digit", "models": "number",
        },
        [
            (
                name, family.fit.equation if family.fit else None, family.fit.form if family.fit else None,
                family.fit.loo_error if family.fit else None, family.ranks[0], family.ranks[-1], max(family.counts),
            )
            for name, family in study.families.items()
        ],
    )  # fmt: skip


def depth_section(source: Source, section: Section) -> dict[str, Any]:
    """Where the weights changed, where the function did, and which models lose their input."""
    try:
        study = depth_study(source.atlas, source.base, seed=source.seed)
    except AtlasError as error:
        return {"study": None, "unknown": section.unavailable(error)}
    last = study.layers[-1]
    if "drift" in last:
        section.key_number(decimal(last["drift"], 2), "mean drift of the last layer, in units of the base's own spread")
    pooled = {
        (one.measure, one.of): decimal(one.rho)
        + ("" if one.low is None else f" ({decimal(one.low)} to {decimal(one.high)})")
        for one in study.agreement
        if one.layer is None
    }
    return {
        "study": study,
        "picture": section.picture(study.figure, marks=10 * study.models),
        "agreements": source.table(
            "Spearman's ρ between the change of the weights and that of each measure, over models within layers, with "
            "95 % intervals over authors",
            {"measure": "fixed", "with ‖δW‖ up to the layer": "number", "with the layer's own ‖δW‖": "number"},
            [
                (name, pooled.get((name, "delta"), NOTHING), pooled.get((name, "own_delta"), NOTHING))
                for name in dict.fromkeys(name for name, _ in pooled)
            ],
        ),
        "forgetful": source.table(
            "Worst first",
            {
                "model": "code", "measure": "fixed", "from layer": "number", "at the last": "two digits",
                "base": "two digits", "datasets": "name",
            },
            [
                (one.model, one.measure, str(one.layer), one.value, one.base_value, ", ".join(one.datasets))
                for one in study.forgetful
            ],
            most=_FORGETFUL,
            everything=source.command("depth", "--study"),
        ),
    }  # fmt: skip
