"""The sections about models' training data: predicted data sets, and traces in embeddings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from indexer.console.messages import Progress
from indexer.errors import AtlasError, Text
from query.contract.glossary import documented
from query.contract.results import plain
from query.faces.report.page import Section, Source
from query.questions.predict.classifier import NONE_OF_THESE
from query.questions.predict.evaluation import evaluate
from query.questions.predict.predict import assumed_share, predict_many, undocumented
from query.questions.predict.result import NoneScore, Prediction
from query.questions.predict.scoring import PredictionScore
from query.questions.trace.trace import trace
from query.shared.wording import counted

_PREDICTED = 20  # undocumented models, the most downloaded first
_IN_WORDS = 3  # of them
_NOTES = 20
_TRACED, _WORDS = 15, 8  # models, and words of each
_CLASSES = {
    "exact": "exact: tokens that the text contains are distinguished from the others",
    "statistical": "statistical: what was met is only likely (half precision, a tied head, or a merge)",
    "frozen": "frozen: the embedding did not move",
    None: "none: adapters, and other embeddings",
}


def prediction_section(source: Source, section: Section) -> dict[str, Any]:
    """How well prediction does on documented models, then its answers for the others."""
    facts: dict[str, Any] = {"evaluation": None, "answers": None, "refusal": None}
    try:
        evaluation = evaluate(source.atlas, source.base)
    except AtlasError as error:
        facts["not_evaluated"] = section.unavailable(error)
    else:
        section.key_number(*evaluation.key_number)
        section.says.append(evaluation.headline)
        tables = evaluation.table()
        facts |= {
            "evaluation": evaluation,
            "scores": source.answer_table(
                "Predictions of documented models from other authors' models", tables["scores"]
            ),
            "none": source.answer_table(f"How good “{NONE_OF_THESE}” is", tables["none_of_these"]),
            "columns": {
                name: meaning
                for name, meaning in documented([PredictionScore, NoneScore]).items()
                if any(name in row for rows in (tables["scores"], tables["none_of_these"]) for row in rows)
            },
            "picture": section.picture(evaluation.figure),
        }  # fmt: skip
    names = undocumented(source.atlas, source.base)
    with Progress(len(names), "  predicting") as progress:
        many = predict_many(source.atlas, base=source.base, on_progress=lambda _: progress.update())
    answers = [outcome.answer for outcome in many if outcome.answer is not None]
    shown, refused = answers[:_PREDICTED], [outcome for outcome in many if outcome.error is not None]
    if refused:
        others_text = f" The same is true of {counted(len(refused) - 1, 'other')}." if len(refused) > 1 else ""
        facts["refusal"] = section.unavailable(
            Text(f"No prediction for {refused[0].asked}: ", refused[0].error or "", others_text)
        )
    return facts | {
        "undocumented": len(names),
        "none_of_these": NONE_OF_THESE,
        "answers": source.answer_table(
            "Probable datasets of undocumented models",
            [plain(answer.best, table=True) for answer in shown],
            everything=source.command("predict", "--undocumented"),
            total=len(answers),
        ),
        "headlines": [answer.headline for answer in shown[:_IN_WORDS]],
        "assumed": assumed_share(answers),
        "notes": _notes_on(shown),
    }  # fmt: skip


def _notes_on(answers: Sequence[Prediction]) -> list[str]:
    """The notes of these answers: a note that most of them have once, the others with the model's name."""
    counts = Counter(note for answer in answers for note in answer.notes)
    common = [note for note, count in counts.items() if count > len(answers) / 2]
    particular = [
        note if answer.model in note else Text(f"{answer.model}: ", note)
        for answer in answers
        for note in answer.notes
        if note not in common
    ]
    notes = [*common, *particular]
    more = [f"… and {len(notes) - _NOTES:,} more notes"] if len(notes) > _NOTES else []
    return [*notes[:_NOTES], *more]


def trace_section(source: Source, section: Section) -> dict[str, Any]:
    """Traces of training texts in input embeddings: how many models have one, and the words of some."""
    counts = {
        row["token_class"]: row["models"]
        for row in source.rows(
            "SELECT token_class, count(*) AS models FROM records JOIN models USING (model_id) WHERE base = ? "
            "GROUP BY ALL"
        )
    }
    classes = [(words, counts[name]) for name, words in _CLASSES.items() if counts.get(name)]
    chosen = source.rows(
        "SELECT model FROM models JOIN records USING (model_id) WHERE base = ? AND NOT models.is_copy "
        "AND models.duplicate_of IS NULL AND token_class IN ('exact', 'statistical') "
        "ORDER BY len(datasets) > 0, downloads DESC NULLS LAST, model"
    )
    traces, refusals = [], []
    with Progress(min(len(chosen), _TRACED), "  reading traces") as progress:
        for row in chosen[:_TRACED]:
            try:
                traces.append(trace(source.atlas, row["model"], source.base))
            except AtlasError as error:
                refusals.append(error)
            progress.update()
    unnamed = next(
        (note for traced in traces for note in traced.notes if note.startswith("Its words are not named")),
        None,
    )
    if traced := counts.get("exact", 0):
        section.key_number(f"{traced:,}", "whose embedding says which tokens their training text had")
    return {
        "classes": source.table("What embeddings can say", {"class": "prose", "models": "number"}, classes),
        "refusal": section.unavailable(refusals[0]) if refusals else None,
        "unnamed": section.unavailable(unnamed) if unnamed else None,
        "traced": len(chosen),
        "shown": len(traces),
        "traces": source.table(
            "Models in their own words",
            {
                "model": "model", "words that set it apart": "name", "tokens met": "percent",
                "longest input": "number", "masked": "fixed", "pairs": "fixed",
            },
            [
                (
                    traced.model, ", ".join(word.word for word in traced.words[:_WORDS]), traced.share_met,
                    traced.longest_input,
                    *(None if value is None else "yes" if value else "no" for value in (traced.masked, traced.pairs)),
                )
                for traced in traces
            ],
        ),
    }  # fmt: skip
