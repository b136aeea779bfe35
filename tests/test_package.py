"""What is installed is what is run: data files in the wheel, commands documented, imports that stay light."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from indexer.atlas import DEMO_FOLDER
from tests.conftest import ROOT


def modules_after(statement: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {name.split(".")[0] for name in done.stdout.split()}


def test_a_question_starts_without_the_heavy_libraries():
    heavy = {"torch", "transformers", "huggingface_hub", "sklearn", "scipy", "pandas", "matplotlib", "peft"}
    assert not modules_after("import query.faces.cli, query.questions.similar, query.questions.show") & (
        heavy | {"faiss", "duckdb"}
    )
    assert (
        not modules_after(
            "import query; query.Atlas; import query.questions.purity.study, query.questions.sql, indexer.vectors"
        )
        & heavy
    )


def test_stored_neighbours_come_without_numpy(atlas):
    found = modules_after(f"from query import Atlas; Atlas({str(atlas.root)!r}).similar('ann/glue-0')")
    assert "duckdb" in found
    assert not found & {"numpy", "faiss"}


def test_looking_after_an_atlas_starts_without_torch():
    """Only reading weights needs it: a build that finds nothing new should not wait for it either."""
    heavy = {"torch", "transformers", "sklearn", "scipy", "pandas", "matplotlib", "peft"}
    imports = "import indexer.upkeep.maintenance, indexer.upkeep.verification, indexer.builds.shards"
    assert not modules_after(f"{imports}, indexer.builds.view, indexer.builds.report") & heavy


PACKAGES = {
    "PIL": "pillow",
    "sklearn": "scikit_learn",
    "triton": "torch",  # which brings it where there may be a GPU
    "umap": "umap_learn",
    "yaml": "pyyaml",
    "faiss": "faiss_cpu",
    "cyclonedx": "cyclonedx_python_lib",
    "google": "in_toto_attestation",  # which brings protobuf
    "packageurl": "packageurl_python",
    "libggml": "libggml_python",
}
# What may be imported by what: folders and files of one extra.
OF_EXTRAS = {
    "build": (
        "indexer/builds",
        "indexer/deltas",
        "indexer/machine.py",
        "indexer/profiles",
        "indexer/scans",
        "indexer/checkpoints",
        "indexer/upkeep/verification.py",
        "indexer/deltas/starts/kernel.py",
        "indexer/deltas/starts/sweep.py",
    ),
    "gguf": ("indexer/checkpoints/gguf_file.py",),
    "dask": ("indexer/builds/dask_",),
    "studies": ("query/",),
    "agents": ("query/faces/serve/",),
    "browse": ("query/faces/browse/",),
    "bom": ("query/questions/bom/",),
}


def test_every_import_is_declared_where_it_is_used():
    """A plain install has what the plain parts import; an extra has what its own parts import besides."""
    import ast
    import re
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(lines):
        return {re.split(r"[^\w-]", line)[0].replace("-", "_").lower() for line in lines} - {"vectors_in_the_wild"}

    plain = names(project["dependencies"])
    extras = {extra: names(lines) for extra, lines in project["optional-dependencies"].items()}
    used = set()
    for path in [*(ROOT / "indexer").rglob("*.py"), *(ROOT / "query").rglob("*.py")]:
        where = path.relative_to(ROOT).as_posix()
        allowed = plain.union(*(extras[extra] for extra, parts in OF_EXTRAS.items() if where.startswith(parts)))
        tree = ast.parse(path.read_text())
        only_typed = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if id(node) in only_typed:
                continue
            modules = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module]
            for module in {one.split(".")[0] for one in modules} - set(sys.stdlib_module_names) - {"indexer", "query"}:
                package = PACKAGES.get(module, module).lower()
                used.add(package)
                assert package in allowed, (
                    f"{where} imports {module}, which its part of pyproject.toml does not declare"
                )
    declared = plain.union(*(extras[extra] for extra in OF_EXTRAS))
    assert declared == used, declared ^ used


WITHOUT_TORCH = [
    "query similar ann/glue-0 --other-authors --explain", "query purity", "query show ann/glue-0", "query layers ann/glue-0",
    "query sql 'FROM models'", "index status", "index verify", "index rebuild",
]  # fmt: skip
WITH_TORCH = [
    "query similar nobody/x", "query lineage nobody/x", "index build --base a/b", "index profile", "query depth ann/glue-0",
]  # fmt: skip


def test_an_atlas_is_queried_and_kept_without_torch(atlas):
    for command, (code, said) in without_torch(WITHOUT_TORCH, atlas.root).items():
        assert code == 0, (command, said)


@pytest.mark.slow
def test_a_command_that_needs_torch_explains_how_to_install_it(atlas):
    for command, (code, said) in without_torch(WITH_TORCH, atlas.root).items():
        assert code == 1, command
        (line,) = said.splitlines()
        assert "needs torch, which is not installed" in line
        assert ".[build]" in line


def without_torch(commands, folder):
    """By command its exit code and stderr, in one process that cannot import torch, nor what comes with it."""
    code = """if True:
        import contextlib, io, json, shlex, sys

        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.partition('.')[0] in ('torch', 'transformers', 'tokenizers', 'PIL', 'regex'):
                    raise ModuleNotFoundError(f'No module named {name!r}', name=name)

        sys.meta_path.insert(0, Blocked())
        from indexer.cli import main as index
        from query.faces.cli import main as query

        found = {}
        for command in sys.argv[1:]:
            program, *words = shlex.split(command)
            said = io.StringIO()
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
                try:
                    ended = {'index': index, 'query': query}[program](words) or 0
                except SystemExit as end:
                    ended = end.code or 0
            found[command] = (ended, said.getvalue())
        print(json.dumps(found))
    """
    environment = {**os.environ, "VECTORS_ATLAS": str(folder)}
    words = [sys.executable, "-c", code, *commands]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert list(found) == list(commands)
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-B", "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)  # -B: other tests see that nothing new is there
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_holds_the_schema_and_every_architecture(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"indexer/schema.sql", "indexer/sources/cards/dataset_aliases.toml"} <= names
    for folder, pattern in (("indexer/checkpoints/architectures", "*.toml"), ("query/questions/map/pages", "*")):
        assert {f"{folder}/{path.name}" for path in (ROOT / folder).glob(pattern)} <= names


def test_the_wheel_holds_the_demo_atlas_whole(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("indexer/demo/")}
    files = {path.relative_to(ROOT).as_posix() for path in DEMO_FOLDER.rglob("*") if path.is_file()}
    assert names == files >= {"indexer/demo/atlas.duckdb", "indexer/demo/pulled.json"}


def declared(wheel: Path, extras: set[str]) -> dict[str, Distribution]:
    """The installed distributions that the wheel's metadata ask for, with these extras, and all that those ask for."""
    (metadata,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    asked = email.message_from_bytes(zipfile.ZipFile(wheel).read(metadata)).get_all("Requires-Dist")
    waiting = [(Requirement(line), extras) for line in asked]
    found: dict[str, Distribution] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement, given = waiting.pop()
        name, own = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": one}) for one in given | {""}):
            continue
        if name == "vectors-in-the-wild" or (name, own) in done:
            continue
        done.add((name, own))
        found[name] = distribution(name)
        waiting += [(Requirement(line), set(own)) for line in found[name].requires or ()]
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """``installed(*extras)``: the ``bin`` of a new environment with the wheel, and of other packages what it declares.

    The packages are links to those that are installed here: nothing is downloaded.
    """

    def install(*extras: str) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, symlinks=True)
        site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
        for package in declared(wheel, set(extras)).values():
            for file in package.files or ():
                top = file.parts[0]
                if top not in ("..", "__pycache__") and not (site / top).exists() and package.locate_file(top).exists():
                    (site / top).symlink_to(package.locate_file(top))
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel)], check=True)
        subprocess.run([*pip, "check"], check=True, capture_output=True)
        return folder / "bin"

    return install


def run_installed(program: Path, *words: str, cwd: Path, **more: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | more
    done = subprocess.run([program, *words], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_and_what_it_declares_are_enough_to_ask_an_atlas(installed, atlas, tmp_path):
    commands = installed()
    code = "import indexer, query; print(indexer.__file__, query.__file__)"
    for file in run_installed(commands / "python", "-c", code, cwd=tmp_path).split():
        assert Path(file).is_relative_to(commands.parent)
    assert "build" in run_installed(commands / "index", "--help", cwd=tmp_path)
    assert "similar" in run_installed(commands / "query", "--help", cwd=tmp_path)
    assert "similar" in run_installed(commands / "model-atlas", "--help", cwd=tmp_path)
    # ``atlas`` in the current folder is the default.
    found = json.loads(run_installed(commands / "query", "similar", "ann/glue-0", "--json", cwd=tmp_path))
    assert found
    run_installed(commands / "query", "purity", cwd=tmp_path)
    # The demo lies in the installation, which nothing writes to; it needs no network.
    (demo,) = commands.parent.glob("lib/python*/site-packages/indexer/demo")
    before = {path: path.stat().st_mtime_ns for path in (demo, *demo.rglob("*"))}
    model = "gridsweep/tiny-roberta-exception-types-lr3e-4-s7"
    found = json.loads(run_installed(commands / "query", "--atlas", "demo", "similar", model, "--json", cwd=tmp_path))
    assert len(found) == 10
    assert "lambda" in run_installed(
        commands / "query", "trace", "small-hours/tiny-roberta-in-house", cwd=tmp_path, VECTORS_ATLAS="demo"
    )
    run_installed(commands / "index", "verify", "--atlas", "demo", cwd=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (demo, *demo.rglob("*"))} == before
    run_installed(commands / "index", "verify", cwd=tmp_path)


@pytest.mark.slow
def test_the_wheel_with_build_builds_an_atlas_and_searches_it(installed, tiny_store, tmp_path):
    from scripts.loopback_hub import LoopbackHub
    from tests.tiny_hub import BASE

    commands = installed("build")
    with LoopbackHub(tiny_store(3)) as hub:
        own = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "huggingface")}
        run_installed(commands / "index", "build", "--base", BASE, "--workers", "2", cwd=tmp_path, **own)
    found = json.loads(run_installed(commands / "query", "similar", "ann/glue-0", "-k", "2", "--json", cwd=tmp_path))
    assert all("glue" in one["model"] for one in found)


@pytest.mark.slow
def test_the_sdist_holds_what_a_packager_needs_and_the_page_its_pictures(tmp_path):
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-B", "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)], cwd=ROOT, check=True,
        capture_output=True,
    )  # fmt: skip
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        (top,) = {name.partition("/")[0] for name in archive.getnames()}
        described = archive.extractfile(f"{top}/PKG-INFO").read().decode()
    for name in (
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "LICENSE",
        "SECURITY.md",
        "README.md",
        "docs/map.png",
        "indexer/demo/atlas.duckdb",
        "docs/evidence/scale.md",
        "schema.sql",
    ):
        assert name in names
    assert not {name for name in names if name.endswith(".pyc") or name.startswith((".demo", ".venv"))}
    assert "Author: the vectors-in-the-wild developers" in described
    assert described.count("Project-URL: ") == 4
    assert "](https://raw.githubusercontent.com/vectors-in-the-wild/vectors-in-the-wild/main/docs/map.png)" in described
    assert "](docs/" not in described


def test_one_version_everywhere():
    import tomllib

    from indexer import __version__

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_is_short_and_the_ranges_over_trainings_are_those_measured():
    """`python -m scripts.guide` renews what README.md shows, `python -m studies.trainings` the ranges."""
    from scripts.tables import filled
    from studies.trainings import PAGE, TRAININGS, sentences

    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
    page, trainings = PAGE.read_text(), json.loads(TRAININGS.read_text())
    assert filled(page, {"trainings": sentences(trainings)}) == page
    assert sentences([training | {"purity": 0.123} for training in trainings]) != sentences(trainings)


def test_every_command_is_in_the_guide():
    from indexer.cli import main as index
    from query.faces.cli import main as query

    text = (ROOT / "docs" / "guide" / "questions.md").read_text()
    for program, group in (("index", index), ("query", query)):
        for name, command in group.commands.items():
            assert f"{program} {name}" in text or f"`{name}`" in text, f"{program} {name}"
            assert command.help
            assert all(getattr(option, "help", True) for option in command.params if option.param_type_name == "option")
