"""The model types of transformers that docs/reference/architectures.md says are located: by the stored names, and built again."""

from __future__ import annotations

import json
import random
from functools import cache

import pytest
import transformers

from indexer.checkpoints.architectures.architecture import known_model_types
from scripts.model_types.__main__ import PAGE, STORED, judge, page
from scripts.model_types.sweep import describe, folded, in_own_process, unfolded
from tests.architecture.live_models import EVERY
from tests.architecture.mixed import MIXED, TOWERS

# How many were located when the page was last written; a change of a data file must not lose one.
LOCATED = 482
# Types of the Hub that are none of transformers' own.
ELSEWHERE = {
    "baichuan", "chatglm", "deepseek", "internlm", "internlm2", "internvl_chat", "llada", "llava_llama", "llava_mistral",
    "llava_qwen", "exaone", "jais", "mimo", "solar", "minicpm", "minicpmo", "minicpmv", "new", "phi3_v", "phi4mm", "pi0_fast", "pi05", "qwen", "smolvla",
    "stablelm_epoch",
}  # fmt: skip
# Types whose model needs another package to be built; their files are written by hand in test_trained_apart.
ELSEWHERE |= {"layoutlmv2"}


@cache
def entries():
    return json.loads(STORED.read_text(encoding="utf-8"))["model types"]


@cache
def verdicts():
    return {model_type: judge(model_type, entry) for model_type, entry in entries().items()}


def test_no_type_is_lost() -> None:
    assert len(entries()) > 800
    located = [model_type for model_type, verdict in verdicts().items() if verdict.is_located]
    assert len(located) >= LOCATED
    for model_type in located:
        assert verdicts()[model_type].found > 0


def test_every_type_with_a_data_file_is_located_or_built_elsewhere() -> None:
    planted = {name.split()[0] for name in (*EVERY, *MIXED, *TOWERS)} | ELSEWHERE
    for model_type in known_model_types():
        if model_type not in planted and not model_type[0].isupper():  # classes of diffusers begin with a capital
            assert verdicts()[model_type].is_located, verdicts()[model_type].reason


def test_the_page_says_what_the_data_files_do() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(entries(), stored_version())


def test_names_survive_their_short_form() -> None:
    for entry in entries().values():
        for key in ("matrices", "modules"):
            if key in entry:
                shapes = unfolded(entry[key])
                assert unfolded(folded(shapes)) == shapes


def stored_version() -> str:
    return str(json.loads(STORED.read_text(encoding="utf-8"))["transformers"])


def built_again(count: int, seed: int) -> None:
    if transformers.__version__ != stored_version():
        pytest.skip(f"the names were stored by transformers {stored_version()}")
    chosen = random.Random(seed).sample(sorted(name for name in entries() if "matrices" in entries()[name]), count)
    for model_type in chosen:
        entry = in_own_process(describe, model_type)
        for key in ("class", "matrices", "config"):
            assert entry.get(key) == entries()[model_type].get(key), (model_type, entry.get("reason"))


def test_a_few_types_are_built_again() -> None:
    built_again(2, seed=1)


@pytest.mark.slow
def test_more_types_are_built_again() -> None:
    built_again(10, seed=2)
