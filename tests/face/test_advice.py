"""Advice suggests calls and names arguments of Python; every face spells them in its own way."""

from __future__ import annotations

import ast
import pickle
import re

import click
import pytest
from click.testing import CliRunner

from indexer.console.advice import OPTIONS, as_command, for_command_line
from indexer.errors import BUILDING, Call, Text
from query import Atlas, AtlasError
from query.contract.registry import questions
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("text", "python", "typed"),
    [
        (Text("Use ", Call(base="ID"), "."), "Use `base='ID'`.", "Use --base ID."),
        (
            Text("Omit `min_size`: ", Call(method="a b")),
            "Omit `min_size`: `method='a b'`",
            "Omit --min-size: --method 'a b'",
        ),
        ("`k` is 0", "`k` is 0", "-k is 0"),
        (Text(Call(kin=False)), "`kin=False`", "--no-kin"),
        (
            Text(Call("build", "a/b", spectra=True, rank=4)),
            "`build('a/b', spectra=True, rank=4)`",
            "index build --base a/b --spectra --rank 4",
        ),
        (Text(Call("add", "m", "b", spectra=True)), "`add('m', 'b', spectra=True)`", "index add m --base b --spectra"),
        (Text(Call("deepen", ["a", "b c"])), "`deepen(['a', 'b c'])`", "index deepen a 'b c'"),
        (Text(Call("lineages", "b", store=True)), "`atlas.lineages('b', store=True)`", "query lineage --all --base b"),
        (Text(Call("sql", "SELECT 'x'")), "`atlas.sql(\"SELECT 'x'\")`", "query sql 'SELECT '\"'\"'x'\"'\"''"),
        ("Run `index verify`.", "Run `index verify`.", "Run `index verify`."),
        (
            "`__import__('os')` `f(` `a b` `[1]`",
            "`__import__('os')` `f(` `a b` `[1]`",
            "`__import__('os')` `f(` `a b` `[1]`",
        ),
        (Text(Call("build", "$(touch x)")), "`build('$(touch x)')`", "index build --base '$(touch x)'"),
        ("a name with `build('x')` in it", "a name with `build('x')` in it", "a name with `build('x')` in it"),
    ],
)
def test_a_call_is_written_for_python_and_for_a_shell(text, python, typed):
    assert str(text) == python
    assert for_command_line(text) == typed


def test_calls_survive_addition_other_texts_and_processes():
    text = "One. " + Text("Use ", Call(k=3)) + "."
    for same in (
        text,
        Text(text),
        pickle.loads(pickle.dumps(text)),
        AtlasError("One.", Text("Use ", Call(k=3), ".")).text,
    ):
        assert same == "One. Use `k=3`."
        assert for_command_line(same) == "One. Use -k 3."
    error = pickle.loads(pickle.dumps(AtlasError("One.", Call("clusters", method="kmeans"))))
    assert str(error) == "One. `atlas.clusters(method='kmeans')`"
    assert for_command_line(error.text) == "One. query clusters --method kmeans"


def test_advice_names_functions_commands_and_options_that_exist():
    """Every call in the source of both packages."""
    from indexer.cli import main as index
    from query.faces.cli import main as query

    groups = {"index": index, "query": query}
    every = {
        text for group in groups.values() for one in group.commands.values() for p in one.params for text in p.opts
    }
    assert set(OPTIONS.values()) <= every
    checked = 0
    for path in sorted([*(ROOT / "query").rglob("*.py"), *(ROOT / "indexer").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Call"):
                continue
            if any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords):
                continue
            values = [one.value if isinstance(one, ast.Constant) else "x" for one in node.args]
            call = Call(*values, **dict.fromkeys((one.arg for one in node.keywords), "x"))
            assert call.function in ("", *BUILDING, *questions()), (path.name, str(call))
            words = as_command(call).split()
            if call.function:
                params = groups[words[0]].commands[words[1]].params
                known = {text for param in params for text in (*param.opts, *param.secondary_opts)}
                assert {word for word in words if word.startswith("--")} <= known, (path.name, str(call))
                checked += 1
    assert checked > 10


def test_help_names_options_that_exist_and_gives_each_example_a_line():
    from indexer.cli import main as index
    from query.faces.cli import main as query

    for group in (index, query):
        context = click.Context(group)
        commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
        known = {
            text for one in (group, *commands.values()) for p in one.params for text in (*p.opts, *p.secondary_opts)
        }
        for name, command in commands.items():
            page = command.get_help(click.Context(command, info_name=name, terminal_width=400, max_content_width=400))
            assert "\\b" not in page, name
            assert set(re.findall(r"(?<!\S)--[a-z][a-z-]+", page)) <= known | {"--help", "--version"}, name
    page = index.get_command(context, "build").get_help(click.Context(index))
    assert "\n    index build --base roberta-base --from /data/runs\n    index build --from ~/" in page


def test_what_the_questions_raise_names_no_option():
    """Options in the text of an AtlasError would reach a Python user."""
    for path in sorted((ROOT / "query").rglob("*.py")):
        if {"cli", "report"} & set(path.parts):
            continue
        for call in re.findall(r"AtlasError\((?:[^()]|\([^()]*\))*\)", path.read_text()):
            options = set(re.findall(r"--[a-z][a-z-]+", call))
            assert options <= {"--debug", "--with-records"}, (path.name, call)


def test_python_and_the_command_line_say_the_same_in_their_own_words(tmp_path, small_atlas):
    from query.faces.cli import main

    with Atlas(small_atlas) as atlas, pytest.raises(AtlasError) as raised:
        atlas.clusters(count=3)
    assert str(raised.value).endswith("Omit it, or use `method='kmeans'`.")
    ran = CliRunner().invoke(main, ["clusters", "--count", "3", "--atlas", str(small_atlas)])
    assert ran.exit_code == 1
    assert "Omit it, or use --method kmeans." in ran.stderr
    with pytest.raises(AtlasError, match=re.escape("`build('roberta-base', limit=50)`")):
        Atlas(tmp_path / "nowhere")
