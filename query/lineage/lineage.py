"""Which model a model was made from: factors in the atlas propose candidates, a few megabytes of weights decide.

The method is a matching pursuit on task vectors with exact checks first; see docs/lineage.md for its measurements.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.errors import AtlasError, ModelError, require, unreadable
from indexer.names import ModelRef
from indexer.shared_state import one_blas_thread
from query.lineage.candidates import SAME_DAY, Candidate, FactorStore, read_candidates
from query.lineage.result import CONFIRMED, CONTRADICTED, COPY, TUNED, UNRELATED, UNSURE, Edge, Lineage, Lineages
from query.lineage.rules import LineageRules
from query.lineage.search import ReadLog, Search
from query.lineage.stored import DeclaredParents, declared_by, declared_in, notes_on_card, stored_lineage
from query.lineage.stored import store as keep
from query.lineage.thresholds import SURE, Thresholds, probability
from query.lookup import describe_unindexed
from query.resolved import NOT_ON_HUB, READERS, no_record, unknown_model
from query.sampled import SAMPLE
from query.wording import counted

if TYPE_CHECKING:
    from indexer.deltas.parts import Parts
    from indexer.records.parts import ModelParts
    from query.reader import AtlasReader

# Failures that say nothing about the model: the Hub did not answer, and an answer made without it would be wrong.
_UNREACHABLE = frozenset({"network", "timeout", "rate_limited", "server_error"})
# After this many models in a row for which the Hub did not answer, no more are read.
_MAX_FAILURES = 5

# Models whose parts are kept in memory for later questions: 3 MB each.
_MAX_KEPT = 400
# Bytes that the config.json, the list of shards and the header of a candidate may have each. Otherwise a few candidates
# with headers of 16 MB would use up the budget of every answer.
_MAX_HEADER = 1 << 20
# With more candidates than this only those near the asked model by their vectors are considered.
_MAX_CANDIDATES = 2000


@dataclass
class _Selection:
    """Some matrices of one base, and what has been read of them.

    ``parts`` reads parts of these matrices; ``store`` has the stored factors of the candidates, ``models`` the models
    read so far by id. ``embeddings``: the base with its token embeddings, None if they cannot be read.
    """

    parts: Parts
    store: FactorStore
    models: dict[int, ModelParts] = field(default_factory=dict)
    embeddings: ModelParts | None = None
    has_tried_embeddings: bool = False


def lineage(
    atlas: AtlasReader,
    model: str | Path,
    base: str | None = None,
    *,
    dates: bool = True,
    fresh: bool = False,
    thresholds: Thresholds | None = None,
) -> Lineage:
    """The parent or parents of a model.

    Args:
        atlas: the atlas to search in.
        model: an indexed id, any other Hub id, or a local folder.
        base: the base, if the model has several.
        dates: whether creation dates may decide which model was first. Without them the weights are always read, and
            an order that they do not show is "unknown".
        fresh: read the weights even if the atlas has a stored answer.
        thresholds: other thresholds than the default.

    Raises:
        AtlasError: the atlas contains no factors, or the model cannot be read.
    """
    model = str(model)
    reference = ModelRef.parse(model)
    known = atlas.find(reference, base) if reference.folder is None else None
    if known is not None and known.status == "skipped":
        raise no_record(known, model)
    if known is not None and known.status == "indexed":
        stored = stored_lineage(atlas, known.model_id) if dates and not fresh and thresholds is None else None
        if stored is not None:
            return stored
        return Tracer(atlas, known.base, dates=dates, thresholds=thresholds).of_indexed(known.model_id)
    if known is not None:  # it could not be read when it was indexed; perhaps only the end of its id was given
        reference, base = replace(reference, id=known.model), base or known.base
    described, published = describe_unindexed(atlas, reference, base)
    return Tracer(atlas, published.base, dates=dates, thresholds=thresholds).of_described(described)


def lineages(atlas: AtlasReader, base: str | None = None, *, dates: bool = True, store: bool = False) -> Lineages:
    """``lineage`` for every indexed model of a base, oldest first, from its weights.

    A model that cannot be read has a ``failure``, and its stored answer if there is one. After _MAX_FAILURES models in
    a row for which the Hub did not answer, the others are not read. ``store``: keep the answers in the atlas (tables
    and views of lineage), except those of models that could not be read. Raises AtlasError if the atlas has no factors,
    another process is writing to it, or for ``store`` with ``dates=False``: later questions use stored answers and may
    use dates.
    """
    if store and not dates:
        raise AtlasError("Only answers that may use dates can be stored.", "Leave out `store` or `dates=False`.")
    tracer = Tracer(atlas, atlas.base_named(base), dates=dates)
    answers: list[Lineage] = []
    in_a_row, failure = 0, ""
    for model_id in tracer.indexed():
        if in_a_row < _MAX_FAILURES:
            try:
                answers.append(tracer.of_indexed(model_id))
                in_a_row = 0
                continue
            except AtlasError as error:
                cause = error.__cause__
                if isinstance(cause, ModelError) and cause.reason in _UNREACHABLE:
                    in_a_row, failure = in_a_row + 1, f"the Hub does not answer: {cause.detail}"
                else:
                    in_a_row, failure = 0, error.message
        stored = stored_lineage(atlas, model_id)
        if stored is None:
            (row,) = atlas.rows("SELECT model FROM fine_tunes WHERE model_id = ?", [model_id])
            stored = Lineage(row["model"], tracer.base, model_id, (), 0, 0)
        answers.append(replace(stored, notes=(), failure=failure))
    if store:
        keep(atlas, tracer.base, answers)
    return Lineages(tracer.base, tuple(answers))


class Tracer:
    """Finds the parents of models of one base, one after another; weights that were read serve for the next.

    ``embeddings``: whether token embeddings may decide. Without them only the block matrices do, as for models that
    have no token embeddings.
    """

    def __init__(
        self,
        atlas: AtlasReader,
        base: str,
        *,
        dates: bool = True,
        embeddings: bool = True,
        thresholds: Thresholds | None = None,
    ) -> None:
        require("Lineage, which reads parts of weights,", *READERS)
        self.atlas, self.base, self.dates, self.embeddings = atlas, base, dates, embeddings
        self.thresholds = thresholds or Thresholds()
        self._published = atlas.published_base(base)
        self._candidates = {one.model_id: one for one in read_candidates(atlas, base)}
        self._selections: dict[frozenset[str] | None, _Selection] = {}

    def indexed(self) -> list[int]:
        """Ids of all indexed models of the base, oldest first, including copies of the base."""
        rows = self.atlas.rows(
            "SELECT model_id FROM models WHERE base = ? ORDER BY created NULLS LAST, model_id", [self.base]
        )
        return [row["model_id"] for row in rows]

    def of_indexed(self, model_id: int, without: Collection[int] = ()) -> Lineage:
        """The lineage of a model of the atlas, as if the atlas did not contain the models ``without``.

        Raises AtlasError if its weights cannot be read.
        """
        declared = declared_by(self.atlas, model_id, self.base)
        asked = self._candidates.get(model_id)
        if asked is None:  # a copy of the base, or weights of another origin: nothing needs to be read
            statement = "SELECT model, is_copy, copy_evidence FROM models WHERE model_id = ?"
            (flags,) = self.atlas.rows(statement, [model_id])
            model = flags["model"]
            if flags["is_copy"]:
                zero = "all its deltas are zero" + (" in all that was read" if flags["copy_evidence"] == SAMPLE else "")
                edge = self._completed(Edge(model, None, COPY, 1.0, 0.0, zero), declared)
            else:
                edge = Edge(model, None, UNRELATED, 0.0, 1.0, "its weights are not the base's", card=CONTRADICTED)
                edge = replace(edge, probability=probability(edge))
            return Lineage(model, self.base, model_id, (edge,), 0, 0)
        # The usual matrices are read, unless the model changed less than half of them: then those that it changed.
        rows = self.atlas.rows("SELECT stack, layer, family FROM deltas WHERE model_id = ? AND norm > 0", [model_id])
        changed = {(f"{row['stack']}." if row["stack"] else "") + f"{row['layer']}.{row['family']}" for row in rows}
        selection = self._selection()
        usual = set(selection.parts.names)
        if changed and len(usual & changed) * 2 < len(usual):
            selection = self._selection(frozenset(changed))
        log = ReadLog()
        parts = self._read(asked, selection, log)
        if isinstance(parts, ModelError):
            raise unreadable(asked.model, parts) from parts
        return self._trace(asked, parts, selection, declared, log, without)

    def of_described(self, described: Any) -> Lineage:
        """The lineage of a model that is not in the atlas, read for this answer and not stored."""
        reference = described.reference
        try:
            parts = self._selection().parts.read_described(described)
        except ModelError as error:
            if reference.folder is None and error.reason == "not_found":
                raise unknown_model(self.atlas, reference.id, NOT_ON_HUB) from error
            raise unreadable(reference.id, error) from error
        log = ReadLog(parts.bytes_read, parts.bytes_read, models=1)
        asked = Candidate(
            model_id=-1,
            model=reference.id,
            author=reference.id.partition("/")[0],
            commit=None,
            relation="finetune",
            created=described.created and described.created.replace(tzinfo=None),  # UTC, as in the database
            record_key="",
            files=None,
            datasets=frozenset(described.datasets),
        )
        declared = declared_in(self.atlas, described.claims, self.base)
        if not any(delta.any() for delta in parts.deltas.values()):
            edge = Edge(asked.model, None, COPY, 1.0, 0.0, "it changes nothing")
            return Lineage(asked.model, self.base, None, (self._completed(edge, declared),), log.bytes, log.models)
        return self._trace(asked, parts, self._selection(), declared, log)

    def _selection(self, matrices: frozenset[str] | None = None) -> _Selection:
        """What has been read of these matrices; None: the usual ones."""
        if matrices not in self._selections:
            from indexer.deltas.parts import Parts

            parts = Parts(self._published, matrices)
            self._selections[matrices] = _Selection(parts, FactorStore(self.atlas.folder, parts.extents))
        return self._selections[matrices]

    def _read(
        self, one: Candidate, selection: _Selection, log: ReadLog, most_small: int | None = None
    ) -> ModelParts | ModelError:
        found = selection.models.get(one.model_id)
        if found is None:
            try:
                reference = ModelRef.of_atlas(one.model)
                found = selection.parts.read(reference, one.commit, one.relation, one.files, most_small)
            except ModelError as error:
                return error
            if sum(len(each.models) for each in self._selections.values()) >= _MAX_KEPT:
                largest = max(self._selections.values(), key=lambda each: len(each.models))
                largest.models.pop(next(iter(largest.models)))
            selection.models[one.model_id] = found
        log.bytes += found.bytes_read
        log.largest = max(log.largest, found.bytes_read)
        log.models += 1
        return found

    def _base_embeddings(self, selection: _Selection, log: ReadLog) -> ModelParts | None:
        """The base with its embeddings; None, with a note, if it cannot be read."""
        if not selection.has_tried_embeddings:
            try:
                selection.embeddings = selection.parts.read_base()
            except (ModelError, AtlasError) as error:
                if isinstance(error, ModelError) and error.reason in _UNREACHABLE:
                    raise unreadable(self.base, error) from error
                log.notes.append(
                    f"the embeddings of {self.base} cannot be read ({error}); the answer does not use embeddings"
                )
            selection.has_tried_embeddings = True
        if selection.embeddings is not None:
            log.bytes += selection.embeddings.bytes_read
        return selection.embeddings

    def _trace(
        self, asked: Candidate, m: ModelParts, selection: _Selection, declared: DeclaredParents, log: ReadLog,
        without: Collection[int] = (),
    ) -> Lineage:  # fmt: skip
        def read(one: Candidate) -> ModelParts | ModelError:
            """The parts of a candidate, or the error if it is gone. Raises AtlasError if the Hub does not answer."""
            found = self._read(one, selection, log, _MAX_HEADER)
            if isinstance(found, ModelError) and found.reason in _UNREACHABLE:
                raise unreadable(one.model, found) from found
            return found

        store = selection.store
        others = [one for one in self._candidates.values() if one.model_id not in {asked.model_id, *without}]
        if self.dates and asked.created is not None:
            latest = asked.created + SAME_DAY
            others = [one for one in others if one.created is None or one.created <= latest]
        possible = self._near(asked, others)
        candidates = store.load(possible)
        if possible and not candidates:
            raise AtlasError(
                f"Lineage needs the records of {self.base}, and this atlas contains none with factors.",
                f"Build it without `keep_factors=False` (`build({self.base!r})`), or pull one that was pushed "
                "--with-records.",
            )
        if missing := len(possible) - len(candidates):
            log.notes.append(
                f"left out, because their records are missing or contain no factors: {counted(missing, 'model')}"
            )
        base = {str(name): weight.float().numpy() for name, weight in selection.parts.base_weights.items()}
        uses_tokens = candidates and m.tokens is not None and self.embeddings
        tokens = self._base_embeddings(selection, log) if uses_tokens else None
        rules = LineageRules(asked, m, base, tokens, self.thresholds, dates=self.dates)
        search = Search(read, rules, store, candidates, log)
        from threadpoolctl import threadpool_limits

        # With matrices this small, threads of BLAS use three times as much processor time to wait for each other.
        with one_blas_thread(), threadpool_limits(1, user_api="openmp"):
            found = search.run([one for one in candidates if one.model in declared.models]).edges
        if not found:
            evidence, signals = "no model that was read explains its change", {"words": rules.siblings.even_tokens}
            found = (Edge(asked.model, None, TUNED, 1.0, 1.0, evidence, signals=signals),)
        edges = tuple(self._completed(edge, declared) for edge in found)
        return Lineage(
            model=asked.model,
            base=self.base,
            model_id=asked.model_id if asked.model_id >= 0 else None,
            edges=edges,
            bytes_read=log.bytes,
            models_read=log.models,
            notes=(*log.notes, *notes_on_card(self.atlas, asked.model, declared, edges, self.base)),
        )

    def _near(self, asked: Candidate, candidates: list[Candidate]) -> list[Candidate]:
        """All candidates or, if there are very many, those whose published vectors are nearest to the model's."""
        if len(candidates) <= _MAX_CANDIDATES or asked.model_id < 0:
            return candidates[-_MAX_CANDIDATES:] if len(candidates) > 4 * _MAX_CANDIDATES else candidates
        index = self.atlas.index(self.base, "input")
        vector = index.rows([asked.model_id]).row(asked.model_id)
        if vector is None:
            return candidates
        by_id = {one.model_id: one for one in candidates}
        found = index.search(vector, _MAX_CANDIDATES, np.array(sorted(by_id), dtype=np.int64))
        return [by_id[model_id] for model_id, _ in found]

    def _completed(self, edge: Edge, declared: DeclaredParents) -> Edge:
        """The edge with the name of the base, its probability, and whether the card agrees."""
        sure = probability(edge)
        card = declared.agreement(edge.parent, edge.same)
        card = card if sure >= SURE or card == CONFIRMED else UNSURE
        return replace(edge, parent=edge.parent or self.base, probability=sure, card=card)
