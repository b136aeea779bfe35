"""What end-to-end tests share: commands, a small family of real models, and the loopback Hub that serves it.

Nothing here touches the user's caches, tokens or the network: every place that a library would look in is moved
into a temporary folder before the library is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Any

# Of this test process alone; the processes that it starts find it in the environment, and leave it to its maker.
_NAME = f"ATLAS_TESTS_HOME_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
_IS_OURS = _NAME not in os.environ
_HOME = os.environ.setdefault(_NAME, tempfile.mkdtemp(prefix="atlas-tests-") if _IS_OURS else "")
os.environ.update(
    HF_HOME=f"{_HOME}/huggingface",
    XDG_CACHE_HOME=f"{_HOME}/cache",
    TMPDIR=_HOME,  # the pace of a user's processes lies there; tests keep their own
    HF_HUB_DISABLE_TELEMETRY="1",
    DISABLE_SAFETENSORS_CONVERSION="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    # Nobody listens here: a test that forgets to name its Hub fails at once instead of leaving this machine.
    HF_ENDPOINT="http://127.0.0.1:9",
    MPLBACKEND="Agg",
    OMP_NUM_THREADS="1",
    OMP_WAIT_POLICY="PASSIVE",  # models are trained by two threads, which else burn what time they wait for each other
)
for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "VECTORS_ATLAS", "NO_COLOR"):
    os.environ.pop(name, None)

# Else each of a thousand commands compiles a hundred of our files again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts this in the background leaves Ctrl-C ignored, and so it would be in every child that is sent one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from tests.fork_server import one_tls_context, remember_soon, renew_hub_constants  # noqa: E402
from tests.forked import OF_TESTS, Forker, Started, can_fork, spawn_by_fork, worker_python  # noqa: E402
from tests.halves import leave_out_what_is_late, longest_first  # noqa: E402
from tests.training import small_family  # noqa: E402

gc.disable()  # while tests are collected: they are no garbage
atexit.register(lambda: (gc.unfreeze(), gc.enable()))  # at the end they are, or duckdb reports them as leaks
# How long an example takes says something of the machine, and nothing of what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
one_tls_context()
remember_soon()
if "huggingface_hub.hf_api" in sys.modules:  # this process is a fork of one that had another environment
    renew_hub_constants()

ROOT = Path(__file__).resolve().parent.parent
FORKER = Forker()
spawn_by_fork(Forker(OF_TESTS))
TRAINING: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """A command of `studies` or `scripts` that a test calls in this process may set variables: later tests lack them."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if name != "PYTEST_CURRENT_TEST"})


def pytest_sessionstart(session: pytest.Session) -> None:
    """A run of all tests in several processes: what the slow ones need is trained while the first of them run."""
    is_whole = session.config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if is_whole and "PYTEST_XDIST_WORKER" not in os.environ and getattr(session.config.option, "numprocesses", None):
        is_compiled = _is_compiled()
        FORKER.begin()
        if not is_compiled:  # else each of the processes compiles every test, and finds what can be written in UTF-8
            python = shlex.split(worker_python() or "")
            find = "from hypothesis.internal.charmap import intervals_from_codec as f; f('utf-8')"
            finding = subprocess.Popen([*python, "-c", find], cwd=ROOT)
            words = [*python, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
            subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
            finding.wait()
        if "not slow" not in session.config.option.markexpr:
            TRAINING.append(
                subprocess.Popen([sys.executable, "-m", "tests.training"], cwd=ROOT, start_new_session=True)
            )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Processes of this run are forks of one that has loaded the large libraries."""
    for spec in specs:
        spec.python = worker_python()


def _is_compiled() -> bool:
    """Whether an earlier run has compiled the tests and, in this environment, the libraries."""
    test = Path(__file__).with_name("test_package.py")
    library = find_spec("transformers")
    assert library is not None
    assert library.origin is not None
    rewritten = cache_from_source(str(test)).removesuffix(".pyc") + f"-pytest-{pytest.__version__}.pyc"
    return Path(rewritten).exists() and Path(cache_from_source(library.origin)).exists()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items)


def pytest_collection_finish() -> None:
    """Tests and libraries stay to the end of the run: nothing is gained by looking whether they are garbage."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup() -> None:
    leave_out_what_is_late()


def pytest_unconfigure() -> None:
    """At the end of the run, in each of its processes: whatever libraries have put aside is of no further use."""
    for process in TRAINING:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()
    FORKER.close()
    if _IS_OURS:
        shutil.rmtree(_HOME, ignore_errors=True)


BASE = "atlas-demo/tiny-roberta"


@dataclass
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def start_python(
    *words: Any, cwd: Path | None = None, env: dict[str, str] | None = None, **streams: int
) -> Started | subprocess.Popen[str]:
    """``python words…`` in text mode, leading a group of processes of its own: a fork where it may be one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    if can_fork(environment):
        return Started(FORKER, words, cwd=cwd or ROOT, env=environment, **streams)
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=cwd or ROOT,
        env=environment,
        text=True,
        start_new_session=True,
        **streams,
    )


def run_python(*words: Any, stdin: str | None = None, timeout: float = 240, **where: Any) -> Ran:
    """``python words…`` to its end."""
    process = start_python(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **where)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(stdin or "")
        process.stdin.close()
    process.stdin = None
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Ran(process.returncode, out, err)


def family_of(folder: Path, size: str, architecture: str = "roberta") -> Path:
    """What ``scripts.family.make_family`` makes, by processes that have loaded the libraries."""
    ran = run_python("-m", "scripts.family", "--out", folder, "--size", size, "--architecture", architecture)
    assert ran.code == 0, ran.err
    return folder


@dataclass
class Shell:
    """Runs the real commands as a person would, against one Hub, in one folder; builds use one process by default."""

    endpoint: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    hub: Any = None  # the Hub itself, where a test may look into it
    store: Path | None = None

    def __call__(self, *words: str, stdin: str | None = None, timeout: float = 240, **more: str) -> Ran:
        module, *rest = words
        module = {"index": "indexer"}.get(module, module)
        if (module, *rest[:1]) == ("indexer", "build") and not {"--workers", "--executor"} & set(rest):
            rest += ["--workers", "1"]  # each process of a pool loads torch again; tests of the pool say how many
        own = {"HF_ENDPOINT": self.endpoint, **self.environment, **more}
        return run_python("-m", module, *rest, stdin=stdin, timeout=timeout, cwd=self.folder, env=own)


@pytest.fixture(scope="session")
def family() -> Path:
    """A small family of real fine-tunes, trained once and kept in .demo/."""
    return small_family()


@pytest.fixture(scope="session")
def mini_family(tmp_path_factory) -> Path:
    """A family of few models, hardly trained, made once in a run; tests must not change it."""
    from tests.once import made_once

    return made_once(tmp_path_factory, "family-mini", lambda folder: family_of(folder, "mini"))


@pytest.fixture(scope="session")
def expected(family: Path) -> dict[str, dict[str, Any]]:
    """What is to become of every repository of the family."""
    found = json.loads((family / "expected.json").read_text())
    # Written for a build that asks for direct children alone, and refuses DoRA.
    return {
        model: {**one, "outcome": "indexed", "reason": None}
        if one["found_by"] == "descendants" or one.get("reason") == "adapter_unsupported"
        else one
        for model, one in found.items()
    }


@pytest.fixture(scope="session")
def hub(family: Path):
    """The family, served; its request log and faults are shared by the session."""
    from scripts.loopback_hub import LoopbackHub

    with LoopbackHub(family) as running:
        yield running


@pytest.fixture(scope="session")
def built(hub, tmp_path_factory) -> Shell:
    """A folder in which `index build` has run once; tests must leave its atlas as it is."""
    shell = Shell(hub.endpoint, tmp_path_factory.mktemp("built"))
    ran = shell("index", "build", "--base", BASE, "--discover", "names", "--json")
    assert ran.code == 0, ran.err
    (shell.folder / "report.json").write_text(ran.out)
    return shell


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """An atlas of nine models, three for each data set; tests must not change it."""
    from tests.once import made_once
    from tests.tiny_hub import indexed, make_store

    def make(folder: Path) -> None:
        with indexed(make_store(folder / "store", per_dataset=3)):
            pass

    return made_once(tmp_path_factory, "made", make) / "atlas"


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory) -> Callable[..., Path]:
    """``tiny_store(n)``: the store of a base and ``n`` fine-tunes of each data set, made once in a run.

    Tests must not change it; ``tiny_store(n, folder)`` copies it to ``folder``.
    """
    from tests.once import made_once
    from tests.tiny_hub import make_store

    def store(per_dataset: int, folder: Path | None = None) -> Path:
        made = made_once(tmp_path_factory, f"store-{per_dataset}", lambda new: make_store(new, per_dataset))
        return made if folder is None else Path(shutil.copytree(made, folder))

    return store


@pytest.fixture(scope="session")
def made_of_twelve(tiny_store, tmp_path_factory) -> Path:
    """``atlas`` of the models of ``tiny_store(4)``, and the ``report.json`` of its build; tests must not change it."""
    from tests.once import made_once
    from tests.tiny_hub import BASE, served_shell

    def make(folder: Path) -> None:
        with served_shell(tiny_store(4), folder) as shell:
            ran = shell("index", "build", "--base", BASE, "--json")
            assert ran.code == 0, ran.err
            (folder / "report.json").write_text(ran.out)

    return made_once(tmp_path_factory, "made-of-twelve", make)


@pytest.fixture(scope="session")
def umap_alone() -> None:
    """UMAP, with the library that would search for neighbours as plain Python: they are all given to it.

    In a new environment, compiling that library takes two thirds of the twenty seconds before UMAP is ready.
    """
    numba = pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "DISABLE_JIT", True)
        pytest.importorskip("pynndescent")


@pytest.fixture
def atlas(made, tmp_path):
    """A copy of it that a test may change."""
    from indexer.atlas import AtlasFolder

    shutil.copytree(made, tmp_path / "atlas")
    return AtlasFolder(tmp_path / "atlas")


@pytest.fixture
def run(capsys):
    """Runs a command in this process: its exit status, stdout and stderr."""

    def ran(program, *words):
        import indexer.cli
        import query.faces.cli

        main = {"query": query.faces.cli.main, "index": indexer.cli.main}[program]
        with pytest.raises(SystemExit) as caught:
            main([str(word) for word in words], prog_name=program)
        captured = capsys.readouterr()
        return caught.value.code or 0, captured.out, captured.err

    return ran
