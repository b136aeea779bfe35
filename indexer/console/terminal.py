"""How both command lines behave: the options they share, and how an error ends them.

Data goes to stdout (``indexer.console.output``), everything else to stderr (``indexer.console.messages``). A library
error is one line that says what to do.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import click

from indexer.console.messages import Progress, clean, is_coloured, say, say_more, verbosity
from indexer.console.output import as_plain, emit
from indexer.console.streams import replace_closed_streams
from indexer.console.typed import as_typed
from indexer.errors import AtlasError, BadArgument, ModelError
from indexer.version import __version__

__all__ = [
    "AtlasGroup",
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

_ATLAS = f"{__name__}.atlas"  # where a group keeps its own --atlas for its commands

FORMATS = ("table", "json", "jsonl", "csv")

Command = TypeVar("Command", bound=Callable[..., Any])


def atlas_option(command: Command) -> Command:
    """``--atlas DIR``: which atlas, passed on as ``atlas``."""

    def expanded(context: click.Context, option: click.Parameter, value: str) -> str:
        source = context.get_parameter_source(str(option.name))
        if source is not click.core.ParameterSource.COMMANDLINE:
            value = context.meta.get(_ATLAS, value)  # `query --atlas DIR show MODEL`
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


def _manner_options(hidden: bool) -> list[click.Option]:
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


def _keep_atlas(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[_ATLAS] = value


class AtlasGroup(click.Group):
    """A group of commands whose errors are one line, and whose ``-q``, ``-v`` and ``--debug`` may stand anywhere."""

    def __init__(self, *arguments: Any, examples: Mapping[str, str] | None = None, **options: Any) -> None:
        self.examples = dict(examples or {})
        options.setdefault("context_settings", {"help_option_names": ["-h", "--help"], "max_content_width": 100})
        super().__init__(*arguments, **options)
        self.params.append(
            click.Option(["--atlas"], metavar="DIR", expose_value=False, callback=_keep_atlas,
                         help="The atlas's folder; it may also follow the command.")
        )  # fmt: skip
        self.params += _manner_options(hidden=False)
        click.version_option(__version__, package_name="vectors-in-the-wild")(self)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, taught the group's manners."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and all(option.name != "debug" for option in command.params):
            taken = {text for option in command.params for text in option.opts}
            command.params += [one for one in _manner_options(hidden=True) if not taken & set(one.opts)]
        if command is not None and command.epilog is None and cmd_name in self.examples:
            command.epilog = f"\b\nExample:\n  {self.examples[cmd_name]}"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every command with the whole first sentence of its help, wrapped: click would cut it."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, _first_sentence(command.help or "")) for name, command in found if command and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

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
        replace_closed_streams()
        verbosity.quiet = verbosity.verbose = verbosity.debug = False
        options["standalone_mode"] = False
        try:
            code = super().main(*arguments, **options)
            sys.stdout.flush()
        except BaseException as error:
            code = _ended_by(error.__cause__ if isinstance(error, _CarriedError) and error.__cause__ else error)
        _hush(sys.stdout)
        _hush(sys.stderr)
        sys.exit(code if isinstance(code, int) else 0)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) |[:;] ", paragraph)[0].rstrip(".:") + "."


class Terminated(KeyboardInterrupt):
    """SIGTERM, taken like Ctrl-C."""


def handle_sigterm() -> None:
    """From now on SIGTERM (of a batch system, of systemd) ends a command as Ctrl-C does, not in the midst of it."""

    def stop(_number: int, _frame: object) -> None:
        raise Terminated

    is_usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_usual and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)


class _CarriedError(Exception):
    """Carries its cause past click, which would answer it in a way of its own."""


@contextlib.contextmanager
def _carried() -> Iterator[None]:
    try:
        yield
    except (OSError, KeyboardInterrupt, EOFError) as error:
        raise _CarriedError from error


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
        return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2 and later
        assert isinstance(error, click.ClickException)
        click.echo(error.format_message(), err=True)
        return error.exit_code
    if verbosity.debug:
        import traceback

        click.echo(clean("".join(traceback.format_exception(error)), keep_lines=True), err=True, nl=False)
    if isinstance(error, click.ClickException):
        _complain(error.format_message())
        if isinstance(error, click.UsageError) and error.ctx:
            click.echo(f"Try: {error.ctx.command_path} --help", err=True)
        return error.exit_code
    _complain(explain(error))
    return 2 if isinstance(error, BadArgument) else 1


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
        return as_typed(str(error))
    if isinstance(error, ModelError):
        return f"{error.detail.rstrip('.')}."
    if isinstance(error, MemoryError):
        return "There is not enough memory. Use fewer --workers, or a machine with more."
    quoted = re.search(r'file "([^"]+)"', text)  # libraries that write files say where only in words
    name = getattr(error, "filename", None) or (quoted[1] if quoted else None)
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
    click.echo(click.style(prefix, fg="red") + line if prefix else line, err=True, color=is_coloured(sys.stderr))


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
