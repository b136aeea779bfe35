"""The datasets a model was probably tuned on: what the vectors say, what config.json says, and both together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.errors import AtlasError
from query.extras import to_frame
from query.lookup import indexed_model
from query.population import relatives
from query.predict.answers import NONE_OF_THESE
from query.predict.documented import Documented, Documents
from query.predict.evidence import Evidence, Reals, Witnesses
from query.predict.learning import TOO_FEW, Learnt, learn, lessons
from query.predict.subject import Repeat, Subject, read_subject, subject_of
from query.predict.sweeps import DatasetRuns, own_datasets
from query.results import Result
from query.statistics.likeness import similarities
from query.wording import counted, percent

if TYPE_CHECKING:
    import pandas

    from indexer.names import ModelRef
    from query.reader import AtlasReader

# Answers that are told: of at least such a probability or vote, and never fewer than so many.
_WORTH_TELLING = 0.01
_FEWEST = 3


@dataclass(frozen=True)
class Voter:
    """A model that voted: the nearest of its author's models of the same datasets."""

    model: str
    author: str
    datasets: tuple[str, ...]
    similarity: float
    vote: float


@dataclass(frozen=True)
class Answer:
    """One dataset, or "none of these".

    ``votes``: of the k nearest sweeps, the nearest one's being 1; ``authors``: how many people they are;
    ``models``: theirs, the largest vote first. ``vectors`` and ``head``: the probability by either alone, None
    where the model has none. ``declared``: the model names it itself, which had no part in the rest.
    """

    dataset: str
    probability: float
    votes: float
    authors: int
    vectors: float | None
    head: float | None
    declared: bool
    models: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Prediction(Result):
    """The answers for one model, the most probable first; their probabilities sum to 1.

    A dataset's probability is its expected share among the datasets of the model: where that has one dataset, the
    probability that this is the one. ``evidence``: together, vectors or head, whatever the model has. Who voted and
    what was learnt from were models of other authors. ``calibrated``: whether the probabilities were fitted to this
    atlas. ``declared``: what the model names itself; ``repeats``: models with the same weights, and what they name.
    """

    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("calibrated", "declared", "models", "authors", "votes", "head", "vectors")

    model: str
    base: str
    representation: str
    k: int
    evidence: str
    calibrated: bool
    declared: tuple[str, ...]
    repeats: tuple[Repeat, ...]
    answers: tuple[Answer, ...]
    voters: tuple[Voter, ...]
    notes: tuple[str, ...] = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """The answers worth telling: of 0.01 or a vote of 0.01 at least; three at least, and "none of these"."""
        return [asdict(answer) | {"calibrated": self.calibrated} for answer in self.worth_telling()]

    def worth_telling(self) -> list[Answer]:
        """The answers of ``to_rows``."""
        return [
            answer
            for place, answer in enumerate(self.answers)
            if max(answer.votes, answer.probability) >= _WORTH_TELLING
            or place < _FEWEST
            or answer.dataset == NONE_OF_THESE
        ]

    @property
    def headline(self) -> str:
        """The most probable answer, by what, and who was heard."""
        best = self.answers[0]
        authors = len({voter.author for voter in self.voters})
        by = {"together": "its vector and its head", "vectors": "its vector", "head": "its head"}[self.evidence]
        what = "none of the datasets that others name" if best.dataset == NONE_OF_THESE else best.dataset
        return (
            f"{self.model} was most probably tuned on {what} ({percent(best.probability)}), judged by {by} and "
            f"{counted(len(self.voters), 'vote')} of {counted(authors, 'author')}."
        )

    def to_json(self) -> list[dict[str, Any]]:
        """The rows: the answer is a list."""
        return self.to_rows()

    def table(self, *, details: bool = False) -> list[dict[str, Any]]:
        """The same rows with what fits on a terminal, rounded; ``details``: all of it."""
        if details:
            return self.to_rows()
        columns = ("dataset", "probability", "votes", "authors", "vectors", "head")
        rows = [{name: row[name] for name in columns} for row in self.to_rows()]
        return [
            {name: round(cell, 4) if isinstance(cell, float) else cell for name, cell in row.items()} for row in rows
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready, with all answers."""
        return asdict(self)

    def to_df(self) -> pandas.DataFrame:
        """A row for each answer."""
        return to_frame(self.answers, list(Answer.__dataclass_fields__))


def predict(
    atlas: AtlasReader, model: str | Path, *, k: int = 10, base: str | None = None, representation: str = "input"
) -> Prediction:
    """The datasets that ``model`` (an indexed id, any other Hub id, a local folder) was probably tuned on.

    ``k``: the number of nearest models that vote. The probabilities sum to 1. Raises AtlasError if the model is unknown
    or unreadable, has nothing to compare, or no model by another author names a dataset.
    """
    return predict_asked(atlas, str(model), Documented(atlas, representation), k=k, base=base)


def predict_asked(
    atlas: AtlasReader, model: str | ModelRef, known: Documented, *, k: int, base: str | None
) -> Prediction:
    """The same from what is ``known`` already, for whoever asks after many models."""
    if k < 1:
        raise AtlasError(f"`k` is {k}; it must be at least 1.", "")
    return _predict_with(atlas, read_subject(atlas, model, base, known.representation), known, k)


def predict_indexed(atlas: AtlasReader, model_id: int, *, k: int = 10, representation: str = "input") -> Prediction:
    """The same of an indexed model that is known by its id. Raises AtlasError."""
    subject = subject_of(atlas, indexed_model(atlas, model_id), representation)
    return _predict_with(atlas, subject, Documented(atlas, representation), k)


def _predict_with(atlas: AtlasReader, subject: Subject, known: Documented, k: int) -> Prediction:
    representation = known.representation
    # Nor do models that it was made from, or that were made from it, speak: their data are not its own.
    without = () if subject.model_id is None else (subject.model_id, *relatives(atlas, subject.model_id))
    documents = known.of(subject.base, without)
    return predict_subject(subject, documents, k=k, representation=representation)


def predict_subject(subject: Subject, documents: Documents, *, k: int, representation: str = "") -> Prediction:
    """Predict from documented models, of which the subject itself is none."""
    if not any(author != subject.author for author in documents.authors):
        raise AtlasError(
            f"No model of {subject.base} by anyone but {subject.author or 'its author'} has a known dataset: there is "
            "nobody to ask.",
            f"Index more models: `build({subject.base!r})`",
        )
    vector = np.zeros(documents.vectors.shape[1], np.float32) if subject.vector is None else subject.vector
    everyone = documents.with_undocumented(vector, subject.name, subject.author, subject.head)
    sweeps = DatasetRuns(everyone.authors, everyone.datasets)
    mine = int(sweeps.authors[-1])
    rows = np.append(lessons(sweeps.of_model, sweeps.authors == mine), len(everyone.models) - 1)
    witnesses = Witnesses.of(everyone, k, rows)
    learnt = learn(witnesses, [mine])
    evidence = witnesses.evidence(np.array([len(rows) - 1]))
    kind = _kind(subject)
    voters = _voters(witnesses, evidence)
    return Prediction(
        model=subject.name,
        base=subject.base,
        representation=representation,
        k=k,
        evidence=kind,
        calibrated=learnt.is_calibrated,
        declared=subject.declared,
        repeats=subject.repeats,
        answers=_answers(subject, learnt, evidence, witnesses.sweeps, voters, kind),
        voters=voters,
        notes=_notes(subject, everyone, voters, learnt, kind),
    )


def _kind(subject: Subject) -> str:
    if subject.vector is None:
        return "head"
    return "together" if subject.head.kind else "vectors"


def _voters(witnesses: Witnesses, evidence: Evidence) -> tuple[Voter, ...]:
    """Who voted for the last of the documents, the largest vote first."""
    documents, sweeps = witnesses.documents, witnesses.sweeps
    weights = evidence.weights.tocoo()
    found = []
    for sweep, weight in zip(weights.coords[1].tolist(), weights.data.tolist(), strict=True):
        members = np.flatnonzero(sweeps.of_model == sweep)
        similarity = similarities(documents.vectors[-1:], documents.vectors[members], documents.blocks)[0]
        nearest = int(members[np.argmax(similarity)])
        found.append(
            Voter(
                model=documents.models[nearest],
                author=documents.authors[nearest],
                datasets=sweeps.labels[sweep],
                similarity=float(similarity.max()),
                vote=float(weight),
            )
        )
    return tuple(sorted(found, key=lambda voter: (-voter.vote, -voter.similarity, voter.model)))


def _answers(
    subject: Subject, learnt: Learnt, evidence: Evidence, sweeps: DatasetRuns, voters: Sequence[Voter], kind: str
) -> tuple[Answer, ...]:
    """All answers that somebody else names, and "none of these", the most probable first."""
    chances: dict[str, Reals] = {name: each[0] for name, each in learnt.probabilities(evidence).items()}
    votes = np.append(evidence.votes.toarray()[0], 0.0)
    present = np.append(evidence.present[0], True)
    own = own_datasets(frozenset(subject.declared))
    answers = []
    for column, dataset in enumerate([*sweeps.answers, NONE_OF_THESE]):
        if not present[column]:
            continue
        heard = [voter for voter in voters if dataset in voter.datasets and voter.vote > 0]
        answers.append(
            Answer(
                dataset=dataset,
                probability=float(chances[kind][column]),
                votes=float(votes[column]),
                authors=len({voter.author for voter in heard}),
                vectors=float(chances["vectors"][column]) if kind != "head" else None,
                head=float(chances["head"][column]) if kind != "vectors" else None,
                declared=dataset in own,
                models=tuple(voter.model for voter in heard),
            )
        )
    return tuple(sorted(answers, key=lambda answer: (-answer.probability, -answer.votes, answer.dataset)))


def _notes(
    subject: Subject, documents: Documents, voters: Sequence[Voter], learnt: Learnt, kind: str
) -> tuple[str, ...]:
    """What a person should know before believing the numbers."""
    notes = list(subject.notes)
    if subject.declared:
        notes.append(f"It names {', '.join(subject.declared)} itself; that had no part in this.")
    notes += [f"{one.model} has the same weights and names {', '.join(one.datasets)}." for one in subject.repeats]
    if kind == "vectors":
        notes.append("Nothing is known of its head: the vectors speak alone.")
    own = _nearest_own(subject, documents)
    if own is not None and own.similarity > max((voter.similarity for voter in voters), default=-1.0):
        notes.append(
            f"Nearer ({own.similarity:.2f}) than any that voted is {own.model}, of {', '.join(own.datasets)}; its own "
            "author's models have no vote, as the probabilities were learnt without them."
        )
    return (*notes, *(() if learnt.is_calibrated else (TOO_FEW,)))


def _nearest_own(subject: Subject, documents: Documents) -> Voter | None:
    """The nearest documented model by the subject's own author, as if it had a vote."""
    members = [row for row, author in enumerate(documents.authors[:-1]) if author == subject.author]
    if subject.vector is None or not members:
        return None
    similarity = similarities(subject.vector[None, :], documents.vectors[members], documents.blocks)[0]
    nearest = members[int(np.argmax(similarity))]
    datasets = own_datasets(documents.datasets[nearest])
    return Voter(documents.models[nearest], subject.author, datasets, float(similarity.max()), 0.0)
