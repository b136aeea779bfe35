"""Advice names Python's arguments; the command line spells the same as options."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from indexer.console.advice import OPTIONS, for_command_line
from query import Atlas, AtlasError
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("python", "typed"),
    [
        ("Say which with `base='ID'`.", "Say which with --base ID."),
        ("Leave `min_size` out, or use `method='hdbscan'`.", "Leave --min-size out, or use --method hdbscan."),
        ("`k` is 0", "-k is 0"),
        ("Use `kin=False`.", "Use --no-kin."),
        ("`build('a/b', spectra=True, rank=4)`", "index build --base a/b --spectra --rank 4"),
        ("`add('m', 'b', spectra=True)`", "index add m --base b --spectra"),
        ("`atlas.lineages('b', store=True)`", "query lineage --all --base b"),
        ("`atlas.sql(\"SELECT 'x'\")`", "query sql 'SELECT '\"'\"'x'\"'\"''"),
        ("Run `index verify`.", "Run `index verify`."),
        ("`__import__('os').system('true')` `f(` `a b` `[1]`", "`__import__('os').system('true')` `f(` `a b` `[1]`"),
        ("`build('$(touch x)')`", "index build --base '$(touch x)'"),
    ],
)
def test_arguments_are_spelt_as_options(python, typed):
    assert for_command_line(python) == typed


def test_advice_names_commands_and_options_that_exist():
    """Every argument and call in backticks, in the source of both packages."""
    from indexer.cli import main as index
    from query.cli import main as query

    groups = {"index": index, "query": query}
    every = {
        text for group in groups.values() for one in group.commands.values() for p in one.params for text in p.opts
    }
    assert set(OPTIONS.values()) <= every
    checked = 0
    for path in sorted([*(ROOT / "query").rglob("*.py"), *(ROOT / "indexer").rglob("*.py")]):
        for code in re.findall(r"(?<!`)`((?:atlas\.)?[a-z_]+\([^`]*\)|[a-z_]+=[^`]*)`(?!`)", path.read_text()):
            words = for_command_line(f"`{re.sub(r'{[^}]*}', chr(39) + 'x' + chr(39), code)}`").split()
            if words[0] in groups:
                params = groups[words[0]].commands[words[1]].params
                known = {text for param in params for text in (*param.opts, *param.secondary_opts)}
                assert {word for word in words if word.startswith("--")} <= known, (path.name, code)
                checked += 1
    assert checked > 10


def test_what_the_questions_raise_names_no_option():
    """Options in the text of an AtlasError would reach a Python user."""
    for path in sorted((ROOT / "query").rglob("*.py")):
        if {"cli", "report"} & set(path.parts):
            continue
        for call in re.findall(r"AtlasError\((?:[^()]|\([^()]*\))*\)", path.read_text()):
            options = set(re.findall(r"--[a-z][a-z-]+", call))
            assert options <= {"--debug", "--with-records"}, (path.name, call)


def test_python_and_the_command_line_say_the_same_in_their_own_words(tmp_path, small_atlas):
    from query.cli import main

    with Atlas(small_atlas) as atlas, pytest.raises(AtlasError) as raised:
        atlas.clusters(count=3)
    assert str(raised.value).endswith("Omit it, or use `method='kmeans'`.")
    ran = CliRunner().invoke(main, ["clusters", "--count", "3", "--atlas", str(small_atlas)])
    assert ran.exit_code == 1
    assert "Omit it, or use --method kmeans." in ran.stderr
    with pytest.raises(AtlasError, match=re.escape("`build('roberta-base', limit=50)`")):
        Atlas(tmp_path / "nowhere")
