"""Which of the bases that an atlas knows a model was made from, with the evidence and a probability for each.

A full checkpoint is judged by some of its rows (``rows``), whatever its files say. The shapes of an adapter exclude
bases. Those left are judged by the parts of the base that a DoRA or a PiSSA keeps (``adapters``), else by the names in
its files; else all bases with these shapes share the probability. docs/evidence/identify.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from indexer.atlas import AtlasFolder
from indexer.checkpoints.checkpoint import Checkpoint, open_checkpoint
from indexer.checkpoints.repository import open_repository
from indexer.deltas.base import BaseMatrices
from indexer.deltas.identification.adapters import LEAST_SPAN, AdapterFit, AdapterTensors, adapter_fit
from indexer.deltas.identification.bases import ComparedBase
from indexer.deltas.identification.names import StatedName, claims, names_other, stated_names
from indexer.deltas.identification.rows import RowComparison, SampledRows
from indexer.deltas.stored_base import stored_bases
from indexer.errors import AtlasError, ModelError, Skipped
from indexer.listing.listing import Listing
from indexer.names import with_dots
from indexer.network.hub_errors import model_errors
from indexer.network.session import install_session
from indexer.sources.claims import NO, classify_base, hub_spelling, untyped_relation
from indexer.sources.registry import ModelRef, is_listed_id, source_of

RelationToBase = Literal["fine-tune", "rearranged", "adapter", "conversion", "the base itself", "none"]
# The evidence behind a probability: with "shapes" alone, a base that is not known here may fit as well.
Basis = Literal["weights", "names", "shapes"]

# A base is said to be recognised from this probability on.
SURE = 0.9

# The probability that a model was made from a base, by the largest effect of ``weight_match``: fitted to the planted
# models of all-MiniLM-L6-v2, confirmed on others (python -m studies.identify).
_MIDDLE, _STEEPNESS = 0.2, 0.025
# The same by what an adapter keeps of the base.
_ADAPTER_MIDDLE, _ADAPTER_STEEPNESS = LEAST_SPAN, 0.05
_NO_SPAN = 0.1  # of a PiSSA of other weights
# How much a name says of an adapter whose shapes fit: for the base that it names, and against all others.
_NAMED, _NOT_NAMED = 97.0, 3.0
_NAMES_OTHER = 9.0
# The probability that a card is right of a full model whose weights cannot be compared.
_CLAIMED = 0.8
# An adapter mostly changes the last layer, too.
_LACKS_LAST = 0.1
# If a model is like several bases that are made from each other, the nearest counts: by the ratio of distances.
_NEARER = 40.0
_CONFIGURED = ("adapter_config.json", "config.json")
_LARGEST_LOGIT = 6.0
_LEAST_SHOWN = 0.001
_MOST_REASONS = 3
_FEW_LAYERS = 3


@dataclass(frozen=True)
class KnownBase:
    """A base to compare with: all its ``ids``, the canonical one first; ``matrices``: None if they are not here.

    ``lists`` says whether the atlas has a model of this id among those made from it.
    """

    ids: tuple[str, ...]
    matrices: ComparedBase | None
    lists: Callable[[str], bool] = lambda identifier: False

    @property
    def base(self) -> str:
        """Its canonical id."""
        return self.ids[0]


@dataclass(frozen=True)
class BaseCandidate:
    """A base that a model may have been made from."""

    base: str
    probability: float
    relation: RelationToBase
    evidence: tuple[str, ...]
    basis: Basis


@dataclass(frozen=True)
class Identification:
    """What is known of the base of one model.

    ``candidates``: most probable first. ``none``: the probability that it is none of the bases known here, and
    ``none_evidence`` what speaks for that. ``bytes_read``: of the model. ``named``: ids in its configuration that are
    none of these bases. ``uncompared``: bases whose matrices are not here, or damaged. ``is_conversion``: whether it is
    a copy in another format, whose source may be a model of the base.
    """

    candidates: tuple[BaseCandidate, ...]
    none: float
    none_evidence: tuple[str, ...]
    bytes_read: int
    named: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()
    is_conversion: bool = False

    @property
    def base(self) -> str | None:
        """The base, if it is sure enough."""
        best = self.candidates[0] if self.candidates else None
        return best.base if best is not None and best.probability >= SURE else None

    def is_from(self, bases: Collection[str]) -> bool | None:
        """Whether it was made from one of these bases; None if that cannot be told."""
        share = sum(candidate.probability for candidate in self.candidates if candidate.base in bases)
        if share >= SURE and any(
            candidate.basis != "shapes" for candidate in self.candidates if candidate.base in bases
        ):
            return True
        if not set(self.uncompared).isdisjoint(bases):
            return None
        # By shapes alone it may still be another base; but these were left out because their shapes differ.
        return False if share <= 1 - SURE else None


def probability_of(strength: float) -> float:
    """The probability that a full model was made from a base, by ``WeightMatch.strength``."""
    return _logistic((strength - _MIDDLE) / _STEEPNESS)


def known_bases(folder: AtlasFolder, names: Mapping[str, Collection[str]] | None = None) -> list[KnownBase]:
    """The bases whose matrices an atlas holds, the newest commit of each, with all their ids.

    ``names``: the bases of its database with their other ids; those without matrices can only be named.
    """
    bases: dict[str, KnownBase] = {}
    for stored in stored_bases(folder):
        if stored.base not in bases:
            aliases = names[stored.base] if names and stored.base in names else _aliases(folder, stored.base)
            matrices = BaseMatrices(stored.path, resident=False)
            bases[stored.base] = KnownBase(
                all_ids(stored.base, aliases), matrices, partial(_is_listed, folder, stored.base)
            )
    for base, aliases in (names or {}).items():
        bases.setdefault(base, KnownBase(all_ids(base, aliases), None, partial(_is_listed, folder, base)))
    return list(bases.values())


def _is_listed(folder: AtlasFolder, base: str, identifier: str) -> bool:
    try:
        return Listing(folder.listing(base)).lists(identifier)
    except AtlasError:
        return False


def all_ids(base: str, aliases: Collection[str]) -> tuple[str, ...]:
    """The ids of a base, the canonical one first, with those that are known to stand for its weights."""
    ids = tuple(dict.fromkeys((base, *aliases)))
    return tuple(dict.fromkeys((*ids, *source_of(base).mirrors(ids))))


def _aliases(folder: AtlasFolder, base: str) -> tuple[str, ...]:
    try:
        return Listing(folder.listing(base)).aliases()
    except AtlasError:
        return ()


def identify_base(reference: ModelRef, bases: Sequence[KnownBase]) -> str | None:
    """The base that a model was made from, by its files; None if none is sure enough. For builds that sort models.

    Raises ModelError if the model cannot be read.
    """
    return identify(reference, bases).base


@model_errors()
def identify(reference: ModelRef, bases: Sequence[KnownBase]) -> Identification:
    """Compare a model with ``bases``. At most 10 MB of it are read.

    Raises ModelError if it cannot be read.
    """
    install_session()
    with closing(open_model(reference)) as checkpoint:
        try:
            return identify_opened(reference, checkpoint, bases)
        finally:
            for base in bases:
                if base.matrices is not None:
                    base.matrices.close()


def identify_opened(
    reference: ModelRef, checkpoint: Checkpoint, bases: Sequence[KnownBase], rows: SampledRows | None = None
) -> Identification:
    """The same for an open checkpoint; the bases stay open. ``rows``: those of a full model that were read before.

    Raises ModelError.
    """
    names = stated_names(checkpoint)
    names = [replace(stated, text=reference.source.without_private(reference, stated.text)) for stated in names]
    if checkpoint.kind == "full":
        identification = _of_full(reference, rows or SampledRows(checkpoint), names, bases)
    else:
        identification = _of_adapter(reference, AdapterTensors(checkpoint), names, bases)
    base_ids = {name.lower() for base in bases for name in base.ids}
    listed_ids = [listed for stated in names if stated.where in _CONFIGURED and (listed := _listed_id(stated.text))]
    others = tuple(base_id for base_id in dict.fromkeys(listed_ids) if base_id.lower() not in base_ids)
    return replace(
        identification, bytes_read=checkpoint.bytes_read, named=others, is_conversion=bool(checkpoint.conversion)
    )


def _listed_id(text: str) -> str | None:
    """The id of a base that a source lists, as a configuration names it; None for a path or any other text."""
    name = with_dots(hub_spelling(text))
    return name if is_listed_id(name) and classify_base(name, "", ()) == NO else None


@model_errors()
def is_full(reference: ModelRef) -> bool:
    """Whether a file of weights holds a full model, by its tensors. Raises ModelError."""
    with closing(open_model(reference)) as checkpoint:
        return checkpoint.kind == "full"


def open_model(reference: ModelRef) -> Checkpoint:
    """The checkpoint, as an adapter if its files look like one. Raises ModelError."""
    repository = open_repository(reference)
    filenames = sorted(repository.filenames)
    row = {"siblings": [{"rfilename": name} for name in filenames]}
    relation = untyped_relation(row)
    opened = partial(
        open_checkpoint, reference, commit=repository.commit, filenames=filenames,
        needs_config=False, needs_adapter_config=False,
    )  # fmt: skip
    checkpoint = opened(relation=relation)
    if checkpoint.kind == "adapter" and checkpoint.adapter_config is None:
        try:
            AdapterTensors(checkpoint).plan  # noqa: B018 - raises if it is none
        except Skipped as problem:
            if problem.reason != "malformed":
                return checkpoint
            checkpoint.close()  # a full model under an unusual name
            return opened(relation="finetune")
    return checkpoint


# ---- full checkpoints


def _of_full(
    reference: ModelRef, rows: SampledRows, names: list[StatedName], bases: Sequence[KnownBase]
) -> Identification:
    claims_of = claims(names, reference, {known_base.base: known_base.ids for known_base in bases})
    compared: dict[str, RowComparison] = {}
    reasons: dict[str, str] = {}
    unseen: list[str] = []
    for known_base in bases:
        if known_base.matrices is None:
            unseen.append(known_base.base)
            continue
        try:
            compared[known_base.base] = rows.compare(known_base.matrices)
        except ModelError as problem:
            if problem.reason in ("not_finite", "network", "rate_limited"):
                raise
            reasons[known_base.base] = problem.detail
        except AtlasError as problem:
            reasons[known_base.base] = problem.message
            unseen.append(known_base.base)
    likely = {
        base: probability_of(comparison.match.strength)
        for base, comparison in compared.items()
        if comparison.match.is_match
    }
    nearness = {base: _nearness(compared[base]) for base in likely}
    total = sum(nearness.values())
    largest = max(likely.values(), default=0.0)
    candidates = [
        BaseCandidate(
            base,
            largest * nearness[base] / total,
            "conversion" if rows.checkpoint.conversion else _relation(compared[base]),
            (*_words(compared[base]), *claims_of[base], *_nearer(base, compared, likely)),
            "weights",
        )
        for base in likely
    ]
    if not candidates:
        for base in unseen:
            if claims_of[base] and base not in reasons:
                why = "its matrices are not in this atlas, so its weights could not be compared"
                candidates.append(BaseCandidate(base, _CLAIMED, "fine-tune", (*claims_of[base], why), "names"))
        largest = min(1.0, sum(candidate.probability for candidate in candidates))
        if len(candidates) > 1:
            candidates = [replace(candidate, probability=largest / len(candidates)) for candidate in candidates]
    against = [] if largest >= SURE else _against(reference, names, bases, claims_of, compared, reasons)
    return _result(candidates, 1.0 - largest, against, unseen)


def _nearness(comparison: RowComparison) -> float:
    distance = (
        comparison.distance if comparison.match.statistic == "rows" else 1.0 - min(comparison.match.strength, 1.0)
    )
    return float((distance + 1e-4) ** -_NEARER) if distance > 0 else 1e4**_NEARER * 1e4


def _relation(comparison: RowComparison) -> RelationToBase:
    if comparison.is_equal or comparison.is_rounded:
        return "the base itself"
    is_plain = (
        comparison.match.statistic == "rows"
        and not comparison.match.moved_layers
        and comparison.layers == comparison.base_layers
    )
    return "fine-tune" if is_plain and not comparison.is_rescaled else "rearranged"


def _words(comparison: RowComparison) -> list[str]:
    """The evidence of rows."""
    match = comparison.match
    if comparison.is_equal:
        return [f"all numbers of {comparison.rows} rows that were read are the base's"]
    if comparison.is_rounded:
        return [f"all numbers of {comparison.rows} rows that were read are the base's, rounded"]
    meaning = "its weights with other scales" if comparison.is_rescaled else match.meaning
    likeness = f"{comparison.rows} rows that were read: {meaning} ({match.strength:.2f}; unrelated 0, a copy 1)"
    words = [likeness]
    if match.statistic == "rows" and not comparison.is_rescaled:
        words[0] = f"{likeness}; they differ by {comparison.distance:.1%}"
    if comparison.layers != comparison.base_layers:
        words.append(f"{comparison.layers} layers, the base has {comparison.base_layers}")
    if moved := match.moved_layers:
        shifts = ", ".join(f"{layer} is the base's {other}" for layer, other in list(moved.items())[:_FEW_LAYERS])
        words.append(f"layers stand elsewhere: its {shifts}")
    return words


def _nearer(base: str, compared: Mapping[str, RowComparison], likely: Mapping[str, float]) -> list[str]:
    """That a base is like others that the model is like, too."""
    other_bases = [other for other in likely if other != base]
    if not other_bases:
        return []
    nearest = min(other_bases, key=lambda other: compared[other].distance)
    is_nearest = compared[base].distance < compared[nearest].distance
    return [f"{'nearer than' if is_nearest else 'further than'} {nearest}, which it is like too"]


def _against(
    reference: ModelRef,
    names: list[StatedName],
    bases: Sequence[KnownBase],
    claims_of: Mapping[str, list[str]],
    compared: Mapping[str, RowComparison],
    reasons: Mapping[str, str],
) -> list[str]:
    """Evidence that the model was made from none of the bases."""
    words = []
    if compared:
        base, best = max(compared.items(), key=lambda item: item[1].match.strength)
        words.append(f"its rows are most like those of {base}, by {best.match.strength:.2f} (unrelated 0, a copy 1)")
    words += [f"{base} has {why}" if why.startswith(("other", "another")) else f"{base}: {why}"
              for base, why in list(reasons.items())[:_MOST_REASONS]]  # fmt: skip
    for base, base_claims in claims_of.items():
        if base_claims and base in compared:
            words.append(f"{base_claims[0]}, but its weights are not made from it")
    return words + _other_name(reference, names, bases)


def _other_name(reference: ModelRef, names: list[StatedName], bases: Sequence[KnownBase]) -> list[str]:
    other = names_other(names, reference, {known.base: known.ids for known in bases})
    return [f"{other.where} names {other.text}, which is none of the bases known here"] if other is not None else []


# ---- adapters


def _of_adapter(
    reference: ModelRef, tensors: AdapterTensors, names: list[StatedName], bases: Sequence[KnownBase]
) -> Identification:
    claims_of = claims(names, reference, {known.base: known.ids for known in bases})
    if not any(claims_of.values()):
        for stated in names:
            parent = _listed_id(stated.text) if stated.where in _CONFIGURED else None
            for known in bases:
                if parent is not None and known.lists(parent):
                    claims_of[known.base].append(
                        f"{stated.where} names {parent}, which the atlas lists as made from it"
                    )
    fits: dict[str, AdapterFit] = {}
    reasons: dict[str, str] = {}
    unseen: list[str] = []
    for known in bases:
        if known.matrices is None:
            unseen.append(known.base)
            continue
        try:
            fit_or_reason = adapter_fit(tensors, known.matrices)
        except AtlasError as problem:
            fit_or_reason = problem.message
            unseen.append(known.base)
        if isinstance(fit_or_reason, str):
            reasons[known.base] = fit_or_reason
        else:
            fits[known.base] = fit_or_reason
    weights = {base: (1.0 if fit.reaches_last else _LACKS_LAST) / len(fits) for base, fit in fits.items()}
    weights |= {base: 1.0 for base in unseen if claims_of[base] and base not in reasons}
    effects = {base: effect for base, fit in fits.items() if (effect := _effect_of(fit)) is not None}
    other = [] if any(claims_of.values()) else _other_name(reference, names, bases)
    is_named = any(claims_of[base] for base in weights)
    none = 0.0
    if effects:
        none = 1.0
        for base in weights:
            weights[base] *= math.exp(_bounded((effects.get(base, 0.0) - _ADAPTER_MIDDLE) / _ADAPTER_STEEPNESS))
    if is_named:
        weights = {base: weight * (_NAMED if claims_of[base] else 1.0) for base, weight in weights.items()}
        none = max(none, _NOT_NAMED / max(len(fits), 1))
    elif other:
        none = max(none, _NAMES_OTHER * sum(weights.values()))
    contradicted = [base for base in reasons if claims_of[base]]
    if contradicted:
        none = max(none, _NAMES_OTHER * sum(weights.values()))
    if not weights:
        none = 1.0
    total = sum(weights.values()) + none
    candidates = []
    for base, weight in weights.items():
        fit = fits.get(base)
        words = [] if fit is None else _fit_words(fit, len(fits), len(bases), is_alone=not is_named and not effects)
        if fit is None:
            words = ["its matrices are not in this atlas, so its shapes could not be compared"]
        is_kept = effects.get(base, 0.0) >= _ADAPTER_MIDDLE
        basis: Basis = "weights" if is_kept else "names" if claims_of[base] else "shapes"
        candidates.append(BaseCandidate(base, weight / total, "adapter", (*claims_of[base], *words), basis))
    against = [f"{claims_of[base][0]}, but {reasons[base]}" for base in contradicted] + other
    if effects and max(effects.values()) < _ADAPTER_MIDDLE:
        against.append("what it keeps of the weights that it was trained on is like none of the bases known here")
    against += [f"{base}: {why}" for base, why in list(reasons.items())[:_MOST_REASONS] if base not in contradicted]
    return _result(candidates, none / total, against, unseen)


def _effect_of(fit: AdapterFit) -> float | None:
    """The decisive effect of an adapter; a span like that of other layers only where it should be the base's."""
    if fit.magnitudes is not None:
        return max(fit.magnitudes, fit.span or 0.0)
    if fit.span is None:
        return None
    is_missing = fit.starts_from_base and fit.span < _NO_SPAN
    return fit.span if fit.span >= _ADAPTER_MIDDLE or is_missing else None


def _fit_words(fit: AdapterFit, fitting: int, bases: int, *, is_alone: bool) -> list[str]:
    words = []
    if fit.magnitudes is not None:
        words.append(f"lengths of the base's rows in its DoRA: {fit.magnitudes:.2f} (other layers 0, the base 1)")
    if fit.span is not None and fit.span >= _ADAPTER_MIDDLE:
        words.append(
            f"it spans leading directions of the base's weights: {fit.span:.2f} (other layers 0, all of them 1)"
        )
    shapes = f"{fit.modules} modules have the shapes of its matrices"
    if not fit.reaches_last:
        shapes += ", none of them in the last layer"
    words.append(shapes)
    if is_alone:
        count = f"{fitting} of the {bases} bases known here {'has' if fitting == 1 else 'have'}" if bases > 1 else ""
        words.append(f"by shapes alone{f', which {count}' if count else ''}: other bases may have them too")
    return words


def _result(
    candidates: list[BaseCandidate], none: float, against: list[str], uncompared: Sequence[str]
) -> Identification:
    shown = sorted(candidates, key=lambda candidate: (-candidate.probability, candidate.base))
    shown = [candidate for candidate in shown if candidate.probability >= _LEAST_SHOWN]
    return Identification(tuple(shown), max(0.0, none), tuple(against), 0, uncompared=tuple(uncompared))


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-max(-500.0, min(500.0, value))))


def _bounded(logit: float) -> float:
    return max(-_LARGEST_LOGIT, min(_LARGEST_LOGIT, logit))
