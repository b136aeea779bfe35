"""Two models side by side: the similarity of their changes, and facts from their cards and weights."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from indexer.database.deepening import deepening
from indexer.errors import AtlasError, Call, Text
from indexer.names import TRAINING_COLUMNS
from indexer.records.tokens import EXACT
from query.contract.columns import (
    BACKGROUND,
    BACKGROUND_FLOOR,
    BACKGROUND_PAIRS,
    LAYER_OR_FAMILY,
    MATRICES,
    SIMILARITY,
    SIMILARITY_ERROR,
    BaseId,
    Notes,
    Similarity,
    Vectors,
)
from query.contract.options import MODEL, Base, Read, Representation
from query.contract.registry import Tool, question
from query.contract.results import After, Data, Detail, Doc, Result, Shown
from query.models.facts import Place, facts_of, names_of
from query.models.lookup import resolve_model
from query.models.resolved import (
    ResolvedModel,
    are_same,
    facts_of_record,
    start_in_words,
    start_of,
    table_of,
    unrelated_notes,
)
from query.models.sampled import SAMPLE, needs_all, sample_gives
from query.questions.layers import Layers, Part, layers_of
from query.questions.similar import moving_notes, similarity_of
from query.questions.trace.evidence import token_evidence
from query.shared.wording import counted, percent, rarity

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

# Meanings that several fields share.
_FIRST_MODEL = Doc("The first model.")
_SECOND_MODEL = Doc("The second model.")
_A_NORM = Doc("Norm of the first model's change there.")
_B_NORM = Doc("Norm of the second model's change there.")
_OF_THE_WHOLE = Doc("As above; only in the row for all.")

# The prefix of facts that are settings of the training.
SETTING = "training."

Means = dict[str, float | None]


@dataclass(frozen=True)
class Fact:
    """One fact about both models; None if it is not known."""

    fact: Annotated[str, Doc("Name of the fact that is compared.")]
    a: Annotated[Any, _FIRST_MODEL]
    b: Annotated[Any, _SECOND_MODEL]

    @property
    def differs(self) -> bool:
        """Whether both are known and not the same."""
        return self.a is not None and self.b is not None and self.a != self.b


@dataclass(frozen=True)
class PartPair:
    """One layer, or one family: the mean cosine of the blocks that both models changed, and the norms.

    ``similarity`` is None if there is no such block.
    """

    name: Annotated[str, LAYER_OR_FAMILY]
    similarity: Annotated[float | None, SIMILARITY]
    a_norm: Annotated[float, _A_NORM]
    b_norm: Annotated[float, _B_NORM]


@dataclass(frozen=True)
class ComparedPart:
    """A row of a comparison: all, a layer, or a family. Only the row for all has a background."""

    part: Annotated[str, Doc("What the row is about: a layer, a family or, as a whole, all.")]
    name: Annotated[str, LAYER_OR_FAMILY]
    similarity: Similarity
    background: Annotated[float | None, _OF_THE_WHOLE]
    background_pairs: Annotated[int | None, _OF_THE_WHOLE]
    a_norm: Annotated[float, _A_NORM]
    b_norm: Annotated[float, _B_NORM]


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """Two models of one base.

    Attributes:
        similarity: None if one of them is a copy of the base.
        similarity_error: how far the similarity may move as models are added.
        background: the share of pairs of unrelated models that are at least as similar, out of ``background_pairs``;
            None if there are too few pairs; ``background_floor`` if there is no such pair.
        matrices: the number of matrices that both changed.
        layers, families: without similarities if the representation has no blocks.
        copy: which of the two is a copy of the base, or equals it in all that was read.
    """

    SHOW_HEADLINE = True
    ROWS = "parts"
    IS_SHEET = True

    a: Annotated[str, _FIRST_MODEL, Detail()]
    b: Annotated[str, _SECOND_MODEL, Detail()]
    base: Annotated[BaseId, Detail()]
    representation: Annotated[Vectors, Detail()]
    similarity: Annotated[float | None, SIMILARITY, Detail()]
    similarity_error: Annotated[float | None, SIMILARITY_ERROR, Detail()]
    background: Annotated[float | None, BACKGROUND, Detail()]
    background_pairs: Annotated[int | None, BACKGROUND_PAIRS, Detail()]
    background_floor: Annotated[float | None, BACKGROUND_FLOOR, Detail()]
    matrices: Annotated[int | None, MATRICES, Detail()]
    layers: Annotated[tuple[PartPair, ...], Doc("The same for each layer.")]
    families: Annotated[tuple[PartPair, ...], Doc("The same for each family of matrices.")]
    facts: Annotated[tuple[Fact, ...], Doc("Facts about both models side by side."), Data()]
    notes: Notes = ()
    copy: Annotated[
        str | None,
        Doc("Which of the two is a copy of the base, or like it in all that was read; empty if neither is."),
        Detail(),
    ] = None

    @property
    def headline(self) -> str:
        """The similarity of the two, and how unusual it is."""
        if self.similarity is None:
            return f"{self.copy or 'One of the two is a copy of its base'}: their changes cannot be compared."
        answer = f"The similarity of {self.a} and {self.b} is {self.similarity:.2f}"
        if self.background is None:
            return f"{answer}."
        rare = rarity(self.background, self.background_pairs).removesuffix(" pairs")
        return f"{answer}; {rare} pairs of unrelated models are at least as similar."

    @property
    def facts_in_words(self) -> Annotated[list[dict[str, Any]], Shown("facts"), After("facts")]:
        """The facts as ``query.models.facts`` words them, then the settings of the training."""
        facts_a, facts_b = ({fact.fact: getattr(fact, side) for fact in self.facts} for side in ("a", "b"))
        described = [
            {"fact": fact.name, "a": fact.in_words(facts_a), "b": fact.in_words(facts_b)}
            for fact in facts_of(Place.COMPARE)
            if fact.name in facts_a
        ]
        settings = [
            {"fact": fact.fact, "a": fact.a, "b": fact.b} for fact in self.facts if fact.fact.startswith(SETTING)
        ]
        return described + settings

    @property
    def parts(self) -> list[ComparedPart]:
        """A row for all, then one for each layer and each family."""
        norms = (math.hypot(*(getattr(part, name) for part in self.layers)) for name in ("a_norm", "b_norm"))
        totals = ComparedPart("all", "", self.similarity, self.background, self.background_pairs, *norms)
        parts = [("layer", part) for part in self.layers] + [("family", part) for part in self.families]
        rows = (
            ComparedPart(kind, part.name, part.similarity, None, None, part.a_norm, part.b_norm) for kind, part in parts
        )
        return [totals, *rows]


@question(
    example="compare textattack/roberta-base-MNLI ./my-fine-tune",
    agents=Tool(
        "Compare two models: how similar their weight changes are, in which layers, and what their cards say.",
        ("a", "b", "base"),
    ),
)
def compare(
    atlas: AtlasReader,
    a: Annotated[str | Path, replace(MODEL, metavar="A")],
    b: Annotated[str | Path, replace(MODEL, metavar="B")],
    *,
    base: Base = None,
    representation: Representation = "input",
    read: Read = None,
) -> Comparison:
    """Compare models ``a`` and ``b``: how similar their changes are, and what cards and weights say.

    Each is an indexed id, any other Hub id, or a local folder; both must have the same base.

    Raises:
        AtlasError: one is unknown or cannot be read, their bases differ, or the representation needs whole matrices and
            only a sample of one of them was read.
    """
    first, second = (resolve_model(atlas, str(name), base, representation, read) for name in (a, b))
    if first.base != second.base:
        raise AtlasError(
            f"{first.name} is a fine-tune of {first.base}, {second.name} of {second.base}: models of different bases "
            "cannot be compared.",
            "",
        )
    are_compared = not (first.is_copy or second.is_copy)
    likeness = _likeness(atlas, first, second, representation) if are_compared else _Likeness()
    changed = (layers_of(atlas, first), layers_of(atlas, second))
    estimates = _on_estimates(atlas, (first, second), changed)
    copies = [f"{model.name} is {model.as_copy}" for model in (first, second) if model.is_copy]
    pairs = likeness.pairs
    return Comparison(
        a=first.name,
        b=second.name,
        base=first.base,
        representation=representation,
        similarity=likeness.similarity,
        similarity_error=likeness.error,
        background=likeness.background,
        background_pairs=pairs,
        background_floor=None if pairs is None else 1 / (1 + pairs),
        matrices=likeness.matrices,
        layers=_pairs(likeness.of_layers, changed[0].layers, changed[1].layers),
        families=_pairs(likeness.of_families, changed[0].families, changed[1].families),
        facts=_facts(atlas, first, second, are_estimates=bool(estimates)),
        notes=(*likeness.notes, *_tokens_in_common(atlas, first, second), *estimates, *unrelated_notes(first, second)),
        copy=copies[0] if copies else None,
    )


@dataclass(frozen=True)
class _Likeness:
    """The similarity of two changes, as in ``Comparison``; all None if one of the models did not change.

    ``of_layers`` and ``of_families``: mean cosines by part.
    """

    similarity: float | None = None
    error: float | None = None
    background: float | None = None
    pairs: int | None = None
    matrices: int | None = None
    of_layers: Means | None = None
    of_families: Means | None = None
    notes: tuple[str, ...] = ()


def _likeness(atlas: AtlasReader, first: ResolvedModel, second: ResolvedModel, representation: str) -> _Likeness:
    """Compare two models that both changed. Raises AtlasError if a sample of one has no such vector."""
    lacking = [model.name for model in (first, second) if model.read == SAMPLE and model.vector is None]
    if lacking and not sample_gives(representation):
        raise needs_all(atlas, first.base, lacking, f"{representation!r} vector")
    similarity, background, pairs, matrices = similarity_of(atlas, first, second, representation)
    of_layers = of_families = None
    if atlas.published(first.base, representation).per_delta:
        of_layers, of_families = _by_part(atlas, first, second, representation)
    error = atlas.similarity_error(first.base, (first.group, second.group), representation)
    notes = (*moving_notes(error), *_on_starts(atlas, first, second))
    return _Likeness(similarity, error, background, pairs, matrices, of_layers, of_families, notes)


def _on_starts(atlas: AtlasReader, first: ResolvedModel, second: ResolvedModel) -> tuple[str, ...]:
    """A note if both adapters began with the same factors."""
    first_start, second_start = start_of(atlas, first), start_of(atlas, second)
    if first_start is not None and are_same(first_start, second_start):
        return (
            f"Both began at the same random numbers, {start_in_words(first_start).partition(';')[0]}. "
            "That says nothing about their data.",
        )
    if first.initialisation is None or first.initialisation != second.initialisation:
        return ()
    (row,) = atlas.rows(
        "SELECT count(*) AS models FROM records WHERE coalesce(initialisation, model_id) = ? "
        "AND row_space IS NOT NULL AND model_id IS DISTINCT FROM ?",
        [first.initialisation, first.model_id],
    )
    other_models = row["models"] - (second.model_id is not None)
    return (
        f"Both were made with the same initialisation{f', as {other_models} others' if other_models > 0 else ''}: "
        "one tool, one seed. That says nothing about their data.",
    )


def _on_estimates(atlas: AtlasReader, models: Sequence[ResolvedModel], changed: Sequence[Layers]) -> list[str | Text]:
    """Notes on norms that are estimated from samples; the last ends with the command for exact norms."""
    estimates = [note for layers in changed for note in layers.estimates]
    if not estimates:
        return []
    indexed = [
        model.name for model, layers in zip(models, changed, strict=True) if layers.estimates and not model.record
    ]
    estimates[-1] += Text(
        " ", deepening(atlas, models[0].base, indexed) if indexed else Text("Exact: ", Call(read="full"))
    )
    return estimates


def _facts(atlas: AtlasReader, *models: ResolvedModel, are_estimates: bool) -> tuple[Fact, ...]:
    """The facts that are known for either of two models; how they were read only if norms are estimates."""
    names = names_of(Place.COMPARE)
    facts_a, facts_b = (
        atlas.rows(f"SELECT {', '.join(names)}, training FROM models WHERE model_id = ?", [model.model_id])[0]
        if model.record is None
        else {**facts_of_record(model.record), "author": model.author, "initialisation": model.initialisation}
        for model in models
    )
    facts = [Fact(name, facts_a.get(name), facts_b.get(name)) for name in names]
    if not are_estimates:  # then all models were read in full
        facts = [fact for fact in facts if fact.fact not in ("read", "delta_norm_error")]
    facts += _settings_that_differ(facts_a.get("training"), facts_b.get("training"))
    return tuple(fact for fact in facts if fact.a not in (None, []) or fact.b not in (None, []))


def _settings_that_differ(training_a: str | None, training_b: str | None) -> list[Fact]:
    """Settings of the training that the files of both models state, and that differ."""
    a, b = ({**(stated := json.loads(text or "{}")), **stated.get("settings", {})} for text in (training_a, training_b))
    names = [name for name in a if name in b and a[name] != b[name] and not isinstance(a[name], dict | list)]
    of_columns = set(TRAINING_COLUMNS.values())
    return [Fact(f"{SETTING}{name}", a[name], b[name]) for name in sorted(names) if name not in of_columns]


def _tokens_in_common(atlas: AtlasReader, first: ResolvedModel, second: ResolvedModel) -> tuple[str, ...]:
    """A note on the tokens that both training texts contain, if both embeddings are exact (``query trace``)."""
    tokens_a, tokens_b = (token_evidence(atlas, model)[1] for model in (first, second))
    if tokens_a is None or tokens_b is None or {tokens_a.kind, tokens_b.kind} != {EXACT}:
        return ()
    if tokens_a.codes.shape != tokens_b.codes.shape:
        return ()
    both, in_either = int((tokens_a.is_met & tokens_b.is_met).sum()), int((tokens_a.is_met | tokens_b.is_met).sum())
    return (
        f"{in_either:,} of the {counted(len(tokens_a.rows), 'token')} whose rows were read were in the text of either "
        f"model and {both:,} in both ({percent(both / max(in_either, 1))}).",
    )


def _by_part(
    atlas: AtlasReader, first: ResolvedModel, second: ResolvedModel, representation: str
) -> tuple[Means, Means]:
    """The mean cosine of the blocks that both changed, by layer and by family; None if there is no such block."""
    keys = atlas.delta_keys(first.base, representation)
    first_table, second_table = (table_of(atlas, model, representation) for model in (first, second))
    if first_table.blocks:
        (cosines,), (shared,) = first_table.cosines(second_table)
    else:
        blocks = [table.inputs.astype(np.float64).reshape(len(keys), -1) for table in (first_table, second_table)]
        norms = np.linalg.norm(blocks[0], axis=1) * np.linalg.norm(blocks[1], axis=1)
        shared = norms > 0
        cosines = (blocks[0] * blocks[1]).sum(axis=1) / np.where(shared, norms, 1)
    layers: dict[str, list[float]] = {key.layer_key: [] for key in keys}
    families: dict[str, list[float]] = {key.family_key: [] for key in keys}
    for index in np.flatnonzero(shared).tolist():
        cosine = float(cosines[index])
        layers[keys[index].layer_key].append(cosine)
        families[keys[index].family_key].append(cosine)
    of_layers, of_families = (
        {name: float(np.mean(cosines)) if cosines else None for name, cosines in cosines_by_part.items()}
        for cosines_by_part in (layers, families)
    )
    return of_layers, of_families


def _pairs(means: Means | None, first: Sequence[Part], second: Sequence[Part]) -> tuple[PartPair, ...]:
    norms = {part.name: part.norm for part in second}
    return tuple(
        PartPair(part.name, (means or {}).get(part.name), part.norm, norms.get(part.name, 0.0)) for part in first
    )
