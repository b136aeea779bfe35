"""Run the console blocks of README.md and docs/guide and put what they print below each command.

    python -m scripts.guide                          # README.md and all pages
    python -m scripts.guide docs/guide/sharing.md    # one page

Pages are written for the atlas that comes with the program. A ``console`` block holds commands after ``$`` and what each
prints, stdout and stderr as on a terminal; a ``pycon`` block holds statements after ``>>>``. All blocks of a page run one
after another in one empty folder, in one Python session, so that a file that one command writes is there for the next.
``$ export NAME=VALUE`` counts to the end of the page. Where what is shown ends with a line ``…``, as many lines are shown
again, and the rest is left out.

A block that cannot run everywhere is left as it is if the line above it says why, and so is a whole page:

    <!-- not run: needs a network -->
    <!-- page not run: needs a model of your own -->

A test runs all of them and compares (tests/guide/test_pages.py).
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.child import PROJECT

PAGES = (PROJECT / "README.md", *sorted((PROJECT / "docs" / "guide").glob("*.md")))

BLOCKS = re.compile(
    r"(?P<above>[^\n]*\n)(?P<fence>```(?P<kind>console|pycon)\n)(?P<text>.*?)(?P<end>^```$)", re.DOTALL | re.MULTILINE
)
_NOT_RUN = re.compile(r"<!-- not run: \S.* -->\n")
_PAGE_NOT_RUN = re.compile(r"^<!-- page not run: \S.* -->$", re.MULTILINE)
_COMMAND = re.compile(r"^\$ (?P<typed>.+)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.MULTILINE)
_REST = "…"
_FOR_A_SHELL = re.compile(r"[|<>;&*?$`~]")  # outside quotes
_DECIMAL = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


@dataclass
class Session:
    """One page's commands and statements: they run in ``folder``, with ``variables`` added to the environment.

    ``failed``: the commands that ended with another exit status than 0, and statements that raised an error.
    """

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def command(self, typed: str) -> str:
        """What a command prints, as typed after ``$``."""
        words = shlex.split(typed, comments=True)
        if words[:1] == ["export"]:
            self.variables |= dict(word.split("=", 1) for word in words[1:])
            return ""
        program = _programs().get(words[0])
        if program is None or _FOR_A_SHELL.search(_without_quoted(typed)):
            return self._by_shell(typed)
        printed, status = io.StringIO(), 0
        with self._entered(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                program.main(words[1:], prog_name=words[0])
            except SystemExit as end:
                status = int(end.code or 0)
        if status:
            self.failed.append(typed)
        return printed.getvalue()

    def statement(self, source: str) -> str:
        """What a statement prints, the value of an expression included; of an error, the last line."""
        printed = io.StringIO()
        with self._entered(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                exec(compile(source, "<page>", "single"), self.names)  # the project's own page
            except Exception as error:
                self.failed.append(source.strip())
                print("".join(traceback.format_exception_only(error)).strip())
        return printed.getvalue()

    def _by_shell(self, typed: str) -> str:
        """The same by a shell, which finds the programs beside this Python."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        words = ["bash", "-o", "pipefail", "-c", typed]
        with self._entered():
            done = subprocess.run(
                words,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | {"PATH": path},
                check=False,
            )
        if done.returncode:
            self.failed.append(typed)
        return done.stdout

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        """Within the block this process is in the folder, with the variables."""
        before = dict(os.environ)
        with contextlib.chdir(self.folder):
            os.environ.pop("VECTORS_ATLAS", None)  # that of the user
            os.environ.update(self.variables)
            try:
                yield
            finally:
                os.environ.clear()
                os.environ.update(before)


def renewed(text: str, folder: Path) -> tuple[str, list[str]]:
    """A page's text with what its blocks print now, run in ``folder``; and the commands that failed."""
    if _PAGE_NOT_RUN.search(text):
        return text, []
    session = Session(folder)

    def block(found: re.Match[str]) -> str:
        if _NOT_RUN.fullmatch(found["above"]):
            return found[0]
        run = _console if found["kind"] == "console" else _pycon
        return f"{found['above']}{found['fence']}{run(found['text'], session)}{found['end']}"

    return BLOCKS.sub(block, text), session.failed


def _console(text: str, session: Session) -> str:
    """A block's commands, each with what it prints and an empty line before the next if it printed something."""
    shown: list[str] = []
    for command in _COMMAND.finditer(text):
        typed, before = command["typed"], command["shown"].rstrip().splitlines()
        lines = [line.rstrip() for line in session.command(typed).rstrip().splitlines()]
        if before[-1:] == [_REST] and len(lines) >= len(before):
            lines[len(before) - 1 :] = [_REST]
        printed = "\n".join(lines)
        if shown and "\n" in shown[-1]:
            shown.append("")
        shown.append(f"$ {typed}\n{printed}" if printed else f"$ {typed}")
    return "\n".join(shown) + "\n"


def _pycon(text: str, session: Session) -> str:
    """A block's statements, each with what it prints."""
    shown = []
    for example in doctest.DocTestParser().get_examples(text):
        first, *more = example.source.splitlines()
        typed = "\n".join([f">>> {first}", *(f"... {line}".rstrip() for line in more)])
        printed = session.statement(example.source).rstrip()
        shown.append(f"{typed}\n{printed}" if printed else typed)
    return "\n".join(shown) + "\n"


def differences(shown: str, printed: str) -> list[str]:
    """The lines in which two texts of a page differ, one of each; numbers may differ by one in the last decimal place.

    The last digit of a number depends on the processor and on the libraries.
    """
    before, after = shown.splitlines(), printed.splitlines()
    found = [
        f"{one!r} is shown, {other!r} is printed"
        for one, other in zip(before, after, strict=False)
        if not _is_same(one, other)
    ]
    if len(before) != len(after):
        found.append(f"{len(before)} lines are shown, {len(after)} are printed")
    return found


def _is_same(one: str, other: str) -> bool:
    numbers, others = _DECIMAL.findall(one), _DECIMAL.findall(other)
    if _DECIMAL.sub("#", one) != _DECIMAL.sub("#", other):
        return False
    return all(_is_close(number, its) for number, its in zip(numbers, others, strict=True))


def _is_close(one: str, other: str) -> bool:
    if "e" in one or "e" in other:
        return abs(float(one) - float(other)) <= 0.1 * abs(float(one))
    places = max(len(number.partition(".")[2]) for number in (one, other))
    return abs(float(one) - float(other)) < 1.5 * 10**-places


def _programs() -> Mapping[str, Any]:
    import indexer.cli
    import query.faces.cli
    import query.faces.cli.model_atlas

    return {
        "query": query.faces.cli.main,
        "index": indexer.cli.main,
        "model-atlas": query.faces.cli.model_atlas.main,
    }


def _without_quoted(typed: str) -> str:
    return re.sub(r"'[^']*'|\"[^\"]*\"|#.*$", "", typed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Renew the named pages, or all; commands that end with an error are named on stderr: a page may want to show them."""
    chosen = [Path(name) for name in (sys.argv[1:] if arguments is None else arguments)]
    for page in chosen or PAGES:
        with tempfile.TemporaryDirectory() as folder:
            text, failures = renewed(page.read_text(encoding="utf-8"), Path(folder))
        page.write_text(text, encoding="utf-8")
        for command in failures:
            print(f"{page.name} shows an error of: {command}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
