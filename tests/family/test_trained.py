"""What only a trained family can show."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from scripts.family.plan import load_plan
from tests.conftest import family_of, start_python
from tests.family.folders import BASE, block_matrices, described, models_of, weights
from tests.patience import PATIENCE, wait_for


@pytest.mark.slow
def test_everything_learnt(family):
    measured = json.loads((family / "family.json").read_text())["measured"]
    for model, result in measured.items():
        assert result["train_loss_last"] < 0.97 * result["train_loss_first"], model
        if "eval_accuracy" in result:
            assert result["eval_accuracy"] > result["eval_majority"] + 0.05, model


@pytest.mark.slow
def test_models_of_the_same_data_lie_together(family):
    """The input representation by brute force: cosines of sum sigma_i v_i v_i^T, averaged over matrices."""
    expected = json.loads((family / "expected.json").read_text())
    base = block_matrices(weights(family, BASE))
    vectors, labels = [], []
    for model, entry in expected.items():
        datasets = [name for name in described(family, model)["card_data"].get("datasets", []) if known(name)]
        if (
            entry["outcome"] != "indexed"
            or entry["flag"]
            or not datasets
            or (family / model / "adapter_config.json").exists()
        ):
            continue
        tuned = weights(family, model)
        forms = []
        for name in sorted(base):
            _, s, vt = torch.linalg.svd(tuned[name] - base[name], full_matrices=False)
            form = (vt[:8].T * s[:8]) @ vt[:8]
            forms.append((form / form.norm().clamp_min(1e-12)).flatten())
        vectors.append(torch.cat(forms))
        labels.append(datasets[0])
    table = torch.nn.functional.normalize(torch.stack(vectors))
    similarity = (table @ table.T).fill_diagonal_(-1)
    shares, chances = [], []
    for row, label in zip(similarity, labels, strict=True):
        count = labels.count(label) - 1
        shares.append(sum(labels[other] == label for other in row.topk(count).indices) / count)
        chances.append(count / (len(labels) - 1))
    assert sum(shares) / len(shares) > 0.7 > 2 * sum(chances) / len(chances)


def known(name: object) -> bool:
    """Whether an entry of a card's list, which can be anything, is one of the family's data sets."""
    return isinstance(name, str) and name in load_plan("full").datasets


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", ["t5", *(pytest.param(name, marks=pytest.mark.study) for name in ("bert", "gpt2"))]
)
def test_other_architectures_are_only_data(tmp_path, architecture):
    root = family_of(tmp_path / architecture, "mini", architecture)
    assert json.loads((root / "family.json").read_text())["base"] == f"atlas-demo/tiny-{architecture}"
    assert len(models_of(root)) == len(load_plan("mini", architecture).repositories) + 1


@pytest.mark.slow
def test_ctrl_c_stops_it(mini_family, tmp_path):
    """Once it has made a repository: the base is there, its fine-tunes are to be trained again.

    That an interrupted family is finished by the same command: tests/family/test_folder.py.
    """
    root = Path(shutil.copytree(mini_family, tmp_path / "out"))
    (root / "family.json").rename(root / "family.started.json")
    for model in models_of(root):
        if model != BASE:
            (root / f"{model}.repo.json").unlink()
    words = ("-m", "scripts.family", "--out", root, "--size", "mini")
    running = start_python(*words, stderr=subprocess.PIPE)
    wait_for(lambda: len(list(root.glob("*/*.repo.json"))) > 1)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert "Traceback" not in said
    assert not (root / "family.json").exists()
