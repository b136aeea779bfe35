"""The new vectors of a publish: for every representation of a base, from the records into its file.

The lists of neighbours are updated in the same step, and the null distributions of similarity if the centre moves.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.database.validation import InvalidValue
from indexer.names import voters
from indexer.publish.centring import Centring
from indexer.publish.neighbours import renew_neighbours
from indexer.publish.rows import Publication, record_rows
from indexer.publish.tables import Row, Tables
from indexer.publish.vectors import PublishedVectors
from indexer.records.representations.comparison import as_compared
from indexer.records.representations.registry import DEFAULT, has_neighbours, in_order, offered, representation_named
from indexer.records.representations.representation import Vector
from indexer.records.store import RecordStore
from indexer.vectors.background import Background, are_unrelated, author_groups
from indexer.vectors.centre import GROUPS, GROWTH
from indexer.vectors.search import VectorIndex
from indexer.vectors.ties import NEAR

# Largest sample of a group in a null distribution: half a million pairs within a group.
MOST_MODELS = 1_024


class VectorUpdates:
    """The new vectors of one base within a publish. They wait in files that are removed on exit.

    ``all``: the vectors of every representation. ``added``: representations to publish besides the default and those
    published before. ``offered``: optional representations. Each is published as soon as a model has such a vector and
    a model is in a group that it is offered to.
    """

    def __init__(
        self,
        folder: AtlasFolder,
        tables: Tables,
        publication: Publication,
        added: Sequence[str],
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.tables, self.publication = folder, tables, publication
        self.say = say
        self.base = publication.base.base
        self.all: list[PublishedVectors] = []
        self.offered: list[PublishedVectors] = []
        self._without = Counter[tuple[str, bool]]()  # models without a representation: whether a sample was read
        self._added = added
        self._centrings: dict[str, Centring] = {}
        self._files = ExitStack()

    def __enter__(self) -> VectorUpdates:
        published = self.tables.rows(
            "SELECT representation FROM representations WHERE base = ? ORDER BY representation", [self.base]
        )
        publication = self.publication
        matrices = len(publication.base.layout.matrices)
        with ExitStack() as files:
            names = dict.fromkeys([DEFAULT, *(name for (name,) in published), *self._added])
            for name in in_order([*names, *offered()]):
                representation = representation_named(name).with_words(publication.base.words)
                vectors = PublishedVectors(
                    self.folder.root,
                    self.tables,
                    self.base,
                    representation,
                    publication.rank,
                    publication.vector_length,
                    representation.blocks_among(matrices),
                )
                files.enter_context(vectors.new)
                if name not in names:
                    self.offered.append(vectors)
                self.all.append(vectors)
            self._files = files.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def add(
        self,
        updates: Iterable[PublishedVectors],
        model_id: int,
        vectors_by_name: Mapping[str, Vector],
        *,
        is_sampled: bool,
    ) -> None:
        """Add the vectors of one model, by representation, to those of ``updates`` that its record holds."""
        for vectors in updates:
            vectors.read.add(model_id)
            if vectors.name in vectors_by_name:
                vectors.new.add(model_id, vectors_by_name[vectors.name])
            else:
                self._without[vectors.name, is_sampled] += 1

    def read_records(self, updates: Mapping[PublishedVectors, Container[int]]) -> dict[int, tuple[str, InvalidValue]]:
        """Add the vectors of the records of these models, unless they were read before, in one pass over the records.

        Returns the models whose record cannot be published, by id, with their name and the reason; none of their
        vectors is added.
        """
        rejected: dict[int, tuple[str, InvalidValue]] = {}
        signatures: list[Row] = []
        store = RecordStore(self.folder)
        for model_id, model, record_key in self.tables.rows(
            "SELECT model_id, model, record_key FROM fine_tunes WHERE base = ? AND status = 'indexed' "
            "ORDER BY model_id",
            [self.base],
        ):
            missing = [
                vectors
                for vectors, model_ids in updates.items()
                if model_id in model_ids and model_id not in vectors.read
            ]
            if not missing:
                continue
            try:
                rows, vectors_by_name = record_rows(
                    model_id, record_key, self.publication.base, store, [vectors.representation for vectors in missing]
                )
            except InvalidValue as why:
                rejected[model_id] = (model, why)
                continue
            self.add(missing, model_id, vectors_by_name, is_sampled=rows["records"][0]["read"] == "sample")
            if any(vectors.name == DEFAULT for vectors in missing):
                signatures.append({"model_id": model_id, "signature": rows["records"][0]["signature"]})
        if signatures:
            self.tables.update("records", {"signature": "VARCHAR"}, signatures)
        return rejected

    def read_moving(self, stale: Collection[int]) -> dict[int, tuple[str, InvalidValue]]:
        """Read the records of all models of the representations whose centre moves; returns as ``read_records``.

        ``stale``: models whose former vectors do not stay. Call it again with those that are returned.
        """
        moving: dict[PublishedVectors, Container[int]] = {}
        for vectors in self._wanted():
            if vectors.representation.centred:
                centre = self.publication.centres.get(vectors.name)
                centring = self._centrings[vectors.name] = Centring(self.tables, vectors, stale, centre)
                if centring.due and len(centring.staying):
                    moving[vectors] = set(centring.staying.tolist())
        if not moving:
            return {}
        rejected = self.read_records(moving)
        for vectors in moving if not rejected else ():
            self.say(
                f"{self.base}, {vectors.name}: the centre of the full fine-tunes moves, because they have grown by "
                f"half: all {len(vectors.new.ids):,} vectors are rewritten"
            )
        return rejected

    def _wanted(self) -> list[PublishedVectors]:
        return [vectors for vectors in self.all if vectors not in self.offered or self.is_wanted(vectors)]

    def is_wanted(self, vectors: PublishedVectors) -> bool:
        """Whether offered vectors are to be published; once they are, they stay."""
        if not vectors.new.ids:
            return False
        statement = (
            "SELECT 1 FROM records JOIN fine_tunes USING (model_id) WHERE base = ? "
            "AND list_contains(?, vector_group) LIMIT 1"
        )
        return bool(self.tables.rows(statement, [self.base, list(vectors.representation.offered_to)]))

    def publish(self, stale: Collection[int], ids: Iterable[int], has_new_profiles: bool) -> None:
        """Write the FAISS files, their rows and the neighbours, without the vectors of ``stale`` ids.

        ``ids``: all models of the base. Vectors that are not made from records change together: those of profiles are
        scaled by all profiles.
        """
        for vectors in self._wanted():
            replaced, moved = stale, False
            for is_sampled, why in ((False, "whose records have no factors"), (True, "that were only sampled")):
                count = self._without[vectors.name, is_sampled]
                if count and not vectors.representation.is_partial:
                    self.say(f"{self.base}, {vectors.name}: skipped models {why}: {count}")
            if vectors.representation.centred:
                centring = self._centrings[vectors.name]
                centring.centre_all()
                moved = bool(centring.due)
            elif vectors.representation.from_tables:
                if not (has_new_profiles or stale or vectors.is_new or self.publication.vector_length):
                    continue
                for model_id, vector in vectors.representation.of_models(self.tables.connection, self.base).items():
                    vectors.new.add(model_id, vector)
                replaced = list(ids)
            change = vectors.publish(replaced)
            if change is None:
                continue
            if not self.publication.with_neighbours or not has_neighbours(vectors.name):
                continue
            index, added, removed = change
            index = as_compared(index, self.tables.connection, self.base, vectors.name, self.folder.root)
            renew_neighbours(self.tables, self.base, vectors.name, index, added, removed)
            if moved or self._has_outgrown_null(vectors.name):
                renew_null_similarity(self.tables, self.base, vectors.name, index)

    def _has_outgrown_null(self, representation: str) -> bool:
        """Whether some group has grown by half since its null distribution was computed."""
        former_counts = dict(
            self.tables.rows(
                "SELECT vector_group, models FROM internal.null_groups WHERE base = ? AND representation = ?",
                [self.base, representation],
            )
        )
        current_counts = _labelled_groups(self.tables, self.base)
        return any(count >= max(1, GROWTH * former_counts.get(group, 0)) for group, count in current_counts.items())


def _labelled_groups(tables: Tables, base: str) -> dict[str, int]:
    """How many models of each group a null distribution is computed from, at most."""
    return dict(
        tables.rows(
            "SELECT vector_group, count(*) FROM models WHERE base = ? AND NOT is_copy AND NOT is_unrelated "
            "AND duplicate_of IS NULL AND NOT is_earlier_checkpoint AND len(datasets) > 0 GROUP BY ALL",
            [base],
        )
    )


def renew_null_similarity(tables: Tables, base: str, representation: str, index: VectorIndex) -> None:
    """Rewrite the null distributions: similarities of unrelated models, per pair of groups with enough such pairs.

    Unrelated models are by different authors (of different runs, if all models are by one author) and name datasets,
    none in common. Models that name none are skipped, because they may share one, and so are copies, models unrelated
    to the base and duplicates.
    """
    key = {"base": base, "representation": representation}
    for table in ("null_similarity", "internal.null_groups"):
        tables.run(f"DELETE FROM {table} WHERE base = $base AND representation = $representation", key)
    counts_now = _labelled_groups(tables, base)
    tables.insert(
        "internal.null_groups",
        [key | {"vector_group": first_group, "models": n} for first_group, n in counts_now.items()],
    )
    rows = tables.rows(
        "SELECT model_id, vector_group, author, datasets, model FROM models WHERE base = ? AND NOT is_copy "
        "AND NOT is_unrelated AND duplicate_of IS NULL AND NOT is_earlier_checkpoint AND len(datasets) > 0 "
        "ORDER BY model_id",
        [base],
    )
    votes = voters([row[2] for row in rows], [row[4] for row in rows])
    facts = {row[0]: (vote, set(row[3])) for row, vote in zip(rows, votes, strict=True)}
    samples = {}
    for group in GROUPS:
        ids = np.array([row[0] for row in rows if row[1] == group], dtype=np.int64)
        sample_ids = np.intersect1d(drawn(ids, base, group), index.ids, assume_unique=True)
        samples[group] = (sample_ids, index.table(sample_ids))
    for group_number, first_group in enumerate(GROUPS):
        for second_group in GROUPS[group_number:]:
            (first_ids, first), (second_ids, second) = samples[first_group], samples[second_group]
            if not len(first) or not len(second):
                continue
            counts = are_unrelated([facts[i] for i in first_ids.tolist()], [facts[i] for i in second_ids.tolist()])
            if first_group == second_group:
                counts = np.triu(counts, 1)
            similarities = first.similarities(second)
            # A similarity above all of these gets the smallest share, so the largest must be those that a search gives.
            largest = similarities[counts].max(initial=-np.inf)
            first_rows, second_rows = np.nonzero(counts & (similarities >= largest - NEAR))
            similarities[first_rows, second_rows] = first.pairs(first_rows, second, second_rows)
            names = [facts[i][0] for i in (*first_ids.tolist(), *second_ids.tolist())]
            groups, (firsts, seconds) = author_groups(names), np.nonzero(counts)
            background = Background.of(
                np.clip(similarities[firsts, seconds], -1.0, 1.0),
                (groups[firsts], groups[len(first) + seconds]),
            )
            if background is None:
                continue
            count = len(background.shares)
            tables.insert_columns(
                "null_similarity",
                {
                    "base": [base] * count,
                    "representation": [representation] * count,
                    "one_group": [first_group] * count,
                    "other_group": [second_group] * count,
                    "pairs": [background.pairs] * count,
                    "similarity": background.similarities,
                    "share": background.shares,
                    "share_high": [None] * count if background.highest is None else background.highest,
                },
            )


def drawn(ids: NDArray[np.int64], base: str, group: str) -> NDArray[np.int64]:
    """At most MOST_MODELS of the ids, ascending: the same in every publish of the same models."""
    if len(ids) <= MOST_MODELS:
        return ids
    seed = int.from_bytes(hashlib.sha256(f"{base}|{group}".encode()).digest()[:8], "little")
    return np.sort(np.random.default_rng(seed).choice(ids, MOST_MODELS, replace=False))
