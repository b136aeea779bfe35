"""Where the weights changed, where the function did, and which models forget their input."""

from __future__ import annotations

from indexer.errors import AtlasError
from query.depth.study import Agreement, DepthStudy, depth_study
from query.report.markup import Column, code
from query.report.pictures import add_picture
from query.report.section import Section, Source, Writer
from query.wording import counted, decimal

ANCHOR, TITLE = "depth", "What do layers keep, and is it where the weights changed?"
NAMED = 15


def write(source: Source) -> Section:
    """Two curves for each model, how they go together, and the models that forget."""
    writer = Writer(ANCHOR, TITLE)
    writer.paragraph(
        "A model is not only weights but a function. Each layer was asked what it still says of its input: whether the "
        "words can be found again by descent (recovered), how broadly it looks (reach), and how far it has moved from "
        "the same layer of the base (drift, CKA). Profiles of small models are no promise for large ones."
    )
    try:
        study = depth_study(source.atlas, source.base, seed=source.seed)
    except AtlasError as error:
        writer.lack(error)
        return writer.done()
    last = study.means[-1]
    if "drift" in last:
        writer.key_number(decimal(last["drift"], 2), "mean drift of the last layer, in units of the base's own spread")
    add_picture(
        writer, study.figure, _alternative(study),
        "Blue: how much the weights changed up to a layer; orange: how far the layer's output moved from the base's.",
        marks=10 * study.models,
    )  # fmt: skip
    _write_agreement(study, writer)
    _write_forgetful(source, study, writer)
    writer.notes(study.notes)
    return writer.done()


def _write_agreement(study: DepthStudy, writer: Writer) -> None:
    pooled = [one for one in study.agreements if one.layer is None]
    writer.table(
        "Spearman's ρ between the change of the weights and that of each measure, over models and layers, with 95 % "
        "intervals by bootstrap over authors",
        (Column("measure", "fixed"), Column("with ‖δW‖ up to the layer", "number"),
         Column("with the layer's own ‖δW‖", "number")),
        [(name, _rho(pooled, name, "delta"), _rho(pooled, name, "own_delta"))
         for name in dict.fromkeys(one.measure for one in pooled)],
    )  # fmt: skip


def _rho(found: list[Agreement], measure: str, of: str) -> str | None:
    for one in found:
        if (one.measure, one.of) == (measure, of):
            return f"{decimal(one.rho)} ({decimal(one.low)} to {decimal(one.high)})"
    return None


def _write_forgetful(source: Source, study: DepthStudy, writer: Writer) -> None:
    writer.heading("Who forgets its input")
    if not study.forgetful:
        writer.paragraph("No model gives less of its input away at its last layer than the base does.")
        return
    writer.paragraph(
        f"{counted(len(study.forgetful), 'model')} of {study.models}: at the last layer fewer words are found than "
        "from the base, by more than four standard errors. That says that the layer is harder to invert, not that the "
        "words are gone: a linear map still reads most of them off."
    )
    writer.table(
        "Worst first",
        (Column("model", "name"), Column("measure", "fixed"), Column("from layer", "number"),
         Column("at the last", "number"), Column("base", "number"), Column("datasets", "name")),
        [(code(one.model), one.measure, str(one.layer), decimal(one.value), decimal(one.base_value),
          ", ".join(one.datasets) or None) for one in study.forgetful],
        most=NAMED,
        everything=source.command("depth", "--study"),
    )  # fmt: skip


def _alternative(study: DepthStudy) -> str:
    rows = [row for row in study.means if "drift" in row]
    drifts = ", ".join(f"{decimal(row['drift'])} at layer {row['layer']}" for row in rows)
    return f"Small panels, one for each of {study.models} models. Mean drift: {drifts or 'unknown'}."
