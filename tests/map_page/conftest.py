"""The page in a real browser."""

from __future__ import annotations

import pytest

from tests.browser import Browser, missing_browser
from tests.map_page.example import example_map


@pytest.fixture(scope="module")
def browser():
    if missing_browser():
        pytest.skip(missing_browser())
    with Browser() as running:
        yield running


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    example_map().write(folder / "map.html")
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
