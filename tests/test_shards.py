"""Job arrays: shards that share a folder do each model exactly once, whatever order they come in."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter

import pytest

from indexer.builds.shards import Shard
from indexer.errors import AtlasError
from tests.conftest import start_python
from tests.database import read_rows
from tests.tiny_hub import BASE, OLD_ID, served_shell

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("text", "expected"), [("0/1", Shard(0, 1)), ("15/16", Shard(15, 16)), ("007/8", Shard(7, 8))])
def test_shards_as_they_are_written(text, expected):
    assert Shard.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [("1/1", "count from 0"), ("4/4", r"last of 4 is 3/4, not 4/4"), ("", "form"), ("1", "form"), ("-1/4", "form"),
     ("a/b", "form"), ("0/0", "form"), ("0/99999999999", "form"), ("1/2/3", "form"), ("²/4", "form")],
)  # fmt: skip
def test_invalid_shards(text, problem):
    with pytest.raises(AtlasError, match=problem):
        Shard.parse(text)


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_every_model_belongs_to_exactly_one_shard(count):
    models = [f"owner-{number % 13}/model-{number}" for number in range(3000)]
    holders = [[shard for shard in range(count) if Shard(shard, count).holds(model)] for model in models]
    assert all(len(found) == 1 for found in holders)
    sizes = Counter(found[0] for found in holders)
    assert len(sizes) == count
    assert max(sizes.values()) < 2 * 3000 / count


@pytest.fixture(scope="module")
def shell(tiny_store, tmp_path_factory):
    with served_shell(tiny_store(4), tmp_path_factory.mktemp("shards")) as shell:
        yield shell


def test_a_job_array_does_what_one_build_does(shell):
    """Three shards at once in a fresh folder: one crawls and fetches the base, the others wait."""
    whole = shell("index", "build", "--base", BASE, "--atlas", "whole", "--workers", "1", "--json").json
    of_one_build = shell.hub.body_bytes(BASE, "model.safetensors")
    shell.hub.reset_log()
    jobs = [start(shell, "work", "--base", OLD_ID, "--shard", f"{number}/3", "--atlas", "parts") for number in range(3)]
    reports = [finish(job) for job in jobs]
    assert sum(report["indexed"] for report in reports) == whole["indexed"] == 12
    assert sum(report["discovered"] for report in reports) == 12
    assert 0 < shell.hub.body_bytes(BASE, "model.safetensors") < 1.2 * of_one_build  # by one of them
    assert not (shell.folder / "parts" / "atlas.duckdb").exists()

    published = shell("index", "publish", "--atlas", "parts", "--json").json
    assert (published["unchanged"], published["discovered"], published["indexed"]) == (12, 12, 0)
    assert digests(shell, "parts") == digests(shell, "whole")
    assert similar(shell, "parts") == similar(shell, "whole")
    assert shell("index", "verify", "--atlas", "parts").code == 0

    # A second array reads nothing and crawls nothing; a build goes on from there.
    shell.hub.reset_log()
    again = shell("index", "work", "--base", BASE, "--shard", "1/3", "--atlas", "parts", "--json").json
    assert (again["indexed"], again["unchanged"]) == (0, reports[1]["indexed"])
    assert not [one for one in shell.hub.requests if one.path == "/api/models"]
    assert shell("index", "build", "--base", BASE, "--atlas", "parts", "--json").json["unchanged"] == 12


def test_a_publish_takes_the_rank_of_what_is_there_and_never_empties_an_atlas(shell):
    """Shards at rank 4, published without a rank or with another one."""
    shard = ("--base", BASE, "--atlas", "narrow", "--limit", "4", "--workers", "1")
    assert shell("index", "work", *shard, "--shard", "0/1", "--rank", "4").code == 0
    published = shell("index", "publish", "--atlas", "narrow", "--json")
    assert (published.code, published.json["unchanged"]) == (0, 4)

    for words in (("publish", "--atlas", "narrow", "--rank", "8"), ("work", *shard, "--shard", "0/2", "--rank", "8")):
        refused = shell("index", *words)
        assert refused.code == 1
        assert f"This atlas holds {BASE} at rank 4" in refused.err
        assert "--rank 4" in refused.err

    shutil.copytree(shell.folder / "narrow", shell.folder / "bare")
    shutil.rmtree(shell.folder / "bare" / "records")
    refused = shell("index", "publish", "--atlas", "bare")
    assert refused.code == 1
    assert "would take all 4 vectors" in refused.err
    for atlas in ("narrow", "bare"):
        status = shell("index", "status", "--atlas", atlas, "--json").json
        assert (status["generation"], status["bases"][0]["indexed"]) == (1, 4)


def test_records_of_two_ranks_are_not_chosen_between(shell):
    shard = ("--base", BASE, "--shard", "0/1", "--atlas", "twice", "--workers", "1")
    shell("index", "work", *shard, "--limit", "2", "--rank", "4")
    shell("index", "work", *shard, "--limit", "3", "--rank", "2")
    refused = shell("index", "publish", "--atlas", "twice")
    assert refused.code == 1
    assert "records of rank 2 (3) and rank 4 (2)" in refused.err
    assert not (shell.folder / "twice" / "atlas.duckdb").exists()
    assert shell("index", "publish", "--atlas", "twice", "--rank", "2", "--json").json["unchanged"] == 3
    # The atlas has a rank now; the other records do not matter any more.
    assert shell("index", "publish", "--atlas", "twice", "--json").json["unchanged"] == 3


def test_wrong_words_get_one_line(shell):
    for words, sentence in (
        (("work", "--base", BASE, "--shard", "3/3"), "shards count from 0: the last of 3 is 2/3, not 3/3"),
        (("publish", "--atlas", "nowhere"), "There is nothing to publish in"),
        (("publish", "--atlas", "whole", "--base", "bert-base-uncased"), "bert-base-uncased is not in"),
    ):
        ran = shell("index", *words)
        assert ran.code in (1, 2)
        assert sentence in ran.err
        assert "Traceback" not in ran.err


def start(shell, *words):
    return start_python(
        "-m", "indexer", *words, "--workers", "1", "--json", cwd=shell.folder,
        env={"HF_ENDPOINT": shell.endpoint, **shell.environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(job):
    out, err = job.communicate(timeout=240)
    assert job.returncode == 0, err
    return json.loads(out)


def digests(shell, atlas):
    return read_rows(
        shell.folder / atlas / "atlas.duckdb", "SELECT model, record_key, datasets FROM models ORDER BY model"
    )


def similar(shell, atlas):
    return shell("query", "similar", "ann/glue-0", "--atlas", atlas, "--json").json
