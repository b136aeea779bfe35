"""Questions about a base whose layers are not alike, from a Hub to the answers: LFM2, Qwen 3.5, Gemma 4."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from query.faces.cli import main
from tests.architecture.mixed import build, parts_of
from tests.tiny_hub import BASE, add_model, describe, served_shell

pytestmark = pytest.mark.slow

TARGETS = {
    "lfm2_moe": ["q_proj", "in_proj", "w1"],
    "qwen3_5_text": ["q_proj", "in_proj_qkv", "up_proj"],
    "gemma4_text": ["q_proj", "k_proj", "down_proj"],
}


def make_store(root: Path, name: str) -> dict[tuple[str, int, str], float]:
    """A base, six fine-tunes of two datasets and an adapter; ‖δW‖ of every matrix by (model, layer, family)."""
    base = build(name)
    base.save_pretrained(root / BASE)
    describe(root, BASE, tags=["transformers"])
    state = copy.deepcopy(base.state_dict())
    norms = {}
    for number, dataset in enumerate(("glue", "imdb")):
        for member, author in enumerate(("ann", "bob", "cyd")):
            base.load_state_dict(state)
            shared, own = np.random.default_rng(number), np.random.default_rng(100 + 10 * number + member)
            model = f"{author}/{dataset}-{member}"
            with torch.no_grad():
                for layer, family, matrix in parts_of(base, name):
                    rows, columns = matrix.reshape(-1, matrix.shape[-1]).shape
                    delta = own.normal(size=(rows, 3)) @ shared.normal(size=(3, columns)) / 100
                    matrix += torch.tensor(delta.reshape(matrix.shape), dtype=matrix.dtype)
                    norms[model, layer, family] = float(np.linalg.norm(delta))
            add_model(root, model, base, dataset=dataset, base=BASE)
    base.load_state_dict(state)
    settings = peft.LoraConfig(r=2, target_modules=TARGETS[name], init_lora_weights=False)
    settings.base_model_name_or_path = BASE
    adapter = peft.get_peft_model(base, settings)
    adapter.peft_config["default"].base_model_name_or_path = BASE
    adapter.save_pretrained(root / "eve/lora")
    facts = {"base_model": BASE, "datasets": ["imdb"]}
    describe(root, "eve/lora", tags=[f"base_model:adapter:{BASE}", "dataset:imdb"], card_data=facts)
    return norms


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", TARGETS)
def test_every_question_has_an_answer(name: str, tmp_path: Path) -> None:
    norms = make_store(tmp_path / "store", name)
    matrices = {(layer, family) for _, layer, family in norms}
    with served_shell(tmp_path / "store", tmp_path) as shell:
        read = ("--read", "full", "--spectra") if name == "qwen3_5_text" else ()
        built = shell("index", "build", "--base", BASE, *read)
        assert built.code == 0, built.err
        assert "7 of 7, 0 failed, 0 skipped" in built.err

        def said(*words: str) -> str:
            """In this process: what the commands print is asked for, not how a process starts."""
            with contextlib.chdir(tmp_path):
                ran = CliRunner().invoke(main, words)
            assert ran.exit_code == 0, (words, ran.stderr)
            return ran.stdout

        def ask(*words: str) -> Any:
            return json.loads(said(*words, "--json"))

        # Norms are those that were planted, by true layer numbers.
        layers = ask("layers", "bob/glue-1")
        found = {(one["layer"], one["family"]): one["norm"] for one in layers["deltas"]}
        assert found.keys() == matrices
        for (layer, family), norm in found.items():
            assert norm == pytest.approx(norms["bob/glue-1", layer, family], rel=1e-3)
        # The adapter changed what its factors say, and nothing else.
        stored = load_file(tmp_path / "store/eve/lora/adapter_model.safetensors")
        changed = {(one["layer"], one["family"]): one["norm"] for one in ask("layers", "eve/lora")["deltas"]}
        factors = {key.split(".lora_A.")[0] for key in stored if ".lora_A." in key}
        total = sum(
            float((4 * stored[f"{one}.lora_B.weight"] @ stored[f"{one}.lora_A.weight"]).norm() ** 2) for one in factors
        )
        assert sum(norm**2 for norm in changed.values()) == pytest.approx(total, rel=1e-3)
        # Similarities split over all families and layers; neighbours are of the same data.
        first = ask("similar", "ann/glue-0", "--explain", "-k", "3")[0]
        assert first["model"] in ("bob/glue-1", "cyd/glue-2")
        assert set(first["because"]["families"]) == {family for _, family in matrices}
        for kind in ("families", "layers"):
            assert sum(first["because"][kind].values()) == pytest.approx(first["similarity"], abs=1e-3)
        pair = ask("compare", "ann/glue-0", "ann/imdb-0")
        assert {one["name"] for one in pair["families"]} == {family for _, family in matrices}
        # A family that some layers lack has no rank there.
        ranks = ask("rank")["families"]
        for family, one in ranks.items():
            there = {layer for layer, named in matrices if named == family}
            known = {layer for layer, rank in enumerate(one["ranks"]) if rank is not None}
            assert known == there
        every = {
            # Its singular values are there: the page has all sections, and so asks the questions of the other.
            "qwen3_5_text": (("report", "--out", "page.html"), ("layers", "ann/glue-0", "--out", "l.png")),
            "lfm2_moe": (
                ("show", "eve/lora"), ("purity",), ("clusters",), ("trace", "ann/glue-0"), ("map", "--out", "map.html"),
                ("rank", "--out", "r.svg"),
            ),
            "gemma4_text": (),  # two that differ have every question
        }  # fmt: skip
        for words in every[name]:
            assert said(*words)
        if every[name]:
            lineage = shell("query", "lineage", "ann/glue-0")  # which reads from the Hub
            assert lineage.code == 0, lineage.err
        if read:
            whole = set(ask("rank", "--whole")["families"])
            assert {"query_key_value", "query_output_gate", "key", "value"} <= whole
        for words in (("verify",), ("rebuild",)):
            ran = shell("index", *words)
            assert ran.code == 0, ran.err
        assert {(one["layer"], one["family"]) for one in ask("layers", "bob/glue-1")["deltas"]} == matrices
