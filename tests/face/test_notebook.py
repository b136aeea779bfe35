"""The example notebook runs on an atlas, and what is committed is what its script says."""

from __future__ import annotations

import json
import re

import pytest

from scripts.notebook import CELLS, OUT, executed

pytest.importorskip("nbformat")


def test_the_committed_notebook_has_the_cells_of_its_script_and_their_outputs():
    kept = json.loads(OUT.read_text())
    sources = ["".join(cell["source"]) for cell in kept["cells"]]
    assert sources == [text.removeprefix(">>> ") for text in CELLS]
    code = [cell for cell in kept["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in code)
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    text = json.dumps(kept)
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)


@pytest.mark.slow
def test_the_notebook_runs(small_atlas):
    pytest.importorskip("ipykernel")
    made = executed(small_atlas)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code)
    assert "12 models of org/base" in json.dumps(made)
