"""``python -m studies.kinds`` measures a family and writes its tables."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from studies.kinds import __main__ as study
from studies.kinds import study as rows
from studies.kinds import trainings
from studies.kinds.changes import PLANTED
from tests.tiny_hub import BASE


@pytest.mark.slow
def test_the_study_measures_a_family_and_writes_its_tables(hub, tmp_path, monkeypatch, capsys):
    words = {"[UNK]": 0} | {f"{letter}": number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz", 1)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(hub.store / BASE / "tokenizer.json"))
    (hub.store / "family.json").write_text(json.dumps({"base": BASE}))
    planted = {"outcome": "skipped", "flag": None}
    expected = {f"ann/{path.name}": planted for path in (hub.store / "ann").iterdir()}
    (hub.store / "expected.json").write_text(json.dumps(expected))
    chosen = ("LoRA merged", "layers added", "tokens reset")
    monkeypatch.setattr(rows, "PLANTED", {name: PLANTED[name] for name in chosen})
    monkeypatch.setattr(rows, "RECIPES", {name: trainings.RECIPES[name] for name in ("3 steps", "tokens added")})
    monkeypatch.setattr(rows, "LORAS", {"LoRA of rank 4": trainings.LORAS["LoRA of rank 4"]})
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- kinds -->\n<!-- /kinds -->\nafter\n")
    summary = tmp_path / "kinds.json"
    options = ["--each", "4", "--seeds", "1", "--rows", str(tmp_path / "rows"), "--json", str(summary)]
    study.main([str(hub.store), *options, "--page", str(page)])
    assert "0 of" in capsys.readouterr().out
    found = json.loads(summary.read_text())[BASE]
    assert found["ordinary"] >= 12
    assert found["kinds"]["layers moved"]["of_base"] == {"models": 2, "auroc": 1.0, "labelled": 1.0, "others": {}}
    assert found["kinds"]["adapter merged"]["of_base"]["auroc"] > 0.9
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| layers moved | 1.000 (100%); 1.000 (100%) |" in text
