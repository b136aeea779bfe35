"""Output as a test sees it: captured, piped, or written to a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import textwrap

from indexer.console.terminal import emit
from tests.patience import PATIENCE

ESCAPE = "\x1b"


def printed(capsys, result, output, **options):
    emit(result, output, **options)
    return capsys.readouterr().out


def at_terminal(code, columns=80, environment=None, stderr_too=True):
    """What ``code`` writes to a real (pseudo) terminal with this many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-c", "from indexer.console.terminal import *\n" + textwrap.dedent(code)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs if stderr_too else subprocess.PIPE,
        env=env | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"} | (environment or {}),
    )
    os.close(theirs)
    parts = []
    while select.select([ours], [], [], 20)[0]:
        try:
            parts.append(os.read(ours, 65536))
        except OSError:
            break
        if not parts[-1]:
            break
    os.close(ours)
    process.wait(20)
    return b"".join(parts).decode().replace("\r\n", "\n")


def plain_lines(out):
    return [re.sub("\x1b\\[[0-9;]*m", "", line) for line in out.splitlines()]


def run(code, environment=None, **options):
    """A process with pipes."""
    return subprocess.run(
        [sys.executable, "-c", "from indexer.console.terminal import *\nimport click\n" + textwrap.dedent(code)],
        capture_output=True,
        text=options.pop("text", True),
        env=os.environ | (environment or {}),
        check=False,
        timeout=PATIENCE,
        **options,
    )
