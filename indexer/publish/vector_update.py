"""The new vectors of a publish: for every representation of a base, from the records into segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from indexer.atlas import AtlasFolder
from indexer.publish.centring import Centring
from indexer.publish.neighbours import NeighbourTable
from indexer.publish.null_similarity import renew_null_similarity
from indexer.publish.profile_tables import depth_vectors
from indexer.publish.publication import Publication, SkippedModels
from indexer.publish.rows import record_rows
from indexer.publish.tables import Row, Tables
from indexer.publish.validation import InvalidValue
from indexer.publish.vectors import PublishedVectors, UncentredVectors, VectorWriter
from indexer.records.representation import DEFAULT, Vector, representation_named
from indexer.records.store import RecordStore


class VectorUpdate:
    """The published vectors of one representation and the writer of the new ones, which have ``blocks`` blocks."""

    def __init__(self, vectors: PublishedVectors, writer: VectorWriter | UncentredVectors, blocks: int) -> None:
        self.vectors, self.writer, self.blocks = vectors, writer, blocks
        self.name = vectors.representation.name
        # Whether the vectors come from depth profiles instead of records.
        self.of_profiles = vectors.representation.of_profiles
        self.without = 0  # models whose record does not hold this representation

    def add(self, model_id: int, found: Mapping[str, Vector]) -> None:
        """Add the vector of one model, if its record holds this representation."""
        vector = found.get(self.name)
        if vector is None:
            self.without += 1
        elif isinstance(self.writer, UncentredVectors):
            self.writer.add(model_id, vector, self.blocks)
        else:
            self.writer.add(model_id, vector)


class VectorUpdates:
    """The vector updates of one base within a publish. Uncentred vectors wait in files that are removed on exit.

    ``added``: representations to publish besides the default and those published before. Models whose record cannot
    be published are added to ``skipped``.
    """

    def __init__(
        self,
        folder: AtlasFolder,
        tables: Tables,
        publication: Publication,
        added: Sequence[str],
        skipped: SkippedModels,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.tables, self.publication = folder, tables, publication
        self.skipped, self.say = skipped, say
        self.base = publication.base.base
        self.all: list[VectorUpdate] = []
        self._added = added
        self._files = ExitStack()

    def __enter__(self) -> VectorUpdates:
        published = self.tables.rows(
            "SELECT representation FROM representations WHERE base = ? ORDER BY representation", [self.base]
        )
        root, publication = self.folder.root, self.publication
        with ExitStack() as files:
            for name in dict.fromkeys([DEFAULT, *(name for (name,) in published), *self._added]):
                representation = representation_named(name)
                vectors = PublishedVectors(
                    root, self.tables, self.base, representation, publication.rank, self.say, publication.index
                )
                writer: VectorWriter | UncentredVectors = VectorWriter(root, self.base, vectors.representation)
                if representation.centred:
                    writer = files.enter_context(UncentredVectors(root, self.base, name))
                self.all.append(VectorUpdate(vectors, writer, len(publication.base.layout.matrices)))
            self._files = files.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def read_all(self, update: VectorUpdate) -> None:
        """Add the vectors of every record, for a representation that is new or has another length."""
        signatures: list[Row] = []
        store = RecordStore(self.folder)
        for model_id, model, record_key in self.tables.rows(
            "SELECT model_id, model, record_key FROM fine_tunes WHERE base = ? AND status = 'indexed' "
            "ORDER BY model_id",
            [self.base],
        ):
            try:
                made, found = record_rows(
                    model_id, record_key, self.publication.base, store, [update.vectors.representation]
                )
            except InvalidValue as why:
                self.skipped.models[model] = why
                continue
            update.add(model_id, found)
            signatures.append({"model_id": model_id, "signature": made["records"][0]["signature"]})
        if update.name == DEFAULT:
            self.tables.update("records", {"signature": "VARCHAR"}, signatures)

    def publish(self, stale: Sequence[int], ids: Iterable[int], has_new_profiles: bool) -> None:
        """Write the FAISS files, their rows and the neighbours, without the vectors of ``stale`` ids.

        ``ids``: all models of the base. The vectors of profiles are scaled by all profiles, so each new profile changes
        all of them.
        """
        for update in self.all:
            vectors, writer, replaced, moved = update.vectors, update.writer, stale, False
            if update.without:
                self.say(f"{self.base}, {update.name}: skipped models whose records have no factors: {update.without}")
            if isinstance(writer, UncentredVectors):
                removed = np.array(sorted(set(stale)), dtype=np.int64)
                # If the centre has moved, the writer holds all vectors of the base.
                writer, moved = Centring(self.tables, vectors, self.say).centred(writer, removed)
            elif update.of_profiles:
                if not (has_new_profiles or stale or vectors.is_new or self.publication.index):
                    continue
                for model_id, vector in depth_vectors(self.tables.connection, self.base).items():
                    writer.add(model_id, vector)
                replaced = list(ids)
            change = vectors.change(writer, replaced, is_anew=moved, purged=self.publication.purged)
            if change is None:
                continue
            NeighbourTable(self.tables, self.base, update.name).change(change.index, change.added, change.removed)
            if moved:
                renew_null_similarity(self.tables, self.base, update.name, change.index)
