"""New vectors on their way into an atlas: of which representations, from which records, and into which segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from indexer.atlas import AtlasFolder
from indexer.publish.aside import Aside
from indexer.publish.centring import Centring
from indexer.publish.fitting import Fitting, Misfit
from indexer.publish.neighbour_table import NeighbourTable
from indexer.publish.null_similarity import renew_null_similarity
from indexer.publish.profile_tables import depth_vectors
from indexer.publish.publication import Publication
from indexer.publish.rows import Row
from indexer.publish.rows_that_fit import Measured, measured
from indexer.publish.tables import Tables
from indexer.publish.uncentred import Uncentred
from indexer.publish.vectors import Incoming, PublishedVectors
from indexer.records.representation import DEFAULT, representation_named
from indexer.records.store import RecordStore


@dataclass(frozen=True, eq=False)
class Arriving:
    """New vectors of a representation, beside those published: ready for a segment, or yet to be centred."""

    vectors: PublishedVectors
    incoming: Incoming | None = None
    uncentred: Uncentred | None = None

    @property
    def is_of_profiles(self) -> bool:
        """Whether no record makes them."""
        return self.vectors.representation.of_profiles


class ArrivingVectors:
    """The vectors of one base's part of a publish; files that wait for their centre are gone when the block ends.

    ``added``: representations beside the default and those published before. ``aside`` takes models whose record fits
    no column.
    """

    def __init__(
        self,
        folder: AtlasFolder,
        tables: Tables,
        publication: Publication,
        added: Sequence[str],
        fitting: Fitting,
        aside: Aside,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.tables, self.publication = folder, tables, publication
        self.fitting, self.aside, self.say = fitting, aside, say
        self.base = publication.base.base
        self.store = RecordStore(folder)
        self.left_out: Counter[str] = Counter()  # by representation: records that it cannot be computed from
        self._waiting = ExitStack()
        self._added = added
        self.all: list[Arriving] = []

    def __enter__(self) -> ArrivingVectors:
        with ExitStack() as waiting:
            self.all = [self._place(vectors, waiting) for vectors in self._published(self._added)]
            self._waiting = waiting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.close()

    def publish(self, stale: Sequence[int], ids: Iterable[int], has_new_profiles: bool) -> None:
        """Write what has arrived, without the vectors of ``stale`` ids; ``ids``: all models of the base."""
        for one in self.all:
            if one.is_of_profiles:
                self._of_profiles(one, ids, has_new_profiles or bool(stale))
            else:
                self._of_records(one, stale)

    def _published(self, added: Sequence[str]) -> list[PublishedVectors]:
        """The default, those published for this base before, and those asked for now."""
        published = self.tables.rows(
            "SELECT representation FROM representations WHERE base = ? ORDER BY representation", [self.base]
        )
        names = dict.fromkeys([DEFAULT, *(name for (name,) in published), *added])
        publication = self.publication
        return [
            PublishedVectors(
                self.folder.root, self.tables, self.base, representation_named(name), publication.rank, self.say,
                publication.index,
            )
            for name in names
        ]  # fmt: skip

    def _place(self, vectors: PublishedVectors, waiting: ExitStack) -> Arriving:
        """Where the new vectors of a representation go; those that are to be centred are put aside first."""
        if not vectors.representation.centred:
            return Arriving(vectors, incoming=Incoming(self.folder.root, self.base, vectors.representation))
        uncentred = Uncentred(self.folder.root, self.base, vectors.representation.name)
        return Arriving(vectors, uncentred=waiting.enter_context(uncentred))

    def read_again(self, arriving: Arriving) -> None:
        """The vectors of every record, of a representation that is new or has another length."""
        signatures = []
        for model_id, model, record_key in self.tables.rows(
            "SELECT model_id, model, record_key FROM fine_tunes WHERE base = ? AND status = 'indexed' "
            "ORDER BY model_id",
            [self.base],
        ):
            try:
                found = measured(
                    model_id, record_key, self.publication.base, self.store, self.fitting,
                    [arriving.vectors.representation],
                )  # fmt: skip
            except Misfit as why:
                self.aside.models[model] = why
                continue
            self.add(arriving, model_id, found)
            signatures.append({"model_id": model_id, "signature": found.rows["records"][0]["signature"]})
        if arriving.vectors.representation.name == DEFAULT:
            self._sign(signatures)

    def _sign(self, signatures: list[Row]) -> None:
        self.tables.run("CREATE OR REPLACE TEMP TABLE signed (model_id INTEGER, signature VARCHAR)")
        self.tables.insert("signed", signatures)
        self.tables.run(
            "UPDATE records SET signature = signed.signature FROM signed WHERE signed.model_id = records.model_id"
        )
        self.tables.run("DROP TABLE signed")

    def _of_records(self, arriving: Arriving, stale: Sequence[int]) -> None:
        """The FAISS files, their rows, and the neighbours of one representation."""
        vectors = arriving.vectors
        name = vectors.representation.name
        if self.left_out[name]:
            self.say(f"{self.base}, {name}: models left out, as their records hold no factors: {self.left_out[name]}")
        incoming, is_anew = arriving.incoming, False
        if arriving.uncentred is not None:
            gone = np.array(sorted(set(stale)), dtype=np.int64)
            arranged = Centring(self.tables, vectors, self.say).arrange(arriving.uncentred, gone)
            incoming, is_anew = arranged.incoming, arranged.is_anew
        assert incoming is not None
        change = vectors.change(incoming, stale, is_anew=is_anew, purged=self.publication.purged)
        if change is not None:
            table = NeighbourTable(self.tables, self.base, name)
            table.change(change.index, change.added, change.removed)
            if is_anew:
                renew_null_similarity(self.tables, self.base, name, change.index)

    def _of_profiles(self, arriving: Arriving, ids: Iterable[int], is_changed: bool) -> None:
        """Vectors of profiles: in units of all of them, so that one more moves every one."""
        vectors, incoming = arriving.vectors, arriving.incoming
        if incoming is None or not (is_changed or vectors.is_new or self.publication.index):
            return
        for model_id, vector in depth_vectors(self.tables.rows, self.base).items():
            incoming.add(model_id, vector)
        change = vectors.change(incoming, list(ids), purged=self.publication.purged)
        if change is not None:
            NeighbourTable(self.tables, self.base, vectors.representation.name).change(
                change.index, change.added, change.removed
            )

    def add(self, arriving: Arriving, model_id: int, found: Measured) -> None:
        """The vector of one model, where its record holds what it is made of."""
        name = arriving.vectors.representation.name
        vector = found.vectors.get(name)
        if vector is None:
            self.left_out[name] += 1
        elif arriving.uncentred is not None:
            arriving.uncentred.add(model_id, vector, found.group, found.blocks)
        elif arriving.incoming is not None:
            arriving.incoming.add(model_id, vector)
