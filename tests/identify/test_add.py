"""Many models are added at once, each to the base that its files and weights tell, with labels of one's own."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from indexer import add
from indexer.errors import AtlasError, BadArgument
from indexer.sources.labels import ModelLabels, labels_of_row, read_labels
from query import Atlas
from tests import checkpoints
from tests.atlas_builder import BASE
from tests.identify.conftest import GPT2, KIND, OTHER_KIND, TWIN, tuned
from tests.identify.test_identify import answers, lora


@pytest.fixture
def empty(atlas, tmp_path, monkeypatch):
    """An atlas that holds bases and nothing else, whose Hub is not asked."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    shutil.copytree(atlas / "bases", tmp_path / "atlas" / "bases")
    return tmp_path / "atlas"


@pytest.fixture
def runs(weights, tmp_path):
    """A folder of models of three bases."""
    root = tmp_path / "runs"
    for number in range(2):
        checkpoints.save(root / f"own-{number}" / "checkpoint-5", KIND, tuned(KIND, weights[BASE], seed=number))
    checkpoints.save(root / "gpt" / "final", OTHER_KIND, tuned(OTHER_KIND, weights[GPT2]))
    lora(root / "adapter" / "final", TWIN)
    checkpoints.save(root / "strange" / "final", KIND, KIND.random(9))
    return root


def models(atlas):
    with Atlas(atlas) as opened:
        rows = opened.rows("SELECT model, base, author, licence, datasets FROM models ORDER BY model, base")
    return {row.pop("model"): row for row in rows}


@pytest.mark.slow
def test_a_mixed_tree_sorts_itself_by_base(empty, runs, tmp_path, run):
    code, out, err = run(
        "index", "add", f"{runs}/*/checkpoint-5", *sorted(runs.glob("*/final")), tmp_path / "nothing", "--author", "me",
        "--dataset", "own/data", "--licence", "mit", "--atlas", empty, "--json",
    )  # fmt: skip
    reports = {report["base"]: report for report in json.loads(out)}
    assert {base: report["indexed"] for base, report in reports.items()} == {BASE: 2, GPT2: 1, TWIN: 1, "": 0}
    assert reports[""]["failed"] == 2
    assert code == 1
    assert "2 of 6 models were not indexed" in err
    rows_by_model = models(empty)
    assert {name: row["base"] for name, row in rows_by_model.items()} == {
        "local:own-0-checkpoint-5": BASE, "local:own-1-checkpoint-5": BASE, "local:gpt-final": GPT2,
        "local:adapter-final": TWIN,
    }  # fmt: skip
    assert all(
        (row["author"], row["licence"], row["datasets"]) == ("me", "mit", ["own/data"])
        for row in rows_by_model.values()
    )


def test_labels_are_kept_when_a_folder_is_added_again(empty, runs, tmp_path):
    table = tmp_path / "labels.tsv"
    table.write_text("path\tauthor\tdatasets\nown-0/checkpoint-5\tann\tone;two\n")
    folder = runs / "own-0" / "checkpoint-5"
    (tmp_path / "runs.tsv").write_text(f"model\tauthor\tdataset\n{folder}\tann\tone;two\n")
    add(folder, atlas=empty, labels=tmp_path / "runs.tsv")
    add(folder, BASE, empty, licence="mit")
    events = []
    add(folder, BASE, empty, dataset=["one;news"], progress=lambda event: events.append(event.message))
    assert sum("'news' names no data set" in str(message) for message in events) == 1
    add(folder, BASE, empty, dataset=["one", "two"])
    (row,) = models(empty).values()
    assert (row["author"], row["licence"], row["datasets"]) == ("ann", "mit", ["one", "two"])


def test_one_model_whose_base_is_not_known_is_an_error(empty, runs):
    with pytest.raises(AtlasError, match="is none of those known here: its rows are most like") as caught:
        add(runs / "strange" / "final", atlas=empty)
    assert str(runs) not in caught.value.message
    with pytest.raises(AtlasError, match=r"cannot be told; it may be org/base \(50%\), org/twin \(50%\)"):
        add(lora(runs / "shapes", "lost"), atlas=empty)
    with pytest.raises(AtlasError, match="Nothing matches"):
        add(f"{runs}/no*such", atlas=empty)
    with pytest.raises(BadArgument, match="`name` is for one model"):
        add([runs / "own-0", runs / "own-1"], atlas=empty, name="me/both")


@pytest.mark.slow
def test_a_file_is_a_model_of_its_own(empty, weights, tmp_path):
    loose = tmp_path / "loras"
    loose.mkdir()
    for number in range(2):
        rng = np.random.default_rng(number)
        made = lora(tmp_path / f"made-{number}", TWIN)
        shutil.copy(made / "adapter_model.safetensors", loose / f"style {number} (v{rng.integers(9)}).safetensors")
    (loose / "notes.txt").write_text("nothing")
    reports = add([f"{loose}/*"], TWIN, empty)
    assert [report.indexed for report in reports] == [2]
    assert len(models(empty)) == 2
    assert str(tmp_path).encode() not in b"".join(path.read_bytes() for path in empty.rglob("*") if path.is_file())


def test_a_table_of_labels_is_checked(tmp_path):
    table = tmp_path / "labels.csv"
    models = [str(tmp_path / "a"), str(tmp_path / "b")]
    table.write_text("model,dataset,license\na,x;y,mit\nb,,apache-2.0\nc,z,\n")
    labels = read_labels(table, models)
    assert labels == {
        models[0]: ModelLabels(None, ("x", "y"), "mit"),
        models[1]: ModelLabels(None, (), "apache-2.0"),
    }
    table.write_text("name,dataset\na,x\n")
    with pytest.raises(BadArgument, match="not a line of names"):
        read_labels(table, models)
    table.write_text("model,dataset\nother,x\n")
    with pytest.raises(BadArgument, match="No line of"):
        read_labels(table, models)
    table.write_text(f"model,dataset\na,{'x' * 200}\n")
    with pytest.raises(BadArgument, match="Line 2"):
        read_labels(table, models)
    with pytest.raises(AtlasError, match="cannot be read"):
        read_labels(tmp_path / "none", models)


def test_labels_of_a_hostile_row_are_none():
    for kept in (None, [], {"author": ["x"]}, {"author": "\x1b[31m"}, {"author": "x" * 500}, {"datasets": [{}]}):
        assert labels_of_row({"labels": kept}) == ModelLabels()


def test_a_loose_lora_without_alpha_has_no_norm(empty, tmp_path):
    made = lora(tmp_path / "made", TWIN)
    shutil.copy(made / "adapter_model.safetensors", tmp_path / "style.safetensors")
    add([tmp_path / "style.safetensors", made], TWIN, empty)
    with Atlas(empty) as opened:
        rows = opened.rows(
            "SELECT model, records.delta_norm, records.relative_norm, passed_over FROM fine_tunes "
            "JOIN records USING (model_id) ORDER BY model"
        )
        assert [(row["model"], row["delta_norm"] is None) for row in rows] == [
            ("local:made", False), ("local:style", True),
        ]  # fmt: skip
        assert rows[1]["relative_norm"] is None
        assert "does not say its alpha" in rows[1]["passed_over"][0]
        # Its direction is known: the two are the same adapter at two strengths.
        (near,) = opened.similar("local:style").neighbours
        assert near.similarity == pytest.approx(1, abs=1e-4)


def test_a_full_model_in_one_file_needs_no_configuration(empty, weights, tmp_path):
    made = checkpoints.save(tmp_path / "made", KIND, tuned(KIND, weights[TWIN]))
    shutil.copy(made / "model.safetensors", tmp_path / "my tuned model.safetensors")
    blob = tmp_path / "blobs" / ("a" * 64)
    blob.parent.mkdir()
    shutil.move(made / "model.safetensors", blob)
    (made / "model.safetensors").symlink_to(blob)  # as in the Hub's cache
    (report,) = add([tmp_path / "my tuned model.safetensors", made / "model.safetensors"], atlas=empty)
    assert (report.base, report.indexed) == (TWIN, 2)
    with Atlas(empty) as opened:
        rows = opened.rows("SELECT model, relation, duplicate_of FROM models ORDER BY model_id")
    assert {row["model"]: row["relation"] for row in rows} == {
        "local:my-tuned-model": "finetune", "local:made": "finetune",
    }  # fmt: skip
    assert sum(row["duplicate_of"] is not None for row in rows) == 1


def test_an_adapter_of_a_listed_fine_tune_is_of_its_base(empty, weights, tmp_path):
    tuned_once = checkpoints.save(tmp_path / "once", KIND, tuned(KIND, weights[TWIN]))
    add(tuned_once, atlas=empty, name="ann/once")
    (candidate, *_) = answers(empty, lora(tmp_path / "on-top", "ann/once"))
    assert (candidate.base, candidate.relation) == (TWIN, "adapter")
    assert candidate.evidence[0] == "adapter_config.json names ann/once, which the atlas lists as made from it"
