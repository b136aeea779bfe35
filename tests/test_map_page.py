"""The page to explore, in a real browser: found, filtered, hovered, hidden; nothing planted runs, nothing is loaded."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import pytest

from query.figures import THEMES
from query.map import MapPoint, ModelMap
from query.mapping.coloring import grouped, scaled
from query.mapping.page import SCRIPTS, page_data
from query.population import LeftOut
from tests.browser import KEYS, Browser, missing_browser

IMAGE = "<img src=x onerror=window.planted=1>"
SCRIPT = "</script><script>window.planted=1</script>"

# model, author, datasets, relation, downloads, x, y: the first lies in the middle of the map.
ROWS = [
    (f"{IMAGE}/{SCRIPT}", IMAGE, (SCRIPT, "<!--<script>"), "finetune", 4, 0, 0),
    ("ann/bert-mrpc", "ann", ("glue/mrpc",), "finetune", 1200, -2, 1),
    ("ann/bert-imdb", "ann", ("imdb",), "finetune", 7, -2, -1),
    ("bob/bert-imdb-lora", "bob", ("imdb",), "adapter", 50, 2, 1),
    ("bob/quiet", "bob", (), "finetune", None, 2, -1),
    ("/home/me/checkpoint", "local", ("imdb",), "finetune", None, 1, 0.5),
    ("eve/\u202egnp\u2028", "eve", ("glue/mrpc",), "merge", 0, -1, 0.5),
]
NEIGHBOURS = [[(1, 0.91), (2, 0.5)], [(0, 0.91)], [(0, 0.5)], [(5, 0.75)], [], [(3, 0.75)], []]


def planted_map(rows=ROWS, neighbours=NEIGHBOURS, **options):
    groups = grouped("dataset", [row[2][0] if row[2] else None for row in rows])
    return ModelMap(
        base=f"org/{IMAGE}",
        representation="input",
        seed=0,
        points=tuple(
            MapPoint(number, model, author, relation, datasets, downloads, float(x), float(y), groups.of(number), None)
            for number, (model, author, datasets, relation, downloads, x, y) in enumerate(rows)
        ),
        **{
            "method": "umap",
            "coloring": groups,
            "left_out": LeftOut(unrelated=2),
            "notes": ("A note.",),
            "other_colorings": (grouped("author", [row[1] for row in rows]),),
            "neighbours": tuple(map(tuple, neighbours)),
        }
        | options,
    )


# ---- without a browser ----


def test_the_page_holds_everything_and_asks_for_nothing():
    page = planted_map().html()
    assert page == planted_map().html()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.startswith("default-src &#x27;none&#x27;;")
    assert "unsafe" not in policy
    assert not re.search(r"<(link|img|iframe|object|embed)|<[^>]*\ssrc=|@import|url\(", page.split('id="data"')[0])
    assert page.count("<script") == page.count("</script") == 2
    assert page.count("<!--") == 0
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert not re.search(r"[<>&\u2028\u2029]", data)
    assert json.loads(data) == json.loads(json.dumps(page_data(planted_map())))


def test_strings_are_only_ever_set_as_text():
    from importlib.resources import files

    for name in SCRIPTS:
        script = (files("query.mapping") / "pages" / name).read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|setTimeout\(['\"]", script
        )
        assert "</script" not in script
        assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(", script)


def test_what_the_page_is_told():
    data = page_data(planted_map(coloring=scaled("downloads", [row[4] for row in ROWS])))
    assert data["onHub"] == [False, True, True, True, True, False, False]
    assert data["models"][6] == "eve/\\u202egnp\\u2028"
    assert data["neighbours"][0] == [1, 0.91, 2, 0.5]
    assert [[data["datasets"][code] for code in codes] for codes in data["dataset"]] == [list(row[2]) for row in ROWS]
    assert [data["authors"][code] for code in data["author"]] == [row[1] for row in ROWS]
    assert data["colorings"][0]["values"] == [4, 1200, 7, 50, None, None, 0]
    assert data["axes"] is None
    shares = [*page_data(planted_map(method="pca", explained_variance=(0.5, 0.25)))["axes"]]
    assert shares == [
        "principal component 1 (50.0 % of the variance)",
        "principal component 2 (25.0 % of the variance)",
    ]


# ---- in a browser ----


@pytest.fixture(scope="module")
def browser():
    if missing_browser():
        pytest.skip(missing_browser())
    with Browser() as running:
        yield running


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    planted_map().write(folder / "map.html")
    return folder / "map.html"


@pytest.fixture
def page(browser, file):
    """The page, freshly opened; whatever a test does, the console stays silent and nothing else is asked for."""
    browser.size(1200, 800)
    browser.scheme("light")
    browser.open(file)
    browser.wait("document.querySelector('#legend button')")
    yield browser
    assert browser.console() == []
    assert set(browser.requests()) == {file.as_uri()}
    assert browser.run("return window.planted === undefined && !document.querySelector('img, #data script')")


def middle(page):
    """The window's pixel where the first model lies."""
    box = page.run(
        "const b = document.getElementById('map').getBoundingClientRect(); return [b.x, b.y, b.width, b.height]"
    )
    return box[0] + box[2] / 2, box[1] + box[3] / 2


def shown(page):
    return page.text("#shown summary")


def settle(page):
    """Until what was asked for is drawn."""
    page.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")


def drawn(page):
    settle(page)
    return page.run("return document.getElementById('map').toDataURL()")


def test_what_is_there_at_first(page):
    assert page.text("h1") == f"7 fine-tunes of org/{IMAGE}"
    assert "UMAP" in page.text("header p")
    assert "left out: 2 unrelated" in page.text("header p")
    assert page.run("return document.title") == f"7 fine-tunes of org/{IMAGE}"
    assert page.texts("#legend button") == ["imdb\n3", "glue/mrpc\n2", f"{SCRIPT}\n1", "no dataset named\n1"]
    assert page.text("#legend .key") == "adapters (1)"
    assert shown(page) == "Models shown (7 of 7)"
    assert page.text("#notes") == "A note."
    assert page.run("return document.getElementById('selected').hidden")


def test_hovering_tells_of_a_model(page):
    x, y = middle(page)
    before = drawn(page)
    page.pointer(("move", x + 80, y + 80), ("move", x, y))
    page.wait("!document.getElementById('tooltip').hidden")
    told = page.text("#tooltip")
    for words in (f"{IMAGE}/{SCRIPT}", f"author: {IMAGE}", f"datasets: {SCRIPT}, <!--<script>", "relation: finetune",
                  "downloads: 4", "0.910 ann/bert-mrpc", "0.500 ann/bert-imdb"):  # fmt: skip
        assert words in told
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
    assert link == ["https://huggingface.co/ann/bert-mrpc", "noopener noreferrer", "_blank", "Open on the Hub"]
    assert page.text("#selected dl").split("\n") == [
        "author", "ann", "dataset", "glue/mrpc", "relation", "finetune", "downloads", "1,200",
    ]  # fmt: skip
    page.click("#selected .nearest button")
    assert page.text("#selected h2") == f"{IMAGE}/{SCRIPT}"
    assert page.run("return document.querySelectorAll('#selected a').length") == 0  # that is no id of the Hub
    page.click("#selected > button")
    assert page.run("return document.getElementById('selected').hidden")
    assert page.run("return location.hash") == ""
    for name in ("checkpoint", "gnp"):
        page.run("document.getElementById('search').value = ''")
        page.type("#search", name + KEYS["enter"])
        assert name in page.text("#selected h2")
        assert page.run("return document.querySelectorAll('#selected a').length") == 0


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


def test_nothing_planted_would_run_or_reach_the_network(browser, file):
    browser.open(file)
    ran = browser.run("""
      const script = document.createElement("script");
      script.textContent = "window.planted = 1";
      document.body.append(script);
      const image = document.createElement("div");
      image.setAttribute("onclick", "window.planted = 1");
      document.body.append(image);
      image.click();
      return window.planted ?? null;""")
    assert ran is None
    asked = browser.run("return fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.name)")
    assert asked == "TypeError"
    refused = "\n".join(line for line in browser.console() if "Content Security Policy" in line)
    assert "inline script" in refused
    assert "inline event handler" in refused
    assert "http://127.0.0.1:9/" in refused
    assert browser.requests() == [file.as_uri()]


def test_ten_thousand_models(browser, tmp_path):
    rows = [(f"a{i % 500}/m{i}", f"a{i % 500}", (f"d{i % 40}",), "finetune", i, (i * 7919) % 10007, (i * 104729) % 10009)
            for i in range(10_000)]  # fmt: skip
    planted_map(rows, [[]] * 10_000).write(tmp_path / "many.html")
    browser.size(1200, 800)
    browser.open(tmp_path / "many.html")
    browser.wait("document.querySelector('#legend button')")
    assert browser.text("#shown summary") == "Models shown (10,000 of 10,000)"
    hovers = "const t = performance.now(); for (let i = 0; i < 100; i++) { modelAt(i, 300, 5); draw(); } return performance.now() - t"
    assert browser.run("draw(); " + hovers) / 100 < 16  # milliseconds: one frame
    assert browser.console() == []
