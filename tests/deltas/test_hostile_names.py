"""Names of tensors and modules in the reasons of a refusal: their prefix is untrusted text."""

from __future__ import annotations

import pytest

from indexer.errors import Skipped
from tests.deltas import made


def test_a_prefix_that_controls_a_terminal_is_escaped(tmp_path):
    base = made.base_of(tmp_path / "base", made.weights())
    hostile = {f"\x1b[2J.{name}": tensor.clone() for name, tensor in made.weights().items()}
    next(iter(hostile.values())).fill_(float("nan"))
    with pytest.raises(Skipped) as refused:
        made.record_of(made.save(tmp_path / "tuned", hostile), base)
    assert refused.value.reason == "not_finite"
    assert refused.value.detail.isprintable()
