"""``python -m studies.identify`` plants changes that are recognised, and unrelated models that are not."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from indexer.atlas import AtlasFolder
from indexer.deltas.base import BaseMatrices
from indexer.deltas.identification.identify import identify, known_bases, probability_of
from indexer.deltas.stored_base import stored_bases
from indexer.sources.registry import ModelRef
from studies import identify as study
from tests.atlas_builder import BASE
from tests.identify.conftest import GPT2


@pytest.mark.slow
@pytest.mark.parametrize("base", [BASE, GPT2])
def test_every_planted_change_is_recognised(atlas, tmp_path, base):
    (stored,) = stored_bases(AtlasFolder(atlas), base)
    matrices = BaseMatrices(stored.path)
    weights = study.weights_of(matrices)
    bases = known_bases(AtlasFolder(atlas))
    for number, (kind, change) in enumerate(study.KINDS.items()):
        rng = np.random.default_rng(1000 + number)  # not the numbers of another base
        study.save(change(weights, rng), matrices, tmp_path / str(number))
        identification = identify(ModelRef("x", folder=tmp_path / str(number)), bases)
        assert identification.base == base, kind
        is_moved = kind in ("rescaled", "rotated", "layers repeated", "every second layer") or "permuted" in kind
        assert identification.candidates[0].relation == ("rearranged" if is_moved else "fine-tune"), kind
        study.save(change(study.with_habits(weights, 5), rng), matrices, tmp_path / f"other-{number}")
        other = study.strength(tmp_path / f"other-{number}", matrices)
        assert probability_of(other["strength"]) < 0.5, kind


@pytest.mark.slow
def test_the_study_writes_its_table(atlas, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- identify -->\n<!-- /identify -->\nafter\n")
    monkeypatch.setattr(study, "KINDS", {name: study.KINDS[name] for name in ("fine-tuned", "rotated")})
    monkeypatch.setattr(sys, "argv", ["identify", str(atlas), "--seeds", "1", "--page", str(page)])
    study.main()
    assert "AUROC 1.0000" in capsys.readouterr().out
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| rotated | 1.000" in text
