"""The datasets a model was probably tuned on, by its vector, its vocabulary, its head in config.json, or all together.

The vocabulary is the representation of that name, which describes the tokens of the training text; adapters have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from indexer.console.option import Option
from indexer.console.stdin import STDIN
from indexer.console.terminal import Progress, emit, say
from indexer.errors import AtlasError, Call, Text
from indexer.records.difference import (
    ALIKE,
    difference_of,
    norms_fit,
    relative_difference,
    signature_of,
    signatures_from,
)
from indexer.records.representations.registry import DEFAULT, representation_named
from indexer.records.representations.words import WORDS
from indexer.records.store import RecordStore
from indexer.sources.registry import ModelRef
from indexer.vectors.table import VectorTable
from query.contract.options import Base, Model, OptionalModel, Representation
from query.contract.registry import Invocation, Tool, question
from query.contract.results import Answered, answered, plain
from query.models.lookup import indexed_model, resolve_model
from query.models.population import START, Head, head_of, own_datasets, relatives
from query.models.resolved import (
    ResolvedModel,
    facts_of_record,
    start_as_row,
    table_of,
    thresholds,
    vector_notes,
    vector_of_record,
)
from query.questions.predict.classifier import NONE_OF_THESE, TOO_FEW, FittedClassifiers, fit, training_rows
from query.questions.predict.measurements import EVIDENCE, TOGETHER, evidence_of, in_words
from query.questions.predict.result import Answer, Duplicate, NeighbourVote, Prediction, ranked
from query.questions.predict.scoring import estimated_share
from query.questions.predict.training_set import (
    VOCABULARY,
    DatasetRuns,
    Features,
    LabelledModelReader,
    LabelledModels,
    TrainingSet,
    has_vocabulary,
)
from query.shared.statistics.neighbours import Floats
from query.shared.wording import percent

if TYPE_CHECKING:
    from query.faces.atlas import Atlas
    from query.models.reader import AtlasReader

# The share of models on unknown data is estimated if there are at least this many models.
FEWEST_MODELS = 10
# Keys: the author left out (None: nobody), the number of votes and the labelled models.
Fits = dict[tuple[object, ...], FittedClassifiers]


@dataclass(frozen=True)
class Target:
    """The model asked about.

    Attributes:
        model_id: its id in the atlas, whose own datasets must not vote; None if it is not indexed.
        vector: None if it cannot be used; ``notes`` then say why.
        declared: the datasets it names itself.
        duplicates: labelled models with the same weights.
        vocabulary: its vocabulary vector; None if it has none.
        start: where it began, if it is an adapter and that is known (``query.models.population.START``).
    """

    name: str
    base: str
    author: str
    model_id: int | None
    vector: VectorTable | None
    head: Head
    declared: tuple[str, ...]
    duplicates: tuple[Duplicate, ...]
    notes: tuple[str, ...]
    vocabulary: Floats | None = None
    start: str | None = None


def _command(
    call: Invocation,
    model: OptionalModel = None,
    *,
    k: int,
    base: str | None,
    undocumented: Annotated[bool, Option("Predict for every indexed model that names no dataset.")] = False,
    store: Annotated[bool, Option("Store the answers in the atlas: query sql 'FROM likely_datasets'.")] = False,
    evaluate: Annotated[
        bool, Option("Measure how often predictions are right on this atlas, compared with a baseline.")
    ] = False,
    unknown_share: float | None,
    out: Annotated[
        str | None, Option("With --evaluate: also draw the reliability: .png, .svg or .pdf.", metavar="FILE")
    ] = None,
    representation: str,
) -> None:
    """If ``model`` is "-", models are read from stdin, one per line."""
    if (model is not None) + evaluate + undocumented != 1:
        call.refuse("Name a MODEL, or use --undocumented or --evaluate without one.")
    if out and not evaluate:
        call.refuse("--out can only be used with --evaluate.")
    if store and evaluate:
        call.refuse("--store can only be used with a MODEL or --undocumented.")
    if unknown_share is not None and evaluate:
        call.refuse("--unknown-share can only be used with a MODEL or --undocumented.")
    names = call.names_on_stdin() if model == STDIN else None
    file = call.picture(out)
    with call.opened() as atlas:
        if store:
            call.asked(atlas, lambda reader: reader.require_writable())
        if undocumented or names is not None:
            options = {"k": k, "base": base, "representation": representation, "unknown_share": unknown_share}
            _show_many(call, atlas, names, store, options)
        elif model is not None:
            prediction = atlas.predict(
                model, k=k, base=base, representation=representation, unknown_share=unknown_share
            )
            call.show(prediction)
            if store:
                _keep(call, atlas, [prediction])
        else:
            call.show(atlas.evaluate_prediction(base, k=k, representation=representation), drawn=file)


def _show_many(
    call: Invocation, atlas: Atlas, names: Sequence[str] | None, store: bool, options: Mapping[str, Any]
) -> None:
    """Print predictions for ``names``, or for the models of a base without a dataset; a table has only the best answer.

    Raises AtlasError at the end if a model has no answer.
    """
    models = call.asked(atlas, undocumented, options["base"]) if names is None else names
    count = len(models)
    if not count:
        emit([], call.output)
        return
    predictions: list[Prediction] = []

    def rows(name: str, prediction: Prediction) -> list[dict[str, Any]]:
        predictions.append(prediction)
        if call.output != "table":
            return [{"model": prediction.model} | row for row in prediction.to_rows()]
        best = plain(prediction.best, table=True)
        return [best if name != prediction.model else {key: best[key] for key in best if key != "model"}]

    try:
        with Progress(count, "models") as progress:
            many = atlas.predict_many(names, on_progress=lambda _: progress.update(1), **options)
        call.show_many(many, count, rows)
        if assumed := assumed_share(predictions):
            say(assumed)
        if call.output == "table":
            say("the first answer for each model; every answer: --format jsonl")
    finally:
        # After printing: if another process is writing, the answers are not lost.
        if store:
            _keep(call, atlas, predictions)


def _keep(call: Invocation, atlas: Atlas, predictions: Sequence[Prediction]) -> None:
    """Store them in the atlas, and print how many."""
    stored_count = call.asked(atlas, keep, predictions)
    skipped = len(predictions) - stored_count
    say(f"the atlas keeps the predictions for {stored_count} models")
    if skipped:
        say(f"{skipped} predictions were skipped because the atlas does not contain their models")


Voters = Annotated[int, Option("Number of nearest models used for the vote.", least=1, flag="-k --neighbours")]
UnknownShare = Annotated[
    float | None,
    Option(
        "Share of such models that were tuned on data that no other author names. Default: the share among the "
        "labelled models of the atlas; for ten models or more, it is estimated from them.",
        least=0, most=1, metavar="S",
    ),
]  # fmt: skip


@question(
    example="predict --undocumented --base roberta-base --store",
    agents=Tool("Predict which datasets a model was tuned on, from its weights and its head.", ("model", "k", "base")),
    command=_command,
)
def predict(
    atlas: AtlasReader,
    model: Model,
    *,
    k: Voters = 10,
    base: Base = None,
    representation: Representation = "input",
    unknown_share: UnknownShare = None,
) -> Prediction:
    """Predict the datasets ``model`` was tuned on: an indexed id, any other Hub id, or a local folder.

    Returns:
        The datasets with probabilities that sum to 1.

    Raises:
        AtlasError: the model is unknown or unreadable, has nothing to compare, or no model by another author names a
            dataset.
    """
    _check(unknown_share)
    prediction = _predict(atlas, str(model), LabelledModelReader(atlas, representation), k, base)
    if unknown_share is not None:
        return prediction.with_unknown_share(unknown_share)
    note = (
        f"It is assumed that {percent(prediction.unknown_share)} of the models are tuned on data that no other author "
        "names, as in this atlas; `unknown_share` changes that."
    )
    return replace(prediction, notes=(*prediction.notes, note))


def _check(unknown_share: float | None) -> None:
    if unknown_share is not None and not 0 <= unknown_share <= 1:
        raise AtlasError(f"`unknown_share` is {unknown_share}; it must be from 0 to 1.", "")


@question()
def predict_many(
    atlas: AtlasReader,
    models: Iterable[str | Path] | None = None,
    *,
    k: Voters = 10,
    base: Base = None,
    representation: Representation = "input",
    unknown_share: UnknownShare = None,
    store: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> list[Answered[Prediction]]:
    """``predict`` for many models; by default for every indexed model of the base that names no dataset.

    If a base has ten models or more (with a vocabulary, where the base has such vectors), ``unknown_share`` is
    estimated from all of them together, unless it is given. A model without an answer has an ``error`` instead of an
    ``answer``. ``store``: keep the answers for indexed models in the atlas (table ``predictions``, view
    ``likely_datasets``). ``on_progress`` is called with the number of models read.
    """
    _check(unknown_share)
    labelled = LabelledModelReader(atlas, representation)  # they are read once
    fits: Fits = {}
    are_indexed = models is None

    def ask(model: str) -> Prediction:
        # A name that comes from the atlas must not be read as a folder of this machine.
        return _predict(atlas, ModelRef(model) if are_indexed else model, labelled, k, base, fits)

    many: list[Answered[Prediction]] = []
    for entry in answered(undocumented(atlas, base) if models is None else map(str, models), ask):
        many.append(entry)
        if on_progress is not None:
            on_progress(len(many))
    shares: dict[str, float] = {}
    for of_base in {entry.answer.base for entry in many if entry.answer is not None}:
        predictions = [entry.answer for entry in many if entry.answer is not None and entry.answer.base == of_base]
        if has_vocabulary(atlas, of_base):
            # With few adapters among full fine-tunes, their evidence for unknown data is too strong on average.
            predictions = [prediction for prediction in predictions if prediction.answers[0].vocabulary is not None]
        if unknown_share is not None:
            shares[of_base] = unknown_share
        elif len(predictions) >= FEWEST_MODELS:
            probabilities = [
                answer.probability
                for prediction in predictions
                for answer in prediction.answers
                if answer.dataset == NONE_OF_THESE
            ]
            shares[of_base] = estimated_share(
                np.array(probabilities), np.array([prediction.unknown_share for prediction in predictions])
            )
    for index, entry in enumerate(many):
        if entry.answer is not None and entry.answer.base in shares:
            many[index] = replace(entry, answer=entry.answer.with_unknown_share(shares[entry.answer.base]))
    if store:
        keep(atlas, [entry.answer for entry in many if entry.answer is not None])
    return many


def assumed_share(answers: Sequence[Prediction]) -> str:
    """A sentence on the share of unknown data that answers of one ``predict_many`` assume; empty if shares differ."""
    shares = {prediction.unknown_share for prediction in answers}
    if len(shares) != 1 or len(answers) < FEWEST_MODELS:
        return ""
    return f"{percent(shares.pop())} of the models are assumed to be tuned on data that no other author names"


def undocumented(atlas: AtlasReader, base: str | None = None) -> list[str]:
    """Indexed models of a base that name no dataset, most downloads first, without copies and unrelated models."""
    rows = atlas.rows(
        "SELECT model FROM models WHERE base = ? AND len(datasets) = 0 AND NOT is_copy AND NOT is_unrelated "
        "ORDER BY downloads DESC NULLS LAST, model",
        [atlas.base_named(base)],
    )
    return [row["model"] for row in rows]


def predict_indexed(atlas: AtlasReader, model_id: int) -> Prediction:
    """The prediction for an indexed model by its id, with ten votes. Raises AtlasError."""
    return _predict(atlas, indexed_model(atlas, model_id), LabelledModelReader(atlas), 10)


def _predict(
    atlas: AtlasReader,
    model: str | ModelRef | ResolvedModel,
    labelled: LabelledModelReader,
    k: int,
    base: str | None = None,
    fits: Fits | None = None,
) -> Prediction:
    if k < 1:
        raise AtlasError(f"`k` is {k}; it must be at least 1.", "")
    if not isinstance(model, ResolvedModel):
        model = resolve_model(atlas, model, base, labelled.representation)
    target = _target(atlas, model, labelled.representation)
    # Its parents and children do not vote either: their datasets are not its own.
    without = () if target.model_id is None else (target.model_id, *relatives(atlas, target.model_id))
    models, representation = labelled.read(target.base, without), labelled.representation
    if not _has_voters(models, target):
        other_models = labelled.read_others(target.base, without)
        vector = None if other_models is None or target.vector is None else _words_of(atlas, model, other_models.table)
        if other_models is not None and vector is not None and _has_voters(other_models, target):
            note = (
                f"No model of {target.base} by another author names a dataset, so the models of other bases vote, by "
                "the words that both moved."
            )
            notes = (*target.notes, note)
            target = replace(target, vector=vector, vocabulary=None, start=None, notes=notes)
            models, representation = other_models, WORDS.name
    prediction = predict_target(target, models, k=k, representation=representation, fits=fits)
    return replace(prediction, notes=(*prediction.notes, *labelled.notes))


def _has_voters(models: LabelledModels, target: Target) -> bool:
    """Whether a model by another author names a dataset."""
    voter = models.voter(target.author, target.name)
    return any(author != voter for author in models.authors)


def _words_of(atlas: AtlasReader, model: ResolvedModel, table: VectorTable) -> VectorTable | None:
    """The vector of words of a model, to be compared with those of ``table``; None if it has none."""
    from query.models.across import WordTable

    assert isinstance(table, WordTable)
    if model.record is not None:
        words = atlas.base_row(model.base)["words"] or ()
        is_held = WORDS.with_words(words).is_held_by(model.record)
        vector = vector_of_record(atlas, model.record, WORDS.name) if is_held else None
    else:
        assert model.model_id is not None
        vector = atlas.index(model.base, WORDS.name).rows([model.model_id]).row(model.model_id)
    if vector is None:
        return None
    inputs = np.zeros((1, table.inputs.shape[1]), np.float32)
    inputs[0, : len(vector)] = vector
    return replace(table, inputs=inputs, base=np.array([table.space.bases.index(model.base)], dtype=np.intp))


def _target(atlas: AtlasReader, model: ResolvedModel, representation: str) -> Target:
    """The known facts about a model. For a copy of the base or an unrelated model, only the head is used.

    Raises AtlasError if neither its vector nor its head can be used.
    """
    atlas.published(model.base, representation)
    if model.record is None:
        facts = atlas.rows(
            "SELECT head_class, label_count, label_names, problem_type, datasets, delta_norm, duplicate_group "
            "FROM models WHERE model_id = ?",
            [model.model_id],
        )[0]
    else:
        facts = facts_of_record(model.record)
    head = head_of(facts["head_class"], facts["label_count"], facts["label_names"], facts["problem_type"])
    declared = tuple(facts["datasets"])
    reason = f"{model.name} is {model.as_copy} (its delta is zero)" if model.is_copy else model.unrelated
    if reason:
        if facts["label_count"] is None:
            raise AtlasError(f"{reason}, and its config.json names no labels: nothing can be predicted from it.", "")
        note = f"{reason}: the prediction uses only its head."
        return Target(model.name, model.base, model.author, model.model_id, None, head, declared, (), (note,))
    vector = table_of(atlas, model, representation)
    duplicates = _duplicates(atlas, model, facts)
    notes = vector_notes(atlas, model)
    vocabulary = None
    if representation != VOCABULARY and has_vocabulary(atlas, model.base):
        if model.record is None:
            assert model.model_id is not None
            vocabulary = atlas.index(model.base, VOCABULARY).rows([model.model_id]).row(model.model_id)
        elif representation_named(VOCABULARY).is_held_by(model.record):
            vocabulary = vector_of_record(atlas, model.record, VOCABULARY)
    return Target(
        model.name,
        model.base,
        model.author,
        model.model_id,
        vector,
        head,
        declared,
        duplicates,
        notes,
        vocabulary,
        _start(atlas, model),
    )


def _start(atlas: AtlasReader, model: ResolvedModel) -> str | None:
    """The start of an adapter, in the form of ``query.models.population.START``."""
    if model.record is None:
        (row,) = atlas.rows(f"SELECT {START} AS start FROM models WHERE model_id = ?", [model.model_id])
        stored_start: str | None = row["start"]
        return stored_start
    start = start_as_row(model.record)
    if start is not None and start["seed"] is not None:
        return f"{start['generator']} {start['seed']} {start['offset']}"
    return None if model.initialisation is None else f"as {model.initialisation}"


def _duplicates(atlas: AtlasReader, model: ResolvedModel, facts: Mapping[str, Any]) -> tuple[Duplicate, ...]:
    """Labelled models with the same weights: by the atlas's flags, or by the record if the model was just read."""
    if model.record is None:
        rows = atlas.rows(
            "SELECT model, datasets FROM models WHERE duplicate_group = ? AND model_id <> ? AND len(datasets) > 0 "
            "ORDER BY model_id",
            [facts["duplicate_group"], model.model_id],
        )
        return tuple(Duplicate(row["model"], tuple(row["datasets"])) for row in rows)
    within = thresholds(atlas, model.base)["duplicate_within"]
    base_norm = math.hypot(*(delta.base_norm for delta in model.record.deltas))
    rows = [
        row
        for row in atlas.rows(
            'SELECT model_id, model, datasets, models.record_key, models.delta_norm, models."read", signature '
            "FROM models JOIN records USING (model_id) "
            "WHERE base = ? AND model_id IS DISTINCT FROM ? AND len(datasets) > 0 "
            "ORDER BY model_id",
            [model.base, model.model_id],
        )
        if row["read"] != model.read  # an estimated and an exact norm differ, whatever the models are
        or None in (row["delta_norm"], facts["delta_norm"])  # an adapter whose strength is not known
        or relative_difference(row["delta_norm"], facts["delta_norm"]) <= within
        or norms_fit(row["delta_norm"], facts["delta_norm"], base_norm)
    ]
    default = representation_named(DEFAULT, atlas.published(model.base, DEFAULT).budget)
    signature = signatures_from([signature_of(default.vector(model.record))])
    cosines = (signatures_from([row["signature"] for row in rows]) @ signature.T).ravel().tolist()
    store = RecordStore(atlas.folder)
    duplicates = []
    for row, cosine in zip(rows, cosines, strict=True):
        if cosine < ALIKE:
            continue
        try:  # the test of a publish
            is_duplicate = difference_of(model.record, store.read(row["record_key"])) <= within
        except AtlasError:  # the atlas has no records: by norm and signature alone
            norms = row["delta_norm"], facts["delta_norm"]
            is_close = None not in norms and relative_difference(*norms) <= within
            is_duplicate = cosine >= 1 - within and is_close
        if is_duplicate:
            duplicates.append(Duplicate(row["model"], tuple(row["datasets"])))
    return tuple(duplicates)


def predict_target(
    target: Target, models: LabelledModels, *, k: int, representation: str = "", fits: Fits | None = None
) -> Prediction:
    """Predict from labelled models, which must not include the target itself. ``fits``: kept for the next target."""
    own_voter = models.voter(target.author, target.name)
    if not _has_voters(models, target):
        raise AtlasError(
            f"There is no model of {target.base} with a known dataset by another author than "
            f"{target.author or 'its own'} to compare with.",
            Text("Index more models: ", Call("build", target.base)),
        )
    vector = target.vector or models.table.like(np.zeros_like(models.table.inputs)).take(slice(0, 1))
    all_models = models.with_unlabelled(vector, target.name, own_voter, target.head, target.vocabulary, target.start)
    training = TrainingSet(all_models, k, np.array([len(models.models)]))
    features = training.features(np.array([0]))
    fitted = _fitted_without(models, own_voter, k, {} if fits is None else fits)
    probabilities = {way: table[0] for way, table in fitted.probabilities(features).items()}
    # A model without a vector is only asked about if its config.json names labels.
    kinds = evidence_of(features, 0) or ["head"]
    way = kinds[0] if len(kinds) == 1 else TOGETHER
    single_kinds = [kind.name for kind in EVIDENCE if kind.name in Answer.__dataclass_fields__]
    voters = _votes(training, features)
    votes = np.append(features.vectors.votes.toarray()[0], 0.0)
    present = np.append(features.present[0], True)
    declared = own_datasets(frozenset(target.declared))
    answers = []
    for column, dataset in enumerate([*training.sweeps.answers, NONE_OF_THESE]):
        if not present[column]:
            continue
        agreeing = [voter for voter in voters if dataset in voter.datasets and voter.vote > 0]
        answers.append(
            Answer(
                dataset=dataset,
                probability=float(probabilities[way][column]),
                votes=float(votes[column]),
                authors=len({voter.author for voter in agreeing}),
                declared=dataset in declared,
                models=tuple(voter.model for voter in agreeing),
                **{kind: float(probabilities[kind][column]) if kind in kinds else None for kind in single_kinds},
            )
        )
    notes = [*target.notes]
    if target.declared:
        notes.append(f"It names {', '.join(target.declared)} itself; the prediction does not use that.")
    notes += [
        f"{duplicate.model} has the same weights and names {', '.join(duplicate.datasets)}."
        for duplicate in target.duplicates
    ]
    if "head" not in kinds:
        uses = in_words(kinds) if len(kinds) > 1 else f"only {in_words(kinds)}"
        notes.append(f"Nothing is known about its head: the prediction uses {uses}.")
    if target.vector is not None and training.has_silent_twins(0):
        notes.append(
            "Adapters that began at the same random numbers do not vote for data that another model names: in this "
            "atlas datasets and seeds are confounded, and adapters of one seed are alike."
        )
    own_models = [row for row, name in enumerate(models.authors) if name == own_voter]
    if target.vector is not None and own_models:
        similarity = target.vector.similarities(models.table.take(own_models))[0]
        nearest = own_models[int(np.argmax(similarity))]
        kin = "of the same run" if models.by_run else "by the same author"
        if similarity.max() > max((voter.similarity for voter in voters), default=-1.0):
            notes.append(
                f"The closest model overall, {models.models[nearest]} ({similarity.max():.2f}, trained on "
                f"{', '.join(own_datasets(models.datasets[nearest]))}), is {kin} and was excluded, "
                f"because the calibration excludes models {kin}."
            )
    if not fitted.is_calibrated:
        notes.append(TOO_FEW)
    return Prediction(
        model=target.name,
        base=target.base,
        representation=representation,
        k=k,
        evidence=way,
        calibrated=fitted.is_calibrated,
        declared=target.declared,
        repeats=target.duplicates,
        answers=ranked(answers),
        voters=voters,
        notes=tuple(notes),
        unknown_share=fitted.none,
    )


def _fitted_without(models: LabelledModels, author: str, k: int, fits: Fits) -> FittedClassifiers:
    """The classifiers fitted on all labelled models but this author's: the same for all authors who have none."""
    excluded = author if author in models.authors else None
    key = (excluded, k, *models.models)
    if key not in fits:
        sweeps = DatasetRuns(models.authors, models.datasets)
        is_own = np.array([name == excluded for name in models.authors], dtype=bool)
        training = TrainingSet(models, k, training_rows(sweeps.of_model, is_own))
        fits[key] = fit(training, np.unique(sweeps.authors[is_own]).tolist())
    return fits[key]


def _votes(training: TrainingSet, features: Features) -> tuple[NeighbourVote, ...]:
    """The votes on the last of the models, the largest first."""
    models, sweeps = training.models, training.sweeps
    weights = features.vectors.weights.tocoo()
    votes = []
    for sweep, weight in zip(weights.coords[1].tolist(), weights.data.tolist(), strict=True):
        members = np.flatnonzero(sweeps.of_model == sweep)
        is_twin = training.is_twin(training.rows[-1:], members)
        if is_twin is not None and not is_twin.all():
            members = members[~is_twin[0]]
        similarity = models.table.take(slice(-1, None)).similarities(models.table.take(members))[0]
        nearest = int(members[np.argmax(similarity)])
        author, datasets = models.authors[nearest], sweeps.labels[sweep]
        votes.append(NeighbourVote(models.models[nearest], author, datasets, float(similarity.max()), float(weight)))
    return tuple(sorted(votes, key=lambda voter: (-voter.vote, -voter.similarity, voter.model)))


def keep(atlas: AtlasReader, predictions: Sequence[Prediction]) -> int:
    """Store predictions in the atlas in place of earlier ones for the same models; return the number of models.

    Models that the atlas does not contain are skipped. The query layer only reads: the indexer writes, under its lock.
    The next generation of the atlas shows them. Raises AtlasError if another process is writing.
    """
    from indexer.publish.stored_answers import PREDICTIONS, store_answers

    now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    stored_count = 0
    for base in sorted({prediction.base for prediction in predictions}):
        keys = {
            row["model"]: row["record_key"]
            for row in atlas.rows("SELECT model, record_key FROM models WHERE base = ?", [base])
        }
        storable = [prediction for prediction in predictions if prediction.base == base and prediction.model in keys]
        lines = []
        for prediction in storable:
            for rank, answer in enumerate(prediction.shown_answers(), start=1):
                key_columns = {"model": prediction.model, "record_key": keys[prediction.model], "rank": rank}
                settings = {
                    "calibrated": prediction.calibrated,
                    "representation": prediction.representation,
                    "k": prediction.k,
                }
                agreement = {"agreement": prediction.agreement(answer), "answered_at": now}
                columns = {name: cell for name, cell in asdict(answer).items() if name != "vocabulary"}
                lines.append(key_columns | columns | settings | agreement | {"models": list(answer.models)})
        if storable:
            store_answers(atlas.folder, PREDICTIONS, base, [prediction.model for prediction in storable], lines)
            stored_count += len(storable)
    if stored_count:
        atlas.has_stored_answers = True
    return stored_count
