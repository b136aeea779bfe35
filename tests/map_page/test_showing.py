"""What the page shows: filtered, hidden, coloured, zoomed, dark, small, large."""

from __future__ import annotations

import pytest

from query.figures import THEMES
from tests.browser import KEYS
from tests.map_page.looking import drawn, middle, settle, shown
from tests.map_page.planted import IMAGE, SCRIPT, planted_map


def test_filters_combine(page):
    page.click("#filters summary", 0)
    page.click("#filters summary", 1)
    assert page.texts("#filters details:nth-child(1) .option") == [
        "imdb\n3", "glue/mrpc\n2", "no dataset named\n1", f"{SCRIPT}\n1", "<!--<script>\n1",
    ]  # fmt: skip
    assert page.texts("#filters details:nth-child(2) .option")[:2] == ["ann\n2", "bob\n2"]
    page.click("#filters details:nth-child(1) input[type=checkbox]", 0)  # imdb
    assert shown(page) == "Models shown (3 of 7)"
    assert page.texts("#filters details:nth-child(2) .option")[:3] == ["ann\n1", "bob\n1", "local\n1"]
    page.click("#filters details:nth-child(2) input[type=checkbox]", 1)  # bob
    assert shown(page) == "Models shown (1 of 7)"
    page.click("#shown summary")
    page.wait("document.querySelector('#shown li')")
    assert page.texts("#shown li") == ["bob/bert-imdb-lora"]
    page.click("#filters details:nth-child(1) input[value='-1']")  # or no dataset
    assert page.texts("#shown li") == ["bob/bert-imdb-lora", "bob/quiet"]
    page.type("#search", "mrpc" + KEYS["enter"])
    assert "Hidden by the filters" in page.text("#selected")
    for place in (1, 2):
        page.click(f"#filters details:nth-child({place}) button")
    assert shown(page) == "Models shown (7 of 7)"
    page.type("#filters details:nth-child(2) input[type=search]", "ANN")
    assert page.texts("#filters details:nth-child(2) .option") == ["ann\n2"]


def test_the_legend_hides_groups(page):
    before = drawn(page)
    page.click("#legend button", 0)
    assert page.run("return document.querySelector('#legend button').getAttribute('aria-pressed')") == "false"
    assert shown(page) == "Models shown (4 of 7)"
    assert drawn(page) != before
    x, y = middle(page)
    page.click("#legend button", 2)  # that of the model in the middle
    page.pointer(("move", x + 50, y + 100), ("move", x, y))
    settle(page)
    assert page.run("return document.getElementById('tooltip').hidden")
    page.click("#toggle-all")
    assert (shown(page), page.text("#toggle-all")) == ("Models shown (7 of 7)", "Hide all")
    page.click("#toggle-all")
    assert shown(page) == "Models shown (0 of 7)"
    page.click("#legend button", 3)
    assert shown(page) == "Models shown (1 of 7)"


def test_another_colour(page):
    page.run("const s = document.getElementById('coloring'); s.value = '1'; s.dispatchEvent(new Event('change'))")
    assert page.texts("#coloring option") == ["dataset", "author"]
    assert page.texts("#legend button")[:2] == ["ann\n2", "bob\n2"]


def test_zoom_move_and_reset(page):
    x, y = middle(page)
    start = page.run("return [view.scale, view.x, view.y]")
    page.wheel(x, y, -300)
    page.wait(f"view.scale > {1.5 * start[0]}")
    assert page.run("return [view.x, view.y]") == pytest.approx(
        start[1:], abs=1 / start[0]
    )  # about the pointer, to a pixel
    page.pointer(
        ("move", x + 40, y + 90), ("down", 0, 0), ("move", x + 90, y + 110), ("move", x + 140, y + 90), ("up", 0, 0)
    )
    scale = page.run("return view.scale")
    assert page.run("return view.x") == pytest.approx(start[1] - 100 / scale, rel=0.05)
    assert page.run("return document.getElementById('selected').hidden")  # a drag is no click
    page.pointer(("move", x - 90, y + 140), *[("down", 0, 0), ("up", 0, 0)] * 2)
    page.wait(f"view.scale === {start[0]}")
    page.pointer(("move", x, y), ("down", 0, 0), ("up", 0, 0))
    assert page.text("#selected h2") == f"{IMAGE}/{SCRIPT}"
    page.click("#closer")
    assert page.run("return view.scale") > start[0]
    page.click("#reset")
    assert page.run("return [view.scale, view.x, view.y]") == start


def test_the_theme_follows_the_system_until_it_is_switched(page):
    ground = "return getComputedStyle(document.body).backgroundColor"
    rgb = {
        name: f"rgb({', '.join(str(int(theme.background[at : at + 2], 16)) for at in (1, 3, 5))})"
        for name, theme in THEMES.items()
    }
    assert page.run(ground) == rgb["light"]
    page.scheme("dark")
    page.wait(f"getComputedStyle(document.body).backgroundColor === '{rgb['dark']}'")
    page.click("#theme")
    assert (page.text("#theme"), page.run(ground)) == ("Theme: light", rgb["light"])
    page.click("#theme")
    page.scheme("light")
    assert (page.text("#theme"), page.run(ground)) == ("Theme: dark", rgb["dark"])
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run(ground) == rgb["light"]
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run(ground) == rgb["dark"]


def test_on_a_phone(page):
    page.size(390, 800, 2)
    page.wait("view.width <= 390")
    assert page.run("return document.scrollingElement.scrollWidth") == 390
    x, y = middle(page)
    page.pointer(("move", x + 2, y + 2), ("down", 0, 0), ("up", 0, 0), kind="touch")
    assert page.text("#selected h2") == f"{IMAGE}/{SCRIPT}"
    small = "return [...document.querySelectorAll('aside button, aside select')].filter((e) => e.offsetHeight && e.offsetHeight < 32).length"
    assert page.run(small) == 0


def test_ten_thousand_models(browser, tmp_path):
    rows = [(f"a{i % 500}/m{i}", f"a{i % 500}", (f"d{i % 40}",), "finetune", i, (i * 7919) % 10007, (i * 104729) % 10009)
            for i in range(10_000)]  # fmt: skip
    planted_map(rows, [[]] * 10_000).write(tmp_path / "many.html")
    browser.size(1200, 800)
    browser.open(tmp_path / "many.html")
    browser.wait("document.querySelector('#legend button')")
    assert browser.text("#shown summary") == "Models shown (10,000 of 10,000)"
    hovers = "for (let i = 0; i < 100; i++) { modelAt(i, 300, 5); draw(); } return true"
    assert browser.run(hovers)
    assert browser.console() == []
