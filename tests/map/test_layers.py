"""The picture of where a model changed: a number in each cell, and a scale from the data."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from query.questions.layers import Change, Layers, in_cell

FAMILIES = ("query", "value")


def layers(values):
    """A model whose relative norms are ``values`` (layers, families)."""
    deltas = tuple(
        Change("", layer, family, 2 * value, value, 0.1, None, 3 + layer, None)
        for (layer, row), (column, family) in itertools.product(enumerate(values), enumerate(FAMILIES))
        for value in [row[column]]
    )
    return Layers("ann/one", "org/base", 1.0, deltas)


def drawn(answer, of="relative_norm"):
    """The texts in the cells, and the ends of the colour scale."""
    figure = answer.figure(of=of)
    panel, _ = figure.axes
    (image,) = panel.images
    return [text.get_text() for text in panel.texts], (image.norm.vmin, image.norm.vmax), panel


def test_every_cell_has_its_number_and_the_scale_begins_at_the_smallest():
    texts, ends, panel = drawn(layers([(0.05, 0.071), (0.0, 0.062)]))
    assert texts == ["5", "7.1", "6.2"]  # in per cent; an untouched matrix is empty
    assert ends == pytest.approx((5.0, 7.1))
    assert "in %" in panel.get_figure()._suptitle.get_text()
    texts, ends, panel = drawn(layers([(0.05, 0.071), (0.01, 0.062)]), "rank_50")
    assert texts == ["3", "3", "4", "4"]
    assert ends == (3, 4)
    assert "in %" not in panel.get_figure()._suptitle.get_text()


def test_equal_numbers_and_none_can_be_drawn():
    assert drawn(layers([(0.05, 0.05)]))[:2] == (["5", "5"], (0, 10))
    assert drawn(layers([(0.0, 0.0)]))[0] == []


def test_a_number_can_be_read_on_its_colour():
    from matplotlib.colors import to_rgb

    _, _, panel = drawn(layers([(0.01 * layer, 0.011 * layer) for layer in range(1, 9)]))
    (image,) = panel.images
    for text in panel.texts:
        column, row = text.get_position()
        cell = np.array(image.cmap(image.norm(image.get_array()[row, column]))[:3])
        light = [
            float(
                np.where(shade <= 0.04045, shade / 12.92, ((shade + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
            )
            for shade in (cell, np.array(to_rgb(text.get_color())))
        ]
        assert (max(light) + 0.05) / (min(light) + 0.05) >= 3


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00123, "0.0012"), (0.5, "0.50"), (12.34, "12"), (7, "7"), (1234, "1234"), (3.2e-5, "3e-5"), (1.2e6, "1e6")],
)
def test_a_number_fits_into_its_cell(value, text):
    assert in_cell(value) == text
    assert re.fullmatch(r"[\d.e-]{1,7}", text)
