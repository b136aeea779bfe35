"""The limits behind every answer. They were set on one family of models and checked on others (docs/lineage.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What counts as what; shares are of ‖δ‖², the energy of the asked model's change.

    Attributes:
        budget: bytes that may be read for one asked model.
        most_models: candidates whose weights are read, at most.
        exact: left over, beyond what rounding explains, where an explanation is exact.
        noise: so many times the expected rounding error counts as rounding.
        most_noise: above this share of rounding nothing is called exact.
        most_parents: of a merge.
        least_weight: of a parent in a merge.
        most_weight: of a parent in a merge; larger ones only fit by cancelling.
        near: left over after a parent with coefficient 1, at most, where nothing else speaks for it.
        aligned: |cosine| of what is left with the parent, at most.
        turned: by so much more |cosine| one way than the other, the order is the other way round.
        sister: cosine of what is left after s with s − p, leading directions apart, below which s went another way.
        flatter: share of the words whose change from one relative is flatter than from another, which then is farther.
        flatter_than_base: the same against the base; sisters whose parent is not known reach two thirds.
        flatter_than_sister: the same, from which on a run from the base with the same data and seed is ruled out.
        flat: how even a word's change must be by one of two relatives to tell them apart; Gauss's is .64.
        flat_rows: least words by which that is told.
        shared: least embeddings of words that are evidence.
        weak_share: of the embeddings that both changed, so few alike are weak evidence.
        weak_near: left over, at most, where the evidence is weak.
        atom: share of a parent's entries that a merge holds at one fixed multiple.
        atom_contrast: how much denser that multiple is than those around it.
        level: share of the entries of a quantised copy that are where its source rounds to.
        rank_share: a LoRA's rank is at most this share of what a part could have.
        rank_drop: energy of a LoRA's last singular value over that of the next, at least, in most matrices.
        sparse: share of entries that are the base's, from which on a merge that drops entries is looked for.
        same_hours: uploads of one author on one data set within so many hours are a sweep.
        giving_up: gain of the best candidate below which nothing more is read.
        together: left over by stored factors, at most, where a group of models is read at the end.
    """

    budget: int = 30_000_000
    most_models: int = 8
    exact: float = 1e-6
    noise: float = 2.0
    most_noise: float = 0.05
    most_parents: int = 4
    least_weight: float = 0.03
    most_weight: float = 1.6
    near: float = 0.6
    aligned: float = 0.5
    turned: float = 0.1
    sister: float = -0.15
    flatter: float = 0.55
    flatter_than_base: float = 0.85
    flatter_than_sister: float = 0.8
    flat: float = 0.8
    flat_rows: int = 32
    shared: int = 8
    weak_share: float = 0.1
    weak_near: float = 0.5
    atom: float = 0.02
    atom_contrast: float = 6.0
    level: float = 0.995
    rank_share: float = 0.5
    rank_drop: float = 10.0
    sparse: float = 0.02
    same_hours: float = 24.0
    giving_up: float = 0.02
    together: float = 0.5
