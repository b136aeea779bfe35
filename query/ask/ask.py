"""Which models were probably tuned on texts like these; which of these texts a model was probably tuned on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError, BadArgument
from query.ask.evidence import Reader, by_vectors, by_vocabulary, vocabulary_changes
from query.ask.result import LikelyModel, LikelyModels, LikelyTexts, TextsOfModel
from query.ask.scoring import VOCABULARY_WEIGHT, Scored, score, standing_out
from query.lookup import resolve_model, sampled_notes, unrelated_notes, vector_of
from query.population import Population, distinct, read_population
from query.texts import Texts, read_texts

if TYPE_CHECKING:
    from query.reader import AtlasReader
    from query.sql import Condition

MOST_TEXTS = 200  # of a file; more texts hardly change the answer
FEWEST_TEXTS = 5  # fewer say little
MOST_FILES = 200
# Of the models that stand out, at most this share is expected to do so by chance.
FALSE_DISCOVERIES = 0.2
# A file is the answer if its p-value, times the number of files, is at most this.
ANSWER_BELOW = 0.05


def ask(
    atlas: AtlasReader,
    file: str | Path | None = None,
    k: int = 10,
    *,
    base: str | None = None,
    field: str | None = None,
    reference: str | Path | None = None,
    where: str | None = None,
    model: str | Path | None = None,
    among: Sequence[str | Path] = (),
    device: str = "cpu",
) -> LikelyModels | TextsOfModel:
    """The ``k`` models of a base that were most probably tuned on texts like those of ``file``.

    With ``model`` and ``among`` instead of ``file``: which of these files, or of the files in these folders, the model
    was tuned on texts like, or none of them. Files hold lines, JSON lines, CSV, TSV or Parquet, with the text in
    ``field`` (see :func:`query.texts.read_texts`); 200 texts of a file are used. The texts run through the base once,
    which is downloaded if need be; no fine-tune is run. ``reference``: a file of texts that no model was trained on,
    instead of those of this package; the closer they are to what the base was trained on, the better. ``where``: an SQL
    condition on the view ``models``. ``device``: cpu, cuda, cuda:1 …

    Raises AtlasError if a file or the base cannot be read, or the base takes no text.
    """
    if (file is None) == (model is None) or (model is None) != (not among):
        raise BadArgument(
            "Give a file, or a `model` and the files to choose `among`.", "For example: query ask texts.txt"
        )
    if k < 1:
        raise BadArgument(f"`k` is {k}; it must be at least 1.", "")
    if model is not None and where is not None:
        raise BadArgument("`where` goes with a file, not with `model`.", "Leave it out.")
    canonical = atlas.base_named(base) if model is None or base is not None else None
    own = None if reference is None else read_texts(reference, field=None, most=1000)
    if file is not None:
        assert canonical is not None
        return _models_for(atlas, canonical, read_texts(file, field, most=MOST_TEXTS), k, own, where, device)
    assert model is not None
    paths = _files(among)
    texts = [read_texts(path, field, most=MOST_TEXTS) for path in paths]
    return _texts_for(atlas, str(model), canonical, texts, own, device)


def _models_for(
    atlas: AtlasReader, base: str, texts: Texts, k: int, own: Texts | None, where: str | None, device: str
) -> LikelyModels:
    condition: Condition | None = None
    if where is not None:
        from query.sql import asked_condition  # rarely needed, so not at the top

        condition = asked_condition(atlas.database, where, stand_ins=atlas.stand_ins)
    try:
        population = distinct(read_population(atlas, base))
        allowed = np.ones(len(population.ids), bool)
        if condition is not None:  # before the texts run, so that a wrong condition is known at once
            allowed = np.isin(population.ids, condition.model_ids())
        found, cosines, notes = _scored(atlas, population, [texts], own, device)
    finally:
        if condition is not None:
            condition.abandon()
    p, z = found.p[0], found.z[0]
    places = np.flatnonzero(allowed & ~np.isnan(p))
    order = sorted(places.tolist(), key=lambda place: (-z[place], population.models[place]))
    rows = [
        LikelyModel(
            rank,
            population.models[place],
            score=float(z[place]),
            p_value=float(p[place]),
            expected_by_chance=float(p[place] * len(places)),
            by_vocabulary=_or_none(cosines[0][0, place]),
            by_vectors=_or_none(cosines[1][0, place]),
            datasets=sorted(population.datasets[place]),
            author=population.authors[place],
            relation=population.relations[place],
        )
        for rank, place in enumerate(order[:k], start=1)
    ]
    left_out = population.left_out.words()
    if left_out:
        notes.append(f"left out: {', '.join(left_out)}")
    return LikelyModels(
        texts.name, base, len(texts), len(places), standing_out(p[places], FALSE_DISCOVERIES), tuple(rows),
        (*texts.notes, *notes),
    )  # fmt: skip


def _texts_for(
    atlas: AtlasReader, model: str, base: str | None, texts: Sequence[Texts], own: Texts | None, device: str
) -> TextsOfModel:
    asked = resolve_model(atlas, model, base, "input")
    if asked.is_copy:
        raise AtlasError(f"{asked.name} is {asked.as_copy}: it was tuned on nothing.", "")
    population = distinct(read_population(atlas, asked.base))
    tokens = asked.record.tokens if asked.record is not None else None
    if asked.vector is None and asked.model_id in population.ids.tolist():
        place = population.ids.tolist().index(asked.model_id)
    else:  # it was read for this question, or is a duplicate
        place = len(population.ids)
        population = _with(population, vector_of(atlas, asked, "input"), asked.model_id or -1)
    found, cosines, notes = _scored(atlas, population, texts, own, device, tokens, place)
    order = sorted(range(len(texts)), key=lambda one: (-found.z[one, place], texts[one].name))
    likely = [bool(found.p[one, place] * len(texts) <= ANSWER_BELOW) for one in range(len(texts))]
    rows = tuple(
        LikelyTexts(
            rank,
            texts[one].name,
            score=float(found.z[one, place]),
            p_value=float(found.p[one, place]),
            by_vocabulary=_or_none(cosines[0][one, place]),
            by_vectors=_or_none(cosines[1][one, place]),
            texts=len(texts[one]),
            is_answer=likely[one] and rank == 1,
        )
        for rank, one in enumerate(order, start=1)
    )
    answer = rows[0].file if rows and rows[0].is_answer else None
    notes += [note for one in texts for note in one.notes]
    notes += [*sampled_notes(atlas, asked), *unrelated_notes(asked)]
    return TextsOfModel(asked.name, asked.base, answer, rows, tuple(notes))


def _scored(
    atlas: AtlasReader,
    population: Population,
    texts: Sequence[Texts],
    own: Texts | None,
    device: str,
    tokens: Any = None,
    place: int = -1,
) -> tuple[Scored, tuple[NDArray[np.float64], NDArray[np.float64]], list[str]]:
    """z-scores and p-values (files, models), the cosines by vocabulary and by vectors, and notes.

    ``tokens``: the changes of the rows of a model that is not indexed, which is the one at ``place``.
    """
    reader = Reader(atlas, population.base, own, device)
    null = reader.reference()
    asked = [reader.of(one) for one in texts]
    features = replace(
        asked[0],
        blocks=np.concatenate([one.blocks for one in asked]),
        rates=np.concatenate([one.rates for one in asked]),
    )
    vectors = [by_vectors(one, population.vectors, population.blocks) for one in (null, features)]
    changes = vocabulary_changes(atlas, population.ids, null.rates.shape[1], {place: tokens})
    pooled = reader.pooled_rates()
    words = [by_vocabulary(one, pooled, changes) for one in (null, features)]
    found = score([(words[0], words[1], VOCABULARY_WEIGHT), (vectors[0], vectors[1], 1 - VOCABULARY_WEIGHT)])
    notes = []
    without = int(np.isnan(changes).any(axis=1).sum())
    if without:
        what = "all" if without == len(population.ids) else f"{without:,} of {len(population.ids):,}"
        notes.append(
            f"{what} models are compared by vectors alone: no rows of their embeddings are known to have moved"
        )
    for one in texts:
        if len(one) < FEWEST_TEXTS:
            notes.append(f"{one.name} holds {len(one)} texts, which say little; some dozen are better")
    return found, (words[1], vectors[1]), notes


def _with(population: Population, vector: NDArray[np.float32], model_id: int) -> Population:
    """The population with one more model, of which only the vector and the id are used."""
    return replace(
        population,
        vectors=np.concatenate([population.vectors, vector[None, :]]),
        ids=np.append(population.ids, model_id),
    )


def _files(among: Sequence[str | Path]) -> list[Path | str]:
    """The files, and those in the folders, sorted, without hidden ones."""
    found: list[Path | str] = []
    for one in among:
        path = Path(one)
        if str(one) != "-" and path.is_dir():
            inside = sorted(file for file in path.iterdir() if not file.name.startswith(".") and file.is_file())
            if not inside:
                raise AtlasError(f"{one} holds no files.", "Give files of texts, or a folder of them.")
            found += inside
        else:
            found.append(one)
    if len(found) > MOST_FILES:
        raise AtlasError(f"{len(found):,} files are too many; {MOST_FILES} can be compared.", "Give fewer.")
    return found


def _or_none(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)
