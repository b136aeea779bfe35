"""How the rank of the change, and of the weights, moves with depth, and the law that fits best."""

from __future__ import annotations

from indexer.errors import AtlasError
from query.rank.study import FamilyRanks, RankStudy, rank_by_depth
from query.report.markup import Column, Part, code, joined
from query.report.pictures import add_picture
from query.report.section import Section, Source, Writer
from query.wording import count, counted, decimal

ANCHOR, TITLE = "rank", "How simple is the change, layer by layer?"

_KINDS = {"delta": "change δW", "weights": "weights W"}


def write(source: Source) -> Section:
    """Curves and equations for δW, and for W where its singular values are known."""
    writer = Writer(ANCHOR, TITLE)
    writer.paragraph(
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
        writer.heading(f"The {title}")
        _write_study(study, writer)
        _write_wholes(source, study, writer)
    for why, titles in unknown.items():
        writer.lack(f"The {' and the '.join(titles)}: {why}")
    return writer.done()


def _write_study(study: RankStudy, writer: Writer) -> None:
    symbol = "δW" if study.of == "delta" else "W"
    if study.of == "delta":
        ranks = [rank for family in study.families.values() for rank in family.ranks if rank is not None]
        writer.key_number(
            decimal(sum(ranks) / len(ranks), 1), "mean rank of a change at half its energy, over families and layers"
        )
    points = sum(len(family.ranks) for family in study.families.values())
    add_picture(
        writer, study.figure, _alternative(study, symbol),
        f"Mean rank of {symbol} at {100 * study.threshold:g} % of the energy by layer, over "
        f"{counted(study.models, 'model')}, with the standard deviation over models; dashed: the equation.",
        marks=points,
    )  # fmt: skip
    _write_equations(f"Rank of {symbol} by family, and its best fit (x: layer from 0)", study, writer)
    writer.notes(study.notes)


def _write_equations(caption: str, study: RankStudy, writer: Writer) -> None:
    writer.table(
        caption,
        (
            Column("family", "fixed"), Column("equation", "fixed"), Column("form", "fixed"),
            Column("error at a layer left out", "number"), Column("first layer", "number"),
            Column("last layer", "number"), Column("models", "number"),
        ),
        [_family(name, family) for name, family in study.families.items()],
    )  # fmt: skip


def _family(name: str, family: FamilyRanks) -> tuple[Part, ...]:
    fit = family.fit
    return (
        name, fit.equation if fit else None, fit.form if fit else None,
        decimal(fit.loo_error) if fit else None, decimal(family.ranks[0], 1), decimal(family.ranks[-1], 1),
        count(max(family.counts)),
    )  # fmt: skip


def _alternative(study: RankStudy, symbol: str) -> str:
    curves = "; ".join(
        f"{name} from {decimal(family.ranks[0], 1)} to {decimal(family.ranks[-1], 1)}"
        for name, family in study.families.items()
    )
    return f"Curves of the mean rank of {symbol} by layer, one panel for each family. First to last layer: {curves}."


def _write_wholes(source: Source, split: RankStudy, writer: Writer) -> None:
    """Matrices that the base stores fused (GPT-2's c_attn), taken whole."""
    stored = source.number("SELECT count(*) FROM fused_matrices JOIN fine_tunes USING (model_id) WHERE base = ?")
    if not stored:
        return
    try:
        study = rank_by_depth(source.atlas, source.base, of=split.of, whole=True)
    except AtlasError as error:
        writer.lack(error)
        return
    only = {name: family for name, family in study.families.items() if name not in split.families}
    writer.paragraph(
        "This base stores some of these matrices fused into one. Taken whole, as the base has them: ",
        joined(*(code(name) for name in only), between=", "), ".",
    )  # fmt: skip
    whole = RankStudy(**(vars(study) | {"families": only}))
    _write_equations("Rank of the fused matrices, taken whole", whole, writer)
