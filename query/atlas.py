"""The face of an atlas: every question as a method. What opens and reads it is in ``query.reader``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from indexer.errors import AtlasError
from query.reader import AtlasReader
from query.summary import Inventory, datasets_of, in_a_line, in_a_notebook, models_of, place

if TYPE_CHECKING:
    from query.batches import Answered
    from query.clusters.found import Clusters
    from query.compare.compare import Comparison
    from query.depth.depth import Depth
    from query.depth.study import DepthStudy
    from query.export import ModelVectors
    from query.features.features import FeatureGrid
    from query.invert.invert import ImagesBack, WordsBack
    from query.layers.layers import Layers
    from query.lineage.answer import Lineage, Lineages
    from query.map.map import ModelMap
    from query.predict.calibration import Evaluation
    from query.predict.predict import Prediction
    from query.purity.found import PurityResult
    from query.rank.rank import RankStudy
    from query.report.report import Report
    from query.show import ShownModel
    from query.similar import SimilarModels
    from query.sql import SqlResult


class Atlas(AtlasReader):
    """A published atlas to ask questions of; see :class:`query.reader.AtlasReader` for how it is opened.

    Every question gives a :class:`query.results.Result`: ``to_df()``, ``to_rows()`` and ``to_dict()`` for programs, a
    table in a notebook, ``figure()`` and ``write(path)`` where there is a picture. ``model`` is an indexed id, any
    other Hub id, ``owner/name@revision``, or a local checkpoint folder, unless a method says otherwise; the latter are
    read on the fly and not stored. ``base`` is needed where the atlas holds several. Everything that a person can
    mend is an AtlasError.
    """

    def similar(
        self,
        model: str | Path,
        k: int = 10,
        *,
        where: str | None = None,
        other_authors: bool = False,
        representation: str = "input",
        base: str | None = None,
        explain: bool = False,
    ) -> SimilarModels:
        """The ``k`` models most like ``model``, nearest first; see :func:`query.similar.similar`.

        A list of :class:`query.similar.Neighbour`; ``similarity`` is a cosine, from -1 to 1. ``where``: a condition in
        SQL on the view ``models``, applied before the search, as ``other_authors`` is. ``explain``: what each family
        and layer adds to the similarity. Raises AtlasError where the model is unknown, unreadable or a copy of its
        base, the condition is wrong, or the representation is not published.
        """
        from query.similar import similar

        return similar(self, str(model), k, where=where, other_authors=other_authors, representation=representation,
                       base=base, explain=explain)  # fmt: skip

    def purity(
        self,
        base: str | None = None,
        *,
        representation: str = "input",
        k: int | None = None,
        draws: int = 1000,
        seed: int = 0,
        kin: bool = True,
        confusions: bool = False,
    ) -> PurityResult:
        """Whether models tuned on one dataset lie together; see :func:`query.purity.purity.purity`.

        Purity, chance and intervals are shares from 0 to 1. ``k``: neighbours looked at; by default as many as share a
        dataset with the model. ``draws``: permutations behind p. ``kin``: whether a model's own family tree counts,
        which lies near it whatever it was tuned on. ``confusions``: also which datasets are taken for which, in
        ``confusions`` and ``cross_author.confusions`` of the result. Raises AtlasError where the base or
        representation is not there, or no lineage is kept; ValueError on k < 1 or draws < 1.
        """
        from query.population import family_trees, read_population
        from query.purity.purity import purity

        population = read_population(self, base, representation, documented=True)
        trees = None if kin else family_trees(self, population)
        return purity(population, k=k, draws=draws, seed=seed, trees=trees, confusions=confusions)

    def show(self, model: str | Path, base: str | None = None) -> ShownModel:
        """Everything known of one indexed, skipped or failed model: a mapping; see :func:`query.show.show`.

        Raises AtlasError for a model that the atlas has never met, naming the closest ids.
        """
        from query.show import show

        return show(self, str(model), base)

    def models(self, search: str = "", *, dataset: str | None = None, base: str | None = None) -> Inventory:
        """The indexed models, the most downloaded first: a list of mappings with base, relation, datasets.

        ``search``: part of the id, in any case. ``dataset``: only those tuned on this one, by its canonical name.
        Raises AtlasError where the base is not there.
        """
        return models_of(self, search, dataset, base)

    def datasets(self, search: str = "", *, base: str | None = None) -> Inventory:
        """The datasets that indexed models name, those of most models first, with their models and authors.

        ``search``: part of the name, in any case. Raises AtlasError where the base is not there.
        """
        return datasets_of(self, search, base)

    def vectors(self, base: str | None = None, representation: str = "input") -> ModelVectors:
        """The published vectors of a base: ids, names, datasets and ``matrix`` (models × numbers, float32).

        ``similarity()`` of the result is the similarity that ``similar`` has, for all pairs: a cosine of whole rows is
        not, where models changed different matrices. ``write("vectors.parquet")`` or ``.npz`` keeps them. Raises
        AtlasError where the base or the representation is not published.
        """
        from query.export import model_vectors

        return model_vectors(self, base, representation)

    def schema(self, name: str | None = None) -> list[dict[str, Any]]:
        """What ``sql`` can be asked of: a row for each table, view and macro, or for each column of the one ``name``d.

        Raises AtlasError where there is none of that name.
        """
        from query.schema.schema import schema

        return schema(name)

    def sql(
        self,
        statement: str,
        *,
        limit: int | None = 10_000,
        seconds: float = 30.0,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    ) -> SqlResult:
        """Any SELECT, at most ``limit`` rows within ``seconds``; see :func:`query.sql.run_sql`.

        ``parameters`` fill in ``?`` (a sequence) or ``$name`` (a mapping). Raises AtlasError where it is no SELECT, is
        wrong, takes too long, or needs too much memory.
        """
        from query.sql import run_sql

        self.connection.execute("SELECT 1")  # AtlasError where the atlas is closed
        return run_sql(self.database, statement, limit=limit, seconds=seconds, parameters=parameters,
                       stand_ins=self.stand_ins)  # fmt: skip

    def clusters(
        self,
        base: str | None = None,
        *,
        representation: str = "input",
        method: Literal["hdbscan", "kmeans"] = "hdbscan",
        min_size: int | None = None,
        count: int | None = None,
        seed: int = 0,
        draws: int = 1000,
    ) -> Clusters:
        """Groups of like models, and how they agree with datasets; see :func:`query.clusters.clusters.clusters`.

        ``method``: hdbscan (``min_size``: smallest cluster) or kmeans (``count``: how many clusters). ``draws``:
        permutations behind each chance level. Raises AtlasError on a setting that does not fit, ValueError on
        draws < 1.
        """
        from query.clusters.clusters import clusters
        from query.population import read_population

        population = read_population(self, base, representation)
        return clusters(population, method=method, min_size=min_size, count=count, seed=seed, draws=draws)

    def map(
        self,
        base: str | None = None,
        *,
        method: Literal["umap", "tsne", "pca"] | None = None,
        color: str = "dataset",
        representation: str = "input",
        seed: int = 0,
    ) -> ModelMap:
        """The models as points in the plane; see :func:`query.map.map.model_map`.

        ``method``: umap, tsne or pca; None: tsne below 1,000 models, else umap. ``color``: dataset, author, cluster, or
        any column of the view ``models``.
        ``write("map.html")`` gives a page to explore. Raises AtlasError where there is no model to place, or no such
        method or column.
        """
        from query.map.map import model_map

        return model_map(self, base, method=method, color=color, representation=representation, seed=seed)

    def rank(
        self,
        base: str | None = None,
        *,
        threshold: float = 0.5,
        of: Literal["delta", "weights"] = "delta",
        model: str | None = None,
        relation: str | None = None,
        whole: bool = False,
    ) -> RankStudy:
        """How the rank of δW, or of W, moves with depth; see :func:`query.rank.rank.rank_by_depth`.

        ``threshold``: the share of the energy Σ σ² to hold, in (0, 1]. ``of``: delta or weights. ``model``: of this one
        alone. ``relation``: only these, e.g. "finetune,adapter". ``whole``: fused matrices whole. Raises AtlasError
        where no model is left, ValueError on a threshold or an ``of`` that is none.
        """
        from query.rank.rank import rank_by_depth

        return rank_by_depth(self, base, threshold=threshold, of=of, model=model, relation=relation, whole=whole)

    def predict(
        self, model: str | Path, *, k: int = 10, base: str | None = None, representation: str = "input"
    ) -> Prediction:
        """The datasets a model was probably tuned on; see :func:`query.predict.predict.predict`.

        ``k``: voters. Probabilities sum to 1. Raises AtlasError where the model is unknown or unreadable, says nothing,
        or nobody else names a dataset.
        """
        from query.predict.predict import predict

        return predict(self, str(model), k=k, base=base, representation=representation)

    def predict_many(
        self,
        models: Iterable[str | Path] | None = None,
        *,
        k: int = 10,
        base: str | None = None,
        representation: str = "input",
        store: bool = False,
    ) -> list[Answered[Prediction]]:
        """The same of many models, in one go; None: of every indexed model of the base that names no dataset.

        One that cannot be answered has an ``error`` instead of an ``answer``. With ``store`` the atlas keeps the
        answers for models that it holds (table ``predictions``, view ``likely_datasets``). See
        :func:`query.predict.many.predict_many` and :func:`query.predict.stored.store`.
        """
        from query.predict.many import predict_many, undocumented
        from query.predict.stored import store as keep

        asked = undocumented(self, base) if models is None else [str(model) for model in models]
        is_all = models is None
        found = list(predict_many(self, asked, k=k, base=base, representation=representation, are_indexed=is_all))
        if store:
            keep(self, [one.answer for one in found if one.answer is not None])
        return found

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
    ) -> Iterator[Answered[SimilarModels]]:
        """``similar`` of many models, one after another, with its arguments.

        Each answer names its ``model``; one that cannot be answered has an ``error`` instead of an ``answer``.
        """
        from query.batches import answered

        def ask(model: str) -> SimilarModels:
            return self.similar(
                model, k, where=where, other_authors=other_authors, representation=representation, base=base,
                explain=explain,
            )  # fmt: skip

        return answered((str(model) for model in models), ask)

    def layers(self, model: str | Path, base: str | None = None) -> Layers:
        """Where a model changed: ‖δW‖/‖W‖, ‖δW‖, share, ranks and energy by layer and family.

        ``model``: an indexed id, any other Hub id, or a folder. Raises AtlasError where it is unknown or unreadable.
        """
        from query.layers.layers import layers

        return layers(self, str(model), base)

    def compare(
        self, a: str | Path, b: str | Path, *, base: str | None = None, representation: str = "input"
    ) -> Comparison:
        """Two models side by side: their similarity by family and layer, and what cards and weights say of each.

        ``a``, ``b``: indexed ids, other Hub ids, or folders, both of one base. Raises AtlasError where one is unknown
        or unreadable, or they are of different bases.
        """
        from query.compare.compare import compare

        return compare(self, str(a), str(b), base=base, representation=representation)

    def evaluate_prediction(self, base: str | None = None, *, k: int = 10, representation: str = "input") -> Evaluation:
        """How often ``predict`` is right on this atlas; see :func:`query.predict.calibration.evaluate`.

        Raises AtlasError where fewer than two authors name a dataset, ValueError on k < 1.
        """
        from query.predict.calibration import evaluate

        return evaluate(self, base, k=k, representation=representation)

    def lineage(
        self, model: str | Path, base: str | None = None, *, dates: bool = True, fresh: bool = False
    ) -> Lineage:
        """Which model ``model`` was made from; see :func:`query.lineage.lineage.lineage`.

        What the atlas keeps of an indexed model (``lineages(store=True)``) is given with its date, and no weights are
        read; else, or with ``fresh``, at most 30 MB of them. ``dates``: whether creation dates may decide who was
        first. Raises AtlasError where the atlas holds no factors, or the model cannot be read.
        """
        from query.lineage.lineage import lineage

        return lineage(self, str(model), base, dates=dates, fresh=fresh)

    def lineages(self, base: str | None = None, *, dates: bool = True, store: bool = False) -> Lineages:
        """The same of every indexed model of a base, oldest first; see :func:`query.lineage.lineage.every_lineage`.

        The weights are read, whatever the atlas keeps. ``store``: the atlas keeps it (tables and views of lineage); of
        a model that could not be read (``unanswered``) it keeps what it has. Raises AtlasError where the atlas holds no
        factors, somebody else is writing to it, or for ``store`` without ``dates``: what is kept answers later
        questions, which may use them.
        """
        from query.lineage.answer import Lineages
        from query.lineage.lineage import every_lineage
        from query.lineage.stored import store as keep

        if store and not dates:
            raise AtlasError("Only answers that may use dates are kept.", "Leave out `store` or `dates=False`.")
        canonical = self.base_named(base)
        answers = tuple(every_lineage(self, canonical, dates=dates))
        if store:
            keep(self, canonical, answers)
        return Lineages(canonical, answers)

    def report(self, base: str | None = None, *, seed: int = 0) -> Report:
        """One page with everything there is to say of a base; ``write("report.html")`` keeps it.

        ``seed``: of the map, the intervals and the permutations. Raises AtlasError where the base is not published.
        """
        from query.report.report import report

        return report(self, base, seed=seed)

    def depth(
        self,
        model: str | Path,
        *,
        against: str = "base",
        base: str | None = None,
        recover: bool = False,
        exact: bool = False,
        layers: Sequence[int] | None = None,
        recipe: Literal["default", "seed"] = "default",
        seed: int = 0,
        device: str = "cpu",
    ) -> Depth:
        """What each layer of a model, or of a base, keeps of its input; see :func:`query.depth.depth.depth`.

        ``against``: base, untrained, or another profiled model. What follows ``base`` is for a model without a profile,
        which is measured now. Raises AtlasError where it cannot be read, or ``against`` has no profile.
        """
        from query.depth.depth import depth

        return depth(
            self, str(model), against=against, base=base, recover=recover, exact=exact, layers=layers, recipe=recipe,
            seed=seed, device=device,
        )  # fmt: skip

    def depth_study(self, base: str | None = None, *, seed: int = 0) -> DepthStudy:
        """All profiled models of a base beside their weight changes; see :func:`query.depth.study.depth_study`.

        Raises AtlasError where fewer than five have a profile.
        """
        from query.depth.study import depth_study

        return depth_study(self, base, seed=seed)

    def invert(
        self,
        model: str | Path,
        text: str | None = None,
        *,
        images: Sequence[str | Path] = (),
        layers: Sequence[int] | None = None,
        recipe: str = "default",
        top: int = 1,
        keep: str | None = None,
        restrict: bool = False,
        stem: str | None = None,
        base: str | None = None,
        seed: int = 0,
        shift: float | None = None,
        steps: int | None = None,
        rate: float | None = None,
        device: str = "cpu",
    ) -> WordsBack | ImagesBack:
        """Words or images again from each layer; see :func:`query.invert.invert.invert`.

        ``images``: files, instead of a text. ``recipe``: default, blank or seed. ``top``: nearest words for each place.
        ``keep``: only these output positions are seen ("1:"). ``restrict``: the answer is sought among the text's own
        words. ``shift``: σ of the criterion. ``steps``, ``rate``: of the descent. Raises AtlasError where the two do
        not go together, or the model cannot be read.
        """
        from query.invert.invert import invert

        return invert(
            self, str(model), text, images=images, layers=layers, recipe=recipe, top=top, keep=keep, restrict=restrict,
            stem=stem, base=base, seed=seed, shift=shift, steps=steps, rate=rate, device=device,
        )  # fmt: skip

    def features(
        self,
        model: str | Path,
        *,
        layers: Sequence[int] | None = None,
        neurons: str | Sequence[int] = "0-7",
        patch: int | None = None,
        stem: str | None = None,
        recipe: str = "default",
        plain: bool = False,
        base: str | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> FeatureGrid:
        """What single neurons look for, as images; see :func:`query.features.features.features`.

        ``neurons``: numbers, "0-15", "3,7", or "all" with a ``patch``. ``stem``: an image stem before a language
        model's layers. ``plain``: without octaves, blur and jitter. Raises AtlasError where a layer, neuron or patch
        does not exist, or the model cannot be read.
        """
        from query.features.features import features

        return features(
            self, str(model), layers=layers, neurons=neurons, patch=patch, stem=stem, recipe=recipe, plain=plain,
            base=base, seed=seed, device=device,
        )  # fmt: skip

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
        """What ``show`` says of a model. Raises KeyError for one that the atlas has never met."""
        try:
            return self.show(model)
        except AtlasError as error:
            raise KeyError(str(error)) from error

    def __dir__(self) -> list[str]:
        questions = [name for name, one in vars(Atlas).items() if callable(one) and not name.startswith("_")]
        return sorted({*questions, "bases", "close", "generation", "notes", "refresh", *dir(object)})

    def __repr__(self) -> str:
        return f"<Atlas {place(self)!r}: {in_a_line(self)}>"

    def _repr_html_(self) -> str:
        return in_a_notebook(self)
