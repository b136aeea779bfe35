"""Which models were probably tuned on texts like these; which of these texts a model was probably tuned on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from query.models.resolved import ResolvedModel, unrelated_notes, vector_notes, vector_of
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
FEWEST_TEXTS = 5  # fewer are weak evidence
MOST_FILES = 200
# At most this share of the models that stand out is expected to do so by chance.
FALSE_DISCOVERIES = 0.1
# A file is the answer if its p-value, times the number of files, is at most this.
ANSWER_BELOW = 0.05
# For shares, at most this many texts are counted of each file, and of all files together. Counting needs no base.
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
    all_bases: Annotated[
        bool, Option("Find models of all bases, in one list. The texts run through each base.")
    ] = False,
) -> LikelyModels | TextsOfModel:
    """Find the models that were probably tuned on texts like those in FILE: lines, JSON, CSV, TSV or Parquet.

    With ``model`` and ``among``, find which files a model was tuned on, or none of them. If FILE is "-", texts are read
    from stdin. The texts run through the base model once; no fine-tune is run.

    At most 200 texts are used, evenly spaced (with ``among``, 200 to 1,000 of each file), and only the beginning of a
    long text. Empty texts are left out, and so are those that cannot be read if they are a tenth or fewer (half of a
    surrogate pair is always left out); the notes say how many and why.

    Note:
        ``file``: a file, or a list of texts. See :func:`query.models.texts.read_texts`.

    Returns:
        The ``k`` models of the base, or of all bases, that were most probably tuned on such texts; or, with ``model``,
        the file whose texts are most like those that it was tuned on, if any, and for several files also their shares
        of the training text (:mod:`query.questions.ask.shares`).

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
    if all_bases and (base is not None or model is not None):
        raise BadArgument("`all_bases` goes without `base` and `model`.", "Leave them out.")
    is_of_base = base is not None or (model is None and not all_bases)
    canonical = atlas.base_named(base) if is_of_base else None
    reference_texts = None if reference is None else read_texts(reference, field=None, most=1000)
    if file is not None:
        if isinstance(file, (str, Path)):
            texts = read_texts(file, field, most=MOST_TEXTS)
        else:
            texts = given_texts(file, most=MOST_TEXTS)
        return _models_for(atlas, canonical, texts, k, reference_texts, where, device)
    assert model is not None
    paths = _files(among)
    most = max(MOST_TEXTS, min(MOST_TEXTS_OF_SHARES, MOST_TEXTS_OF_ALL // len(paths)))
    files = [read_texts(path, field, most=most) for path in paths]
    return _texts_for(atlas, str(model), canonical, files, reference_texts, device)


@dataclass(frozen=True)
class _ScoredModels:
    """The models of one base: columns of their scores, and which of them count."""

    base: str
    models: Candidates
    z: NDArray[np.float64]
    p: NDArray[np.float64]
    cosines: tuple[NDArray[np.float64], NDArray[np.float64]]
    compared: NDArray[np.intp]
    notes: list[str]


def _models_for(
    atlas: AtlasReader,
    base: str | None,
    texts: Texts,
    k: int,
    reference_texts: Texts | None,
    where: str | None,
    device: str,
) -> LikelyModels:
    """The models of ``base``, or of all bases, for these texts."""
    allowed_ids = None
    if where is not None:
        from query.questions.sql import asked_condition  # rarely needed, so not at the top

        # Before the texts run: it may be wrong.
        allowed_ids = np.asarray(asked_condition(atlas.connection, where).model_ids(), dtype=np.int64)
    by_base: list[_ScoredModels] = []
    notes: list[str] = []
    for name in atlas.bases() if base is None else [base]:
        try:
            by_base.append(_scored_models(atlas, name, texts, reference_texts, allowed_ids, device))
        except AtlasError as error:
            if base is not None:
                raise
            notes.append(f"{name} is left out: {error.message}")
    if not by_base:
        raise AtlasError(f"No base of this atlas can run these texts: {'; '.join(notes)}", "")
    # Names decide ties. They are read only for the first models.
    first: list[tuple[float, int, _ScoredModels, int]] = []
    for scored_base in by_base:
        ids, z = scored_base.models.ids, scored_base.z
        order = scored_base.compared[np.lexsort((ids[scored_base.compared], -z[scored_base.compared]))][
            : k + _MOST_TIES
        ]
        first += [(float(z[column]), int(ids[column]), scored_base, column) for column in order.tolist()]
    facts = _facts(atlas, [model_id for _, model_id, _, _ in first])
    first.sort(key=lambda row: (-row[0], facts[row[1]]["model"]))
    compared_count = sum(len(scored_base.compared) for scored_base in by_base)
    rows = [
        LikelyModel(
            rank,
            score=score,
            p_value=float(scored_base.p[column]),
            expected_by_chance=float(scored_base.p[column] * compared_count),
            by_vocabulary=_or_none(scored_base.cosines[0][0, column]),
            by_vectors=_or_none(scored_base.cosines[1][0, column]),
            base=scored_base.base if base is None else None,
            **facts[model_id],
        )
        for rank, (score, model_id, scored_base, column) in enumerate(first[:k], start=1)
    ]
    for scored_base in by_base:
        prefix = f"{scored_base.base}: " if base is None else ""
        notes += [f"{prefix}{note}" for note in scored_base.notes]
    p = np.concatenate([scored_base.p[scored_base.compared] for scored_base in by_base])
    return LikelyModels(
        texts.name, base or f"{len(by_base)} bases", len(texts), compared_count, standing_out(p, FALSE_DISCOVERIES),
        tuple(rows), (*texts.notes, *notes),
    )  # fmt: skip


def _scored_models(
    atlas: AtlasReader,
    base: str,
    texts: Texts,
    reference_texts: Texts | None,
    allowed_ids: NDArray[np.int64] | None,
    device: str,
) -> _ScoredModels:
    """The scores of the models of one base; those with the ids ``allowed_ids`` count."""
    reader = Reader(atlas, base, reference_texts, device)
    models = read_candidates(atlas, base, reader.reference().rates.shape[1])
    scored, cosines, notes = _scored(reader, models, [texts])
    p, z = scored.p[0], scored.z[0]
    is_allowed = np.ones(len(models), bool) if allowed_ids is None else np.isin(models.ids, allowed_ids)
    left_out = models.left_out.words()
    if left_out:
        notes.append(f"left out: {', '.join(left_out)}")
    return _ScoredModels(base, models, z, p, cosines, np.flatnonzero(is_allowed & ~np.isnan(p)), notes)


def _facts(atlas: AtlasReader, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Model, author, relation and datasets by id; the datasets are those of all duplicates of a model."""
    rows = atlas.rows(
        "SELECT model_id, model, author, relation, coalesce(duplicate_group, -1 - model_id) AS duplicate_group "
        "FROM fine_tunes JOIN records USING (model_id) WHERE model_id IN (SELECT unnest($1::INTEGER[]))",
        [list(ids)],
    )
    dataset_rows = atlas.rows(
        "SELECT coalesce(duplicate_group, -1 - model_id) AS duplicate_group, "
        "list_sort(list(DISTINCT dataset)) AS names FROM model_datasets JOIN records USING (model_id) "
        "WHERE dataset IS NOT NULL AND NOT is_copy AND NOT is_unrelated "
        "AND coalesce(duplicate_group, -1 - model_id) IN (SELECT unnest($1::INTEGER[])) GROUP BY 1",
        [[row["duplicate_group"] for row in rows]],
    )
    datasets = {row["duplicate_group"]: row["names"] for row in dataset_rows}
    return {row.pop("model_id"): row | {"datasets": datasets.get(row.pop("duplicate_group"), [])} for row in rows}


def _texts_for(
    atlas: AtlasReader, model: str, base: str | None, texts: Sequence[Texts], reference_texts: Texts | None, device: str
) -> TextsOfModel:
    resolved = resolve_model(atlas, model, base, "input")
    if resolved.is_copy:
        raise AtlasError(f"{resolved.name} is {resolved.as_copy}: it was not tuned on any text.", "")
    reader = Reader(atlas, resolved.base, reference_texts, device)
    models = read_candidates(atlas, resolved.base, reader.reference().rates.shape[1])
    column = int(np.searchsorted(models.ids, resolved.model_id or -1))
    # It is one of them unless it was read for this question or is a duplicate.
    if resolved.vector is not None or column == len(models) or models.ids[column] != resolved.model_id:
        column = len(models)
        vector, (_, evidence) = vector_of(atlas, resolved, "input"), token_evidence(atlas, resolved)
        models = models.with_newcomer(vector, resolved.model_id or -1, evidence)
    sampled = [replace(file_texts, texts=given_texts(file_texts.texts, most=MOST_TEXTS).texts) for file_texts in texts]
    scored, cosines, notes = _scored(reader, models, sampled)
    shares, share_notes = _shares(atlas, resolved, model, models, texts)
    notes += share_notes
    order = sorted(range(len(texts)), key=lambda row: (-scored.z[row, column], texts[row].name))
    likely = [bool(scored.p[row, column] * len(texts) <= ANSWER_BELOW) for row in range(len(texts))]
    rows = tuple(
        LikelyTexts(
            rank,
            texts[row].name,
            score=float(scored.z[row, column]),
            p_value=float(scored.p[row, column]),
            by_vocabulary=_or_none(cosines[0][row, column]),
            by_vectors=_or_none(cosines[1][row, column]),
            texts=len(sampled[row]),
            is_answer=likely[row] and rank == 1,
            share=None if shares is None else float(shares.shares[row]),
            share_low=None if shares is None else float(shares.low[row]),
            share_high=None if shares is None else float(shares.high[row]),
        )
        for rank, row in enumerate(order, start=1)
    )
    answer = rows[0].file if rows and rows[0].is_answer else None
    notes += [note for file_texts in texts for note in file_texts.notes]
    notes += [*vector_notes(atlas, resolved), *unrelated_notes(resolved)]
    return TextsOfModel(resolved.name, resolved.base, answer, rows, tuple(notes))


def _shares(
    atlas: AtlasReader, resolved: ResolvedModel, name: str, models: Candidates, texts: Sequence[Texts]
) -> tuple[Shares | None, list[str]]:
    """The shares of several files, and notes."""
    if len(texts) < 2:
        return None, []
    row, evidence = token_evidence(atlas, resolved)
    if evidence is None or evidence.kind == FROZEN:
        return None, ["the shares of the files are not known: its embedding does not say which tokens it met"]
    tokenizer, reason = tokenizer_for(atlas, resolved, name, row, evidence)
    if tokenizer is None:
        return None, [Text("the shares of the files are not known: ", reason)]
    length = kept_tokens(longest_input(atlas, resolved.base, evidence), evidence.pairs) or USUAL_LONGEST
    counts_and_coverage = [token_counts(file_texts.texts, tokenizer, evidence, length) for file_texts in texts]
    is_open = (evidence.codes >= UNSURE) | np.isin(evidence.rows, tokenizer.special_ids)
    met_probability = np.where(is_open, np.nan, met_probabilities(evidence))
    other_codes = models.codes[(models.is_share == evidence.is_share) & (models.ids != (resolved.model_id or -1))]
    shares = shares_of(
        [counts for counts, _ in counts_and_coverage],
        [share for _, share in counts_and_coverage],
        met_probability,
        other_rates(other_codes),
    )
    if shares is None:
        return None, ["the shares of the files are not known: none of the tokens of one of them was read"]
    if (met_share := float(np.nanmean(met_probability))) > 0.9:
        return shares, [f"the model met {percent(met_share)} of the tokens that were read, so the shares are rough"]
    return shares, []


def _scored(
    reader: Reader, models: Candidates, texts: Sequence[Texts]
) -> tuple[Scored, tuple[NDArray[np.float64], NDArray[np.float64]], list[str]]:
    """z-scores and p-values (files, models), the cosines by vocabulary and by vectors, and notes."""
    null = None if models.newcomer is not None else reader.null()
    if null is not None and null.means.shape[1:] != (len(models),):
        null = None
    sets = [reader.features_of(file_texts) for file_texts in texts]
    features = Features(
        np.concatenate([feature_set.blocks for feature_set in sets]),
        np.concatenate([feature_set.rates for feature_set in sets]),
    )
    groups = [features] if null is not None else [features, reader.reference()]
    (by_vocabulary, *reference_by_vocabulary), (by_vectors, *reference_by_vectors) = (
        models.by_vocabulary(groups, reader.pooled_rates()),
        models.by_vectors(groups),
    )
    if null is None:
        null = null_of([*reference_by_vocabulary, *reference_by_vectors], [VOCABULARY_WEIGHT, 1 - VOCABULARY_WEIGHT])
        if models.newcomer is None:
            reader.keep_null(null)
    scored = score(null, [by_vocabulary, by_vectors])
    notes = []
    without = int(np.isnan(by_vocabulary).any(axis=0).sum())
    if without:
        subject = "all" if without == len(models) else f"{without:,} of {len(models):,}"
        notes.append(
            f"{subject} models are compared by vectors alone: no rows of their embeddings are known to have moved"
        )
    for file_texts in texts:
        if (different := len(set(file_texts.texts))) < FEWEST_TEXTS:
            phrase = "1 text, which says" if different == 1 else f"{different} different texts, which say"
            notes.append(f"{file_texts.name} holds {phrase} little; a few dozen are better")
    return scored, (by_vocabulary, by_vectors), notes


def _files(among: Sequence[str | Path]) -> list[Path | str]:
    """The files named, and the files of the folders named, sorted and without hidden files."""
    paths: list[Path | str] = []
    for entry in among:
        path = Path(entry)
        if str(entry) != "-" and path.is_dir():
            files = sorted(file for file in path.iterdir() if not file.name.startswith(".") and file.is_file())
            if not files:
                raise AtlasError(f"{entry} holds no files.", "Give files of texts, or a folder of them.")
            paths += files
        else:
            paths.append(entry)
    if len(paths) > MOST_FILES:
        raise AtlasError(f"{len(paths):,} files are too many; {MOST_FILES} can be compared.", "Give fewer.")
    return paths


def _or_none(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)
