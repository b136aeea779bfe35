"""An atlas with every question as a method, and lists of what it contains.

A question is a function of one generation of the atlas (``query.reader``), which threads share (``query.generations``).
Other modules ask what is no method with ``generations``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NoReturn,
    ParamSpec,
    Self,
    SupportsIndex,
    TypeVar,
    overload,
)

from indexer.arguments import plain_call
from indexer.console.notebook import shown
from indexer.errors import AtlasError, naming_extras
from query.generations import Generations
from query.reader import AtlasReader
from query.results import Answered, Rows, answered
from query.wording import counted

if TYPE_CHECKING:
    from query.ask.ask import ask as _ask
    from query.clusters.question import clusters as _clusters
    from query.compare import compare as _compare
    from query.depth.depth import depth as _depth
    from query.depth.study import depth_study as _depth_study
    from query.export import model_vectors as _vectors
    from query.features import features as _features
    from query.invert import invert as _invert
    from query.layers import layers as _layers
    from query.lineage.lineage import lineage as _lineage
    from query.lineage.lineage import lineages as _lineages
    from query.map.model_map import model_map as _map
    from query.predict.evaluation import evaluate as _evaluate_prediction
    from query.predict.predict import predict as _predict
    from query.predict.predict import predict_many as _predict_many
    from query.purity.question import purity as _purity
    from query.rank.study import rank_by_depth as _rank
    from query.report.report import report as _report
    from query.show import ShownModel
    from query.show import show as _show
    from query.similar import SimilarModels
    from query.similar import similar as _similar
    from query.sql import sql as _sql
    from query.trace.trace import trace as _trace

P = ParamSpec("P")
R = TypeVar("R")

_OF_GENERATION = ("connection", "folder")  # attributes that a generation sets when it is opened

_MODELS = (
    'SELECT base, model, relation, datasets, downloads, "read" FROM models WHERE contains(lower(model), lower($1)) '
    "AND coalesce(base = $2, true) AND coalesce(list_contains(datasets, $3), true) "
    "ORDER BY downloads DESC NULLS LAST, model"
)
_DATASETS = (
    "SELECT base, dataset, models, authors FROM dataset_counts WHERE contains(lower(dataset), lower($1)) "
    "AND coalesce(base = $2, true) ORDER BY models DESC, dataset, base"
)


@dataclass(frozen=True, eq=False, repr=False)
class Inventory(Rows[dict[str, Any]]):
    """The models, or datasets, of an atlas: a list of mappings with the ``columns``."""

    OPTIONAL_COLUMNS = ("read", "authors", "relation", "downloads", "datasets")

    kind: str
    columns: tuple[str, ...]
    items: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Their number."""
        return counted(len(self.items), self.kind)


def models(atlas: AtlasReader, search: str = "", *, dataset: str | None = None, base: str | None = None) -> Inventory:
    """The indexed models, most downloads first: a list of mappings with base, relation, datasets, downloads, read.

    ``read`` is sample or full. ``search``: part of the id, in any case. ``dataset``: only models tuned on this one, by
    its canonical name. Raises AtlasError if the base is unknown.
    """
    canonical = None if base is None else atlas.base_named(base)
    rows = tuple(atlas.rows(_MODELS, [search, canonical, dataset]))
    return Inventory("model", ("base", "model", "relation", "datasets", "downloads", "read"), rows)


def datasets(atlas: AtlasReader, search: str = "", *, base: str | None = None) -> Inventory:
    """The datasets that indexed models name, most models first, with the number of their models and authors.

    ``search``: part of the name, in any case. Raises AtlasError if the base is unknown.
    """
    canonical = None if base is None else atlas.base_named(base)
    rows = tuple(atlas.rows(_DATASETS, [search, canonical]))
    return Inventory("dataset", ("base", "dataset", "models", "authors"), rows)


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


class Question(Generic[P, R]):
    """A method that is a function of one generation of the atlas, imported on first use from ``place``.

    Each call sees one generation, whatever other threads do; see :class:`query.generations.Generations`.
    """

    def __init__(self, place: str) -> None:
        self._module, _, self._function = place.partition(":")

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, atlas: None, owner: type) -> Callable[Concatenate[Atlas, P], R]: ...
    @overload
    def __get__(self, atlas: Atlas, owner: type) -> Callable[P, R]: ...
    def __get__(self, atlas: Atlas | None, owner: type) -> Callable[..., Any]:
        method = as_method(naming_extras(getattr(import_module(self._module), self._function)))
        setattr(Atlas, self._name, method)  # from now on; a second thread that comes here sets the same
        found: Callable[..., Any] = method.__get__(atlas, owner)
        return found


def as_method(function: Callable[Concatenate[AtlasReader, P], R]) -> Any:
    """A method of Atlas that asks ``function`` about the newest generation, with plain arguments."""

    @wraps(function)
    def method(self: Atlas, *args: Any, **kwargs: Any) -> R:
        (_, *places), named = plain_call(function, (self, *args), kwargs)
        return self._generations.asked(function, *places, **named)

    return method


if TYPE_CHECKING:

    def _question(function: Callable[Concatenate[AtlasReader, P], R]) -> Question[P, R]: ...


class OpenAtlas:
    """An atlas that is open, without its questions; see :class:`Atlas`."""

    def __init__(self, path: str | Path = "atlas") -> None:
        self._generations = Generations(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """What ``query.reader.AtlasReader`` has, for scripts that used it here: neither listed nor typed."""
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
        """Answer no more questions; those that other threads are asking end as usual."""
        self._generations.close()

    def refresh(self) -> None:
        """Open the latest publish; for an atlas that stays open for long. Opens a closed one again."""
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
        """Whether a later publish than the opened one is there; ``refresh`` opens it."""
        return self._generations.newest.is_outdated

    @property
    def generation(self) -> int:
        """The number of publishes when the atlas was opened or refreshed."""
        return self._generations.asked(lambda reader: reader.generation)

    def bases(self) -> list[str]:
        """Canonical ids of all bases, sorted."""
        return self._generations.asked(AtlasReader.bases)


class Atlas(OpenAtlas):
    """A published atlas to ask questions of, opened read-only, also while a build is running.

    ``path`` is the atlas's folder, or its address on the Hub (hf://owner/name@tag), from which it is fetched once into
    the Hub's cache. If another program has opened the database for writing, a private copy is read instead, and
    ``notes`` says so.

    Every question returns a :class:`query.results.Result`: ``to_df()``, ``to_rows()`` and ``to_dict()`` for programs, a
    table in a notebook, ``figure()`` and ``write(path)`` if there is a picture. An answer that is a list (of
    neighbours, models, datasets, parents, rows) is also a sequence of these. ``model`` is an indexed id, any other Hub
    id, ``owner/name@revision``, or a local checkpoint folder, unless a method says otherwise; models that are not
    indexed are read on the fly and not stored. ``base`` is needed if the atlas holds several bases. Errors that the
    user can fix are AtlasErrors.

    Any number of threads may ask one Atlas, and each question sees one publish of the atlas from its beginning to its
    end, also if another thread calls ``refresh`` or ``close`` meanwhile. Other processes open the atlas by its path: an
    Atlas cannot be pickled or copied. A process that was forked from this one opens the latest publish by itself.
    """

    if TYPE_CHECKING:  # mypy and editors see the functions
        models = _question(models)
        datasets = _question(datasets)
        ask = _question(_ask)
        clusters = _question(_clusters)
        compare = _question(_compare)
        depth = _question(_depth)
        depth_study = _question(_depth_study)
        vectors = _question(_vectors)
        features = _question(_features)
        invert = _question(_invert)
        layers = _question(_layers)
        lineage = _question(_lineage)
        lineages = _question(_lineages)
        map = _question(_map)
        evaluate_prediction = _question(_evaluate_prediction)
        predict = _question(_predict)
        predict_many = _question(_predict_many)
        purity = _question(_purity)
        rank = _question(_rank)
        report = _question(_report)
        show = _question(_show)
        similar = _question(_similar)
        sql = _question(_sql)
        trace = _question(_trace)
    else:
        models = as_method(models)
        datasets = as_method(datasets)
        ask = Question("query.ask.ask:ask")
        clusters = Question("query.clusters.question:clusters")
        compare = Question("query.compare:compare")
        depth = Question("query.depth.depth:depth")
        depth_study = Question("query.depth.study:depth_study")
        vectors = Question("query.export:model_vectors")
        features = Question("query.features:features")
        invert = Question("query.invert:invert")
        layers = Question("query.layers:layers")
        lineage = Question("query.lineage.lineage:lineage")
        lineages = Question("query.lineage.lineage:lineages")
        map = Question("query.map.model_map:model_map")
        evaluate_prediction = Question("query.predict.evaluation:evaluate")
        predict = Question("query.predict.predict:predict")
        predict_many = Question("query.predict.predict:predict_many")
        purity = Question("query.purity.question:purity")
        rank = Question("query.rank.study:rank_by_depth")
        report = Question("query.report.report:report")
        show = Question("query.show:show")
        similar = Question("query.similar:similar")
        sql = Question("query.sql:sql")
        trace = Question("query.trace.trace:trace")

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
    ) -> Iterator[Answered[SimilarModels]]:
        """``similar`` for many models, one after another, with the same arguments.

        A model without an answer has an ``error`` instead of an ``answer``.
        """
        ask = partial(
            self.similar, k=k, where=where, other_authors=other_authors, representation=representation, base=base,
            explain=explain, read=read,
        )  # fmt: skip
        return answered(map(str, models), ask)

    def schema(self, name: str | None = None) -> list[dict[str, Any]]:
        """What ``sql`` can query: a row for each table, view and macro, or for each column of the one called ``name``.

        Raises AtlasError if there is none of that name.
        """
        from query.glossary import schema

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
        """What ``show`` says of a model. Raises KeyError if the atlas does not know it."""
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
        # Relative to the working folder: notebooks are shared, and show no home folder.
        root, here = self.path, Path.cwd()
        folder = str(root.relative_to(here) if root.is_relative_to(here) else root)
        try:
            with self._generations.borrowed() as reader:
                bases = contents(reader)
                (published,) = (row["published"] for row in reader.rows("SELECT published FROM atlas_info"))
        except AtlasError as error:  # it is closed
            return folder, error.message, []
        count = counted(sum(row["indexed"] for row in bases), "model")
        when = f", published {published:%Y-%m-%d %H:%M} UTC" if published else ""
        return folder, f"{count} of {', '.join(row['base'] for row in bases) or 'no base'}{when}", bases


def generations(atlas: Atlas) -> Generations:
    """The opened generation behind ``atlas``, for modules of this package: what only they need is no method of it."""
    return atlas._generations


def opened(atlas: Atlas) -> AbstractContextManager[AtlasReader]:
    """The newest generation of ``atlas``, which stays open within the block."""
    return atlas._generations.borrowed()
