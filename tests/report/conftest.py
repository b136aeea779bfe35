"""The planted atlas, its report and that of a hostile one, made once."""

from __future__ import annotations

import pytest

from query import Atlas
from tests.atlas_builder import write_atlas
from tests.report.planted import BUILDS, EVIL, HOSTILE_BASE, hostile_models, population
from tests.report_reader import Page


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return write_atlas(tmp_path_factory.mktemp("paper"), population(), representations=("input", "seed"), builds=BUILDS)


@pytest.fixture(scope="session")
def report(folder):
    with Atlas(folder) as atlas:
        return atlas.report()


@pytest.fixture(scope="session")
def page(report):
    return Page(report.html)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    folder = write_atlas(
        tmp_path_factory.mktemp("hostile"), hostile_models(), base=HOSTILE_BASE,
        builds=[dict(outcome=EVIL[0], versions='{"<b>": "</style>"}')],
    )  # fmt: skip
    with Atlas(folder) as atlas:
        return folder, atlas.report()
