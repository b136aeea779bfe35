"""What is tried again, and what is not."""

from __future__ import annotations

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from indexer.network.hub_errors import as_model_error
from indexer.network.hub_requests import ask
from tests.hub_ground import QUICK, asked
from tests.session.asking import failure, info


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
def test_server_errors_are_tried_again(hub, status):
    hub.faults.add("me/model", first=2, status=status)
    assert info().id == "me/model"
    assert [one.status for one in hub.requests] == [status, status, 200]


def test_a_server_that_stays_down_is_an_error_and_not_an_empty_answer(hub):
    hub.faults.add("/api/models", status=503)
    error = failure(lambda: ask("/api/models"))
    assert isinstance(error, HfHubHTTPError)
    assert as_model_error(error).reason == "server_error"
    assert len(asked(hub)) == QUICK.retries + 1


def test_patience_is_spent_once_although_the_library_retries_too(hub):
    hub.faults.add("me/model", status=500)
    failure(info)
    assert len(asked(hub)) == QUICK.retries + 1
    failure(info)
    assert len(asked(hub)) == QUICK.retries + 2
    hub.faults.clear()
    info()
    hub.faults.add("me/model", first=2, status=500)
    info()  # it has recovered, and is worth patience again


@pytest.mark.parametrize("fault", [{"no_answer": True}, {"drop_after": 20}, {"drop_after": 20, "reset": True}])
def test_dropped_connections_are_tried_again(hub, fault):
    hub.faults.add("me/model", first=2, **fault)
    assert info().id == "me/model"
    assert len(asked(hub)) == 3


def test_what_changes_something_is_not_sent_twice(hub):
    hub.faults.add(".*", status=503)
    with pytest.raises(HfHubHTTPError):
        HfApi(endpoint=constants.ENDPOINT, token="hf_x").create_repo("me/new")
    assert len(asked(hub)) == 1


def test_no_other_status_is_tried_again(hub):
    with pytest.raises(RepositoryNotFoundError):
        info("no/body")
    assert len(asked(hub)) == 1
