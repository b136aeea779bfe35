"""Toy modules of which it is known what each layer keeps: the measures must agree."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch
from torch import nn

import indexer.profiles
from indexer.errors import AtlasError, Failed
from indexer.profiles.features import SHARP, find_features
from indexer.profiles.layers import CheckedIndices, Layers, chosen_layers, nearest_tokens, patchify
from indexer.profiles.measurement import LayerRow, ProfileRequest, measure
from indexer.profiles.probes import Probe, random_probe
from indexer.profiles.recovery import (
    SHIFT,
    blank_start,
    criterion,
    embedding_sd,
    exact_search,
    fit_readout,
    read_off,
    recover,
)
from indexer.profiles.sensitivity import receptive_fields
from indexer.profiles.statistics import accuracy, normal, spread_of
from tests.conftest import ROOT
from tests.halves import a_few
from tests.profiles.toy_layers import (
    TOKENS,
    WIDTH,
    Attention,
    Mixing,
    after,
    directions,
    identities,
    projected,
    running_sum,
    vocabulary,
)

ALL = ProfileRequest(recover=True, exact=True)
EVERYTHING = ProfileRequest(recover=True, exact=True, recipe="original", steps=3)
RECOVERY = ProfileRequest(recover=True)


def rows_of(layers: Layers, request: ProfileRequest = ALL, probe: Probe | None = None, **options) -> list[LayerRow]:
    return measure(layers, probe or random_probe(layers), request, **options)[0]


def test_identity_keeps_everything():
    for row in rows_of(identities()):
        assert [row.values[name] for name in ("readable", "recovered", "verified")] == [1.0, 1.0, 1.0]
        assert row.values["reach"] == pytest.approx(1.0)
        assert row.values["own"] == pytest.approx(1.0)


@pytest.mark.slow
def test_the_original_invertible_toy_is_recovered_and_certified():
    positions, width = 8, 64
    embedding = vocabulary(2048, width, 1.0)
    layers = Layers(embedding, [Mixing(positions, width, seed) for seed in range(2)])
    probe = random_probe(layers, 8, positions)
    states = layers.states(probe.inputs(layers), [1, 2])
    for layer, target in states.items():
        unit = spread_of(target).unit
        guess = recover(layers, layer, target, unit, blank_start(layers, target.shape, 0), 300)
        assert accuracy(nearest_tokens(layers, guess)[..., 0], probe.ids).mean() == 1.0
    assert [row.values["verified"] for row in rows_of(layers, ProfileRequest(exact=True), probe)] == [1.0, 1.0]


def by_distances(layers: Layers, projection: torch.Tensor) -> float:
    """Tolerance of a linear layer, computed from the projected embeddings with sampled noise."""
    ids = random_probe(layers).ids
    images = layers.tokens @ projection
    hidden = images[ids]
    unit = (hidden - hidden.mean(dim=(0, 1))).square().mean(dim=-1).sqrt().median()
    generator = torch.Generator().manual_seed(7)
    levels_of_tokens = []
    for token in ids[:, ::4].flatten():
        distances = (layers.tokens - layers.tokens[token]).norm(dim=1)
        distances[token] = torch.inf
        near = distances.topk(32, largest=False).indices
        differences = (images[near] - images[token]) / unit
        along = torch.randn(64, differences.shape[1], generator=generator) @ differences.T
        levels = torch.where(along > 0, differences.square().sum(dim=1) / (2 * along), torch.inf)
        levels_of_tokens.append(levels.min(dim=1).values)
    return float(torch.stack(levels_of_tokens).median())


@pytest.mark.parametrize("rank", a_few([64, 32, 16, 8, 4], {64, 8}))
def test_a_projection(rank):
    layers, basis = projected(rank), directions(rank)
    (row,) = rows_of(layers, ProfileRequest(recover=True, exact=rank in (32, 4)))
    probe = random_probe(layers)
    target = layers.state(probe.inputs(layers), 1)
    guess = recover(layers, 1, target, spread_of(target).unit, blank_start(layers, target.shape, 0), 300)
    # Only the projection can be known; the rest stays at its start.
    start = blank_start(layers, target.shape, 0)
    possible = probe.inputs(layers) @ basis @ basis.T + start - start @ basis @ basis.T
    best = accuracy(nearest_tokens(layers, possible)[..., 0], probe.ids).mean()
    assert abs(accuracy(nearest_tokens(layers, guess)[..., 0], probe.ids).mean() - best) < 0.12
    assert row.values["recovered"] < best + 0.05  # only a decoder that uses the truth can know more
    assert row.values["tolerance"] == pytest.approx(
        by_distances(layers, basis @ basis.T), abs=4 * row.errors["tolerance"]
    )
    if rank in (32, 4):
        assert row.values["verified"] == 1.0
    (narrow,) = rows_of(projected(rank, is_wide=False), ProfileRequest())
    # White noise spreads over dimensions that are never used; noise of the layer's own covariance does not.
    assert row.values["tolerance_own"] == pytest.approx(narrow.values["tolerance_own"], rel=1e-3)
    assert narrow.values["tolerance"] == pytest.approx(narrow.values["tolerance_own"], abs=4 * row.errors["tolerance"])
    assert row.values["tolerance"] > 1.3 * narrow.values["tolerance"]


def test_a_constant_output_keeps_nothing():
    # The first one depends on its input too little for any measure to show it.
    layers = Layers(vocabulary(), [lambda hidden: 1 + 1e-9 * hidden, lambda hidden: 0 * hidden, nn.Identity()])
    for row in rows_of(layers):
        assert row.is_constant
        assert (row.spread, row.values["tolerance"], row.values["tolerance_own"]) == (0.0, 0.0, 0.0)
        assert row.values["recovered"] <= 3 / 256
        assert row.values["readable"] <= 3 / 256
        assert not {"reach", "own", "start_share", "closer", "closer_ratio", "cka", "drift"} & set(row.values)


@pytest.mark.slow
def test_a_constant_output_has_a_drift_from_the_bases_and_no_likeness_to_it():
    base = Layers(vocabulary(), [nn.Identity(), nn.Identity(), nn.Identity()])
    constant = Layers(vocabulary(), [nn.Identity(), lambda hidden: 0 * hidden + 2, nn.Identity()])
    probe = random_probe(base)
    (_, of_base), (_, of_constant) = measure(base, probe, ProfileRequest()), measure(constant, probe, ProfileRequest())
    rows = rows_of(constant, ProfileRequest(), probe, base=of_base)
    assert (rows[0].values["drift"], rows[0].values["cka"]) == (0.0, 1.0)
    for row in rows[1:]:
        hidden = of_base[row.layer].double()
        spread = (hidden - hidden.mean(dim=(0, 1))).norm()
        assert row.is_constant
        assert row.values["drift"] == pytest.approx(float((2 - hidden).norm() / spread))
        assert row.errors["drift"] > 0
        assert "cka" not in row.values
    # Of a constant base there is no spread to measure a drift in.
    for row in rows_of(base, ProfileRequest(), probe, base=of_constant)[1:]:
        assert not {"drift", "cka"} & set(row.values)


def test_a_residual_block_without_weights_changes_nothing():
    layers = Layers(vocabulary(), [Attention(), Attention(size=0.0)])
    first, second = rows_of(layers)
    assert first.values == pytest.approx(second.values, abs=1e-6)
    assert first.errors == pytest.approx(second.errors, abs=1e-6)


@pytest.mark.slow
def test_frozen_layers_equal_the_bases_bit_for_bit():
    base = Layers(vocabulary(), [Attention(seed=seed) for seed in range(4)])
    tuned = Layers(vocabulary(), [*base.blocks[:2], Attention(seed=8), Attention(seed=9)])
    probe = random_probe(base)
    rows_of_base, of_base = measure(base, probe, ProfileRequest())
    rows = rows_of(tuned, ProfileRequest(), probe, base=of_base)
    for row, base_row in zip(rows[:2], rows_of_base[:2], strict=True):
        assert row.values == base_row.values | {"drift": 0.0, "cka": 1.0}
    assert rows[2].values["drift"] > 0.1
    assert rows[2].values["cka"] < 0.99
    copy = rows_of(base, ProfileRequest(), probe, base=of_base)
    assert all((row.values["drift"], row.values["cka"]) == (0.0, 1.0) for row in copy)


def test_a_rotated_output_gives_the_same_measures():
    # Different in all directions, so that a measure that ignores some of the numbers would be wrong.
    sizes = torch.linspace(2, 0.2, 128)
    plain = Layers(vocabulary(), [lambda hidden: Attention()(hidden)[0] * sizes])
    turn = directions(128)
    turned = Layers(vocabulary(), [lambda hidden: Attention()(hidden)[0] * sizes @ turn])
    probe = random_probe(plain)
    (plain_row,), states = measure(plain, probe, ProfileRequest(recover=True))
    (row,) = rows_of(turned, ProfileRequest(recover=True), probe, base=states)
    assert row.values["readable"] == pytest.approx(plain_row.values["readable"], abs=1e-3)
    assert row.values["tolerance"] == pytest.approx(
        plain_row.values["tolerance"], abs=2 * plain_row.errors["tolerance"]
    )
    assert row.values["cka"] == pytest.approx(1.0, abs=1e-5)
    assert row.values["recovered"] == pytest.approx(plain_row.values["recovered"], abs=0.05)


def test_the_criterion_on_the_identity():
    layers = identities(1)
    inputs = random_probe(layers).inputs(layers)
    size = SHIFT * embedding_sd(layers)
    shifted = criterion(layers, 1, inputs, inputs, 0)[1].mean().item()
    assert shifted == pytest.approx(size * math.sqrt(2 / math.pi) * inputs[0].numel(), rel=0.01)
    assert criterion(layers, 1, inputs, inputs, 0, 2 * size)[1].mean().item() == pytest.approx(2 * shifted, rel=1e-5)


def test_a_decoder_does_not_use_the_truth():
    """The targets are those of other sequences: a decoder that used the probe itself would still be right."""
    layers = Layers(vocabulary(), [Attention()])
    probe = random_probe(layers)
    ids = probe.ids.roll(1, dims=0)
    target = layers.state(layers.embed(ids), 1)
    readout = fit_readout(layers, [1], 16)
    guesses = {
        "recovered": recover(layers, 1, target, 1.0, blank_start(layers, target.shape, 0)),
        "readable": read_off(readout[1], target),
    }
    decoded = {name: nearest_tokens(layers, guess)[..., 0] for name, guess in guesses.items()}
    decoded["verified"] = exact_search(layers, 1, target[:2], 1.0, readout[1])[0]
    for name, words in decoded.items():
        assert accuracy(words, probe.ids[: len(words)]).mean() <= 3 / 256, name
        assert accuracy(words, ids[: len(words)]).mean() > 0.9, name


def test_a_profile_of_shuffled_answers_is_chance(monkeypatch):
    """The same for a whole profile: the model returns the outputs of other sequences."""
    layers = Layers(vocabulary(), [Attention()])
    probe = random_probe(layers)

    class Swapped(Layers):
        def states(self, inputs, chosen):
            states = super().states(inputs, chosen)
            is_probe = len(inputs) == 16 and not inputs.requires_grad and torch.equal(inputs, probe.inputs(self))
            return {layer: hidden.roll(1, dims=0) if is_probe else hidden for layer, hidden in states.items()}

    (row,) = rows_of(Swapped(vocabulary(), [Attention()]), ALL, probe)
    assert all(row.values[name] <= 3 / 256 for name in ("readable", "recovered", "verified"))


def test_a_running_sum_depends_on_earlier_tokens_only_with_the_expected_shares():
    layers = Layers(vocabulary(), [running_sum])
    inputs = random_probe(layers, 16, 3).inputs(layers).requires_grad_(True)
    for position in range(3):
        (gradient,) = torch.autograd.grad(layers.state(inputs, 1)[:, position].sum(), inputs)
        assert (gradient[:, position + 1 :] == 0).all()
    measures = receptive_fields(layers, inputs, [1])[1]
    expected = {"reach": (1 + 2 + 3) / 3, "own": (1 + 1 / 2 + 1 / 3) / 3, "start_share": 3 / 6}
    assert {name: value for name, (value, _) in measures.items()} == pytest.approx(expected, rel=0.05)


def test_the_unit_of_the_embeddings_does_not_matter():
    layers, larger = identities(1), Layers(vocabulary(scale=0.2), [nn.Identity()])
    (row,), (other,) = rows_of(layers), rows_of(larger)
    assert other.values == pytest.approx(row.values, rel=1e-4)
    assert other.spread == pytest.approx(10 * row.spread, rel=1e-4)


@pytest.mark.slow
def test_the_same_numbers_twice():
    rows = rows_of(after(Attention()))
    torch.manual_seed(1)  # the global generator is not used
    assert rows_of(after(Attention())) == rows
    (first,) = rows_of(after(Attention()), ProfileRequest(layers=(1,), recover=True, exact=True))
    assert first.values == rows[0].values


def test_causal_models_are_detected():
    assert Layers(vocabulary(), [Attention()]).is_causal(8)
    assert identities().is_causal(8)
    assert not Layers(vocabulary(), [lambda hidden: hidden + hidden.mean(dim=1, keepdim=True)]).is_causal(8)


def test_a_model_without_causality_is_repaired_to_a_certificate():
    layers = Layers(vocabulary(), [lambda hidden: hidden + 2 * hidden.mean(dim=1, keepdim=True)])
    assert rows_of(layers, ProfileRequest(exact=True))[0].values["verified"] == 1.0


def test_impossible_requests_are_refused():
    layers = identities(2)
    with pytest.raises(AtlasError, match=r"no layer 3.*1 to 2"):
        rows_of(layers, ProfileRequest(layers=(3,)))
    with pytest.raises(AtlasError, match="knows 4096"):
        rows_of(layers, ProfileRequest(), Probe("text", torch.tensor([[1, 2, 3, 4096]])))
    broken = Layers(vocabulary(), [nn.Identity(), lambda hidden: hidden / 0])
    with pytest.raises(Failed, match="layer 2"):
        rows_of(broken, ProfileRequest())


def test_no_special_token_is_drawn_or_guessed():
    layers = Layers(vocabulary(16), [nn.Identity()], special_ids=[0, 3])
    assert not {0, 3} & set(random_probe(layers, 64, 16).ids.flatten().tolist())
    assert nearest_tokens(layers, layers.tokens[3]).item() != 3


def test_rows_are_reported_one_by_one_without_those_already_done():
    reported: list[int] = []
    rows = rows_of(identities(4), ProfileRequest(), done=[2], keep=lambda row: reported.append(row.layer))
    assert reported == [row.layer for row in rows] == [1, 3, 4]


def test_many_layers_are_chosen_evenly():
    assert chosen_layers(12) == list(range(1, 13))
    assert len(chosen_layers(48)) == 12
    assert chosen_layers(48)[-1] == 48


def test_random_draws_depend_on_seed_and_measure_only():
    assert torch.equal(normal((3,), 0, "a"), normal((3,), 0, "a"))
    assert not torch.equal(normal((3,), 0, "a"), normal((3,), 0, "b"))


def test_the_guide_names_what_does_not_measure_depth():
    guide = " ".join((ROOT / "docs" / "guide" / "concepts.md").read_text(encoding="utf-8").split())
    assert "certificate, not a measure of depth" in guide
    assert "Results on small models may not carry over to large ones" in guide


def test_an_output_that_depends_on_no_input_keeps_nothing():
    """Constant, or constant by position: no gradient reaches the input, and no measure fails."""
    values_of_positions = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(3))
    layers = Layers(vocabulary(), [torch.zeros_like, lambda hidden: values_of_positions.expand(len(hidden), -1, -1)])
    constant, by_position = rows_of(layers, EVERYTHING)
    assert (constant.is_constant, by_position.is_constant) == (True, False)
    for row in (constant, by_position):
        assert (row.values["tolerance"], row.values["tolerance_own"]) == (0.0, 0.0)
        assert all(row.values[name] <= 4 / 256 for name in ("readable", "recovered", "recovered_seed", "verified"))
        assert not {"reach", "own", "start_share"} & set(row.values)


def test_blocks_that_work_in_place_change_no_result():
    def doubled(hidden):
        return hidden.mul_(2)

    rows = rows_of(Layers(vocabulary(), [doubled, nn.ReLU(inplace=True)]), RECOVERY)
    expected = rows_of(Layers(vocabulary(), [lambda hidden: 2 * hidden, nn.ReLU()]), RECOVERY)
    assert [row.values for row in rows] == [row.values for row in expected]


def test_modules_in_training_mode_are_measured_in_evaluation_mode():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)) for _ in range(2)]
    blocks[0][1].eval()
    trained = rows_of(Layers(vocabulary(), blocks), RECOVERY)
    assert [blocks[0].training, blocks[0][1].training, blocks[1][1].training] == [True, False, True]
    still = rows_of(Layers(vocabulary(), [block.eval() for block in blocks]), RECOVERY)
    assert [row.values for row in trained] == [row.values for row in still]


def test_double_precision_is_accepted():
    embedding = nn.Embedding.from_pretrained(vocabulary().weight.double())
    (row,) = rows_of(Layers(embedding, [nn.Identity()]), EVERYTHING)
    assert [row.values[name] for name in ("readable", "recovered", "verified")] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("factor", [1e-8, 1e8])
def test_the_unit_of_an_output_does_not_matter(factor):
    (plain,) = rows_of(identities(1), RECOVERY)
    (scaled,) = rows_of(Layers(vocabulary(), [lambda hidden: factor * hidden]), RECOVERY)
    assert scaled.values == pytest.approx(plain.values, rel=1e-3)


def test_a_toy_of_three_tokens_is_certified():
    """The module works for one number of positions only."""
    layers = Layers(vocabulary(512, 32, 1.0), [Mixing(3, 32)])
    (row,) = rows_of(layers, ProfileRequest(exact=True), random_probe(layers, 8, 3))
    assert row.values["verified"] == 1.0


def test_the_padding_row_of_an_embedding_is_never_drawn():
    layers = Layers(nn.Embedding(TOKENS, 8, padding_idx=5), [nn.Identity()])
    assert 5 not in layers.ordinary_ids.tolist()


def test_a_neuron_of_one_patch_changes_its_row_and_its_column_alone():
    """Patches as they are, 8 by 8 of them: patch 20 is the fifth of the third row."""
    layers = Layers(lambda pixels: patchify(pixels, 4), [nn.Identity()], patch=4, image_shape=(3, 32, 32))
    (feature,) = find_features(layers, 1, [0], patch=20, ascent=SHARP)
    assert feature.change_by_row == (0, 0, 1, 0, 0, 0, 0, 0)
    assert feature.change_by_column == (0, 0, 0, 0, 1, 0, 0, 0)


def test_public_names_stay_functions_after_their_modules_are_imported():
    """A module of the name of its function took its place from the second import on."""
    names = [getattr(indexer.profiles, name) for name in indexer.profiles.__all__ for _ in range(2)]
    assert not [value for value in names if isinstance(value, ModuleType)]


def test_an_index_beyond_a_table_is_found_before_it_is_used():
    """``gather`` itself raises a RuntimeError, and on a GPU nothing until later."""
    table = torch.arange(12.0).reshape(4, 3)
    inside, beyond, before = torch.tensor([3, -4]), torch.tensor([0, 4]), torch.tensor([-5])
    with CheckedIndices():
        assert table[inside].tolist() == table[[3, 0]].tolist()
        assert table[table[:, 0] > 4].shape == (2, 3)
        assert table[:, torch.tensor([2])].gather(1, torch.zeros(4, 1, dtype=torch.long)).shape == (4, 1)
        for wrong in (
            lambda: table[beyond],
            lambda: table[before],
            lambda: table[:, torch.tensor([3])],
            lambda: table.gather(-1, torch.tensor([[3]])),
            lambda: table.index_select(0, beyond),
            lambda: table.index_select(0, torch.tensor([-1])),
            lambda: nn.functional.embedding(beyond, table),
        ):
            with pytest.raises(IndexError, match=r"indices .* of [34] rows"):
                wrong()
