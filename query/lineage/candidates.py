"""Whom a model may come from, by the atlas alone: earlier models of its base, and how well their factors fit it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError

if TYPE_CHECKING:
    from indexer.atlas import AtlasFolder
    from indexer.names import DeltaKey
    from indexer.records.parts import Extent
    from query.reader import AtlasReader

# With more candidates than this only those near the asked model by their vectors are weighed.
MOST_WEIGHED = 2000
# Dates within a day of each other say nothing of the order: repositories are made before and after their weights.
SAME_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Candidate:
    """A model of the atlas. ``files``: names of its weight files where one suffices to find them."""

    model_id: int
    model: str
    author: str
    commit: str | None
    relation: str
    created: datetime | None
    licence: str | None
    record_key: str
    files: tuple[str, ...] | None
    group: int | None
    datasets: frozenset[str]


def read_candidates(atlas: AtlasReader, base: str) -> list[Candidate]:
    """Every indexed model of a base that changed something, oldest first."""
    rows = atlas.rows(
        'SELECT model_id, model, author, "commit", relation, created, licence, record_key, weight_files, '
        "duplicate_group, datasets FROM models WHERE base = ? AND NOT is_copy AND NOT is_unrelated "
        "ORDER BY created NULLS LAST, model_id",
        [base],
    )
    return [
        Candidate(
            model_id=row["model_id"],
            model=row["model"],
            author=row["author"],
            commit=row["commit"],
            relation=row["relation"],
            created=row["created"],
            licence=row["licence"],
            record_key=row["record_key"],
            files=_files(row["weight_files"], row["relation"]),
            group=row["duplicate_group"],
            datasets=frozenset(row["datasets"]),
        )
        for row in rows
    ]


def _files(stored: Sequence[Mapping[str, object]] | None, relation: str) -> tuple[str, ...] | None:
    """What saves asking the Hub for a list: a single file beside its configuration. Shards need their index."""
    if not stored or len(stored) != 1:
        return None
    name = str(stored[0]["name"])
    folder = name.rpartition("/")[0]
    prefix = f"{folder}/" if folder else ""
    configs = ("adapter_config.json",) if str(stored[0]["format"]).startswith("adapter") else ("config.json",)
    return (name, *(prefix + config for config in configs))


def earlier(candidates: Sequence[Candidate], created: datetime | None, *, dates: bool) -> list[Candidate]:
    """Those that may have been there first: created before, or on the same day; all where dates are not known."""
    if created is None or not dates:
        return list(candidates)
    return [one for one in candidates if one.created is None or one.created <= created + SAME_DAY]


@dataclass(frozen=True)
class Factors:
    """The change of one part by its stored factors, d = us · vᵀ."""

    us: NDArray[np.float32]
    v: NDArray[np.float32]

    @cached_property
    def square(self) -> float:
        """‖d‖²."""
        return float(np.vdot(self.us.T @ self.us, self.v.T @ self.v))


@dataclass
class FactorStore:
    """The stored factors of many models, cut to the parts that are read; kept for the next question.

    ``missing``: models whose records are not here, or hold no factors.
    """

    folder: AtlasFolder
    extents: Mapping[DeltaKey, Extent]
    missing: set[int] = field(default_factory=set)
    _held: dict[int, dict[str, Factors]] = field(default_factory=dict)

    def hold(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Read what is not held yet; those whose factors there are. A record is read in part, and not trusted."""
        for one in candidates:
            if one.model_id not in self._held and one.model_id not in self.missing:
                found = self._read(one.record_key)
                if found is None:
                    self.missing.add(one.model_id)
                else:
                    self._held[one.model_id] = found
        return [one for one in candidates if one.model_id in self._held]

    def _read(self, key: str) -> dict[str, Factors] | None:
        from safetensors import SafetensorError, safe_open

        found = {}
        try:
            with safe_open(self.folder.record(key), framework="numpy") as record:
                for name, extent in self.extents.items():
                    u = record.get_tensor(f"{name}.u")[: extent.rows].astype(np.float32)
                    v = record.get_tensor(f"{name}.v")[: extent.columns].astype(np.float32)
                    s = record.get_tensor(f"{name}.s").astype(np.float32)
                    is_cut = (len(u), len(v)) == (extent.rows, extent.columns)
                    if not is_cut or not u.shape[1:] == v.shape[1:] == s.shape != (0,):
                        return None
                    found[str(name)] = Factors(u * s, v)
        except (OSError, SafetensorError, ValueError, TypeError, IndexError):
            return None
        return found

    def fit(
        self, candidates: Sequence[Candidate], left: Mapping[str, NDArray[np.float32]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """How well each candidate's factors fit what is ``left``, as shares of its energy.

        The gain with coefficient 1, 2⟨R, d⟩ − ‖d‖², and with the best coefficient of each matrix, ⟨R, d⟩²/‖d‖²; R is
        ``left`` and d the change that the factors hold.
        """
        total = sum(float(np.vdot(one, one)) for one in left.values()) or 1.0
        plain, fitted = np.zeros(len(candidates)), np.zeros(len(candidates))
        for name, rest in left.items():
            for start in range(0, len(candidates), 256):
                held = [self._held[one.model_id][name] for one in candidates[start : start + 256]]
                inner = _inner(rest, held)
                square = np.array([one.square for one in held])
                plain[start : start + 256] += 2 * inner - square
                fitted[start : start + 256] += np.where(square > 0, inner * np.maximum(inner, 0), 0) / np.where(
                    square > 0, square, 1
                )
        return plain / total, fitted / total

    def products(
        self, candidates: Sequence[Candidate], deltas: Mapping[str, NDArray[np.float32]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """⟨d_i, d_j⟩ of the changes that the factors hold, ⟨d_i, δ⟩, and ‖δ‖², over all parts."""
        count = len(candidates)
        gram, right = np.zeros((count, count)), np.zeros(count)
        for name, delta in deltas.items():
            held = [self._held[one.model_id][name] for one in candidates]
            right += _inner(delta, held)
            us, v = np.hstack([one.us for one in held]), np.hstack([one.v for one in held])
            starts = np.cumsum([0, *(one.v.shape[1] for one in held[:-1])])
            products = (us.T @ us).astype(np.float64) * (v.T @ v)
            gram += np.add.reduceat(np.add.reduceat(products, starts, axis=0), starts, axis=1)
        return gram, right, sum(float(np.vdot(one, one)) for one in deltas.values()) or 1.0


def _inner(matrix: NDArray[np.float32], held: Sequence[Factors]) -> NDArray[np.float64]:
    """⟨matrix, d⟩ for the change d of each of some factors."""
    v = np.hstack([one.v for one in held])
    starts = np.cumsum([0, *(one.v.shape[1] for one in held[:-1])])
    columns = np.einsum("oi,oi->i", matrix @ v, np.hstack([one.us for one in held]))
    return np.add.reduceat(columns.astype(np.float64), starts)


def no_factors(base: str) -> AtlasError:
    """What an atlas without records says when it is asked for lineage."""
    return AtlasError(
        f"Lineage is told from the records of {base}, and this atlas holds none with factors.",
        f"Build it here without `keep_factors=False` (`build({base!r})`), or pull one that was pushed --with-records.",
    )
