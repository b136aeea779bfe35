"""The same results on a GPU as on the processor. Skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from indexer.deltas.svd import lora_svd, sample_svd, spectrum, truncated_svd
from tests.database import read_rows
from tests.device import on_a_gpu
from tests.tiny_hub import BASE, served_shell

pytestmark = [pytest.mark.slow, on_a_gpu]


def planted(rows: int, columns: int, rank: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows + columns)
    left, right = (torch.randn(size, rank, generator=generator) for size in (rows, columns))
    noise = torch.randn(rows, columns, generator=generator)
    return 1e-3 * ((left * torch.linspace(4, 1, rank)) @ right.T + 0.5 * noise)


@pytest.mark.parametrize("shape", [(48, 96), (512, 512), (1024, 4096), (4096, 1024)])
def test_singular_values_and_vectors(shape):
    matrix = planted(*shape)
    here, there = truncated_svd(matrix, 8, 0), truncated_svd(matrix.cuda(), 8, 0)
    exact = torch.linalg.svdvals(matrix.double())[:8]
    assert torch.allclose(there.s.cpu().double(), exact, rtol=0.01)
    assert torch.allclose(here.s, there.s.cpu(), rtol=1e-3)
    # Spaces rather than vectors, because neighbouring values may rotate.
    assert float(torch.linalg.svdvals(here.v.T @ there.v.cpu())[:4].min()) > 0.99
    assert torch.allclose(spectrum(matrix.cuda()).cpu()[:8].double(), exact, rtol=1e-3)
    rows = matrix[None, :16]
    assert torch.allclose(sample_svd(rows, 8)[0], sample_svd(rows.cuda(), 8)[0].cpu(), rtol=1e-4)
    a, b = torch.randn(4, shape[1]), torch.randn(shape[0], 4)
    assert torch.allclose(lora_svd(a, b, 0.5, 4).s, lora_svd(a.cuda(), b.cuda(), 0.5, 4).s.cpu(), rtol=1e-4)


@pytest.mark.parametrize("read", ["sample", "full"])
def test_a_build_gives_the_same_vectors(tiny_store, tmp_path, read):
    with served_shell(tiny_store(3), tmp_path) as shell:
        matrices = []
        for device in ("cpu", "cuda"):
            words = ("--atlas", device, "--device", device, "--read", read, "--json")
            spectra = ("--spectra",) if read == "full" else ()
            ran = shell("index", "build", "--base", BASE, *words, *spectra)
            assert (ran.code, ran.json["indexed"]) == (0, 9), ran.err
            written = shell("query", "export", "--atlas", device, "--base", BASE, "--out", f"{device}.npz")
            assert written.code == 0, written.err
            with np.load(tmp_path / f"{device}.npz", allow_pickle=False) as found:
                matrices.append(found["matrix"])
    here, there = matrices
    cosines = (here * there).sum(1) / np.linalg.norm(here, axis=1) / np.linalg.norm(there, axis=1)
    assert cosines.min() > 0.999


def test_profiles_say_the_same(tiny_store, tmp_path):
    """Whether a token is read may differ where two are equally likely; everything else agrees to three digits."""
    figures = ("tolerance", "tolerance_own", "reach", "own", "start_share", "cka", "drift", "readable", "recovered")
    statement = f"SELECT {', '.join(figures)} FROM depth_of_models ORDER BY subject, model, stack, layer"
    found = []
    with served_shell(tiny_store(2), tmp_path) as shell:
        for device in ("cpu", "cuda"):
            assert shell("index", "build", "--base", BASE, "--atlas", device).code == 0
            words = ("--base", BASE, "--with-untrained", "--recover", "--exact", "--device", device, "--atlas", device)
            ran = shell("index", "profile", *words, "--json")
            assert (ran.code, ran.json["indexed"]) == (0, 6), ran.err
            found.append(np.array(read_rows(tmp_path / device / "atlas.duckdb", statement), dtype=float))
    here, there = found
    assert here.shape == there.shape == (16, len(figures))
    assert np.array_equal(np.isnan(here), np.isnan(there))
    assert np.allclose(here[:, :-2], there[:, :-2], rtol=1e-3, atol=1e-5, equal_nan=True)
    assert np.allclose(here[:, -2:], there[:, -2:], atol=0.02, equal_nan=True)


def test_the_same_models_stand_out(built, family, tmp_path):
    """`query ask` runs the base on the GPU; each device has its own cache, so that both run it."""
    names = "LATIN SMALL LETTER {}, GREEK CAPITAL LETTER {}, CYRILLIC LETTER {}"
    letters = ["ALPHA", "BETA", "GAMMA", "DELTA WITH TONOS", "OMEGA", "SHORT I", "HARD SIGN", "YERU"]
    (tmp_path / "names.txt").write_text(
        "\n".join(names.format(one, other, one) for one in letters for other in letters[:4])
    )
    answers = []
    for device in ("cpu", "cuda"):
        words = ("query", "ask", str(tmp_path / "names.txt"), "--base", "tiny-roberta", "--device", device, "--json")
        ran = built(*words, HF_HOME=str(tmp_path / device))
        assert ran.code == 0, ran.err
        assert "through atlas-demo/tiny-roberta" in ran.err
        answers.append(ran.json)
    here, there = ({row["model"]: row["score"] for row in answer} for answer in answers)
    assert list(here)[:3] == list(there)[:3]
    assert [here[model] for model in here] == pytest.approx([there[model] for model in here], abs=0.01)
