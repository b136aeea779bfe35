"""The atlas that comes with the package: it fits this version, is small, is only read, and answers.

After a change of schema.sql, or of what an atlas holds: python -m scripts.demo --ship, then python -m scripts.guide.
"""

from __future__ import annotations

import re
import shutil
import stat
from pathlib import Path

import pytest

from indexer.atlas import DEMO, DEMO_FOLDER, SCHEMA_VERSION, AtlasFolder
from indexer.database.catalog import definitions, examine
from indexer.database.secure_connection import attached, in_memory
from indexer.errors import AtlasError
from indexer.library import verify
from query import Atlas
from scripts.ship import BASE, MOST_BYTES, SWEEP, ship

UNDOCUMENTED, ASKED = "small-hours/tiny-roberta-in-house", SWEEP[2]
READ_ONLY = (
    "The atlas demo comes with this program and is read-only. Name a folder of your own: --atlas DIR; a folder that is "
    "called demo is ./demo."
)
_COLUMNS = (
    "SELECT schema_name, table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
    "WHERE database_name = '{}' AND NOT internal ORDER BY ALL"
)


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of everything in a folder, by path."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in (folder, *folder.rglob("*"))}


def test_it_is_small():
    assert sum(size for size, _ in files(DEMO_FOLDER).values()) <= MOST_BYTES <= 6_000_000


def test_its_schema_is_that_of_schema_sql():
    expected = in_memory("".join(f"{definition.statement}\n" for definition in definitions()))
    columns = set(expected.execute(_COLUMNS.format("memory")).fetchall())
    expected.close()
    assert len(columns) > 200
    with attached(DEMO_FOLDER / "atlas.duckdb") as connection:
        found = set(connection.execute(_COLUMNS.format("atlas")).fetchall())
        differences = examine(connection, DEMO_FOLDER / "atlas.duckdb")
        (info,) = connection.execute("SELECT schema_version, tool_version FROM atlas.main.atlas_info").fetchall()
    again = "python -m scripts.demo --ship"
    assert found == columns, again
    assert differences.problems == (), again
    assert differences.differing_views == [], again
    assert info[0] == SCHEMA_VERSION, again


def test_every_file_is_as_it_was_made():
    before = files(DEMO_FOLDER)
    assert verify("demo") == []
    assert files(DEMO_FOLDER) == before


def test_it_is_made_of_a_published_atlas(tmp_path, monkeypatch):
    copy = AtlasFolder(shutil.copytree(DEMO_FOLDER, tmp_path / "copy"))
    sizes = ship(copy, tmp_path / "made")
    assert sizes.keys() == {
        path.relative_to(DEMO_FOLDER).as_posix() for path in DEMO_FOLDER.rglob("*") if path.is_file()
    }
    assert sizes["atlas.duckdb"] < 1.2 * (DEMO_FOLDER / "atlas.duckdb").stat().st_size  # in small blocks again
    assert verify(tmp_path / "made") == []
    with Atlas(tmp_path / "made") as made, Atlas("demo") as atlas:
        assert made.similar(ASKED).to_rows() == atlas.similar(ASKED).to_rows()
    before = files(tmp_path / "made")
    monkeypatch.setattr("scripts.ship.MOST_BYTES", 1_000_000)
    with pytest.raises(ValueError, match="bytes; the package has room for 1,000,000"):
        ship(copy, tmp_path / "made")
    assert files(tmp_path / "made") == before


def test_it_says_nothing_of_the_machine_that_made_it():
    texts = [path.read_bytes() for path in DEMO_FOLDER.rglob("*") if path.is_file()]
    with Atlas("demo") as atlas:
        tables = atlas.sql(
            "SELECT schema_name || '.' || table_name AS name FROM duckdb_tables() WHERE NOT internal"
        ).to_rows()
        for table in tables:
            texts += [str(row).encode() for row in atlas.rows(f"FROM {table['name']}")]
    for text in texts:
        assert not re.search(rb"127\.0\.0\.1|localhost:|/(?:home|root|work|tmp|Users)/", text)


def test_questions_are_answered_and_nothing_is_written():
    before = files(DEMO_FOLDER)
    with Atlas("demo") as atlas:
        assert atlas.notes == []
        assert atlas.bases() == [BASE]
        assert len(atlas) > 60
        assert repr(atlas).startswith(f"<Atlas 'demo': {len(atlas)} models of {BASE}")
        assert atlas.similar(ASKED, k=3)[0].datasets == ["errors/exception-types"]
        facts = atlas.show(ASKED).facts
        assert facts["datasets"] == ["errors/exception-types"]
        assert facts["page"] is None  # its models are on no Hub
        assert {"lambda", "ndarray"} <= {word.word for word in atlas.trace(UNDOCUMENTED).words}
        assert atlas.models("in-house")[0].model == UNDOCUMENTED
        assert {one.dataset for one in atlas.datasets()} > {"errors/exception-types", "docs/numpydoc-sections"}
        assert atlas.sql("SELECT count(*) AS models FROM models").rows == [[len(atlas)]]
    assert files(DEMO_FOLDER) == before


@pytest.mark.slow
def test_every_question_that_needs_no_weights_is_answered():
    before = files(DEMO_FOLDER)
    with Atlas("demo") as atlas:
        purity = atlas.purity(draws=200)
        assert purity.purity > 5 * purity.chance
        assert atlas.predict(UNDOCUMENTED).answers[0].dataset == "docs/numpydoc-sections"
        assert len(atlas.clusters().clusters) > 5
        assert len(atlas.map(method="pca").points) > 60
        assert atlas.rank().models > 50
        assert len(atlas.layers(ASKED).deltas) == 24
        assert len(atlas.depth(ASKED).layers) == 4
        assert atlas.depth_study().models == len(SWEEP)
        assert atlas.compare(ASKED, SWEEP[0]).similarity > 0.5
        (edge,) = atlas.lineage("h-lindqvist/tiny-roberta-line-kinds-more").edges
        assert edge.parent == "papercut-ai/papercut-tiny-roberta-line-kinds"
        assert len(atlas.duplicates().to_rows()) == 2
        assert atlas.check(UNDOCUMENTED).to_dict()
        assert atlas.vectors().matrix.shape[0] > 60
    assert files(DEMO_FOLDER) == before


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            "layers {model} --heads",
            "This needs records, which this atlas does not have. An atlas that you build has them.",
        ),
        (
            "rank --threshold 0.85",
            "This needs records, which this atlas does not have. An atlas that you build has them.",
        ),
        ("depth {undocumented}", "The base of the atlas demo is on no Hub. With an atlas of your own it works."),
        (
            "lineage {undocumented} --fresh",
            "The base of the atlas demo is on no Hub. With an atlas of your own it works.",
        ),
        ("ask texts.txt", "The base of the atlas demo is on no Hub. With an atlas of your own it works."),
        ("lineage --all", READ_ONLY),
        ("predict --undocumented --store", READ_ONLY),
    ],
)
def test_what_it_cannot_answer_is_said_in_one_line(run, words, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("one text\n" * 20)
    code, out, err = run("query", *words.format(model=ASKED, undocumented=UNDOCUMENTED).split(), "--atlas", "demo")
    assert (code, out, err) == (1, "", f"Error: {why}\n")


def test_it_is_read_where_nothing_can_be_written(tmp_path, monkeypatch):
    """As in an installation by somebody else, for a user without a home."""
    copy = Path(shutil.copytree(DEMO_FOLDER, tmp_path / "demo"))
    for path in (*copy.rglob("*"), copy):
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    with Atlas(copy) as atlas:
        assert atlas.notes == []
        assert len(atlas.similar(SWEEP[0], k=3)) == 3
    assert {path.name for path in copy.iterdir()} == {path.name for path in DEMO_FOLDER.iterdir()}
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o700)


@pytest.mark.parametrize(
    "words",
    [
        "build --base a/b", "add nobody/x", "remove x", "work --base a/b --shard 0/1", "publish", "prune", "rebuild",
        "represent output", "push nobody/x", "pull nobody/x", f"starts --base {BASE}", "build --from . --adopt",
        pytest.param("profile", marks=pytest.mark.slow),  # imports torch first
    ],
)  # fmt: skip
def test_what_writes_is_refused_in_one_line(run, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = files(DEMO_FOLDER)
    command, *rest = words.split()
    code, out, err = run("index", command, "--atlas", "demo", *rest)
    assert (code, out) == (1, "")
    assert err == f"Error: {READ_ONLY}\n"
    assert files(DEMO_FOLDER) == before
    assert list(tmp_path.iterdir()) == []


def test_a_copy_is_read_only_too_and_says_why(run, tmp_path):
    copy = Path(shutil.copytree(DEMO_FOLDER, tmp_path / "mine"))
    assert verify(copy) == []
    code, _, err = run("index", "build", "--base", BASE, "--adopt", "--atlas", copy)
    assert code == 1
    assert err.startswith(f"Error: {copy} is a copy of the atlas demo, which has no records")
    (next(copy.glob("*.faiss"))).unlink()
    (problem, *_) = verify(copy)
    assert f"cp -r {DEMO_FOLDER} {copy}" in problem.problem


# ---- the name, and a folder of that name


def test_the_name_means_the_shipped_atlas_and_a_path_never_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert AtlasFolder("demo").root == DEMO_FOLDER
    for path in ("./demo", Path("demo"), tmp_path / "demo"):
        assert AtlasFolder(path).root == tmp_path / "demo"
        with pytest.raises(AtlasError, match="demo does not exist"):
            Atlas(path)


@pytest.mark.parametrize("named", ["option", "group", "variable"])
def test_commands_take_the_name(run, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = {"option": ["bases", "--atlas", "demo"], "group": ["--atlas", "demo", "bases"], "variable": ["bases"]}[
        named
    ]
    if named == "variable":
        monkeypatch.setenv("VECTORS_ATLAS", DEMO)
    words[words.index("bases") : words.index("bases") + 1] = ["sql", "SELECT base FROM bases", "--format", "csv"]
    code, out, err = run("query", *words)
    assert (code, out.split(), err) == (0, ["base", BASE], "")


def test_a_folder_of_that_name_that_is_no_atlas_is_not_used_and_that_is_said(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    note = "demo is the atlas that comes with this program: ./demo is there, too, and is not an atlas"
    with Atlas("demo") as atlas:
        assert atlas.notes == [note]
        assert atlas.path == DEMO_FOLDER
    code, _, err = run("query", "sql", "FROM bases", "--atlas", "demo")
    assert (code, err) == (0, f"{note}\n")
    assert run("index", "status", "--atlas", "demo")[2] == f"{note}\n"


def test_a_folder_of_that_name_that_is_an_atlas_is_used_and_that_is_said(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(DEMO_FOLDER, tmp_path / "demo"))
    note = "demo is the folder ./demo, and not the atlas that comes with this program"
    with Atlas("demo") as found:
        assert found.notes == [note]
        assert found.path == folder
    code, _, err = run("query", "sql", "SELECT base FROM bases", "--atlas", "demo")
    assert (code, err) == (0, f"{note}\n")
    code, _, err = run("index", "prune", "--atlas", "demo")
    assert code == 1
    assert err.startswith(f"{note}\nError: {folder} was pulled")
    assert run("query", "sql", "FROM bases", "--atlas", "./demo")[2] == ""


def test_help_says_what_the_name_means(run):
    _, out, _ = run("query", "similar", "--help")
    assert "demo is the one that comes with this program, unless ./demo is an atlas" in " ".join(out.split())
