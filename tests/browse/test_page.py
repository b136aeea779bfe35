"""What a person sees of `query browse`, in a real browser."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from urllib.parse import quote

import pytest

from tests.browse.atlases import MERGED
from tests.browse.served import ENDLESS, FIRST, children, choose, model_page, opened
from tests.browser import KEYS
from tests.map_page.example import drawn, settle, shown_heading
from tests.patience import wait_for
from tests.report.conftest import EVIL


def test_what_is_there_at_first(page):
    assert page.text("h1") == page.run("return document.title") == "42 fine-tunes of org/base"
    assert "PCA" in page.text("#subtitle")
    assert "left out: 2 copies of the base, 1 unrelated to the base, 1 duplicate" in page.text("#subtitle")
    assert shown_heading(page) == "Models shown (42 of 42)"
    assert page.texts("#legend button")[:3] == ["data/set0\n8", "data/set1\n8", "data/set2\n7"]
    assert page.texts("#shown thead th") == [
        "model", "dataset", "relation", "cluster", "author", "licence", "predicted", "downloads ↓", "likes", "created",
        "relative norm", "mean rank", "energy kept",
    ]  # fmt: skip
    assert page.texts(".histogram .title") == ["downloads", "likes", "created", "relative norm", "mean rank"]
    assert page.run("return document.getElementById('unplaced').hidden && document.getElementById('base').hidden")
    colours = page.run("const p = pen.getImageData(0, 0, canvas.width, canvas.height).data; const s = new Set(); "
                       "for (let i = 0; i < p.length; i += 4) s.add(p[i] * 65536 + p[i+1] * 256 + p[i+2]); return s.size")  # fmt: skip
    page.console()  # the browser advises on reading pixels
    assert colours > 20
    assert {"data/set0", "data/set2"} <= {name["text"] for name in page.run("return names")}  # next to their groups


def test_histograms_facets_map_and_table_filter_each_other(page):
    before = drawn(page)
    page.click("#filters details:nth-child(1) input[type=checkbox]", 0)
    assert shown_heading(page) == "Models shown (8 of 42)"
    assert drawn(page) != before
    assert page.texts("#filters details:nth-child(2) .option") == ["finetune\n8", "adapter\n0"]
    bars = "return [...document.querySelectorAll('.histogram:nth-child(3) .now')].filter((bar) => bar.style.height !== '0%').length"
    few = page.run(bars)
    page.click("#filters details:nth-child(1) input[type=checkbox]", 0)
    assert page.run(bars) > few
    page.run("document.querySelectorAll('.chart')[3].scrollIntoView({ block: 'center' })")
    box = page.run(
        "const b = document.querySelectorAll('.chart')[3].getBoundingClientRect(); return [b.x, b.y, b.width, b.height]"
    )
    page.pointer(
        ("move", box[0] + 1, box[1] + 20), ("down", 0, 0), ("move", box[0] + box[2] / 2, box[1] + 20), ("up", 0, 0)
    )
    low, high = page.run("return state.range.norm")
    models = page.run(
        "return numbers[3].values.filter((v) => v !== null && v >= arguments[0] && v <= arguments[1]).length", low, high
    )
    assert 0 < models < 40
    assert shown_heading(page) == f"Models shown ({models} of 42)"
    assert page.text("#active span") == "Narrowed by norm"
    dates = page.run(
        "return [part('least-created').type, part('least-created').labels.length, part('least-created').ariaLabel]"
    )
    assert dates == ["date", 0, "created, at least"]
    page.click("#clear")
    assert shown_heading(page) == "Models shown (42 of 42)"
    page.run("const i = part('least-created'); i.value = '2026-02-20'; i.dispatchEvent(new Event('input'))")
    assert shown_heading(page) == "Models shown (9 of 42)"
    page.run("writeView()")
    assert page.run("return location.hash") == "#created=2026-02-20.."


def test_a_condition_in_sql_filters(page, served):
    page.type("#where", "model LIKE 'kim/%'" + KEYS["enter"])
    page.wait("document.querySelector('#shown summary').innerText.includes('(4 of 42)')")
    assert page.text("#active span") == "Narrowed by condition"
    page.run("writeView()")
    address = page.run("return location.href")
    assert address == served.address + "#where=model%20LIKE%20'kim%2F%25'"
    page.run("part('where').value = ''")
    page.type("#where", "flavour = 3" + KEYS["enter"])
    page.wait("part('where-message').textContent.includes('flavour')")
    opened(page, address)
    page.wait("document.querySelector('#shown summary').innerText.includes('(4 of 42)')")
    page.click("#clear")
    assert shown_heading(page) == "Models shown (42 of 42)"
    assert page.run("return part('where').value") == ""
    assert all("400" in line for line in page.console())  # the refused condition


def test_the_page_of_a_model(page):
    model_page(page, FIRST)
    assert page.texts("#model-page h3") == [
        "Facts", "Where it changed", "Nearest models", "Its training text, by its embedding", "Probably tuned on",
        "Lineage", "Depth profile",
        "Results that it reports", "Card",
    ]  # fmt: skip
    assert page.texts(".heat thead th") == ["layer", "query", "value"]
    assert len(page.texts(".heat tbody tr")) == 6
    page.run("const s = part('measure'); s.value = 'rank_50'; s.dispatchEvent(new Event('change'))")
    assert page.texts(".heat tbody td")[:4] == ["2", "5", "3", "5"]
    assert page.run("return document.querySelectorAll('#model-page svg').length") == 3
    assert page.texts("#model-page figcaption")[1] == "Tokens that a linear map reads\nshare of tokens, by layer"
    page.wait("document.querySelector('[aria-label=\"Probably tuned on\"] table')")
    assert "was most probably tuned on" in page.text('[aria-label="Probably tuned on"] p')
    near = page.texts('[aria-label="Nearest models"] tbody td:nth-child(2)')
    assert len(near) == 10
    assert page.texts('[aria-label="Nearest models"] tbody td:nth-child(4)')[0] == "none of 999 pairs"
    page.click('[aria-label="Nearest models"] tbody a')
    page.wait(f"document.querySelector('#model-page h2').innerText === {near[0]!r}")
    assert page.text("#selected h2") == near[0]
    page.wait("document.querySelector('#model-page dl')")
    page.click("#model-page .close")
    assert page.run("return part('model-page').hidden")


@pytest.mark.slow
def test_lineage_on_both_sides(page):
    model_page(page, "author2/set0-2")
    assert page.texts('[aria-label="Lineage"] tbody tr')[0].split("\t")[:2] == ["author1/set0-1", "merge (linear)"]
    page.click('[aria-label="Lineage"] tbody a', 1)
    page.wait(f"document.querySelector('#model-page h2').innerText === {FIRST!r}")
    page.wait("document.querySelector('[aria-label=\"Lineage\"]')")
    assert "Made from it: 1." in page.text('[aria-label="Lineage"]')
    assert page.run("return data.ids[state.selected]") == 1
    assert page.texts("#selected .kin-of a") == ["author2/set0-2\nmerge, weight 0.40; card: confirmed"]
    assert MERGED == 3


def test_the_view_is_in_the_address(page, served):
    page.click("#filters details:nth-child(1) input[type=checkbox]", 0)
    page.run("state.range.likes = [1, 5]; refresh()")
    page.click("[data-sort=norm]")
    model_page(page, FIRST)
    page.click("#theme")
    page.run("writeView()")
    address = page.run("return location.href")
    assert address.startswith(served.address + "#model=author0%2Fset0-0&dataset=data%2Fset0&likes=1..5&sort=-norm")
    assert address.endswith("&page=model")
    contents = (
        page.texts("#shown tbody th"),
        page.text("#selected h2"),
        page.text("#theme"),
        page.text("#model-page h2"),
    )
    opened(page, address)
    page.wait("document.querySelector('#model-page dl')")
    assert (
        page.texts("#shown tbody th"),
        page.text("#selected h2"),
        page.text("#theme"),
        page.text("#model-page h2"),
    ) == contents
    page.run("writeView()")
    assert page.run("return location.href") == address
    opened(page, served.address + "#page=magic&model=%FF&where=&likes=x..y&base=no/such&sort=&created=never..")
    assert shown_heading(page) == "Models shown (42 of 42)"


def test_hostile_names_are_text(page, served):
    """Everything is looked at with every hostile string in it; what they tried is checked at the end of every test."""
    names = page.run("return data.models")
    assert any("\\u202e" in name for name in names)
    assert not any(character in name for name in names for character in "\u202e\u2028\u200b\ufeff\x1b\x07")
    assert max(map(len, names)) <= 300
    for number, evil in enumerate(EVIL[:6] + EVIL[10:11] + EVIL[13:14]):
        i = page.run(
            "return data.models.findIndex((name, i) => i > 25 && name.startsWith(arguments[0].slice(0, 4)))", evil
        )
        if i < 0:
            continue
        page.run("openModel(arguments[0]); hover(arguments[0], 40, 40)", i)
        page.wait("document.querySelector('#model-page dl')")
        assert (
            page.run("return document.querySelectorAll('#model-page script, #selected script, #tooltip script').length")
            == 0
        )
        assert page.run(
            "return [...document.querySelectorAll('a')].every((a) => "
            "a.href.startsWith('https://huggingface.co/') || a.href.startsWith(arguments[0] + '#model='))",
            served.address,
        ), number
        page.run("writeView(); readView()")
        assert page.run("return state.selected") == i
    page.run("openOverlay('sql'); statement.value = 'SELECT model, author FROM models'; return runStatement()")
    page.wait("document.querySelector('#sql-rows tbody tr:nth-child(42)')")
    assert (
        page.run("return document.querySelectorAll('[onclick], [onload], [onmouseover], [style*=expression]').length")
        == 0
    )


def test_the_header_of_the_names_stays_above_them(page):
    page.size(900, 800)
    page.run("scroller.scrollLeft = 300; scroller.scrollTop = 400")
    settle(page)
    lefts = page.run(
        "return ['thead th', 'tbody tr[aria-rowindex] th'].map((one) => scroller.querySelector(one).getBoundingClientRect().left)"
    )
    assert lefts == [page.run("return scroller.getBoundingClientRect().left")] * 2
    assert page.run("return scroller.scrollLeft") == 300
    seen = "const b = scroller.querySelector('thead th').getBoundingClientRect(); return document.elementFromPoint(b.left + 9, b.top + 9)"
    assert page.run(f"{seen}.innerText") == "model"


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_neither_models_nor_names_lie_under_the_buttons(page, width, height):
    """Nor at the edge."""
    page.size(width, height)
    settle(page)
    page.run("showAll(); draw()")
    box = page.run("const b = part('zoom').getBoundingClientRect(), c = canvas.getBoundingClientRect(); "
                   "return [b.left - c.left, b.bottom - c.top]")  # fmt: skip
    radius = page.run("return radius()")
    points = page.run("return mixed.map((i) => [screenX(i), screenY(i)])")
    assert len(points) == 38
    for x, y in points:
        assert 20 < x < width - 20
        assert x + radius < box[0] or y - radius > box[1]
    for name in page.run("return names"):
        assert name["x"] + name["width"] / 2 < box[0] or name["y"] - name["height"] / 2 > box[1], name["text"]


def test_names_are_links_that_open_in_a_tab(page, served):
    links = "const a = document.querySelectorAll(arguments[0])[0]; return [a.href, a.innerText]"
    href, name = page.run(links, "#shown tbody a")
    assert href == f"{served.address}#model={quote(name, safe='')}&page=model"
    page.run("window.here = true")
    with_key = "const e = new MouseEvent('click', { ctrlKey: true, cancelable: true, bubbles: true }); " \
               "document.addEventListener('click', (e) => { window.kept = !e.defaultPrevented; e.preventDefault(); }, { once: true }); " \
               "document.querySelector('#shown tbody a').dispatchEvent(e); return window.kept && state.selected"  # fmt: skip
    assert page.run(with_key) == -1  # the browser opens a tab, and nothing is chosen here
    page.click("#shown tbody a")
    assert page.text("#selected h2") == name
    assert page.run("return window.here && part('model-page').hidden")
    near = page.run(links, "#selected .nearest a")
    assert near[0].startswith(f"{served.address}#model=")
    opened(page, href)
    page.wait("document.querySelector('#model-page dl')")
    assert page.text("#model-page h2") == name
    assert page.run("return document.title") == f"{name} · 42 fine-tunes of org/base"
    page.click("#model-page .close")
    assert page.run("return document.title") == "42 fine-tunes of org/base"


def test_an_id_is_copied(page):
    choose(page, FIRST)
    origin = page.run("return location.origin")
    page.devtools(
        "Browser.grantPermissions", origin=origin, permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
    )
    for where in ("#selected", "#model-page"):
        if where == "#model-page":
            page.click("#all-known")
            page.wait("document.querySelector('#model-page dl')")
        page.run("return navigator.clipboard.writeText('before')")
        page.click(f"{where} .copy")
        page.wait(f"document.querySelector('{where} .copy').innerText === 'Copied'")
        assert page.run("return navigator.clipboard.readText()") == FIRST


def saved(page, folder, name, selector):
    """The rows of the CSV that a click saves."""
    page.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.click(selector)
    wait_for((folder / name).exists)
    with (folder / name).open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_what_is_shown_is_saved_as_csv(page, tmp_path):
    page.click("#filters details:nth-child(1) input[type=checkbox]", 0)
    page.run("sortBy('created', true)")
    head, *rows = saved(page, tmp_path, "models.csv", "#csv")
    assert head == [name.rstrip(" ↓↑") for name in page.texts("#shown thead th")]
    assert [row[0] for row in rows] == page.run("return sorted.map((i) => data.models[i])")
    assert len(rows) == 8
    created = page.run("return sorted.map((i) => numbers.find(({ name }) => name === 'created').values[i])")
    assert [row[head.index("created")] for row in rows][:1] == [
        datetime.fromtimestamp(created[0], UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    ]
    formula = page.run("return ['=1+1', '-2', -2, null, 'a,\"b\"', { a: [1] }].map(csvCell)")
    assert formula == ["'=1+1", "'-2", "-2", "", '"a,""b"""', '"{""a"":[1]}"']


def test_a_statement_is_in_the_address_next_to_the_tables(page, served, tmp_path):
    page.click("#open-sql")
    page.wait("document.querySelector('#tables details')")
    assert {"models", "dataset_counts", "deltas", "lineage"} <= set(
        page.run("return [...document.querySelectorAll('#tables summary')].map((s) => s.innerText)")
    )
    columns = "return [...document.querySelectorAll('#tables details')].find((d) => d.innerText.startsWith('models')).textContent"
    assert "modelVARCHAR" in page.run(columns)
    assert page.run("return document.title") == "SQL · 42 fine-tunes of org/base"
    statement = "SELECT 1 AS a, 'x,y' AS b, [1, 2] AS c, model FROM models ORDER BY model_id LIMIT 2"
    page.run("statement.value = arguments[0]", statement)
    page.click("#run")
    page.wait("document.querySelector('#sql-rows tbody tr')")
    assert page.texts("#sql-rows thead th") == ["a", "b", "c", "model"]
    assert saved(page, tmp_path, "rows.csv", "#sql-csv")[:2] == [["a", "b", "c", "model"], ["1", "x,y", "[1,2]", FIRST]]
    page.run("writeView()")
    address = page.run("return location.href")
    assert address == served.address + "#page=sql&sql=" + quote(statement, safe="!~*'()")
    opened(page, address)
    page.wait("document.querySelectorAll('#sql-rows tbody tr').length === 2")
    assert page.run("return statement.value") == statement


def test_a_statement_is_stopped(page, served):
    page.click("#open-sql")
    page.run("statement.value = arguments[0]", ENDLESS)
    page.click("#run")
    assert page.text("#run") == "Stop"
    wait_for(lambda: children(served))
    page.click("#run")
    page.wait("part('sql-message').innerText === 'Stopped.'")
    assert page.text("#run") == "Run"
    wait_for(lambda: not children(served))


def test_on_a_phone_a_chosen_row_scrolls_to_its_card(page):
    page.size(390, 844)
    settle(page)
    page.run("document.querySelector('#shown').scrollIntoView()")
    page.click("#shown tbody a", 1)
    top, height = page.run("const b = part('selected').getBoundingClientRect(); return [b.top, b.height]")
    assert -1 <= top < 300
    assert height > 100
    assert page.texts("#selected button")[-1] == "Clear"
    page.run("[...document.querySelectorAll('#selected button')].at(-1).click()")
    assert page.run("return state.selected") == -1


def test_a_prediction_is_asked_for_when_the_page_of_a_model_opens(page):
    """Not before: placing the models and choosing one that names a data set ask for none."""
    assert not [address for address in page.requests() if "/predict/" in address]
    model_page(page, FIRST)
    page.wait("document.querySelector('[aria-label=\"Probably tuned on\"] table')")
    assert [address for address in page.requests() if "/predict/" in address]
    assert page.run("return document.getElementById('predict').hidden")


def test_the_card_of_an_undocumented_model_says_what_it_was_probably_tuned_on(page):
    """By the stored prediction, or by one that is made once; a model that names a data set needs none."""
    choose(page, FIRST)
    assert not page.run("return Boolean(part('probably'))")
    for _ in range(2):
        choose(page, "zoe/silent")
        page.wait("part('probably')?.innerText.startsWith('Probably tuned on data/set0 (')")
        choose(page, FIRST)
    assert len([address for address in page.requests() if "/predict/" in address]) == 1
    page.run("facet.dataset.of = () => [NONE]; choose(1)")  # the second model, whose prediction is stored
    assert page.text("#probably") == "Probably tuned on data/set0 (90 %)"


def test_models_in_rows_of_sql_are_shown_on_the_map(page, served):
    page.click("#open-sql")
    page.run("statement.value = arguments[0]", "SELECT model_id, 'x' AS other FROM models WHERE model LIKE 'kim/%'")
    page.click("#run")
    page.wait("!part('sql-map').hidden")
    assert page.text("#sql-map") == "Show these 4 models on the map"
    page.click("#sql-map")
    assert page.run("return part('sql-page').hidden")
    assert shown_heading(page) == "Models shown (4 of 42)"
    assert page.text("#active span") == "Narrowed by SQL"
    page.run("writeView()")
    address = page.run("return location.href")
    assert "#rows=SELECT" in address
    opened(page, address)
    page.wait("document.querySelector('#shown summary').innerText.includes('(4 of 42)')")
    page.click("#clear")
    assert shown_heading(page) == "Models shown (42 of 42)"
    page.click("#open-sql")
    page.run("statement.value = 'SELECT 1 AS one'")
    page.click("#run")
    page.wait("part('sql-message').innerText === '1 row.'")
    assert page.run("return part('sql-map').hidden")


def test_no_number_is_rounded_to_nothing(page):
    assert page.run("return [0, 3, 0.25, 0.0000123, 0.98765, 1234.5].map(shortNumber)") == [
        "0", "3", "0.25", "0.0000123", "0.988", "1230",
    ]  # fmt: skip


def test_everything_without_a_mouse(page):
    page.type("#map", KEYS["escape"])  # a new window has no focus before its first key
    page.run("document.querySelector('#shown tbody a').focus()")
    first = page.run("return document.activeElement.innerText")
    page.run("window.at = () => document.activeElement.dataset.place")
    for key, index in (("down", "1"), ("down", "2"), ("up", "1")):
        page.type("#shown tbody a:focus", KEYS[key])
        assert page.run("return at()") == index
    page.type("#shown tbody a:focus", KEYS["enter"])
    assert page.text("#selected h2") == page.run("return data.models[sorted[1]]") != first
    page.run("part('all-known').focus()")
    page.type("#all-known", KEYS["enter"])
    page.wait("document.querySelector('#model-page dl')")
    assert page.run("return document.activeElement.id") == "model-page"
    page.type("#model-page", KEYS["escape"])
    assert page.run("return part('model-page').hidden")
    page.type("#map", KEYS["right"] + KEYS["enter"])
    assert page.run("return state.selected") != -1
    unnamed = """return [...document.querySelectorAll('button, input, select, canvas, summary, textarea')]
      .filter((e) => e.checkVisibility() && !(e.innerText || e.getAttribute('aria-label') || e.labels?.length)).length"""
    assert page.run(unnamed) == 0
