"""Several sessions in one process: each keeps its limits, Hub and token, whatever the others do meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import HfApi, close_session, constants, get_session, hf_hub_download, set_client_factory

from indexer.builds.doctor import doctor
from indexer.checkpoints.ahead import in_threads, read_ahead
from indexer.errors import ModelError
from indexer.network.hub_requests import fetch_small, get_json
from indexer.network.rate_limit import announce, listening
from indexer.network.remote_file import RemoteFile
from indexer.network.session import HttpLimits, Session, current_session, install_session
from scripts.loopback_hub import LoopbackHub
from tests.hubs import QUICK, add_repo, reset_session, served, set_endpoint
from tests.patience import PATIENCE

BODY = bytes(range(256)) * 4000
PATIENT, HASTY = HttpLimits(read_seconds=31), HttpLimits(read_seconds=7)


@pytest.fixture
def hubs(tmp_path: Path) -> Iterator[list[LoopbackHub]]:
    """Two Hubs, each with a private model of the same name that its own token opens."""
    for number in range(2):
        store = tmp_path / str(number)
        files = {"config.json": {"hub": number}, "model.safetensors": bytes([number]) + BODY}
        add_repo(store, "me/model", files, private=True)
    with (
        LoopbackHub(tmp_path / "0", tokens={"hf_zero": ["me/model"]}) as first,
        LoopbackHub(tmp_path / "1", tokens={"hf_one": ["me/model"]}) as second,
    ):
        yield [first, second]
        reset_session()


def both(work: Callable[[int], object]) -> list[object]:
    """``work(0)`` and ``work(1)`` in two threads."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, range(2)))


def test_two_threads_with_other_hubs_tokens_and_limits(hubs, tmp_path) -> None:
    together = threading.Barrier(2)

    def work(number: int) -> None:
        limits, token = (PATIENT, HASTY)[number], ("hf_zero", "hf_one")[number]
        session = Session(limits, endpoint=hubs[number].endpoint, token=token)
        for _ in range(5):
            with session.used():
                together.wait(PATIENCE)
                assert get_session().limits == limits  # type: ignore[attr-defined]
                assert get_json("/api/models/me/model").value["id"] == "me/model"
                assert fetch_small("me/model", "config.json", "main", 100) == b'{"hub": %d}' % number
                file = RemoteFile("me/model", "model.safetensors", "main")
                assert HfApi(**session.hub).model_info("me/model").id == "me/model"
                path = hf_hub_download("me/model", "config.json", cache_dir=tmp_path / f"cache{number}", **session.hub)
                assert Path(path).read_bytes() == b'{"hub": %d}' % number
            together.wait(PATIENCE)
            assert file.read(0, 1) == bytes([number])  # it keeps the session that opened it
            assert install_session().endpoint == constants.ENDPOINT  # of this thread, from now on

    both(work)
    for hub in hubs:
        assert hub.leaks == []
        assert {one.status for one in hub.requests} <= {200, 206, 302, 307}


def test_a_hub_of_its_own_is_not_sent_the_token_of_the_environment(hubs, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_zero")
    with Session(QUICK, endpoint=hubs[0].endpoint).used(), pytest.raises(ModelError):
        RemoteFile("me/model", "model.safetensors", "main")
    assert not any(one.authorized for one in hubs[0].requests)


def test_a_file_of_one_hub_is_not_sent_the_token_of_another(hubs, monkeypatch) -> None:
    """As when a program changes HF_ENDPOINT and HF_TOKEN between two builds."""
    install_session(QUICK)
    set_endpoint(monkeypatch, hubs[0].endpoint)
    monkeypatch.setenv("HF_TOKEN", "hf_zero")
    file = RemoteFile("me/model", "model.safetensors", "main")
    set_endpoint(monkeypatch, hubs[1].endpoint)
    monkeypatch.setenv("HF_TOKEN", "hf_one")
    hubs[0].reset_log()
    hubs[0].faults.add("repos", role="cdn", status=403, nth=1)  # so that it is resolved again
    with pytest.raises(ModelError):
        file.read(0, 10)
    assert [one.authorized for one in hubs[0].requests if one.role == "hub"] == [False]
    assert hubs[1].requests == []


def test_a_session_in_another_thread_ends_no_transfer(tmp_path, monkeypatch) -> None:
    """huggingface_hub closes its client, with all connections, when it is given another one."""
    add_repo(tmp_path, "me/model", {"model.safetensors": BODY})
    with served(tmp_path, monkeypatch, PATIENT):
        stream = RemoteFile("me/model", "model.safetensors", "main").stream(0, len(BODY))
        held = get_session()
        received = next(stream)
        found = []

        def other() -> None:
            install_session(HASTY)
            close_session()
            found.append((get_session().limits, get_json("/api/models/me/model").value["id"]))  # type: ignore[attr-defined]

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(PATIENCE)
        assert found == [(HASTY, "me/model")]
        assert get_session().limits == PATIENT  # type: ignore[attr-defined]
        assert held.get(f"{constants.ENDPOINT}/api/models/me/model").status_code == 200
        assert received + b"".join(stream) == BODY


def test_sessions_with_the_same_limits_share_their_connections(tmp_path, monkeypatch) -> None:
    with served(tmp_path, monkeypatch):
        with ThreadPoolExecutor(3) as pool:
            found = set(pool.map(lambda _: install_session(QUICK), range(3)))
        assert found == {current_session()}


def test_threads_that_read_ahead_have_the_session_of_their_reader(tmp_path, monkeypatch) -> None:
    with served(tmp_path, monkeypatch), Session(HASTY).used():
        mine = current_session()
        install_session(PATIENT)
        with mine.used():
            assert list(in_threads([current_session] * 4, 2)) == [mine] * 4
            assert list(read_ahead((current_session() for _ in range(3)), lambda one: 1, 2)) == [mine] * 3


def test_remarks_go_to_the_thread_they_are_about(tmp_path, monkeypatch) -> None:
    with served(tmp_path, monkeypatch):
        heard: list[list[str]] = [[], []]
        together = threading.Barrier(2)

        def work(number: int) -> None:
            install_session(QUICK, heard[number].append)
            together.wait(PATIENCE)
            announce(f"about {number}")

        both(work)
        assert heard == [["about 0"], ["about 1"]]
        aside: list[str] = []
        with listening(aside.append):
            announce("aside")
        assert aside == ["aside"]


def test_a_test_of_the_hub_changes_no_limits(tmp_path, monkeypatch) -> None:
    said: list[str] = []
    add_repo(tmp_path, "org/base", {"config.json": {}})
    with served(tmp_path, monkeypatch, PATIENT, said.append):
        mine = current_session()
        doctor("org/base", "org/base")
        assert current_session() is mine
        announce("still heard")
        assert said == ["still heard"]


def test_the_client_of_another_program_is_replaced(tmp_path, monkeypatch) -> None:
    with served(tmp_path, monkeypatch):
        set_client_factory(lambda: __import__("httpx2").Client(trust_env=False))
        assert install_session(QUICK) is current_session()
        assert get_session().limits == QUICK  # type: ignore[attr-defined]
