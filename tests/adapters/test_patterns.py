"""PEFT's patterns, matched as PEFT does and within a time."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.checkpoints.name_pattern import NamePatterns
from indexer.errors import Skipped
from indexer.untrusted import shown
from tests.adapters.written import read, write_adapter


def meant(patterns: dict[str, int], name: str) -> int | None:
    """What PEFT itself takes for this module."""
    from peft.utils.other import get_pattern_key  # seconds, which no other test need wait for

    return patterns.get(get_pattern_key(patterns.keys(), name))


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
        [r"layers\.\d{1,2}\.self_attn\.q_proj"],
        [r"layers\.[0-9]{2,}\..*", r".*\.\d{1}\..*"],
        ["(?!.*down)layers.*", ".*"],
        [r".*(?<!mlp)\.\w+_proj"],
        [r"(?=.*attn)(?:\w+\.)*[qk]_proj"],
        [r"(?P<layer>layers\.0\.).*", "(?i:Q)_proj"],
        [r"(?:\w+\.){1,3}\d+?\.[^.]+\.q_proj"],
        ["a)(b", "(?:q|k)_proj{1}"],
    ],
)
def test_patterns_match_as_in_peft(keys: list[str]) -> None:
    patterns = {key: number for number, key in enumerate(keys)}
    ours = NamePatterns(patterns, "rank_pattern")
    for name in NAMES:
        assert ours.find(name) == meant(patterns, name), name


@given(
    st.lists(st.text("ab01.*()[]|^$\\d+?_{,}=!<:", max_size=8), max_size=3),
    st.text("ab01._", min_size=1, max_size=12),
)
@settings(max_examples=500, deadline=None)
def test_any_pattern_matches_as_in_peft_or_is_refused(keys: list[str], name: str) -> None:
    patterns = {key: number for number, key in enumerate(keys)}
    reason = ""
    try:
        rank = NamePatterns(patterns, "rank_pattern").find(name)
    except Skipped as skip:
        reason = skip.reason
    if reason:
        assert reason in ("adapter_unsupported", "malformed")
        return
    try:
        expected = meant(patterns, name)
    except re.error:
        return  # PEFT itself cannot read such an adapter
    assert rank == expected


def test_matching_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    import indexer.checkpoints.name_pattern as room

    monkeypatch.setattr(room, "_SECONDS", 0.2)
    slow = NamePatterns({r"(a|a)*(a|a)*\d": 4}, "rank_pattern")
    with pytest.raises(Skipped) as skip:
        slow.find("a" * 400)
    assert skip.value.reason == "adapter_unsupported"
    slow = NamePatterns({r"(?=(a|a)*(a|a)*\d)a*": 4}, "rank_pattern")
    with pytest.raises(Skipped, match=r"a\|a.*takes too long"):
        slow.find("a" * 400)
    # Many that are quick enough one by one.
    slower = NamePatterns({r"a*a*a*a*a*a*a*a*[01]": 4}, "rank_pattern")
    with pytest.raises(Skipped) as skip:
        list(map(slower.find, ["a" * 400] * 1000))
    assert skip.value.reason == "adapter_unsupported"


@pytest.mark.parametrize(
    "key",
    ["a{9999}", "(a{99}){99}", "((a{30}){30}){30}", "(?:" * 40 + "a" + "){2}" * 20, r"(a)\2", "a{99999}", "((" * 50],
)
def test_what_would_be_large_once_written_out_is_refused_by_name(key: str) -> None:
    started = time.process_time()
    with pytest.raises(Skipped) as skip:
        NamePatterns({key: 4}, "alpha_pattern")
    assert skip.value.reason == "adapter_unsupported"
    assert "alpha_pattern" in skip.value.detail
    assert shown(key) in skip.value.detail
    assert time.process_time() - started < 1


@pytest.mark.slow
@given(
    st.lists(st.text("ab.-_", min_size=1, max_size=6), max_size=6, unique=True),
    st.text("ab.-_", min_size=1, max_size=12),
)
@settings(max_examples=1000, deadline=None)
def test_plain_keys_match_as_in_peft_dots_included(keys: list[str], name: str) -> None:
    """In PEFT a dot of a key stands for any character; the first key that matches wins."""
    patterns = {key: number for number, key in enumerate(keys)}
    assert NamePatterns(patterns, "rank_pattern").find(name) == meant(patterns, name)


@pytest.mark.slow
@given(st.lists(st.sampled_from(["a", "b.a", "[ab]", "a|b", "b", "a.b", ".", "a.a", r"b\.a", "(a|b)"]), unique=True))
@settings(max_examples=300, deadline=None)
def test_of_plain_keys_and_expressions_the_first_wins(keys: list[str]) -> None:
    patterns = {key: number for number, key in enumerate(keys)}
    ours = NamePatterns(patterns, "rank_pattern")
    for name in ("a", "b", "b.a", "a.b.a", "bxa", "b.xa", "a.a", "c.a.b"):
        assert ours.find(name) == meant(patterns, name), name


@pytest.mark.slow
@pytest.mark.parametrize(("key", "numbers"), [
    (lambda number: f"layers.{number}.q", range(90_000)),
    (lambda number: "." * number + "q", range(1, 900)),
    (lambda number: f"{'ab.' * (number % 300)}q{number}", range(90_000)),
])  # fmt: skip
def test_a_module_is_looked_up_however_many_keys_there_are(key: Callable[[int], str], numbers: range) -> None:
    """Counted, not timed: each module against each key would be 18 million steps."""
    patterns = NamePatterns({key(number): 4 for number in numbers}, "rank_pattern")
    names = [f"model.layers.{number}.q" for number in range(200)]
    for name in names:
        patterns.find(name)
    assert patterns.lookups <= 10 * len(names)


@pytest.mark.slow
def test_names_and_keys_without_end_are_refused_or_cheap() -> None:
    patterns = NamePatterns({"q": 4, "a.q": 5}, "rank_pattern")
    assert patterns.find("a." * 1_000_000 + "q") == 4
    assert patterns.lookups <= 2
    for keys in ({"a" * 1_001: 4}, {f"k{number}": 4 for number in range(100_001)}):
        with pytest.raises(Skipped, match="too much for untrusted patterns"):
            NamePatterns(keys, "rank_pattern")
    many = NamePatterns({"." * number + "q": 4 for number in range(1, 999)}, "rank_pattern")
    with pytest.raises(Skipped, match="comparisons"):
        list(map(many.find, ("." * 998 + f"{number}q" for number in range(10_000))))
    with pytest.raises(Skipped, match="line"):
        patterns.find("q\n")


def test_an_adapters_pairs_are_worked_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from indexer.checkpoints import adapter
    from indexer.checkpoints.checkpoint import open_checkpoint
    from indexer.sources.registry import ModelRef

    folder = write_adapter(tmp_path, rank_pattern={"q": 4})
    checkpoint = open_checkpoint(ModelRef(str(folder), folder=folder), relation="adapter")
    lookups: list[str] = []
    find = NamePatterns.find
    monkeypatch.setattr(NamePatterns, "find", lambda patterns, name: (lookups.append(name), find(patterns, name))[1])
    assert list(adapter.adapter_plan(checkpoint).modules) == ["h.0.q"]
    assert len(adapter.adapter_plan(checkpoint).tensors) == 2
    assert len(list(adapter.read_modules(checkpoint))) == 1
    assert lookups == ["h.0.q"] * 2  # its rank and its alpha


def test_scale_is_the_papers(tmp_path: Path) -> None:
    module = read(write_adapter(tmp_path, use_rslora=True, lora_alpha=3))["h.0.q"]
    assert math.isclose(module.scale, 3 / math.sqrt(4))
