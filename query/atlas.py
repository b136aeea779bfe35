"""An atlas with every question as a method, and lists of what it contains. ``query.reader`` opens and reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.console.notebook import shown
from indexer.errors import AtlasError, naming_extras
from query.reader import AtlasReader
from query.results import Answered, Rows, answered
from query.wording import counted

if TYPE_CHECKING:
    from query.ask.ask import ask as _ask
    from query.clusters.of_base import clusters_of_base as _clusters
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
    from query.purity.of_base import purity_of_base as _purity
    from query.rank.study import rank_by_depth as _rank
    from query.report.report import report as _report
    from query.show import ShownModel
    from query.show import show as _show
    from query.similar import SimilarModels
    from query.similar import similar as _similar
    from query.sql import SqlResult
    from query.trace.trace import trace as _trace

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


class _Question:
    """A method that is a function of another module, whose first argument is the atlas; imported on first use."""

    def __init__(self, place: str) -> None:
        self._module, _, self._function = place.partition(":")

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, atlas: object, owner: type) -> Callable[..., Any]:
        function: Callable[..., Any] = naming_extras(getattr(import_module(self._module), self._function))
        setattr(Atlas, self._name, function)
        return getattr(owner if atlas is None else atlas, self._name)


class Atlas(AtlasReader):
    """A published atlas to ask questions of; see :class:`query.reader.AtlasReader` for how it is opened.

    Every question returns a :class:`query.results.Result`: ``to_df()``, ``to_rows()`` and ``to_dict()`` for programs, a
    table in a notebook, ``figure()`` and ``write(path)`` if there is a picture. ``model`` is an indexed id, any other
    Hub id, ``owner/name@revision``, or a local checkpoint folder, unless a method says otherwise; models that are not
    indexed are read on the fly and not stored. ``base`` is needed if the atlas holds several bases. Errors that the
    user can fix are AtlasErrors.
    """

    models = models
    datasets = datasets
    if TYPE_CHECKING:  # mypy and editors see the functions
        ask = _ask
        clusters = _clusters
        compare = _compare
        depth = _depth
        depth_study = _depth_study
        vectors = _vectors
        features = _features
        invert = _invert
        layers = _layers
        lineage = _lineage
        lineages = _lineages
        map = _map
        evaluate_prediction = _evaluate_prediction
        predict = _predict
        predict_many = _predict_many
        purity = _purity
        rank = _rank
        report = _report
        show = _show
        similar = _similar
        trace = _trace
    else:
        ask = _Question("query.ask.ask:ask")
        clusters = _Question("query.clusters.of_base:clusters_of_base")
        compare = _Question("query.compare:compare")
        depth = _Question("query.depth.depth:depth")
        depth_study = _Question("query.depth.study:depth_study")
        vectors = _Question("query.export:model_vectors")
        features = _Question("query.features:features")
        invert = _Question("query.invert:invert")
        layers = _Question("query.layers:layers")
        lineage = _Question("query.lineage.lineage:lineage")
        lineages = _Question("query.lineage.lineage:lineages")
        map = _Question("query.map.model_map:model_map")
        evaluate_prediction = _Question("query.predict.evaluation:evaluate")
        predict = _Question("query.predict.predict:predict")
        predict_many = _Question("query.predict.predict:predict_many")
        purity = _Question("query.purity.of_base:purity_of_base")
        rank = _Question("query.rank.study:rank_by_depth")
        report = _Question("query.report.report:report")
        show = _Question("query.show:show")
        similar = _Question("query.similar:similar")
        trace = _Question("query.trace.trace:trace")

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

    def sql(
        self,
        statement: str,
        *,
        limit: int | None = 10_000,
        seconds: float = 30.0,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    ) -> SqlResult:
        """Run one SELECT, for at most ``limit`` rows and ``seconds``; see :func:`query.sql.run_sql`.

        ``parameters`` fill in ``?`` (a sequence) or ``$name`` (a mapping). Raises AtlasError if the statement is not a
        SELECT, is wrong, takes too long, or needs too much memory.
        """
        from query.sql import run_sql

        self.connection.execute("SELECT 1")  # AtlasError where the atlas is closed
        return run_sql(self.database, statement, limit=limit, seconds=seconds, parameters=parameters,
                       stand_ins=self.stand_ins)  # fmt: skip

    def schema(self, name: str | None = None) -> list[dict[str, Any]]:
        """What ``sql`` can query: a row for each table, view and macro, or for each column of the one called ``name``.

        Raises AtlasError if there is none of that name.
        """
        from query.glossary import schema

        return schema(name)

    def __len__(self) -> int:
        return int(self.rows("SELECT count(DISTINCT model) AS models FROM models")[0]["models"])

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        """The names of all indexed models, in order."""
        return iter([row["model"] for row in self.rows("SELECT DISTINCT model FROM models ORDER BY model")])

    def __contains__(self, model: object) -> bool:
        return isinstance(model, str) and bool(self.rows("SELECT 1 FROM models WHERE model = ? LIMIT 1", [model]))

    def __getitem__(self, model: str) -> ShownModel:
        """What ``show`` says of a model. Raises KeyError if the atlas does not know it."""
        try:
            return self.show(model)
        except AtlasError as error:
            raise KeyError(str(error)) from error

    def __dir__(self) -> list[str]:
        questions = [name for name in vars(Atlas) if not name.startswith("_")]
        return sorted({*questions, "bases", "close", "generation", "notes", "refresh", *dir(object)})

    def __repr__(self) -> str:
        folder, line, _ = self._described()
        return f"<Atlas {folder!r}: {line}>"

    def _repr_html_(self) -> str:
        folder, line, bases = self._described()
        return shown(f"Atlas {folder}: {line}", bases, self.notes)

    def _described(self) -> tuple[str, str, list[dict[str, Any]]]:
        """The folder, a line (the number of models, their bases, the time of publication), and a row for each base."""
        # Relative to the working folder: notebooks are shared, and show no home folder.
        root, here = self.folder.root, Path.cwd()
        folder = str(root.relative_to(here) if root.is_relative_to(here) else root)
        try:
            bases = contents(self)
            (published,) = (row["published"] for row in self.rows("SELECT published FROM atlas_info"))
        except AtlasError as error:  # it is closed
            return folder, error.message, []
        count = counted(sum(row["indexed"] for row in bases), "model")
        when = f", published {published:%Y-%m-%d %H:%M} UTC" if published else ""
        return folder, f"{count} of {', '.join(row['base'] for row in bases) or 'no base'}{when}", bases
