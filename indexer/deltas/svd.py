"""Singular values and vectors of weight changes: the leading few, or those of a LoRA.

Everything here is a pure function of its arguments: random starts come from a generator of their own, so that
the same matrix, rank and seed give the same bits on one machine with one number of threads, which the caller
pins. Arithmetic is float32. bf16 matrix units would be faster, but the flags that announce them cannot be
trusted: on some virtual machines the first bf16 product kills the process, and a process that asks is dead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from indexer.deltas.scaling import PRECISE_BELOW, in_safe_range

# With the algorithm these decide the last digits: what changes results changes `SVD_METHOD` in identity.py.
# A product with 16 columns takes no longer than one with 9, and rank 8 needs no more.
_COLUMNS = 16
_OVERSAMPLING = 8
# Shorter sides up to this many blocks are decomposed exactly.
_EXACT_UP_TO = 6
# Blocks of the basis before the first look at the residuals: one never suffices on a weight change.
_FIRST_LOOK = 2
_MOST_BLOCKS = 20
# Bound on the estimated relative error of each σ; the worst error seen in some thousand matrices is 0.7 %.
_VALUE_TOLERANCE = 2.5e-3
_LEFT_BY_GAP = 0.1
# Rows that are hardly more than rounding need more than one.
_MOST_PROJECTIONS = 3
# Where λ_rank / λ_1 is below this, a float32 Gram matrix is too coarse: factor the images themselves.
_GRAM_RANGE = 1e-3
_TINY = 1e-7


@dataclass(frozen=True)
class Factors:
    """The leading singular triplets of one matrix M (out, in): M ≈ u · diag(s) · vᵀ.

    ``u`` (out, rank), ``s`` (rank,) descending and ``v`` (in, rank) are float32. Past the numerical rank of M
    (σ_i ≤ σ_1 · eps · max(out, in)) ``s`` is exactly 0 and the vectors are zero vectors, so that nothing is
    ever made of directions that M does not have. ``norm`` is the Frobenius norm of the whole of M. ``blocks``
    counts the blocks of the iteration, 0 where the decomposition was exact. The sign of (u_i, v_i) is arbitrary.
    ``rows`` (in, k), of a LoRA that changes anything: an orthonormal basis of the space that the rows of A span.
    """

    u: torch.Tensor
    s: torch.Tensor
    v: torch.Tensor
    norm: float = 0.0
    blocks: int = 0
    rows: torch.Tensor | None = None


@torch.no_grad()
def truncated_svd(matrix: torch.Tensor, rank: int, seed: int, norm: float | None = None) -> Factors:
    """The ``rank`` leading singular triplets of ``matrix`` (out, in), each σ within 1 % of exact.

    Block Krylov iteration (Golub, Luk & Overton 1981; Musco & Musco 2015) from a random block, with full
    reorthogonalisation, stopped by what the residuals say of the errors; exact where the matrix is small or
    the iteration does not converge. Any strides, any device. ``norm`` is the Frobenius norm, if known already.
    A σ beyond the range of float32 comes back infinite.

    Raises ValueError: not two-dimensional, NaN or Inf, ``rank`` below 1.
    """
    _check_rank(rank)
    if matrix.ndim != 2:
        raise ValueError(f"a matrix has two dimensions, not the shape {tuple(matrix.shape)}")
    scaled, scale, norm = in_safe_range(matrix, norm)
    shape = (matrix.shape[0], matrix.shape[1])
    if norm == 0:
        return _zeros(shape, rank, matrix.device)
    kept = min(rank, *shape)
    found = _block_krylov(scaled, kept, seed) or _exact(scaled, kept)
    return _factors(found, shape, rank, _floor(shape), scale, norm)


@torch.no_grad()
def lora_svd(a: torch.Tensor, b: torch.Tensor, scale: float, rank: int) -> Factors:
    """The ``rank`` leading singular triplets of scale · b · a, for ``a`` (k, in) and ``b`` (out, k).

    From the factors alone and in float64: with b = Q_b R_b and aᵀ = Q_a R_a, they are those of the small
    matrix R_b R_aᵀ, turned by Q_b and Q_a. The (out, in) product is never formed; ``norm`` is exact.

    Raises ValueError: shapes that do not multiply, NaN or Inf, ``rank`` below 1.
    """
    _check_rank(rank)
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise ValueError(f"factors of shapes {tuple(a.shape)} and {tuple(b.shape)} do not multiply as b @ a")
    left, right = b.detach().double(), a.detach().double().t()
    if not (math.isfinite(scale) and bool(left.isfinite().all()) and bool(right.isfinite().all())):
        raise ValueError("a LoRA factor or its scale is NaN or infinite")
    q_left, r_left = torch.linalg.qr(left)
    q_right, r_right = torch.linalg.qr(right)
    core = (r_left * scale) @ r_right.t()
    norm = float(torch.linalg.vector_norm(core))
    shape = (b.shape[0], a.shape[1])
    if norm == 0:
        return _zeros(shape, rank, b.device)
    u, s, vt = torch.linalg.svd(core, full_matrices=False)
    kept = min(rank, len(s))
    found = _Triplets(q_left @ u[:, :kept], s[:kept], q_right @ vt[:kept].t())
    factors = _factors(found, shape, rank, torch.finfo(torch.float64).eps * max(shape), 1.0, norm)
    return replace(factors, rows=q_right)


@dataclass(frozen=True)
class _Triplets:
    u: torch.Tensor
    s: torch.Tensor
    v: torch.Tensor
    blocks: int = 0


def _block_krylov(matrix: torch.Tensor, rank: int, seed: int) -> _Triplets | None:
    """Leading triplets from a Krylov space of AᵀA, or None if the matrix is small or it does not converge."""
    block = _COLUMNS * math.ceil((rank + _OVERSAMPLING) / _COLUMNS)
    if min(matrix.shape) <= _EXACT_UP_TO * block:
        return None
    if matrix.shape[0] < matrix.shape[1]:
        # The basis lies on the shorter side, where it costs least to keep orthogonal.
        found = _iterate(matrix.t(), rank, block, seed)
        return found and _Triplets(found.v, found.s, found.u, found.blocks)
    return _iterate(matrix, rank, block, seed)


def _iterate(tall: torch.Tensor, rank: int, block: int, seed: int) -> _Triplets | None:
    """One block of basis vectors after the other, until a look at the residuals says that it is enough.

    Vectors of the shorter side lie in rows, those of the longer side as the products leave them, so that
    nothing has to be transposed in memory.
    """
    generator = torch.Generator().manual_seed(seed % 2**63)
    start = torch.randn(block, tall.shape[1], generator=generator).to(tall.device)
    # The random block itself is not worth a place in the basis; its image under AᵀA is the first of it.
    newest = _orthonormal(_pulled_back(tall, _product(tall, start.t())))
    basis = newest
    images: list[torch.Tensor] = []  # tall @ each block of the basis
    for blocks in range(1, min(_MOST_BLOCKS, tall.shape[1] // block) + 1):
        images.append(_product(tall, newest.t()))
        if blocks < _FIRST_LOOK:
            remainder = _outside(_pulled_back(tall, images[-1]), basis)
        else:
            u, values = _ritz(images, rank)
            pulled = _pulled_back(tall, u)
            remainder = _outside(pulled, basis)
            residual = torch.linalg.vector_norm(remainder, dim=1)
            if _converged(values, residual.tolist(), rank, _floor(tall.shape)):
                # All from Aᵀu, which is at hand: half a step better than the Ritz values.
                v, s, turn = torch.linalg.svd(pulled.t(), full_matrices=False)
                return _Triplets(u @ turn[:rank].t(), s[:rank], v[:, :rank], blocks)
        newest = _extension(remainder, basis)
        basis = torch.cat((basis, newest))
    return None


def _ritz(images: list[torch.Tensor], rank: int) -> tuple[torch.Tensor, list[float]]:
    """One block of left Ritz vectors and their σ."""
    block = images[-1].shape[1]
    joined = _beside(images)
    # Double precision costs nothing here, keeps u orthonormal and does not give up where most entries are zero.
    ascending, turn = torch.linalg.eigh((joined.t() @ joined).double())
    squares = ascending.tolist()[-block:]
    if squares[-rank] < _GRAM_RANGE * squares[-1]:
        q, r = torch.linalg.qr(joined)
        u, s, _ = torch.linalg.svd(r)
        return q @ u[:, :block], s[:block].tolist()
    values = [math.sqrt(max(square, 1e-6 * squares[-1])) for square in squares]
    turn = turn[:, -block:] / torch.tensor(values, dtype=turn.dtype, device=turn.device)
    return joined @ turn.flip(1).float(), values[::-1]


def _converged(s: list[float], residual: list[float], rank: int, floor: float) -> bool:
    """Whether the first ``rank`` triplets are good enough after the half step that is about to be taken.

    That half step adds about (residual/σ)²/2 to each σ, in shares of σ. How much is left then is a matter of
    the distance from σ_i to the last value of the block, as in the classical bound residual²/gap. Power and
    constant are measured, on real deltas and on the flattest of spectra; with the values come the vectors.
    """
    for value, rest in zip(s[:rank], residual, strict=False):
        if value <= floor * s[0]:
            break
        gap = max(1 - s[-1] / value, _TINY)
        if (rest / value) ** 2 / 2 * _LEFT_BY_GAP / gap**1.5 > _VALUE_TOLERANCE:
            return False
    return True


def _product(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The product a @ x, made in the order in which ``a`` lies in memory (twice as fast as against it)."""
    return a @ x if a.stride(1) == 1 else (x.t() @ a.t()).t()


def _pulled_back(tall: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Rows (columnsᵀ · tall)."""
    return _product(tall.t(), columns).t().contiguous()


def _beside(blocks: list[torch.Tensor]) -> torch.Tensor:
    """The blocks as one matrix, in the memory order they have."""
    if blocks[0].stride(1) == 1:
        return torch.cat(blocks, 1)
    return torch.cat([block.t() for block in blocks]).t()


def _outside(rows: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """What of ``rows`` is orthogonal to ``basis``."""
    return torch.addmm(rows, rows @ basis.t(), basis, alpha=-1)


def _orthonormal(rows: torch.Tensor) -> torch.Tensor:
    return torch.linalg.qr(rows.t()).Q.t()


def _extension(rows: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """Orthonormal rows, orthogonal to ``basis``, that span ``rows``."""
    for _ in range(_MOST_PROJECTIONS):
        rows = _orthonormal(rows)
        inside = rows @ basis.t()
        rows = torch.addmm(rows, inside, basis, alpha=-1)
        # The squares of small corrections do not matter; after large ones the rows are no longer orthonormal.
        if float(inside.abs().max()) < 1e-3:
            break
    return rows


def _exact(matrix: torch.Tensor, rank: int) -> _Triplets:
    """LAPACK's decomposition, of the tall side up (the other way takes four times as long)."""
    wide = matrix.shape[0] < matrix.shape[1]
    tall = matrix.t() if wide else matrix
    precise = tall.double() if tall.shape[1] <= PRECISE_BELOW else tall
    u, s, vt = torch.linalg.svd(precise, full_matrices=False)
    u, s, v = u[:, :rank], s[:rank], vt[:rank].t()
    return _Triplets(v, s, u) if wide else _Triplets(u, s, v)


def _floor(shape: tuple[int, ...]) -> float:
    """σ_i / σ_1 at and below which a float32 matrix of this shape has numerically no σ_i."""
    return torch.finfo(torch.float32).eps * max(shape)


def _factors(found: _Triplets, shape: tuple[int, int], rank: int, floor: float, scale: float, norm: float) -> Factors:
    """Zero vectors and exact zeros from the numerical rank on, the scale given back to σ."""
    values = found.s.tolist()
    s = torch.tensor([value * scale for value in values if value > floor * values[0]], dtype=torch.float64)

    def padded(columns: torch.Tensor) -> torch.Tensor:
        columns = columns[..., : len(s)].float()
        return torch.nn.functional.pad(columns, (0, rank - len(s))).contiguous()

    return Factors(padded(found.u), padded(s).to(found.s.device), padded(found.v), norm, found.blocks)


def _zeros(shape: tuple[int, int], rank: int, device: torch.device) -> Factors:
    rows, columns = shape
    return Factors(
        torch.zeros(rows, rank, device=device),
        torch.zeros(rank, device=device),
        torch.zeros(columns, rank, device=device),
    )


def _check_rank(rank: int) -> None:
    if rank < 1:
        raise ValueError(f"the rank must be at least 1, not {rank}")
