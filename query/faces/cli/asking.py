"""How a command of a question runs: its options, the opened atlas, and how the answer is printed.

A question whose command does more than ask and print has a function for that beside it, which ``question`` names::

    def _command(run: Invocation, model: str, of: Annotated[str, Option("Measure.")] = "norm", **options: Any): ...

It gets the parsed options of the question by name, and its own, those that it describes. Options that follow from the
class of the answer (``--out``, ``--theme``, ``--details``) are used by ``call.show``, unless it describes them itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from indexer.console.option import Described, Option, click_parameter, described, is_negated
from indexer.console.stdin import names_on_stdin
from indexer.console.terminal import DEFAULT_ATLAS, atlas_option, emit, output_options
from indexer.errors import AtlasError
from query.contract.options import DETAILS, DRAW, THEME
from query.contract.registry import Entry, help_of
from query.contract.results import answer_classes
from query.faces.cli import batch
from query.faces.cli.printing import QuestionCommand, opened_atlas, picture_file, print_result

if TYPE_CHECKING:
    from query.contract.results import Answered, Result, ThemeName
    from query.faces.atlas import Atlas

R = TypeVar("R", bound="Result")
_PRINTED = ("out", "theme", "details")


class CommandInvocation:
    """One run of a command: a ``query.contract.registry.Invocation``.

    ``output``: table, json, jsonl or csv. ``file``: where a picture is written, checked before any work, or None.
    ``theme`` and ``details``: as typed.
    """

    def __init__(
        self, method: str, folder: str, output: str, out: str | None, theme: ThemeName | None, details: bool
    ) -> None:
        self._method, self._folder, self.output = method, folder, output
        self.file = picture_file(out)
        self.theme, self.details = theme, details

    def opened(self) -> AbstractContextManager[Atlas]:
        """The atlas, opened; its notes are printed."""
        return opened_atlas(self._folder)

    def opened_if_there(self) -> AbstractContextManager[Atlas | None]:
        """As ``opened``; None if no atlas was named and the default folder does not exist."""
        is_there = self._folder != DEFAULT_ATLAS or Path(self._folder).exists()
        return self.opened() if is_there else nullcontext()

    def ask(self, **arguments: Any) -> None:
        """Ask the question and print the answer."""
        from query.contract.results import Result

        with self.opened() as atlas:
            answer = getattr(atlas, self._method)(**arguments)
            if not isinstance(answer, Result):
                raise AtlasError(
                    f"{self._method} answers {type(answer).__name__}, not a Result, so it cannot be printed.", ""
                )
            self.show(answer)

    def picture(self, out: str | None) -> Path | None:
        """The file of an ``--out`` that the command describes itself, checked before any work is done."""
        return picture_file(out)

    def show(self, result: Result, *, drawn: Path | None = None, file: Path | None = None, **shown: Any) -> None:
        """Draw the result if that was asked for, and print it; see ``print_result``.

        ``drawn``: where to, by default ``self.file``. ``file``: where it has been written already.
        """
        drawn = (drawn or self.file) if file is None else None
        theme = self.theme if drawn is not None else None
        print_result(result, self.output, details=self.details, file=file or drawn, theme=theme, **shown)

    def emit(self, rows: Any, **columns: Any) -> None:
        """Print rows, or an object, in the format asked for; see :func:`indexer.console.output.emit`."""
        emit(rows, self.output, **columns)

    def asked(self, atlas: Atlas, function: Callable[..., Any], *arguments: Any) -> Any:
        """The answer of a function of one generation that is no method of ``atlas``."""
        from query.faces.atlas import generations

        return generations(atlas).asked(function, *arguments)

    def names_on_stdin(self) -> list[str]:
        """See :func:`indexer.console.stdin.names_on_stdin`."""
        return names_on_stdin()

    def show_many(
        self, answers: Iterable[Answered[R]], count: int, rows_of: Callable[[str, R], list[dict[str, Any]]]
    ) -> None:
        """See :func:`query.faces.cli.batch.print_batch`."""
        batch.print_batch(answers, count, self.output, rows_of)

    def refuse(self, sentence: str) -> NoReturn:
        """End with a usage error."""
        raise click.UsageError(sentence)

    def fail(self, status: int = 1) -> NoReturn:
        """End with this status, after everything has been printed."""
        click.get_current_context().exit(status)


def command_of(name: str, entries: Sequence[Entry]) -> click.Command:
    """The command that asks these questions, the first of which describes it; the others only if it says how.

    Raises as ``Entry.load`` does.
    """
    record = entries[0].record
    face = record.command
    functions = [entry.load() for entry in (entries if face else entries[:1])]
    options = _options(functions, face)
    names = {option.name for option in options}
    printing = [option for option in _printing(functions) if option.name not in names]
    negated = [option.name for option in options if is_negated(option.type, option.option, option.default)]

    def run(atlas: str, output: str, **arguments: Any) -> None:
        arguments |= {key: not arguments.pop(f"no_{key}") for key in negated}
        printed = {key: arguments.get(key) for key in _PRINTED}
        of_class = {key: value for key, value in printed.items() if key not in names}
        call = CommandInvocation(
            entries[0].name, atlas, output, of_class.get("out"), printed["theme"], bool(of_class.get("details"))
        )
        (face or CommandInvocation.ask)(call, **{key: value for key, value in arguments.items() if key in names})

    every = (*options, *printing)
    parameters = [click_parameter(option.name, option.type, option.option, option.default) for option in every]
    typed = {str(parameter.name).removeprefix("no_"): _as_typed(parameter) for parameter in parameters}
    texts = [help_of(function.__doc__ or "", typed) for function in (functions[0], face) if function is not None]
    run.__click_params__ = parameters[::-1]  # type: ignore[attr-defined]  # as click's decorators leave them
    command = _with_last(run, record.documents)
    question_command = click.command(name, cls=QuestionCommand, help="\n\n".join(filter(None, texts)))(command)
    assert isinstance(question_command, QuestionCommand)
    question_command.example = record.example
    question_command.answers = lambda: [answer for function in functions for answer in answer_classes(function)]
    return question_command


def _as_typed(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.metavar or str(parameter.name).upper()
    return parameter.opts[0]


def _with_last(run: Callable[..., None], documents: Sequence[str]) -> Callable[..., None]:
    """``run`` with ``--atlas`` and how to print the answer as its last options."""
    parameters = run.__click_params__  # type: ignore[attr-defined]
    run.__click_params__ = []  # type: ignore[attr-defined]
    with_last = atlas_option(output_options(run, documents))
    with_last.__click_params__ += parameters  # type: ignore[attr-defined]
    return with_last


def _options(functions: Sequence[Callable[..., Any]], face: Callable[..., None] | None) -> list[Described]:
    """The options of the functions, and those of the command; its own order comes first."""
    options: dict[str, Described] = {}
    for function in functions:
        for option in described(function):
            options.setdefault(option.name, option)
    if face is None:
        return list(options.values())
    own_options = {option.name: option for option in described(face)}
    names = [name for name in inspect.signature(face).parameters if name in own_options or name in options]
    return [own_options.get(name) or options[name] for name in dict.fromkeys([*names, *options])]


def _printing(functions: Sequence[Callable[..., Any]]) -> list[Described]:
    """``--out``, ``--theme`` and ``--details``, where the classes of the answers have them."""
    from query.contract.results import Drawn

    classes = [answer for function in functions for answer in answer_classes(function)]
    options: list[Described] = []
    if any(issubclass(answer, Drawn) for answer in classes):
        from query.contract.results import ThemeName

        options.append(Described("out", str | None, Option(DRAW, metavar="FILE"), None))
        options.append(Described("theme", ThemeName, THEME, "light"))
    if any(answer.has_details() for answer in classes):
        options.append(Described("details", bool, DETAILS, False))
    return options
