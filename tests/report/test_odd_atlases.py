"""Small and odd atlases give a page that says what is missing; the command writes it."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import cache

import pytest

from indexer.errors import AtlasError
from query import Atlas
from query.contract.figures import draw
from query.faces.report.page import Section
from tests.atlas_builder import BASE, Model, family, write_atlas
from tests.conftest import Shell
from tests.halves import a_few
from tests.report.conftest import BUILDS, SECTIONS, indexed, skipped
from tests.report_reader import Page

pytestmark = pytest.mark.slow


def odd_atlases():
    """Models, and the sections in which something must be said to be missing."""
    models = family()
    silent = [replace(model, datasets=()) for model in models]
    return {
        "nothing": ([], {"crawl", "names", "purity", "map", "clusters", "prediction", "rank", "pairs", "models"}),
        "only skipped": (
            [skipped("a/b", "gated")],
            {"names", "purity", "map", "clusters", "prediction", "rank", "pairs", "models"},
        ),
        "one": (models[:1], {"purity", "clusters", "prediction", "rank", "pairs"}),
        "two": ([models[0], models[6]], {"clusters", "rank", "pairs"}),  # unlike each other
        "two of one dataset": (models[:2], {"clusters", "rank"}),
        "five": ([*models[:3], *models[6:8]], {"clusters", "rank"}),
        "only a copy": (
            [Model("a/b", is_copy=True)],
            {"names", "purity", "map", "clusters", "prediction", "rank", "pairs"},
        ),
        "no datasets": (silent, {"names", "purity", "prediction", "rank"}),
        "one author": ([replace(model, author="solo") for model in models], {"rank", "pairs"}),
        "one dataset": ([replace(model, datasets=("d",)) for model in models], {"rank"}),
        "no ranks": ([replace(model, ranks=None) for model in models], {"rank"}),
        "all alike": ([replace(model, vector=models[0].vector) for model in models], {"rank"}),
    }


def always_light(figure):
    """The same picture for every theme."""
    drawn = cache(figure)
    return lambda _theme: drawn("light")


@pytest.mark.parametrize("name", a_few(odd_atlases(), {"nothing", "no datasets"}))
def test_odd_atlases_give_a_page_that_says_what_is_missing(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "umap", None)  # its import alone takes longer than all of these
    # The two themes differ in their colours alone: here one is drawn, and stands for both.
    picture = Section.picture
    monkeypatch.setattr("query.faces.report.page.draw", cache(draw))
    monkeypatch.setattr(Section, "picture", lambda self, figure, marks=0: picture(self, always_light(figure), marks))
    models, missing = odd_atlases()[name]
    builds = [] if name == "nothing" else BUILDS
    with Atlas(write_atlas(tmp_path, models, builds=builds)) as atlas:
        report = atlas.report()
    page = Page(report.html)
    assert list(report.sections) == SECTIONS
    assert report.models == len(indexed(models))
    sections_missing = {item.section for item in report.missing if "umap" not in item.why}
    assert "depth" in sections_missing  # none of them is profiled
    sections_missing -= {"depth"}
    if name in ("two", "two of one dataset", "five"):
        sections_missing -= {"purity", "prediction"}  # may say something or nothing
    assert sections_missing == missing
    for item in report.missing:
        assert item.why in page.missing(item.section)
        assert len(item.why) > 20
    with_tables = {table.section for table in page.tables}
    assert all(page.section_text(section) or section in with_tables for section in SECTIONS if section != "words")


def test_an_atlas_without_any_representation(tmp_path):
    with Atlas(write_atlas(tmp_path, family(), representations=())) as atlas:
        report = atlas.report()
    why = {item.section: item.why for item in report.missing}
    assert why["purity"] == "No representation is published for this base."
    assert "index represent input" in why["map"]
    assert Page(report.html).table("Datasets by number of models").column("models") == ["6", "6", "6"]


def test_without_matplotlib_the_pictures_are_sentences_and_the_rest_stays(tmp_path, monkeypatch):
    folder = write_atlas(tmp_path, family())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "umap", None)
    with Atlas(folder) as atlas:
        report = atlas.report()
    page = Page(report.html)
    assert not page.attributes("img")
    for section in ("purity", "prediction", "rank", "map"):
        assert any(".[studies]" in text for text in page.missing(section))
    assert page.table("Purity by representation").rows
    assert page.table("Rank of δW: best fit").rows


def test_errors_of_ours_are_not_swallowed(tmp_path, monkeypatch):
    def broken(*_arguments, **_options):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("query.faces.report.studies.clusters", broken)
    with Atlas(write_atlas(tmp_path, [])) as atlas, pytest.raises(ZeroDivisionError):
        atlas.report()


def test_an_unknown_base_is_refused(folder):
    with Atlas(folder) as atlas, pytest.raises(AtlasError, match="not a base of this atlas"):
        atlas.report("somebody/else")


# ---- as a person would


def test_the_command_writes_the_page(tmp_path):
    models = [*family()[:5], skipped("a/b", "gated")]  # too few for UMAP, whose import takes long
    folder = write_atlas(tmp_path / "paper", models, builds=BUILDS)
    shell = Shell("http://127.0.0.1:9", tmp_path)
    result = shell("query", "report", "--atlas", str(folder), "--out", "page.html", "--json")
    assert result.code == 0, result.err
    written = (tmp_path / "page.html").read_text()
    assert result.json["base"] == BASE
    assert result.json["models"] == 5
    assert result.json["sections"] == SECTIONS
    assert result.json["bytes"] == len(written.encode())
    assert result.json["file"] == "page.html"
    assert {item["section"] for item in result.json["missing"]} >= {"rank", "clusters"}
    assert [line for line in result.err.splitlines() if re.match(r"\d+ of \d+: ", line)][3].endswith("lie together?")
    refused = shell("query", "report", "--atlas", str(folder), "--out", "page.pdf")
    assert refused.code == 2
    assert "page.pdf does not end in .html" in refused.err
