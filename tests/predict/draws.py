"""Worlds that models are drawn from, by how well their vectors distinguish datasets."""

from __future__ import annotations

from tests.labelled_worlds import World

WORLDS = {
    "clear": World.of(noise=0.6),
    "blurred": World.of(noise=1.0),
    "rarely new": World.of(noise=1.0, novel=0.03),
}
