"""Kinds of uploads from a Hub to an atlas: those that are indexed have the planted δW, the others a reason."""

from __future__ import annotations

import pytest

from scripts.coverage.__main__ import Outcome, outcomes
from scripts.coverage.kinds import KINDS

pytestmark = pytest.mark.slow

INDEXED = (
    "full, a known type: qwen2_5_vl", "names that lacked a line: smolvlm", "CLIP, both towers", "Swin, in stages",
    "robot policies: smolvla", "fp8, on a base in float", "fp8, on a base in fp8", "MLX, 8 bits", "weights in step-N",
    "weights two folders down",
)  # fmt: skip
REFUSED = {
    "bitsandbytes, 4 bits": ("quantized", "bitsandbytes"),
    "MLX, 4 bits": ("quantized", "4 bits"),
    "ctranslate2 only": ("unreadable_format", "CTranslate2"),
    "GGUF only": ("unreadable_format", "GGUF"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    chosen = [kind for kind in KINDS if kind.name in (*INDEXED, *REFUSED)]
    assert len(chosen) == len(INDEXED) + len(REFUSED)
    return {each.kind: each for each in outcomes(chosen, tmp_path_factory.mktemp("kinds"))}


@pytest.mark.parametrize("name", INDEXED)
def test_a_kind_is_indexed_with_its_delta(found: dict[str, Outcome], name: str) -> None:
    assert found[name].is_right, found[name]


@pytest.mark.parametrize("name", REFUSED)
def test_a_kind_is_refused_in_words(found: dict[str, Outcome], name: str) -> None:
    reason, word = REFUSED[name]
    assert (found[name].status, found[name].reason) == ("skipped", reason)
    assert word in found[name].detail


def test_the_sample_adds_up() -> None:
    assert sum(kind.sample for kind in KINDS) == 72
    assert sum(kind.sample for kind in KINDS if kind.is_trained) == 54
