"""`index build --where SQL`: which listed models are read, of the Hub and of trees."""

from __future__ import annotations

import shutil

import pytest

from indexer import build
from indexer.builds.condition import matching
from indexer.errors import BadArgument
from query import Atlas
from tests.tiny_hub import BASE
from tests.trees import adapter


def indexed():
    with Atlas("atlas") as atlas:
        return sorted(row["model"] for row in atlas.rows("SELECT model FROM fine_tunes WHERE status = 'indexed'"))


def test_models_of_the_hub_are_chosen_by_their_listing(hub):
    build(BASE, where="author = 'ann' AND list_contains(datasets, 'glue')", workers=1)
    assert indexed() == ["ann/glue-0"]
    # The others stay listed, and a later build without the condition reads them.
    report = build(BASE, where="downloads >= 200", dry_run=True, workers=1)
    assert report.dry_run["models"] == 2


def test_models_of_trees_are_chosen_in_the_same_way(hub, tmp_path):
    for number, licence in enumerate(("mit", "apache-2.0", "mit")):
        adapter(tmp_path / f"tree/run-{number}", number)
        (tmp_path / f"tree/run-{number}/README.md").write_text(f"---\nlicense: {licence}\ntags: [t{number}]\n---\n")
    report = build(BASE, sources="tree", where="licence = 'mit' AND model <> 'local:run-2'", workers=1)
    assert (report.discovered, report.indexed) == (1, 1)
    assert indexed() == ["local:run-0"]
    shutil.rmtree(tmp_path / "tree/run-0")
    assert build(BASE, sources="tree", workers=1).indexed == 2


@pytest.mark.parametrize("condition", ["autor = 'x'", "1 = ", "model IN (SELECT * FROM read_csv('/etc/passwd'))"])
def test_a_condition_that_cannot_be_run_is_refused_before_anything_is_made(hub, tmp_path, condition):
    with pytest.raises(BadArgument, match="`where` cannot be run"):
        build(BASE, where=condition, workers=1)
    assert not (tmp_path / "atlas").exists()


def test_no_models_match_nothing():
    assert matching((), BASE, "true") == []
