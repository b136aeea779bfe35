"""An open atlas: its database and, when a question needs them, its vectors, always of one generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.names import ModelRef
from query.sandbox.published import PublishedDatabase

if TYPE_CHECKING:
    import duckdb

    from indexer.deltas.single import PublishedBase
    from indexer.vectors.published import Published
    from indexer.vectors.search import VectorIndex
    from indexer.vectors.segments import Vectors
    from query.clusters.clusters import Clusters
    from query.depth.depth import Depth
    from query.depth.study import DepthStudy
    from query.features.features import FeatureGrid
    from query.invert.invert import ImagesBack, WordsBack
    from query.map.map import ModelMap
    from query.predict.calibration import Evaluation
    from query.predict.predict import Prediction
    from query.purity.purity import PurityResult
    from query.rank.rank import RankStudy
    from query.report.report import Report
    from query.similar import Neighbour
    from query.sql import SqlResult

# Publishes that a reader may be overtaken by between reading a file's name and opening it.
REFRESHES = 5


@dataclass(frozen=True)
class IndexedModel:
    """One (model, base) of the atlas, found by name."""

    model_id: int
    model: str
    base: str
    author: str
    commit: str | None
    status: str
    reason: str | None
    detail: str | None
    is_copy: bool


class Atlas:
    """A published atlas, opened read-only; a build may go on meanwhile.

    ``path`` is the atlas's folder. Where another program holds the database for writing, a private copy is
    read instead and ``notes`` says so. Raises AtlasError where there is no atlas, or one of another schema.
    """

    def __init__(self, path: str | Path = "atlas") -> None:
        self.folder = AtlasFolder(path).require()
        self._opened = PublishedDatabase(self.folder.database)
        self._indexes: dict[tuple[str, str], VectorIndex] = {}

    def __enter__(self) -> Atlas:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database and the vectors."""
        self._opened.close()
        self._indexes.clear()

    def refresh(self) -> None:
        """Open what was published last; for a reader that lives long."""
        self.close()
        self._opened = PublishedDatabase(self.folder.database)

    @property
    def notes(self) -> list[str]:
        """What is odd about how the atlas was opened."""
        return [] if self._opened.note is None else [self._opened.note]

    @property
    def generation(self) -> int:
        """Grows by one with every publish."""
        row = self.connection.execute("SELECT generation FROM atlas_info").fetchone()
        return int(row[0]) if row else 0

    # ---- questions -------------------------------------------------------------------------------------------

    def similar(self, model: str | Path, k: int = 10, **options: Any) -> list[Neighbour]:
        """The ``k`` models most like one; see :func:`query.similar.similar`."""
        from query.similar import similar

        return similar(self, str(model), k, **options)

    def purity(self, base: str | None = None, *, representation: str = "input", **options: Any) -> PurityResult:
        """Whether models tuned on one dataset lie together; see :func:`query.purity.purity.purity`."""
        from query.population import read_population
        from query.purity.purity import purity

        return purity(read_population(self, base, representation), **options)

    def show(self, model: str | Path, base: str | None = None) -> dict[str, Any]:
        """Everything known of one model; see :func:`query.show.show`."""
        from query.show import show

        return show(self, str(model), base)

    def sql(self, statement: str, **limits: Any) -> SqlResult:
        """Any SELECT, with time and row limits; see :func:`query.sql.run_sql`."""
        from query.sql import run_sql

        return run_sql(self.database, statement, **limits)

    def clusters(self, base: str | None = None, *, representation: str = "input", **options: Any) -> Clusters:
        """Groups of like models, and how they agree with datasets and authors: see ``query.clusters``."""
        from query.clusters.clusters import clusters
        from query.population import read_population

        return clusters(read_population(self, base, representation), **options)

    def map(self, base: str | None = None, **options: Any) -> ModelMap:
        """The models as points in the plane; see :func:`query.map.map.model_map`."""
        from query.map.map import model_map

        return model_map(self, base, **options)

    def rank(self, base: str | None = None, **options: Any) -> RankStudy:
        """How the rank of δW, or of W, moves with depth; see :func:`query.rank.rank.rank_by_depth`."""
        from query.rank.rank import rank_by_depth

        return rank_by_depth(self, base, **options)

    def predict(self, model: str | Path, **options: Any) -> Prediction:
        """The datasets a model was probably tuned on; see :func:`query.predict.predict.predict`."""
        from query.predict.predict import predict

        return predict(self, str(model), **options)

    def evaluate_prediction(self, base: str | None = None, **options: Any) -> Evaluation:
        """How often ``predict`` is right on this atlas; see :func:`query.predict.calibration.evaluate`."""
        from query.predict.calibration import evaluate

        return evaluate(self, base, **options)

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

    # ---- what the questions stand on ----------------------------------------------------------------------------

    @property
    def database(self) -> Path:
        """The database file that is read: the atlas's own, or the private copy."""
        return self._opened.path

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The database, attached read-only with everything else locked away."""
        return self._opened.connection

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Rows of one of our own statements, as dicts."""
        cursor = self.connection.execute(statement, list(parameters))
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def bases(self) -> list[str]:
        """Canonical ids of all bases, sorted."""
        return [row["base"] for row in self.rows("SELECT base FROM bases ORDER BY base")]

    def base_named(self, name: str | None) -> str:
        """The canonical id of a base by any of its names; the only one where ``name`` is None.

        Raises AtlasError where there is none, or several to choose from.
        """
        rows = self.rows("SELECT base, aliases FROM bases ORDER BY base")
        known = ", ".join(row["base"] for row in rows) or "none"
        if name is None:
            if len(rows) == 1:
                return str(rows[0]["base"])
            raise AtlasError(f"This atlas holds {len(rows)} bases ({known}).", "Say which with --base ID.")
        for row in rows:
            names = {row["base"], *row["aliases"]}
            if name in names or name.lower() in {other.lower() for other in names}:
                return str(row["base"])
        raise AtlasError(
            f"{name!r} is not a base of this atlas; its bases: {known}.", f"Add it: index build --base {name}"
        )

    def find(self, reference: ModelRef, base: str | None = None) -> IndexedModel | None:
        """The model as the atlas holds it; None where it is not in the listing.

        Raises AtlasError where it was tuned from several bases and none is named, or not from the one named.
        """
        rows = self.rows(
            'SELECT model_id, model, base, author, "commit", status, reason, detail, '
            "coalesce(is_copy, false) AS is_copy FROM fine_tunes LEFT JOIN records USING (model_id) "
            "WHERE model = ? OR lower(model) = lower(?) ORDER BY model = ? DESC, base",
            [reference.id] * 3,
        )
        rows = [row for row in rows if row["model"] == rows[0]["model"]]
        if reference.revision is not None:
            rows = [row for row in rows if (row["commit"] or "").startswith(reference.revision)]
        wanted = self.base_named(base) if base is not None else None
        if rows and wanted is not None:
            matching = [row for row in rows if row["base"] == wanted]
            if not matching:
                others = ", ".join(row["base"] for row in rows)
                raise AtlasError(
                    f"{rows[0]['model']} is a fine-tune of {others}, not of {wanted}: models of different bases "
                    "cannot be compared.",
                    "Leave --base out.",
                )
            rows = matching
        if len(rows) > 1:
            found = ", ".join(row["base"] for row in rows)
            raise AtlasError(f"{rows[0]['model']} has records for several bases ({found}).", "Say which with --base.")
        return IndexedModel(**rows[0]) if rows else None

    def holds(self, model: str, base: str) -> bool:
        """Whether the model is listed for this base, whatever became of it."""
        return bool(self.rows("SELECT 1 FROM fine_tunes WHERE model = ? AND base = ?", [model, base]))

    def published_base(self, base: str | None, claimed: Sequence[str] = ()) -> PublishedBase:
        """The base named, else the atlas's only one, else the first of ``claimed`` that is one of its bases.

        Raises AtlasError where there is none, or nothing is published for it.
        """
        canonical = self._base_of_claims(claimed) if base is None and len(self.bases()) > 1 else self.base_named(base)
        rows = self.rows(
            'SELECT "commit", rank FROM bases JOIN representations USING (base) '
            "WHERE base = ? AND representation = 'input'",
            [canonical],
        )
        if not rows:
            raise AtlasError(f"Nothing is published for {canonical}.", f"Run: index build --base {canonical}")
        from indexer.deltas.single import PublishedBase

        commit = rows[0]["commit"]
        return PublishedBase(canonical, commit, self.folder.base(canonical, commit), rows[0]["rank"])

    def _base_of_claims(self, claimed: Sequence[str]) -> str:
        for name in claimed:
            try:
                return self.base_named(name)
            except AtlasError:
                continue
        claims = f"claims {', '.join(claimed)}" if claimed else "claims no base"
        raise AtlasError(
            f"The model {claims}; the bases of this atlas are {', '.join(self.bases())}.",
            "Say which with --base ID.",
        )

    def is_published(self, base: str, representation: str) -> bool:
        """Whether a base has vectors of this representation; nothing is loaded to find out."""
        statement = "SELECT 1 FROM representations WHERE base = ? AND representation = ?"
        return bool(self.rows(statement, [base, representation]))

    def published(self, base: str, representation: str) -> Published:
        """What is known of a published representation.

        Raises AtlasError naming the published ones where it is not one of them, or all where there is no such name.
        """
        from indexer.vectors.published import read_published

        found = read_published(self.connection, base, representation)
        if found is None:
            from indexer.records.representation import representation_named

            representation_named(representation)
            rows = self.rows("SELECT representation FROM representations WHERE base = ? ORDER BY ALL", [base])
            published = ", ".join(row["representation"] for row in rows) or "none"
            raise AtlasError(
                f"The representation {representation!r} is not published for {base} (published: {published}).",
                f"Publish it: index represent {representation}",
            )
        return found

    def vectors(self, base: str, representation: str = "input") -> Vectors:
        """All unit vectors of a base with their model ids."""
        return self.index(base, representation).vectors()

    def index(self, base: str, representation: str = "input") -> VectorIndex:
        """The vectors of a base, mapped, kept open, to be searched.

        Where their files were collected since this atlas was opened, those published last.
        """
        key = (base, representation)
        if key not in self._indexes:
            self._indexes[key] = self._index(base, representation)
        return self._indexes[key]

    def _index(self, base: str, representation: str) -> VectorIndex:
        for _ in range(REFRESHES):
            published = self.published(base, representation)
            try:
                return published.opened(self.folder.root)
            except AtlasError:
                if all((self.folder.root / file.name).exists() for file in published.files):
                    raise
            self.refresh()
        return self.published(base, representation).opened(self.folder.root)
