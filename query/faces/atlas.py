"""An atlas with every question as a method, and lists of its contents.

A question is a function of one generation of the atlas (``query.models.reader``), which threads share
(``query.models.generations``). Other modules use ``generations`` for questions that are not methods.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, Self, SupportsIndex, TypeVar

from indexer.arguments import annotation_of, plain_call
from indexer.atlas import DEMO, DEMO_FOLDER
from indexer.console.notebook import shown
from indexer.console.option import described
from indexer.errors import AtlasError, naming_extras
from query.contract.registry import Entry, questions
from query.contract.results import Answered, answered
from query.models.generations import Generations
from query.models.reader import AtlasReader
from query.shared.wording import counted

if TYPE_CHECKING:
    from query.faces.methods import Methods
    from query.questions.show import ShownModel
    from query.questions.similar import SimilarModels
else:

    class Methods:
        """The methods of questions; type checkers find them in ``query/faces/methods.pyi``."""


P = ParamSpec("P")
R = TypeVar("R")

_OF_GENERATION = ("connection", "folder")  # attributes that a generation sets when it is opened


def contents(atlas: AtlasReader) -> list[dict[str, Any]]:
    """A row for each base: the number of models and authors, and the published representations."""
    return atlas.rows(
        "SELECT bases.base, count(models.model_id) AS indexed, "
        "count(*) FILTER (models.\"read\" = 'sample') AS sampled, count(DISTINCT author) AS authors, "
        "(SELECT list(representation ORDER BY representation) FROM representations AS r WHERE r.base = bases.base) "
        "AS representations FROM bases LEFT JOIN models ON models.base = bases.base "
        "GROUP BY bases.base ORDER BY bases.base"
    )


class NotPicklable(AtlasError, TypeError):
    """An object with open files, which cannot be copied or sent to another process."""


class Method:
    """A question as a method of Atlas, imported on first use.

    Each call uses one generation, whatever other threads do; see :class:`query.models.generations.Generations`.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def __get__(self, atlas: Atlas | None, owner: type) -> Callable[..., Any]:
        try:
            function = self._entry.load()
        except AtlasError as error:  # a plugin fails; help(Atlas) shows the others
            if atlas is not None:
                raise
            raise AttributeError(str(error)) from error
        method = as_method(self._entry.name, naming_extras(function))
        setattr(Atlas, self._entry.name, method)  # for later calls; a second thread here sets the same
        bound: Callable[..., Any] = method.__get__(atlas, owner)
        return bound


def as_method(name: str, function: Callable[Concatenate[AtlasReader, P], R]) -> Any:
    """A method of Atlas that calls ``function`` with the newest generation and plain arguments."""

    @wraps(function)
    def method(self: Atlas, *args: Any, **kwargs: Any) -> R:
        (_, *positional), keywords = plain_call(function, (self, *args), kwargs)
        return self._generations.asked(function, *positional, **keywords)

    method.__name__, method.__qualname__ = name, f"Atlas.{name}"
    method.__signature__ = plain_signature(function)  # type: ignore[attr-defined]
    method.__doc__ = documented(function)
    return method


def plain_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a question as a method, without the descriptions of its arguments."""
    signature = inspect.signature(function)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for parameter in list(signature.parameters.values())[1:]:
        annotation = annotation_of(function, parameter.annotation)
        annotation = annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
        parameters.append(parameter.replace(annotation=annotation))
    return signature.replace(
        parameters=parameters, return_annotation=annotation_of(function, signature.return_annotation)
    )


def documented(function: Callable[..., Any]) -> str:
    """The docstring of a question; if it has no list of arguments, with one from their options."""
    text = inspect.getdoc(function) or ""
    lines = [
        f"    {argument.name}: {argument.option.brief}" for argument in described(function) if argument.option.brief
    ]
    if not lines or "\n\nArgs:\n" in text:
        return text
    summary, *sections = re.split(r"\n\n(?=(?:Note|Returns|Raises):\n)", text, maxsplit=1)
    return "\n\n".join([summary, "\n".join(["Args:", *lines]), *sections])


class OpenAtlas:
    """An open atlas without its questions; see :class:`Atlas`."""

    def __init__(self, path: str | Path = "atlas") -> None:
        self._generations = Generations(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Attributes of ``query.models.reader.AtlasReader``, for older scripts: neither listed nor typed."""
            if name.startswith("_") or (not hasattr(AtlasReader, name) and name not in _OF_GENERATION):
                raise AttributeError(f"an Atlas has no attribute {name!r}")
            if callable(method := getattr(AtlasReader, name, None)):
                return partial(self._generations.asked, method)
            return self._generations.asked(lambda reader: getattr(reader, name))

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise NotPicklable(
            "An Atlas holds open files and cannot be pickled or copied.",
            f"Open it in each process by its path: Atlas({str(self.path)!r}); threads can share one.",
        )

    def close(self) -> None:
        """Accept no more questions; those that are running in other threads end as usual."""
        self._generations.close()

    def refresh(self) -> None:
        """Open the latest publish, if the atlas has been open for long; a closed atlas is opened again."""
        self._generations.renew()

    @property
    def path(self) -> Path:
        """The folder of the atlas."""
        return self._generations.newest.folder.root

    @property
    def notes(self) -> list[str]:
        """Remarks on how the atlas was opened."""
        return self._generations.newest.notes

    @property
    def is_outdated(self) -> bool:
        """Whether there is a later publish than the opened one; ``refresh`` opens it."""
        return self._generations.newest.is_outdated

    @property
    def generation(self) -> int:
        """The number of publishes when the atlas was opened or refreshed."""
        return self._generations.asked(lambda reader: reader.generation)

    def bases(self) -> list[str]:
        """Canonical ids of all bases, sorted."""
        return self._generations.asked(AtlasReader.bases)


class Atlas(OpenAtlas, Methods):
    """A published atlas to ask questions of, opened read-only, also while a build is running.

    ``path`` is the atlas's folder; or its address on the Hub (hf://owner/name@tag), from which it is fetched once into
    the Hub's cache; or "demo", the small atlas that comes with this program, unless ./demo is an atlas. If another
    program has opened the database for writing, a private copy is read instead, with a remark in ``notes``.

    Every question returns a :class:`query.contract.results.Result`: ``to_df()``, ``to_rows()`` and ``to_dict()``
    for programs, a table in a notebook, ``figure()`` and ``write(path)`` if there is a picture. An answer that is a
    list (of neighbours, models, datasets, parents, rows) is also a sequence of these. ``model`` is an indexed id,
    any other Hub id, ``owner/name@revision``, or a local checkpoint folder, unless a method says otherwise; models
    that are not indexed are read on the fly and not stored. ``base`` is needed if the atlas holds several bases.
    Errors that the user can fix are AtlasErrors.

    Any number of threads may use one Atlas. Each question uses one publish of the atlas from its beginning to its end,
    even if another thread calls ``refresh`` or ``close`` meanwhile. Other processes open the atlas by its path: an
    Atlas cannot be pickled or copied. A process that was forked from this one opens the latest publish by itself.
    """

    def similar_many(
        self,
        models: Iterable[str | Path],
        k: int = 10,
        *,
        where: str | None = None,
        other_authors: bool = False,
        representation: str = "input",
        base: str | None = None,
        explain: bool = False,
        read: str | None = None,
        across: bool = False,
    ) -> Iterator[Answered[SimilarModels]]:
        """``similar`` for many models, one after another, with the same arguments.

        A model without an answer has an ``error`` instead of an ``answer``.
        """
        ask = partial(
            self.similar, k=k, where=where, other_authors=other_authors, representation=representation, base=base,
            explain=explain, read=read, across=across,
        )  # fmt: skip
        return answered(map(str, models), ask)

    def schema(self, name: str | None = None) -> list[dict[str, Any]]:
        """The schema for ``sql``: a row for each table, view and macro, or for each column of the one called ``name``.

        Raises AtlasError if there is none of that name.
        """
        from query.contract.glossary import schema

        return schema(name)

    def __len__(self) -> int:
        return int(self._rows("SELECT count(DISTINCT model) AS models FROM models")[0]["models"])

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        """The names of all indexed models, in order."""
        return iter([row["model"] for row in self._rows("SELECT DISTINCT model FROM models ORDER BY model")])

    def __contains__(self, model: object) -> bool:
        return isinstance(model, str) and bool(self._rows("SELECT 1 FROM models WHERE model = ? LIMIT 1", [model]))

    def __getitem__(self, model: str) -> ShownModel:
        """The answer of ``show`` for a model. Raises KeyError if the atlas does not contain it."""
        try:
            return self.show(model)
        except AtlasError as error:
            raise KeyError(str(error)) from error

    def __dir__(self) -> list[str]:
        return sorted(set(super().__dir__()) - {"_generations"})

    def __repr__(self) -> str:
        folder, line, _ = self._described()
        return f"<Atlas {folder!r}: {line}>"

    def _repr_html_(self) -> str:
        folder, line, bases = self._described()
        return shown(f"Atlas {folder}: {line}", bases, self.notes)

    def _rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        return self._generations.asked(AtlasReader.rows, statement, parameters)

    def _described(self) -> tuple[str, str, list[dict[str, Any]]]:
        """The folder, a line (the number of models, their bases, the time of publication), and a row for each base."""
        # Relative to the working folder, because shared notebooks should not show home folders.
        root, here = self.path, Path.cwd()
        folder = DEMO if root == DEMO_FOLDER else str(root.relative_to(here) if root.is_relative_to(here) else root)
        try:
            with self._generations.borrowed() as reader:
                bases = contents(reader)
                (published,) = (row["published"] for row in reader.rows("SELECT published FROM atlas_info"))
        except AtlasError as error:  # the atlas is closed
            return folder, error.message, []
        count = counted(sum(row["indexed"] for row in bases), "model")
        when = f", published {published:%Y-%m-%d %H:%M} UTC" if published else ""
        return folder, f"{count} of {', '.join(row['base'] for row in bases) or 'no base'}{when}", bases


for _entry in questions().values():
    if _entry.name not in vars(Atlas):
        setattr(Atlas, _entry.name, Method(_entry))


def generations(atlas: Atlas) -> Generations:
    """The generations of ``atlas``, for modules of this package."""
    return atlas._generations


def opened(atlas: Atlas) -> AbstractContextManager[AtlasReader]:
    """The newest generation of ``atlas``, which stays open within the block."""
    return atlas._generations.borrowed()
