"""Reading over HTTP with a patience that tests can wait for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from indexer.network.session import HttpLimits, install_session


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    install_session(HttpLimits(read_seconds=30.0, first_wait=0.01, longest_wait=0.05, retries=2))
    yield
    install_session()
