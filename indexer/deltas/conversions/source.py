"""The source of a conversion: the model whose change of the base explains it, and whether its codes follow from it.

Let F be rows of the file, B and C the same rows of the base and of a candidate, and q what the format's quantiser makes
of rows. D = F − q(B) is the change of the candidate and the difference of two roundings; where no quantiser is known,
D = F − B contains a rounding instead. The residual ‖D − (C − B)‖ / ‖D‖ is smallest for the source, even if the rounding
is many times larger than the change, because some hundred thousand numbers are compared. If q(C) has the codes of the
file, the source is proved on these rows. The base itself is a candidate without a change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from indexer.checkpoints.checkpoint import Checkpoint
from indexer.deltas.conversions.rows import ConversionRows, Rows, other_tensors, rounded_versions
from indexer.errors import AtlasError, ModelError, Skipped
from indexer.names import DeltaKey
from indexer.records.conversion import CONSISTENT, DIFFERS, EXACTLY, UNKNOWN, ConversionSource, Verdict
from indexer.records.record import Record

# Candidates of which weights are read, besides those that the card names: the best by the records of the atlas.
MOST_READ = 8
# Rows are like the base's above this cosine; roundings to two bits leave .9. A family of which no matrix is alike is
# stored in an order that is not known, and is left out.
_ALIKE = 0.5
# Natural logarithm of odds from which a candidate is the source, and how far its change must explain D: the regression
# of D on it is 1 for the source, about ½ for a model half way.
_SURE_ODDS = math.log(1e6)
_SLOPE = (0.6, 1.4)
# Errors of rounding are not independent, so the logarithm of odds is taken by half.
_DEPENDENCE = 0.5
# A tensor differs if its error is larger than the quantiser's by this factor and by more than that of most tensors;
# importance matrices make errors up to 1.3 times larger.
_MOST_ERROR = 1.35
_OUTLIER = 1.25
_SMALLEST = 1e-8
_ROUNDS_OF_SCALES = 4


@dataclass(frozen=True)
class Candidate:
    """A model that may be the source. ``open``: its checkpoint; ``record``: what the atlas keeps of it, if it does."""

    name: str
    open: Callable[[], AbstractContextManager[Checkpoint]]
    record: Callable[[], Record | None] = lambda: None


@dataclass
class _Fit:
    """How one candidate explains the file."""

    name: str
    squares: dict[DeltaKey, float] = field(default_factory=dict)  # of what is left of D
    rows_equal: dict[DeltaKey, int] = field(default_factory=dict)
    codes_equal: dict[DeltaKey, float] = field(default_factory=dict)
    errors: dict[DeltaKey, float] = field(default_factory=dict)  # ‖F − C‖ / ‖C‖
    expected: dict[DeltaKey, float] = field(default_factory=dict)  # the same of the quantiser
    inner: float = 0.0
    change: float = 0.0

    @property
    def slope(self) -> float:
        """The regression of D on its change; 1 for the base, which has none."""
        return self.inner / self.change if self.change else 1.0

    def log_likelihood(
        self, conversion: ConversionRows, floors: Mapping[DeltaKey, float], without: Collection[DeltaKey] = ()
    ) -> float:
        """Of D, by normal errors whose size each matrix has for itself; some matrices may be left out."""
        sizes = {key: conversion.stored[key].values.numel() for key in self.squares if key not in without}
        return -0.5 * sum(size * math.log(max(self.squares[key] / size, floors[key])) for key, size in sizes.items())


class SourceSearch:
    """Compares one conversion with candidates for its source, all of them models of one base."""

    def __init__(self, conversion: ConversionRows, base: str) -> None:
        self.conversion, self.base = conversion, base
        self.bytes_read = 0
        self.notes: list[str] = []
        self.fits: dict[str, _Fit] = {}
        self.values = {key: stored.values for key, stored in conversion.stored.items()}
        if conversion.checkpoint.conversion == "AWQ":
            self.values = {key: _unscaled(value, conversion.base_rows[key]) for key, value in self.values.items()}
        self.keys = self._alike()
        self.differences: dict[DeltaKey, torch.Tensor] = {}
        self._floors: dict[DeltaKey, float] = {}
        for key in self.keys:
            base_rows = conversion.base_rows[key]
            again = conversion.stored[key].quantised(base_rows)
            self.differences[key] = self.values[key] - (base_rows if again is None else again.values)
            self._floors[key] = _SMALLEST * float(base_rows.square().mean()) + 1e-30
        self.total = sum(float(difference.square().sum()) for difference in self.differences.values())
        self.compare(base, conversion.base_rows)

    def _alike(self) -> list[DeltaKey]:
        """The matrices to compare. Raises Skipped("shape_mismatch") if the file is not made from the base."""
        cosines = {key: _cosine(values, self.conversion.base_rows[key]) for key, values in self.values.items()}
        alike = {key for key, cosine in cosines.items() if cosine > _ALIKE}
        if len(alike) * 2 < len(cosines):
            raise Skipped("shape_mismatch", "its matrices are not like the base's")
        known = {key.family_key for key in alike}
        unknown = sorted({key.family_key for key in cosines} - known)
        if unknown:
            self.notes.append(f"not compared, because their rows stand in an unknown order: {', '.join(unknown)}")
        return [key for key in cosines if key.family_key in known]

    def estimated_residual(self, record: Record) -> float | None:
        """The residual of a candidate by what its record keeps of its change; None if it keeps none of these rows."""
        changes = self.conversion.estimate(record)
        if changes is None:
            return None
        square = sum(
            float((difference - changes[key]).square().sum() if key in changes else difference.square().sum())
            for key, difference in self.differences.items()
        )
        return math.sqrt(square / self.total) if self.total else math.inf

    def estimated_rows(self, candidate: Candidate) -> Rows | None:
        """The rows of a candidate by its record; None if it keeps none of them."""
        record = candidate.record()
        changes = None if record is None else self.conversion.estimate(record)
        if changes is None:
            return None
        rows = self.conversion.base_rows
        return {key: rows[key] + changes[key] if key in changes else rows[key] for key in rows}

    def compare(self, name: str, rows: Rows, *, is_estimate: bool = False) -> _Fit:
        """Compare with the rows of one candidate; an estimate of them proves nothing."""
        fit = _Fit(name)
        number = self._rounding(rows)
        for key in self.keys:
            stored, base_rows = self.conversion.stored[key], self.conversion.base_rows[key]
            values = rounded_versions(rows[key])[number].float()
            change, difference = values - base_rows, self.differences[key]
            fit.squares[key] = float((difference - change).square().sum())
            fit.inner += float((difference * change).sum())
            fit.change += float(change.square().sum())
            norm = float(values.norm()) or 1.0
            fit.errors[key] = float((self.values[key] - values).norm()) / norm
            again = stored.quantised(values)
            if again is not None:
                if not is_estimate:
                    equal = again.codes == stored.codes
                    fit.rows_equal[key] = int(equal.all(1).sum())
                    fit.codes_equal[key] = float(equal.mean())
                fit.expected[key] = float((again.values - values).norm()) / norm
        self.fits[name] = fit
        return fit

    def _rounding(self, rows: Rows) -> int:
        """Which of ``rounded_versions`` gives the most equal codes, by a few matrices."""
        shares = []
        for number in range(len(rounded_versions(torch.zeros(1)))):
            equal = []
            for key in self.keys[:3]:
                again = self.conversion.stored[key].quantised(rounded_versions(rows[key])[number].float())
                equal.append(0.0 if again is None else float((again.codes == self.conversion.stored[key].codes).mean()))
            shares.append(sum(equal))
        return int(np.argmax(shares))

    def is_exact(self, fit: _Fit) -> bool:
        """Whether all codes of the rows that were read follow from a candidate."""
        rows = self.conversion.lines
        return all(fit.rows_equal.get(key) == len(rows[key]) for key in self.keys)

    @property
    def is_settled(self) -> bool:
        """Whether a candidate is proved."""
        return any(self.is_exact(fit) for fit in self.fits.values())

    def equal_tensors(self, fit: _Fit) -> int:
        """How many tensors have the codes of a candidate in all rows that were read."""
        return sum(fit.rows_equal.get(key) == len(self.conversion.lines[key]) for key in self.keys)

    def ranked(self) -> list[_Fit]:
        """The candidates that were compared, the best first: by equal tensors, else by likelihood."""
        return sorted(
            self.fits.values(),
            key=lambda fit: (-self.equal_tensors(fit), -fit.log_likelihood(self.conversion, self._floors)),
        )

    def log_odds(self, fit: _Fit, other: _Fit, without: Collection[DeltaKey] = ()) -> float:
        """Natural logarithm of the odds of one candidate against another, by all matrices but some."""
        own, theirs = (one.log_likelihood(self.conversion, self._floors, without) for one in (fit, other))
        return _DEPENDENCE * (own - theirs)

    def is_near(self, fit: _Fit, other: _Fit) -> bool:
        """Whether another candidate explains D nearly as well."""
        return self.log_odds(fit, other) < _SURE_ODDS and _SLOPE[0] <= other.slope <= _SLOPE[1]

    def residual(self, fit: _Fit) -> float:
        """‖D − δ‖ / ‖D‖; 0 if nothing is left of either."""
        return math.sqrt(sum(fit.squares.values()) / self.total) if self.total else 0.0

    def outliers(self, fit: _Fit) -> list[DeltaKey]:
        """Matrices whose error the quantiser does not explain."""
        ratios = {key: fit.errors[key] / fit.expected[key] for key in fit.expected if fit.expected[key] > 0}
        usual = float(np.median(list(ratios.values()))) if ratios else 1.0
        return [key for key, ratio in ratios.items() if ratio > max(_MOST_ERROR, _OUTLIER * usual)]


def find_source(
    conversion: ConversionRows,
    base: str,
    candidates: Sequence[Candidate],
    claimed: Sequence[str] = (),
    most_read: int = MOST_READ,
) -> ConversionSource:
    """Find the source of a conversion among models of a base, and the base itself.

    ``claimed``: the ids that its card or its file names; those among ``candidates`` are always read.

    Raises Skipped("shape_mismatch") if it is not made from this base.
    """
    search = SourceSearch(conversion, base)
    by_name = {candidate.name: candidate for candidate in candidates if candidate.name != base}
    named = [name for name in claimed if name in by_name]
    opened: dict[str, Candidate] = {}
    for name in (*named, *(name for name in _by_records(search, by_name) if name not in named)):
        if len(opened) >= most_read + len(named) or (len(opened) >= len(named) and search.is_settled):
            break
        try:
            with by_name[name].open() as checkpoint:
                search.compare(name, conversion.rows_of(checkpoint))
                search.bytes_read += checkpoint.bytes_read
            opened[name] = by_name[name]
        except (ModelError, AtlasError) as problem:
            if (estimate := search.estimated_rows(by_name[name])) is not None:
                search.compare(name, estimate, is_estimate=True)
                search.notes.append(f"{name} was compared by its record, which proves nothing: it cannot be read")
            elif name in named:
                detail = problem.detail if isinstance(problem, ModelError) else problem.message
                search.notes.append(f"{name}, which it names, cannot be read: {detail}")
    return _verdict(search, opened, tuple(claimed))


def _by_records(search: SourceSearch, candidates: Mapping[str, Candidate]) -> list[str]:
    """The candidates in the order in which they are read: by their records, then those without one."""
    residuals: dict[str, float] = {}
    unknown: list[str] = []
    for name, candidate in candidates.items():
        try:
            record = candidate.record()
        except (AtlasError, OSError):
            record = None
        residual = None if record is None else search.estimated_residual(record)
        if residual is None:
            unknown.append(name)
        else:
            residuals[name] = residual
    return [*sorted(residuals, key=lambda name: (residuals[name], name)), *unknown]


def _verdict(search: SourceSearch, opened: Mapping[str, Candidate], claimed: tuple[str, ...]) -> ConversionSource:
    conversion = search.conversion
    best, *others = search.ranked()
    exact = [fit for fit in search.ranked() if search.is_exact(fit)]
    if len(exact) > 1:  # these rows do not tell them apart: one that it names, if there is one
        best = next((fit for fit in exact if fit.name in claimed), best)
        others = [fit for fit in search.ranked() if fit is not best]
    also = tuple(fit.name for fit in exact if fit is not best)
    if not exact:  # models that are nearly the same have nearly the same odds
        also = tuple(
            fit.name for fit in others if search.base not in (best.name, fit.name) and search.is_near(best, fit)
        )
    apart = next((fit for fit in others if fit.name not in also), None)
    has_quantiser = bool(best.rows_equal)
    equal, rows = sum(best.rows_equal.values()), sum(len(conversion.lines[key]) for key in search.keys)
    log_odds = None if apart is None else search.log_odds(best, apart)
    differing: list[str] = []
    verdict: Verdict
    if search.equal_tensors(best) * 2 >= len(search.keys):
        is_source = True
        unequal = [key for key in search.keys if best.rows_equal.get(key) != len(conversion.lines[key])]
        differing = [conversion.tensors[key] for key in unequal]
        log_odds = None if apart is None else search.log_odds(best, apart, unequal)
        verdict = DIFFERS if differing else EXACTLY
    else:
        is_source = _is_consistent(search, best, log_odds)
        differing = [conversion.tensors[key] for key in search.outliers(best)] if is_source else []
        verdict = UNKNOWN if not is_source else DIFFERS if differing else CONSISTENT
    notes = list(search.notes)
    if is_source and best.name in opened and conversion.checkpoint.conversion != "AWQ":
        try:
            with opened[best.name].open() as checkpoint:
                if checkpoint.kind == "full":
                    most_error = _MOST_ERROR if verdict == CONSISTENT else None
                    rest = other_tensors(conversion.checkpoint, checkpoint, conversion.layout, most_error)
                    differing += rest.differing
                    notes.append(f"{rest.compared} other tensors compared: embeddings, heads, norms")
                search.bytes_read += checkpoint.bytes_read
        except ModelError as problem:
            notes.append(f"embeddings, heads and norms were not compared: {problem.detail}")
        if differing and verdict in (EXACTLY, CONSISTENT):
            verdict = DIFFERS
    # A card may name the base beside the source.
    contradicted = [name for name in claimed if name in search.fits and name not in (best.name, *also, search.base)]
    names_only_base = search.base in claimed and all(name == search.base for name in claimed)
    if is_source and best.name not in claimed and (contradicted or (names_only_base and search.base not in also)):
        verdict = DIFFERS
    codes = best.codes_equal.values()
    return ConversionSource(
        format=conversion.checkpoint.conversion,
        types=conversion.types,
        base=search.base,
        source=best.name if is_source else None,
        verdict=verdict,
        rows=rows,
        rows_equal=equal if has_quantiser and is_source else None,
        codes_equal=float(np.mean(list(codes))) if has_quantiser and is_source else None,
        differing=tuple(differing),
        residual=search.residual(best) if is_source else None,
        error=float(np.median(list(best.errors.values()))) if is_source else None,
        log_odds=None if log_odds is None or not is_source else min(log_odds / math.log(10), 9999.0),
        next=None if apart is None or not is_source else apart.name,
        also=also,
        bytes_read=search.bytes_read + conversion.checkpoint.bytes_read,
        claimed=claimed,
        notes=tuple(notes),
        fingerprint=conversion.fingerprint,
        file_bytes=sum(file.size for file in conversion.checkpoint.files),
    )


def _is_consistent(search: SourceSearch, fit: _Fit, log_odds: float | None) -> bool:
    """Whether a candidate explains D, where its codes do not: by the odds, by how much of its change is there.

    Its error must be one that the quantiser makes, if there is one. Without a change the base explains nothing: a model
    that was not compared may be the source.
    """
    if fit.name == search.base or log_odds is None or log_odds < _SURE_ODDS:
        return False
    ratios = [fit.errors[key] / fit.expected[key] for key in fit.expected if fit.expected[key] > 0]
    is_rounding = not ratios or float(np.median(ratios)) <= _MOST_ERROR
    return is_rounding and _SLOPE[0] <= fit.slope <= _SLOPE[1]


@contextmanager
def opened_once(open_checkpoint: Callable[[], Checkpoint]) -> Iterator[Checkpoint]:
    """A checkpoint that is closed after the block."""
    with closing(open_checkpoint()) as checkpoint:
        yield checkpoint


def _cosine(values: torch.Tensor, other: torch.Tensor) -> float:
    norms = float(values.norm() * other.norm())
    return float((values * other).sum()) / norms if norms else 0.0


def _unscaled(values: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Rows without the scales of inputs and outputs that a converter moved into other tensors (AWQ).

    The scales are fitted to the base by least squares, in turn; a change of training is small beside them.
    """
    columns, rows = torch.ones(1, values.shape[1]), torch.ones(values.shape[0], 1)
    for _ in range(_ROUNDS_OF_SCALES):
        target = rows * base
        columns = (values * target).sum(0, keepdim=True) / target.square().sum(0, keepdim=True).clamp(min=1e-30)
        target = columns * base
        rows = (values * target).sum(1, keepdim=True) / target.square().sum(1, keepdim=True).clamp(min=1e-30)
    scales = rows * columns
    return torch.where(scales.abs() > 1e-12, values / scales, base)
