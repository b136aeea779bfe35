"""The face says what the questions and the commands say: names and defaults are compared, not read."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

from indexer.console.typed import option_of
from query import Atlas
from tests.conftest import ROOT

# The study behind each method of the face; arguments that one of them has alone.
STUDIES = {
    "similar": ("query.similar", "similar", set(), set()),
    "purity": ("query.purity.purity", "purity", {"base", "representation", "kin"}, {"population", "trees"}),
    "show": ("query.show", "show", set(), set()),
    "sql": ("query.sql", "run_sql", set(), {"database", "stand_ins", "started"}),
    "clusters": ("query.clusters.clusters", "clusters", {"base", "representation"}, {"population"}),
    "map": ("query.map.map", "model_map", set(), set()),
    "rank": ("query.rank.rank", "rank_by_depth", set(), set()),
    "predict": ("query.predict.predict", "predict", set(), set()),
    "evaluate_prediction": ("query.predict.calibration", "evaluate", set(), set()),
    "lineage": ("query.lineage.lineage", "lineage", set(), {"limits"}),
    "lineages": ("query.lineage.lineage", "every_lineage", {"store"}, {"limits"}),
    "report": ("query.report.report", "report", set(), set()),
    "depth": ("query.depth.depth", "depth", set(), set()),
    "depth_study": ("query.depth.study", "depth_study", set(), set()),
    "invert": ("query.invert.invert", "invert", set(), set()),
    "features": ("query.features.features", "features", set(), set()),
}
# The command of each method, and what is of the command alone: how it prints, draws, or which of two methods it is.
PRINTING = {"atlas", "output", "as_json", "out", "theme", "details", "quiet", "verbose", "debug"}
COMMANDS = {
    "similar": ("similar", set()),
    "purity": ("purity", {"by"}),
    "show": ("show", set()),
    "sql": ("sql", {"limit"}),  # on a terminal fewer rows
    "clusters": ("clusters", {"by"}),
    "map": ("map", set()),
    "rank": ("rank", set()),
    "predict": ("predict", {"evaluate", "undocumented", "store"}),
    "evaluate_prediction": ("predict", {"evaluate", "model", "undocumented", "store"}),
    "lineage": ("lineage", {"every"}),
    "depth": ("depth", {"study"}),
    "depth_study": ("depth", {"study", "model", "against"}),
    "invert": ("invert", set()),
    "features": ("features", set()),
    "report": ("report", set()),
}
# Where the command's option has another name, or nothing given means the same as the method's default.
SAME_AS = {"timeout": "seconds"}
NOTHING = (None, False, (), inspect.Parameter.empty)


def signature(function):
    return {name: one for name, one in inspect.signature(function).parameters.items() if name not in ("self", "atlas")}


@pytest.mark.parametrize("method", STUDIES)
def test_a_method_has_the_arguments_of_its_study(method):
    module, function, own, of_study = STUDIES[method]
    face, study = signature(getattr(Atlas, method)), signature(getattr(importlib.import_module(module), function))
    assert {name: one.default for name, one in face.items() if name not in own} == {
        name: one.default for name, one in study.items() if name not in of_study
    }


def test_every_question_of_the_face_is_compared_and_documented():
    questions = {name for name, one in vars(Atlas).items() if inspect.isfunction(one) and not name.startswith("_")}
    assert questions >= set(STUDIES)
    for name in questions:
        assert getattr(Atlas, name).__doc__, name
        kinds = {one.kind for one in signature(getattr(Atlas, name)).values()}
        assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}, name


def compared(options, parameters, alone):
    """Every option of a command is an argument of the same default."""
    for option in options:
        if option.name in PRINTING | alone:
            continue
        name = SAME_AS.get(option.name, option.name)
        if name.startswith("no_"):
            assert parameters[name[3:]].default is True, name
            continue
        assert name in parameters, name
        default, asked = parameters[name].default, option.default
        is_unset = asked is None or repr(asked) == "Sentinel.UNSET" or asked in ((), False)
        assert (default in NOTHING) if is_unset else default == asked, (name, default, asked)


@pytest.mark.parametrize("method", COMMANDS)
def test_a_command_has_the_arguments_of_its_method(method):
    from query.cli import main

    command, alone = COMMANDS[method]
    compared(main.commands[command].params, signature(getattr(Atlas, method)), alone)


def test_build_and_add_have_the_arguments_of_their_commands():
    import indexer
    from indexer.cli import main

    for name, function in (("build", indexer.build), ("add", indexer.add)):
        parameters = dict(inspect.signature(function).parameters)
        parameters["bases"] = parameters["base"]
        compared(main.commands[name].params, parameters, {"yes", "name", "adopt"})
        assert parameters["atlas"].default == "atlas"
        options = {SAME_AS.get(option.name, option.name) for option in main.commands[name].params}
        for own in set(parameters) - {"base", "bases", "atlas", "progress", "model"}:
            value = parameters[own].default
            assert own in options or option_of(own, not value)[2:].replace("-", "_") in options, own


def test_the_package_is_what_it_says():
    import indexer
    import indexer.builds.plan  # a part of the package that builds
    import query

    assert callable(indexer.build)
    assert query.__version__ == indexer.__version__
    assert issubclass(query.AtlasError, Exception)


@pytest.mark.parametrize("statement", ["import indexer", "import query"])
def test_the_doors_are_light(statement):
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"numpy", "duckdb", "torch", "click", "huggingface_hub"} & set(done.stdout.split())


@pytest.mark.slow
def test_mypy_refuses_an_argument_that_there_is_not(tmp_path):
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
