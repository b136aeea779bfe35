"""Any module that a user may pass to `Layers`: in training, in place, constant, or in double precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from indexer.errors import AtlasError
from indexer.profiles.features import SHARP, find_features
from indexer.profiles.images import read_images
from indexer.profiles.layers import Layers, patchify
from indexer.profiles.measure import LayerRow, ProfileRequest, measure
from indexer.profiles.probes import random_probe
from tests.profiles.planted import TOKENS, WIDTH, Mixing, identities, vocabulary

ALL = ProfileRequest(recover=True, exact=True, recipe="seed", steps=3)
SHORT = ProfileRequest(recover=True)


def rows_of(layers: Layers, asked: ProfileRequest = ALL) -> tuple[LayerRow, ...]:
    return measure(layers, random_probe(layers), asked).rows


def test_an_output_that_hangs_on_no_input_keeps_nothing():
    """Constant, or a number for each position: no gradient reaches the input, and nothing is an error."""
    places = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(3))
    layers = Layers(vocabulary(), [torch.zeros_like, lambda hidden: places.expand(len(hidden), -1, -1)])
    constant, by_place = rows_of(layers)
    assert (constant.is_constant, by_place.is_constant) == (True, False)
    for row in (constant, by_place):
        assert (row.values["tolerance"], row.values["tolerance_own"]) == (0.0, 0.0)
        assert all(row.values[name] <= 4 / 256 for name in ("readable", "recovered", "recovered_seed", "verified"))
        assert not {"reach", "own", "start_share"} & set(row.values)


def test_blocks_that_work_in_place_spoil_nothing():
    def doubled(hidden):
        return hidden.mul_(2)

    found = rows_of(Layers(vocabulary(), [doubled, nn.ReLU(inplace=True)]), SHORT)
    expected = rows_of(Layers(vocabulary(), [lambda hidden: 2 * hidden, nn.ReLU()]), SHORT)
    assert [row.values for row in found] == [row.values for row in expected]


def test_modules_in_training_are_measured_as_they_are_used():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)) for _ in range(2)]
    blocks[0][1].eval()
    trained = rows_of(Layers(vocabulary(), blocks), SHORT)
    assert [blocks[0].training, blocks[0][1].training, blocks[1][1].training] == [True, False, True]
    still = rows_of(Layers(vocabulary(), [block.eval() for block in blocks]), SHORT)
    assert [row.values for row in trained] == [row.values for row in still]


def test_numbers_in_double_are_taken():
    embedding = nn.Embedding.from_pretrained(vocabulary().weight.double())
    (row,) = rows_of(Layers(embedding, [nn.Identity()]))
    assert [row.values[name] for name in ("readable", "recovered", "verified")] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("factor", [1e-8, 1e8])
def test_the_unit_of_an_output_does_not_matter(factor):
    (plain,) = rows_of(identities(1), SHORT)
    (scaled,) = rows_of(Layers(vocabulary(), [lambda hidden: factor * hidden]), SHORT)
    assert scaled.values == pytest.approx(plain.values, rel=1e-3)


def test_a_toy_of_three_tokens_is_certified():
    """A module for one number of positions only is asked with no other."""
    layers = Layers(vocabulary(512, 32, 1.0), [Mixing(3, 32)])
    (row,) = measure(layers, random_probe(layers, 8, 3), ProfileRequest(exact=True)).rows
    assert row.values["verified"] == 1.0


def test_the_padding_row_of_an_embedding_is_never_drawn():
    layers = Layers(nn.Embedding(TOKENS, 8, padding_idx=5), [nn.Identity()])
    assert 5 not in layers.ordinary_ids.tolist()


def test_a_neuron_of_one_patch_changes_its_row_and_its_column_alone():
    """Patches as they are, 8 by 8 of them: patch 20 is the fifth of the third row."""
    layers = Layers(lambda pixels: patchify(pixels, 4), [nn.Identity()], patch=4, image_shape=(3, 32, 32))
    (found,) = find_features(layers, 1, [0], patch=20, ascent=SHARP)
    assert found.change_by_row == (0, 0, 1, 0, 0, 0, 0, 0)
    assert found.change_by_column == (0, 0, 0, 0, 1, 0, 0, 0)


def test_an_image_of_one_colour_is_refused(tmp_path):
    from PIL import Image

    Image.new("RGB", (20, 20), (10, 200, 30)).save(tmp_path / "flat.png")
    with pytest.raises(AtlasError, match="one colour only"):
        read_images([tmp_path / "flat.png"], (3, 16, 16))
