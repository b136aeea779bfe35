"""The face of an atlas: every question as a method. What opens and reads it is in ``query.reader``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from query.reader import AtlasReader

if TYPE_CHECKING:
    from query.clusters.clusters import Clusters
    from query.depth.depth import Depth
    from query.depth.study import DepthStudy
    from query.features.features import FeatureGrid
    from query.invert.invert import ImagesBack, WordsBack
    from query.lineage.answer import Lineage
    from query.map.map import ModelMap
    from query.predict.calibration import Evaluation
    from query.predict.predict import Prediction
    from query.purity.purity import PurityResult
    from query.rank.rank import RankStudy
    from query.report.report import Report
    from query.similar import Neighbour
    from query.sql import SqlResult


class Atlas(AtlasReader):
    """A published atlas to ask questions of; see :class:`query.reader.AtlasReader` for how it is opened."""

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
    ) -> list[Neighbour]:
        """The ``k`` models most like ``model``; see :func:`query.similar.similar`."""
        from query.similar import similar

        return similar(
            self,
            str(model),
            k,
            where=where,
            other_authors=other_authors,
            representation=representation,
            base=base,
            explain=explain,
        )

    def purity(
        self,
        base: str | None = None,
        *,
        representation: str = "input",
        k: int | None = None,
        draws: int = 1000,
        seed: int = 0,
        kin: bool = True,
    ) -> PurityResult:
        """Whether models tuned on one dataset lie together; see :func:`query.purity.purity.purity`.

        ``kin``: whether a model's own family tree counts, which lies near it whatever it was tuned on.
        """
        from query.population import family_trees, read_population
        from query.purity.purity import purity

        population = read_population(self, base, representation)
        trees = None if kin else family_trees(self, population)
        return purity(population, k=k, draws=draws, seed=seed, trees=trees)

    def show(self, model: str | Path, base: str | None = None) -> dict[str, Any]:
        """Everything known of one model; see :func:`query.show.show`."""
        from query.show import show

        return show(self, str(model), base)

    def sql(
        self,
        statement: str,
        *,
        limit: int | None = 10_000,
        seconds: float = 30.0,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    ) -> SqlResult:
        """Any SELECT, with time and row limits; see :func:`query.sql.run_sql`."""
        from query.sql import run_sql

        self.connection.execute("SELECT 1")  # AtlasError where the atlas is closed
        return run_sql(
            self.database,
            statement,
            limit=limit,
            seconds=seconds,
            parameters=parameters,
            stand_ins=self.stand_ins,
        )

    def clusters(
        self,
        base: str | None = None,
        *,
        representation: str = "input",
        method: str = "hdbscan",
        min_size: int | None = None,
        count: int | None = None,
        seed: int = 0,
        draws: int = 1000,
    ) -> Clusters:
        """Groups of like models, and how they agree with datasets; see :func:`query.clusters.clusters.clusters`."""
        from query.clusters.clusters import clusters
        from query.population import read_population

        population = read_population(self, base, representation)
        return clusters(population, method=method, min_size=min_size, count=count, seed=seed, draws=draws)

    def map(
        self,
        base: str | None = None,
        *,
        method: str = "umap",
        color: str = "dataset",
        representation: str = "input",
        seed: int = 0,
    ) -> ModelMap:
        """The models as points in the plane; see :func:`query.map.map.model_map`."""
        from query.map.map import model_map

        return model_map(self, base, method=method, color=color, representation=representation, seed=seed)

    def rank(
        self,
        base: str | None = None,
        *,
        threshold: float = 0.5,
        of: str = "delta",
        model: str | None = None,
        relation: str | None = None,
        whole: bool = False,
    ) -> RankStudy:
        """How the rank of δW, or of W, moves with depth; see :func:`query.rank.rank.rank_by_depth`."""
        from query.rank.rank import rank_by_depth

        return rank_by_depth(self, base, threshold=threshold, of=of, model=model, relation=relation, whole=whole)

    def predict(
        self, model: str | Path, *, k: int = 10, base: str | None = None, representation: str = "input"
    ) -> Prediction:
        """The datasets a model was probably tuned on; see :func:`query.predict.predict.predict`."""
        from query.predict.predict import predict

        return predict(self, str(model), k=k, base=base, representation=representation)

    def evaluate_prediction(self, base: str | None = None, *, k: int = 10, representation: str = "input") -> Evaluation:
        """How often ``predict`` is right on this atlas; see :func:`query.predict.calibration.evaluate`."""
        from query.predict.calibration import evaluate

        return evaluate(self, base, k=k, representation=representation)

    def lineage(self, model: str | Path, base: str | None = None, *, dates: bool = True) -> Lineage:
        """Which model ``model`` was made from; see :func:`query.lineage.lineage.lineage`."""
        from query.lineage.lineage import lineage

        return lineage(self, str(model), base, dates=dates)

    def lineages(self, base: str | None = None, *, dates: bool = True, store: bool = False) -> list[Lineage]:
        """The same of every indexed model of a base; with ``store`` the atlas keeps it (tables and views of lineage).

        See :func:`query.lineage.lineage.every_lineage` and :func:`query.lineage.stored.store`.
        """
        from query.lineage.lineage import every_lineage
        from query.lineage.stored import store as keep

        answers = list(every_lineage(self, base, dates=dates))
        if store:
            keep(self, self.base_named(base), answers)
        return answers

    def report(self, base: str | None = None, *, seed: int = 0) -> Report:
        """One page with everything there is to say of a base; see :func:`query.report.report.report`."""
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
        recipe: str = "default",
        seed: int = 0,
        device: str = "cpu",
    ) -> Depth:
        """What each layer of a model keeps of its input; see :func:`query.depth.depth.depth`.

        What follows ``base`` is for a model without a profile, which is measured now.
        """
        from query.depth.depth import depth

        wishes = {"recover": recover, "exact": exact, "recipe": recipe, "seed": seed, "device": device}
        chosen = None if layers is None else tuple(layers)
        return depth(self, str(model), against=against, base=base, wishes={**wishes, "layers": chosen})

    def depth_study(self, base: str | None = None, *, seed: int = 0) -> DepthStudy:
        """All profiled models of a base beside their weight changes; see :func:`query.depth.study.depth_study`."""
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
        """Words or images again from each layer; see :func:`query.invert.invert.invert`."""
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
        """What neurons look for; see :func:`query.features.features.features`."""
        from query.features.features import features

        return features(
            self, str(model), layers=layers, neurons=neurons, patch=patch, stem=stem, recipe=recipe, plain=plain,
            base=base, seed=seed, device=device,
        )  # fmt: skip
