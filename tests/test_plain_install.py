"""Without the extras, and without a home: one line names what to install, and caches find another place."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import stat
import sys
import tomllib
from pathlib import Path

import pytest

import query
from indexer import user_folders
from indexer.console.terminal import explain
from indexer.errors import _EXTRAS, AtlasError, missing_extra, naming_extras
from query import Atlas
from query.contract.results import Drawn
from tests.tiny_hub import BASE

PROJECT = Path(__file__).resolve().parent.parent
OPTIONAL = ("build", "studies", "dask", "agents", "browse")


class Blocked:
    """A finder for which these modules are not installed."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def without(monkeypatch):
    """``without("studies")``: as if the packages of these extras were not installed."""

    def block(*extras):
        names = {module for module, (extra, _) in _EXTRAS.items() if extra in extras}
        for name in [one for one in sys.modules if one.partition(".")[0] in names]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(sys, "meta_path", [Blocked(names), *sys.meta_path])

    return block


def drawn_classes(kind=Drawn):
    for one in kind.__subclasses__():
        yield one
        yield from drawn_classes(one)


def test_every_optional_package_has_its_extra():
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in OPTIONAL:
        named = {re.split(r"[<>=\[]", one)[0] for one in extras[extra]} - {"vectors-in-the-wild"}
        assert named == {package for of, package in _EXTRAS.values() if of == extra}, extra


def test_every_picture_names_the_extra(without, made_of_twelve):
    for found in pkgutil.walk_packages(query.__path__, "query."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    classes = [one for one in drawn_classes() if "figure" in vars(one)]
    assert len(classes) >= 10
    without("studies")
    for one in classes:
        assert hasattr(one.figure, "__wrapped__"), one
    with Atlas(made_of_twelve / "atlas") as atlas:
        for answer in (atlas.layers("ann/glue-0"), atlas.purity(draws=20), atlas.map(method="pca"), atlas.clusters()):
            if isinstance(answer, Drawn):
                for attempt in (answer.figure, lambda answer=answer: answer.write("x.png")):
                    with pytest.raises(AtlasError, match=r"A picture needs matplotlib.*'\.\[studies\]'"):
                        attempt()
        with pytest.raises(AtlasError, match=r"umap-learn.*'\.\[studies\]'"):
            atlas.map(method="umap")
        with pytest.raises(AtlasError, match=r"pandas.*'\.\[studies\]'"):
            atlas.models().to_df()


def test_the_report_says_which_sections_need_an_extra_and_goes_on(without, made_of_twelve):
    without("studies", "build")
    with Atlas(made_of_twelve / "atlas") as atlas:
        report = atlas.report(BASE)
    assert len(report.sections) == 16
    lacking = [one for one in report.missing if ".[studies]" in one.why]
    assert {"purity", "map"} <= {one.section for one in lacking}
    assert all(one.why.startswith("A picture needs matplotlib, which is not installed.") for one in lacking)
    assert report.html.count("needs matplotlib") >= len(lacking)


def test_a_missing_optional_module_is_named_wherever_it_is_imported():
    def broken():
        raise ModuleNotFoundError("No module named 'umap.layouts'", name="umap.layouts")

    with pytest.raises(AtlasError, match=r"^A map needs umap-learn, which is not installed.*'\.\[studies\]'$"):
        naming_extras(broken, "A map")()
    assert explain(ModuleNotFoundError("x", name="torch")).startswith("This needs torch, which is not installed.")
    # Another module is a fault of the program or of the installation.
    other = ModuleNotFoundError("No module named 'query.nothing'", name="query.nothing")
    assert missing_extra(other) is None
    assert explain(other).startswith("ModuleNotFoundError")


# ---- no home


@pytest.fixture
def caches(monkeypatch, tmp_path):
    """The variables as ``find_caches`` leaves them for a user whose home is given."""

    def of(home, **more):
        for name in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "HF_TOKEN_PATH", "HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        (tmp_path / "tmp").mkdir(exist_ok=True)
        if home is not None:
            monkeypatch.setenv("HOME", str(home))
        for name, value in more.items():
            monkeypatch.setenv(name, value)
        user_folders.find_caches()
        return {name: os.environ.get(name) for name in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "MPLCONFIGDIR")}

    return of


def unwritable(monkeypatch, *folders):
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (mode & os.W_OK and Path(path) in folders) and real(path, mode)
    )


def test_a_home_that_can_be_written_changes_nothing(caches, tmp_path):
    assert caches(tmp_path) == dict.fromkeys(("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "MPLCONFIGDIR"))


def test_without_a_writable_home_caches_are_private_and_temporary(caches, monkeypatch, tmp_path):
    (tmp_path / "home" / ".cache" / "huggingface").mkdir(parents=True)
    (tmp_path / "home" / ".cache" / "huggingface" / "token").write_text("hf_x")
    unwritable(monkeypatch, tmp_path / "home" / ".cache")
    found = caches(tmp_path / "home", MPLCONFIGDIR="/mine")
    folder = user_folders.private_folder()
    assert folder.parent == tmp_path / "tmp"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert found == {
        "XDG_CACHE_HOME": f"{folder}/cache",
        "NUMBA_CACHE_DIR": f"{folder}/cache/numba",
        "MPLCONFIGDIR": "/mine",
    }
    assert os.environ["HF_TOKEN_PATH"].endswith("/home/.cache/huggingface/token")


@pytest.mark.parametrize("planted", ["link", "open to others"])
def test_a_planted_folder_is_not_used(caches, monkeypatch, tmp_path, planted):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    folder = user_folders.private_folder()
    if planted == "link":
        folder.symlink_to(tmp_path, target_is_directory=True)
    else:
        folder.mkdir()
        folder.chmod(0o777)
    unwritable(monkeypatch, tmp_path)
    monkeypatch.setattr(user_folders.tempfile, "tempdir", str(tmp_path / "tmp"))
    used = Path(caches(tmp_path / "no" / "home")["XDG_CACHE_HOME"])
    assert folder not in used.parents
    assert stat.S_IMODE(used.parent.stat().st_mode) == 0o700
