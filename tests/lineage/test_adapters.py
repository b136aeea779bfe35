"""Which adapter was made from which: on factors made here by PEFT's formulas, and on adapters of strangers."""

from __future__ import annotations

import itertools
import re
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from indexer.records.identity import AdapterBase
from indexer.records.parts import LoraFactors, ModelParts
from query.questions.lineage.adapters import Adapter, AdapterRules, continuation
from query.questions.lineage.candidates import Candidate, SampledWeights, stated_model
from query.questions.lineage.evidence import as_stored
from query.questions.lineage.result import CONTINUED, CONTINUED_OR_RUN, COPY, MERGE, RECAST, SPARSE_METHODS
from query.questions.lineage.siblings import Siblings
from query.questions.lineage.thresholds import Thresholds

NAMES = [f"{layer}.{family}" for layer in range(4) for family in ("query", "value")]
WIDTH, RANK, SCALE = 48, 8, 2.0
DAY = datetime(2026, 5, 1)
ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data" / "wild"


def start(seed):
    """A of every matrix, as PEFT draws it."""
    random = np.random.default_rng(seed)
    return {name: random.uniform(-1, 1, (RANK, WIDTH)) / np.sqrt(WIDTH) for name in NAMES}


def moved(factors, seed, size=0.02):
    """The factors after a training: B by steps of one size, A by smaller ones, in directions of the data."""
    random = np.random.default_rng(seed)
    return {
        name: (a + 0.2 * size * random.standard_normal(a.shape), b + size * random.standard_normal(b.shape))
        for name, (a, b) in factors.items()
    }


def tuned(start_seed, data_seed, size=0.02):
    return moved({name: (a, np.zeros((WIDTH, RANK))) for name, a in start(start_seed).items()}, data_seed, size)


def adapter(number, factors, *, scale=SCALE, days=0, author="", data=(), precision="float32"):
    """A candidate with these factors {name: (a, b)}."""
    lora_factors, changes = {}, {}
    for name, (a, b) in factors.items():
        a, b = (as_stored(np.asarray(part, np.float32), precision) for part in (a, b))
        lora_factors[name] = LoraFactors(a, b, scale, precision)
        changes[name] = scale * (b @ a)[:32]
    parts = ModelParts(changes, changes, "float32", 0, is_adapter=True, own=changes, factors=lora_factors)
    author, created = author or f"author{number}", DAY + timedelta(days=days)
    return SampledWeights(
        Candidate(number, f"{author}/m{number}", author, None, "adapter", created, "", None, frozenset(data)), parts
    )


def decided(target, *others, dates=True):
    siblings = Siblings(target.candidate, target.parts, None, Thresholds(), dates=dates)
    decision = AdapterRules(target.candidate, target.parts, siblings, Thresholds()).decide(others)
    return () if decision is None else decision.edges


def parents(edges):
    return {edge.parent_id for edge in edges if edge.direction == "known"}


def test_measurements_are_those_of_the_formed_matrices():
    p, m = tuned(42, 1), moved(tuned(42, 1), 2, 0.01)
    relation = continuation(Adapter(adapter(1, m).parts), Adapter(adapter(0, p).parts))
    formed = {
        name: [SCALE * np.float32(b).astype(float) @ np.float32(a).astype(float) for a, b in (m[name], p[name])]
        for name in NAMES
    }
    difference_square, square_m, square_p = (
        sum(np.square(matrix).sum() for matrix in matrices)
        for matrices in (
            [x - y for x, y in formed.values()],
            [x for x, _ in formed.values()],
            [y for _, y in formed.values()],
        )
    )
    assert relation.residual == pytest.approx(difference_square / square_m, rel=1e-5)
    along = sum(np.vdot(x - y, y) for x, y in formed.values())
    assert relation.cosine == pytest.approx(along / np.sqrt(difference_square * square_p), abs=1e-6)
    coefficients = []
    for matrix_m, matrix_p in formed.values():
        u, s, vt = np.linalg.svd(matrix_p)
        outside = (u[:, 2:RANK] * s[2:RANK]) @ vt[2:RANK]  # outside the leading quarter of eight directions
        coefficients.append(
            np.vdot(u[:, 2:RANK] @ (u[:, 2:RANK].T @ matrix_m @ vt[2:RANK].T * np.eye(RANK - 2)) @ vt[2:RANK], outside)
            / np.square(outside).sum()
        )
    assert relation.kept == pytest.approx(np.median(coefficients), abs=1e-6)


def test_a_continued_adapter_has_its_parent_and_a_shared_seed_is_no_kinship():
    p = tuned(42, 1)
    parent, child = adapter(0, p), adapter(1, moved(p, 2, 0.012), days=5)
    strangers = [adapter(number, tuned(42, number), days=2) for number in range(2, 6)]  # the same A, other data
    (edge,) = decided(child, parent, *strangers)
    assert (edge.parent_id, edge.kind, edge.direction) == (0, CONTINUED, "known")
    assert edge.residual < 0.5
    assert decided(strangers[0], parent, *strangers[1:]) == ()
    # Without dates too, and the parent is not made from its child.
    assert parents(decided(child, parent, *strangers, dates=False)) == {0}
    assert decided(parent, child, *strangers, dates=False) == ()


def test_of_two_children_none_is_the_others_parent_even_if_it_is_nearer():
    p = tuned(42, 1)
    common = moved(p, 2, 0.01)  # both were trained on the same data
    first, second = adapter(1, moved(common, 3, 0.004), days=3), adapter(2, moved(common, 4, 0.004), days=5)
    (edge,) = decided(second, adapter(0, p), first)
    assert edge.parent_id == 0


def test_a_run_that_goes_on_in_the_same_direction_is_a_checkpoint_only_of_its_authors_own_run():
    first = tuned(42, 1)
    a = start(42)
    later = moved({name: (matrix_a, b * 1.5) for name, (matrix_a, b) in first.items()}, 5, 0.002)
    assert a.keys() == later.keys()
    (edge,) = decided(adapter(1, later, author="me", data=["d"]), adapter(0, first, author="me", data=["d"]))
    assert (edge.kind, edge.direction) == (CONTINUED, "known")
    assert "checkpoint" in edge.evidence
    (edge,) = decided(adapter(1, later, days=9), adapter(0, first))
    assert (edge.kind, edge.direction) == (CONTINUED_OR_RUN, "unknown")


def test_the_same_factors_are_a_copy_in_any_dtype_and_a_copy_in_fewer_bits_is_no_parent():
    factors = tuned(7, 1)
    original = adapter(0, factors)
    (edge,) = decided(adapter(1, factors, days=3), original)
    assert (edge.kind, edge.parent_id, edge.direction) == (COPY, 0, "known")
    (edge,) = decided(adapter(1, factors), original)
    assert edge.direction == "unknown"
    half = adapter(2, factors, precision="bfloat16")
    (edge,) = decided(half, original)
    assert (edge.kind, edge.evidence) == (RECAST, "the same weights, stored as bfloat16")
    assert decided(original, half) == ()
    # In other factors: twice A and half of B.
    (edge,) = decided(adapter(3, {name: (2 * a, b / 2) for name, (a, b) in factors.items()}, days=3), original)
    assert (edge.kind, edge.evidence) == (COPY, "the same change, in other factors")


def merged(factors, weights, combine=sum):
    """A and B with the roots of weight · scale, as PEFT's `add_weighted_adapter`; the merge has the scale 1."""
    roots = [np.sqrt(weight * SCALE) for weight in weights]
    sides = {}
    for name in NAMES:
        sides[name] = tuple(
            combine([root * adapter_factors[name][side] for root, adapter_factors in zip(roots, factors, strict=True)])
            for side in (0, 1)
        )
    return sides


@pytest.fixture
def three():
    return [tuned(42, 1), tuned(42, 2, 0.03), tuned(9, 3)]


def test_a_linear_merge_names_its_parents_and_their_weights(three):
    candidates = [adapter(number, factors) for number, factors in enumerate((*three, tuned(42, 8), tuned(9, 9)))]
    for members, weights in (((0, 1), (0.7, 0.3)), ((0, 1, 2), (0.5, 0.4, 0.9))):
        target = adapter(9, merged([three[member] for member in members], weights), scale=1.0, days=4)
        edges = decided(target, *candidates)
        assert {edge.parent_id: round(edge.coefficient, 3) for edge in edges} == dict(
            zip(members, weights, strict=True)
        )
        assert {(edge.kind, edge.method) for edge in edges} == {(MERGE, "linear")}


def summed(factors, weights):
    return {
        name: sum(
            weight * SCALE * adapter_factors[name][1] @ adapter_factors[name][0]
            for weight, adapter_factors in zip(weights, factors, strict=True)
        )
        for name in NAMES
    }


@pytest.mark.parametrize(("rank", "method"), [(3 * RANK, "cat"), (RANK, "svd")])
def test_a_merge_of_changes_names_its_parents(three, rank, method):
    factors = {}
    for name, change in summed(three, (0.5, 0.4, 0.9)).items():
        u, s, vt = np.linalg.svd(change)
        factors[name] = (vt[:rank], u[:, :rank] * s[:rank])
    candidates = [adapter(number, factors) for number, factors in enumerate((*three, tuned(42, 8)))]
    edges = decided(adapter(9, factors, scale=1.0, days=4), *candidates)
    assert {edge.parent_id: round(edge.coefficient, 2) for edge in edges} == {0: 0.5, 1: 0.4, 2: 0.9}
    assert {edge.method for edge in edges} == {method}


def test_a_merge_that_drops_entries_names_its_parents(three):
    random = np.random.default_rng(0)

    def dropped(parts):
        return sum(part * (random.random(part.shape) < 0.6) / 0.6 for part in parts)

    def elected(parts):
        trimmed = [part * (np.abs(part) >= np.quantile(np.abs(part), 0.5)) for part in parts]
        sign = np.where(sum(trimmed) >= 0, 1, -1)
        agree = [part * (np.sign(part) == sign) for part in trimmed]
        return sum(agree) / np.maximum(sum(np.sign(part) == sign for part in trimmed), 1)

    candidates = [adapter(number, factors) for number, factors in enumerate((*three, tuned(42, 8)))]
    for combine in (dropped, elected):
        edges = decided(adapter(9, merged(three[:2], (0.7, 0.6), combine), scale=1.0, days=4), *candidates)
        assert {edge.parent_id for edge in edges} == {0, 1}
        assert {edge.method for edge in edges} == {SPARSE_METHODS}


def test_adapters_after_one_step_are_not_multiples_of_each_other():
    """Adam's first step moves every entry of B by the rate, up or down."""
    random = np.random.default_rng(5)

    def stepped(rate, seed):
        return {name: (a, rate * random.choice((-1.0, 1.0), (WIDTH, RANK))) for name, a in start(seed).items()}

    assert (
        decided(adapter(0, stepped(5e-5, 1), days=3), adapter(1, stepped(1e-3, 2)), adapter(2, stepped(1e-3, 1))) == ()
    )


def test_among_adapters_of_shared_seeds_nobody_is_named():
    """A null run: no pair of eight adapters of two seeds, two of each data set, is taken for parent and child."""
    adapters = [adapter(number, tuned(42 + number % 2, number)) for number in range(8)]
    named = [
        edge
        for target in adapters
        for edge in decided(target, *[other for other in adapters if other is not target], dates=False)
    ]
    assert named == []


def test_adapters_of_other_kinds_are_compared_by_the_parts_of_their_changes():
    def without_factors(sample):
        parts = sample.parts
        return SampledWeights(
            sample.candidate, ModelParts(parts.weights, parts.deltas, "float32", 0, is_adapter=True, own=parts.own)
        )

    p = tuned(42, 1)
    parent, child, stranger, again = map(
        without_factors,
        (adapter(0, p), adapter(1, moved(p, 2, 0.01), days=5), adapter(2, tuned(42, 3)), adapter(3, p, days=2)),
    )
    assert parents(decided(child, parent, stranger)) == {0}
    assert decided(stranger, parent) == ()
    (edge,) = decided(again, parent, stranger)
    assert (edge.kind, edge.parent_id) == (COPY, 0)


def test_what_an_adapters_file_names():
    def named(name, verdict="unknown", parent=""):
        candidate = adapter(0, {}).candidate
        stated = AdapterBase(name, verdict, parent)
        return stated_model(Candidate(**{**vars(candidate), "stated": stated}), "google/gemma-3-270m")

    assert named("ann/tuned", "finetune", "ann/tuned@abc>bob/below@def") == "ann/tuned"
    assert named("ann/tuned") == "ann/tuned"
    assert named("gemma-3-270m-tuned-on-x") == "gemma-3-270m-tuned-on-x"
    for folder in ("./output", "/home/ann/model", "gemma3-270m", "checkpoint-500"):
        assert named(folder) is None
    assert named("google/gemma-3-270m", "base") is None


# ---- adapters of strangers


def of_folder(number, folder, days=0, author=""):
    import torch
    from safetensors.torch import load_file

    path = folder / "adapter_model.safetensors"
    tensors = load_file(path) if path.exists() else torch.load(folder / "adapter_model.bin", "cpu", weights_only=True)
    factors = {}
    for name, tensor in tensors.items():
        if (match := re.match(r"(.*)\.lora_([AB])(?:\.default)?\.weight$", name)) is not None:
            factors.setdefault(match[1], {})[match[2]] = tensor.float().numpy()
    chosen = sorted(factors)[:: max(len(factors) // 8, 1)][:8]
    return adapter(
        number, {name: (factors[name]["A"], factors[name]["B"]) for name in chosen}, days=days, author=author
    )


def wild(name):
    if not (SHARED / name).is_dir():
        pytest.skip(f"needs {name} in ../shared/data/wild")
    return SHARED / name


@pytest.mark.parametrize("days", [(0, 0, 0), (0, 5, 9)])
def test_two_children_of_one_real_adapter(days):
    odd = wild("odd")
    names = ("children_adapter_curriculum_stage1", "children_adapter", "children_adapter_seed123")
    parent, first, second = (
        of_folder(number, odd / name, day) for number, (name, day) in enumerate(zip(names, days, strict=True))
    )
    assert parents(decided(first, parent, second)) == parents(decided(second, parent, first)) == {0}
    assert any(days) or decided(parent, first, second) == ()  # later ones are not read


def test_a_real_chain():
    odd = wild("odd")
    names = ("chain_saved_old", "chain_retrain", "chain_saved")
    old, retrained, unlike = (of_folder(number, odd / name) for number, name in enumerate(names))
    assert parents(decided(retrained, old, unlike)) == {0}
    assert decided(old, retrained, unlike) == ()
    assert decided(unlike, old, retrained) == ()  # its A and B have nothing in common with theirs


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_among_real_adapters_of_gpt2_no_stranger_is_named():
    """51 runs by 43 authors, some from one seed, and three pairs of those on the same data."""
    folder = wild("gpt2")
    rows = [line.split("\t") for line in (SHARED / "gpt2.tsv").read_text().splitlines()[1:]]
    samples = [of_folder(number, folder / row[0], author=row[1]) for number, row in enumerate(rows)]
    authors = {sample.candidate.model_id: sample.candidate.author for sample in samples}
    same = {frozenset(pair) for pair in itertools.combinations(authors, 2) if authors[pair[0]] == authors[pair[1]]}
    named = set()
    for target in samples:
        others = [
            other
            for other in samples
            if other is not target and other.parts.factors.keys() == target.parts.factors.keys()
        ]
        named |= {
            frozenset((target.candidate.model_id, parent)) for parent in parents(decided(target, *others, dates=False))
        }
    assert named <= same
