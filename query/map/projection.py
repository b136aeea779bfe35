"""Vectors in the plane: near where their cosine is high. UMAP, t-SNE or PCA, each seeded and always turned alike.

Unit vectors are compared by the chord between them: its square is 2 (1 − cosine). So PCA and t-SNE, which are made
for Euclidean distances, see the cosine; UMAP is given 1 − cosine itself.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from indexer.console.messages import say
from indexer.errors import AtlasError, require
from query.statistics.neighbours import codes_of

Vectors = NDArray[np.float32]
Places = NDArray[np.float64]
# Of each vector the numbers of its nearest, itself first (-1: not known), and 1 − their cosines; both (n, k).
Near = tuple[NDArray[np.int64], NDArray[np.float32]]

METHODS = {"umap": "UMAP", "tsne": "t-SNE", "pca": "PCA"}

# How many models, itself included, UMAP places each one by, and t-SNE's counterpart: at most what the libraries
# propose, and √n where that is less, because the groups of a small atlas are small.
MOST_NEIGHBOURS = 15
MOST_PERPLEXITY = 30.0
FEW = 1000  # models of which t-SNE shows the groups apart; UMAP packs each into a knot
_FEWEST = 6  # different vectors below which neighbourhoods are everything or next to nothing
_WORTH_A_WORD = 2000  # models from which on a person should know what is being waited for
_ALL = 1 - 1e-6  # a share of the variance that is all of it, in float32
_NOTHING = 1e-12  # a variance of unit vectors that is rounding
_DENSE = 64  # models or numbers up to which an exact SVD costs nothing


@dataclass(frozen=True)
class Projection:
    """Where each vector went: ``places`` (n, 2), centred.

    ``method`` is the one that was used: PCA where the vectors are too few or too plain for another, whatever was
    asked for. ``explained_variance``: for PCA, the shares of the variance along x and y; None for other methods, and
    where there is no variance.
    """

    method: str
    places: Places
    explained_variance: tuple[float, float] | None = None


def project(vectors: Vectors, method: str = "umap", seed: int = 0, near: Near | None = None) -> Projection:
    """Place unit ``vectors`` (n, d) in the plane; the same vectors and seed give the same places on one machine.

    pca: the two directions of most variance, signs so that the largest loading is positive. umap (McInnes et al.,
    2018) from each vector's exact nearest neighbours, or from those that are known (``near``); tsne (van der Maaten &
    Hinton, 2008; Barnes–Hut). Both start from the PCA (Kobak & Linderman, 2021), and are then turned so that their
    longest direction lies along x, and mirrored to agree with the PCA. Equal vectors get one place (without ``near``).
    One thread, because t-SNE's sums change with the number of threads. Where all vectors lie in one plane, as up to
    three always do, or fewer than six differ, the answer is the PCA whatever ``method`` is.

    Time for 5,000 vectors of 1,368 numbers on one slow core: pca 2 s, umap 20 s with its import, tsne 70 s; for
    10,000: 3 s, 32 s, and minutes.
    Raises AtlasError on an unknown method or a library that is missing, ValueError on vectors that are not finite.
    """
    if method not in METHODS:
        raise AtlasError(f"{method!r} is no way to flatten.", f"Choose one of {', '.join(METHODS)}.")
    if not np.isfinite(vectors).all():
        raise ValueError("a vector is not finite")
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        plane, shares = _principal_plane(vectors, seed)
        if method == "pca" or shares is None or sum(shares) >= _ALL:
            return Projection("pca", plane, shares)
        _, first, back = np.unique(
            codes_of([vector.tobytes() for vector in vectors]), return_index=True, return_inverse=True
        )
        if len(first) < _FEWEST:
            return Projection("pca", plane, shares)
        if len(first) >= _WORTH_A_WORD:
            say(f"placing {len(first):,} models by {METHODS[method]}, which takes a minute or more")
        if method == "umap" and near is not None:
            return Projection(method, _turned(_umap(vectors, plane, seed, near), plane))
        places = (
            _umap(vectors[first], plane[first], seed) if method == "umap" else _tsne(vectors[first], plane[first], seed)
        )
    return Projection(method, _turned(places[back], plane))


def usual_method(count: int) -> str:
    """The method for ``count`` models where none was asked for."""
    return "tsne" if count < FEW else "umap"


def _principal_plane(vectors: Vectors, seed: int) -> tuple[Places, tuple[float, float] | None]:
    """Coordinates (n, 2) along the two directions of most variance, and the shares of it that they hold."""
    places = np.zeros((len(vectors), 2))
    if len(vectors) < 2 or vectors.var(axis=0, dtype=np.float64).sum() <= _NOTHING:
        return places, None
    from sklearn.decomposition import PCA

    axes = min(2, *vectors.shape)
    solver = "full" if min(vectors.shape) <= _DENSE else "arpack"
    pca = PCA(axes, svd_solver=solver, random_state=seed)
    places[:, :axes] = pca.fit_transform(vectors)
    shares = [*map(float, pca.explained_variance_ratio_), 0.0]
    return places, (shares[0], shares[1])


def _umap(vectors: Vectors, plane: Places, seed: int, near: Near | None = None) -> Places:
    if "umap" not in sys.modules:
        say("loading UMAP, which takes a while")
    require("A map by UMAP", "umap")
    import umap

    _keep_compiled(umap)
    nearest, distances = near or exact_near(vectors, most_neighbours(len(vectors)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no further points can be placed later, and that one thread is used
        model = umap.UMAP(
            n_neighbors=nearest.shape[1],
            metric="cosine",
            precomputed_knn=(nearest, distances),
            init=plane / np.abs(plane).max() * 10,
            random_state=seed,
            n_jobs=1,
        )
        return np.asarray(model.fit_transform(vectors), dtype=np.float64)


def _keep_compiled(umap: ModuleType) -> None:
    """Have numba keep what it compiles of UMAP, beside it or in the user's cache, as UMAP does not.

    Every process would compile for six seconds, whatever is mapped; one that finds it compiled takes .4 of them.
    """
    from numba.core.dispatcher import Dispatcher

    for part in (umap.umap_, umap.layouts, umap.utils):
        for function in vars(part).values():
            if isinstance(function, Dispatcher):
                with suppress(RuntimeError):  # there is no folder that could be written
                    function.enable_caching()


def most_neighbours(count: int) -> int:
    """How many models, itself included, UMAP places each of ``count`` by."""
    return min(MOST_NEIGHBOURS, 1 + round(count**0.5))


def exact_near(vectors: Vectors, count: int) -> Near:
    """The ``count`` nearest of every unit vector, itself among them."""
    from sklearn.neighbors import NearestNeighbors

    chords, nearest = NearestNeighbors(n_neighbors=count, algorithm="brute").fit(vectors).kneighbors(vectors)
    return nearest, (chords**2 / 2).astype(np.float32)


def _tsne(vectors: Vectors, plane: Places, seed: int) -> Places:
    from sklearn.manifold import TSNE

    model = TSNE(
        perplexity=min(MOST_PERPLEXITY, len(vectors) ** 0.5),
        init=(plane / plane[:, 0].std() * 1e-4).astype(np.float32),
        random_state=seed,
    )
    return np.asarray(model.fit_transform(vectors), dtype=np.float64)


def _turned(places: Places, plane: Places) -> Places:
    """Centred, the longest direction along x, each axis mirrored where it runs against that of ``plane``."""
    centred = places - places.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    turned = centred @ directions.T
    return np.asarray(turned * np.where((turned * plane).sum(axis=0) < 0, -1.0, 1.0))
