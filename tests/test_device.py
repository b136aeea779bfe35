"""The same results on a GPU as on the processor. Skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from indexer.deltas.svd import lora_svd, sample_svd, spectrum, truncated_svd
from tests.tiny_hub import BASE, served_shell

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]


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
    rows = matrix[:16]
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
