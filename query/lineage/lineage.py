"""Which model a model was made from: the atlas's factors propose, a few megabytes of weights decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.errors import AtlasError, ModelError, require, unreadable
from indexer.names import ModelRef
from query.lineage.answer import Lineage, Row
from query.lineage.candidates import (
    MOST_WEIGHED,
    Candidate,
    FactorStore,
    earlier,
    no_factors,
    read_candidates,
)
from query.lineage.card import (
    CONFIRMED,
    CONTRADICTED,
    NOT_DECLARED,
    UNSURE,
    Declared,
    against_card,
    declared_by,
    declared_in,
)
from query.lineage.decide import Judge
from query.lineage.links import COPY, TUNED, UNRELATED, Link
from query.lineage.probability import SURE, exact, probability
from query.lineage.search import Search, Spending
from query.lineage.stored import stored_lineage
from query.lineage.thresholds import Limits
from query.lookup import READERS, describe_unindexed, unknown_model

if TYPE_CHECKING:
    from indexer.deltas.parts import Parts
    from indexer.records.parts import ModelParts
    from query.reader import AtlasReader

# Models whose parts are kept in memory while many are asked about: 3 MB each.
HELD = 400
# Failures that say nothing of the model: the Hub did not answer, and an answer made without it would be wrong.
UNREACHABLE = frozenset({"network", "timeout", "rate_limited", "server_error"})
# Of a candidate: its config.json, its list of shards and the headers of its files have at most so many bytes each.
MOST_SMALL = 1 << 20
# After so many models in a row for which the Hub did not answer, no more are asked.
MOST_FAILURES = 5


def lineage(
    atlas: AtlasReader,
    model: str | Path,
    base: str | None = None,
    *,
    dates: bool = True,
    fresh: bool = False,
    limits: Limits | None = None,
) -> Lineage:
    """The parent or parents of ``model``: an indexed id, any other Hub id, or a local folder.

    An answer that the atlas keeps is given as it is kept, with its date. ``fresh``: read the weights all the same.
    ``dates``: whether creation dates may decide who was first; without them an order that the weights do not tell is
    "unknown", and the weights are always read. Raises AtlasError where the atlas holds no factors, or the model cannot
    be read.
    """
    model = str(model)
    reference = ModelRef.parse(model)
    known = atlas.find(reference, base) if reference.folder is None else None
    if known is not None and known.status == "skipped":
        raise AtlasError(
            f"{known.model} has no record: {known.reason}: {known.detail}.", f"See: `atlas.show({model!r})`"
        )
    if known is not None and known.status == "indexed":
        kept = stored_lineage(atlas, known.model_id) if dates and not fresh and limits is None else None
        if kept is not None:
            return kept
        tracer = Tracer(atlas, known.base, dates=dates, limits=limits)
        return tracer.of_indexed(known.model_id)
    described, published = describe_unindexed(atlas, reference, base or (known.base if known else None))
    return Tracer(atlas, published.base, dates=dates, limits=limits).of_described(described)


def every_lineage(
    atlas: AtlasReader, base: str | None = None, *, dates: bool = True, limits: Limits | None = None
) -> Iterator[Lineage]:
    """The lineage of every indexed model of a base, oldest first, from its weights.

    A model that cannot be read has a ``failure``, and what the atlas keeps of it instead. After MOST_FAILURES models in
    a row for which the Hub did not answer, no other is asked.
    """
    tracer = Tracer(atlas, atlas.base_named(base), dates=dates, limits=limits)
    in_a_row, failure = 0, ""
    for model_id in tracer.indexed():
        if in_a_row < MOST_FAILURES:
            try:
                answer = tracer.of_indexed(model_id)
                in_a_row = 0
                yield answer
                continue
            except AtlasError as error:
                cause = error.__cause__
                if isinstance(cause, ModelError) and cause.reason in UNREACHABLE:
                    in_a_row, failure = in_a_row + 1, f"the Hub does not answer: {cause.detail}"
                else:
                    in_a_row, failure = 0, error.message
        kept = stored_lineage(atlas, model_id)
        answer = kept or Lineage(tracer.name_of(model_id), tracer.base, model_id, (), 0, 0)
        yield replace(answer, notes=(), failure=failure)


class Tracer:
    """Asks after models of one base, one after another; what it has read of one serves for the next.

    ``embeddings``: whether embeddings of tokens may decide; without them blocks alone do, as where there are none.
    """

    def __init__(
        self,
        atlas: AtlasReader,
        base: str,
        *,
        dates: bool = True,
        embeddings: bool = True,
        limits: Limits | None = None,
    ) -> None:
        require("Lineage, which reads parts of weights,", *READERS)
        from threadpoolctl import ThreadpoolController

        from indexer.deltas.parts import Parts

        self.embeddings = embeddings
        self.atlas, self.base, self.dates, self.limits = atlas, base, dates, limits or Limits()
        self._published = atlas.published_base(base)
        self._candidates = {one.model_id: one for one in read_candidates(atlas, base)}
        self._parts: dict[frozenset[str] | None, Parts] = {None: Parts(self._published)}
        self._stores: dict[frozenset[str] | None, FactorStore] = {}
        self._tokens: dict[frozenset[str] | None, ModelParts | None] = {}
        self._held: dict[tuple[int, frozenset[str] | None], ModelParts] = {}
        # Of matrices this small, threads of BLAS spend three times as much processor on waiting for one another.
        self._blas = ThreadpoolController()

    def indexed(self) -> list[int]:
        """Ids of all indexed models of the base, oldest first; copies of the base are among them."""
        rows = self.atlas.rows(
            "SELECT model_id FROM models WHERE base = ? ORDER BY created NULLS LAST, model_id", [self.base]
        )
        return [row["model_id"] for row in rows]

    def name_of(self, model_id: int) -> str:
        """Its id on the Hub."""
        return str(self.atlas.rows("SELECT model FROM fine_tunes WHERE model_id = ?", [model_id])[0]["model"])

    def of_indexed(self, model_id: int) -> Lineage:
        """The lineage of a model of the atlas. Raises AtlasError where its weights cannot be read."""
        declared = declared_by(self.atlas, model_id, self.base)
        asked = self._candidates.get(model_id)
        if asked is None:
            return self._without_change(model_id, declared)
        key = self._changed(model_id)
        read = Spending()
        parts = self._read(asked, key, read)
        if isinstance(parts, ModelError):
            raise unreadable(asked.model, parts) from parts
        return self._trace(asked, parts, key, declared, read)

    def of_described(self, described: Any) -> Lineage:
        """The lineage of a model that is not in the atlas, read for this answer and not stored."""
        reference = described.reference
        read = Spending()
        try:
            parts = self._parts[None].read_described(described)
        except ModelError as error:
            if reference.folder is None and error.reason == "not_found":
                raise unknown_model(self.atlas, reference.id, "The Hub does not know it either.") from error
            raise unreadable(reference.id, error) from error
        read.spent, read.largest, read.models = parts.bytes_read, parts.bytes_read, 1
        asked = Candidate(
            model_id=-1,
            model=reference.id,
            author=reference.id.partition("/")[0],
            commit=None,
            relation="finetune",
            created=described.created,
            licence=None,
            record_key="",
            files=None,
            group=None,
            datasets=frozenset(described.datasets),
        )
        declared = declared_in(self.atlas, described.claims, self.base)
        if not any(delta.any() for delta in parts.deltas.values()):
            row = Row(self.base, "copy", 1.0, 0.0, _base_card(declared), None, "known", "it changes nothing",
                      probability=exact())  # fmt: skip
            return Lineage(asked.model, self.base, None, (row,), read.spent, 1)
        return self._trace(asked, parts, None, declared, read)

    def _without_change(self, model_id: int, declared: Declared) -> Lineage:
        """A copy of the base, or weights of another origin: nothing is to be read."""
        flags = self.atlas.rows("SELECT model, is_copy FROM models WHERE model_id = ?", [model_id])[0]
        if flags["is_copy"]:
            parent, kind, coefficient, card = self.base, COPY, 1.0, _base_card(declared)
            because = "all its deltas are zero"
        else:
            parent, kind, coefficient, card = None, UNRELATED, 0.0, CONTRADICTED
            because = "its weights are not the base's"
        row = Row(parent, kind, coefficient, 1 - coefficient, card, None, "known", because, probability=exact())
        return Lineage(flags["model"], self.base, model_id, (row,), 0, 0)

    def _changed(self, model_id: int) -> frozenset[str] | None:
        """Names of the deltas that the model changed, where the usual parts would miss them; None where those do."""
        rows = self.atlas.rows("SELECT stack, layer, family, norm > 0 AS is_changed FROM deltas WHERE model_id = ?",
                               [model_id])  # fmt: skip
        names = {
            (f"{row['stack']}." if row["stack"] else "") + f"{row['layer']}.{row['family']}"
            for row in rows
            if row["is_changed"]
        }
        usual = set(self._parts[None].names)
        return None if len(usual & names) * 2 >= len(usual) or not names else frozenset(names)

    def _parts_for(self, key: frozenset[str] | None) -> Parts:
        if key not in self._parts:
            from indexer.deltas.parts import Parts

            self._parts[key] = Parts(self._published, key)
        return self._parts[key]

    def _store_for(self, key: frozenset[str] | None) -> FactorStore:
        if key not in self._stores:
            self._stores[key] = FactorStore(self.atlas.folder, self._parts_for(key).extents)
        return self._stores[key]

    def _read(
        self, one: Candidate, key: frozenset[str] | None, read: Spending, most_small: int | None = None
    ) -> ModelParts | ModelError:
        held = self._held.get((one.model_id, key))
        if held is None:
            try:
                reference = ModelRef.of_atlas(one.model)
                held = self._parts_for(key).read(reference, one.commit, one.relation, one.files, most_small)
            except ModelError as error:
                return error
            if len(self._held) >= HELD:
                self._held.pop(next(iter(self._held)))
            self._held[one.model_id, key] = held
        read.spent += held.bytes_read
        read.largest = max(read.largest, held.bytes_read)
        read.models += 1
        return held

    def _candidate(self, one: Candidate, key: frozenset[str] | None, read: Spending) -> ModelParts | ModelError:
        """The parts of a candidate, or why it has none any more. Raises AtlasError where the Hub does not answer."""
        # Else a few candidates with headers of 16 MB would take what may be read for every answer.
        found = self._read(one, key, read, MOST_SMALL)
        if isinstance(found, ModelError) and found.reason in UNREACHABLE:
            raise unreadable(one.model, found) from found
        return found

    def _base_tokens(self, key: frozenset[str] | None, read: Spending) -> ModelParts | None:
        """The base with its embeddings; None, with a note, where it cannot be read."""
        if key not in self._tokens:
            try:
                self._tokens[key] = self._parts_for(key).read_base()
            except (ModelError, AtlasError) as error:
                if isinstance(error, ModelError) and error.reason in UNREACHABLE:
                    raise unreadable(self.base, error) from error
                read.notes.append(f"the embeddings of {self.base} cannot be read ({error}): judged without them")
                self._tokens[key] = None
        found = self._tokens[key]
        if found is not None:
            read.spent += found.bytes_read
        return found

    def _trace(
        self, asked: Candidate, m: ModelParts, key: frozenset[str] | None, declared: Declared, read: Spending
    ) -> Lineage:
        store = self._store_for(key)
        others = [one for one in self._candidates.values() if one.model_id != asked.model_id]
        possible = self._near(asked, earlier(others, asked.created, dates=self.dates))
        held = store.hold(possible)
        if possible and not held:
            raise no_factors(self.base)
        if store.missing:
            read.notes.append(
                f"left out, as their records are not here or hold no factors: {len(store.missing)} models"
            )
        base = {str(name): weight.float().numpy() for name, weight in self._parts_for(key).base_weights.items()}
        is_told = held and m.tokens is not None and self.embeddings
        tokens = self._base_tokens(key, read) if is_told else None
        judge = Judge(asked, m, base, tokens, self.limits, dates=self.dates)
        search = Search(lambda one: self._candidate(one, key, read), judge, store, held, read)
        with self._blas.limit(limits=1):
            verdict = search.run([one for one in held if one.model in declared.models])
        links = verdict.links or (_from_base(m),)
        rows = tuple(self._row(link, declared, links) for link in links)
        notes = (*read.notes, *against_card(self.atlas, asked.model, declared, _names(rows), self.base))
        return Lineage(
            model=asked.model,
            base=self.base,
            model_id=asked.model_id if asked.model_id >= 0 else None,
            rows=rows,
            bytes_read=read.spent,
            models_read=read.models,
            notes=notes,
        )

    def _near(self, asked: Candidate, candidates: list[Candidate]) -> list[Candidate]:
        """All of them, or of very many those that are near by their published vectors."""
        if len(candidates) <= MOST_WEIGHED or asked.model_id < 0:
            return candidates[-MOST_WEIGHED:] if len(candidates) > 4 * MOST_WEIGHED else candidates
        index = self.atlas.index(self.base, "input")
        vector = index.rows([asked.model_id]).row(asked.model_id)
        if vector is None:
            return candidates
        by_id = {one.model_id: one for one in candidates}
        found = index.search(vector, MOST_WEIGHED, np.array(sorted(by_id), dtype=np.int64))
        return [by_id[model_id] for model_id, _ in found]

    def _row(self, link: Link, declared: Declared, links: Sequence[Link]) -> Row:
        parent = self.base if link.parent is None else link.parent.model
        sure = probability(link)
        card = declared.verdict(None if link.parent is None else link.parent.model, link.same)
        return Row(
            parent=parent,
            kind=link.kind,
            coefficient=link.coefficient,
            left=link.left,
            card=card if sure >= SURE or card == CONFIRMED else UNSURE,
            method=link.method,
            direction="known" if link.direction else "unknown",
            because=link.because,
            same=link.same,
            parent_id=link.parent.model_id if link.parent else None,
            probability=sure,
            signals=link.signals,
        )


def _names(rows: Sequence[Row]) -> set[str]:
    return {name for row in rows for name in (row.parent, *row.same) if name}


def _from_base(m: ModelParts) -> Link:
    return Link(None, TUNED, 1.0, 1.0, "no model that was read explains its change")


def _base_card(declared: Declared) -> str:
    return declared.verdict(None, ()) if declared.models or declared.names_base else NOT_DECLARED
