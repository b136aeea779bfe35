"""What a sample costs at the Hub: bytes, requests, and how many of them at a time; and what a bad Hub cannot make of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from indexer.checkpoints.checkpoint import SEAM_BYTES
from indexer.deltas.vectorise import vectorise
from indexer.errors import Failed, Skipped
from indexer.network.session import HttpLimits, install_session
from indexer.records.representations.registry import REPRESENTATIONS
from scripts.loopback_hub import LoopbackHub
from tests.checkpoints import claim
from tests.halves import a_few
from tests.hubs import cleared, served
from tests.sampling import made

KIND = made.ROBERTA
MATRICES = len(KIND.places)
SHA = "5" * 40
LIMITS = HttpLimits(read_seconds=2.0, total_seconds=20.0, first_wait=0.01, longest_wait=0.05, retries=3)


def with_the_rest(weights: made.Weights) -> made.Weights:
    """With what lies between the matrices of a real file, and before them."""
    rest = {f"{name.removesuffix('weight')}bias": torch.zeros(len(one)) for name, one in weights.items()}
    return weights | rest | {"embeddings.word_embeddings.weight": torch.zeros(2000, 256)}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    weights = made.base_weights(KIND)
    return weights, made.stored_base(tmp_path_factory.mktemp("base"), KIND, weights)


@pytest.fixture(scope="module")
def hub(base, tmp_path_factory) -> Iterator[LoopbackHub]:
    root = tmp_path_factory.mktemp("store")
    tuned = made.tuned_of(KIND, base[0], seed=2)
    for form, save in made.FORMS.items():
        save(root / "me" / form, KIND, with_the_rest(tuned))
        (root / "me" / f"{form}.repo.json").write_text(json.dumps({"sha": SHA}))
    made.save(root / "me" / "half", KIND, made.cast(with_the_rest(tuned), torch.float16))
    (root / "me" / "half.repo.json").write_text(json.dumps({"sha": SHA}))
    with pytest.MonkeyPatch.context() as patch, served(root, patch, LIMITS) as running:
        yield running


def no_threads_left() -> None:
    """Wait for those of a model that failed: each ends with the request that it is at."""
    deadline = time.monotonic() + 20
    while any(one.name == "read-ahead" for one in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def undisturbed(hub: LoopbackHub) -> Iterator[None]:
    install_session(LIMITS)  # a test with a Hub of its own leaves the usual one
    with cleared(hub):
        yield
        hub.faults.clear()
        no_threads_left()
    hub.latency = 0.0


def read(base: Any, form: str = "safetensors", connections: int = 4, read: str = "sample") -> Any:
    unit = made.unit_of(None, read=read, model=f"me/{form}", commit=SHA)
    return vectorise(unit, base[1], connections=connections)


def of_weights(hub: LoopbackHub) -> list[Any]:
    return [one for one in hub.requests if one.role == "cdn" or (one.method == "GET" and "/resolve/" in one.path)]


def planned_bytes(item_bytes: int) -> int:
    return sum(
        len(made.held(place.stored, item_bytes)) * place.stored[1] * item_bytes for place in KIND.places.values()
    )


HEADER = 64 << 10


@pytest.mark.parametrize(("form", "item_bytes"), [("safetensors", 4), ("half", 2), ("shards", 4)])
def test_a_sample_costs_its_rows_and_two_requests_a_matrix_at_most(hub, base, form, item_bytes):
    record = read(base, form)
    files = 2 if form == "shards" else 1
    sent = sum(one.body_bytes for one in hub.requests)
    assert record.is_sampled
    assert sent <= planned_bytes(item_bytes) + MATRICES * SEAM_BYTES + files * HEADER
    assert sent < 0.3 * sum(item_bytes * np.prod(place.stored) for place in KIND.places.values())
    assert record.bytes_read <= sent <= record.bytes_read + HEADER  # what it says is what was sent, and the questions
    ranges = [one for one in of_weights(hub) if one.role == "cdn"]
    assert len(ranges) <= 2 * MATRICES + 2 * files
    # Neighbours are fetched together: far fewer requests than stripes.
    if form != "shards":
        assert len(ranges) <= 1.5 * MATRICES


@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_a_bin_file_costs_a_small_request_more_for_each_tensor(hub, base, form):
    read(base, form)
    requests = [one for one in of_weights(hub) if one.role == "cdn"]
    assert sum(one.body_bytes for one in requests) <= planned_bytes(4) + MATRICES * (SEAM_BYTES + 1024) + 2 * HEADER
    assert len(requests) <= 3 * MATRICES + 4


def test_matrices_without_rows_in_one_piece_are_read_whole_and_no_others(hub, base):
    read(base, "views")
    views = {name for name in sorted(with_the_rest(base[0]))[::2] if name in base[0]}
    size = 4 * sum(base[0][name].numel() for name in views)
    sent = sum(one.body_bytes for one in of_weights(hub))
    assert size < sent <= size + planned_bytes(4) + MATRICES * (SEAM_BYTES + 1024) + 2 * HEADER


@pytest.mark.parametrize("form", ["safetensors", "zip", "shards"])
def test_a_full_read_still_costs_its_matrices(hub, base, form):
    read(base, form, read="full")
    size = 4 * sum(int(np.prod(place.stored)) for place in KIND.places.values())
    assert size <= sum(one.body_bytes for one in hub.requests) <= 1.02 * size + HEADER


def most_at_a_time(requests: list[Any], seconds: float) -> int:
    """Each of them takes at least so long at the Hub."""
    starts = sorted(one.at for one in requests)
    return max(sum(start <= other < start + seconds for other in starts) for start in starts)


@pytest.mark.parametrize("connections", [1, 2, 5])
@pytest.mark.parametrize("form", ["safetensors", "zip"])
def test_as_many_requests_as_connections_are_in_flight(hub, base, form, connections):
    hub.latency = 0.1
    expected = read(base, form, connections=connections)
    ranges = [one for one in of_weights(hub) if one.role == "cdn"]
    assert most_at_a_time(ranges, 0.1) == connections
    hub.latency = 0.0
    np.testing.assert_array_equal(
        read(base, form, connections=1).vectors[REPRESENTATIONS["input"].tag],
        expected.vectors[REPRESENTATIONS["input"].tag],
    )


# ---- a bad Hub

ODD = {
    "another range": {"content_range": "bytes 0-99/100"},
    "the whole file": {"ignore_range": True},
    "another etag": {"replace_etag": "another"},
    "another file": {"replace_content": bytes(1000)},
    "a short body": {"cut_to": 100},
    "a broken connection": {"drop_after": 100, "reset": True},
    "encoded": {"gzip": True},
    "busy": {"status": 503},
    "too many": {"status": 429, "retry_after": 0},
    "a hanging Hub": {"hang": 60.0},
}
REASONS = {"range_ignored", "file_changed", "short_body", "network", "server_error", "rate_limited", "timeout"}


@pytest.mark.parametrize("connections", a_few([4, 1], 1))
@pytest.mark.parametrize("what", ODD)
def test_one_odd_answer_is_asked_for_again(hub, base, what, connections):
    expected = read(base, connections=connections)
    fault = hub.faults.add("safetensors", role="cdn", nth=4, **ODD[what])
    found = read(base, connections=connections)
    assert fault.struck == 1
    np.testing.assert_array_equal(
        found.vectors[REPRESENTATIONS["input"].tag], expected.vectors[REPRESENTATIONS["input"].tag]
    )
    assert [delta.norm for delta in found.deltas] == [delta.norm for delta in expected.deltas]


@pytest.mark.parametrize("connections", a_few([4, 1], 1))
@pytest.mark.parametrize("what", sorted(set(ODD) - {"a hanging Hub"}))
def test_odd_answers_without_end_are_a_failure_and_no_record(hub, base, what, connections):
    # Wherever it begins: at the header, at the first rows, between two ranges. Another ETag must follow one.
    for since in {"another etag": (2, 5), "too many": (5,)}.get(what, (1, 2, 5)):
        fault = hub.faults.add("safetensors", role="cdn", since=since, **ODD[what])
        with pytest.raises(Failed) as failure:
            read(base, connections=connections)
        assert failure.value.reason in REASONS, (since, failure.value)
        assert fault.struck
        hub.faults.clear()
        no_threads_left()


def test_a_hub_that_hangs_for_ever_is_a_failure(hub, base):
    hub.faults.add("safetensors", role="cdn", since=3, hang=60.0)
    began = time.monotonic()
    with pytest.raises(Failed) as failure:
        read(base)
    assert failure.value.reason == "timeout"
    assert time.monotonic() - began < 40


@pytest.mark.parametrize("connections", [1, 4])
def test_a_file_that_is_replaced_between_two_ranges_is_noticed(hub, base, connections):
    """The new file is as long as the old one, and stays: only its ETag tells."""
    size = next(one.size for one in read(base).files)
    for since in (2, 4, 6):
        hub.faults.add("safetensors", role="cdn", since=since, replace_content=bytes(size))
        with pytest.raises(Failed) as failure:
            read(base, connections=connections)
        assert failure.value.reason == "file_changed"
        hub.faults.clear()
        no_threads_left()


def test_threads_end_with_the_model_that_failed(hub, base):
    hub.faults.add("safetensors", role="cdn", since=4, status=503)
    for _ in range(3):
        with pytest.raises(Failed):
            read(base, connections=6)
    no_threads_left()


@pytest.mark.parametrize("connections", [1, 4])
def test_a_header_that_lies_is_refused_before_any_rows(hub, base, tmp_path, connections):
    weights = made.tuned_of(KIND, base[0], seed=2)
    root = tmp_path / "store"
    name = KIND.places["", 1, "value"].tensor

    def stored(model: str, change: Any) -> None:
        folder = made.save(root / "you" / model, KIND, weights)
        path = folder / "model.safetensors"
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
        claim(root, f"you/{model}", made.BASE)

    lies = {
        "taller": lambda header: header[name].update(shape=[512, 128]),
        "huge": lambda header: header[name].update(shape=[2**40, 256]),
        "shifted": lambda header: header[name].update(data_offsets=[n + 4 for n in header[name]["data_offsets"]]),
        "flat": lambda header: header[name].update(shape=[256 * 256]),
        "other-type": lambda header: header[name].update(dtype="BF16"),
    }
    for model, change in lies.items():
        stored(model, change)
    with pytest.MonkeyPatch.context() as patch, served(root, patch, LIMITS) as other:
        for model in lies:
            other.reset_log()
            unit = made.unit_of(None, model=f"you/{model}", commit="main")
            with pytest.raises(Skipped) as refused:
                vectorise(unit, base[1], connections=connections)
            assert refused.value.reason in {"shape_mismatch", "corrupt_file", "malformed"}, model
            assert sum(one.body_bytes for one in of_weights(other)) <= HEADER


def test_a_header_that_changes_after_it_was_read_is_noticed(hub, base):
    """The ETag is that of the first answer, which is the header's."""
    hub.faults.add("safetensors", role="cdn", first=1, replace_etag="before")
    with pytest.raises(Failed) as failure:
        read(base)
    assert failure.value.reason == "file_changed"
