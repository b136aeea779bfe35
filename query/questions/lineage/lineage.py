"""Which model a model was made from: factors in the atlas propose candidates, a few megabytes of weights decide.

The method is a matching pursuit on task vectors with exact checks first; docs/evidence/lineage.md has its measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np

from indexer.console.messages import say
from indexer.console.option import Option
from indexer.errors import AtlasError, Call, ModelError, Text, require, unreadable
from indexer.formats import CONVERTED
from indexer.records.conversion import CONVERSION
from indexer.shared_state import one_blas_thread
from indexer.sources.registry import ModelRef, author_of
from indexer.vectors.centre import BY_OUTPUT, FULL
from query.contract.options import Base, Model, OptionalModel
from query.contract.registry import Invocation, Tool, question
from query.models.conversions import is_of_conversion, read_conversion, stored_conversion
from query.models.lookup import (
    describe_unindexed,
    identify_model,
    indexed_model,
    known_bases_of,
    names_base,
    read_described,
)
from query.models.resolved import READERS, ResolvedModel, is_unrelated, no_record, not_there, thresholds, unknown_model
from query.models.sampled import SAMPLE
from query.questions.lineage.candidates import (
    BY_CONFIG,
    SAME_DAY,
    Candidate,
    FactorStore,
    read_candidates,
    stated_model,
)
from query.questions.lineage.conversions import lineage_of_conversion
from query.questions.lineage.evidence import cosine_with, energy
from query.questions.lineage.result import (
    CONFIRMED,
    CONTINUED,
    CONTRADICTED,
    COPY,
    OF_ADAPTER,
    STATED,
    TUNED,
    UNRELATED,
    UNSURE,
    UNTRAINED_ADAPTER,
    Edge,
    Lineage,
    Lineages,
    edges_around,
    tree_figure,
)
from query.questions.lineage.rules import LineageRules
from query.questions.lineage.search import ReadLog, Search
from query.questions.lineage.stored import (
    DeclaredParents,
    declared_by,
    declared_in,
    notes_on_card,
    stored_edges,
    stored_lineage,
)
from query.questions.lineage.stored import store as keep
from query.questions.lineage.thresholds import SURE, Thresholds, probability
from query.shared.wording import counted

if TYPE_CHECKING:
    from indexer.deltas.parts import Parts
    from indexer.deltas.single import Described
    from indexer.records.parts import Floats, ModelParts
    from indexer.records.record import Record
    from query.contract.results import ThemeName
    from query.models.reader import AtlasReader, IndexedModel

# Failures of the Hub, not of the model: an answer without the model's weights would be wrong.
_UNREACHABLE = frozenset({"network", "timeout", "rate_limited", "server_error"})
# After this many models in a row for which the Hub did not answer, no more are read.
_MAX_FAILURES = 5

# Reason why an indexed model that was added from a folder cannot be read.
_FOLDER = "folder"

# Models whose parts are kept in memory for later questions: 3 MB each.
_MAX_KEPT = 400
# Bytes that the config.json, the list of shards and the header of a candidate may have each. Otherwise a few candidates
# with headers of 16 MB would use up the budget of every answer.
_MAX_HEADER = 1 << 20
# With more candidates than this only those near the asked model by their vectors are considered.
_MAX_CANDIDATES = 2000
# Adapters on adapters on …: as deep as a build follows them.
_DEEPEST = 4
# If the cosine of the parts with the base's is this near to the threshold of relatedness, that of all matrices decides.
_UNCLEAR_COSINE = 0.2


@dataclass
class _Selection:
    """Some matrices of one base, and the models of which they were read.

    Attributes:
        parts: reads parts of these matrices.
        store: the stored factors of the candidates.
        models: the models read so far, by id.
        embeddings: the base with its token embeddings; None if they cannot be read.
    """

    parts: Parts
    store: FactorStore
    models: dict[int, ModelParts] = field(default_factory=dict)
    embeddings: ModelParts | None = None
    has_tried_embeddings: bool = False


def _command(
    call: Invocation,
    model: OptionalModel = None,
    *,
    every: Annotated[
        bool, Option("Ask about every indexed model of the base, and store the edges.", flag="--all")
    ] = False,
    base: str | None,
    fresh: bool,
    dates: bool,
    expect: str | None,
    out: Annotated[str | None, Option("Also draw the family tree: .svg, .png or .pdf.", metavar="FILE")] = None,
) -> None:
    if (model is None) != every:
        call.refuse("Name a MODEL, or use --all without one.")
    if expect is not None and model is None:
        call.refuse("--expect can only be used with a MODEL.")
    file = call.picture(out)
    with call.opened() as atlas:
        if model is None:
            if dates:
                call.asked(atlas, lambda reader: reader.require_writable())  # before anything is read
            answers = atlas.lineages(base, dates=dates)
            call.show(answers)
            # After printing: if another process is writing, the answers are not lost.
            if dates:
                call.asked(atlas, keep, answers.base, tuple(answers))
            if file is not None:
                edges = call.asked(atlas, stored_edges, answers.base) if dates else answers.edges
                _draw_tree(file, edges, answers.base, call.theme)
            if answers.unanswered:
                call.fail()
            return
        answer = atlas.lineage(model, base, dates=dates, fresh=fresh, expect=expect)
        call.show(answer)
        if call.output == "table" and answer.answered_at is None:
            say(f"read {answer.bytes_read / 1e6:.1f} MB of the weights of {counted(answer.models_read, 'model')}")
        if file is not None:
            edges_of_base = call.asked(atlas, stored_edges, answer.base)
            edges = [*(edge for edge in edges_of_base if edge.child != answer.model), *answer.edges]
            _draw_tree(file, edges_around(edges, answer.model), answer.base, call.theme, answer.model)
    if not answer.is_as_expected:
        say(f"{answer.model} is not made from {answer.expected}")
        call.fail()


def _draw_tree(file: Path, edges: Iterable[Edge], base: str, theme: ThemeName | None, model: str | None = None) -> None:
    from query.contract.figures import draw, write_output

    write_output(file, draw(tree_figure(list(edges), base, theme or "light", model), file.suffix.lower()))
    say(f"the tree is in {file}")


Dates = Annotated[
    bool,
    Option(
        "Do not use creation dates; the edges are not stored.",
        agents="Let upload dates decide which model came first.",
    ),
]


@question(
    example="lineage --all --base roberta-base --out tree.svg",
    agents=Tool(
        "Find which model a model was made from (continued, merged, LoRA merged, copied, recast), by its weights.",
        ("model", "dates", "fresh", "base"),
    ),
    command=_command,
)
def lineage(
    atlas: AtlasReader,
    model: Model,
    base: Base = None,
    *,
    fresh: Annotated[
        bool,
        Option(
            "Read the weights even if there is a stored answer; --all always does.",
            agents="Read the weights even if the atlas has a stored answer.",
        ),
    ] = False,
    dates: Dates = True,
    expect: Annotated[
        str | None,
        Option(
            "Exit with status 1 if MODEL is not made from this base, or from this model of the atlas.",
            metavar="BASE",
            completes="base",
        ),
    ] = None,
    thresholds: Thresholds | None = None,
) -> Lineage:
    """Find from the weights which model ``model`` was made from, and whether its card agrees.

    ``model`` is an indexed id, any other Hub id, or a local checkpoint folder. For an indexed model the stored answer
    is printed with its date, if there is one; otherwise at most 30 MB of weights are read.

    Args:
        atlas: the atlas to search in.
        model: an indexed id, any other Hub id, or a local folder.
        base: the base, if the model has several.
        fresh: read the weights even if the atlas has a stored answer.
        dates: whether creation dates may decide which model was first. Without them the weights are always read, and
            an order that they do not show is "unknown".
        expect: the base, or the model of the atlas, that it should be made from; see ``Lineage.is_as_expected``.
        thresholds: other thresholds than the default.

    Raises:
        AtlasError: the atlas contains no factors, the model cannot be read, or the atlas does not have ``expect``.
    """
    model = str(model)
    expected = None if expect is None else _expected(atlas, expect)
    reference = ModelRef.parse(model)
    entry = _indexed_entry(atlas, reference, base, expected)
    if entry is None and base is None and expected is not None:
        base = expected.base
    answer = _lineage(atlas, model, reference, entry, base, dates, fresh, thresholds)
    return answer if expected is None else replace(answer, expected=expected.name)


def _lineage(
    atlas: AtlasReader,
    model: str,
    reference: ModelRef,
    entry: IndexedModel | None,
    base: str | None,
    dates: bool,
    fresh: bool,
    thresholds: Thresholds | None,
) -> Lineage:
    """The lineage of an indexed model by its stored answer or its weights, of any other by its weights."""
    if entry is not None and entry.reason == CONVERSION:
        stored_answer = None if fresh else stored_conversion(atlas, entry.model_id)
        full_reference = replace(reference, id=entry.model)
        return lineage_of_conversion(stored_answer or read_conversion(atlas, full_reference, entry.base, entry))
    if entry is not None and entry.status == "skipped":
        raise no_record(entry, model)
    if entry is not None and entry.status == "indexed":
        stored = stored_lineage(atlas, entry.model_id) if dates and not fresh and thresholds is None else None
        if stored is not None:
            return stored
        return Tracer(atlas, entry.base, dates=dates, thresholds=thresholds).of_indexed(entry.model_id)
    if entry is not None:  # it could not be read when it was indexed; perhaps only the end of its id was given
        reference, base = replace(reference, id=entry.model), base or entry.base
    if base is None and len(atlas.bases()) > 1 and reference.id.endswith(CONVERTED):  # it names no base
        base = identify_model(atlas, reference, known_bases_of(atlas)).base
    try:
        described, published = describe_unindexed(atlas, reference, base)
        return Tracer(atlas, published.base, dates=dates, thresholds=thresholds).of_described(described)
    except AtlasError as error:
        if not is_of_conversion(error):
            raise
    return lineage_of_conversion(read_conversion(atlas, reference, base))


class _Expected(NamedTuple):
    """The expected parent of a model: a base of the atlas, or one of its models, with its base."""

    name: str
    base: str


def _expected(atlas: AtlasReader, name: str) -> _Expected:
    try:
        base = atlas.base_named(name)
    except AtlasError:
        entry = atlas.find(ModelRef.parse(name), None)
        if entry is None:
            raise
        return _Expected(entry.model, entry.base)
    return _Expected(base, base)


def _indexed_entry(
    atlas: AtlasReader, reference: ModelRef, base: str | None, expected: _Expected | None
) -> IndexedModel | None:
    """The indexed model; if no base is given, preferably that of the expected base."""
    if not reference.is_name:
        return None
    if base is None and expected is not None:
        with suppress(AtlasError):  # it has another base
            return atlas.find(reference, expected.base)
    return atlas.find(reference, base)


@question()
def lineages(atlas: AtlasReader, base: Base = None, *, dates: Dates = True, store: bool = False) -> Lineages:
    """``lineage`` for every indexed model of a base, oldest first, from its weights.

    A model that cannot be read has a ``failure``, and its stored answer if there is one. If the Hub does not answer for
    five models in a row, the others are not read.

    Args:
        atlas: the atlas to search in.
        base: the base, if the atlas has several.
        dates: whether creation dates may decide which model was first.
        store: store the answers in the atlas (tables and views of lineage), except those of unreadable models.

    Raises:
        AtlasError: the atlas has no factors, or another process is writing to it; or ``store`` with ``dates=False``,
            because later questions use stored answers and may use dates.
    """
    if store and not dates:
        raise AtlasError(
            "Only answers that may use dates can be stored.", Text("Leave out `store` or ", Call(dates=False), ".")
        )
    if store:
        atlas.require_writable()
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
        stored_answer = stored_lineage(atlas, model_id)
        if stored_answer is None:
            (row,) = atlas.rows("SELECT model FROM fine_tunes WHERE model_id = ?", [model_id])
            stored_answer = Lineage(row["model"], tracer.base, model_id, (), 0, 0)
        answers.append(replace(stored_answer, notes=(), failure=failure))
    if store:
        keep(atlas, tracer.base, answers)
    return Lineages(tracer.base, tuple(answers))


def _changed(record: Record) -> set[str]:
    """The names of the deltas that are not zero."""
    return {str(delta.key) for delta in record.deltas if delta.norm > 0}


class Tracer:
    """Finds the parents of models of one base, one after another; weights that were read are kept for the next model.

    Args:
        atlas: the atlas to search in.
        base: the base of the models.
        dates: whether creation dates may decide which model was first.
        embeddings: whether token embeddings may decide. Without them only the block matrices do, as for models
            without token embeddings.
        thresholds: other thresholds than the default.
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
        atlas.require_base_elsewhere()
        require("Lineage, which reads parts of weights,", *READERS)
        self.atlas, self.base, self.dates, self.embeddings = atlas, base, dates, embeddings
        self.thresholds = thresholds or Thresholds()
        self._published = atlas.published_base(base)
        self._candidates = {candidate.model_id: candidate for candidate in read_candidates(atlas, base)}
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
        target = self._candidates.get(model_id)
        if target is None:  # a copy of the base, or weights of another origin: nothing needs to be read
            return self._without_change(indexed_model(self.atlas, model_id), declared, ReadLog())
        rows = self.atlas.rows("SELECT stack, layer, family FROM deltas WHERE model_id = ? AND norm > 0", [model_id])
        selection = self._selection_of(
            {(f"{row['stack']}." if row["stack"] else "") + f"{row['layer']}.{row['family']}" for row in rows}
        )
        log = ReadLog()
        parts = self._read(target, selection, log)
        if isinstance(parts, ModelError):
            if parts.reason == _FOLDER:
                raise AtlasError(f"{target.model} {parts.detail}.", "Ask about the folder itself.") from parts
            raise unreadable(target.model, parts) from parts
        return self._trace(target, parts, selection, declared, log, lambda: self._record_of(target), without)

    def of_described(self, described: Described) -> Lineage:
        """The lineage of a model that is not in the atlas, read for this answer and not stored."""
        reference, selection = described.reference, self._selection()
        log = ReadLog(models=1)
        parts = self._read_described(described, selection, log)
        declared = declared_in(self.atlas, described.claims, self.base)
        resolved = self._resolved(described, parts, log)
        if resolved.is_copy or resolved.is_unrelated:
            return self._without_change(resolved, declared, log)
        if resolved.record is not None:
            usual, selection = selection, self._selection_of(_changed(resolved.record))
            parts = parts if selection is usual else self._read_described(described, selection, log)
        target = Candidate(
            model_id=-1,
            model=reference.id,
            author=reference.id.partition("/")[0],
            commit=None,
            relation="finetune",
            created=described.created and described.created.replace(tzinfo=None),  # UTC, as in the database
            record_key="",
            files=None,
            datasets=frozenset(described.datasets),
            stated=None if resolved.record is None else resolved.record.adapter_base,
        )
        parts = self._on_parent(target, parts, selection, log)

        def record() -> Record:
            return resolved.record or read_described(self.atlas, described, self._published)

        return self._trace(target, parts, selection, declared, log, record)

    def _record_of(self, candidate: Candidate) -> Record:
        """The stored record of a model. Raises AtlasError if it is missing or damaged."""
        from indexer.records.store import RecordStore

        return RecordStore(self.atlas.folder).read(candidate.record_key)

    def _read_described(self, described: Described, selection: _Selection, log: ReadLog) -> ModelParts:
        reference = described.reference
        try:
            parts = selection.parts.read_described(described)
        except ModelError as error:
            if reference.is_name and error.reason == "not_found":
                raise unknown_model(self.atlas, reference.id, not_there(reference.source, reference.id)) from error
            raise unreadable(reference.id, error) from error
        log.bytes += parts.bytes_read
        log.largest = max(log.largest, parts.bytes_read)
        return parts

    def _resolved(self, described: Described, parts: ModelParts, log: ReadLog) -> ResolvedModel:
        """Whether a model that is not indexed is a copy of the base or unrelated to it, as a build would flag it.

        The parts that were read decide if they are clear. Otherwise the model is read as a build reads it: if its
        cosine with the base is near the threshold, if less than half of the parts changed, and if it is an adapter that
        does not name the base.
        """
        model, verdict, record = described.reference.id, "", None
        cosine = None if parts.is_adapter else cosine_with(parts.weights, self._base_parts(self._selection()))
        group = BY_OUTPUT if parts.is_adapter else FULL
        is_unclear = sum(bool(delta.any()) for delta in parts.deltas.values()) * 2 < len(parts.deltas)
        if cosine is None:
            is_unclear |= not names_base(described, self.base)
        else:
            is_unclear |= abs(cosine - thresholds(self.atlas, self.base)["unrelated_below"]) < _UNCLEAR_COSINE
        if is_unclear:
            record = read_described(self.atlas, described, self._published)
            log.bytes += record.bytes_read
            cosine, group = record.base_cosine, record.vector_group
            if (stated := record.adapter_base) is not None:
                verdict = stated.verdict
                log.notes += [f"it names the base {stated.named}: {stated.why}"] if verdict == "unknown" else []
        is_copy = record is not None and record.is_copy
        return ResolvedModel(
            name=model,
            base=self.base,
            author=author_of(model),
            model_id=None,
            is_copy=is_copy,
            group=group,
            is_unrelated=not is_copy and is_unrelated(self.atlas, self.base, cosine, verdict),
            base_cosine=cosine,
            read=SAMPLE,
            copy_evidence=None if record is None else record.copy_evidence(),
            record=record,
        )

    def _without_change(self, resolved: ResolvedModel, declared: DeclaredParents, log: ReadLog) -> Lineage:
        """The answer for a copy of the base, and for a model that is unrelated to it: no other model is compared."""
        if resolved.is_copy:
            kind = UNTRAINED_ADAPTER if resolved.is_adapter else COPY
            edge = self._completed(Edge(resolved.name, None, kind, 1.0, 0.0, resolved.evidence), declared)
        else:
            edge = Edge(resolved.name, None, UNRELATED, 0.0, 1.0, resolved.evidence, card=declared.of_unrelated)
            edge = replace(edge, probability=probability(edge))
        notes = (*log.notes, *notes_on_card(self.atlas, resolved.name, declared, (edge,), self.base))
        return Lineage(resolved.name, self.base, resolved.model_id, (edge,), log.bytes, log.models, notes)

    @staticmethod
    def _base_parts(selection: _Selection) -> dict[str, Floats]:
        """The base's part of each matrix that is read, by the name of its delta."""
        return {str(name): weight.float().numpy() for name, weight in selection.parts.base_weights.items()}

    def _selection_of(self, changed: Collection[str]) -> _Selection:
        """The usual matrices; the ``changed`` matrices instead if less than half of the usual ones changed."""
        selection = self._selection()
        usual = selection.parts.names
        is_usual = not changed or sum(name in changed for name in usual) * 2 >= len(usual)
        return selection if is_usual else self._selection(frozenset(changed))

    def _selection(self, matrices: frozenset[str] | None = None) -> _Selection:
        """The selection of these matrices; None: the usual ones."""
        if matrices not in self._selections:
            from indexer.deltas.parts import Parts

            parts = Parts(self._published, matrices)
            self._selections[matrices] = _Selection(parts, FactorStore(self.atlas.folder, parts.extents))
        return self._selections[matrices]

    def _read(
        self, candidate: Candidate, selection: _Selection, log: ReadLog, most_small: int | None = None, depth: int = 0
    ) -> ModelParts | ModelError:
        """The parts of a model of the atlas; ``depth``: how many adapters lie between it and the asked model."""
        parts = selection.models.get(candidate.model_id)
        is_new = parts is None
        if parts is None:
            try:
                reference = ModelRef.of_atlas(candidate.model)
                parts = selection.parts.read(
                    reference, candidate.commit, candidate.relation, candidate.files, most_small
                )
            except ModelError as error:
                return error
            if sum(len(kept_selection.models) for kept_selection in self._selections.values()) >= _MAX_KEPT:
                largest = max(self._selections.values(), key=lambda kept_selection: len(kept_selection.models))
                largest.models.pop(next(iter(largest.models)))
            selection.models[candidate.model_id] = parts
        log.bytes += parts.bytes_read
        log.largest = max(log.largest, parts.bytes_read)
        log.models += 1
        if is_new:
            parts = selection.models[candidate.model_id] = self._on_parent(candidate, parts, selection, log, depth)
        return parts

    def _on_parent(
        self, candidate: Candidate, parts: ModelParts, selection: _Selection, log: ReadLog, depth: int = 0
    ) -> ModelParts:
        """The parts of an adapter that was trained on another model of the atlas: the sum of both changes, as built."""
        parent = self._candidate_named(candidate.below)
        if parent is None or not parts.is_adapter or parent.model_id == candidate.model_id or depth >= _DEEPEST:
            return parts
        parent_parts = self._read(parent, selection, log, depth=depth + 1)
        return parts if isinstance(parent_parts, ModelError) else parts.on(parent_parts)

    def _candidate_named(self, model: str | None) -> Candidate | None:
        """The candidate with this id."""
        return (
            None
            if model is None
            else next((candidate for candidate in self._candidates.values() if candidate.model == model), None)
        )

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
        self, target: Candidate, m: ModelParts, selection: _Selection, declared: DeclaredParents, log: ReadLog,
        own_record: Callable[[], Record], without: Collection[int] = (),
    ) -> Lineage:  # fmt: skip
        def read(candidate: Candidate) -> ModelParts | ModelError:
            """The parts of a candidate, or the error if it is gone. Raises AtlasError if the Hub does not answer."""
            parts = self._read(candidate, selection, log, _MAX_HEADER)
            if isinstance(parts, ModelError) and parts.reason in _UNREACHABLE:
                raise unreadable(candidate.model, parts) from parts
            return parts

        def is_same(candidate: Candidate) -> bool:
            """Whether the stored record of a candidate is a duplicate of the asked model's."""
            from indexer.records.difference import difference_of

            within = thresholds(self.atlas, self.base)["duplicate_within"]
            with suppress(AtlasError, ModelError):
                return difference_of(own_record(), self._record_of(candidate)) <= within
            return False

        store = selection.store
        earlier = [
            candidate
            for candidate in self._candidates.values()
            if candidate.model_id not in {target.model_id, *without}
        ]
        if self.dates and target.created is not None:
            latest = target.created + SAME_DAY
            earlier = [candidate for candidate in earlier if candidate.created is None or candidate.created <= latest]
        nearest_candidates = self._near(target, earlier)
        candidates = store.load(nearest_candidates)
        if nearest_candidates and not candidates:
            raise AtlasError(
                f"Lineage needs the records of {self.base}, and this atlas contains none with factors.",
                Text(
                    "Build it without ",
                    Call(keep_factors=False),
                    " (",
                    Call("build", self.base),
                    "), or pull one that was pushed --with-records.",
                ),
            )
        if missing := len(nearest_candidates) - len(candidates):
            log.notes.append(
                f"left out, because their records are missing or contain no factors: {counted(missing, 'model')}"
            )
        base = self._base_parts(selection)
        uses_tokens = candidates and m.tokens is not None and self.embeddings
        tokens = self._base_embeddings(selection, log) if uses_tokens else None
        rules = LineageRules(target, m, base, tokens, self.thresholds, dates=self.dates)
        # Adapters on one fine-tune all contain its change, so their records do not show whose own changes are similar.
        siblings = [
            candidate for candidate in candidates if target.below is not None and candidate.below == target.below
        ]
        search = Search(read, rules, store, candidates, log, is_same)
        from threadpoolctl import threadpool_limits

        # With matrices this small, threads of BLAS use three times as much processor time to wait for each other.
        with one_blas_thread(), threadpool_limits(1, user_api="openmp"):
            declared_parents = [
                candidate
                for candidate in candidates
                if candidate.model in declared.models and candidate.model != target.below
            ]
            edges = search.run([*declared_parents, *siblings[-self.thresholds.max_models :]]).edges
        stated = stated_model(target, self.base) if m.is_adapter else None
        if stated is not None and edges:
            log.notes.append(f"{BY_CONFIG}, it was trained on {stated}")
        elif stated is not None:
            edges = (self._stated_edge(target, m, stated),)
        if not edges:
            evidence = "no model that was read explains its change"
            signals: dict[str, float] = {"words": rules.siblings.even_tokens}
            if m.is_adapter:
                signals[OF_ADAPTER] = 1.0
            edges = (Edge(target.model, None, TUNED, 1.0, 1.0, evidence, signals=signals),)
        others_declared = declared.without(stated)  # naming the stated model does not contradict other edges
        edges = tuple(self._completed(edge, declared if STATED in edge.signals else others_declared) for edge in edges)
        return Lineage(
            model=target.model,
            base=self.base,
            model_id=target.model_id if target.model_id >= 0 else None,
            edges=edges,
            bytes_read=log.bytes,
            models_read=log.models,
            notes=(*log.notes, *notes_on_card(self.atlas, target.model, others_declared, edges, self.base)),
        )

    def _stated_edge(self, target: Candidate, m: ModelParts, stated: str) -> Edge:
        """The step from the model that an adapter's own file names as its base, which is not the base of the atlas.

        An adapter contains only its own change, so its weights neither confirm nor contradict such a name.
        """
        parent = self._candidate_named(stated)
        own_energy, total = energy(m.own), energy(m.deltas)
        return Edge(
            target.model, stated, CONTINUED, 1.0, own_energy / total if total else 1.0,
            f"{BY_CONFIG}; an adapter's own weights cannot show what it was trained on",
            parent_id=None if parent is None else parent.model_id, is_proven=False, signals={STATED: 1.0},
        )  # fmt: skip

    def _near(self, target: Candidate, candidates: list[Candidate]) -> list[Candidate]:
        """All candidates or, if there are very many, those whose published vectors are nearest to the model's."""
        if len(candidates) <= _MAX_CANDIDATES or target.model_id < 0:
            return candidates[-_MAX_CANDIDATES:] if len(candidates) > 4 * _MAX_CANDIDATES else candidates
        index = self.atlas.index(self.base, "input")
        target_id = np.array([target.model_id], dtype=np.int64)
        if not np.isin(target_id, index.ids).all():
            return candidates
        by_id = {candidate.model_id: candidate for candidate in candidates}
        neighbours = index.search(index.table(target_id), _MAX_CANDIDATES, np.array(sorted(by_id), dtype=np.int64))
        return [by_id[model_id] for model_id, _ in neighbours]

    def _completed(self, edge: Edge, declared: DeclaredParents) -> Edge:
        """The edge with the name of the base, its probability, and whether the card agrees."""
        edge_probability = probability(edge)
        card = declared.agreement(edge.parent, edge.same)
        is_sure = edge_probability >= SURE and edge.direction == "known"
        card = card if is_sure or card == CONFIRMED else UNSURE
        if card == CONTRADICTED and edge.signals.keys() & {OF_ADAPTER, STATED}:
            # The card may name the model that the adapter was trained on, which its factors do not show.
            card = UNSURE
        return replace(edge, parent=edge.parent or self.base, probability=edge_probability, card=card)
