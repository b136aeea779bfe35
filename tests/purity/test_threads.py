"""Parts done by several threads: in order, each once, with the same digits as one thread, and with their errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from query.questions.purity.study import purity
from query.shared.statistics.neighbours import map_parts, threads_here
from tests.clusters.populations import clustered_vectors, population


@pytest.fixture
def threads(monkeypatch, request):
    monkeypatch.setenv("OMP_NUM_THREADS", str(request.param))
    return request.param


@pytest.mark.parametrize("threads", [1, 2, 5], indirect=True)
def test_all_are_done_in_order(threads):
    assert map_parts(lambda part: part * part, range(100)) == [part * part for part in range(100)]


@pytest.mark.parametrize("threads", [2, 5], indirect=True)
def test_several_work_at_once(threads):
    together = threading.Barrier(threads)
    assert map_parts(lambda part: together.wait(30) >= 0, range(threads)) == [True] * threads


@pytest.mark.parametrize("threads", [1, 3], indirect=True)
def test_parts_are_taken_a_few_ahead_and_an_error_ends_it(threads):
    taken = []

    def parts() -> Iterator[int]:
        for part in range(1000):
            taken.append(part)
            yield part

    def work(part: int) -> int:
        if part == 10:
            raise ValueError("the eleventh")
        return part

    with pytest.raises(ValueError, match="the eleventh"):
        map_parts(work, parts())
    assert len(taken) < 30


@pytest.mark.parametrize("said", ["", "0", "-1", "many", "2,1"])
def test_what_is_not_a_number_of_threads_is_not_heard(said, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    expected = threads_here()
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert threads_here() == expected >= 1


def test_purity_has_the_same_digits_by_any_number_of_threads(monkeypatch):
    vectors, truth = clustered_vectors([40] * 8, outliers=20, tightness=0.3)
    authors = [f"author{number % 37}" for number in range(len(truth))]
    asked = population(vectors, [f"d{name}" if name >= 0 else None for name in truth.tolist()], authors)
    monkeypatch.setattr("query.questions.purity.study._MANY", 0)
    monkeypatch.setattr("query.shared.statistics.neighbours._BLOCK", 1000)
    monkeypatch.setattr("query.questions.purity.study._BLOCK", 1000)
    found = []
    for threads in ("1", "4"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        found.append(purity(asked, draws=50))
    assert found[0] == found[1]
    assert 0.5 < found[0].purity < 1
