"""A real client of the Model Context Protocol, connected over stdin and stdout to `query serve`."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from tests.conftest import FORKER, ROOT
from tests.forked import forking_python

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def command(atlas, *options):
    return [sys.executable, "-m", "query", "serve", "--atlas", str(atlas), *options]


@asynccontextmanager
async def client_of(atlas, *options, is_fork=True):
    """A connected session, and what the server said of itself. A fork is not below the process that tests."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    program, *words = command(atlas, *options)
    if is_fork:
        FORKER.give_back(FORKER.connection())  # it has begun
        if python := forking_python():
            program, *words = [*shlex.split(python), *words]
    parameters = StdioServerParameters(
        command=program, args=words, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=str(ROOT)
    )
    async with stdio_client(parameters) as (reading, writing), ClientSession(reading, writing) as client:
        yield client, await client.initialize()


def ask(atlas, calls, *options):
    """What the server says of itself, the tools offered, and the answer to each (name, arguments)."""
    import anyio

    async def session():
        async with client_of(atlas, *options) as (client, answer):
            tools = (await client.list_tools()).tools
            return answer, tools, [await client.call_tool(name, arguments) for name, arguments in calls]

    return anyio.run(session)


def texts(answers):
    return [one.content[0].text for one in answers]


def below(pid):
    """The command lines of all processes below one, by pid."""
    parents, commands = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    found, last = {pid}, set()
    while found != last:
        last = set(found)
        found |= {one for one, parent in parents.items() if parent in found}
    return {one: commands[one] for one in found - {pid} if one in commands}
