"""Which models were probably tuned on texts like these; which of these texts a model was probably tuned on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from indexer.console.option import Argument, Option
from indexer.errors import AtlasError, BadArgument, Text
from indexer.records.tokens import FROZEN, UNSURE
from query.contract.options import Base, Device, Where
from query.contract.registry import Invocation, Tool, question
from query.models.lookup import resolve_model
from query.models.resolved import ResolvedModel, sampled_notes, unrelated_notes, vector_of
from query.models.texts import Texts, given_texts, read_texts
from query.questions.ask.evidence import Features, Reader
from query.questions.ask.models import Candidates, read_candidates
from query.questions.ask.result import LikelyModel, LikelyModels, LikelyTexts, TextsOfModel
from query.questions.ask.scoring import VOCABULARY_WEIGHT, Scored, null_of, score, standing_out
from query.questions.ask.shares import Shares, other_rates, shares_of, token_counts
from query.questions.trace.evidence import token_evidence
from query.questions.trace.texts import kept_tokens
from query.questions.trace.trace import longest_input, met_probabilities, tokenizer_for
from query.shared.wording import percent

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

MOST_TEXTS = 200  # of a file; more texts hardly change the answer
FEWEST_TEXTS = 5  # fewer say little
MOST_FILES = 200
# Of the models that stand out, at most this share is expected to do so by chance.
FALSE_DISCOVERIES = 0.1
# A file is the answer if its p-value, times the number of files, is at most this.
ANSWER_BELOW = 0.05
# Of all texts of a file this many, and of all files together, say which tokens it has; that needs no base.
MOST_TEXTS_OF_SHARES, MOST_TEXTS_OF_ALL = 1_000, 20_000
USUAL_LONGEST = 128  # tokens of a text that count where the longest input is not known
_MOST_TIES = 256  # models with equal scores that names may sort


def _command(
    call: Invocation, files: Annotated[Sequence[str], Argument(metavar="FILE", is_repeated=True)] = (), **options: Any
) -> None:
    is_of_model = options["model"] is not None
    if bool(options["among"]) != is_of_model or (not is_of_model and len(files) != 1):
        call.refuse("Name one FILE of texts, or use --model with --among FILE.")
    if is_of_model:
        options["among"] = (*options["among"], *files)
    if options["where"] is not None:
        from query.questions.sql import prepare

        prepare()
    call.ask(file=None if is_of_model else files[0], **options)


@question(
    example="ask texts.jsonl --field body --base roberta-base",
    agents=Tool(
        "Find the models that were probably tuned on texts like these.\n\n"
        "The texts run through the base model on this machine; the first question about a base downloads it.",
        ("k", "where", "base"),
    ),
    command=_command,
)
def ask(
    atlas: AtlasReader,
    file: str | Path | Sequence[str] | None = None,
    k: Annotated[
        int,
        Option(
            "Number of models to show.", least=1, flag="-k --neighbours --limit", agents="Number of models to list."
        ),
    ] = 10,
    *,
    base: Base = None,
    field: Annotated[str | None, Option('Field of a row that holds the text. Default: "text".', metavar="NAME")] = None,
    reference: Annotated[
        str | Path | None,
        Option(
            "Texts that no model was tuned on, ideally like those the base was trained on. Default: shipped texts.",
            metavar="FILE",
        ),
    ] = None,
    where: Where = None,
    model: Annotated[
        str | Path | None,
        Option("Find which of the files in --among this model was tuned on.", metavar="MODEL"),
    ] = None,
    among: Annotated[
        Sequence[str | Path],
        Option(
            "With --model: a file of texts, or a folder of such files. More of them may follow.",
            metavar="FILE",
            is_repeated=True,
        ),
    ] = (),
    device: Device = "cpu",
) -> LikelyModels | TextsOfModel:
    """Find the models that were probably tuned on texts like those in FILE: lines, JSON, CSV, TSV or Parquet.

    With ``model`` and ``among``, find which files a model was tuned on, or none of them. If FILE is "-", texts are read
    from stdin. The texts run through the base model once; no fine-tune is run.

    Of more than 200 texts, that many are used, evenly spaced (with ``among``, 200 to 1,000 of each file), and of a long
    text its beginning. Empty texts are left out, and so are those that cannot be read if they are a tenth or fewer
    (half of a surrogate pair is always left out); the notes say how many and why.

    Note:
        ``file``: a file, or a list of texts. See :func:`query.models.texts.read_texts`.

    Returns:
        The ``k`` models of the base that were most probably tuned on such texts; or, with ``model``, the file whose
        texts are most like those that it was tuned on, if any, and for several files also their shares of the training
        text (:mod:`query.questions.ask.shares`).

    Raises:
        AtlasError: a file or the base cannot be read, or the base takes no text.
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
        if isinstance(file, (str, Path)):
            texts = read_texts(file, field, most=MOST_TEXTS)
        else:
            texts = given_texts(file, most=MOST_TEXTS)
        return _models_for(atlas, canonical, texts, k, own, where, device)
    assert model is not None
    paths = _files(among)
    most = max(MOST_TEXTS, min(MOST_TEXTS_OF_SHARES, MOST_TEXTS_OF_ALL // len(paths)))
    files = [read_texts(path, field, most=most) for path in paths]
    return _texts_for(atlas, str(model), canonical, files, own, device)


def _models_for(
    atlas: AtlasReader, base: str, texts: Texts, k: int, own: Texts | None, where: str | None, device: str
) -> LikelyModels:
    allowed_ids = None
    if where is not None:
        from query.questions.sql import asked_condition  # rarely needed, so not at the top

        # Before the texts run: it may be wrong.
        allowed_ids = asked_condition(atlas.connection, where).model_ids()
    reader = Reader(atlas, base, own, device)
    models = read_candidates(atlas, base, reader.reference().rates.shape[1])
    found, cosines, notes = _scored(reader, models, [texts])
    p, z = found.p[0], found.z[0]
    is_allowed = np.ones(len(models), bool) if allowed_ids is None else np.isin(models.ids, allowed_ids)
    places = np.flatnonzero(is_allowed & ~np.isnan(p))
    # The names of models decide ties, and are read of the first models only.
    first = places[np.lexsort((models.ids[places], -z[places]))][: k + _MOST_TIES]
    facts = _facts(atlas, models.ids[first].tolist())
    order = sorted(first.tolist(), key=lambda place: (-z[place], facts[int(models.ids[place])]["model"]))
    rows = [
        LikelyModel(
            rank,
            score=float(z[place]),
            p_value=float(p[place]),
            expected_by_chance=float(p[place] * len(places)),
            by_vocabulary=_or_none(cosines[0][0, place]),
            by_vectors=_or_none(cosines[1][0, place]),
            **facts[int(models.ids[place])],
        )
        for rank, place in enumerate(order[:k], start=1)
    ]
    left_out = models.left_out.words()
    if left_out:
        notes.append(f"left out: {', '.join(left_out)}")
    return LikelyModels(
        texts.name, base, len(texts), len(places), standing_out(p[places], FALSE_DISCOVERIES), tuple(rows),
        (*texts.notes, *notes),
    )  # fmt: skip


def _facts(atlas: AtlasReader, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Model, author, relation and datasets by id; the datasets are those of all duplicates of a model."""
    rows = atlas.rows(
        "SELECT model_id, model, author, relation, coalesce(duplicate_group, -1 - model_id) AS duplicate_group "
        "FROM fine_tunes JOIN records USING (model_id) WHERE model_id IN (SELECT unnest($1::INTEGER[]))",
        [list(ids)],
    )
    named = atlas.rows(
        "SELECT coalesce(duplicate_group, -1 - model_id) AS duplicate_group, "
        "list_sort(list(DISTINCT dataset)) AS names FROM model_datasets JOIN records USING (model_id) "
        "WHERE dataset IS NOT NULL AND NOT is_copy AND NOT is_unrelated "
        "AND coalesce(duplicate_group, -1 - model_id) IN (SELECT unnest($1::INTEGER[])) GROUP BY 1",
        [[row["duplicate_group"] for row in rows]],
    )
    datasets = {row["duplicate_group"]: row["names"] for row in named}
    return {row.pop("model_id"): row | {"datasets": datasets.get(row.pop("duplicate_group"), [])} for row in rows}


def _texts_for(
    atlas: AtlasReader, model: str, base: str | None, texts: Sequence[Texts], own: Texts | None, device: str
) -> TextsOfModel:
    asked = resolve_model(atlas, model, base, "input")
    if asked.is_copy:
        raise AtlasError(f"{asked.name} is {asked.as_copy}: it was not tuned on any text.", "")
    reader = Reader(atlas, asked.base, own, device)
    models = read_candidates(atlas, asked.base, reader.reference().rates.shape[1])
    place = int(np.searchsorted(models.ids, asked.model_id or -1))
    # Unless it was read for this question, or is a duplicate, it is among them.
    if asked.vector is not None or place == len(models) or models.ids[place] != asked.model_id:
        place = len(models)
        vector, (_, evidence) = vector_of(atlas, asked, "input"), token_evidence(atlas, asked)
        models = models.with_newcomer(vector, asked.model_id or -1, evidence)
    some = [replace(one, texts=given_texts(one.texts, most=MOST_TEXTS).texts) for one in texts]
    found, cosines, notes = _scored(reader, models, some)
    shares, why = _shares(atlas, asked, model, models, texts)
    notes += why
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
            texts=len(some[one]),
            is_answer=likely[one] and rank == 1,
            share=None if shares is None else float(shares.shares[one]),
            share_low=None if shares is None else float(shares.low[one]),
            share_high=None if shares is None else float(shares.high[one]),
        )
        for rank, one in enumerate(order, start=1)
    )
    answer = rows[0].file if rows and rows[0].is_answer else None
    notes += [note for one in texts for note in one.notes]
    notes += [*sampled_notes(atlas, asked), *unrelated_notes(asked)]
    return TextsOfModel(asked.name, asked.base, answer, rows, tuple(notes))


def _shares(
    atlas: AtlasReader, asked: ResolvedModel, name: str, models: Candidates, texts: Sequence[Texts]
) -> tuple[Shares | None, list[str]]:
    """The shares of several files, and notes."""
    if len(texts) < 2:
        return None, []
    row, evidence = token_evidence(atlas, asked)
    if evidence is None or evidence.kind == FROZEN:
        return None, ["the shares of the files are not known: its embedding does not say which tokens it met"]
    tokenizer, why = tokenizer_for(atlas, asked, name, row, evidence)
    if tokenizer is None:
        return None, [Text("the shares of the files are not known: ", why)]
    length = kept_tokens(longest_input(atlas, asked.base, evidence), evidence.pairs) or USUAL_LONGEST
    counted = [token_counts(one.texts, tokenizer, evidence, length) for one in texts]
    is_open = (evidence.codes >= UNSURE) | np.isin(evidence.rows, tokenizer.special_ids)
    met = np.where(is_open, np.nan, met_probabilities(evidence))
    others = models.codes[(models.is_share == evidence.is_share) & (models.ids != (asked.model_id or -1))]
    found = shares_of([one for one, _ in counted], [share for _, share in counted], met, other_rates(others))
    if found is None:
        return None, ["the shares of the files are not known: none of the tokens of one of them was read"]
    if (known := float(np.nanmean(met))) > 0.9:
        return found, [f"the model met {percent(known)} of the tokens that were read, so the shares are rough"]
    return found, []


def _scored(
    reader: Reader, models: Candidates, texts: Sequence[Texts]
) -> tuple[Scored, tuple[NDArray[np.float64], NDArray[np.float64]], list[str]]:
    """z-scores and p-values (files, models), the cosines by vocabulary and by vectors, and notes."""
    null = None if models.newcomer is not None else reader.null()
    if null is not None and null.means.shape[1:] != (len(models),):
        null = None
    sets = [reader.of(one) for one in texts]
    asked = Features(np.concatenate([one.blocks for one in sets]), np.concatenate([one.rates for one in sets]))
    groups = [asked] if null is not None else [asked, reader.reference()]
    (words, *words_of_reference), (vectors, *vectors_of_reference) = (
        models.by_vocabulary(groups, reader.pooled_rates()),
        models.by_vectors(groups),
    )
    if null is None:
        null = null_of([*words_of_reference, *vectors_of_reference], [VOCABULARY_WEIGHT, 1 - VOCABULARY_WEIGHT])
        if models.newcomer is None:
            reader.keep_null(null)
    found = score(null, [words, vectors])
    notes = []
    without = int(np.isnan(words).any(axis=0).sum())
    if without:
        what = "all" if without == len(models) else f"{without:,} of {len(models):,}"
        notes.append(
            f"{what} models are compared by vectors alone: no rows of their embeddings are known to have moved"
        )
    for one in texts:
        if (different := len(set(one.texts))) < FEWEST_TEXTS:
            said = "1 text, which says" if different == 1 else f"{different} different texts, which say"
            notes.append(f"{one.name} holds {said} little; a few dozen are better")
    return found, (words, vectors), notes


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
