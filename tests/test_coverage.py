"""Kinds of uploads from a Hub to an atlas: those that are indexed have the planted δW, the others a reason."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from studies.coverage.__main__ import DIRECTIONS, Outcome, directions_of, outcomes
from studies.coverage.kinds import KINDS
from tests.conftest import run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # two dozen builds

INDEXED = (
    "full, a known type: qwen2_5_vl", "names that lacked a line: smolvlm", "CLIP, both towers", "Swin, in stages",
    "robot policies: smolvla", "fp8, on a base in float", "fp8, on a base in fp8", "MLX, 8 bits", "weights in step-N",
    "weights two folders down", "irregular layers: qwen3_5_text", "irregular layers: gemma4_text",
    "mixture of experts: qwen3_moe", "LoRA with target_parameters", "PiSSA", "LoRA of FLUX by kohya's scripts",
    "TrOCR and other pairs of encoder and decoder", "full, on a fine-tune of the base",
    "PEFT LoRA on a 4-bit copy of the base", "full, a base id spelt owner--name",
)  # fmt: skip
REFUSED = {
    "bitsandbytes, 4 bits": ("conversion", "bitsandbytes"),
    "MLX, 4 bits": ("conversion", "4 bits"),
    "GPTQ": ("conversion", "GPTQ, 4 bits"),
    "AWQ": ("conversion", "AWQ"),
    "other methods in few bits": ("quantized", "hqq"),
    "ctranslate2 only": ("unreadable_format", "CTranslate2"),
    "GGUF only": ("conversion", "GGUF"),
    "ONNX only": ("conversion", "ONNX"),
}

ROBOT = "robot policies: act, which has no base"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    chosen = [kind for kind in KINDS if kind.name in (*INDEXED, *REFUSED, ROBOT)]
    assert len(chosen) == len(INDEXED) + len(REFUSED) + 1

    def run(*words: str, **environment: str) -> None:
        ran = run_python("-m", *words, env=environment)
        assert ran.code == 0, ran.err

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scripts.child.run_shown", run)  # its process is a fork, which has loaded the libraries
        return {each.kind: each for each in outcomes(chosen, tmp_path_factory.mktemp("kinds"))}


@pytest.mark.parametrize("name", INDEXED)
def test_a_kind_is_indexed_with_its_delta(found: dict[str, Outcome], name: str) -> None:
    assert found[name].is_right, found[name]


@pytest.mark.parametrize("name", REFUSED)
def test_a_kind_is_refused_in_words(found: dict[str, Outcome], name: str) -> None:
    reason, word = REFUSED[name]
    assert (found[name].status, found[name].reason) == ("skipped", reason)
    assert word in found[name].detail


def test_a_base_that_cannot_be_one_says_why(found: dict[str, Outcome]) -> None:
    assert "trained from scratch" in found[ROBOT].detail
    assert found[ROBOT].status == "base refused"


def test_the_sample_adds_up() -> None:
    assert sum(kind.sample for kind in KINDS) == 72
    assert sum(kind.sample for kind in KINDS if kind.is_trained) == 54
    assert sum(kind.sample for kind in KINDS if kind.before.startswith("indexed")) == 27


def test_a_change_in_other_directions_is_not_right() -> None:
    """Of the same norm, and beside it one that is right."""
    left, right, other = (torch.linalg.qr(torch.randn(size, 2, dtype=torch.double))[0] for size in (6, 12, 12))
    change, wrong = 3.0 * left @ right.T, 3.0 * left @ other.T

    def record(*changes: torch.Tensor) -> Any:
        vectors = [torch.linalg.svd(one, full_matrices=False).Vh[:2].T.numpy() for one in changes]
        return SimpleNamespace(deltas=[SimpleNamespace(norm=3.0, v=one) for one in vectors])

    assert directions_of(record(change, change), [change]) > 0.999
    assert directions_of(record(change, wrong), [change]) < DIRECTIONS
    assert directions_of(record(change), [torch.randn(6, 10)]) == 0.0
    outcome = Outcome("kind", "indexed", "", "", 3.0, 3.0, directions=1.0)
    assert outcome.is_right
    assert not replace(outcome, directions=0.9).is_right
    assert not replace(outcome, norm=3.1).is_right
