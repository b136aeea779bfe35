"""What `make test` tries of a long list of parameters, and `make slow` the rest of."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def a_few(values: Iterable[Any], chosen: int | Collection[Any]) -> list[Any]:
    """All of ``values``; but for the first ``chosen``, or for those chosen by value, the slow half has them."""
    every = list(values)
    quick = every[:chosen] if isinstance(chosen, int) else [one for one in every if one in chosen]
    assert quick, chosen
    if not isinstance(chosen, int):
        assert len(quick) == len(chosen), chosen
    return [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in every]
