"""Reading ahead: the same items, bounded, and nothing left running."""

from __future__ import annotations

import threading

import pytest

from indexer.checkpoints.ahead import read_ahead
from tests.patience import PATIENCE, wait_for


def size_of(item: bytes) -> int:
    return len(item)


def alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "read-ahead"]


@pytest.mark.parametrize("most", [1, 10, 35, 10_000])
def test_the_same_items_in_the_same_order(most):
    items = [bytes([number]) * (number % 17) for number in range(100)]
    assert list(read_ahead(iter(items), size_of, most)) == items
    assert wait_for(lambda: not alive())


def test_no_more_is_ready_than_allowed():
    fetched = []

    def source():
        for number in range(50):
            fetched.append(number)
            yield bytes(10)

    ahead = read_ahead(source(), size_of, 35)
    next(ahead)
    # One taken, and ready: 10, 20, 30 are below 35, so a fourth is fetched, and no fifth.
    assert wait_for(lambda: len(fetched) == 5)
    next(ahead)
    assert wait_for(lambda: len(fetched) == 6)
    ahead.close()
    assert wait_for(lambda: not alive())
    assert len(fetched) == 6


def test_fetching_and_using_go_on_at_the_same_time():
    """While one is used the next is fetched: its user waits for that, and would wait for ever."""
    fetching = [threading.Event() for _ in range(10)]

    def source():
        for event in fetching:
            event.set()
            yield bytes(1)

    for number, _ in enumerate(read_ahead(source(), size_of, 100), start=1):
        assert fetching[min(number, 9)].wait(PATIENCE)


def test_an_error_comes_where_it_would_have_come():
    def source():
        yield b"a"
        yield b"b"
        raise ValueError("broken")

    ahead = read_ahead(source(), size_of, 100)
    assert [next(ahead), next(ahead)] == [b"a", b"b"]
    with pytest.raises(ValueError, match="broken"):
        next(ahead)


def test_stopping_early_closes_the_source():
    closed = threading.Event()

    def source():
        try:
            while True:
                yield bytes(10)
        finally:
            closed.set()

    for _ in read_ahead(source(), size_of, 20):
        break
    assert closed.wait(PATIENCE)
    assert wait_for(lambda: not alive())


def test_an_item_that_was_used_is_let_go():
    """The memory of a tensor is used again as soon as its consumer has dropped it."""
    import weakref

    class Item:
        pass

    items = [Item() for _ in range(3)]
    references = [weakref.ref(item) for item in items]

    def source():
        while items:
            yield items.pop(0)

    ahead = read_ahead(source(), lambda _: 1, 10)
    first = next(ahead)
    assert wait_for(lambda: not items)
    del first
    next(ahead)
    assert wait_for(lambda: references[0]() is None)
    ahead.close()
