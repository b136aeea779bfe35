"""Projections of vectors to the plane, so that similar ones are close: UMAP, t-SNE or PCA, seeded and oriented alike.

The squared distance of unit vectors is 2 (1 − cosine), so PCA and t-SNE, which use Euclidean distances, respect the
cosine; UMAP is given 1 − cosine.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from indexer.console.messages import say
from indexer.errors import AtlasError, require
from indexer.shared_state import ignored_warnings, one_blas_thread
from indexer.vectors.table import VectorTable
from indexer.vectors.ties import NEAR, nearest_first
from query.shared.statistics.neighbours import codes_of

Vectors = NDArray[np.float32]
Positions = NDArray[np.float64]
# The indices of each vector's nearest vectors, itself first (-1: not known), and 1 − their cosines; both (n, k).
Near = tuple[NDArray[np.int64], NDArray[np.float32]]

METHODS = {"umap": "UMAP", "tsne": "t-SNE", "pca": "PCA"}

# UMAP's number of neighbours, including the model itself, and t-SNE's perplexity: the libraries' defaults, or √n if
# that is less, because the groups of a small atlas are small.
MOST_NEIGHBOURS = 15
_MOST_PERPLEXITY = 30.0
FEW = 1000  # below this number of models t-SNE is the default, because UMAP packs each group into a knot
_FEWEST = 6  # with fewer distinct vectors, neighbourhoods have no meaning
_SLOW = 2000  # from this number of models on, a message says that placing them takes long
_ALL = 1 - 1e-6  # this share of the variance is all of it, in float32
_NOTHING = 1e-12  # a smaller variance of unit vectors is a rounding error
_ROWS = 1024  # vectors that are compared with all others at a time
_DENSE, _NARROW = 1000, 64  # up to this many models, or dimensions, an exact PCA is cheap


@dataclass(frozen=True)
class Projection:
    """The positions of vectors: ``positions`` (n, 2), centred.

    ``method``: the method that was used, which is PCA if there are too few distinct vectors for another.
    ``explained_variance``: for PCA, the shares of the variance along x and y; None for other methods, or without
    variance.
    """

    method: str
    positions: Positions
    explained_variance: tuple[float, float] | None = None


def project(
    vectors: Vectors,
    method: str = "umap",
    seed: int = 0,
    near: Near | None = None,
    compared: VectorTable | None = None,
) -> Projection:
    """Place unit ``vectors`` (n, d) in the plane; the same vectors and seed give the same places on one machine.

    Methods:
        pca: the two directions of most variance, with signs so that the largest loading is positive.
        umap (McInnes et al., 2018): from each vector's exact nearest neighbours, or from known ones (``near``).
        tsne (van der Maaten & Hinton, 2008; Barnes–Hut).

    UMAP and t-SNE start from the PCA (Kobak & Linderman, 2021), and are then rotated so that their longest direction is
    x, and mirrored to agree with the PCA. Equal vectors get one position (without ``near``). There is one thread,
    because t-SNE's sums depend on the number of threads. If all vectors lie in one plane, as up to three always do, or
    fewer than six are distinct, the result is the PCA for any ``method``.

    Time for 5,000 vectors of 1,368 numbers on one slow core: pca 2 s, umap 20 s with its import, tsne 70 s; for
    10,000: 3 s, 32 s, and minutes.

    Args:
        vectors: (n, d) of unit length.
        method: a key of ``METHODS``.
        seed: for the random numbers of all methods.
        near: known neighbours for UMAP.
        compared: the table by whose similarities UMAP's neighbours are found, if not by those of ``vectors``.

    Raises:
        AtlasError: the method is unknown, or a library is missing.
        ValueError: a vector is not finite.
    """
    if method not in METHODS:
        raise AtlasError(f"Unknown projection method {method!r} (choose {', '.join(METHODS)}).", "")
    if not np.isfinite(vectors).all():
        raise ValueError("a vector is not finite")
    from threadpoolctl import threadpool_limits

    with one_blas_thread(), threadpool_limits(1, user_api="openmp"):  # the threads of OpenMP belong to this one
        plane, shares = _principal_plane(vectors, seed)
        if method == "pca" or shares is None or sum(shares) >= _ALL:
            return Projection("pca", plane, shares)
        _, first, inverse = np.unique(
            codes_of([vector.tobytes() for vector in vectors]), return_index=True, return_inverse=True
        )
        if len(first) < _FEWEST:
            return Projection("pca", plane, shares)
        if len(first) >= _SLOW:
            say(f"placing {len(first):,} models by {METHODS[method]}, which takes a minute or more")
        if method == "umap" and near is not None:
            return Projection(method, _turned(_umap(vectors, plane, seed, near), plane))
        unique, start = vectors[first], plane[first]
        if method == "umap":
            near = exact_near((compared or VectorTable(vectors)).take(first), most_neighbours(len(first)))
            positions = _umap(unique, start, seed, near)
        else:
            from sklearn.manifold import TSNE

            model = TSNE(
                perplexity=min(_MOST_PERPLEXITY, len(unique) ** 0.5),
                init=(start / start[:, 0].std() * 1e-4).astype(np.float32),
                random_state=seed,
            )
            positions = np.asarray(model.fit_transform(unique), dtype=np.float64)
    return Projection(method, _turned(positions[inverse], plane))


def usual_method(count: int) -> str:
    """The default method for ``count`` models."""
    return "tsne" if count < FEW else "umap"


def _principal_plane(vectors: Vectors, seed: int) -> tuple[Positions, tuple[float, float] | None]:
    """Coordinates (n, 2) along the two directions of most variance, and their shares of it."""
    positions = np.zeros((len(vectors), 2))
    if len(vectors) < 2 or vectors.var(axis=0, dtype=np.float64).sum() <= _NOTHING:
        return positions, None
    axes = min(2, *vectors.shape)
    if len(vectors) <= _DENSE:  # without scikit-learn, whose import takes longer than the rest
        centred = vectors - vectors.mean(axis=0, dtype=np.float64)
        values, sides = np.linalg.eigh(centred @ centred.T)
        sides = sides[:, ::-1][:, :axes]
        loadings = centred.T @ sides
        signs = np.where(np.take_along_axis(loadings, np.abs(loadings).argmax(axis=0)[None], axis=0) < 0, -1.0, 1.0)
        variances = np.maximum(values[::-1], 0)
        positions[:, :axes] = sides * signs * np.sqrt(variances[:axes])
        ratios = variances[:axes] / variances.sum()
    else:
        from sklearn.decomposition import PCA

        pca = PCA(axes, svd_solver="full" if vectors.shape[1] <= _NARROW else "arpack", random_state=seed)
        positions[:, :axes] = pca.fit_transform(vectors)
        ratios = pca.explained_variance_ratio_
    shares = [*map(float, ratios), 0.0]
    return positions, (shares[0], shares[1])


def _umap(vectors: Vectors, plane: Positions, seed: int, near: Near) -> Positions:
    if "umap" not in sys.modules:
        say("loading UMAP, which takes a while")
    require("A map by UMAP", "umap")
    import umap

    # Let numba cache its compiled functions of UMAP, in UMAP's folder or in the user's cache; UMAP does not do that.
    # Otherwise every process would compile for six seconds; with the cache it takes 0.4 s.
    from numba.core.dispatcher import Dispatcher

    for module in (umap.umap_, umap.layouts, umap.utils):
        for function in vars(module).values():
            if isinstance(function, Dispatcher):
                with suppress(RuntimeError):  # no folder is writable
                    function.enable_caching()
    nearest, distances = near
    with ignored_warnings():  # that new points cannot be added later, and that there is one thread
        model = umap.UMAP(
            n_neighbors=nearest.shape[1],
            metric="cosine",
            precomputed_knn=(nearest, distances),
            init=plane / np.abs(plane).max() * 10,
            random_state=seed,
            n_jobs=1,
        )
        return np.asarray(model.fit_transform(vectors), dtype=np.float64)


def most_neighbours(count: int) -> int:
    """UMAP's number of neighbours for ``count`` models, including the model itself."""
    return min(MOST_NEIGHBOURS, 1 + round(count**0.5))


def exact_near(compared: VectorTable, count: int) -> Near:
    """The ``count`` nearest of every model, including itself, as an atlas stores them: ties in order of the models.

    UMAP amplifies the last bit of a distance, so distances are computed like those of stored neighbours.
    """

    def exact(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
        return compared.pairs(rows, compared, columns)

    all_rows = np.arange(len(compared))
    nearest = np.repeat(all_rows[:, None], count, axis=1)
    distances = np.zeros(nearest.shape, dtype=np.float32)
    for start in range(0, len(compared), _ROWS):
        chunk = all_rows[start : start + _ROWS]
        table = compared.take(chunk).similarities(compared)
        table[chunk - start, chunk] = -np.inf
        least = np.partition(table, len(compared) - count + 1, axis=1)[:, len(compared) - count + 1, None]
        rows, columns = np.nonzero(table >= least - NEAR)
        rows += start
        indices, ranks, cosines = nearest_first(rows, columns, table[rows - start, columns], count - 1, exact)
        nearest[rows[indices], ranks] = columns[indices]
        distances[rows[indices], ranks] = np.maximum(1 - cosines, 0)
    return nearest, distances


def _turned(positions: Positions, plane: Positions) -> Positions:
    """Centred, with the longest direction along x, and each axis mirrored to agree with ``plane``."""
    centred = positions - positions.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    turned = centred @ directions.T
    return np.asarray(turned * np.where((turned * plane).sum(axis=0) < 0, -1.0, 1.0))
