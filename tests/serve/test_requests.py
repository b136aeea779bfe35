"""Requests that the SDK would drop without an answer."""

from __future__ import annotations

import io
import json
import select
import subprocess
from importlib.util import find_spec

import pytest

from query.faces.serve.requests import Requests, without_halves
from tests.conftest import start_python


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (rb'{"a": ["x \ud800 y", {"\udfff": 1}]}', {"a": ["x \ufffd y", {"\ufffd": 1}]}),
        (rb'["\ud83d\ude00", "\uD83D\uDE00\ude00", "\\ud800"]', ["😀", "😀\ufffd", "\\ud800"]),
        ('["é", "\\ud800"]'.encode(), ["é", "\ufffd"]),
        (b"[1, 1e400, null, true]", [1, float("inf"), None, True]),
    ],
)
def test_halves_of_surrogate_pairs_are_replaced(given, expected):
    assert json.loads(without_halves(given + b"\n")) == expected
    assert without_halves(given + b"\n").endswith(b"\n")


@pytest.mark.parametrize("line", [rb'{"a": "\ud800"', rb'"\ud800 \q"', b"[" * 100_000 + rb'"\ud800"', b"\xff\n", b""])
def test_what_is_not_json_stays(line):
    assert without_halves(line) == line


def test_a_stream_of_lines_is_read_in_pieces_of_any_size():
    lines = [rb'{"n": %d, "text": "\ud800 and %s"}' % (number, b"x" * number * 1_000) for number in range(40)]
    stream = io.TextIOWrapper(io.BufferedReader(Requests(io.BytesIO(b"\n".join(lines)))), encoding="utf-8")
    found = [json.loads(line) for line in stream]
    assert [one["n"] for one in found] == list(range(40))
    assert all(one["text"].startswith("\ufffd and ") for one in found)


@pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra [agents]")
def test_an_agent_gets_an_answer_to_such_a_request(made):
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    asked = {"name": "sql", "arguments": {"statement": "SELECT 'x \ud800' AS text"}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": asked},
    ]
    with start_python("-m", "query", "serve", "--atlas", made, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            server.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
            server.stdin.flush()
            assert json.loads(server.stdout.readline())["id"] == 1
            assert select.select([server.stdout], [], [], 30)[0], "no answer"
            answer = json.loads(server.stdout.readline())
            assert (answer["id"], answer["result"]["structuredContent"]["rows"]) == (2, [["x \ufffd"]])
        finally:
            server.kill()
