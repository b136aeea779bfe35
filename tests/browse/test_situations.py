"""`query browse` in a real browser: small and dark screens, SQL, new generations, other bases, many models."""

from __future__ import annotations

from urllib.parse import quote

import duckdb
import pytest

from query.contract.figures import THEMES
from tests.browse.atlases import OTHER
from tests.browse.served import FIRST, Served, choose, model_page, opened, publish_again
from tests.map_page.example import settle, shown_heading


@pytest.mark.slow
def test_on_a_phone_and_in_the_dark(page):
    page.size(400, 800, 2)
    page.scheme("dark")
    dark = THEMES["dark"].background
    rgb = f"rgb({', '.join(str(int(dark[at : at + 2], 16)) for at in (1, 3, 5))})"
    page.wait(f"view.width <= 400 && getComputedStyle(document.body).backgroundColor === '{rgb}'")
    assert page.run("return document.scrollingElement.scrollWidth") == 400
    model_page(page, FIRST)
    assert page.run("return getComputedStyle(part('model-page')).backgroundColor") == rgb
    assert page.run("return part('model-page').scrollWidth") <= 400
    assert page.run("return part('model-page').getBoundingClientRect().width") == 400
    page.click("#model-page .close")
    small = "return [...document.querySelectorAll('aside button, aside select, #tools button')].filter((e) => e.offsetHeight && e.offsetHeight < 32).length"
    assert page.run(small) == 0


def test_sql(page):
    page.click("#open-sql")
    page.run("statement.value = ''")
    page.type("#statement", "SELECT model, downloads FROM models ORDER BY downloads DESC LIMIT 3")
    page.click("#run")
    page.wait("document.querySelector('#sql-rows tbody tr')")
    assert page.text("#sql-message") == "3 rows."
    assert page.texts("#sql-rows tbody tr")[0] == "zoe/silent\t999"
    page.click("#sql-rows tbody a")
    page.wait("document.querySelector('#model-page dl')")
    assert page.text("#model-page h2") == "zoe/silent"
    page.click("#open-sql")
    page.run("statement.value = 'DROP TABLE records'")
    page.click("#run")
    page.wait("part('sql-message').textContent.includes('SELECT')")
    assert all("400" in line for line in page.console())


def test_only_rows_in_sight_are_in_the_document(page):
    """Every model can be reached, though few are there at a time."""
    page.size(1280, 500)
    settle(page)
    assert page.run("return document.querySelectorAll('#shown tbody tr[aria-rowindex]').length") < 42
    assert page.run("return document.querySelector('#shown table').getAttribute('aria-rowcount')") == "43"
    page.run("scroller.scrollTop = scroller.scrollHeight")
    page.wait("document.querySelector('#shown tbody tr[aria-rowindex=\"43\"]')")
    assert page.run("return document.querySelector('#shown tbody tr[aria-rowindex=\"43\"] th').innerText") == page.run(
        "return data.models[sorted[41]]"
    )


@pytest.mark.slow
def test_a_new_generation_is_announced_and_shown(browser, atlas_copy):
    with Served(atlas_copy) as running:
        running.wait_for_layout()
        opened(browser, running.address + f"#model={quote(FIRST, safe='')}")
        assert browser.run("return part('notice').hidden")
        publish_again(atlas_copy)
        browser.run("return look()")
        assert browser.text("#notice span") == "The atlas was published again since this page was made."
        browser.click("#notice button")
        browser.wait("globalThis.pageData?.generation === 4 && part('selected').innerText.includes('123,456')")
        browser.wait("part('notice').hidden")
        assert browser.text("#selected h2") == FIRST
    browser.run("return look()")
    assert browser.text("#notice span") == "Nothing is served here any more: run query browse again."
    browser.console()


@pytest.mark.slow
def test_another_base_and_one_without_a_map(browser, atlas_copy):
    with duckdb.connect(str(atlas_copy / "atlas.duckdb")) as connection:
        connection.execute("INSERT INTO bases (base, \"commit\", aliases) VALUES (?, 'c', [])", [OTHER])
        connection.execute(
            "INSERT INTO fine_tunes (model_id, model, base, author, status, relation) "
            "SELECT i, 'far/m' || i, ?, 'far', 'indexed', 'finetune' FROM range(900, 902) AS found(i)",
            [OTHER],
        )
        connection.execute("INSERT INTO records (model_id, record_key) VALUES (900, 'k'), (901, 'k')")
    with Served(atlas_copy) as running:
        running.wait_for_layout()
        opened(browser, running.address)
        assert browser.texts("#base option") == ["org/base", OTHER]
        assert browser.text("h1") == "42 fine-tunes of org/base"
        browser.run("part('base').value = arguments[0]; part('base').dispatchEvent(new Event('change'))", OTHER)
        browser.wait("document.title === '2 fine-tunes of org/other-base'")
        browser.wait("globalThis.pageData?.places === 'failed' && document.querySelector('#legend button')")
        assert browser.text("#unplaced").startswith("There is no map. The representation 'input' is not published")
        assert browser.run("return location.hash").startswith("#base=org%2Fother-base")
        choose(browser, "far/m900")
        assert browser.texts("#selected h3") == ["No neighbours on this map"]
        browser.click("#all-known")
        browser.wait("document.querySelector('#model-page dl')")
        assert "Nothing is known of its changes." in browser.text("#model-page")
        assert browser.console() == []


@pytest.mark.slow
def test_until_the_map_is_made_the_rest_works(browser, served, folder, monkeypatch):
    """The page is there before the map is, and shows it when it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")  # nothing is remembered
    with Served(folder) as running:
        opened(browser, running.address + "#dataset=data%2Fset0")
        waiting = browser.run("return data.places") == "working"
        assert shown_heading(browser) == "Models shown (8 of 42)"
        if waiting:
            assert browser.run("return part('unplaced').hidden && mixed.length > 30")  # by PCA, at once
            assert "is being made" in browser.text("#subtitle")
        browser.wait(
            "globalThis.pageData?.places === 'ready' && document.querySelector('#legend button') && mixed.length"
        )
        assert shown_heading(browser) == "Models shown (8 of 42)"
    browser.console()


@pytest.mark.parametrize(
    "models", [pytest.param(10_000, marks=pytest.mark.slow), pytest.param(100_000, marks=pytest.mark.study)]
)
def test_of_many_models(browser, tmp_path, models):
    """Only that it works: how long it takes says something of the machine."""
    from tests.browse.atlases import write_many

    with Served(write_many(tmp_path / "atlas", models)) as running:
        running.wait_for_layout()
        browser.size(1280, 860)
        opened(browser, running.address)
        assert shown_heading(browser) == f"Models shown ({models:,} of {models:,})"
        browser.click("#filters details:nth-child(1) input[type=checkbox]", 0)
        assert f"of {models:,})" in shown_heading(browser)
        assert browser.run("sortBy('norm', true); return document.querySelectorAll('#shown tbody tr').length") < 100
        browser.run("scroller.scrollTop = scroller.scrollHeight")
        browser.wait("document.querySelector('#shown tbody tr[aria-rowindex=\"2\"]') === null")
        assert browser.console() == []
