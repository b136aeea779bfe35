"""Candidates for a model's parents, from the atlas alone: earlier models of its base, and how well they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.records.identity import AdapterBase
from query.models.lookup import names_another_model
from query.questions.lineage.evidence import SPACING, Floats, Grid, quantisation_of
from query.questions.lineage.thresholds import Thresholds

if TYPE_CHECKING:
    from indexer.atlas import AtlasFolder
    from indexer.names import DeltaKey
    from indexer.records.parts import Extent, ModelParts
    from query.models.reader import AtlasReader

# Dates less than a day apart do not show an order: repositories are created before and after their weights.
SAME_DAY = timedelta(days=1)

# The beginning of the evidence from an adapter's own file.
BY_CONFIG = "by its adapter_config.json"

# Beam search for a group: the number of candidates that it starts from, and of groups of each size that it extends.
_LIKELY = 24
_GROUPS = 64


@dataclass(frozen=True)
class Candidate:
    """A model of the atlas that may be a parent.

    Attributes:
        files: its weight file and configuration, if it has a single weight file; reading it then needs no file list.
        stated: how the base that an adapter's adapter_config.json names was resolved; None if it names none.
    """

    model_id: int
    model: str
    author: str
    commit: str | None
    relation: str
    created: datetime | None
    record_key: str
    files: tuple[str, ...] | None
    datasets: frozenset[str]
    stated: AdapterBase | None = None

    @property
    def below(self) -> str | None:
        """The model that this adapter was trained on, if that is known and not the base."""
        if self.stated is None or self.stated.verdict != "finetune":
            return None
        return self.stated.parent.partition(">")[0].rpartition("@")[0] or None

    @property
    def upload_order(self) -> tuple[bool, float, int]:
        """Sorts the earlier upload first, those without a date last by id."""
        return self.created is None, self.created.timestamp() if self.created else 0.0, self.model_id


def stated_model(adapter: Candidate, base: str) -> str | None:
    """The model, other than the base, that an adapter's own file names as the one it was trained on.

    None if it names the base, in any spelling, nothing, or something that does not look like a model: a folder.
    """
    stated = adapter.stated
    if stated is None or stated.verdict in ("base", "foreign"):
        return None
    if adapter.below is not None:
        return adapter.below
    return stated.named.strip() if names_another_model(stated.named, adapter.model, base) else None


@dataclass(frozen=True, eq=False)
class SampledWeights:
    """A candidate and the parts of its weights that were read."""

    candidate: Candidate
    parts: ModelParts

    @property
    def spacing(self) -> float:
        """The largest relative distance of neighbouring numbers in its precision."""
        return SPACING[self.parts.precision]

    @cached_property
    def grid(self) -> Grid | None:
        """See :func:`quantisation_of`."""
        return quantisation_of(self.parts)


def read_candidates(atlas: AtlasReader, base: str) -> list[Candidate]:
    """Every indexed model of a base that changed something, oldest first."""
    rows = atlas.rows(
        'SELECT model_id, model, author, "commit", relation, created, record_key, weight_files, datasets, '
        "named, verdict, resolved_base, why FROM models LEFT JOIN adapter_bases USING (model_id) "
        "WHERE base = ? AND NOT is_copy AND NOT is_unrelated ORDER BY created NULLS LAST, model_id",
        [base],
    )
    candidates = []
    for row in rows:
        files, weight_files = None, row.pop("weight_files")
        if weight_files and len(weight_files) == 1:  # a single file needs no list of files; shards need their index
            folder, slash, _ = weight_files[0]["name"].rpartition("/")
            config = "adapter_config.json" if weight_files[0]["format"].startswith("adapter") else "config.json"
            files = (weight_files[0]["name"], f"{folder}{slash}{config}")
        named_base, *resolved = (row.pop(name) for name in ("named", "verdict", "resolved_base", "why"))
        stated = None if named_base is None else AdapterBase(named_base, *resolved)
        candidates.append(Candidate(files=files, datasets=frozenset(row.pop("datasets")), stated=stated, **row))
    return candidates


@dataclass(frozen=True)
class Factors:
    """The leading part of the change of one matrix by its stored factors, d = us · vᵀ.

    The part of a sampled model is smaller: only the rows that were read.
    """

    us: NDArray[np.float32]
    v: NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of d."""
        return len(self.us), len(self.v)

    def cut(self, shape: tuple[int, int]) -> Factors:
        """The factors of a smaller part."""
        return self if shape == self.shape else Factors(self.us[: shape[0]], self.v[: shape[1]])

    @cached_property
    def square(self) -> float:
        """‖d‖²."""
        return float(np.vdot(self.us.T @ self.us, self.v.T @ self.v))


@dataclass
class FactorStore:
    """The stored factors of many models, cut to the parts that are read, and kept for the next question.

    ``missing``: ids of models whose records are absent or contain no factors.
    """

    folder: AtlasFolder
    extents: Mapping[DeltaKey, Extent]
    missing: set[int] = field(default_factory=set)
    _factors: dict[int, dict[str, Factors]] = field(default_factory=dict)

    def load(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Read the factors that are not loaded yet; return the candidates that have factors."""
        for candidate in candidates:
            if candidate.model_id not in self._factors and candidate.model_id not in self.missing:
                factors = self._read(candidate.record_key)
                if factors is None:
                    self.missing.add(candidate.model_id)
                else:
                    self._factors[candidate.model_id] = factors
        return [candidate for candidate in candidates if candidate.model_id in self._factors]

    def _read(self, key: str) -> dict[str, Factors] | None:
        """The factors of one record, cut to the parts that are read; None if it is missing or damaged."""
        from safetensors import SafetensorError, safe_open

        from indexer.records.row_plan import leading

        factors = {}
        try:
            with safe_open(self.folder.record(key), framework="numpy") as record:
                names = set(record.keys())
                for name, extent in self.extents.items():
                    is_sampled = f"{name}.u" not in names
                    u, v = (
                        record.get_tensor(f"{name}.{'u_rows' if is_sampled else 'u'}"),
                        record.get_tensor(f"{name}.v"),
                    )
                    rows, columns = extent.rows, extent.columns
                    if is_sampled and extent.transposed:
                        columns = min(columns, leading(int(np.count_nonzero(v.any(axis=1)))))
                    elif is_sampled:
                        rows = min(rows, leading(len(u)))
                    u, v = u[:rows].astype(np.float32), v[:columns].astype(np.float32)
                    s = record.get_tensor(f"{name}.s").astype(np.float32)
                    is_cut = (len(u), len(v)) == (rows, columns)
                    if not is_cut or not u.shape[1:] == v.shape[1:] == s.shape != (0,):
                        return None
                    factors[str(name)] = Factors(u * s, v)
        except (OSError, SafetensorError, ValueError, TypeError, IndexError):
            return None
        return factors

    def fit(self, candidates: Sequence[Candidate], deltas: Mapping[str, NDArray[np.float32]]) -> tuple[Floats, Floats]:
        """How well each candidate's change by its factors, d, fits the changes R = ``deltas``.

        Returns two arrays (candidates,), as shares of ‖R‖²: the gain with coefficient 1, 2⟨R, d⟩ − ‖d‖², and with the
        best coefficient for each matrix, ⟨R, d⟩²/‖d‖². Both compare the part of R that the candidate's record contains.
        """
        gains, fitted, total = (np.zeros(len(candidates)) for _ in range(3))
        for name, delta in deltas.items():
            indices_of: dict[
                tuple[int, int], list[int]
            ] = {}  # full and sampled records contain parts of different sizes
            for index, candidate in enumerate(candidates):
                indices_of.setdefault(self._factors[candidate.model_id][name].shape, []).append(index)
            for (rows, columns), indices in indices_of.items():
                part = delta[:rows, :columns]
                total[indices] += float(np.vdot(part, part))
                for start in range(0, len(indices), 256):
                    chunk = indices[start : start + 256]
                    factors = [self._factors[candidates[index].model_id][name] for index in chunk]
                    inner = _inner(part, factors)
                    square = np.array([d.square for d in factors])
                    gains[chunk] += 2 * inner - square
                    fitted[chunk] += np.where(square > 0, inner * np.maximum(inner, 0), 0) / np.where(
                        square > 0, square, 1
                    )
        total[total == 0] = 1.0
        return gains / total, fitted / total

    def spanned(self, candidates: Sequence[Candidate], deltas: Mapping[str, NDArray[np.float32]]) -> Floats:
        """The share of the energy of ``deltas`` in the column spaces of each candidate's factors: (candidates,).

        A merge of LoRA factors contains products of one parent's B with another's A, which are part of no candidate's
        change. But its columns are sums of columns of its parents' B.
        """
        explained, total = np.zeros(len(candidates)), np.zeros(len(candidates))
        for name, delta in deltas.items():
            for index, candidate in enumerate(candidates):
                us = self._factors[candidate.model_id][name].us
                part = delta[: len(us)]
                explained[index] += float(np.square(np.linalg.qr(us).Q.T @ part).sum()) if us.any() else 0.0
                total[index] += float(np.vdot(part, part))
        return explained / np.where(total > 0, total, 1)

    def products(
        self, candidates: Sequence[Candidate], deltas: Mapping[str, NDArray[np.float32]]
    ) -> tuple[Floats, Floats, float]:
        """⟨d_i, d_j⟩ of the candidates' changes by their factors, ⟨d_i, δ⟩, and ‖δ‖², summed over all matrices.

        Each matrix is cut to the part that all these records contain.
        """
        count = len(candidates)
        gram, right, total = np.zeros((count, count)), np.zeros(count), 0.0
        for name, full_delta in deltas.items():
            factors = [self._factors[candidate.model_id][name] for candidate in candidates]
            rows, columns = (min(sizes) for sizes in zip(*(d.shape for d in factors), strict=True))
            delta, factors = full_delta[:rows, :columns], [d.cut((rows, columns)) for d in factors]
            total += float(np.vdot(delta, delta))
            right += _inner(delta, factors)
            us, v = np.hstack([d.us for d in factors]), np.hstack([d.v for d in factors])
            starts = np.cumsum([0, *(d.v.shape[1] for d in factors[:-1])])
            products = (us.T @ us).astype(np.float64) * (v.T @ v)
            gram += np.add.reduceat(np.add.reduceat(products, starts, axis=0), starts, axis=1)
        return gram, right, total or 1.0


def _inner(matrix: NDArray[np.float32], factors: Sequence[Factors]) -> Floats:
    """⟨matrix, d⟩ for the change d of each of some factors."""
    v = np.hstack([d.v for d in factors])
    starts = np.cumsum([0, *(d.v.shape[1] for d in factors[:-1])])
    columns = np.einsum("oi,oi->i", matrix @ v, np.hstack([d.us for d in factors]))
    return np.add.reduceat(columns.astype(np.float64), starts)


def best_group(
    store: FactorStore,
    candidates: Sequence[Candidate],
    deltas: Mapping[str, NDArray[np.float32]],
    unexplained: Mapping[str, NDArray[np.float32]],
    thresholds: Thresholds,
) -> tuple[list[Candidate], float]:
    """The group of up to ``max_parents`` models whose weighted sum explains ``deltas`` best, and its residual share.

    Taken one at a time, the parents of a merge are hard to distinguish from their relatives, which explain nearly as
    much. Taken together, the parents leave a smaller residual than any other group. A group has one weight per model
    for all matrices, and only plausible weights. Groups are extended one model at a time (beam search).

    ``unexplained``: the residual of the models read so far.
    """
    likely: dict[int, Candidate] = {}
    for changes in (deltas, unexplained):
        _, fitted = store.fit(candidates, changes)
        likely |= {int(index): candidates[index] for index in np.argsort(-fitted, kind="stable")[:_LIKELY]}
    group_candidates = list(likely.values())
    gram, right, total = store.products(group_candidates, deltas)
    least = 1.0
    best: tuple[int, ...] = ()
    groups: list[tuple[int, ...]] = [()]
    for _ in range(min(thresholds.max_parents, len(group_candidates))):
        larger = [
            (*group, member) for group in groups for member in range(len(group_candidates)) if member not in group
        ]
        grown = sorted({tuple(sorted(group)) for group in larger})
        weights, shares = _group_least_squares(gram, right, total, np.array(grown))
        is_plausible = ((weights >= thresholds.min_weight) & (weights <= thresholds.max_weight)).all(axis=1)
        shares = np.where(is_plausible, shares, np.inf)
        order = np.argsort(shares, kind="stable")[:_GROUPS]
        groups = [grown[index] for index in order if np.isfinite(shares[index])]
        if not groups:
            break
        if shares[order[0]] < least:
            best, least = groups[0], float(shares[order[0]])
    return [group_candidates[member] for member in best], least


def _group_least_squares(
    gram: Floats, right: Floats, total: float, members: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Least squares for groups (groups, size): their weights, and the share that each leaves."""
    inner = gram[members[:, :, None], members[:, None, :]]
    scale = np.sqrt(np.maximum(np.diagonal(inner, axis1=1, axis2=2), 1e-300))
    # A small ridge, so that two copies of one model do not make the matrix singular, but share the weight.
    inner = inner / (scale[:, :, None] * scale[:, None, :]) + 1e-9 * np.eye(members.shape[1])
    target = right[members] / scale
    solution = np.linalg.solve(inner, target[:, :, None])[:, :, 0]
    return solution / scale, 1 - (solution * target).sum(axis=1) / total
