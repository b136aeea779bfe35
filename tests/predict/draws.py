"""Worlds that models are drawn from, by how well their vectors tell data sets apart."""

from __future__ import annotations

from tests.planted_documents import World

WORLDS = {
    "clear": World.of(noise=0.6),
    "blurred": World.of(noise=1.0),
    "rarely new": World.of(noise=1.0, novel=0.03),
}
