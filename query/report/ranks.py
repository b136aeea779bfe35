"""How the rank of the change moves with depth, and what layers keep of their input."""

from __future__ import annotations

from dataclasses import replace

from indexer.errors import AtlasError
from query.depth.study import depth_study
from query.rank.study import SYMBOLS, RankStudy, rank_by_depth
from query.report.page import Section, Source, code
from query.wording import counted, decimal

_KINDS = {"delta": "change δW", "weights": "weights W"}
_FORGETFUL = 15  # rows


def rank_section(source: Source, section: Section) -> None:
    """Curves and equations for δW, and for W if its singular values are known."""
    section.paragraph(
        "The rank of a matrix at one half is the number of directions (singular values) that hold half of its energy. "
        "Below it is averaged over models, for each kind of matrix (family) and each layer x, from 0 at the input; the "
        "equation is the best of six simple laws. Copies, duplicates and unrelated models do not count."
    )
    unknown: dict[str, list[str]] = {}
    for of, title in _KINDS.items():
        try:
            study = rank_by_depth(source.atlas, source.base, of=of)
        except AtlasError as error:
            unknown.setdefault(str(error), []).append(title)
            continue
        section.heading(f"The {title}")
        _rank_study(study, section)
        _fused_matrices(source, study, section)
    for why, titles in unknown.items():
        section.unavailable(f"The {' and the '.join(titles)}: {why}")


def _rank_study(study: RankStudy, section: Section) -> None:
    symbol = SYMBOLS[study.of]
    if study.of == "delta":
        ranks = [rank for family in study.families.values() for rank in family.ranks if rank is not None]
        section.key_number(
            decimal(sum(ranks) / len(ranks), 1), "mean rank of a change at half its energy, over families and layers"
        )
    curves = "; ".join(
        f"{name} from {decimal(family.ranks[0], 1)} to {decimal(family.ranks[-1], 1)}"
        for name, family in study.families.items()
    )
    section.picture(
        study.figure,
        f"Curves of the mean rank of {symbol} by layer, one panel for each family. First to last layer: {curves}.",
        [
            f"Mean rank of {symbol} at {100 * study.threshold:g} % of the energy by layer, over "
            f"{counted(study.models, 'model')}, with the standard deviation over models; dashed: the equation."
        ],
        marks=sum(len(family.ranks) for family in study.families.values()),
    )
    _equations(f"Rank of {symbol} by family, and its best fit (x: layer from 0)", study, section)
    section.notes(study.notes)


def _equations(caption: str, study: RankStudy, section: Section) -> None:
    section.table(
        caption,
        {
            "family": "fixed", "equation": "fixed", "form": "fixed", "error at a layer left out": "number",
            "first layer": "number", "last layer": "number", "models": "number",
        },
        [
            (
                name, family.fit.equation if family.fit else None, family.fit.form if family.fit else None,
                decimal(family.fit.loo_error) if family.fit else None, decimal(family.ranks[0], 1),
                decimal(family.ranks[-1], 1), max(family.counts),
            )
            for name, family in study.families.items()
        ],
    )  # fmt: skip


def _fused_matrices(source: Source, split: RankStudy, section: Section) -> None:
    """Matrices that the base stores fused (GPT-2's c_attn), taken whole."""
    if not source.number("SELECT count(*) FROM fused_matrices JOIN fine_tunes USING (model_id) WHERE base = ?"):
        return
    try:
        study = rank_by_depth(source.atlas, source.base, of=split.of, whole=True)
    except AtlasError as error:
        section.unavailable(error)
        return
    only = {name: family for name, family in study.families.items() if name not in split.families}
    separated = [part for name in only for part in (", ", code(name))][1:]
    section.paragraph(
        "This base stores some of these matrices fused into one. Taken whole, as the base has them: ", *separated, "."
    )
    _equations("Rank of the fused matrices, taken whole", replace(study, families=only), section)


def depth_section(source: Source, section: Section) -> None:
    """Where the weights changed, where the function did, and which models forget their input."""
    section.paragraph(
        "A model is also a function, not only weights. Each layer was measured: how many words of the input can be "
        "recovered from it by descent (recovered), how broadly it looks (reach), and how far it has moved from the "
        "same layer of the base (drift, CKA). Profiles of small models may not carry over to large ones."
    )
    study = depth_study(source.atlas, source.base, seed=source.seed)
    last = study.means[-1]
    if "drift" in last:
        section.key_number(decimal(last["drift"], 2), "mean drift of the last layer, in units of the base's own spread")
    rows = [row for row in study.means if "drift" in row]
    drifts = ", ".join(f"{decimal(row['drift'])} at layer {row['layer']}" for row in rows)
    section.picture(
        study.figure,
        f"Small panels, one for each of {study.models} models. Mean drift: {drifts or 'unknown'}.",
        ["Blue: how much the weights changed up to a layer; orange: how far the layer's output moved from the base's."],
        marks=10 * study.models,
    )
    pooled = {(one.measure, one.of): one for one in study.agreements if one.layer is None}

    def rho(measure: str, of: str) -> str | None:
        found = pooled.get((measure, of))
        return f"{decimal(found.rho)} ({decimal(found.low)} to {decimal(found.high)})" if found else None

    section.table(
        "Spearman's ρ between the change of the weights and that of each measure, over models and layers, with 95 % "
        "intervals by bootstrap over authors",
        {"measure": "fixed", "with ‖δW‖ up to the layer": "number", "with the layer's own ‖δW‖": "number"},
        [(name, rho(name, "delta"), rho(name, "own_delta")) for name in dict.fromkeys(name for name, _ in pooled)],
    )
    section.heading("Models that forget their input")
    if study.forgetful:
        section.paragraph(
            f"{counted(len(study.forgetful), 'model')} of {study.models}: fewer words can be recovered from the last "
            "layer than from the base's, by more than four standard errors. This means that the layer is harder to "
            "invert, not that the words are gone: a linear map can still read most of them."
        )
        section.table(
            "Worst first",
            {
                "model": "name", "measure": "fixed", "from layer": "number", "at the last": "number",
                "base": "number", "datasets": "name",
            },
            [
                (
                    code(one.model), one.measure, str(one.layer), decimal(one.value), decimal(one.base_value),
                    ", ".join(one.datasets),
                )
                for one in study.forgetful
            ],
            most=_FORGETFUL,
            everything=source.command("depth", "--study"),
        )  # fmt: skip
    else:
        section.paragraph("No model reveals less of its input at its last layer than the base does.")
    section.notes(study.notes)
