"""Singular values and vectors of weight changes: the leading few, or those of a LoRA.

All functions are pure: random starts come from their own generator, so the same matrix, rank and seed give the same
bits on one machine with one number of threads, which the caller sets. Arithmetic is float32. bf16 matrix units would be
faster, but the flags that announce them cannot be trusted: on some virtual machines the first bf16 product kills the
process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from indexer.shared_state import one_blas_thread

# These constants decide the last digits: a change of results requires a new RECORD_VERSION (identity.py).
# A product with 16 columns takes no longer than one with 9, and rank 8 needs no more.
_COLUMNS = 16
_OVERSAMPLING = 8
# Matrices whose shorter side has up to this many blocks are decomposed exactly.
_EXACT_UP_TO = 6
# Blocks of the basis before the first look at the residuals: one is never enough for a weight change.
_FIRST_LOOK = 2
_MOST_BLOCKS = 20
# Bound on the estimated relative error of each σ; the worst error seen in some thousand matrices is 0.7 %.
_VALUE_TOLERANCE = 2.5e-3
_LEFT_BY_GAP = 0.1
# Rows that are hardly more than rounding need more than one.
_MOST_PROJECTIONS = 3
# If λ_rank / λ_1 is below this, a float32 Gram matrix is too coarse: factor the images themselves.
_GRAM_RANGE = 1e-3
_TINY = 1e-7
# For Frobenius norms within these bounds σ⁴ stays well inside the range of float32.
_SAFE_NORM = (1e-4, 1e4)

# Up to this width float64 costs next to nothing.
_PRECISE_BELOW = 128
# The Gram matrix is computed by this many columns at a time, on and above the diagonal only.
_GRAM_COLUMNS = 96


@dataclass(frozen=True)
class Factors:
    """The leading singular triplets of one matrix M (out, in): M ≈ u · diag(s) · vᵀ.

    ``u`` (out, rank), ``s`` (rank,) descending and ``v`` (in, rank) are float32. Past the numerical rank of M
    (σ_i ≤ σ_1 · eps · max(out, in)) ``s`` is exactly 0 and the vectors are zero vectors, because M has no such
    directions. ``norm`` is the Frobenius norm of all of M. ``blocks`` counts the blocks of the iteration, 0 if the
    decomposition was exact. The sign of (u_i, v_i) is arbitrary. ``rows`` (in, k), only of a LoRA that changes
    anything: an orthonormal basis of the space that the rows of A span.
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
    reorthogonalisation, stopped by an error estimate from the residuals; exact if the matrix is small or the
    iteration does not converge. Any strides, any device. ``norm`` is the Frobenius norm, if known already.
    A σ beyond the range of float32 comes back infinite.

    Raises ValueError: not two-dimensional, NaN or Inf, ``rank`` below 1.
    """
    if rank < 1:
        raise ValueError(f"the rank must be at least 1, not {rank}")
    scaled, scale, norm = _in_safe_range(matrix, norm)
    shape = (matrix.shape[0], matrix.shape[1])
    if norm == 0:
        return _zeros(shape, rank, matrix.device)
    # Both methods take the tall matrix: a basis of the shorter side is the cheapest to keep orthogonal, and LAPACK
    # needs a quarter of the time.
    is_wide = shape[0] < shape[1]
    tall = scaled.t() if is_wide else scaled
    effective_rank = min(rank, *shape)
    block = _COLUMNS * math.ceil((effective_rank + _OVERSAMPLING) / _COLUMNS)
    factors = _block_krylov(tall, effective_rank, block, seed) if tall.shape[1] > _EXACT_UP_TO * block else None
    if factors is None:
        precise = tall.double() if tall.shape[1] <= _PRECISE_BELOW else tall
        u, s, vt = torch.linalg.svd(precise, full_matrices=False)
        factors = Factors(u[:, :effective_rank], s[:effective_rank], vt[:effective_rank].t())
    if is_wide:
        factors = replace(factors, u=factors.v, v=factors.u)
    return _padded(factors, rank, _rank_tolerance(shape), scale, norm)


@torch.no_grad()
def sample_svd(matrices: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """σ (n, rank) descending and right singular vectors (n, in, rank) of ``matrices`` (n, out, in), one side is short.

    From the Gram matrices of the short side in float64. Past the numerical rank both are zero.
    """
    wide = matrices.double()
    count, rows, columns = wide.shape
    is_wide = rows < columns
    squares, short = torch.linalg.eigh(wide @ wide.mT if is_wide else wide.mT @ wide)
    effective_rank = min(rank, squares.shape[1])
    values = squares.flip(1)[:, :effective_rank].clamp_min(0).sqrt()
    is_nonzero = values > values[:, :1] * _rank_tolerance((rows, columns))
    leading = short.flip(2)[:, :, :effective_rank]
    if is_wide:
        # In this order the product takes a third to a tenth of the time of its transpose.
        leading = (leading.mT @ wide).mT / torch.where(is_nonzero, values, 1.0).unsqueeze(1)
    s, v = values.new_zeros(count, rank), wide.new_zeros(count, columns, rank)
    s[:, :effective_rank] = values * is_nonzero
    v[:, :, :effective_rank] = leading * is_nonzero.unsqueeze(1)
    return s.float(), v.float()


@torch.no_grad()
def lora_svd(a: torch.Tensor, b: torch.Tensor, scale: float, rank: int) -> Factors:
    """The ``rank`` leading singular triplets of scale · b · a, for ``a`` (k, in) and ``b`` (out, k).

    They are computed from the factors alone, in float64: with b = Q_b R_b and aᵀ = Q_a R_a, they are the triplets of
    the small matrix R_b R_aᵀ, rotated by Q_b and Q_a. The (out, in) product is never formed; ``norm`` is exact.

    Raises ValueError: shapes that do not multiply, NaN or Inf, ``rank`` below 1.
    """
    if rank < 1:
        raise ValueError(f"the rank must be at least 1, not {rank}")
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
    effective_rank = min(rank, len(s))
    factors = Factors(
        q_left @ u[:, :effective_rank], s[:effective_rank], q_right @ vt[:effective_rank].t(), rows=q_right
    )
    return _padded(factors, rank, torch.finfo(torch.float64).eps * max(shape), 1.0, norm)


@torch.no_grad()
def spectrum(matrix: torch.Tensor) -> torch.Tensor:
    """All singular values of ``matrix`` (out, in): (min(out, in),) float32, descending.

    Square roots of the eigenvalues of the float32 Gram matrix of the shorter side, several times faster than
    ``torch.linalg.svdvals``. Squares are accurate to a few 1e-6 · σ_1²: shares of energy are right, but a σ below a few
    thousandths of σ_1 is only known to be that small.

    Raises ValueError: not two-dimensional, NaN or Inf.
    """
    scaled, scale, norm = _in_safe_range(matrix, None)
    if norm == 0:
        return torch.zeros(min(matrix.shape), device=matrix.device)
    gram = _upper_gram(scaled if scaled.shape[0] >= scaled.shape[1] else scaled.t())
    squares = _eigenvalues(gram).flip(0)
    return (squares.clamp_min(0).sqrt().double() * scale).float()


def _block_krylov(tall: torch.Tensor, rank: int, block: int, seed: int) -> Factors | None:
    """Leading triplets from a Krylov space of AᵀA; None if the iteration does not converge.

    Blocks of basis vectors are added until the residuals are small enough. Vectors of the shorter side are rows,
    vectors of the longer side have the orientation of the products, so that no matrix is transposed in memory.
    """
    generator = torch.Generator().manual_seed(seed % 2**63)
    start = torch.randn(block, tall.shape[1], generator=generator).to(tall.device)
    # The basis starts with the image of the random block under AᵀA, not with the block itself.
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
            if _converged(values, residual.tolist(), rank, _rank_tolerance(tall.shape)):
                # Computed from Aᵀu, which is already known: half a step better than the Ritz values.
                v, s, turn = torch.linalg.svd(pulled.t(), full_matrices=False)
                return Factors(u @ turn[:rank].t(), s[:rank], v[:, :rank], blocks=blocks)
        newest = _extension(remainder, basis)
        basis = torch.cat((basis, newest))
    return None


def _ritz(images: list[torch.Tensor], rank: int) -> tuple[torch.Tensor, list[float]]:
    """One block of left Ritz vectors and their σ."""
    block = images[-1].shape[1]
    # One matrix, in the memory order of the blocks.
    joined = torch.cat(images, 1) if images[0].stride(1) == 1 else torch.cat([image.t() for image in images]).t()
    # Double precision costs nothing here, keeps u orthonormal and converges even if most entries are zero.
    ascending, turn = torch.linalg.eigh((joined.t() @ joined).double())
    squares = ascending.tolist()[-block:]
    if squares[-rank] < _GRAM_RANGE * squares[-1]:
        q, r = torch.linalg.qr(joined)
        u, s, _ = torch.linalg.svd(r)
        return q @ u[:, :block], s[:block].tolist()
    values = [math.sqrt(max(square, 1e-6 * squares[-1])) for square in squares]
    turn = turn[:, -block:] / torch.tensor(values, dtype=turn.dtype, device=turn.device)
    return joined @ turn.flip(1).float(), values[::-1]


def _converged(s: list[float], residual: list[float], rank: int, tolerance: float) -> bool:
    """Whether the first ``rank`` triplets are accurate enough after the next half step.

    That half step adds about (residual/σ)²/2 to each σ, relative to σ. The remaining error depends on the distance
    from σ_i to the last value of the block, as in the classical bound residual²/gap. Power and constant were measured
    on real deltas and on the flattest spectra. Where the values are accurate, so are the vectors.
    """
    for value, residual_norm in zip(s[:rank], residual, strict=False):
        if value <= tolerance * s[0]:
            break
        gap = max(1 - s[-1] / value, _TINY)
        if (residual_norm / value) ** 2 / 2 * _LEFT_BY_GAP / gap**1.5 > _VALUE_TOLERANCE:
            return False
    return True


def _product(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The product a @ x, computed in the memory order of ``a`` (twice as fast as against it)."""
    return a @ x if a.stride(1) == 1 else (x.t() @ a.t()).t()


def _pulled_back(tall: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Rows (columnsᵀ · tall)."""
    return _product(tall.t(), columns).t().contiguous()


def _outside(rows: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """The part of ``rows`` that is orthogonal to ``basis``."""
    return torch.addmm(rows, rows @ basis.t(), basis, alpha=-1)


def _orthonormal(rows: torch.Tensor) -> torch.Tensor:
    return torch.linalg.qr(rows.t()).Q.t()


def _extension(rows: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """Orthonormal rows, orthogonal to ``basis``, that span ``rows``."""
    for _ in range(_MOST_PROJECTIONS):
        rows = _orthonormal(rows)
        inside = rows @ basis.t()
        rows = torch.addmm(rows, inside, basis, alpha=-1)
        # After large corrections the rows are no longer orthonormal; the squares of small ones do not matter.
        if float(inside.abs().max()) < 1e-3:
            break
    return rows


def _rank_tolerance(shape: tuple[int, ...]) -> float:
    """The ratio σ_i / σ_1 up to which σ_i of a float32 matrix of this shape is numerically zero."""
    return torch.finfo(torch.float32).eps * max(shape)


def _padded(factors: Factors, rank: int, tolerance: float, scale: float, norm: float) -> Factors:
    """``rank`` triplets with exact zeros past the numerical rank, and σ multiplied by the scale again."""
    values = factors.s.tolist()
    s = torch.tensor([value * scale for value in values if value > tolerance * values[0]], dtype=torch.float64)

    def padded(columns: torch.Tensor) -> torch.Tensor:
        columns = columns[..., : len(s)].float()
        return torch.nn.functional.pad(columns, (0, rank - len(s))).contiguous()

    return replace(factors, u=padded(factors.u), s=padded(s).to(factors.s.device), v=padded(factors.v), norm=norm)


def _zeros(shape: tuple[int, int], rank: int, device: torch.device) -> Factors:
    rows, columns = shape
    return Factors(
        torch.zeros(rows, rank, device=device),
        torch.zeros(rank, device=device),
        torch.zeros(columns, rank, device=device),
    )


def _in_safe_range(matrix: torch.Tensor, norm: float | None) -> tuple[torch.Tensor, float, float]:
    """The matrix in dense float32, divided by a power of two if its norm is extreme; that power; its norm.

    Raises ValueError: not two-dimensional, NaN or Inf.
    """
    if matrix.ndim != 2:
        raise ValueError(f"a matrix has two dimensions, not the shape {tuple(matrix.shape)}")
    matrix = matrix.detach().to(torch.float32)
    if norm is None:
        norm = float(torch.linalg.vector_norm(matrix))
    scale = 1.0
    if not _SAFE_NORM[0] <= norm <= _SAFE_NORM[1]:
        largest = float(matrix.abs().max()) if matrix.numel() else 0.0
        if not math.isfinite(largest):
            raise ValueError("the matrix holds NaN or infinite values")
        if largest == 0:
            return matrix, scale, 0.0
        exponent = math.frexp(largest)[1]
        scale = 2.0**exponent
        # In two steps: the reciprocal of the smallest float32 is not a float32.
        first = -exponent // 2
        matrix = matrix * 2.0**first * 2.0 ** (-exponent - first)
        norm = float(torch.linalg.vector_norm(matrix)) * scale
    rows, columns = matrix.stride()
    dense = (columns == 1 and rows >= matrix.shape[1]) or (rows == 1 and columns >= matrix.shape[0])
    return matrix if dense else matrix.contiguous(), scale, norm


def _eigenvalues(upper: torch.Tensor) -> torch.Tensor:
    """Eigenvalues, ascending, of the symmetric matrix whose upper triangle is given."""
    if upper.device.type == "cpu" and upper.dtype == torch.float32:
        from scipy.linalg import LinAlgError, eigh

        # OpenBLAS takes two thirds of MKL's time, with column order and the upper triangle.
        columns = np.asfortranarray(upper.numpy())
        try:
            with one_blas_thread():
                return torch.from_numpy(eigh(columns, lower=False, eigvals_only=True, driver="ev", check_finite=False))
        except LinAlgError:
            pass
    try:
        return torch.linalg.eigvalsh(upper, UPLO="U")
    except torch.linalg.LinAlgError:
        # Single precision fails for many matrices with columns of zeros (a partly frozen layer).
        return torch.linalg.eigvalsh(upper.double(), UPLO="U")


def _upper_gram(tall: torch.Tensor) -> torch.Tensor:
    """AᵀA, block by block; the blocks below the diagonal are left zero."""
    size = tall.shape[1]
    if size <= _PRECISE_BELOW:
        precise = tall.double()
        return precise.t() @ precise
    gram = tall.new_zeros(size, size)
    for start in range(0, size, _GRAM_COLUMNS):
        stop = start + _GRAM_COLUMNS
        torch.mm(tall[:, start:stop].t(), tall[:, start:], out=gram[start:stop, start:])
    return gram
