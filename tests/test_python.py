"""The library as a person at a Python prompt meets it: vectors with names, an atlas as a mapping, pictures in one's own."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import numpy as np
import pytest

import indexer
import query
from query import Atlas, AtlasError
from tests.conftest import ROOT, run_python
from tests.tiny_hub import BASE

PLUMBING = {
    "rows",
    "connection",
    "find",
    "holds",
    "published",
    "published_base",
    "centre",
    "index",
    "stand_ins",
    "database",
}


def mean_of_shared_blocks(one, other, blocks):
    """The definition, block by block: the mean cosine over the blocks both changed, shrunk below four."""
    pairs = [(a, b) for a, b in zip(np.split(one, blocks), np.split(other, blocks), strict=True) if a.any() and b.any()]
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs]
    return sum(cosines) / max(len(cosines), min(4, blocks))


def test_vectors_have_names_and_similarities_are_those_of_similar(atlas):
    with Atlas(atlas.root) as opened:
        vectors = opened.vectors(BASE)
        table = vectors.similarity()
        for place, model in enumerate(vectors.models):
            assert opened.show(model)["model_id"] == vectors.ids[place]
            for near in opened.similar(model, k=5):
                assert table[place, vectors.models.index(near.model)] == pytest.approx(near.similarity, abs=1e-4)
        for one, other in [(0, 1), (2, 5), (3, 3)]:
            wanted = mean_of_shared_blocks(*vectors.matrix[[one, other]].astype(float), vectors.blocks)
            assert table[one, other] == pytest.approx(wanted, abs=1e-5)
        np.testing.assert_allclose(vectors.similarity(vectors.models[2:4]), table[2:4], atol=1e-6)
        with pytest.raises(AtlasError, match="nobody/x has no 'input' vector"):
            vectors.similarity(["nobody/x"])
        frame = vectors.to_df()
        assert list(frame.index) == list(vectors.models)
        np.testing.assert_array_equal(frame.to_numpy(), vectors.matrix)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_exported_files_hold_what_the_atlas_does(atlas, tmp_path, suffix):
    file = tmp_path / f"vectors{suffix}"
    done = run_python("-m", "query", "export", "--atlas", atlas.root, "--out", file, "--json")
    assert done.code == 0, done.err
    with Atlas(atlas.root) as opened:
        vectors = opened.vectors()
    assert done.json == vectors.to_dict() | {"file": str(file)}
    if suffix == ".npz":
        with np.load(file, allow_pickle=False) as held:
            models, matrix, blocks = held["model"].tolist(), held["matrix"], int(held["blocks"])
    else:
        import pyarrow.parquet as pq

        table = pq.read_table(file)
        models, matrix = table["model"].to_pylist(), np.array(table["vector"].to_pylist(), dtype=np.float32)
        blocks = int(table.schema.metadata[b"blocks"])
        assert table["datasets"].to_pylist() == [list(one) for one in vectors.datasets]
    assert models == list(vectors.models)
    assert blocks == vectors.blocks
    np.testing.assert_array_equal(matrix, vectors.matrix)


def test_another_suffix_is_one_line(atlas, tmp_path):
    with Atlas(atlas.root) as opened, pytest.raises(AtlasError, match=r"does not end in \.parquet or \.npz"):
        opened.vectors().write(tmp_path / "vectors.csv")


def test_an_atlas_is_a_mapping_of_models(atlas):
    with Atlas(atlas.root) as opened:
        names = list(opened)
        assert len(opened) == len(names) == 9
        assert names == sorted(names)
        assert names[0] in opened
        assert "nobody/x" not in opened
        assert 3 not in opened
        assert opened[names[0]]["model"] == names[0]
        with pytest.raises(KeyError, match="nobody/x"):
            opened["nobody/x"]
        seen = {name for name in dir(opened) if not name.startswith("_")}
        assert not seen & PLUMBING
        assert {"similar", "vectors", "bases", "close"} <= seen


def test_everything_exported_exists_and_questions_are_documented():
    for name in query.__all__:
        assert getattr(query, name) is not None
    for name in indexer.__all__:
        assert getattr(indexer, name) is not None
    with pytest.raises(AttributeError):
        query.Nothing  # noqa: B018
    from indexer.cli import main

    functions = set(indexer.__all__) | {"publish" if "publish_records" in indexer.__all__ else ""}
    other_names = {"starts": "find_starts", "listing": "listed_models"}  # packages of the indexer are called so
    assert {other_names.get(name, name) for name in main.commands} <= functions
    for name, method in inspect.getmembers(Atlas, inspect.isfunction):
        if name in vars(Atlas) and not name.startswith("_"):
            assert len(inspect.getdoc(method).split()) > 15, name


def test_a_picture_goes_where_the_caller_wants_it(atlas):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    with Atlas(atlas.root) as opened:
        figure = Figure(figsize=(14, 5), layout="constrained")
        left, right, single = figure.subplots(1, 3)
        drawn = opened.map(method="pca").figure(ax=left)
        opened.layers(next(iter(opened))).figure(ax=right)
        opened.purity().figure(ax=single)
        figure.draw_without_rendering()
        assert drawn in figure.subfigs
        assert len(figure.subfigs) == 3
        assert not figure.axes or left not in figure.axes
        with pytest.raises(AtlasError, match="not a cell of a grid"):
            opened.map(method="pca").figure(ax=Figure().add_axes((0, 0, 1, 1)))


def test_library_functions_do_what_the_commands_do(atlas, tmp_path):
    held = indexer.status(atlas.root)
    assert held["bases"][0]["indexed"] == 9
    assert indexer.verify(atlas.root) == []
    assert indexer.represent("output", atlas.root)
    assert indexer.rebuild(atlas.root)["models"] >= 9
    with Atlas(atlas.root) as opened:
        first = next(iter(opened))
    assert indexer.remove(first, atlas=atlas.root)["model"] == first
    with Atlas(atlas.root) as opened:
        assert first not in opened
    with pytest.raises(AtlasError, match="named twice"):
        indexer.merge([atlas.root, atlas.root], tmp_path / "both")


def test_the_umbrella_has_every_subcommand_once(atlas):
    from indexer.cli import main as index
    from query.faces.cli import main as query_main

    assert not set(index.commands) & set(query_main.commands)
    code = "from query.faces.cli.model_atlas import main; main()"
    run = [sys.executable, "-c", code]
    done = subprocess.run([*run, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in (*index.commands, *query_main.commands):
        assert f"\n  {name} " in done.stdout
    shown = subprocess.run(
        [*run, "status", "--atlas", str(atlas.root), "--json"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(shown.stdout)["bases"][0]["base"] == BASE
    example = subprocess.run([*run, "export", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "model-atlas export --base" in example.stdout
