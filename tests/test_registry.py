"""A question that another package adds is in every face; one that is wrong is one line, and nothing else changes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import pytest

from indexer.console.option import described
from indexer.console.terminal import first_sentence
from indexer.errors import AtlasError
from query import Atlas
from query.contract import registry
from query.faces.cli import main
from query.faces.cli.others import OTHERS
from query.models.reader import AtlasReader
from scripts.methods import INDEXER_STUB, STUB, indexer_stub, stub
from tests.atlas_builder import Model, write_atlas
from tests.conftest import ROOT

TOY = '''
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from indexer.console.option import Argument, Option
from query.contract.options import Base
from query.contract.registry import question
from query.contract.columns import ModelId
from query.contract.results import Detail, Doc, Rows


@dataclass(frozen=True)
class Initial:
    model: ModelId
    initial: Annotated[str, Doc("Its first letter."), Detail()]


@dataclass(frozen=True, eq=False, repr=False)
class Initials(Rows[Initial]):
    items: Annotated[tuple[Initial, ...], Doc("The models.")]


@question(example="toy ann --times 2", agents=True)
def toy(
    atlas,
    search: Annotated[str, Argument("Part of the name.")],
    *,
    times: Annotated[int, Option("How often the initial is repeated.", least=1, most=3)] = 1,
    base: Base = None,
) -> Initials:
    """Show the first letter of models whose name contains ``search``: a toy.

    With ``times``, more than once.

    Raises:
        AtlasError: never.
    """
    rows = atlas.rows("SELECT model FROM models WHERE contains(model, $1) ORDER BY model", [search])
    return Initials(tuple(Initial(row["model"], row["model"][0] * times) for row in rows))
'''
OF_THE_PAGE = re.search("```python\n(.*?)```", (ROOT / "docs" / "guide" / "plugins.md").read_text(), re.DOTALL)[1]
WRONG = """
raise ImportError("a library is missing")
"""
PACKAGES = {
    "toy_questions": (TOY, ["toy = toy_questions:toy"]),
    "my_questions": (OF_THE_PAGE, ["licences = my_questions:licences [an-extra]"]),
    "wrong_questions": (WRONG, ["wrong = wrong_questions:wrong", "lost = not_there.at_all:lost"]),
    "impostor": (
        TOY, ["similar = impostor:toy", "export = impostor:toy", "predict.more = impostor:toy", "serve = impostor:toy",
              "No Name = x"],
    ),
}  # fmt: skip

# Every face in one process.
FACES = """
import inspect, json, sys
from click.testing import CliRunner
from query import Atlas
from query.faces.browse.server import listed_questions
from query.faces.cli import main
from query.faces.serve.mcp import _tool
from query.faces.serve.tools import Tools

folder = sys.argv[1]
def ran(*words):
    done = CliRunner().invoke(main, words, prog_name="query")
    return [done.exit_code, done.stdout, done.stderr]
at = ("--atlas", folder)
tools = Tools(folder)
with Atlas(folder) as atlas:
    faces = {
        "list": ran("--help"), "help": ran("toy", "--help"), "reference": ran("help", "toy"),
        "json": ran("toy", "ann", "--times", "2", "--json", *at), "table": ran("toy", "ann", *at),
        "details": ran("toy", "ann", "--details", *at), "bounds": ran("toy", "ann", "--times", "4", *at),
        "licences": ran("licences", "--json", *at), "wrong": ran("wrong", *at), "export": ran("export", "--help"), "similar": ran("similar", "ann/one", "--json", *at),
        "python": atlas.toy("ann", times=3).to_rows(), "signature": str(inspect.signature(Atlas.toy)),
        "doc": inspect.getdoc(Atlas.toy), "dir": dir(atlas), "members": [n for n, _ in inspect.getmembers(Atlas)],
        "answer": tools.answer("toy", {"search": "ann"}), "tools": list(tools.all),
        "schema": _tool(tools.all["toy"], None).parameters, "about": _tool(tools.all["toy"], None).description,
        "browse": listed_questions(), "word": ran("help", "initial", "--json"),
        "output": _tool(tools.all["toy"], None).output_schema, "nobody": ran("toy", "nobody", "--format", "csv", *at),
    }
print(json.dumps(faces))
"""


@pytest.fixture(scope="module")
def small_atlas(tmp_path_factory):
    models = [Model("ann/one", [1.0, 0.0], ("sst2",)), Model("bob/two", [0.6, 0.8], ("sst2",))]
    return write_atlas(tmp_path_factory.mktemp("small_atlas") / "atlas", models)


@pytest.fixture(scope="module")
def faces(small_atlas, tmp_path_factory):
    """What each face shows where these packages are installed, and what is said on stderr."""
    pytest.importorskip("mcp")
    pytest.importorskip("starlette")
    folder = tmp_path_factory.mktemp("site")
    for name, (source, lines) in PACKAGES.items():
        (folder / f"{name}.py").write_text(source)
        information = folder / f"{name}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text("\n".join([f"[{registry.GROUP}]", *lines]))
    paths = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", FACES, str(small_atlas)],
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "100"}, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_a_question_of_another_package_is_a_command(faces):
    shown, _ = faces
    assert "toy         Show the first letter of models whose name contains SEARCH.\n" in shown["list"][1]
    code, text, _ = shown["help"]
    assert code == 0
    assert "query toy [OPTIONS] SEARCH" in text
    assert "With --times, more than once." in text
    assert "never" not in text
    assert "--times INTEGER RANGE" in text
    assert "1<=x<=3" in text
    assert all(
        option in text for option in ("--base ID", "--details", "--atlas DIR", "--json", "query toy ann --times 2")
    )
    assert "--out" not in text
    assert json.loads(shown["json"][1]) == [{"model": "ann/one", "initial": "aa"}]
    assert "initial" not in shown["table"][1]
    assert "initial" in shown["details"][1]
    assert (shown["bounds"][0], "1<=x<=3" in shown["bounds"][2]) == (2, True)
    assert shown["reference"][1] == text


def test_a_field_of_its_answer_is_described_once_for_every_face(faces):
    shown, _ = faces
    columns = shown["help"][1].partition("Columns:")[2]
    assert re.search(r"\n  model +Id of the model: owner/name", columns)
    assert re.search(r"\n  initial +Its first letter\.", columns)
    assert json.loads(shown["word"][1]) == [{"word": "initial", "where": "query toy", "meaning": "Its first letter."}]
    rows = shown["output"]["$defs"]["Initial"]["properties"]
    assert rows["initial"]["description"] == "Its first letter."
    assert rows["initial"]["type"] == "string"
    assert shown["nobody"][1] == "model,initial\n"


def test_the_question_of_the_documentation_is_answered(faces):
    shown, _ = faces
    assert (shown["licences"][0], json.loads(shown["licences"][1])) == (0, [])
    assert "licences    Count the models of each licence." in shown["list"][1]


def test_a_question_of_another_package_is_a_method(faces):
    shown, _ = faces
    assert shown["python"] == [{"model": "ann/one", "initial": "aaa"}]
    assert shown["signature"].startswith("(self, search: str, *, times: int = 1, base: str | None = None)")
    assert "times: How often the initial is repeated." in shown["doc"]
    assert "toy" in shown["dir"]
    assert {"toy", "similar"} <= set(shown["members"])


def test_a_question_of_another_package_is_a_tool(faces):
    shown, _ = faces
    answer, error = shown["answer"]
    assert error == ""
    assert answer["answer"]["items"] == [{"model": "ann/one", "initial": "a"}]
    assert {"similar", "bases", "toy"} <= set(shown["tools"])
    times = shown["schema"]["properties"]["times"]
    assert (times["minimum"], times["maximum"], times["default"]) == (1, 3, 1)
    assert times["description"] == "How often the initial is repeated."
    assert shown["schema"]["required"] == ["search"]
    assert shown["about"] == "Show the first letter of models whose name contains SEARCH: a toy."


def test_a_question_of_another_package_is_in_the_browsers_list(faces):
    shown, _ = faces
    about = "Show the first letter of models whose name contains SEARCH."
    assert {"name": "toy", "about": about, "from": "toy-questions"} in shown["browse"]
    assert {"name": "similar", "about": "Find the models most similar to MODEL.", "from": ""} in shown["browse"]


def test_what_cannot_be_loaded_is_a_line_and_nothing_else_changes(faces):
    shown, said = faces
    assert (
        "The question 'wrong' of the package wrong-questions cannot be loaded: ImportError: a library is missing"
        in said
    )
    assert said.count("'wrong' of the package") == 1
    assert "Traceback" not in said
    code, out, message = shown["wrong"]
    assert (code, out) == (1, "")
    assert message.startswith("Error: The question 'wrong' of the package wrong-questions cannot be loaded")
    assert "lost" not in shown["list"][1]
    assert "wrong" not in shown["tools"]


def test_another_package_replaces_nothing_of_ours(faces):
    shown, said = faces
    for name in ("similar", "export", "more", "serve"):
        assert (
            f"The question '{name}' of the package impostor is left out: vectors-in-the-wild has one of this name."
            in said
        )
    assert "impostor names a question in a way that cannot be read: No Name = x" in said
    assert "Write the vectors" in shown["export"][1]
    assert json.loads(shown["similar"][1])[0]["model"] == "bob/two"


def test_names_that_mean_something_else_are_reserved():
    own = {name for one in (Atlas, AtlasReader) for name in dir(one) if name[0] != "_"} | {"connection", "folder"}
    assert own - set(registry.questions()) | {str(one.name) for one in OTHERS} == registry.RESERVED


def test_metadata_older_than_the_code_are_a_line(monkeypatch, tmp_path):
    (tmp_path / "vectors_in_the_wild-0.1.dist-info").mkdir()
    (tmp_path / "vectors_in_the_wild-0.1.dist-info" / "entry_points.txt").write_text("[console_scripts]\nquery = x:y\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    registry.questions.cache_clear()
    try:
        with pytest.raises(AtlasError, match=r"older than its code.*pip install -e \."):
            registry.questions()
    finally:
        registry.questions.cache_clear()


def test_the_list_is_that_of_the_project_and_the_stub_is_written_from_it():
    """After a change: pip install -e . and python -m scripts.methods."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][registry.GROUP]
    ours = {one for one in registry.questions().values() if one.package == registry.OURS}
    assert {name.rpartition(".")[2]: place for name, place in listed.items()} == {
        one.name: f"{one.module}:{one.function}" for one in ours
    }
    assert STUB.read_text() == stub()
    assert INDEXER_STUB.read_text() == indexer_stub()


def test_the_first_sentences_are_those_of_the_docstrings():
    """They are read in the source: the help of the command must begin with the same."""
    for name, entries in registry.commands().items():
        about = main.commands[name].help.partition("\n\n")[0]
        assert about, name
        assert first_sentence(entries[0].summary()) == first_sentence(about), name


def test_what_decorators_name_is_there():
    for name, entries in registry.commands().items():
        assert entries[0].record.example.split()[0] == name
    for entry, tool in registry.tools():
        assert set(tool.arguments) <= {one.name for one in described(entry.load())}, entry.name


@pytest.mark.skipif(find_spec("numpy") is None, reason="needs numpy to tell")
def test_the_list_of_commands_imports_no_question():
    code = "from query.faces.cli import main\ntry: main(['--help'], prog_name='query')\nexcept SystemExit: pass\n"
    code += "import sys\nprint(sorted(one for one in sys.modules if one.startswith(('query.', 'numpy', 'duckdb'))))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert "query.contract.registry" in loaded
    assert not [
        one
        for one in ("query.questions.similar", "query.questions.purity.question", "numpy", "duckdb")
        if f"'{one}'" in loaded
    ]
