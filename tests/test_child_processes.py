"""A process that is killed leaves none behind that it started, whatever they are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from indexer.child_processes import start_child
from tests.conftest import ROOT, start_python

SOON = 10.0  # seconds, on a busy machine

# It holds Python's lock for hours, so that no thread of it runs.
STUCK = "import re; print('ready', flush=True); re.match('(x+x+)+y', 'x' * 60)"
CHILD = f"from indexer.child_processes import end_with_parent; end_with_parent(); {STUCK}"
START = f"""
import subprocess, sys
from indexer.child_processes import start_child
def start():
    process = start_child([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process
"""
# What a parent does before it says the ids of its children.
PARENTS = {
    "a child of the main thread": START + "one = start(); pids = [one.pid]",
    "a child of a thread that has ended": START
    + """
import threading
made = []
thread = threading.Thread(target=lambda: made.append(start()))
thread.start(); thread.join()
pids = [made[0].pid]
""",
    "a child that was told by a handler": START.replace(
        "; end_with_parent(); ",
        "; import indexer.child_processes as c; before = c._end_by_signal; "
        "c._end_by_signal = lambda number, by_default: before(number, by_default=False); "
        "c.sys = type('', (), {'platform': 'other'}); end_with_parent(); ",
    )
    + "one = start(); pids = [one.pid]",
    "a tokenizer": """
import threading
from tokenizers import Regex, Tokenizer, models, normalizers
from indexer.profiles.tokenizer import IsolatedTokenizer
made = Tokenizer(models.WordLevel({"[U]": 0, "a": 1}, unk_token="[U]"))
made.normalizer = normalizers.Sequence([normalizers.Replace("a", "a" * 1000) for _ in range(5)])
one = IsolatedTokenizer({"tokenizer.json": made.to_str().encode()})
pids = [one._process.pid]
threading.Thread(target=one.encode, args=("aaaa",), daemon=True).start()
""",
    "a statement": """
import threading, time
from pathlib import Path
from query.questions.sql import run_sql
started = []
slow = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
work = dict(seconds=60, started=started.append)
threading.Thread(target=run_sql, args=(Path(sys.argv[1]), slow), kwargs=work, daemon=True).start()
while not started: time.sleep(.01)
time.sleep(1)
pids = [started[0].pid]
""",
    "a statement's process that is not used": """
from query.questions import sql
sql.prepare()
pids = [one.pid for one in sql._prepared]
""",
    "the layout of a map": """
from pathlib import Path
from query.faces.browse.layout import start_process
one = start_process(Path(sys.argv[1]).parent, "ask", "no/such-base", takes_text=True)
pids = [one.pid]
""",
}


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def are_gone(pids: list[int], seconds: float = SOON) -> bool:
    end = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(is_alive, pids))


@pytest.mark.parametrize("kind", PARENTS)
def test_a_killed_process_leaves_no_child_behind(made, kind):
    code = f"import sys, time\n{PARENTS[kind]}\nprint(*pids, flush=True); time.sleep(100)"
    parent = start_python("-c", code, made / "atlas.duckdb", stdout=subprocess.PIPE)
    try:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert pids
        assert all(map(is_alive, pids))
        parent.kill()
        assert are_gone(pids)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def test_a_terminal_does_not_interrupt_a_child_and_its_own_children_know_nothing_of_the_pipe():
    code = CHILD.replace("import re;", "import os; print('VECTORS_IN_THE_WILD_PARENT' in os.environ); import re;")
    child = start_child([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=str(ROOT))
    with child, child.stdout as said:
        assert said.readline() == b"False\n"
        assert os.getsid(child.pid) == child.pid
        child.kill()


def test_a_pool_ends_with_its_process():
    """Also while its units hold Python's lock."""
    code = (
        "from concurrent.futures import ProcessPoolExecutor\nfrom multiprocessing import Pipe, get_context\n"
        "from indexer.builds.executor import _initialise\nimport os, re, time\n"
        "if __name__ == '__main__':\n"
        "    pipe = Pipe()\n"
        "    pool = ProcessPoolExecutor(2, get_context('spawn'), _initialise, (True, pipe[1]))\n"
        "    pool.submit(os.getpid).result()\n"
        "    for _ in range(2): pool.submit(re.match, '(x+x+)+y', 'x' * 60)\n"
        "    time.sleep(1)\n"
        "    print(*pool._processes, flush=True)\n"
        "    time.sleep(100)\n"
    )
    parent = start_python("-c", code, stdout=subprocess.PIPE)
    try:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        os.kill(parent.pid, signal.SIGKILL)
        assert are_gone(pids)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
