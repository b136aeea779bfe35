"""What the page shows: filtered, hidden, coloured, zoomed, dark, small, large."""

from __future__ import annotations

import pytest

from query.contract.figures import THEMES
from tests.browser import KEYS
from tests.map_page.example import IMAGE, SCRIPT, drawn, example_map, middle, settle, shown_heading


def test_filters_combine(page):
    page.click("#filters summary", 0)
    page.click("#filters summary", 1)
    assert page.texts("#filters details:nth-child(1) .option") == [
        "imdb\n3", "glue/mrpc\n2", "no dataset named\n1", f"{SCRIPT}\n1", "<!--<script>\n1",
    ]  # fmt: skip
    assert page.texts("#filters details:nth-child(2) .option")[:2] == ["ann\n2", "bob\n2"]
    page.click("#filters details:nth-child(1) input[type=checkbox]", 0)  # imdb
    assert shown_heading(page) == "Models shown (3 of 7)"
    assert page.texts("#filters details:nth-child(2) .option")[:3] == ["ann\n1", "bob\n1", "local\n1"]
    page.click("#filters details:nth-child(2) input[type=checkbox]", 1)  # bob
    assert shown_heading(page) == "Models shown (1 of 7)"
    page.click("#shown summary")
    page.wait("document.querySelector('#shown tbody tr')")
    assert page.texts("#shown tbody th") == ["bob/bert-imdb-lora"]
    page.click("#filters summary", 3)
    assert page.texts("#filters details:nth-child(4) .option") == ["adapter\n1", "finetune\n0", "merge\n0"]
    assert page.texts("#legend button .number") == ["1", "0", "0", "0"]
    page.click("#filters details:nth-child(1) input[value='-1']")  # or no dataset
    assert page.texts("#shown tbody th") == ["bob/bert-imdb-lora", "bob/quiet"]
    assert page.text("#active span") == "Narrowed by dataset, author"
    page.type("#search", "mrpc" + KEYS["enter"])
    assert "Hidden by the filters" in page.text("#selected")
    for number in (1, 2):
        page.click(f"#filters details:nth-child({number}) button")
    assert shown_heading(page) == "Models shown (7 of 7)"
    page.type("#filters details:nth-child(2) input[type=search]", "ANN")
    assert page.texts("#filters details:nth-child(2) .option") == ["ann\n2"]


def test_downloads_and_an_area_filter_too(page):
    page.click("#shown summary")
    page.type("#least-downloads", "50")
    assert page.texts("#shown tbody th") == ["ann/bert-mrpc", "bob/bert-imdb-lora"]
    assert page.texts("#legend button .number") == ["1", "1", "0", "0"]
    page.click("#clear")
    assert shown_heading(page) == "Models shown (7 of 7)"
    box = page.run("return [...screenOf(-2.5, 1.2), ...screenOf(-0.5, -1.2)]")
    corner = page.run("const b = document.getElementById('map').getBoundingClientRect(); return [b.x, b.y]")
    page.run(
        """const at = ([x, y], kind) => document.getElementById("map").dispatchEvent(new PointerEvent(kind, {
             clientX: x, clientY: y, button: 0, pointerId: 1, shiftKey: true, bubbles: true }));
           document.getElementById("map").setPointerCapture = () => 0;
           at(arguments[0], "pointerdown"); at(arguments[1], "pointermove"); at(arguments[1], "pointerup");""",
        [corner[0] + box[0], corner[1] + box[1]], [corner[0] + box[2], corner[1] + box[3]],
    )  # fmt: skip
    assert sorted(page.texts("#shown tbody th")) == ["ann/bert-imdb", "ann/bert-mrpc", "eve/\\u202egnp\\u2028"]
    assert page.text("#active span") == "Narrowed by area"
    assert "area=" in page.run("writeView(); return location.hash")


def test_a_drag_over_a_histogram_filters(page):
    """From the bin of one value to that of another; all other filters count what is left."""
    bins = "return numbers[0].values.map((value) => (value === null ? null : binOf(numbers[0], value)))"
    bin_of = page.run(bins)
    assert bin_of[4] is None
    assert (bin_of[6], bin_of[1]) == (0, 23)  # zero lies in the first bin, the most in the last
    page.run("document.querySelector('.chart').scrollIntoView()")
    box = page.run(
        "const b = document.querySelector('.chart').getBoundingClientRect(); return [b.x, b.y, b.width, b.height]"
    )
    x = [box[0] + (bin_of[model] + 0.5) * box[2] / 24 for model in (2, 3)]  # 7 and 50 downloads
    page.pointer(("move", x[1], box[1] + 9), ("down", 0, 0), ("move", x[0], box[1] + 20), ("up", 0, 0))
    assert shown_heading(page) == "Models shown (2 of 7)"
    assert page.run("return state.range.downloads") == [7, 50]
    assert page.run("return ['least', 'most'].map((end) => document.getElementById(`${end}-downloads`).value)") == [
        "7",
        "50",
    ]
    page.run("writeView()")
    assert page.run("return location.hash") == "#downloads=7..50"
    assert page.run("return document.querySelectorAll('.bin.out').length") > 0
    page.click(".histogram button")
    assert shown_heading(page) == "Models shown (7 of 7)"
    page.run("location.hash = '#downloads=..6'")
    page.wait("document.querySelector('#shown summary').innerText.includes('(2 of 7)')")


def test_the_table_sorts(page):
    page.click("#shown summary")
    assert page.texts("#shown tbody th")[:3] == ["ann/bert-mrpc", "bob/bert-imdb-lora", "ann/bert-imdb"]
    assert page.texts("#shown tbody td:nth-child(6)")[-2:] == ["–", "–"]  # not known comes last
    page.click("[data-sort=downloads]")
    assert page.texts("#shown tbody td:nth-child(6)") == ["0", "4", "7", "50", "1,200", "–", "–"]
    page.click("[data-sort=model]")
    names = page.texts("#shown tbody th")
    assert names == sorted(names)
    assert page.run("return document.querySelector('[data-sort=model]').parentElement.ariaSort") == "ascending"
    page.click("#shown tbody th a", names.index("ann/bert-mrpc"))
    assert page.text("#selected h2") == "ann/bert-mrpc"
    page.click("[data-sort=similarity]")
    assert page.texts("#shown tbody td:nth-child(7)")[:2] == ["0.910", "–"]
    assert page.text("#shown tbody tr[aria-selected=true] th") == "ann/bert-mrpc"


def test_the_view_is_in_the_address(page, file):
    """Opened again from its own address, the page looks as it did; a strange address is passed over."""
    page.click("#filters summary", 0)
    page.click("#filters details:nth-child(1) input[type=checkbox]", 0)  # imdb
    page.click("#filters details:nth-child(1) input[value='-1']")  # or none
    page.click("#legend button", 3)  # none is hidden again
    page.type("#search", "lora" + KEYS["enter"])
    page.click("#shown summary")
    page.click("[data-sort=author]")
    page.click("#theme")
    page.click("#closer")
    page.wait("location.hash.includes('at=')")
    address = page.run("return location.hash")
    assert address.startswith("#model=bob%2Fbert-imdb-lora&dataset=imdb&dataset=&hide=none&at=")
    contents = (page.texts("#shown tbody th"), page.text("#selected h2"), page.text("#theme"))
    position = page.run("return [view.x, view.y, view.scale / view.whole]")
    page.open(file, address)
    page.wait("!document.getElementById('selected').hidden")
    assert (page.texts("#shown tbody th"), page.text("#selected h2"), page.text("#theme")) == contents
    assert page.run("return [view.x, view.y, view.scale / view.whole]") == pytest.approx(position, rel=1e-3, abs=1e-3)
    page.run("writeView()")
    assert page.run("return location.hash") == address
    page.open(file, "#dataset=no/such&hide=%3Dzz&at=1,2&sort=-flavour&color=taste&area=a,b,c,d&downloads=-7&model=%FF")
    page.wait("document.querySelector('#legend button')")
    assert shown_heading(page) == "Models shown (7 of 7)"


def test_names_stand_next_to_their_groups(browser, tmp_path):
    """All groups are named, one that is scattered with a line to one of its models; no name covers a model."""
    rows = [
        (
            f"a/m{i}",
            "a",
            (f"set/{i % 3}",),
            "finetune",
            1,
            10 * (i % 3) + 0.4 * (i % 2),
            4 * (i % 3) ** 2 + 0.3 * (i % 5),
        )
        for i in range(30)
    ]
    rows += [(f"b/m{i}", "b", ("all/over",), "finetune", 1, 3 * i, 2 * (i % 6)) for i in range(8)]
    example_map(rows, [[]] * len(rows)).write(tmp_path / "named.html")
    browser.size(1000, 700)
    browser.open(tmp_path / "named.html")
    browser.wait("document.querySelector('#legend button')")
    settle(browser)
    names = browser.run("return names")
    assert sorted(name["text"] for name in names) == ["all/over", "set/0", "set/1", "set/2"]
    (end,) = [name["line"][1] for name in names if name["text"] == "all/over"]
    assert browser.run("return authorOf(modelAt(...arguments[0], 5))", end) == "b"
    for x, y in browser.run("return data.models.map((_, i) => [screenX(i), screenY(i)])"):
        for name in names:
            assert abs(x - name["x"]) > name["width"] / 2 or abs(y - name["y"]) > name["height"] / 2
    assert browser.console() == []


def test_few_models_have_their_own_names(page):
    """Seven do; hidden ones have none, nor have many models."""
    settle(page)
    names = page.run("return names.map(({ text }) => text)")
    assert len(names) == 7
    assert {"bert-mrpc", "bert-imdb", "bert-imdb-lora", "quiet", "checkpoint"} <= set(names)
    page.click("#legend button", 0)
    settle(page)
    assert len(page.run("return names")) == 4
    page.click("#toggle-all")
    page.run("data.named = 7; forgetSheet(); redraw()")
    settle(page)
    assert not {"bert-mrpc", "quiet"} & set(page.run("return names.map(({ text }) => text)"))


def test_a_hint_says_that_columns_go_on(page):
    page.size(800, 800)
    page.click("#shown summary")
    page.wait("!part('onward').hidden")
    page.click("#onward")
    page.wait("scroller.scrollLeft > 100")
    page.run("scroller.scrollLeft = scroller.scrollWidth")
    page.wait("part('onward').hidden")
    page.size(1900, 800)
    page.wait("part('onward').hidden")


def test_the_legend_hides_groups(page):
    before = drawn(page)
    page.click("#legend button", 0)
    assert page.run("return document.querySelector('#legend button').getAttribute('aria-pressed')") == "false"
    assert shown_heading(page) == "Models shown (4 of 7)"
    assert drawn(page) != before
    x, y = middle(page)
    page.click("#legend button", 2)  # that of the model in the middle
    page.pointer(("move", x + 50, y + 100), ("move", x, y))
    settle(page)
    assert page.run("return document.getElementById('tooltip').hidden")
    page.click("#toggle-all")
    assert (shown_heading(page), page.text("#toggle-all")) == ("Models shown (7 of 7)", "Hide all")
    page.click("#toggle-all")
    assert shown_heading(page) == "Models shown (0 of 7)"
    page.click("#legend button", 3)
    assert shown_heading(page) == "Models shown (1 of 7)"


def test_another_colour(page):
    page.run("const s = document.getElementById('coloring'); s.value = '1'; s.dispatchEvent(new Event('change'))")
    assert page.texts("#coloring option") == ["dataset", "author"]
    assert page.texts("#legend button")[:2] == ["ann\n2", "bob\n2"]


def test_zoom_move_and_reset(page):
    x, y = middle(page)
    start = page.run("return [view.scale, view.x, view.y]")
    position = page.run("return [screenX(0), screenY(0)]")
    page.wheel(x, y, -300)
    page.wait(f"view.scale > {1.5 * start[0]}")
    assert page.run("return [screenX(0), screenY(0)]") == pytest.approx(
        position, abs=1
    )  # what is pointed at stays there
    x_before = page.run("return view.x")
    page.pointer(
        ("move", x + 40, y + 90), ("down", 0, 0), ("move", x + 90, y + 110), ("move", x + 140, y + 90), ("up", 0, 0)
    )
    scale = page.run("return view.scale")
    assert page.run("return view.x") == pytest.approx(x_before - 100 / scale, rel=0.05)
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


@pytest.mark.slow
def test_on_a_phone(page):
    page.size(390, 800, 2)
    page.wait("view.width <= 390")
    assert page.run("return document.scrollingElement.scrollWidth") == 390
    x, y = middle(page)
    page.pointer(("move", x + 2, y + 2), ("down", 0, 0), ("up", 0, 0), kind="touch")
    assert page.text("#selected h2") == f"{IMAGE}/{SCRIPT}"
    small = "return [...document.querySelectorAll('aside button, aside select')].filter((e) => e.offsetHeight && e.offsetHeight < 32).length"
    assert page.run(small) == 0


@pytest.mark.slow
def test_ten_thousand_models(browser, tmp_path):
    rows = [(f"a{i % 500}/m{i}", f"a{i % 500}", (f"d{i % 40}",), "finetune", i, (i * 7919) % 10007, (i * 104729) % 10009)
            for i in range(10_000)]  # fmt: skip
    example_map(rows, [[]] * 10_000).write(tmp_path / "many.html")
    browser.size(1200, 800)
    browser.open(tmp_path / "many.html")
    browser.wait("document.querySelector('#legend button')")
    assert browser.text("#shown summary") == "Models shown (10,000 of 10,000)"
    hovers = "for (let i = 0; i < 100; i++) { modelAt(i, 300, 5); draw(); } return true"
    assert browser.run(hovers)
    assert browser.console() == []
