"""How both command lines behave: options, output, errors, progress.

Data goes to stdout, everything else to stderr. A library error is one line that says what to do; strings that
come from the Hub never reach a terminal with an escape sequence in them.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import datetime
import errno
import functools
import io
import json
import math
import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click

from indexer import __version__
from indexer.errors import AtlasError, ModelError

FORMATS = ("table", "json", "jsonl", "csv")
PLAIN_PROGRESS_SECONDS = 10.0
NARROWEST_TEXT = 12  # columns of a terminal below which a text column says nothing

Command = TypeVar("Command", bound=Callable[..., Any])


# ---- options ----


def atlas_option(command: Command) -> Command:
    """``--atlas DIR``: which atlas, passed on as ``atlas``."""

    def expanded(_context: click.Context, _option: click.Parameter, value: str) -> str:
        if not value:
            raise click.BadParameter("a folder is needed.")
        return os.path.expanduser(value)  # noqa: PTH111 - a path that starts with ./ must stay as it was typed

    return click.option(
        "--atlas",
        default="atlas",
        envvar="VECTORS_ATLAS",
        show_envvar=True,
        show_default=True,
        metavar="DIR",
        callback=expanded,
        help="The atlas's folder.",
    )(command)


def output_options(command: Command) -> Command:
    """``--format`` and ``--json``, passed on as ``output``."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, output: str | None, as_json: bool, **options: Any) -> Any:
        if as_json and output not in (None, "json"):
            raise click.UsageError(f"--json and --format {output} contradict each other.")
        return command(*arguments, output="json" if as_json else output or "table", **options)

    wrapped = click.option("--json", "as_json", is_flag=True, help="Short for --format json.")(wrapped)
    choice = click.Choice(FORMATS)
    option = click.option("--format", "output", type=choice, show_default="table", help="How to print.")
    return option(wrapped)  # type: ignore[return-value]


@dataclasses.dataclass
class _Manners:
    quiet: bool = False
    verbose: bool = False
    debug: bool = False


_manners = _Manners()


def _manner_options(hidden: bool) -> list[click.Option]:
    def note(_context: click.Context, option: click.Parameter, is_set: bool) -> None:
        if is_set:
            setattr(_manners, str(option.name), True)

    helps = {
        "quiet": "Only errors on stderr.",
        "verbose": "A line for every model that is not indexed.",
        "debug": "Show the traceback of an error.",
    }
    short = {"quiet": ["-q"], "verbose": ["-v"], "debug": []}
    return [
        click.Option(
            [*short[name], f"--{name}"], is_flag=True, expose_value=False, callback=note, hidden=hidden, help=help_text
        )
        for name, help_text in helps.items()
    ]


class AtlasGroup(click.Group):
    """A group of commands whose errors are one line, and whose ``-q``, ``-v`` and ``--debug`` may stand anywhere."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 100})
        super().__init__(*arguments, **options)
        self.params += _manner_options(hidden=False)
        click.version_option(__version__, package_name="vectors-in-the-wild")(self)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, taught the group's manners."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and all(option.name != "debug" for option in command.params):
            taken = {text for option in command.params for text in option.opts}
            command.params += [one for one in _manner_options(hidden=True) if not taken & set(one.opts)]
        return command

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Read the words; ``--help`` prints here."""
        with _carried():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _carried():
            return super().invoke(ctx)

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run, turning every way of ending into an exit code and at most one or two lines."""
        _manners.quiet = _manners.verbose = _manners.debug = False
        options["standalone_mode"] = False
        try:
            code = super().main(*arguments, **options)
            sys.stdout.flush()
        except BaseException as error:
            code = _ended_by(error.__cause__ if isinstance(error, _CarriedError) and error.__cause__ else error)
        _hush(sys.stdout)
        _hush(sys.stderr)
        sys.exit(code if isinstance(code, int) else 0)


class _CarriedError(Exception):
    """Carries its cause past click, which would answer it in a way of its own."""


@contextlib.contextmanager
def _carried() -> Iterator[None]:
    try:
        yield
    except (OSError, KeyboardInterrupt, EOFError) as error:
        raise _CarriedError from error


# ---- errors ----


def _ended_by(error: BaseException) -> int:
    """Say what happened, in a line, and choose the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, BrokenPipeError) and _is_reader_gone():
        return 0
    if isinstance(error, KeyboardInterrupt | click.exceptions.Abort):
        _complain(f"Stopped: {error}" if str(error) else "Stopped. What was done stays; run it again to go on.", "")
        return 130
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2 and later
        assert isinstance(error, click.ClickException)
        click.echo(error.format_message(), err=True)
        return error.exit_code
    if _manners.debug:
        import traceback

        click.echo(clean("".join(traceback.format_exception(error)), keep_lines=True), err=True, nl=False)
    if isinstance(error, click.ClickException):
        _complain(error.format_message())
        if isinstance(error, click.UsageError) and error.ctx:
            click.echo(f"Try: {error.ctx.command_path} --help", err=True)
        return error.exit_code
    _complain(explain(error))
    return 1


_OS_ERRORS = {
    errno.ENOSPC: "The disk is full{at}. Free space and run it again; what was done stays.",
    errno.EDQUOT: "The disk quota is used up{at}. Free space and run it again; what was done stays.",
    errno.EROFS: "The file system{at} is read-only. Choose another --atlas.",
    errno.EACCES: "No permission{at}. Check who owns it, or choose another --atlas.",
    errno.EPERM: "No permission{at}. Check who owns it, or choose another --atlas.",
    errno.EMFILE: "Too many files are open. Raise the limit: ulimit -n 4096",
}


def explain(error: BaseException) -> str:
    """One line for a person: what is wrong, and what to do."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    if isinstance(error, AtlasError):
        return str(error)
    if isinstance(error, ModelError):
        return f"{error.detail.rstrip('.')}."
    if isinstance(error, MemoryError):
        return "There is not enough memory. Use fewer --workers, or a machine with more."
    name = getattr(error, "filename", None)
    at = f" at {os.fsdecode(name)}" if isinstance(name, str | bytes | os.PathLike) else ""
    if isinstance(error, OSError) and error.errno in _OS_ERRORS:
        return _OS_ERRORS[error.errno].format(at=at)
    if "No space left on device" in text:  # libraries have exceptions of their own for it
        return _OS_ERRORS[errno.ENOSPC].format(at=at)
    if "Could not set lock on file" in text or "database is locked" in text:
        holder = re.search(r"PID (\d+)", str(error))
        by = f" (process {holder[1]})" if holder else ""
        return f"The database is open in another program{by}. Close it there and try again."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{at}. Run with --debug for the traceback."
    return f"{type(error).__name__}: {text.rstrip('.')}. Run with --debug for the traceback."


def _complain(sentence: str, prefix: str = "Error: ") -> None:
    line = clean(" ".join(sentence.split()))
    click.echo(click.style(prefix, fg="red") + line if prefix else line, err=True, color=_is_coloured(sys.stderr))


def _is_reader_gone() -> bool:
    """Whether a pipe that we write to was closed; else a BrokenPipeError was about some other connection."""
    import select

    for stream in (sys.stdout, sys.stderr):
        try:
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if poll.poll(0):  # asked for nothing, it still tells of an end that is closed
                return True
        except (OSError, ValueError):  # no file behind it
            continue
        except AttributeError:  # no poll on Windows
            return True
    return False


def _hush(stream: Any) -> None:
    """Keep the interpreter from complaining, on its way out, about what cannot be written any more."""
    try:
        stream.flush()
    except (OSError, ValueError):
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except (OSError, ValueError):
            return


def say(sentence: str) -> None:
    """A line on stderr that a person should see, unless they asked for quiet."""
    if _manners.quiet:
        return
    if Progress.is_drawn:
        from tqdm import tqdm

        tqdm.write(clean(sentence), file=sys.stderr)
    else:
        click.echo(clean(sentence), err=True)


def say_more(sentence: str) -> None:
    """A line on stderr for a person who asked for more."""
    if _manners.verbose:
        say(sentence)


# ---- output ----


def emit(result: Any, output: str, *, columns: Sequence[str] | None = None) -> None:
    """Print an object (a mapping, a dataclass) or many as table, json, jsonl or csv.

    An iterator is printed as it goes where the format is jsonl. ``columns`` names them for a table and a CSV
    even where there is no row.
    """
    is_one = isinstance(result, Mapping) or dataclasses.is_dataclass(result)
    rows = (as_plain(row) for row in ([result] if is_one else result))
    count = 0
    if output == "jsonl":
        for count, row in enumerate(rows, 1):  # noqa: B007 - the last one counts
            _write(_json(row) + "\n")
    else:
        plain = list(rows)
        count = len(plain)
        if output == "json":
            _write(_json(plain[0] if is_one else plain, indent=2) + "\n")
        elif output == "csv":
            _write(_csv(plain, columns))
        elif is_one:
            _sheet(plain[0])
        elif plain:
            _table(plain, columns)
    if not count:
        say("no rows")


def as_plain(value: Any) -> Any:
    """JSON's own types: dataclasses and numpy unpacked, times ISO, sets sorted, NaN and infinities null."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((as_plain(item) for item in value), key=lambda item: (type(item).__name__, str(item)))
    if isinstance(value, list | tuple | Iterator):
        return [as_plain(item) for item in value]
    if getattr(getattr(value, "dtype", None), "kind", "") in ("M", "m"):  # numpy's times, to the nanosecond
        if getattr(value, "shape", ()):
            return [as_plain(item) for item in value]
        return None if str(value) == "NaT" else str(value)
    if hasattr(value, "tolist"):
        return as_plain(value.tolist())
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat() if value == value else None  # pandas' NaT is a date that is not itself
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if hasattr(value, "as_integer_ratio"):  # a Decimal
        return as_plain(float(value)) if value != value or value % 1 else int(value)
    return str(value)


def _json(plain: Any, indent: int | None = None) -> str:
    # ASCII: whatever hides in a string is spelt out.
    return json.dumps(plain, ensure_ascii=True, indent=indent, allow_nan=False)


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:  # raised before anything is written
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


# Characters without a shape of their own: they hide text, turn its direction or join what is apart (Unicode's
# Default_Ignorable_Code_Point, but for those in the categories that `clean` looks at anyway).
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_MOST_MARKS = 3  # accents on one letter; more are drawn over other lines


def clean(text: str, keep_lines: bool = False) -> str:
    """Text without anything that moves a cursor, hides, or reorders: such characters are shown as escapes."""
    if text.isascii() and text.isprintable():
        return text
    shown, marks = [], 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        is_harmless = (
            category not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
            and marks <= _MOST_MARKS
            and not _INVISIBLE.match(character)
        )
        if is_harmless or (keep_lines and character == "\n"):
            shown.append(character)
        else:
            shown.append(character.encode("unicode_escape").decode("ascii"))
    return "".join(shown)


# ---- CSV ----

# A spreadsheet runs what begins like this (the wide forms in some locales).
_FORMULA = re.compile("[=+\\-@\t\r\n＝＋－＠]")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def _csv(rows: Sequence[Any], columns: Sequence[str] | None) -> str:
    """RFC 4180: a header, commas, CRLF."""
    rows = [_flat(row) for row in rows]
    names = _names(rows, columns)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\r\n")
    if names:
        writer.writerow([_csv_text(name) for name in names])
    for row in rows:
        writer.writerow([_csv_cell(row.get(name)) for name in names])
    return table.getvalue()


def _flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Objects in objects as ``outer.inner``."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return flat


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        if any(isinstance(item, dict | list) for item in value):
            return _json(value)
        # Some spreadsheets take the semicolon for the border of a cell: each item must be harmless alone.
        return ";".join(str(_csv_cell(item)) for item in value)
    return _csv_text(value) if isinstance(value, str) else value


def _csv_text(text: str) -> str:
    if sys.stdout.isatty():
        text = clean(text)
    text = _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
    return "'" + text if _FORMULA.match(text) else text


# ---- tables ----


def _names(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None) -> list[str]:
    return list(dict.fromkeys([*(columns or ()), *(name for row in rows for name in row)]))


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
    """A line for each row; on a terminal too narrow for that, a line for each value."""
    names = _names(rows, columns)
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    is_numeric = [all(_is_number(row.get(name)) for row in rows) for name in names]
    heads = [clean(name) for name in names]
    widths = [max(map(_width, column)) for column in zip(heads, *cells, strict=True)]
    fitted = _fitted(widths, is_numeric)
    if fitted is None:
        for row in cells:
            _write("\n".join(f"{name}: {cell}" for name, cell in zip(heads, row, strict=True) if cell) + "\n\n")
        return
    for line in (heads, *cells):
        shown = "  ".join(map(_padded, line, fitted, is_numeric)).rstrip()
        _write((click.style(shown, bold=True) if line is heads and _is_coloured(sys.stdout) else shown) + "\n")


def _sheet(row: Mapping[str, Any], title: str = "") -> None:
    """One object: a line for each value, then the objects and the tables in it, each under its name."""
    nested = {name: value for name, value in row.items() if isinstance(value, dict) or _is_table(value)}
    values = {clean(name): _cell(value) for name, value in row.items() if name not in nested}
    width = max(map(_width, values), default=0)
    for name, text in values.items():
        _write(f"{_padded(name, width, False)}  {text}".rstrip() + "\n")
    for name, value in nested.items():
        heading = f"{title} {clean(name)}".strip()
        _write(f"\n{click.style(heading, bold=True) if _is_coloured(sys.stdout) else heading}\n")
        if isinstance(value, dict):
            _sheet(value, heading)
        else:
            _table(value)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        size = abs(value)
        if size >= 1e15 or 0 < size < 0.001:
            return f"{value:.2g}"
        return f"{value:.{4 if size < 10 else 2 if size < 100 else 1}f}"
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    if isinstance(value, dict):
        return ", ".join(f"{clean(name)} {_cell(item)}" for name, item in value.items())
    moment = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if moment:
        return moment[1] if moment[2] == "00:00" else f"{moment[1]} {moment[2]}"
    return clean(str(value))


def _fitted(widths: Sequence[int], is_numeric: Sequence[bool]) -> Sequence[int] | None:
    """Widths that fit the terminal, text cut and numbers whole; None where that would leave too little text.

    Piped output is never cut.
    """
    if not sys.stdout.isatty():
        return widths
    room = shutil.get_terminal_size().columns - 2 * (len(widths) - 1)
    for most in range(max(widths), NARROWEST_TEXT - 1, -1):
        fitted = [width if number else min(width, most) for width, number in zip(widths, is_numeric, strict=True)]
        if sum(fitted) <= room:
            return fitted
    return None if sum(widths) > room else widths


def _width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.category(character) in ("Mn", "Me")
        else 2
        if unicodedata.east_asian_width(character) in "WF"
        else 1
        for character in text
    )


def _padded(text: str, width: int, to_the_right: bool) -> str:
    """``text``, which is clean, in exactly ``width`` columns."""
    if _width(text) > width:
        while text and _width(text) > width - 1:
            text = text[:-1]
        text += "…"
    blanks = " " * (width - _width(text))
    return blanks + text if to_the_right else text + blanks


def _is_coloured(stream: Any) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


# ---- progress ----


class Progress:
    """A bar on stderr where that is a terminal, else a plain line now and then."""

    is_drawn = False  # whether a bar is on the terminal now

    def __init__(self, total: int | None, what: str) -> None:
        self.what, self.total, self.done, self.note = what, total, 0, ""
        self._started = self._told = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty() and not _manners.quiet:
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=clean(what), file=sys.stderr, dynamic_ncols=True, unit="")
            Progress.is_drawn = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()

    def update(self, count: int = 1, note: str = "") -> None:
        """``count`` more are done; ``note`` stands behind the numbers."""
        self.done += count
        self.note = note
        if self._bar is not None:
            self._bar.set_postfix_str(clean(note), refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._told >= PLAIN_PROGRESS_SECONDS:
            self._tell()

    def close(self) -> None:
        """Finish the bar, or say the last line; once."""
        if self._bar is not None:
            self._bar.close()
            Progress.is_drawn = False
        elif self.done:
            self._tell()
        self._bar, self.done = None, 0

    def _tell(self) -> None:
        self._told = time.monotonic()
        words = [f"{self.what}: {self.done}" + (f" of {self.total}" if self.total is not None else "")]
        if self.total and 0 < self.done < self.total:
            left = (self._told - self._started) / self.done * (self.total - self.done)
            words.append(f"about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left")
        say(", ".join([*words, *([self.note] if self.note else [])]))
