"""The base's weights in other places or scales: layers moved, rearranged; and others: untrained, broken."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from indexer.records.kinds.change import Subject, Test

# Matrices of other layers are recognised from this cosine on, and matrices are strange below it.
_LIKE, _STRANGE = 0.5, 0.3
# Rows of independent matrices reach a mean of .4 where rows are short.
_MATCHED = 0.6
_ALL_CONSTANT = 0.99
# Rounding may leave this much of a change that only moves or scales numbers.
_NOTHING_LEFT = 0.2
# Sorting explains most of a change of few numbers, or of a large one, but only a permutation explains all of it.
_OF_SORTED = 1e3


def _moved(subject: Subject) -> dict[tuple[str, int], tuple[int, float]]:
    """By stack and layer: the layer of the base that it is, and by how much its cosine exceeds that with its own."""
    signs = subject.signs
    gains: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    columns = (signs.column(name) for name in ("layer", "layer_cosine", "cosine"))
    for delta, layer, cosine, own_cosine in zip(subject.record.deltas, *columns, strict=True):
        is_other = layer != delta.key.layer and cosine >= _LIKE
        gains[delta.key.stack, delta.key.layer].append((int(layer), float(cosine - own_cosine) if is_other else 0.0))
    moved = {}
    for layer_key, gains_of_layer in gains.items():
        layers = [layer for layer, _ in gains_of_layer]
        nearest, _ = Counter(layers).most_common(1)[0]
        moved[layer_key] = (
            nearest,
            float(np.mean([gain if layer == nearest else 0.0 for layer, gain in gains_of_layer])),
        )
    return moved


def _moved_score(subject: Subject) -> float:
    return float(max(gain for _, gain in _moved(subject).values()))


def _moved_in_words(subject: Subject) -> str:
    moved = {layer_key: layer for layer_key, (layer, gain) in _moved(subject).items() if gain >= _LIKE / 2}
    names = [f"{stack}.{layer}".lstrip(".") + f" is {nearest}" for (stack, layer), nearest in moved.items()]
    return f"by their cosines with the base's layers, layer {', '.join(names)}"


def _kept(subject: Subject) -> np.ndarray:
    """(K,) the share of each change that moving numbers along rows, or scaling rows or columns, does not explain.

    Sorted rows are the base's if numbers only moved; nothing is left of W without multiples of the base's columns or
    rows if these were only scaled. A multiple of the whole matrix, as weight decay leaves, does not count.
    """
    signs = subject.signs
    scaled = np.minimum(signs.column("columns"), signs.column("rows")) / np.maximum(signs.column("scalar"), 1e-6)
    energy_left = np.minimum(
        np.where(signs.column("scalar") > _NOTHING_LEFT, scaled, 1.0), signs.column("sorted") * _OF_SORTED
    )
    rounding = np.minimum(signs.column("rounding"), 1.0)
    is_clear = (signs.column("change") > 0) & (rounding < _NOTHING_LEFT) & (signs.column("constant") < _ALL_CONSTANT)
    return np.where(is_clear, np.maximum(energy_left - rounding, 0.0), 1.0)


def _rearranged(subject: Subject) -> float:
    """The strongest of: a matrix whose change only moves or scales numbers, rows found elsewhere, the statistics.

    ``indexer.deltas.weight_match`` has the statistics, for models that are unlike their base as it stands.
    """
    signs = subject.signs
    matched = np.where(signs.column("layer_cosine") < _LIKE, signs.column("matched"), 0.0)
    elsewhere = float(np.max((matched - _MATCHED) / (1 - _MATCHED)))
    return float(max(1.0 - float(np.min(_kept(subject))), elsewhere, signs.rearranged_effect, 0.0))


def _rearranged_in_words(subject: Subject) -> str:
    signs = subject.signs
    if signs.rearranged:
        return f"unlike the base as it stands, but {signs.rearranged}"
    kept = _kept(subject)
    is_lost = kept < 0.5
    if is_lost.any():
        is_moved = np.median(signs.column("sorted")[is_lost]) < np.median(signs.column("columns")[is_lost])
        how = "only moves numbers within rows" if is_moved else "only scales rows or columns"
        return (
            f"the change of {is_lost.sum()} of {len(is_lost)} matrices {how} ({kept.min():.1%} of its energy is left)"
        )
    matched = signs.column("matched")
    count = (matched > _MATCHED).sum()
    return f"rows of {count} matrices are the base's rows of other places (cosine {matched.max():.2f})"


def _untrained(subject: Subject) -> float:
    """1 where nothing of the base shows and every matrix is one of independent numbers by its largest singular value.

    It is that of independent numbers to within a few hundredths; any training raises some of them.
    """
    signs = subject.signs
    if not subject.is_unrelated or signs.rearranged:
        return 0.0
    if signs.column("cosine").max() >= _STRANGE or signs.column("matched").max() >= _MATCHED:
        return 0.0  # some matrices are the base's
    edges = signs.column("weight_edge")
    return max(0.0, 2.0 - float(np.quantile(edges, 0.9))) if edges.any() else 0.0


def _untrained_in_words(subject: Subject) -> str:
    edges = subject.signs.column("weight_edge")
    return (
        f"nothing of the base (cosine {subject.record.base_cosine:.2f}); in 9 of 10 matrices the largest singular "
        f"value is at most {np.sqrt(np.quantile(edges, 0.9)):.2f} times that of independent numbers"
    )


def _strange(subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """(K,) twice: whether a matrix is constant, and whether it is of another model, while most are the base's."""
    signs = subject.signs
    constant = signs.column("constant") > _ALL_CONSTANT
    cosines = signs.column("cosine")
    foreign = (cosines < _STRANGE) & ~constant & (signs.column("layer_cosine") < _LIKE)
    # Neurons in another order leave a matrix whose rows are found elsewhere, and one that is strange, in one layer.
    layer_keys = [(delta.key.stack, delta.key.layer) for delta in subject.record.deltas]
    is_matched = signs.column("matched") >= _MATCHED
    permuted = {layer_key for layer_key, is_found in zip(layer_keys, is_matched, strict=True) if is_found}
    foreign &= np.array([layer_key not in permuted for layer_key in layer_keys]) & (_kept(subject) > 0.5)
    return constant, foreign if np.median(cosines) > _LIKE else np.zeros_like(foreign)


def _broken(subject: Subject) -> float:
    """1 where a matrix is constant; else how unlike the base its strangest matrix is, if most are like it."""
    constant, foreign = _strange(subject)
    if constant.any():
        return 1.0
    return 1.0 - float(np.abs(subject.signs.column("cosine")[foreign]).min()) if foreign.any() else 0.0


def _broken_in_words(subject: Subject) -> str:
    names = np.array([str(delta.key) for delta in subject.record.deltas])
    constant, foreign = _strange(subject)
    parts = []
    for is_broken, what in (
        (constant, "hold one number in each row"),
        (foreign, "have nothing in common with the base's"),
    ):
        if is_broken.any():
            listed = ", ".join(names[is_broken][:3]) + (", …" if is_broken.sum() > 3 else "")
            parts.append(f"{is_broken.sum()} of {len(names)} matrices {what} ({listed})")
    return "; ".join(parts)


MOVED = Test("layers moved", _moved_score, _moved_in_words, 0.25, 0.05)
REARRANGED = Test("rearranged", _rearranged, _rearranged_in_words, 0.35, 0.03)
UNTRAINED = Test("untrained", _untrained, _untrained_in_words, 0.85, 0.02)
BROKEN = Test("broken", _broken, _broken_in_words, 0.6, 0.05)
