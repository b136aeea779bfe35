"""The report's words and parts."""

from __future__ import annotations

import re
import shlex
import sys

import pytest

from query import Atlas
from query.contract.figures import new_figure
from query.faces.report.page import Section, code, model_link
from query.models.reader import CrawlSource
from query.shared import wording
from tests.atlas_builder import Model, write_atlas
from tests.report_reader import Page


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (1, "100 %"), (0.5, "50 %"), (0.085, "8.5 %"), (0.0949, "9.5 %"), (0.1, "10 %"), (0.994, "99 %"),
     (0.9951, "99.5 %"), (0.99999, "> 99.9 %"), (0.0001, "< 0.1 %"), (None, "–")],
)  # fmt: skip
def test_percent(share, text):
    assert wording.percent(share).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (72_600_000, "72.6 MB"), (205_092_904, "205 MB"),
     (999_600, "1.0 MB"), (3_200_000_000_000_000, "3200 TB")],
)  # fmt: skip
def test_size(number, text):
    assert wording.size(number).replace("\u00a0", " ") == text


def test_numbers():
    assert wording.decimal(-0.0001) == "0.00"
    assert wording.decimal(-0.126) == "−0.13"
    assert wording.duration(89.0) == "89\u00a0s"
    assert wording.duration(150.0) == "2\u00a0min"
    assert wording.counted(1, "copy", "copies") == "1 copy"
    assert wording.counted(1234, "copy", "copies") == "1,234 copies"
    assert wording.literal("o'rg") == "'o''rg'"
    assert shlex.split(wording.sql("SELECT 'it''s $HOME'")) == ["query", "sql", "SELECT 'it''s $HOME'"]


def test_parts_are_escaped():
    assert code("<b>&\x1b") == "<code>&lt;b&gt;&amp;\\x1b</code>"
    link = model_link('a/<b>"', 'https://huggingface.co/a"')
    assert link == '<a class="id" href="https://huggingface.co/a&#34;" rel="noopener nofollow">a/&lt;b&gt;&#34;</a>'
    assert 'href="https://huggingface.co/owner/name"' in model_link("owner/name", "https://huggingface.co/owner/name")
    for strange in ("/home/me/model", "../x", "a/b/c", "owner/na me", "javascript:x", "owner/..", "", "a" * 500):
        assert CrawlSource().page_of(strange) is None
        assert "href" not in model_link(strange, None)


@pytest.mark.parametrize(
    ("specs", "endpoint", "options"),
    [
        ([], "https://huggingface.co", None),
        ([{"rank": 8}], "https://huggingface.co", None),
        (
            [{"rank": 8}, {"endpoint": "http://hub.lan:81/x/", "options": ["--spectra"]}],
            "http://hub.lan:81/x",
            ("--spectra",),
        ),
        ([{"endpoint": "javascript:alert(1)//", "options": []}], "https://huggingface.co", None),
        ([{"endpoint": 'https://a" onload=x', "options": []}, "odd", None], "https://huggingface.co", None),
    ],
)
def test_links_go_to_the_hub_that_was_crawled(specs, endpoint, options):
    crawled = CrawlSource.of(specs)
    assert (crawled.endpoint, crawled.options) == (endpoint, options)
    assert crawled.page_of("owner/name") == f"{endpoint}/owner/name"


def test_the_options_of_a_build_are_those_typed():
    from datetime import datetime

    from indexer.builds.options import BuildOptions

    assert BuildOptions(workers=3, memory=5).as_words() == []
    since = datetime(2024, 1, 31)
    chosen = BuildOptions(limit=5, relation="merge", discover="names", spectra=True, since=since, keep_factors=False)
    words = ["--limit", "5", "--relation", "merge", "--discover", "names", "--since", "2024-01-31"]
    assert chosen.as_words() == [*words, "--read", "full", "--spectra", "--no-keep-factors"]


def test_long_tables_are_cut_and_the_command_gives_all(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    models = [Model(f"a{n}/m", datasets=(f"set{n:02}",)) for n in range(40)]
    folder = write_atlas(tmp_path, models, base="o'rg/base")
    with Atlas(folder) as atlas:
        page = Page(atlas.report().html)
        assert len(page.table("Datasets by number of models").rows) == 25
        more, command = re.search(
            r"and (\d+) more\. All: (query sql .*dataset_counts.*)", page.section_text("names")
        ).groups()
        assert int(more) == 15
        assert len(atlas.sql(shlex.split(command)[-1]).rows) == 40


def test_pictures_of_many_points_are_images():
    def figure(theme):
        drawn, axes = new_figure(2, 1, theme)
        axes.plot([0, 1])
        return drawn

    kinds = []
    for marks in (1500, 1501):
        kinds.append(Section("map", "The map").picture(figure, marks=marks)["light"].partition(";")[0])
    assert kinds == ["data:image/svg+xml", "data:image/png"]


def score(purity, chance, p_value):
    from query.questions.purity.result import PurityScore

    return PurityScore(
        models=9, candidates=9, datasets=2, purity=purity, chance=chance, p_value=p_value, note="Why not."
    )


@pytest.mark.parametrize(
    ("plain", "across", "ending"),
    [
        ((0.8, 0.1, 0.001), (0.8, 0.1, 0.001), "not only because one person made them."),
        ((0.8, 0.1, 0.001), (0.2, 0.1, 0.3), "habits of single uploaders."),
        ((0.2, 0.1, 0.3), (0.2, 0.1, 0.3), "do not show that the vectors depend on the data."),
        ((0.05, 0.1, 0.001), (0.2, 0.1, 0.3), "do not show that the vectors depend on the data."),
        ((0.8, 0.1, 0.001), (None, None, None), "only on whose scripts were used."),
    ],
)  # fmt: skip
def test_the_sentence_on_purity_claims_no_more_than_the_numbers(plain, across, ending):
    from query.questions.purity.result import PurityResult, verdict

    result = PurityResult(**vars(score(*plain)), base="b", representation="input", cross_author=score(*across))
    sentences = verdict(result)
    assert sentences[-1].endswith(ending)
    if across[0] is None:
        assert "Why not." in sentences[-1]
