"""Work for an agent ends with the call, or with the client: cancelled calls, several at once, a closed stdin."""

from __future__ import annotations

import json
import os
import subprocess
import time
from importlib.util import find_spec

import pytest

from tests.conftest import ROOT
from tests.serve.clients import ENVIRONMENT, below, client_of, command

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra [agents]")

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


def test_a_cancelled_call_ends_its_work_and_others_are_answered_meanwhile(made):
    import anyio

    async def session():
        async with client_of(made) as (client, _), anyio.create_task_group() as group:
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
