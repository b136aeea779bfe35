"""PEFT's patterns, matched as PEFT does and within a time."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peft.utils.other import get_pattern_key

from indexer.errors import Skipped
from indexer.weights.name_pattern import NamePatterns
from tests.adapters.written import read, write_adapter

NAMES = [
    "model.layers.0.self_attn.q_proj",
    "model.layers.10.self_attn.q_proj",
    "model.layers.1.mlp.down_proj",
    "q_proj",
    "xq_proj",
]


@pytest.mark.parametrize(
    "keys",
    [
        ["q_proj"],
        ["layers.0.self_attn.q_proj", "q_proj"],
        ["model.layers.1.mlp.down_proj"],
        [r"layers\.[0-9]\.self_attn.*"],
        [r"layers.\d+.self_attn.q_proj"],
        [r"^model\..*q_proj$"],
        ["(q|down)_proj"],
        ["(?:self_attn|mlp)\\.(q_proj|down_proj)"],
        [".*proj"],
        ["proj"],
        ["_proj"],
        [""],
        ["."],
        [".*"],
        ["q_proj|down_proj"],
        [r"\w+_proj"],
        ["self_attn"],
        ["model", "layers.0", "nothing"],
    ],
)
def test_patterns_match_as_in_peft(keys: list[str]) -> None:
    patterns = {key: number for number, key in enumerate(keys)}
    ours = NamePatterns(patterns, "rank_pattern")
    for name in NAMES:
        assert ours.find(name) == patterns.get(get_pattern_key(patterns.keys(), name)), name


@given(
    st.lists(st.text("ab01.*()[]|^$\\d+?_", max_size=8), max_size=3),
    st.text("ab01._", min_size=1, max_size=12),
)
@settings(max_examples=500, deadline=None)
def test_any_pattern_matches_as_in_peft_or_is_refused(keys: list[str], name: str) -> None:
    patterns = {key: number for number, key in enumerate(keys)}
    reason = ""
    try:
        found = NamePatterns(patterns, "rank_pattern").find(name)
    except Skipped as skip:
        reason = skip.reason
    if reason:
        assert reason in ("adapter_unsupported", "malformed")
        return
    plain = [key for key in keys if re.fullmatch(r"[\w.\-]+", key)]
    if any("." in key for key in plain):
        return  # a dot in a plain name is a dot here, any character there
    try:
        expected = patterns.get(get_pattern_key(patterns.keys(), name))
    except re.error:
        return  # PEFT itself cannot read such an adapter
    assert found == expected


def test_matching_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    import indexer.weights.name_pattern as room

    monkeypatch.setattr(room, "_SECONDS", 0.2)
    slow = NamePatterns({r"(a|a)*(a|a)*\d": 4}, "rank_pattern")
    with pytest.raises(Skipped) as skip:
        slow.find("a" * 400)
    assert skip.value.reason == "adapter_unsupported"
    # Many that are quick enough one by one.
    slower = NamePatterns({r"a*a*a*a*a*a*a*a*[01]": 4}, "rank_pattern")
    with pytest.raises(Skipped) as skip:
        list(map(slower.find, ["a" * 400] * 1000))
    assert skip.value.reason == "adapter_unsupported"


def test_many_plain_patterns_are_quick() -> None:
    """EVA writes one key for every module."""
    patterns = NamePatterns({f"model.layers.{i}.self_attn.q_proj": i for i in range(1000)}, "rank_pattern")
    assert all(patterns.find(f"model.layers.{i}.self_attn.q_proj") == i for i in range(1000))


def test_scale_is_the_papers(tmp_path: Path) -> None:
    module = read(write_adapter(tmp_path, use_rslora=True, lora_alpha=3))["h.0.q"]
    assert math.isclose(module.scale, 3 / math.sqrt(4))
