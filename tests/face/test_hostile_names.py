"""Names that hold markup, scripts, styles, templates or invisible characters stay text in every page and picture."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from markupsafe import escape

from query import Atlas
from query.contract.figures import draw
from query.questions.layers import stored_layers
from query.questions.lineage.result import Edge, tree_figure
from tests.atlas_builder import family, write_atlas

HOSTILE = (
    "<script>window.pwned=1</script>", "</script><script>alert(1)</script>", "</title></svg><image href=//evil.example/x>",
    "<svg onload=alert(1)>", '" onmouseover="alert(1)', "{{ 7 * 7 }}{% include '/etc/passwd' %}", "${alert(1)}{name}%s%n",
    "</style><style>*{background:url(//evil.example)}", "data:text/html;base64,PHNjcmlwdD4=", "javascript:alert(1)",
    "first\nsecond\r\nthird\ttab", "x\u202egnp.exe\u2066", "a\u2028b\u200bc\ufeff\u00ad", "\x1b[31mred\x07\x7f", "]]><!-- --><![CDATA[",
    "$\\frac{1}{0}$ a$b_c^", "long" * 2000, "&lt;b&gt;&amp;&#60;",
)  # fmt: skip
FORBIDDEN = {"script", "foreignObject", "iframe", "object", "embed", "b", "animate", "set"}


@pytest.fixture(scope="module")
def atlas(tmp_path_factory):
    models = [
        replace(
            one, model=f"{evil}/{place}{evil}", author=evil, datasets=(f"{place // 6}{HOSTILE[place // 6]}", evil), raw=None,
            licence=evil, languages=(evil,), head=(f"For{evil}", 2), relation="adapter" if place == 4 else "finetune",
        )
        for place, (one, evil) in enumerate(zip(family(), HOSTILE, strict=True))
    ]  # fmt: skip
    folder = write_atlas(tmp_path_factory.mktemp("names") / "atlas", models, base=f"o'rg/{HOSTILE[0]}")
    with Atlas(folder) as opened:
        yield opened


def check_svg(content: bytes) -> None:
    text = content.decode()
    for one in "\u202e\u2066\u200b\x1b\x07\x7f":
        assert one not in text
    for element in ElementTree.fromstring(text).iter():
        assert element.tag.rpartition("}")[2] not in FORBIDDEN
        for name, value in element.attrib.items():
            assert not name.rpartition("}")[2].startswith("on")
            if name.rpartition("}")[2] in ("href", "src"):
                assert value.startswith(("#", "data:image/png;base64,"))
        assert "evil.example" not in (element.get("style") or "")
        if element.tag.endswith("}style"):
            assert "evil.example" not in (element.text or "")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "question",
    [
        lambda atlas: atlas.map(method="pca"),
        lambda atlas: atlas.map(method="pca", color="author"),
        lambda atlas: atlas.map(method="pca", color="licence"),
        lambda atlas: atlas.purity(draws=9),
        lambda atlas: atlas.evaluate_prediction(),
        lambda atlas: atlas.rank(),
        lambda atlas: stored_layers(atlas, 3, HOSTILE[2], HOSTILE[1]),
    ],
    ids=["map", "map by author", "map by licence", "purity", "evaluation", "rank", "layers"],
)
def test_in_pictures(atlas, question, theme):
    check_svg(draw(question(atlas).figure(theme), ".svg"))


def test_in_a_family_tree():
    names = [f"{evil}/{place}" for place, evil in enumerate(HOSTILE)]
    edges = [
        Edge(child, parent, "continued", 1.0, 0.1, "because of its weights", card="confirmed", probability=0.9)
        for parent, child in zip([HOSTILE[1], *names[:-1]], names, strict=True)
    ]  # fmt: skip
    check_svg(draw(tree_figure(edges, HOSTILE[1], "light", names[3]), ".svg"))


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, {name: value or "" for name, value in attributes}))


def check_page(page: str, scripts: int) -> None:
    found = Elements(page).elements
    assert sum(tag == "script" for tag, _ in found) == scripts
    for tag, attributes in found:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("href", "src", "srcset", "action"):
                assert value.startswith(("#", "data:image/", "https://huggingface.co/")), value[:80]
    assert not {one for one in page if not one.isprintable()} - {"\n", "\u00a0"}
    assert "49" not in re.findall(r"\D(49)\{%", page)  # the template of a name is not computed


def test_in_the_page_of_a_map(atlas, tmp_path):
    drawn = atlas.map(method="pca")
    for theme in ("light", "dark"):
        drawn.write(tmp_path / "map.html", theme)
        page = (tmp_path / "map.html").read_text(encoding="utf-8")
        check_page(page, 2)
        (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
        assert "<" not in data
        assert {one.partition("/")[0] for one in _strings(json.loads(data))} >= {"<script>window.pwned=1<"}
    drawn.write(tmp_path / "map.svg")
    check_svg((tmp_path / "map.svg").read_bytes())


def _strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)


@pytest.mark.slow
def test_in_the_report(atlas, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    page = atlas.report().html
    check_page(page, 0)
    for evil in HOSTILE[:10]:
        assert str(escape(evil)) in page
