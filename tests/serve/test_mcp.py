"""A real client of the Model Context Protocol asks `query serve`; cancelled calls and a closed stdin end the work."""

from __future__ import annotations

import json
import os
import subprocess
import time
from importlib.util import find_spec

import pytest

from tests.conftest import ROOT
from tests.serve.clients import ENVIRONMENT, ask, below, client_of, command

# Looked for, not loaded: that takes seconds.


@pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra [mcp]")
def test_a_client_finds_typed_tools_and_asks_them(made):
    calls = [
        ("similar", {"model": "ann/glue-0", "k": 2}),
        ("similar", {"model": "ann/glue-0", "k": 2, "where": "downloads > 100", "explain": True}),
        ("predict", {"model": "ann/glue-0"}),
        ("show", {"model": "ann/glue-0"}),
        ("compare", {"a": "ann/glue-0", "b": "bob/imdb-1"}),
        ("datasets", {"limit": 2}),
        ("sql", {"statement": "SELECT model FROM models ORDER BY model", "limit": 4}),
    ]
    refused = [
        ("lineage", {"model": "ann/glue-0"}),  # whose weights would have to be read, from a Hub that is not there
        ("similar", {"model": "ann/glue-9"}),
        ("similar", {"model": "ann/glue-0", "k": 100_000}),
        ("sql", {"statement": "DROP TABLE models"}),
        ("sql", {"statement": "FROM read_text('/etc/passwd')"}),
        ("sql", {"statement": "SELECT 1", "limit": 100_000}),
    ]
    answer, tools, answers = ask(made, calls + refused)
    assert answer.server_info.name == "vectors-in-the-wild"
    assert "org/tiny-base (9 models)" in answer.instructions
    assert {tool.name for tool in tools} >= {"similar", "predict", "show", "compare", "lineage", "datasets", "sql"}
    for tool in tools:
        assert tool.description
        assert tool.output_schema["type"] == "object"
        assert tool.annotations.read_only_hint
    good, bad = answers[: len(calls)], answers[len(calls) :]
    assert not [one.content for one in good if one.is_error]
    similar, explained, predicted, shown, compared, datasets, sql = (one.structured_content for one in good)
    assert [row["model"] for row in similar["neighbours"]] == ["bob/glue-1", "cyd/glue-2"]
    assert explained["neighbours"][0]["because"]["families"]
    assert predicted["answers"][0]["dataset"] == "glue"
    assert shown["facts"]["model"] == "ann/glue-0"
    assert compared["facts"]
    assert {name: datasets[name] for name in ("datasets", "truncated")} == {
        "datasets": [
            {"base": "org/tiny-base", "dataset": name, "models": 3, "authors": 3} for name in ("glue", "imdb")
        ],
        "truncated": True,
    }
    assert (sql["columns"], len(sql["rows"]), sql["truncated"]) == (["model"], 4, True)
    for one, sentence in zip(
        bad, ("cannot be read", "ann/glue-9", "200", "The atlas can only be read", "out of reach", "1000"), strict=True
    ):
        assert one.is_error
        assert sentence in one.content[0].text
        assert "Traceback" not in one.content[0].text


@pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra [mcp]")
@pytest.mark.slow
def test_stdout_carries_the_protocol_and_nothing_else(made):
    """What is asked by hand: every line that comes back is a message of the protocol."""
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }  # fmt: skip
    more = [{"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
             "params": {"name": "datasets", "arguments": {}}}]  # fmt: skip
    lines = "".join(json.dumps(one) + "\n" for one in (hello, *more))
    done = subprocess.run(
        command(made, "--mcp"),
        input=lines, capture_output=True, text=True, timeout=240, env=ENVIRONMENT, check=False,
    )  # fmt: skip
    answer = [json.loads(line) for line in done.stdout.splitlines()]
    assert answer[0]["id"] == 1
    assert all(one["jsonrpc"] == "2.0" for one in answer)
    assert done.returncode == 0, done.stderr


ENDLESS = {"statement": "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b", "seconds": 30}
SOON = 20.0  # seconds, on a busy machine; an endless statement ends after 30


def sandboxes():
    return [pid for pid, line in below(os.getpid()).items() if "sandbox/process.py" in line]


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra [agents]")
def test_a_cancelled_call_ends_its_work_and_others_are_answered_meanwhile(made):
    import anyio

    async def session():
        async with client_of(made, is_fork=False) as (client, _), anyio.create_task_group() as group:
            await client.call_tool("datasets", {})
            scope = anyio.CancelScope()

            async def endless():
                with scope:
                    await client.call_tool("sql", ENDLESS)

            group.start_soon(endless)
            assert await anyio.to_thread.run_sync(wait_for, sandboxes, SOON)
            before = time.monotonic()
            other = await client.call_tool("datasets", {})
            assert not other.is_error
            assert time.monotonic() - before < SOON
            running = sandboxes()
            assert running
            scope.cancel()
            assert await anyio.to_thread.run_sync(wait_for, lambda: not any(map(alive, running)), SOON)
            again = await client.call_tool("sql", {"statement": "SELECT 1 AS one"})
            assert again.structured_content["rows"] == [[1]]

    anyio.run(session)


@pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra [agents]")
@pytest.mark.slow
@pytest.mark.parametrize("ending", ["stdin", "kill"])
def test_nothing_goes_on_without_its_client(made, ending):
    calls = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize",
         "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "sql", "arguments": ENDLESS}},
    ]  # fmt: skip
    server = subprocess.Popen(
        command(made), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT,
        cwd=str(ROOT), text=True,
    )  # fmt: skip
    try:
        server.stdin.write("".join(json.dumps(one) + "\n" for one in calls))
        server.stdin.flush()
        assert wait_for(sandboxes, 60)
        children = below(server.pid)
        before = time.monotonic()
        if ending == "stdin":
            server.stdin.close()
        else:
            server.kill()
        code = server.wait(SOON)
        assert time.monotonic() - before < SOON
        assert ending == "kill" or code == 0
        wait_for(lambda: not any(alive(pid) for pid in children), SOON)
        assert not {pid: line for pid, line in children.items() if alive(pid)}
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        server.stderr.close()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
