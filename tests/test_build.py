"""Builds over real HTTP: what is read, what is stored, and what a second run does."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess

import numpy as np
import pytest

from tests.conftest import Shell, start_python
from tests.database import read_rows
from tests.patience import PATIENCE, wait_for
from tests.tiny_hub import BASE, DATASETS, OLD_ID, served_shell

BLOCK_BYTES = 2 * (4 * 48 * 48 + 2 * 48 * 96) * 4  # of a model


@pytest.fixture
def shell(tiny_store, tmp_path):
    """A Hub, its store and an empty folder for every test."""
    with served_shell(tiny_store(4, tmp_path / "store")) as shell:
        yield shell


@pytest.fixture
def built(tiny_store, made_of_twelve, tmp_path):
    """The same, where `index build` has run."""
    shutil.copytree(made_of_twelve / "atlas", tmp_path / "atlas")
    with served_shell(tiny_store(4, tmp_path / "store")) as shell:
        yield shell


def build(shell, *more, base=BASE, code=0, **environment):
    ran = shell("index", "build", "--base", base, "--workers", "1", "--json", *more, **environment)
    assert ran.code == code, ran.err
    return ran.json if ran.out else ran


def rows(shell, statement):
    return read_rows(shell.folder / "atlas" / "atlas.duckdb", statement)


def counts(report):
    return {name: report[name] for name in ("discovered", "indexed", "unchanged", "skipped", "failed")}


def test_a_build_by_old_id_indexes_all_and_a_second_reads_no_weights(shell):
    report = build(shell, base=OLD_ID)
    assert report["base"] == BASE
    assert counts(report) == {"discovered": 12, "indexed": 12, "unchanged": 0, "skipped": 0, "failed": 0}
    assert report["bytes_read"] > 0
    for model in ("ann/glue-0", "dan/squad-3"):  # little more than the block matrices
        assert shell.hub.body_bytes(model, "model.safetensors") <= 1.02 * BLOCK_BYTES + 65536
    shell.hub.reset_log()
    ran = shell("index", "build", "--base", BASE, "--json", PYTHONPROFILEIMPORTTIME="1")
    assert ran.code == 0, ran.err
    assert counts(ran.json) == {"discovered": 12, "indexed": 0, "unchanged": 12, "skipped": 0, "failed": 0}
    assert " indexer.builds.build\n" in ran.err
    assert " torch\n" not in ran.err
    assert not [
        request for request in shell.hub.requests if "/resolve/" in request.path and "safetensors" in request.path
    ]


def test_records_hold_what_the_files_say(built):
    """σ, norms and vectors against an exact SVD of the difference of the files, read by safetensors itself."""
    from safetensors.numpy import load_file

    from indexer.records.record import read_record

    base = load_file(built.store / BASE / "model.safetensors")
    names = {
        "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
        "output": "attention.output.dense", "feedforward1": "intermediate.dense", "feedforward2": "output.dense",
    }  # fmt: skip
    for model, key in rows(built, "SELECT model, record_key FROM models"):
        record = read_record(built.folder / "atlas" / "records" / key[:2] / f"{key}.safetensors")
        tuned = load_file(built.store / model / "model.safetensors")
        assert len(record.deltas) == 12
        for delta in record.deltas:
            stem = f"encoder.layer.{delta.key.layer}.{names[delta.key.family]}.weight"
            exact = tuned[f"roberta.{stem}"].astype(np.float64) - base[stem]
            u, s, vt = np.linalg.svd(exact, full_matrices=False)
            assert delta.shape == exact.shape
            np.testing.assert_allclose(delta.s, s[:8], rtol=1e-2)
            assert delta.norm == pytest.approx(np.linalg.norm(exact), rel=1e-5)
            kept = (delta.u.astype(float) * delta.s) @ delta.v.astype(float).T
            best = (u[:, :8] * s[:8]) @ vt[:8]
            assert np.linalg.norm(kept - exact) < 1.02 * np.linalg.norm(best - exact) + 1e-3 * s[0]


def test_neighbours_and_purity_are_those_of_the_store(built):
    for model, neighbour in rows(built, "SELECT model, neighbour FROM similar_models WHERE rank <= 3"):
        assert model.split("/")[1].split("-")[0] == neighbour.split("/")[1].split("-")[0]
    ran = built("query", "purity", "--base", OLD_ID, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["purity"] == 1.0
    assert ran.json["chance"] == pytest.approx(3 / 11)
    assert ran.json["cross_author"]["purity"] == 1.0
    assert ran.json["p_value"] < 0.01
    assert {row["dataset"] for row in ran.json["by_dataset"]} == set(DATASETS)


@pytest.mark.slow
def test_a_limit_takes_the_most_downloaded_and_a_later_run_the_rest(shell):
    first = build(shell, "--limit", "5")
    assert counts(first)["discovered"] == counts(first)["indexed"] == 5
    assert {row[0] for row in rows(shell, "SELECT model FROM models")} == {
        "ann/squad-0", "bob/squad-1", "cyd/squad-2", "dan/squad-3", "dan/imdb-3"
    }  # fmt: skip
    rest = build(shell)
    assert counts(rest) == {"discovered": 12, "indexed": 7, "unchanged": 5, "skipped": 0, "failed": 0}


def test_changed_models_are_read_again_and_models_that_left_are_kept(built):
    before = dict(rows(built, "SELECT model, model_id FROM models"))
    shutil.copy(built.store / "bob/glue-1/model.safetensors", built.store / "ann/glue-0/model.safetensors")
    for name in ("cyd/imdb-2", "cyd/imdb-2.repo.json"):
        path = built.store / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    report = build(built)
    assert counts(report) == {"discovered": 11, "indexed": 1, "unchanged": 10, "skipped": 0, "failed": 0}
    assert rows(built, "SELECT model FROM models WHERE deleted_at_hub") == [("cyd/imdb-2",)]
    assert dict(rows(built, "SELECT model, model_id FROM models")) == before
    duplicates = rows(built, "SELECT model, first_upload FROM duplicates")
    assert duplicates == [("bob/glue-1", "ann/glue-0")]


@pytest.mark.slow
def test_an_edited_card_of_the_base_does_not_cost_the_records(built):
    (built.store / BASE / "README.md").write_text("# A new card\n")
    report = build(built)
    assert counts(report)["unchanged"] == 12


@pytest.mark.slow
def test_a_failing_download_is_tried_again_by_the_next_build(shell):
    fault = shell.hub.faults.add(path=r"glue-0/.*safetensors", status=500)
    first = build(shell)
    shell.hub.faults.remove(fault)
    assert counts(first)["failed"] == 1
    assert rows(shell, "SELECT model, status FROM fine_tunes WHERE status <> 'indexed'") == [("ann/glue-0", "failed")]
    second = build(shell)
    assert counts(second) == {"discovered": 12, "indexed": 1, "unchanged": 11, "skipped": 0, "failed": 0}


@pytest.mark.slow
def test_a_build_killed_at_any_time_goes_on_where_it_stopped(shell):
    def records():
        return len(list((shell.folder / "atlas" / "records").glob("??/*.safetensors")))

    seen = 0
    # Before the base is asked for, while it is read, in the middle of the models, and after that.
    for moment in (
        lambda: shell.hub.requests,
        lambda: list((shell.folder / "atlas" / "bases").glob("*")),
        lambda: records() >= 3,
        lambda: records() >= 8,
    ):
        process = start_python(
            "-m", "indexer", "build", "--base", BASE, "--workers", "1",
            cwd=shell.folder, env={**shell.environment, "HF_ENDPOINT": shell.endpoint},
            stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(lambda now=moment, ran=process: now() or ran.poll() is not None)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert records() >= seen
        seen = records()
        if (shell.folder / "atlas" / "atlas.duckdb").exists():
            assert shell("index", "verify").code in (0, 1)
    report = build(shell)
    assert report["indexed"] + report["unchanged"] == 12
    assert shell("index", "verify").code == 0
    leftovers = [path.name for path in (shell.folder / "atlas").iterdir() if path.name.endswith((".tmp", ".wal"))]
    assert leftovers == []


@pytest.mark.slow
def test_a_build_that_is_stopped_publishes_what_was_done(shell):
    """By SIGTERM, and with more workers: tests/sampling/test_interrupted.py."""
    shell.hub.faults.add(path=r"imdb-3/.*safetensors", hang=600.0)
    process = start_python(
        "-m", "indexer", "build", "--base", BASE, "--workers", "1",
        cwd=shell.folder, env={**shell.environment, "HF_ENDPOINT": shell.endpoint}, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(lambda: any("imdb-3/resolve" in request.path for request in shell.hub.requests))
    wait_for(lambda: list((shell.folder / "atlas" / "records").glob("??/*.safetensors")))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in said
    assert "Finished work is kept" in said
    done = rows(shell, "SELECT count(*) FROM models")[0][0]
    assert 0 < done < 12
    assert rows(shell, "SELECT outcome FROM builds") == [("stopped",)]


@pytest.mark.slow
def test_the_error_of_a_second_writer_names_the_first(built):
    holder = start_python(
        "-c",
            "import sys, time\nfrom indexer.atlas import AtlasFolder\n"
            "with AtlasFolder(sys.argv[1]).locked('index build --base x'):\n    print('held', flush=True)\n"
            "    time.sleep(600)",
        built.folder / "atlas", stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert holder.stdout.readline() == "held\n"
        ran = built("index", "build", "--base", BASE)
        assert ran.code == 1
        assert f"process {holder.pid}" in ran.err
        assert ran.err.strip().count("\n") <= 1
        # Readers do not mind.
        assert built("query", "similar", "ann/glue-0", "--json").code == 0
    finally:
        holder.kill()
        holder.wait()
    assert built("index", "build", "--base", BASE).code == 0


def test_a_dry_run_reads_nothing_and_estimates_the_download(shell):
    report = build(shell, "--dry-run")
    assert report["dry_run"]["models"] == 12
    assert report["dry_run"]["bytes"] == 12 * BLOCK_BYTES
    assert not (shell.folder / "atlas" / "records").exists()
    assert not [
        request
        for request in shell.hub.requests
        if "safetensors" in request.path and request.method == "GET" and "/org/" not in request.path
    ]


def test_without_network_there_is_one_line(shell):
    ran = Shell("http://127.0.0.1:9", shell.folder)("index", "build", "--base", BASE)
    assert ran.code == 1
    assert "Traceback" not in ran.err
    assert ran.err.strip().startswith("Error:")


def test_an_unknown_base_names_the_nearest(shell):
    ran = shell("index", "build", "--base", "org/tiny-bose")
    assert ran.code == 1
    assert BASE in ran.err


def test_of_several_bases_an_unknown_one_is_reported_before_any_is_built(shell):
    ran = shell("index", "build", "--base", BASE, "--base", "nosuch/base", "--json")
    assert (ran.code, ran.out) == (1, "")
    assert "nosuch/base" in ran.err
    assert not (shell.folder / "atlas" / "atlas.duckdb").exists()
    assert not [request for request in shell.hub.requests if request.path.endswith(".safetensors")]


# What a process begins with that was started behind `<&- >&- 2>&-`: no such descriptor, and None for each stream.
WITHOUT_STREAMS = """
import os, sys
for number, name in enumerate(("stdin", "stdout", "stderr")):
    os.close(number)
    setattr(sys, name, None)
    setattr(sys, f"__{name}__", None)
from indexer.cli import main
main()
"""


@pytest.mark.slow
def test_a_build_without_standard_streams_is_a_build(shell):
    words = ("build", "--base", BASE, "--workers", "2", "--limit", "4")
    environment = {**shell.environment, "HF_ENDPOINT": shell.endpoint}
    process = start_python("-c", WITHOUT_STREAMS, *words, cwd=shell.folder, env=environment)
    assert process.wait(PATIENCE) == 0
    assert rows(shell, "SELECT count(*) FROM models") == [(4,)]


def test_a_wrong_revision_is_not_called_a_wrong_model(shell):
    ran = shell("index", "add", "ann/glue-0@deadbeef", "--base", BASE)
    assert ran.code == 1
    assert "ann/glue-0 has no revision deadbeef." in ran.err
    assert "Did you mean" not in ran.err
    ran = shell("index", "add", "ann/glue-o@deadbeef", "--base", BASE)
    assert "Did you mean ann/glue-0" in ran.err


def test_a_choice_that_fits_no_model_is_reported(shell):
    ran = shell("index", "build", "--base", BASE, "--author", "nobody", "--since", "2030-01-01")
    assert ran.code == 1
    assert "No listed model matches --author nobody --since 2030-01-01." in ran.err
    assert "failures" not in ran.err


def test_a_base_without_fine_tunes_is_reported(shell):
    for discover, advice in (("tags", "--discover names"), ("names", "")):
        ran = shell("index", "build", "--base", BASE, "--relation", "merge", "--discover", discover)
        assert ran.code == 1
        assert f"The Hub lists no merge of {BASE}." in ran.err
        assert advice in ran.err
        assert "failures" not in ran.err


def test_the_base_is_not_added_to_its_own_models(shell):
    ran = shell("index", "add", OLD_ID, "--base", BASE)
    assert ran.code == 1
    assert f"{BASE} is the base itself" in ran.err


@pytest.mark.slow
def test_local_folders_are_added_and_asked_about(built):
    copy = built.folder / "mine"
    shutil.copytree(built.store / "ann/glue-0", copy)
    ran = built("query", "similar", str(copy), "-k", "4", "--json")
    assert ran.code == 0, ran.err
    assert ran.json[0]["model"] == "ann/glue-0"
    assert ran.json[0]["similarity"] == pytest.approx(1.0, abs=1e-4)
    ran = built("index", "add", "mine", "--base", OLD_ID, "--json")
    assert ran.code == 0, ran.err
    assert counts(ran.json)["indexed"] == 1
    assert rows(built, "SELECT count(*) FROM models") == [(13,)]
    ran = built("query", "similar", "mine", "-k", "1", "--json")
    assert ran.json[0]["model"] == "ann/glue-0"
    assert json.loads(built("query", "show", "mine", "--json").out)["duplicate_of"] == "ann/glue-0"


@pytest.mark.slow
def test_a_damaged_record_is_forgotten_by_a_rebuild_and_made_again_by_a_build(shell):
    build(shell, "--limit", "3")
    path = sorted((shell.folder / "atlas" / "records").glob("*/*.safetensors"))[0]
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    assert shell("index", "verify").code == 1
    assert shell("index", "rebuild", "--json").json["damaged_records"] == [path.stem]
    again = build(shell, "--limit", "3")
    assert counts(again) == {"discovered": 3, "indexed": 1, "unchanged": 2, "skipped": 0, "failed": 0}
    assert shell("index", "verify").code == 0
