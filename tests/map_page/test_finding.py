"""Models on the page: hovered, searched, linked to, chosen."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.browser import KEYS
from tests.map_page.example import IMAGE, SCRIPT, drawn, middle, settle, shown_heading


def test_what_is_there_at_first(page):
    assert page.text("h1") == f"7 fine-tunes of org/{IMAGE}"
    assert "UMAP" in page.text("header p")
    assert "left out: 2 unrelated" in page.text("header p")
    assert page.run("return document.title") == f"7 fine-tunes of org/{IMAGE}"
    assert page.texts("#legend button") == ["imdb\n3", "glue/mrpc\n2", f"{SCRIPT}\n1", "no dataset named\n1"]
    assert page.texts("#legend .key") == ["whole models (6)", "adapters (1)"]
    assert shown_heading(page) == "Models shown (7 of 7)"
    assert page.text("#notes") == "A note."
    assert page.run("return document.getElementById('selected').hidden")


def test_hovering_tells_of_a_model(page):
    x, y = middle(page)
    before = drawn(page)
    page.pointer(("move", x + 80, y + 80), ("move", x, y))
    page.wait("!document.getElementById('tooltip').hidden")
    answer = page.text("#tooltip")
    for words in (f"{IMAGE}/{SCRIPT}", f"author: {IMAGE}", f"datasets: {SCRIPT}, <!--<script>", "relation: finetune",
                  "downloads: 4", "0.910 ann/bert-mrpc", "0.500 ann/bert-imdb"):  # fmt: skip
        assert words in answer
    settle(page)
    on_the_way = """
      const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const along = (of) => (0.3 * of(arguments[0]) + 0.7 * of(0) - 2) * view.ratio;
      copy.drawImage(pen.canvas, along(screenX), along(screenY), 4, 4, 0, 0, 4, 4);
      return [...copy.getImageData(0, 0, 4, 4).data].some((part) => part < 200)"""
    assert [page.run(on_the_way, other) for other in (1, 2, 3, 4)] == [True, True, False, False]  # lines to two
    page.pointer(("move", x + 60, y + 130))
    page.wait("document.getElementById('tooltip').hidden")
    assert drawn(page) == before


def test_search_by_keys(page):
    page.type("#search", "BERT ann")
    assert page.texts("#found li") == ["ann/bert-mrpc", "ann/bert-imdb"]  # the most downloaded first
    assert page.run("return document.getElementById('search').getAttribute('aria-expanded')") == "true"
    page.type("#search", KEYS["down"])
    active = "return document.getElementById(document.getElementById('search').getAttribute('aria-activedescendant'))"
    assert page.run(active + ".innerText") == "ann/bert-imdb"
    page.type("#search", KEYS["enter"])
    assert page.text("#selected h2") == "ann/bert-imdb"
    assert page.run("return location.hash") == "#model=ann%2Fbert-imdb"
    assert page.run("return document.getElementById('found').hidden")
    assert "ann/bert-imdb" in page.run("return document.getElementById('said').textContent")


def test_search_by_pointer_and_in_vain(page):
    page.type("#search", "lora")
    page.click("#found li")
    assert page.text("#selected h2") == "bob/bert-imdb-lora"
    page.type("#search", "zzz")
    assert page.texts("#found li") == ["no model has that in its name"]
    page.type("#search", KEYS["enter"])
    assert page.text("#selected h2") == "bob/bert-imdb-lora"


def test_a_link_opens_at_its_model(page, file):
    page.open(file, f"#model={quote('ann/bert-mrpc', safe='')}")
    page.wait("!document.getElementById('selected').hidden")
    assert page.text("#selected h2") == "ann/bert-mrpc"
    page.run("location.hash = arguments[0]", f"#model={quote(f'{IMAGE}/{SCRIPT}', safe='')}")
    page.wait("document.querySelector('#selected h2').innerText.startsWith('<img')")
    page.run("location.hash = '#model=nobody/knows'")
    assert page.text("#selected h2") == f"{IMAGE}/{SCRIPT}"


def test_the_chosen_model(page):
    page.type("#search", "mrpc" + KEYS["enter"])
    link = page.run("const a = document.querySelector('#selected a'); return [a.href, a.rel, a.target, a.innerText]")
    assert link == ["http://hub.example:8080/ann/bert-mrpc", "noopener noreferrer", "_blank", "Open on the Hub"]
    assert page.text("#selected dl").split("\n") == [
        "dataset", "glue/mrpc", "author", "ann", "licence", "mit", "relation", "finetune", "downloads", "1,200",
    ]  # fmt: skip
    assert page.text("#selected .nearest:last-of-type .facts") == f"{SCRIPT}, <!--<script> · none of 399 pairs"
    page.click("#selected .nearest:last-of-type a")
    assert page.texts("#selected .nearest:last-of-type .facts") == ["glue/mrpc · 1 in 400", "imdb · 4 in 10"]
    assert page.text("#selected h2") == f"{IMAGE}/{SCRIPT}"
    assert (
        page.run("return document.querySelectorAll('#selected a[href^=http]').length") == 0
    )  # that is no id of the Hub
    page.click("#selected > button")
    assert page.run("return document.getElementById('selected').hidden")
    assert page.run("return location.hash") == ""
    for name in ("checkpoint", "gnp"):
        page.run("document.getElementById('search').value = ''")
        page.type("#search", name + KEYS["enter"])
        assert name in page.text("#selected h2")
        assert page.run("return document.querySelectorAll('#selected a[href^=http]').length") == 0


def test_where_the_chosen_model_comes_from(page):
    page.type("#search", "mrpc" + KEYS["enter"])
    assert page.texts("#selected h3")[:2] == ["Made from", "Made into"]
    assert page.texts("#selected .kin") == [f"org/{IMAGE}\ntuned from the base; card: confirmed"]
    page.click("#selected .kin-of a")  # what was made of it
    assert page.text("#selected h2") == f"{IMAGE}/{SCRIPT}"
    assert page.texts("#selected .kin-of li") == [
        "ann/bert-mrpc\nmerge, weight 0.40; card: confirmed", "far/away\nmerge, weight 0.60; card: not declared",
    ]  # fmt: skip
    page.click("#selected .kin-of a")
    assert page.text("#selected h2") == "ann/bert-mrpc"


@pytest.mark.slow
def test_everything_without_a_mouse(page):
    page.run("document.getElementById('map').focus()")
    page.type("#map", KEYS["right"])
    page.wait("!document.getElementById('tooltip').hidden")
    assert page.text("#tooltip .id") == f"{IMAGE}/{SCRIPT}"  # the nearest to the middle
    page.type("#map", KEYS["right"])
    assert page.text("#tooltip .id") == "/home/me/checkpoint"
    page.type("#map", KEYS["enter"])
    assert page.text("#selected h2") == "/home/me/checkpoint"
    page.type("#map", KEYS["escape"])
    assert page.run("return document.getElementById('selected').hidden")
    scale = page.run("return view.scale")
    page.type("#map", "++")
    assert page.run("return view.scale") > scale
    page.type("#map", "0")
    assert page.run("return view.scale") == scale
    unnamed = """return [...document.querySelectorAll('button, input, select, canvas, summary')]
      .filter((e) => e.checkVisibility() && !(e.innerText || e.getAttribute('aria-label') || e.labels?.length)).length"""
    assert page.run(unnamed) == 0
