"""What undocumented models were probably tuned on, and how often such predictions are right."""

from __future__ import annotations

from markupsafe import Markup

from indexer.console.messages import Progress, clean
from indexer.errors import AtlasError
from query.predict.classifier import NONE_OF_THESE
from query.predict.evaluation import Evaluation, evaluate
from query.predict.predict import Prediction, predict
from query.report.page import Part, Section, Source, code, shorten
from query.wording import counted, decimal, percent

_PREDICTED = 20  # undocumented models, the most downloaded first
_UNDOCUMENTED = "len(datasets) = 0 AND NOT is_copy AND NOT is_unrelated AND duplicate_of IS NULL"

_FROM = {"together": "vectors and head", "vectors": "vectors", "head": "head"}
_EVIDENCE = {
    "together": "vectors and head together",
    "vectors": "the vectors alone: votes of similar models",
    "head": "the head alone: number and names of labels in config.json",
    "majority": "baseline: always the most common dataset",
    "chance": "baseline: random guessing",
}


def predictions(source: Source, section: Section) -> None:
    """How well prediction does on documented models, then its answers for the others."""
    section.heading("How often it is right")
    try:
        _evaluation(evaluate(source.atlas, source.base), section)
    except AtlasError as error:
        section.unavailable(error)
    section.heading("The undocumented models")
    rows = source.rows(
        f"SELECT model FROM models WHERE base = ? AND {_UNDOCUMENTED} ORDER BY downloads DESC NULLS LAST, model"
    )
    if not rows:
        section.paragraph("Every model that was compared names a dataset.")
        return
    found, refusals = [], []
    with Progress(min(len(rows), _PREDICTED), "  predicting") as progress:
        for row in rows[:_PREDICTED]:
            try:
                found.append(predict(source.atlas, row["model"], base=source.base))
            except AtlasError as error:
                refusals.append(f"{row['model']}: {error.message}")
            progress.update()
    if found:
        _answers(source, found, len(rows), section)
    if refusals:
        others = f" The same is true of {counted(len(refusals) - 1, 'other')}." if len(refusals) > 1 else ""
        section.unavailable(f"No prediction for {refusals[0]}{others}")


def _evaluation(evaluation: Evaluation, section: Section) -> None:
    scores = {score.evidence: score for score in evaluation.scores}
    together, majority = scores["together"], scores["majority"]
    section.paragraph(
        f"Each of {counted(evaluation.models, 'documented model')} was treated as if it named nothing and predicted "
        f"from the models of other authors only. The most probable dataset was right for {percent(together.accuracy)} "
        f"of them; always answering with the most common dataset would be right for {percent(majority.accuracy)}. Runs "
        "of one author on the same data count as one model here."
    )
    section.key_number(
        percent(together.accuracy),
        f"of hidden datasets predicted correctly; {percent(majority.accuracy)} by always naming the most common one",
    )
    ends = {row.evidence: row for row in evaluation.intervals}
    section.table(
        "Predictions of documented models from other authors' models",
        {
            "from": "prose", "right": "number", "95 % interval": "number", "right in the first three": "number",
            "Brier score (0 is best, 2 worst)": "number", "calibration error": "number",
        },
        [
            (
                _EVIDENCE[score.evidence], percent(score.accuracy),
                " – ".join(map(percent, ends[score.evidence].accuracy or ())), percent(score.top3),
                decimal(score.brier), decimal(score.calibration_error),
            )
            for score in evaluation.scores
        ],
    )  # fmt: skip
    points = ", ".join(
        f"said {decimal(one.probability)} was right {decimal(one.right)}"
        for one in evaluation.reliability
        if one.evidence == "together"
    )
    section.picture(
        evaluation.figure,
        f"Reliability diagrams for vectors, head and both together. Together: {points}.",
        [
            "Are the probabilities well calibrated? Models are grouped by the probability of their best answer; the "
            "dots show how often it is right, with 95 % intervals. On the dashed diagonal a probability of 0.8 is "
            "right eight times in ten. Bars: the share of models."
        ],
    )
    section.notes(evaluation.notes)


def _answers(source: Source, found: list[Prediction], undocumented: int, section: Section) -> None:
    section.paragraph(
        f"{counted(undocumented, 'model that was compared names', 'models that were compared name')} no dataset. "
        f"Below, the most downloaded ones first. “{NONE_OF_THESE}” is also an answer: the model was tuned on something "
        "that no other model here names."
    )

    def cells(one: Prediction) -> list[Part]:
        row: list[Part] = [source.model(one.model)]
        for answer in one.answers[:2]:
            is_none = answer.dataset == NONE_OF_THESE
            dataset = Markup("<em>{}</em>").format(clean(answer.dataset)) if is_none else shorten(answer.dataset, 80)
            row += [dataset, percent(answer.probability)]
        return [*row, *([None, None] if len(one.answers) == 1 else []), _FROM[one.evidence]]

    section.table(
        "Probable datasets of undocumented models",
        {
            "model": "name", "most probable dataset": "name", "probability": "number", "next": "name",
            "its probability": "number", "from": "fixed",
        },
        [cells(one) for one in found],
    )  # fmt: skip
    if undocumented > len(found):
        statement = f"SELECT model FROM models WHERE base = ? AND {_UNDOCUMENTED} ORDER BY downloads DESC"
        every, one = code(source.query(statement)), code("query predict MODEL")
        section.paragraph(f"… of {undocumented:,}. All names: ", every, "; one of them: ", one, ".")
    if not all(one.calibrated for one in found):
        section.notes(["There are too few documented models to calibrate the probabilities: use only their order."])
