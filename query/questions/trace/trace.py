"""``query trace``: what a model was trained on, by the rows of its own input embedding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from indexer.console.messages import say as print_note
from indexer.console.option import Option
from indexer.errors import AtlasError, Call, Text, require
from indexer.records.representations.registry import DEFAULT
from indexer.records.tokens import EXACT, FROZEN, MISSING, STATISTICAL, UNSURE
from indexer.sources.registry import ModelRef
from query.contract.columns import BaseId, ModelId, Notes
from query.contract.options import Base, Model, Read
from query.contract.registry import Invocation, Tool, question
from query.contract.results import Detail, Doc, If, Result, Shown, Spread
from query.models.lookup import resolve_model
from query.models.resolved import READERS, ResolvedModel, unrelated_notes
from query.models.texts import read_texts
from query.questions.trace.evidence import (
    COLUMNS,
    TokenEvidence,
    evidence_of_all_rows,
    evidence_of_row,
    token_evidence,
    tokenizer_of_model,
)
from query.questions.trace.texts import USUAL_LENGTH, ComparedTexts, compare_texts, kept_tokens
from query.questions.trace.words import (
    BaseTokenizer,
    Script,
    StoredWords,
    Tokenizer,
    Word,
    distinctive_scores,
    scripts_of,
    words_of,
)
from query.shared.wording import counted, percent

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

NONE = "none"
WORDS = 20
MOST_OTHERS = 512  # models that a word is compared with

# Position rows before the first token: the padding's row and the rows before it. Other models begin with row 0.
_OFFSETS = {"roberta": 2, "xlm-roberta": 2, "xlm-roberta-xl": 2, "camembert": 2, "longformer": 2, "opt": 2, "bart": 2,
            "mbart": 2, "data2vec-text": 2, "mpnet": 2, "xmod": 2, "ernie_m": 2, "blenderbot": 0}  # fmt: skip
_MASKS = ("[MASK]", "<mask>")
_AT_ONCE = 20_000  # tokens in one request to the tokenizer
# The share of rows that moved but may look untouched in a file in half precision: measured .15 for bfloat16.
_HIDDEN = 0.15


@dataclass(frozen=True, repr=False)
class TracedModel(Result):
    """The trace of the training text in the embeddings of ``model``. None: not known."""

    SHOW_HEADLINE = True
    ROWS = "words"
    SHEET = ("known", "first_words", "more_words", "scripts", "verdicts")

    model: ModelId
    base: BaseId
    class_: Annotated[
        str,
        Doc(
            "How much the input embedding can show: exact (rows of tokens that the text contains can be distinguished "
            "from the others), statistical (only likely), frozen (no row moved), or none (an adapter, or an "
            "embedding that cannot be compared)."
        ),
    ]
    rows_read: Annotated[int, Doc("Number of rows of the input embedding that were read: one for each token.")]
    tokens_met: Annotated[
        int | None,
        Doc("Number of these tokens that the training text had; expected, not counted, if the head is tied."),
    ]
    share_met: Annotated[float | None, Doc("Their share of rows_read.")]
    longest_input: Annotated[
        int | None, Doc("Tokens of the longest input, from the position embeddings; empty if not known.")
    ]
    pairs: Annotated[bool | None, Doc("Whether inputs were pairs of texts, from the token types; empty if not known.")]
    masked: Annotated[
        bool | None,
        Doc("Whether the mask token was met, as in masked language modelling; empty if its row was not read."),
    ]
    decay_times_rate: Annotated[float | None, Doc("Learning rate times weight decay, summed over the steps.")]
    words: Annotated[
        tuple[Word, ...], Doc("Words that set the model apart from others of its base, whole words first.")
    ]
    scripts: Annotated[tuple[Script, ...], Doc("Scripts of the tokens that were met."), If(in_tables=True)]
    text: Annotated[ComparedTexts | None, Doc("Results of comparing the embedding with a file of texts."), If()]
    notes: Notes

    @property
    def headline(self) -> str:
        """The tokens and words met and, with texts, which were certainly not used, in a sentence or two."""
        if self.class_ == NONE:
            return f"{self.model} has no trace of its training text."
        if self.class_ == FROZEN:
            return f"The input embedding of {self.model} did not move: it was frozen, so it has no trace of the text."
        met = f"met {self.tokens_met:,} of the {counted(self.rows_read, 'token')} that were read"
        if self.class_ == STATISTICAL:
            met = f"probably {met}"
        words = [word.word for word in self.words[:8]]
        distinctive = f"; words that set it apart: {', '.join(words)}" if words else ""
        length = f", in inputs of up to {counted(self.longest_input, 'token')}" if self.longest_input else ""
        sentence = f"{self.model} {met}{length}{distinctive}."
        if (text := self.text) is None:
            return sentence
        texts = counted(text.texts, "text")
        if text.certainly_not_used is not None and text.share_upper is not None:
            return (
                f"{sentence} Of {texts}, {text.certainly_not_used:,} were certainly not used in any step that changed "
                f"its embedding, and at most {percent(text.share_upper)} can have been (95 % confidence)."
            )
        if text.likelihood is None:
            return f"{sentence} None of the tokens of {texts} was read."
        return f"{sentence} The tokens of {texts} were met with a mean probability of {text.likelihood:.2f}."

    @property
    def known(self) -> Annotated[dict[str, Any], Shown(), Spread()]:
        """The known facts, and the results for all texts together."""
        facts = self.to_dict()
        text = facts.pop("text", {})
        tables = ("words", "scripts", "notes", "by_text")
        return {name: value for name, value in (facts | text).items() if value is not None and name not in tables}

    @property
    def first_words(self) -> Annotated[list[dict[str, Any]], Shown("words", in_details=False), If()]:
        """The first ten words with their scores."""
        return [{"word": word.word, "score": word.score} for word in self.words[:10]]

    @property
    def more_words(self) -> Annotated[list[dict[str, Any]], Shown("words"), Detail(), If()]:
        """As many words as are worth reading."""
        return [{"word": word.word, "score": word.score} for word in self.words[:WORDS]]

    @property
    def verdicts(self) -> Annotated[list[dict[str, Any]], Shown("by_text"), If()]:
        """The verdict on each text."""
        return [
            {"verdict": text.verdict, "untouched": ", ".join(text.untouched[:5]), "met": text.met, "text": text.text}
            for text in (self.text.by_text if self.text is not None else None) or ()
        ]


def _command(call: Invocation, **options: Any) -> None:
    call.ask(say=print_note, **options)


@question(
    example="trace ./my-fine-tune --text articles.txt",
    agents=Tool(
        "Find what a model was trained on from its input embedding: words, length of inputs, masked or not.",
        ("model", "base"),
    ),
    command=_command,
)
def trace(
    atlas: AtlasReader,
    model: Model,
    base: Base = None,
    *,
    text: Annotated[
        str | Path | None, Option("Compare these texts: lines, .jsonl, .csv, .tsv, .parquet, or -.", metavar="FILE")
    ] = None,
    field: Annotated[str | None, Option("The field or column of FILE that holds the text.", metavar="NAME")] = None,
    each: Annotated[bool, Option("Print the result for each text.")] = False,
    max_length: Annotated[
        int | None,
        Option(
            "Number of tokens to which training cut texts. Default: what the position embeddings show, else 24.",
            least=1,
            metavar="N",
        ),
    ] = None,
    all_rows: Annotated[bool, Option("Read the whole embedding of MODEL and of its base, not some rows.")] = False,
    read: Read = None,
    say: Callable[[str], None] | None = None,
) -> TracedModel:
    """Show what ``model`` was trained on, from its input embedding: only rows of tokens in the training text moved.

    Without the base's tokenizer (the extra [build], the files of the base), whole words alone are named.

    With ``text``, show which texts were certainly not used in any step that changed the embedding. At most 10,000 texts
    are used, evenly spaced, and only the first 100,000 characters of a long text. Empty texts are left out, and so are
    those that cannot be read if they are a tenth or fewer (half of a surrogate pair is always left out); the notes say
    how many and why.

    Note:
        ``say``: called with the cost of reading the whole embedding, before it is read.

    Raises:
        AtlasError: the model is unknown or cannot be read, or a text is asked about and there is no tokenizer.
    """
    texts = read_texts(text, field) if text is not None else None
    resolved = resolve_model(atlas, str(model), base, DEFAULT, read)
    row, evidence = token_evidence(atlas, resolved)
    if all_rows:
        evidence = _of_all_rows(atlas, resolved, str(model), row, evidence, say)
    notes = [f"{resolved.name} is {resolved.as_copy}."] if resolved.is_copy else [*unrelated_notes(resolved)]
    if evidence is None or evidence.kind == FROZEN:
        notes.append(_why_none(resolved, row, evidence, all_rows))
        if texts is not None:
            notes.append("The texts cannot be compared. `query ask` compares them by the block matrices.")
        return _without_trace(resolved, evidence, notes)
    tokenizer, reason = tokenizer_for(atlas, resolved, str(model), row, evidence)
    if tokenizer is None and texts is not None:
        raise AtlasError(Text("The texts cannot be split into tokens: ", reason), "")
    tokens = _NamedTokens()
    stored = None if tokenizer is not None or all_rows else _stored_words(atlas, resolved.base, evidence)
    if tokenizer is not None:
        tokens = _named(tokenizer, evidence, None if all_rows else _ranks_of_other_models(atlas, resolved, evidence))
    elif stored is not None:
        named = _named(stored, evidence, _ranks_of_other_models(atlas, resolved, evidence))
        tokens = replace(named, scripts=())  # those of pieces of words are not known
    if tokenizer is None:
        what = (
            "Its words are not named: "
            if stored is None
            else "Only whole words of its base, in lower case, are named: "
        )
        notes.append(Text(what, reason))
    notes.append(tokens.note(resolved.base))
    if evidence.kind == STATISTICAL:
        notes.append(_why_statistical(evidence))
    is_there = evidence.codes != MISSING
    rows_read = int(is_there.sum())
    share = rows_read / max(evidence.base_vocabulary, 1)
    if not all_rows and share < 1:
        more = () if atlas.is_demo else ("; ", Call(all_rows=True), " reads all of them")
        notes.append(Text(f"{percent(share)} of the rows were read", *more, "."))
    length = longest_input(atlas, resolved.base, evidence)
    comparison = None
    if texts is not None:
        assert tokenizer is not None
        token_limit = max_length or kept_tokens(length, evidence.pairs)
        comparison = compare_texts(
            texts.texts, tokenizer, evidence, met_probabilities(evidence), token_limit, each=each
        )
        notes += texts.notes
        notes += _on_texts(token_limit) if evidence.kind == EXACT else ()
    # With a tied head a number of tokens is only expected.
    met = round(float(met_probabilities(evidence)[is_there].sum())) if evidence.is_share else int(evidence.is_met.sum())
    return TracedModel(
        model=resolved.name,
        base=resolved.base,
        class_=evidence.kind,
        rows_read=rows_read,
        tokens_met=met,
        share_met=met / rows_read if rows_read else None,
        longest_input=length,
        pairs=evidence.pairs,
        masked=tokens.masked,
        decay_times_rate=None if evidence.is_share else max(0.0, -math.log(evidence.scale)),
        words=tokens.words,
        scripts=tokens.scripts,
        text=comparison,
        notes=tuple(note for note in notes if note),
    )


def _of_all_rows(
    atlas: AtlasReader, resolved: ResolvedModel, name: str, row: dict[str, Any] | None, evidence: TokenEvidence | None,
    say: Callable[[str], None] | None,
) -> TokenEvidence | None:  # fmt: skip
    """The evidence of the whole embedding. Raises AtlasError for an adapter, which has no embedding of its own."""
    atlas.require_base_elsewhere()
    require("Reading an embedding", *READERS)
    if resolved.is_adapter:
        raise AtlasError(f"{resolved.name} is an adapter: its embedding is the base's.", "Leave `all_rows` out.")
    base = ModelRef(resolved.base), str(atlas.base_row(resolved.base)["commit"])
    return evidence_of_all_rows(*_location_of(resolved, name, row), *base, evidence, say or (lambda sentence: None))


def _without_trace(resolved: ResolvedModel, evidence: TokenEvidence | None, notes: Sequence[str]) -> TracedModel:
    """The answer for a model whose embedding did not move, or that has none."""
    return TracedModel(
        model=resolved.name,
        base=resolved.base,
        class_=NONE if evidence is None else FROZEN,
        rows_read=0 if evidence is None else len(evidence.rows),
        tokens_met=None,
        share_met=None,
        longest_input=None,
        pairs=None,
        masked=None,
        decay_times_rate=None,
        words=(),
        scripts=(),
        text=None,
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _NamedTokens:
    """The words, scripts and mask of the tokens that were met; empty without a tokenizer.

    ``models_compared``: the number of models whose words are compared with these.
    """

    words: tuple[Word, ...] = ()
    scripts: tuple[Script, ...] = ()
    masked: bool | None = None
    models_compared: int = 0

    def note(self, base: str) -> str:
        """A note on the models that the words are compared with; empty without words."""
        if self.models_compared:
            return f"Words are compared with those of {counted(self.models_compared, 'other model')} of {base}."
        return "Words are compared with tokens of the model's own that are about as common." if self.words else ""


def _named(
    tokenizer: Tokenizer | StoredWords, evidence: TokenEvidence, other_ranks: NDArray[np.float64] | None
) -> _NamedTokens:
    """Name the tokens that were met, except special ones; ``other_ranks``: (m, n) the ranks of other models."""
    special = np.array(tokenizer.special_ids, dtype=np.int64)
    is_word = evidence.is_met & ~np.isin(evidence.rows, special)
    ids = evidence.rows[is_word].tolist()
    batches = (tokenizer.words(ids[start : start + _AT_ONCE]) for start in range(0, len(ids), _AT_ONCE))
    pieces = [piece for batch in batches for piece in batch]
    scores = distinctive_scores(evidence.ranks, other_ranks)
    return _NamedTokens(
        words=tuple(words_of(evidence.rows[is_word], pieces, scores[is_word], WORDS)),
        scripts=tuple(scripts_of(pieces)),
        masked=_masked(tokenizer, evidence),
        models_compared=0 if other_ranks is None else len(other_ranks),
    )


def _on_texts(token_limit: int | None) -> tuple[str | Text, ...]:
    """The meaning of "certainly not used"; ``token_limit``: the tokens to which training cut texts, if known."""
    unknown = Text(
        "",
        *(() if token_limit else (", because it is not known where training cut texts (", Call(max_length="N"), ")")),
    )
    return (
        f"Only the first {token_limit or USUAL_LENGTH} tokens of a text count"
        + unknown
        + ". “Certainly not used” means that no "
        "training step that changed a number of the embedding had the text as it is written here, at the start of an "
        "input. A step that left the embedding as it was (frozen, or at a rate of nearly zero) leaves no trace, nor "
        "does a row that was written anew afterwards; and a changed text may have been used. A possible text was not "
        "necessarily used.",
    )


def _ranks_of_other_models(
    atlas: AtlasReader, resolved: ResolvedModel, evidence: TokenEvidence
) -> NDArray[np.float64] | None:
    """(m, n) the ranks of other models of the base of the same kind, without its duplicates."""
    rows = atlas.rows(  # ids first, so that only the codes of these models are read
        f"SELECT model_id, {', '.join(COLUMNS)} FROM records WHERE model_id IN (SELECT model_id FROM fine_tunes "
        "JOIN records USING (model_id) WHERE base = $1 AND token_class IN ('exact', 'statistical') "
        "AND token_is_share = $2 AND duplicate_of IS NULL AND model_id IS DISTINCT FROM $3 "
        "ORDER BY hash(model_id) LIMIT $4) ORDER BY model_id",
        [resolved.base, evidence.is_share, resolved.model_id, MOST_OTHERS],
    )
    evidences = (evidence_of_row(row) for row in rows)
    ranks = [
        other_evidence.ranks
        for other_evidence in evidences
        if other_evidence is not None and other_evidence.codes.shape == evidence.codes.shape
    ]
    return np.array(ranks) if ranks else None


def _stored_words(atlas: AtlasReader, base: str, evidence: TokenEvidence) -> StoredWords | None:
    """The words of the base that the atlas keeps; None if there are none for the rows of ``evidence``."""
    words = atlas.base_row(base)["words"] or ()
    if evidence.vocabulary != evidence.base_vocabulary or len(words) != len(evidence.rows):
        return None
    return StoredWords(dict(zip(evidence.rows.tolist(), words, strict=True)))


def _location_of(resolved: ResolvedModel, name: str, row: dict[str, Any] | None) -> tuple[ModelRef, str | None, str]:
    """The reference of a model's files, their commit, and the model's relation to the base."""
    reference = ModelRef.parse(name)
    if reference.is_name and row is not None:
        return ModelRef(resolved.name), row["commit"], str(row["relation"])
    return reference, reference.revision, "finetune"


def tokenizer_for(
    atlas: AtlasReader, resolved: ResolvedModel, name: str, row: dict[str, Any] | None, evidence: TokenEvidence
) -> tuple[Tokenizer | None, str]:
    """The base's tokenizer, or the model's own if its vocabulary has another size; or None and the reason."""
    try:
        atlas.require_base_elsewhere()
        require("Naming tokens", *READERS)
        if evidence.vocabulary == evidence.base_vocabulary:
            tokenizer = _base_tokenizer(
                resolved.base, str(atlas.base_row(resolved.base)["commit"]), evidence.base_vocabulary
            )
            tokenizer.begin_question()
            return tokenizer, ""
        return tokenizer_of_model(*_location_of(resolved, name, row)), ""
    except AtlasError as error:
        return None, error.text


# Cached for the next question: a tokenizer runs in a process of its own, which takes a second to start.
_base_tokenizer = lru_cache(maxsize=4)(BaseTokenizer)


def _masked(tokenizer: Tokenizer | StoredWords, evidence: TokenEvidence) -> bool | None:
    """Whether the row of the mask token moved; None if there is none, or it was not read."""
    if evidence.is_share:
        return None
    special = list(tokenizer.special_ids)
    ids = [token for token, word in zip(special, tokenizer.words(special), strict=True) if word.strip() in _MASKS]
    rows = np.flatnonzero(np.isin(evidence.rows, ids))
    if len(rows) != 1 or evidence.codes[rows[0]] in (UNSURE, MISSING):
        return None
    return bool(evidence.codes[rows[0]] > 0)


def longest_input(atlas: AtlasReader, base: str, evidence: TokenEvidence) -> int | None:
    """The tokens of the longest input: position rows count from an offset that depends on the architecture."""
    if evidence.positions is None:
        return None
    length = evidence.positions - _OFFSETS.get(str(atlas.base_row(base)["model_type"]), 0)
    return length if length > 0 else None


def met_probabilities(evidence: TokenEvidence) -> NDArray[np.float64]:
    """(n,) the probability that each token was met.

    With a tied head, the shares of the changes are a mixture of two normal distributions on a logarithmic scale: of
    tokens that were targets, and of those that were not. In files in half precision, some rows that moved look
    untouched.
    """
    if evidence.is_share:
        from sklearn.mixture import GaussianMixture

        values = evidence.codes.astype(np.float64)
        is_there = evidence.codes < UNSURE
        probabilities = np.full(len(values), 0.5)
        if len(np.unique(values[is_there])) > 1:
            mixture = GaussianMixture(2, random_state=0).fit(values[is_there, None])
            upper = int(mixture.means_.ravel().argmax())
            probabilities[is_there] = mixture.predict_proba(values[is_there, None])[:, upper]
        return probabilities
    met, untouched = int(evidence.is_met.sum()), int(evidence.is_untouched.sum())
    hidden = 0.0 if evidence.kind == EXACT else _HIDDEN / (1 - _HIDDEN) * met
    hidden_share = hidden / (hidden + untouched) if hidden + untouched else 0.0
    probabilities = np.where(evidence.is_met, 1.0, np.where(evidence.is_untouched, min(hidden_share, 1.0), 0.5))
    return probabilities.astype(np.float64)


def _why_none(
    resolved: ResolvedModel, row: dict[str, Any] | None, evidence: TokenEvidence | None, all_rows: bool
) -> str:
    if evidence is not None:
        return "No row of its input embedding moved: the embedding was frozen, or only its head was trained."
    if resolved.is_adapter:
        return (
            "It is an adapter, which leaves the input embedding as it is. `query ask` compares texts by its matrices."
        )
    if resolved.is_copy:
        return f"It is {resolved.as_copy}."
    if row is not None and row["token_class"] is None and resolved.record is None and not all_rows:
        return Text(
            "Its record has no rows of the input embedding that can be compared: its vocabulary was pruned or "
            "permuted, or its width is another. ",
            Call(all_rows=True),
            " reads them now.",
        )
    return (
        "Its input embedding cannot be compared with the base's: its vocabulary was pruned or permuted, its width is "
        "another, or its weights are not from this base."
    )


def _why_statistical(evidence: TokenEvidence) -> str:
    if evidence.is_share:
        return "Its head is tied to the embedding, so that every row moved: statements about tokens are only likely."
    if not evidence.is_untouched.any():
        return "Every row moved, so that no token is known not to have been met."
    return (
        "Rounding hides small changes in its file, or a merge dropped them: a row that looks untouched may have moved, "
        "so nothing is certain."
    )
