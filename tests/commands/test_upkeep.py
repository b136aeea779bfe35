"""`index status` and `index verify`: as one object, and as rows where rows are asked for."""

from __future__ import annotations

import csv
import io
import json
import shutil

from click.testing import CliRunner

from indexer.cli import main


def ran(*words: str):
    return CliRunner().invoke(main, list(words))


def test_status_has_a_row_for_each_base(made):
    whole = json.loads(ran("status", "--atlas", str(made), "--json").stdout)
    (row,) = csv.DictReader(io.StringIO(ran("status", "--atlas", str(made), "--format", "csv").stdout))
    assert whole["bases"] == [json.loads(ran("status", "--atlas", str(made), "--format", "jsonl").stdout)]
    assert (row["base"], int(row["indexed"])) == (whole["bases"][0]["base"], whole["bases"][0]["indexed"])


def test_verify_has_a_row_for_each_disagreement(made, tmp_path):
    assert ran("verify", "--atlas", str(made), "--format", "csv").stdout == "kind,what,problem\n"
    assert ran("verify", "--atlas", str(made), "--format", "jsonl").stdout == ""
    assert ran("verify", "--atlas", str(made)).stdout.split() == ["ok", "yes", "disagreements", "none"]
    atlas = tmp_path / "atlas"
    shutil.copytree(made, atlas)
    for file in atlas.glob("*.faiss"):
        file.write_bytes(file.read_bytes()[:-1])
    result = ran("verify", "--atlas", str(atlas), "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert result.exit_code == 1
    assert rows == json.loads(ran("verify", "--atlas", str(atlas), "--json").stdout)["disagreements"]
    assert {row["what"] for row in rows} >= {file.name for file in atlas.glob("*.faiss")}
