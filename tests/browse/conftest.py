"""One atlas, served once for all tests that only read."""

from __future__ import annotations

import shutil

import pytest

from tests.browse.atlases import write_browsed_atlas
from tests.browse.served import Served
from tests.browser import Browser, missing_browser
from tests.once import made_once

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return made_once(tmp_path_factory, "browsed", write_browsed_atlas)


@pytest.fixture(scope="session")
def served(folder):
    with Served(folder) as running:
        yield running.wait_for_layout()


@pytest.fixture
def atlas_copy(folder, tmp_path):
    """A copy that a test may publish again."""
    return shutil.copytree(folder, tmp_path / "atlas")


@pytest.fixture(scope="session")
def browser():
    if missing_browser():
        pytest.skip(missing_browser())
    with Browser() as running:
        yield running


@pytest.fixture
def page(browser, served):
    """The page, freshly opened; whatever a test does, nothing hostile runs and no other server is asked."""
    browser.size(1280, 860)
    browser.scheme("light")
    browser.visit(served.address)
    browser.wait("document.querySelector('#legend button')")
    yield browser
    assert browser.console() == []
    addresses = [
        address for address in browser.requests() if not address.startswith(("about:", "data:"))
    ]  # its own: icons of inputs
    assert all(address.startswith(served.address) for address in addresses)
    assert browser.run("return window.pwned === undefined && !document.querySelector('img, image, #planted, iframe')")
