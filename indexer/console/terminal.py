"""What both command lines share: options, and how an error ends them.

Data goes to stdout (``indexer.console.output``), everything else to stderr (``indexer.console.messages``). An error of
the library is printed as one line that says what to do.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click

from indexer.atlas import DEMO, AtlasFolder, demo_note
from indexer.console.advice import for_command_line
from indexer.console.messages import Progress, clean, is_coloured, say, say_more, verbosity
from indexer.console.output import as_plain, emit
from indexer.errors import WRONG_KINDS, AtlasError, BadArgument, ModelError, missing_extra
from indexer.shared_state import usable_umask
from indexer.version import __version__

__all__ = [
    "AtlasGroup",
    "FiniteRange",
    "Progress",
    "as_plain",
    "atlas_option",
    "clean",
    "emit",
    "explain",
    "output_options",
    "say",
    "say_more",
]

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
_ATLAS = f"{__name__}.atlas"  # where a group keeps its own --atlas for its commands

DEFAULT_ATLAS = "atlas"
FORMATS = ("table", "json", "jsonl", "csv")

Command = TypeVar("Command", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """click's range of floats without infinities and NaN, which is in every range as all its comparisons are false."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; anything else is a usage error."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def atlas_option(command: Command) -> Command:
    """``--atlas DIR``: which atlas, passed on as ``atlas``."""

    def expanded(context: click.Context, option: click.Parameter, value: str) -> str:
        source = context.get_parameter_source(str(option.name))
        if source is not click.core.ParameterSource.COMMANDLINE:
            value = context.meta.get(_ATLAS, value)  # `query --atlas DIR show MODEL`
        if not value:
            raise click.BadParameter("a folder is needed.")
        if value == DEMO:
            if not context.resilient_parsing and (note := demo_note(value)):
                say(note)
            return str(AtlasFolder(value).root)
        return os.path.expanduser(value)  # noqa: PTH111 - a path that starts with ./ must stay as it was typed

    return click.option(
        "--atlas",
        default=DEFAULT_ATLAS,
        envvar="VECTORS_ATLAS",
        show_envvar=True,
        show_default=True,
        metavar="DIR",
        callback=expanded,
        help="The atlas's folder; demo is the one that comes with this program, unless ./demo is an atlas.",
    )(command)


def output_options(command: Command, documents: Sequence[str] = ()) -> Command:
    """``--format`` and ``--json``, passed on as ``output``.

    ``documents``: further formats, in which only this command can write its answer; the first is the default.
    """
    usual = (*documents, "table")[0]

    @functools.wraps(command)
    def wrapped(*arguments: Any, output: str | None, as_json: bool, **options: Any) -> Any:
        if as_json and output not in (None, "json"):
            raise click.UsageError(f"--json and --format {output} contradict each other.")
        return command(*arguments, output="json" if as_json else output or usual, **options)

    wrapped = click.option("--json", "as_json", is_flag=True, help="Short for --format json.")(wrapped)
    choice = click.Choice((*documents, *FORMATS))
    option = click.option("--format", "output", type=choice, show_default=usual, help="How to print.")
    return option(wrapped)  # type: ignore[return-value]


def _verbosity_options(hidden: bool) -> list[click.Option]:
    def note(_context: click.Context, option: click.Parameter, is_set: bool) -> None:
        if is_set:
            setattr(verbosity, str(option.name), True)

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
    """A group of commands with one-line errors, whose ``-q``, ``-v`` and ``--debug`` may follow any command."""

    def __init__(self, *arguments: Any, examples: Mapping[str, str] | None = None, **options: Any) -> None:
        self.examples = dict(examples or {})
        options.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 100})
        super().__init__(*arguments, **options)

        def keep_atlas(context: click.Context, _option: click.Parameter, value: str | None) -> None:
            if value is not None:
                context.meta[_ATLAS] = value

        self.params.append(
            click.Option(["--atlas"], metavar="DIR", expose_value=False, callback=keep_atlas,
                         help="The atlas's folder, or demo; it may also follow the command.")
        )  # fmt: skip
        self.params += _verbosity_options(hidden=False)
        click.version_option(__version__, package_name="vectors-in-the-wild")(self)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, with the options of the group and its example."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and all(option.name != "debug" for option in command.params):
            used_options = {text for option in command.params for text in option.opts}
            command.params += [
                verbosity for verbosity in _verbosity_options(hidden=True) if not used_options & set(verbosity.opts)
            ]
        if command is not None and command.epilog is None and cmd_name in self.examples:
            examples = self.examples[cmd_name].splitlines()
            title = "Example:" if len(examples) == 1 else "Examples:"
            command.epilog = "\n  ".join([f"\b\n{title}", *examples])
        return command

    def summary(self, ctx: click.Context, name: str) -> str | None:
        """The first paragraph of the help of a command; None if it is hidden."""
        command = self.get_command(ctx, name)
        return (command.help or "").split("\n\n")[0] if command and not command.hidden else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every command with the first sentence of its help, wrapped; click would cut it."""
        with formatter.section("Commands"):
            formatter.write_dl(self._sentences(ctx))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """The commands that begin with the typed text, and the group's options."""
        from click.shell_completion import CompletionItem

        items = [CompletionItem(name, help=text) for name, text in self._sentences(ctx) if name.startswith(incomplete)]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def _sentences(self, ctx: click.Context) -> list[tuple[str, str]]:
        rows = []
        for name in self.list_commands(ctx):
            if (summary := self.summary(ctx, name)) is not None:
                rows.append((name, first_sentence(summary)))
        return rows

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Parse the arguments; ``--help`` prints here."""
        with _carried():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _carried():
            return super().invoke(ctx)

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run the command; every way of ending becomes an exit code and at most two lines."""
        _replace_closed_streams()
        verbosity.quiet = verbosity.verbose = verbosity.debug = False
        options["standalone_mode"] = False
        try:
            with usable_umask():
                code = super().main(*arguments, **options)
            sys.stdout.flush()
        except BaseException as error:
            code = _ended_by(error.__cause__ if isinstance(error, _CarriedError) and error.__cause__ else error)
        _silence(sys.stdout)
        _silence(sys.stderr)
        sys.exit(code if isinstance(code, int) else 0)


def first_sentence(paragraph: str) -> str:
    """The first sentence of a paragraph of help, or its beginning up to a colon."""
    return re.split(r"(?<=[.:]) |[:;] ", " ".join(paragraph.split()))[0].rstrip(".:") + "."


def _replace_closed_streams() -> None:
    """Put the null device in place of every standard stream that is closed, descriptor and all.

    Python has None for such a stream. A free descriptor is worse: the next file that is opened gets it, and receives
    whatever is written to standard error.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:
            continue
        descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so `number` unless another file has it
        os.set_inheritable(descriptor, descriptor == number)  # workers write to the same place
        stream = os.fdopen(descriptor, mode, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, handled like Ctrl-C."""

    number: int = signal.SIGTERM


def handle_sigterm() -> None:
    """Let SIGTERM (from a batch system or systemd) and SIGHUP (a terminal that is closed) end a command as Ctrl-C does.

    A signal that is ignored stays ignored, as with nohup.
    """

    def stop(number: int, _frame: object) -> None:
        ended = Terminated()
        ended.number = number
        raise ended

    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):  # Windows has no SIGHUP
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, stop)


class _CarriedError(Exception):
    """Carries its cause past click, which would handle it differently."""


@contextlib.contextmanager
def _carried() -> Iterator[None]:
    try:
        yield
    except (OSError, KeyboardInterrupt, EOFError) as error:
        raise _CarriedError from error


# What a script can test, of every command.
EXIT_STATUSES = {
    0: "Done. Also if whoever reads the output has gone, as with `| head`.",
    1: "An error, in one line on stderr; or some of several models could not be read or answered.",
    2: "Wrong use: an unknown option, or a value that an option does not take.",
    128 + signal.SIGHUP: "The terminal was closed (SIGHUP). As after Ctrl-C.",
    128 + signal.SIGINT: "Ctrl-C. Finished work is kept; the same command goes on from there.",
    128 + signal.SIGTERM: "SIGTERM, as batch systems send it. As after Ctrl-C.",
}


def _ended_by(error: BaseException) -> int:
    """Print what happened, in one line, and choose the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, BrokenPipeError) and _is_reader_gone():
        return 0
    if isinstance(error, KeyboardInterrupt | click.exceptions.Abort):
        stopped = "Stopped. Finished work is kept; run it again to continue."
        with contextlib.suppress(OSError):  # the terminal may be gone
            _print_error(f"Stopped: {error}" if str(error) else stopped, prefix="")
        return 128 + (error.number if isinstance(error, Terminated) else signal.SIGINT)
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2 and later
        assert isinstance(error, click.ClickException)
        click.echo(error.format_message(), err=True)
        return error.exit_code
    if verbosity.debug:
        import traceback

        click.echo(clean("".join(traceback.format_exception(error)), keep_lines=True), err=True, nl=False)
    if isinstance(error, click.ClickException):
        _print_error(error.format_message())
        if isinstance(error, click.UsageError) and error.ctx:
            click.echo(f"Try: {error.ctx.command_path} --help", err=True)
        return error.exit_code
    _print_error(explain(error))
    return 2 if isinstance(error, BadArgument) else 1


_OS_ERRORS = {
    errno.ENOSPC: "The disk is full{at}. Free some space and run it again; finished work is kept.",
    errno.EDQUOT: "The disk quota is used up{at}. Free some space and run it again; finished work is kept.",
    errno.EROFS: "The file system{at} is read-only. Choose another --atlas.",
    errno.EACCES: "No permission{at}. Check who owns it, or choose another --atlas.",
    errno.EPERM: "No permission{at}. Check who owns it, or choose another --atlas.",
    errno.EMFILE: "Too many files are open. Raise the limit: ulimit -n 4096",
}


def explain(error: BaseException) -> str:
    """One line for a person: what is wrong, and what to do."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    error = missing_extra(error) or error
    if isinstance(error, AtlasError):
        return for_command_line(error.text).strip()
    if isinstance(error, ModelError):
        return f"{error.detail.rstrip('.')}."
    if isinstance(error, MemoryError):
        return "There is not enough memory. Use fewer --workers, or a machine with more."
    quoted = re.search(r'file "([^"]+)"', text)  # libraries that write files name the file only in the message
    name = getattr(error, "filename", None) or (quoted[1] if quoted else None)
    at = f" at {os.fsdecode(name)}" if isinstance(name, str | bytes | os.PathLike) else ""
    if isinstance(error, OSError) and error.errno in _OS_ERRORS:
        return _OS_ERRORS[error.errno].format(at=at)
    if "No space left on device" in text:  # some libraries raise their own exceptions for it
        return _OS_ERRORS[errno.ENOSPC].format(at=at)
    if "Could not set lock on file" in text or "database is locked" in text:
        holder = re.search(r"PID (\d+)", str(error))
        by = f" (process {holder[1]})" if holder else ""
        return f"The database is open in another program{by}. Close it there and try again."
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{at}. Run with --debug for the traceback."
    todo = "Run with --debug for the traceback."
    if isinstance(error, WRONG_KINDS):  # a foreign atlas may hold values that builds never write
        todo = f"Check the atlas: index verify --strict. {todo}"
    return f"{type(error).__name__}: {text.rstrip('.')}. {todo}"


def _print_error(sentence: str, prefix: str = "Error: ") -> None:
    line = clean(" ".join(sentence.split()))
    click.echo(click.style(prefix, fg="red") + line if prefix else line, err=True, color=is_coloured(sys.stderr))


def _is_reader_gone() -> bool:
    """Whether the reader closed a pipe that this program writes to; else a BrokenPipeError is about something else."""
    import select

    for stream in (sys.stdout, sys.stderr):
        try:
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if poll.poll(0):  # a closed end is reported although no event was requested
                return True
        except (OSError, ValueError):  # no file behind it
            continue
        except AttributeError:  # no poll on Windows
            return True
    return False


def _silence(stream: Any) -> None:
    """Keep the interpreter from printing an error at exit about output that cannot be written."""
    try:
        stream.flush()
    except (OSError, ValueError):
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except (OSError, ValueError):
            return
