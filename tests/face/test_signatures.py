"""Methods and commands have the same arguments with the same defaults."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest

import indexer
from indexer.builds.options import BuildOptions, ProfileOptions
from indexer.console.option import Option, choices_in
from indexer.console.options import Options, options_of, with_options
from indexer.errors import BadArgument
from query import Atlas
from query.contract.registry import commands
from query.contract.registry import questions as listed
from tests.conftest import ROOT

# What is of a command alone: how it prints.
PRINTING = {"atlas", "output", "as_json", "out", "theme", "details", "quiet", "verbose", "debug"}


def signature(function):
    return {name: one for name, one in inspect.signature(function).parameters.items() if name not in ("self", "atlas")}


def questions():
    return sorted(
        name for name, one in inspect.getmembers(Atlas, inspect.isfunction) if name in vars(Atlas) and name[0] != "_"
    )


def test_every_question_has_a_signature_and_a_docstring():
    assert {*listed(), "schema", "similar_many"} == set(questions())
    shown = pydoc.render_doc(Atlas, renderer=pydoc.plaintext)
    for name in questions():
        method = getattr(Atlas, name)
        kinds = {one.kind for one in signature(method).values()}
        assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}, name
        assert f"{name}(" in shown or f"{name} = " in shown, name


def test_a_command_has_the_defaults_of_its_methods():
    """Options of the command alone have other names, or say that nothing was given."""
    from query.faces.cli import main

    checked = 0
    for name, entries in commands().items():
        methods = [signature(getattr(Atlas, entry.name)) for entry in entries]
        for option in main.commands[name].params:
            is_negated = option.name.startswith("no_")
            wanted = [one[option.name.removeprefix("no_")] for one in methods if option.name.removeprefix("no_") in one]
            nothing = (
                option.default is None or repr(option.default) == "Sentinel.UNSET" or option.default in ((), False)
            )
            for parameter in wanted:
                unset = (True,) if is_negated else (None, False, (), inspect.Parameter.empty)
                same = parameter.default in unset if nothing else parameter.default == option.default
                own = {
                    ("purity", "by"),
                    ("clusters", "by"),
                    ("sql", "limit"),
                }  # more choices, or fewer rows on a terminal
                assert same or (name, option.name) in own, (name, option.name, parameter.default, option.default)
                checked += 1
    assert checked > 60


# The Python function of each command of `index` whose options are a data class, and what is of the command alone.
FUNCTIONS = {
    "build": ("build", {"bases", "yes", "adopt"}),
    "work": ("work", {"base", "shard"}),
    "publish": ("publish_records", {"bases"}),
    "add": ("add", {"models", "base"}),
    "deepen": ("deepen", {"models", "base", "yes"}),
    "starts": ("find_starts", {"models", "base"}),
    "profile": ("profile", {"models", "base", "dry_run"}),
    "rebuild": ("rebuild", set()),
    "represent": ("represent", {"name"}),
    "push": ("push", {"name"}),
}


@pytest.mark.parametrize("command", FUNCTIONS)
def test_the_command_the_function_and_the_options_agree(command):
    """They have the same names, and the command's defaults say no more than no options at all."""
    from indexer.cli import main

    name, alone = FUNCTIONS[command]
    function = getattr(indexer, name)
    options, parameters = function.__options__, signature(function)
    defaults = {}
    for option in main.commands[command].params:
        if option.name not in PRINTING | alone:
            value = None if repr(option.default) == "Sentinel.UNSET" else option.default
            positive = option.name.removeprefix("no_")
            defaults[positive] = not value if positive != option.name else value
    only_in_python = {"work": {"executor", "scheduler"}, "push": {"pack_bytes"}}.get(command, set())
    described = {one.name: one.default for one in options_of(options)}
    assert set(defaults) == set(described) - only_in_python
    assert options(**{name: value for name, value in defaults.items() if value is not None}) == options()
    assert described.items() <= {name: one.default for name, one in parameters.items()}.items()
    assert all(f"- ``{name}``" in function.__doc__ for name in described)


@pytest.mark.parametrize("options", [BuildOptions, ProfileOptions])
def test_bounds_and_choices_hold_for_calls_from_python(options):
    wrong = []
    for one in options_of(options):
        option = one.option
        wrong += [(one.name, "none of them")] if choices_in(one.type, option) else []
        wrong += [(one.name, option.least - 1)] if option.least is not None else []
        wrong += [(one.name, option.most + 1), (one.name, float("nan"))] if option.most is not None else []
    assert len(wrong) > 15
    for name, value in wrong:
        with pytest.raises(BadArgument, match=f"`{name}`"):
            options(**{name: value})


def test_a_call_gives_its_options_by_name_and_checked():
    """Numbers of numpy are plain, None is the default where it is no value, and a wrong name is named."""

    @dataclass(frozen=True, kw_only=True)
    class Greeting(Options):
        count: Annotated[int, Option("How often.", 1, 9)] = 2
        loud: Annotated[bool, Option("Quietly.")] = True

    @with_options(Greeting)
    def greet(name: str, *, options: Greeting) -> tuple[str, Greeting]:
        """Say hello."""
        return name, options

    assert greet("Ann", count=np.int64(3)) == ("Ann", Greeting(count=3))
    assert type(greet("Ann", count=np.int64(3))[1].count) is int
    assert greet(name="Ann", count=None)[1] == Greeting()
    assert list(inspect.signature(greet).parameters) == ["name", "count", "loud"]
    assert greet.__doc__.endswith("- ``count`` (2): How often.\n- ``loud`` (True): False: quietly.\n")
    with pytest.raises(TypeError, match=r"greet\(\) got an unexpected keyword argument 'cuont'"):
        greet("Ann", cuont=3)
    with pytest.raises(BadArgument, match="`count` is 10; it must be from 1 to 9"):
        greet("Ann", count=10)


@pytest.mark.parametrize("statement", ["import indexer", "import query"])
def test_importing_a_package_loads_no_large_library(statement):
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"numpy", "duckdb", "torch", "click", "huggingface_hub"} & set(done.stdout.split())


@pytest.mark.slow
def test_mypy_refuses_an_unknown_argument(tmp_path):
    script = tmp_path / "asks.py"
    script.write_text(
        "from indexer import build\n"
        "from query import Atlas\n"
        "a = Atlas('atlas')\n"
        "a.similar('m', other_authors=True).to_df()\n"
        "reveal_type(build('base'))\n"
        "reveal_type(build(['base']))\n"
        "a.similar('m', other_author=True)\n"
        "build('base', rankk=3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(script)],  # with what `make test` has kept of its own run, else 40 s
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if "asks.py" in line and ": error:" in line]
    assert {line.split(":")[1] for line in errors} == {"7", "8"}, done.stdout
    assert '"indexer.builds.report.BuildReport"' in done.stdout
    assert "list[indexer.builds.report.BuildReport]" in done.stdout


@pytest.mark.parametrize(("method", "of_many"), [("similar", "similar_many"), ("predict", "predict_many")])
def test_many_models_are_asked_about_with_the_arguments_of_one(method, of_many):
    arguments, of_all = (set(inspect.signature(getattr(Atlas, name)).parameters) for name in (method, of_many))
    assert arguments - {"model"} <= of_all
