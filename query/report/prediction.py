"""What undocumented models were probably tuned on, and how often such answers are right."""

from __future__ import annotations

from indexer.console.messages import Progress
from indexer.errors import AtlasError
from query.predict.answers import NONE_OF_THESE
from query.predict.calibration import Evaluation, evaluate
from query.predict.predict import Prediction, predict
from query.report.markup import Column, Html, Part, code, element, told
from query.report.pictures import add_picture
from query.report.section import Section, Source, Writer
from query.wording import counted, decimal, literal, percent, sql

ANCHOR, TITLE = "prediction", "What undocumented models were probably tuned on"

_PREDICTED = 20  # undocumented models, the most downloaded first
_SILENT = "len(datasets) = 0 AND NOT is_copy AND NOT is_unrelated AND duplicate_of IS NULL"

_FROM = {"together": "vectors and head", "vectors": "vectors", "head": "head"}
_EVIDENCE = {
    "together": "vectors and head together",
    "vectors": "the vectors alone: votes of similar models",
    "head": "the head alone: number and names of labels in config.json",
    "majority": "baseline: always the most common dataset",
    "chance": "baseline: blind guessing",
}


def write(source: Source) -> Section:
    """How well prediction does on documented models, then its answers for the others."""
    writer = Writer(ANCHOR, TITLE)
    _write_evaluation(source, writer)
    _write_silent(source, writer)
    return writer.done()


def _write_evaluation(source: Source, writer: Writer) -> None:
    writer.heading("How often it is right")
    try:
        evaluation = evaluate(source.atlas, source.base)
    except AtlasError as error:
        writer.lack(error)
        return
    scores = {score.evidence: score for score in evaluation.scores}
    together, majority = scores["together"], scores["majority"]
    writer.paragraph(
        f"Each of {counted(evaluation.models, 'documented model')} was treated as if it named nothing and predicted "
        "from the models of other authors alone. The most probable dataset was right for ",
        f"{percent(together.accuracy)} of them; always answering with the most common dataset would be right for "
        f"{percent(majority.accuracy)}. Runs of one author on the same data count as one model here.",
    )  # fmt: skip
    writer.key_number(
        percent(together.accuracy), f"of hidden datasets guessed right; {percent(majority.accuracy)} by the commonest"
    )
    _write_scores(evaluation, writer)
    add_picture(
        writer, evaluation.figure, _alternative(evaluation),
        "Are the probabilities honest? Models whose best answer is about equally probable, and how often it is right, "
        "with 95 % intervals. On the dashed diagonal a probability of 0.8 is right eight times in ten. Bars: the share "
        "of models.",
    )  # fmt: skip
    writer.notes(evaluation.notes)


def _write_scores(evaluation: Evaluation, writer: Writer) -> None:
    ends = {row.evidence: row for row in evaluation.intervals}
    writer.table(
        "Predictions of documented models, from other authors' models, judged",
        (
            Column("from", "prose"), Column("right", "number"), Column("95 % interval", "number"),
            Column("right in the first three", "number"), Column("Brier score (0 is best, 2 worst)", "number"),
            Column("calibration error", "number"),
        ),
        [
            (
                _EVIDENCE.get(score.evidence, score.evidence), percent(score.accuracy),
                " – ".join(map(percent, ends[score.evidence].accuracy or ())) or None,
                percent(score.top3), decimal(score.brier), decimal(score.calibration_error),
            )
            for score in evaluation.scores
        ],
    )  # fmt: skip


def _alternative(evaluation: Evaluation) -> str:
    bins = [one for one in evaluation.reliability if one.evidence == "together"]
    points = ", ".join(f"said {decimal(one.probability)} was right {decimal(one.right)}" for one in bins)
    return f"Reliability diagrams for vectors, head and both together. Together: {points}."


def _write_silent(source: Source, writer: Writer) -> None:
    writer.heading("The undocumented models")
    rows = source.rows(
        f"SELECT model FROM models WHERE base = ? AND {_SILENT} ORDER BY downloads DESC NULLS LAST, model"
    )
    if not rows:
        writer.paragraph("There is none among the models that were compared.")
        return
    predictions, refusals = [], []
    with Progress(min(len(rows), _PREDICTED), "  predicting") as progress:
        for row in rows[:_PREDICTED]:
            try:
                predictions.append(predict(source.atlas, row["model"], base=source.base))
            except AtlasError as error:
                refusals.append(f"{row['model']}: {error.message}")
            progress.update()
    if predictions:
        _write_predictions(source, predictions, len(rows), writer)
    if refusals:
        others = f" So it is with {counted(len(refusals) - 1, 'other')}." if len(refusals) > 1 else ""
        writer.lack(f"No prediction for {refusals[0]}{others}")


def _write_predictions(source: Source, predictions: list[Prediction], silent: int, writer: Writer) -> None:
    writer.paragraph(
        f"{counted(silent, 'model that was compared names', 'models that were compared name')} no dataset. "
        f"Below, the most downloaded ones first. “{NONE_OF_THESE}” is an answer too: that the model was tuned on "
        "something that nobody else here names."
    )
    writer.table(
        "Probable datasets of undocumented models",
        (
            Column("model", "name"), Column("most probable dataset", "name"), Column("probability", "number"),
            Column("next", "name"), Column("its probability", "number"), Column("from", "fixed"),
        ),
        [_prediction(source, one) for one in predictions],
    )  # fmt: skip
    if silent > len(predictions):
        condition = f"base = {literal(source.base)} AND {_SILENT}"
        statement = f"SELECT model FROM models WHERE {condition} ORDER BY downloads DESC"
        writer.paragraph(
            f"… of {silent:,}. All names: ", code(sql(statement)), "; one of them: ", code("query predict MODEL"), "."
        )
    if not all(one.calibrated for one in predictions):
        writer.notes(["Too few documented models to fit the probabilities to this atlas: read them as an order only."])


def _prediction(source: Source, one: Prediction) -> tuple[Part, ...]:
    first, second = one.answers[0], one.answers[1] if len(one.answers) > 1 else None
    return (
        source.model(one.model), _dataset(first.dataset), percent(first.probability),
        _dataset(second.dataset) if second else None, percent(second.probability) if second else None,
        _FROM[one.evidence],
    )  # fmt: skip


def _dataset(name: str) -> Html | str:
    return element("em", name) if name == NONE_OF_THESE else told(name, 80)
