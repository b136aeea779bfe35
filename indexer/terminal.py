"""How both command lines behave: options, output, errors, progress.

Data goes to stdout, everything else to stderr. A library error is one line that says what to do; strings that
come from the Hub never reach a terminal with an escape sequence in them.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import errno
import io
import json
import math
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from indexer import __version__
from indexer.errors import AtlasError, ModelError

FORMATS = ("table", "json", "jsonl", "csv")
PLAIN_PROGRESS_SECONDS = 10.0

Command = TypeVar("Command", bound=Callable[..., Any])


# ---- options ------------------------------------------------------------------------------------------------------


def atlas_option(command: Command) -> Command:
    """``--atlas DIR``: which atlas, passed on as ``atlas``."""
    return click.option(
        "--atlas",
        default="atlas",
        envvar="VECTORS_ATLAS",
        show_envvar=True,
        show_default=True,
        metavar="DIR",
        help="The atlas's folder.",
    )(command)


def output_options(command: Command) -> Command:
    """``--format`` and ``--json``, passed on as ``output``."""
    command = click.option("--json", "output", flag_value="json", help="Short for --format json.")(command)
    return click.option(
        "--format",
        "output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="How to print.",
    )(command)


class AtlasGroup(click.Group):
    """A group of commands whose errors are one line, and whose ``-q``, ``-v`` and ``--debug`` may stand anywhere."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 100})
        super().__init__(*arguments, **options)
        self.params += [
            click.Option(["-q", "--quiet"], is_flag=True, expose_value=False, help="Only errors on stderr."),
            click.Option(
                ["-v", "--verbose"],
                is_flag=True,
                expose_value=False,
                help="A line for every model that is not indexed.",
            ),
            click.Option(["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an error."),
        ]
        click.version_option(__version__, package_name="vectors-in-the-wild")(self)

    def main(self, args: Sequence[str] | None = None, *arguments: Any, **options: Any) -> Any:
        """Run, turning every way of ending into an exit code and at most one line."""
        options["standalone_mode"] = False
        words = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(_mind_manners(words), *arguments, **options)
        except BaseException as error:
            code = _ended_by(error)
        _leave(code if isinstance(code, int) else 0)


@dataclasses.dataclass
class _Manners:
    quiet: bool = False
    verbose: bool = False
    debug: bool = False


_manners = _Manners()


def _mind_manners(words: list[str]) -> list[str]:
    """Note the flags that may stand anywhere (``index build --debug`` too), and return the other words."""
    flags = {"-q": "quiet", "--quiet": "quiet", "-v": "verbose", "--verbose": "verbose", "--debug": "debug"}
    end = words.index("--") if "--" in words else len(words)
    for word in words[:end]:
        if word in flags:
            setattr(_manners, flags[word], True)
    return [word for word in words[:end] if word not in flags] + words[end:]


# ---- errors -------------------------------------------------------------------------------------------------------


def _ended_by(error: BaseException) -> int:
    """Say what happened, in a line, and choose the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.exceptions.Abort):
        _complain("Stopped. What was done stays; run it again to go on.", prefix="")
        return 130
    if isinstance(error, _ReaderGoneError | BrokenPipeError):
        return 0
    if _manners.debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, click.ClickException):
        usage = error.ctx.get_usage() + "\n" if isinstance(error, click.UsageError) and error.ctx else ""
        click.echo(clean(usage, keep_lines=True), err=True, nl=False)
        _complain(error.format_message())
        return error.exit_code
    _complain(explain(error))
    return 1


def explain(error: BaseException) -> str:
    """One line for a person: what is wrong, and what to do."""
    if isinstance(error, AtlasError):
        return str(error)
    if isinstance(error, ModelError):
        return f"{error.detail.rstrip('.')}."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" at {error.filename}" if error.filename else ""
        return f"The disk is full{where}. Free space and run it again; what was done stays."
    if isinstance(error, PermissionError):
        return f"No permission for {error.filename}. Check its owner, or choose another --atlas."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename or ''}. Run with --debug for the traceback."
    first = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__}: {first[0] if first else 'no message'}. Run with --debug for the traceback."


def _complain(sentence: str, prefix: str = "Error: ") -> None:
    click.echo(click.style(prefix, fg="red") * bool(prefix) + clean(sentence), err=True, color=_colour(sys.stderr))


def _leave(code: int) -> None:
    """Exit without a second traceback where the reader of a pipe has gone."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def say(sentence: str) -> None:
    """A line on stderr that a person should see, unless they asked for quiet."""
    if not _manners.quiet:
        click.echo(clean(sentence), err=True)


def say_more(sentence: str) -> None:
    """A line on stderr for a person who asked for more."""
    if _manners.verbose:
        say(sentence)


# ---- output -------------------------------------------------------------------------------------------------------


def emit(result: Any, output: str) -> None:
    """Print an object or a list of objects as table, json, jsonl or csv."""
    plain = as_plain(result)
    if output == "json":
        _write(json.dumps(plain, ensure_ascii=True, indent=2, allow_nan=False) + "\n")
    elif output == "jsonl":
        for row in plain if isinstance(plain, list) else [plain]:
            _write(json.dumps(row, ensure_ascii=True, allow_nan=False) + "\n")
    elif output == "csv":
        _write(_csv(plain if isinstance(plain, list) else [plain]))
    elif isinstance(plain, list):
        _table(plain)
    else:
        _sheet(plain)


def as_plain(value: Any) -> Any:
    """JSON's own types: dataclasses and numpy unpacked, times ISO, sets sorted, NaN and infinities null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((as_plain(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return as_plain(value.tolist())
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    return str(value)


def clean(text: str, keep_lines: bool = False) -> str:
    """Text without anything that moves a cursor, hides, or reorders: such characters are shown as escapes."""
    return "".join(
        character if _is_harmless(character) or (keep_lines and character == "\n") else _escaped(character)
        for character in text
    )


def _is_harmless(character: str) -> bool:
    return (character.isascii() and character.isprintable()) or (
        not character.isascii() and unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class _ReaderGoneError(Exception):
    """Whoever read our output has had enough (``| head``): no fault of anybody's."""


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        # Click would turn this into exit code 1.
        raise _ReaderGoneError from error


def _csv(rows: Sequence[Any]) -> str:
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\r\n")
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer.writerow(names)
    for row in rows:
        writer.writerow([_csv_cell(row.get(name)) for name in names])
    return table.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        value = ";".join(item if isinstance(item, str) else json.dumps(item) for item in value)
    elif isinstance(value, dict):
        value = json.dumps(value)
    if isinstance(value, str):
        value = clean(value, keep_lines=True)
        # A spreadsheet runs what begins like this.
        return "'" + value if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
    return value


def _table(rows: list[Any]) -> None:
    if not rows:
        say("no rows")
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    numeric = [all(isinstance(row.get(name), int | float) or row.get(name) is None for row in rows) for name in names]
    widths = [max(_width(names[i]), *(_width(row[i]) for row in cells)) for i in range(len(names))]
    widths = _fitted(widths)
    header = "  ".join(_padded(name, width, right) for name, width, right in zip(names, widths, numeric, strict=True))
    _write(click.style(header.rstrip(), bold=True) + "\n" if _colour(sys.stdout) else header.rstrip() + "\n")
    for row in cells:
        line = "  ".join(_padded(cell, width, right) for cell, width, right in zip(row, widths, numeric, strict=True))
        _write(line.rstrip() + "\n")


def _sheet(row: Mapping[str, Any]) -> None:
    """One object: a line for each plain value, an indented table for each list of objects."""
    width = max((_width(name) for name in row), default=0)
    for name, value in row.items():
        if _is_table(value):
            _write(f"\n{clean(name)}\n")
            _table(value)
        elif isinstance(value, dict):
            inner = ", ".join(
                f"{key} {_cell(item)}" for key, item in value.items() if item not in (None, "") and not _is_table(item)
            )
            _write(f"{_padded(name, width, False)}  {clean(inner)}\n")
        else:
            _write(f"{_padded(name, width, False)}  {_cell(value)}".rstrip() + "\n")


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(_cell(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{clean(str(key))} {_cell(item)}" for key, item in value.items())
    return clean(str(value))


def _fitted(widths: list[int]) -> list[int]:
    """Narrow the widest columns until the table fits the terminal; piped output is never cut."""
    if not sys.stdout.isatty():
        return widths
    room = shutil.get_terminal_size().columns - 2 * (len(widths) - 1)
    while sum(widths) > room and max(widths) > 6:
        widths[widths.index(max(widths))] -= 1
    return widths


def _width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def _padded(text: str, width: int, right: bool) -> str:
    text = clean(text)
    if _width(text) > width:
        while text and _width(text) > width - 1:
            text = text[:-1]
        text += "…"
    blanks = " " * (width - _width(text))
    return blanks + text if right else text + blanks


def _colour(stream: Any) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


# ---- progress -----------------------------------------------------------------------------------------------------


class Progress:
    """A bar on stderr where that is a terminal, else a plain line now and then."""

    def __init__(self, total: int | None, what: str) -> None:
        self.what, self.total, self.done, self.note = what, total, 0, ""
        self._told = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty() and not _manners.quiet:
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=clean(what), file=sys.stderr, dynamic_ncols=True, unit="")

    def update(self, count: int = 1, note: str = "") -> None:
        """``count`` more are done."""
        self.done += count
        self.note = note
        if self._bar is not None:
            self._bar.set_postfix_str(clean(note), refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._told > PLAIN_PROGRESS_SECONDS:
            self._tell()

    def close(self) -> None:
        """Finish the bar, or say the last line."""
        if self._bar is not None:
            self._bar.close()
        elif self.done:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        of = f" of {self.total}" if self.total is not None else ""
        say(f"{self.what}: {self.done}{of}{', ' + self.note if self.note else ''}")
