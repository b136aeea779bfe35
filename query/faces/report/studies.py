"""The sections made from studies: purity, map, clusters, ranks and depth."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from indexer.console.messages import say
from indexer.errors import AtlasError, Text
from query.faces.report.page import Section, Source
from query.questions.clusters.question import clusters
from query.questions.clusters.result import AGREE, Clusters
from query.questions.depth.study import depth_study
from query.questions.map.coloring import ColorGroups
from query.questions.map.model_map import model_map
from query.questions.map.projection import METHODS
from query.questions.purity.question import purity
from query.questions.purity.result import purity_figure, verdict
from query.questions.rank.study import SYMBOLS, RankStudy, rank_by_depth
from query.shared.wording import count, decimal, percent

_DATASETS = 25  # rows
_GROUPS = 6  # named in the map's text alternative
_CLUSTERS, _MEMBERS = 20, 15  # rows
_FORGETFUL = 15  # rows
_FIRST = ("input", "output", "delta", "spectrum", "vocabulary", "seed", "seed_scaled")  # others follow by name


def purity_section(source: Source, section: Section) -> dict[str, Any]:
    """A table and a picture of all published representations, an interpretation, and purity by dataset."""
    published = source.rows("SELECT representation FROM representations WHERE base = ? ORDER BY representation")
    names = [row["representation"] for row in published]
    results, failed = [], []
    for name in [*(name for name in _FIRST if name in names), *(name for name in names if name not in _FIRST)]:
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
    first, cross_author = scored[0], scored[0].cross_author
    section.key_number(
        decimal(first.purity),
        f"purity: share of nearest neighbours tuned on the same data; by chance {decimal(first.chance)}",
    )
    if cross_author.purity is not None:
        section.key_number(
            decimal(cross_author.purity),
            f"the same among other authors' models only; by chance {decimal(cross_author.chance)}",
        )
    section.says.append(verdict(first)[0])
    notes = []
    for result in results:
        cross_author_note = result.cross_author.note
        more_notes = (
            [f"across authors: {cross_author_note}"] if cross_author_note and cross_author_note != result.note else []
        )
        notes += [
            Text(f"{result.representation}: ", note) for note in (result.note, *more_notes, *result.notes) if note
        ]
    purest = sorted(scored, key=lambda result: -(result.purity or 0.0))
    by_dataset: list[dict[str, Any]] = first.table(details=True).get("by dataset", [])
    return {
        "failed": failed,
        "verdict": verdict(first),
        "ours": first if first.representation == "input" else None,
        "original": next((result for result in scored if result.representation == "seed"), None),
        "representations": source.answer_table(
            "Purity by representation",
            [
                {"representation": result.representation, **row}
                for result in scored
                for row in result.table()["neighbours"]
            ],
        ),
        "notes": list(dict.fromkeys(notes)),
        "scored": scored,
        "picture": section.picture(
            partial(purity_figure, [(result.representation, result, result.cross_author) for result in purest])
        ),
        "datasets": source.answer_table(
            f"Purity by dataset, representation {first.representation}", by_dataset, _DATASETS,
            source.command("purity", "--by dataset"),
        ),
    }  # fmt: skip


def map_section(source: Source, section: Section) -> dict[str, Any]:
    """The map: every model is a point, coloured by its dataset; by its cluster where none is named."""
    drawn = model_map(source.atlas, source.base, seed=source.seed)
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
    answer = clusters(source.atlas, source.base, seed=source.seed)
    if not answer.clusters:
        return {"why": [section.unavailable(note) for note in answer.notes]}
    clustered = sum(cluster.size for cluster in answer.clusters)
    share = percent(clustered / len(answer.members))
    section.key_number(count(len(answer.clusters)), f"clusters, which contain {share} of the models")

    tables = answer.table(details=True)
    section.says.append(answer.headline)
    figures = agreement_figures(answer)
    if figures:
        section.key_number(*figures[0])
    command = source.command("clusters", "--details")
    return {
        "answer": answer,
        "clusters": source.answer_table("Clusters, the largest first", tables.get("clusters", ()), _CLUSTERS, command),
        "central": source.answer_table("Central models", tables.get("most central", ()), _CLUSTERS, command),
        "undocumented": source.answer_table(
            "Members that name no dataset, and what most of their cluster names", tables.get("undocumented", ()),
            _MEMBERS, command,
        ),
        "isolated": source.answer_table(
            "Models in no cluster, the most isolated first", tables.get("most isolated", ()), _MEMBERS, command
        ),
        "agreement": figures,
        "everything": command,
    }  # fmt: skip


# What is compared with the clusters, by which measure and among which models → what it means.
_AGREEMENTS = {
    AGREE: "agreement of clusters and datasets",
    ("datasets", "ari", "cross_author"): "the same in pairs of models by different authors (adjusted Rand index)",
    ("authors", *AGREE[1:]): "agreement of clusters and authors",
}


def agreement_figures(answer: Clusters) -> list[tuple[str, str]]:
    """Three numbers on how well the clusters agree with datasets and with authors, each with its chance level."""
    rows = {(row.labels, row.measure, row.among): row for row in answer.agreement if row.value is not None}
    return [
        (decimal(rows[key].value), f"{meaning}; by chance {decimal(rows[key].chance)}")
        for key, meaning in _AGREEMENTS.items()
        if key in rows
    ]


def rank_section(source: Source, section: Section) -> dict[str, Any]:
    """Curves and equations for δW, and for W if its singular values are known."""
    unknown: dict[Text, list[str]] = {}
    kinds = []
    for quantity, title in {"delta": "change δW", "weights": "weights W"}.items():
        try:
            study = rank_by_depth(source.atlas, source.base, of=quantity)
        except AtlasError as error:
            unknown.setdefault(error.text, []).append(title)
            continue
        if quantity == "delta":
            section.says.append(study.headline)
            meaning = "mean rank of a change at half its energy, over families and layers"
            section.key_number(decimal(study.mean_rank, 1), meaning)
        caption = f"Rank of {SYMBOLS[quantity]}"
        kind = {
            "title": title,
            "symbol": SYMBOLS[quantity],
            "study": study,
            "picture": section.picture(
                study.figure, marks=sum(len(family.ranks) for family in study.families.values())
            ),
            "tables": _tables(source, caption, study),
            "fused": None,
            "not_fused": None,
        }
        # Matrices that the base stores fused (GPT-2's c_attn), taken whole.
        if source.number("SELECT count(*) FROM fused_matrices JOIN fine_tunes USING (model_id) WHERE base = ?"):
            try:
                fused = rank_by_depth(source.atlas, source.base, of=quantity, whole=True)
            except AtlasError as error:
                kind["not_fused"] = section.unavailable(error)
            else:
                families = {name: family for name, family in fused.families.items() if name not in study.families}
                caption = f"Rank of {SYMBOLS[quantity]} of the fused matrices, taken whole"
                kind["fused"] = list(families)
                kind["fused_tables"] = _tables(source, caption, replace(fused, families=families))
        kinds.append(kind)
    failed = [section.unavailable(Text(f"The {' and the '.join(titles)}: ", why)) for why, titles in unknown.items()]
    return {"kinds": kinds, "failed": failed}


def _tables(source: Source, caption: str, study: RankStudy) -> list[dict[str, Any] | None]:
    """The tables of the answer: its equations, then its mean ranks."""
    tables = {title: rows for title, rows in study.table().items() if isinstance(rows, list) and title != "relations"}
    return [source.answer_table(f"{caption}: {title}", rows) for title, rows in tables.items()]


def depth_section(source: Source, section: Section) -> dict[str, Any]:
    """Where the weights changed, where the function did, and which models lose their input."""
    try:
        study = depth_study(source.atlas, source.base, seed=source.seed)
    except AtlasError as error:
        return {"study": None, "unknown": section.unavailable(error)}
    section.says.append(study.headline)
    last = study.layers[-1]
    if "drift" in last:
        section.key_number(decimal(last["drift"], 2), "mean drift of the last layer, in units of the base's own spread")
    return {
        "study": study,
        "picture": section.picture(study.figure, marks=10 * study.models),
        "tables": [
            source.answer_table(
                title[0].upper() + title[1:], rows, _FORGETFUL, source.command("depth", "--study --details")
            )
            for title, rows in study.table().items()
        ],
    }
