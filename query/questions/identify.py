"""Which base of the atlas a model was made from: an indexed model, a folder, a file, any id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from indexer.console.advice import for_command_line
from indexer.console.messages import say
from indexer.console.option import Argument, Option
from indexer.console.stdin import STDIN
from indexer.errors import AtlasError
from indexer.sources.registry import ModelRef
from query.contract.columns import AskedModel
from query.contract.options import MODEL
from query.contract.registry import Invocation, Tool, question
from query.contract.results import Doc, Format, Hidden, If, Listed
from query.models.conversions import read_conversion
from query.models.lookup import identify_model, known_bases_of
from query.shared.wording import counted, percent

if TYPE_CHECKING:
    from indexer.deltas.identification.identify import Identification, KnownBase
    from query.models.reader import AtlasReader, IndexedModel

NO_BASE = "none"
# A row for "none of these" is left out below this probability.
_LEAST_NONE = 0.005
# The exit status of `--require-base` if it cannot be told; 1 if a model is certainly not made from one.
UNKNOWN_STATUS = 2
# An indexed model whose matrices all have been compared with the base's.
_OF_RECORD = 0.999
_STATED = 0.97
_LARGEST = 0.9999


@dataclass(frozen=True)
class BaseOfModel:
    """One base that a model may have been made from; ``base`` is None for "none of the bases of the atlas"."""

    model: AskedModel
    base: Annotated[str | None, Doc("A base of the atlas; empty in the row for none of them.")]
    probability: Annotated[
        float | None, Doc("Probability that the model was made from it, from 0 to 1. Empty if it cannot be read.")
    ]
    relation: Annotated[
        str | None,
        Doc(
            "fine-tune, adapter, conversion (in another format, of the base or a model of it: the evidence says of "
            "which), the base itself, rearranged (its weights permuted, rescaled or rotated, or its layers moved), or "
            "none."
        ),
    ]
    evidence: Annotated[
        list[str],
        Doc("The evidence for it, or against all bases: weights, shapes, names."),
        Format(lambda words: "; ".join(words)),
    ]
    error: Annotated[str, Doc("Why the model cannot be read."), If()] = ""


@dataclass(frozen=True, eq=False, repr=False)
class BasesOfModels(Listed[BaseOfModel]):
    """The bases of some models: for each model a row for each base that it may have been made from, likeliest first.

    ``is_allowed``: for each model whether it was made from one of the bases asked for; None if that cannot be told.
    """

    ROWS = "candidates"
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("relation",)

    candidates: Annotated[tuple[BaseOfModel, ...], Doc("The bases, by model, the most probable first.")]
    is_allowed: Annotated[Mapping[str, bool | None], Hidden()]

    @property
    def headline(self) -> str:
        """The base of a single model, or how many have one."""
        first: dict[str, BaseOfModel] = {}
        for row in self.candidates:
            first.setdefault(row.model, row)
        if len(first) == 1:
            (best,) = first.values()
            if best.base is None:
                return f"{best.model} was made from none of the bases known here ({percent(best.probability or 0.0)})."
            if best.relation == "the base itself":
                return f"{best.model} is {best.base} itself, in all that was read."
            kinds = {
                "adapter": "an adapter of", "rearranged": "made from the rearranged weights of",
                "conversion": "a conversion of a model of",
            }  # fmt: skip
            kind = kinds.get(best.relation or "", "a fine-tune of")
            return f"{best.model} is {kind} {best.base} ({percent(best.probability or 0.0)})."
        identified_count = sum(row.base is not None for row in first.values())
        return f"{identified_count} of {counted(len(first), 'model')} were made from a base known here."


class _BasesOfModel(NamedTuple):
    """The rows of one model, and whether it is of the bases asked for."""

    rows: list[BaseOfModel]
    is_allowed: bool | None


def _command(
    call: Invocation,
    models: Annotated[Sequence[str], Argument(metavar="MODEL…", is_repeated=True, completes="model")] = (),
    **options: Any,
) -> None:
    """If MODEL is "-", models are read from stdin, one per line."""
    if not models:
        call.refuse("Name one MODEL or several, or - for stdin.")
    names = [name for model in models for name in (call.names_on_stdin() if model == STDIN else [model])]
    required = options["require_base"]
    with call.opened() as atlas:
        answer = atlas.identify(names if len(names) > 1 or required else names[0], **options)
        call.show(answer)
    unreadable = [model for model in answer.candidates if model.error]
    if not required:
        if unreadable:
            say(f"{counted(len(unreadable), 'model')} of {len(names):,} could not be read: the column error says why")
            call.fail()
        return
    refused = [name for name, is_allowed in answer.is_allowed.items() if is_allowed is False]
    unknown = [name for name, is_allowed in answer.is_allowed.items() if is_allowed is None]
    bases = " or ".join(required)
    for name in refused:
        say(f"{name} is not made from {bases}")
    for name in unknown:
        say(f"it cannot be told whether {name} is made from {bases}")
    if refused or unknown:
        call.fail(1 if refused else UNKNOWN_STATUS)


@question(
    example="identify ./my-model lora.safetensors --require-base roberta-base",
    agents=Tool(
        "Find which base of the atlas a model was made from, by its weights, shapes and names, with a probability.",
        ("models",),
    ),
    command=_command,
)
def identify(
    atlas: AtlasReader,
    models: Annotated[
        str | Path | Sequence[str | Path],
        Argument(
            "Indexed ids, any other ids, folders, or files of weights.",
            is_repeated=True,
            completes="model",
            agents=f"{MODEL.agents} Or a list of them.",
        ),
    ],
    *,
    require_base: Annotated[
        Sequence[str] | str,
        Option(
            "Exit with status 1 if a model is not made from this base, with 2 if that cannot be told. May be given "
            "several times: then from one of them.",
            metavar="ID",
            is_repeated=True,
            completes="base",
        ),
    ] = (),
    fresh: Annotated[bool, Option("Read an indexed model again instead of its record.")] = False,
) -> BasesOfModels:
    """Find which base MODELS were made from: each an indexed id, any other id, a folder or a file of weights.

    At most 10 MB of each are read. Full models are told by their weights, also if these were pruned, rounded, permuted,
    rescaled or rotated; adapters by their names and shapes, and by what they keep of the base.

    Args:
        atlas: the atlas, whose bases are compared with.
        models: one or several. One that cannot be read is an error by itself, and a row with an error among others.
        require_base: bases of the atlas; see ``BasesOfModels.is_allowed``.
        fresh: read an indexed model again instead of its record.

    Raises:
        AtlasError: a base is unknown, or the only model cannot be read.
    """
    names = [models] if isinstance(models, str | Path) else list(models)
    required = [require_base] if isinstance(require_base, str) else list(require_base)
    allowed_bases = {atlas.base_named(name) for name in required}
    bases: list[KnownBase] | None = None
    items: list[BaseOfModel] = []
    is_allowed: dict[str, bool | None] = {}
    for name in dict.fromkeys(map(str, names)):
        try:
            reference = ModelRef.parse(name)
            indexed = atlas.find(reference) if reference.is_name and not fresh else None
            if indexed is not None and indexed.status == "indexed":
                answer = _of_record(atlas, name, indexed, allowed_bases)
            else:
                bases = known_bases_of(atlas) if bases is None else bases
                answer = _as_rows(name, identified(atlas, reference, bases), allowed_bases)
        except AtlasError as error:
            if len(names) == 1 and isinstance(models, str | Path):
                raise
            answer = _BasesOfModel([BaseOfModel(name, None, None, None, [], for_command_line(error.text))], None)
        items += answer.rows
        is_allowed[name] = answer.is_allowed
    return BasesOfModels(tuple(items), is_allowed if allowed_bases else {})


def identified(atlas: AtlasReader, reference: ModelRef, bases: Sequence[KnownBase]) -> Identification:
    """The base of a model that is read, with the source of a conversion as evidence. Raises AtlasError."""
    identification = identify_model(atlas, reference, bases)
    if not identification.is_conversion or identification.base is None:
        return identification
    try:
        match = read_conversion(atlas, reference, identification.base).match
    except AtlasError as error:
        words = f"its source was not looked for: {error.message}"
    else:
        words = match.headline
    best, *runners_up = identification.candidates
    return replace(identification, candidates=(replace(best, evidence=(words, *best.evidence)), *runners_up))


def _as_rows(name: str, identification: Identification, allowed_bases: set[str]) -> _BasesOfModel:
    rows = [
        BaseOfModel(name, row.base, _rounded(row.probability), row.relation, list(row.evidence))
        for row in identification.candidates
    ]
    if identification.none >= _LEAST_NONE or not rows:
        rows.append(BaseOfModel(name, None, _rounded(identification.none), NO_BASE, list(identification.none_evidence)))
    rows.sort(key=lambda row: -(row.probability or 0.0))
    return _BasesOfModel(rows, identification.is_from(allowed_bases))


def _rounded(probability: float) -> float:
    """With four decimals, and never certain."""
    return min(round(probability, 4), _LARGEST)


def _of_record(atlas: AtlasReader, name: str, model: IndexedModel, allowed_bases: set[str]) -> _BasesOfModel:
    """The result of the comparison when the model was indexed, for each base that it was compared with."""
    indexed = atlas.rows(
        'SELECT base, relation, "read", is_copy, is_unrelated, base_cosine '
        "FROM fine_tunes JOIN records USING (model_id) WHERE model = ? "
        "ORDER BY is_unrelated, is_copy DESC, base_cosine DESC NULLS LAST, base",
        [model.model],
    )
    related = [row for row in indexed if not row["is_unrelated"]]
    if not related:
        words = [f"when it was indexed, its weights were not those of {row['base']}, which it names" for row in indexed]
        return _BasesOfModel([BaseOfModel(name, None, _OF_RECORD, NO_BASE, words)], False if allowed_bases else None)
    rows = []
    for row in related:
        if row["relation"] == "adapter":
            words, relation, probability = ["indexed as an adapter of it, whose matrices it fits"], "adapter", _STATED
        else:
            extent = "all rows" if row["read"] == "full" else "a sample of rows of every matrix"
            cosine = "" if row["base_cosine"] is None else f": the cosine with the base's is {row['base_cosine']:.4f}"
            words, probability = [f"{extent}, compared when it was indexed{cosine}"], _OF_RECORD
            relation = "the base itself" if row["is_copy"] else "fine-tune"
        rows.append(BaseOfModel(name, row["base"], round(probability / len(related), 4), relation, words))
    is_allowed = rows[0].base in allowed_bases if len({row.base in allowed_bases for row in rows}) == 1 else None
    return _BasesOfModel(rows, is_allowed if allowed_bases else None)
