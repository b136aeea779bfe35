"""The words of a model, and texts that ask for models, over HTTP."""

from __future__ import annotations

import http.client
import json

import pytest

from tests.browse.served import Served
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def served(made):
    with Served(made) as running:
        yield running


def post(served: Served, path: str, body: bytes) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(served.host, timeout=PATIENCE)
    try:
        connection.request("POST", path, body, {"Host": served.host})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content.startswith(b"{") else {"said": content.decode()}
    finally:
        connection.close()


def test_the_trace_of_a_model(served):
    status, _, content = served.ask("trace/1")
    tracing = json.loads(content)
    assert status == 200
    assert tracing["class"] == "frozen"
    assert "it was frozen" in tracing["headline"]
    assert tracing["notes"]
    status, _, content = served.ask("trace/99999")
    assert status == 400
    assert "no record of a model" in json.loads(content)["error"]


def test_a_text_is_bounded_and_an_error_is_one_line(served):
    address = f"/{served.token}/ask"
    status, answer = post(served, address, b"x" * 300_000)
    assert status == 413
    assert "200,000 bytes" in answer["error"]
    status, answer = post(served, address, b" \n \n")
    assert status == 400
    assert answer["error"].startswith("There is no text.")


@pytest.mark.slow
def test_a_base_that_cannot_be_had_is_one_line(served):
    address = f"/{served.token}/ask"
    status, answer = post(served, address, "some text\n\xe9t\xe9".encode("latin1") * 9)  # its base is nowhere
    assert status == 400
    assert "\n" not in answer["error"]


def test_only_texts_are_posted_and_only_with_the_token(served):
    assert post(served, f"/{served.token}/sql", b"SELECT 1")[0] == 405
    assert post(served, "/ask", b"text")[0] == 403
    assert post(served, f"/{'x' * len(served.token)}/ask", b"text")[0] == 403
    assert served.ask("ask")[0] == 405
