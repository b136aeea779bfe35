"""The model that a question is about: as the atlas holds it, or read on the fly and not stored."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from indexer.errors import (
    AtlasError,
    BadArgument,
    Failed,
    ModelError,
    UnknownRevision,
    access_hint,
    require,
    unreadable,
)
from indexer.names import READS, ModelRef, author_of, nearest, without_address
from indexer.quantities import size_in_words
from query.sampled import LIKE_THE_BASE, SAMPLE, needs_all, rows_in_words, sample_gives

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from indexer.deltas.single import Described
    from indexer.profiles.single import Reference
    from indexer.records.record import Record
    from indexer.vectors.published import PublishedBase
    from query.reader import AtlasReader, IndexedModel


# Needed to read weights (extra [build]), but not to query an atlas.
READERS = ("torch", "transformers")


@dataclass(frozen=True)
class ResolvedModel:
    """The model of a question: ``model_id`` if it is indexed, ``record`` if it was read for this question.

    ``vector``: of a model that was read, centred like the published ones; None for a copy of the base. For that of an
    indexed model see ``vector_of``. ``group``: the group whose centre was subtracted. ``read``: sample or full;
    ``copy_evidence``: what shows that it is a copy, as in the database.
    """

    name: str
    base: str
    author: str
    model_id: int | None
    is_copy: bool
    group: str
    initialisation: int | None = None
    is_unrelated: bool = False
    base_cosine: float | None = None
    read: str = "full"
    copy_evidence: str | None = None
    vector: NDArray[np.float32] | None = None
    record: Record | None = None

    @property
    def as_copy(self) -> str:
        """What a model without a change is called: a sample does not prove that it is a copy."""
        return LIKE_THE_BASE if self.copy_evidence == SAMPLE else f"a copy of {self.base}"

    @property
    def unrelated(self) -> str:
        """A clause that says why the weights do not derive from the base; empty if they do."""
        if not self.is_unrelated:
            return ""
        if self.base_cosine is None and self.group == "adapter":
            return f"{self.name} is an adapter of another base than {self.base}"
        # Rounded first, so that there is no minus before 0.00.
        cosine = "" if self.base_cosine is None else f" (cosine of the weights {round(self.base_cosine, 2) + 0.0:.2f})"
        return f"{self.name} is not made from {self.base}{cosine}"


def resolve_model(
    atlas: AtlasReader, model: str | ModelRef, base: str | None, representation: str, read: str | None = None
) -> ResolvedModel:
    """Find ``model`` by its indexed id; read any other Hub id or a local folder (a ModelRef never names a folder).

    ``read``: how a model that is not indexed is read, sample (the default) or full. Raises AtlasError if it is unknown,
    has no record, or cannot be read, and BadArgument for another ``read``.
    """
    if read not in (None, *READS):
        raise BadArgument(f"`read` {read!r} is not one of {', '.join(READS)}.", "")
    reference = model if isinstance(model, ModelRef) else ModelRef.parse(model)
    known = atlas.find(reference, base) if reference.folder is None else None
    if known is not None and known.status == "indexed":
        return _indexed(known)
    if known is not None and known.status == "skipped":
        raise no_record(known, reference.id)
    if known is not None:  # it could not be read when it was indexed
        reference, base = replace(reference, id=known.model), base or known.base
    return _read(atlas, reference, base, representation, read)


def indexed_model(atlas: AtlasReader, model_id: int) -> ResolvedModel:
    """The indexed model with this id. Raises AtlasError if there is none."""
    known = atlas.model(model_id)
    if known is None or known.status != "indexed":
        raise AtlasError(f"The atlas has no record of a model {model_id}.", "")
    return _indexed(known)


def _indexed(known: IndexedModel) -> ResolvedModel:
    return ResolvedModel(
        known.model, known.base, known.author, known.model_id, known.is_copy, known.vector_group or "",
        known.initialisation, known.is_unrelated, known.base_cosine, known.read, known.copy_evidence,
    )  # fmt: skip


def vector_of(atlas: AtlasReader, model: ResolvedModel, representation: str) -> NDArray[np.float32]:
    """The vector of a model that is not a copy of its base. Raises AtlasError if the atlas has none."""
    if model.vector is not None:
        return model.vector
    assert model.model_id is not None
    vector = atlas.index(model.base, representation).rows([model.model_id]).row(model.model_id)
    if vector is None and model.read == SAMPLE and not sample_gives(representation):
        raise needs_all(atlas, model.base, [model.name], f"{representation!r} vector")
    if vector is None:
        raise without_vector(model, representation)
    return vector


def vector_of_record(
    atlas: AtlasReader, record: Record, representation: str, initialisation: int | None
) -> NDArray[np.float32] | None:
    """The vector of a record, normalised and centred like those of the atlas; None for a copy of the base.

    Raises AtlasError if the representation is not published, or the record does not hold it.
    """
    from indexer.records.representation import representation_named
    from indexer.vectors.segments import normalised

    published = atlas.published(record.identity.base, representation)
    whole = representation_named(representation, published.choice.budget).vector(record)
    vector = normalised(whole)
    if vector is None or not published.masks.blocks or published.centre is None:
        return vector
    centre = atlas.centre(published.base, representation)
    if centre is None:
        return None
    vector = centre.centred(whole[None, :], centre.group_of(record.vector_group, initialisation))[0]
    return vector


def without_vector(model: ResolvedModel, representation: str) -> AtlasError:
    """The error for a model of the atlas that has no vector of this representation."""
    if representation == "vocabulary":
        return AtlasError(
            f"{model.name} has no vocabulary vector: it is an adapter, its input embedding did not move, or it was "
            "read by an older version.",
            "Leave `representation` out.",
        )
    return AtlasError(f"{model.name} has no {representation!r} vector.", "Run `index verify`.")


def unrelated_notes(*models: ResolvedModel) -> tuple[str, ...]:
    """A note for each of the models that is unrelated to its base."""
    found = (one.unrelated for one in models)
    return tuple(f"{why}: its change and its neighbours say little about its data" for why in found if why)


def sampled_notes(atlas: AtlasReader, model: ResolvedModel) -> tuple[str, ...]:
    """A note that the vector of a model of which a sample was read is an estimate; none for other models."""
    if model.read != SAMPLE:
        return ()
    if model.record is not None:
        rows = [delta.lines for delta in model.record.deltas]
    else:
        found = atlas.rows("SELECT rows_read FROM deltas WHERE model_id = ?", [model.model_id])
        rows = [row["rows_read"] for row in found]
    return (f"The vector of {model.name} is estimated from {rows_in_words(rows)}.",)


def facts_of_record(record: Record) -> dict[str, Any]:
    """Columns of the models view, for a model that was read for this question."""
    norm, base_norm = (math.hypot(*(getattr(one, name) for one in record.deltas)) for name in ("norm", "base_norm"))
    return {
        "relation": record.identity.relation,
        "datasets": list(record.card.get("datasets", ())),
        "head_class": record.head.get("architecture_class"),
        "label_count": record.head.get("label_count"),
        "label_names": record.head.get("label_names"),
        "problem_type": record.head.get("problem_type"),
        "read": record.read,
        "delta_norm": norm,
        "delta_norm_error": record.norm_error,
        "relative_norm": norm / base_norm if base_norm else 0.0,
        "base_cosine": record.base_cosine,
        "dtype": record.dtype,
    }


def thresholds(atlas: AtlasReader, base: str) -> dict[str, float]:
    """The thresholds of the base's latest build; the defaults after a rebuild, which records no build."""
    from indexer.records.identity import Thresholds

    rows = atlas.rows(
        "SELECT thresholds FROM builds WHERE base = ? AND thresholds IS NOT NULL ORDER BY build_id DESC LIMIT 1",
        [base],
    )
    return asdict(Thresholds()) | (json.loads(rows[0]["thresholds"]) if rows else {})


# ---- models that are not indexed


def _read(
    atlas: AtlasReader, reference: ModelRef, base: str | None, representation: str, read: str | None
) -> ResolvedModel:
    """Compute the record and the vector of a model, as a build would.

    A folder is read in full if the representation needs that: it costs no traffic.
    """
    described, published_base = describe_unindexed(atlas, reference, base)
    from indexer.deltas.single import read_model
    from indexer.records.representation import representation_named

    chosen = representation_named(representation)
    needs_full = not chosen.from_samples and reference.folder is not None
    with _reading(atlas, reference):
        record = read_model(described, published_base, read or ("full" if needs_full else SAMPLE))
    if not chosen.is_held_by(record) and record.is_sampled:
        raise AtlasError(
            f"Of {record.identity.model} a sample of rows was read, which gives no {representation!r} vector.",
            f"Read all of it ({size_in_words(record.block_bytes)}): `read='full'`",
        )
    identity = record.identity
    published = atlas.published(identity.base, representation)
    if chosen.version != published.version:
        raise AtlasError(
            f"The atlas holds version {published.version} of {representation!r}, this is {chosen.version}.",
            f"Publish it again: index represent {representation}",
        )
    initialisation = _initialisation(atlas, record)
    vector = vector_of_record(atlas, record, representation, initialisation)
    same: IndexedModel | None = None
    if reference.folder is not None:
        same = _same_content(atlas, identity.commit, identity.base)
    elif atlas.holds(identity.model, identity.base):
        same = atlas.find(ModelRef(identity.model), identity.base)
    is_foreign = record.adapter_base is not None and record.adapter_base.verdict == "foreign"
    cosine = record.base_cosine
    return ResolvedModel(
        name=identity.model,
        base=identity.base,
        author=author_of(identity.model),
        model_id=same.model_id if same is not None else None,
        is_copy=vector is None,
        group=record.vector_group,
        initialisation=initialisation,
        is_unrelated=is_foreign
        or (cosine is not None and cosine < thresholds(atlas, identity.base)["unrelated_below"]),
        base_cosine=cosine,
        read=record.read,
        copy_evidence=(SAMPLE if record.is_sampled else "weights") if record.is_copy else None,
        vector=vector,
        record=record,
    )


def describe_unindexed(atlas: AtlasReader, reference: ModelRef, base: str | None) -> tuple[Described, PublishedBase]:
    """What a model that is not indexed says of itself, and the base to compare it with. Raises AtlasError."""
    if reference.folder is None and reference.revision is None:
        # A base, or a bare name that resembles one in the atlas: the Hub is not asked.
        if (is_base := _is_base(atlas, reference.id)) is not None:
            raise is_base
        if "/" not in reference.id and nearest(reference.id, _indexed_names(atlas)):
            hint = f"If it is the name of a model on the Hub, write {reference.id}@main."
            raise unknown_model(atlas, reference.id, hint)
    require(f"Reading {reference.id}, which this atlas has not indexed,", *READERS)
    from indexer.deltas.single import describe

    with _reading(atlas, reference):
        described = describe(reference)
        return described, atlas.published_base(base, described.claims)


@contextmanager
def _reading(atlas: AtlasReader, reference: ModelRef) -> Iterator[None]:
    """Turn the errors of reading a model into an AtlasError; if the Hub has none, name the closest ids."""
    try:
        yield
    except ModelError as error:
        if reference.folder is None and isinstance(error, Failed) and not isinstance(error, UnknownRevision):
            why = "the Hub does not know it either" if error.reason == "not_found" else error.detail
            name = f"{reference.id}@{reference.revision}" if reference.revision else reference.id
            raise unknown_model(atlas, name, f"It could not be read from the Hub: {why}.") from error
        raise unreadable(reference.id, error) from error


def _initialisation(atlas: AtlasReader, record: Record) -> int | None:
    """The initialisation of the atlas whose row spaces agree best with the record's; None if none agrees.

    A model without an initialisation counts as its own.
    """
    from indexer.records.row_space import ALIKE, agreement, as_text, from_texts, row_space_of

    mine = row_space_of(record)
    if mine is None:
        return None
    rows = atlas.rows(
        "SELECT coalesce(initialisation, model_id) AS initialisation, row_space FROM records "
        "JOIN fine_tunes USING (model_id) WHERE base = ? AND model <> ? AND row_space IS NOT NULL",
        [record.identity.base, record.identity.model],
    )
    texts = [as_text(mine), *(row["row_space"] for row in rows)]
    sketches = from_texts(texts, len(record.deltas))
    found = agreement(sketches[:1], sketches[1:])[0]
    return rows[int(found.argmax())]["initialisation"] if len(found) and found.max() >= ALIKE else None


def model_of_folder(atlas: AtlasReader, reference: ModelRef, base: str | None) -> IndexedModel | None:
    """The indexed model with the content of a folder; None if there is none. Raises AtlasError."""
    require("Reading a folder", *READERS)
    from indexer.deltas.single import describe

    return _same_content(atlas, str(describe(reference).row["sha"]), None if base is None else atlas.base_named(base))


def _same_content(atlas: AtlasReader, commit: str, base: str | None) -> IndexedModel | None:
    """A model that was added from a folder, by the hash of its content: the path of the folder is not stored."""
    rows = atlas.rows(
        "SELECT model, base FROM fine_tunes WHERE \"commit\" = $1 AND claimed_by = 'folder' "
        "AND coalesce(base = $2, true) ORDER BY model_id",
        [commit, base],
    )
    return atlas.find(ModelRef(rows[0]["model"]), rows[0]["base"] if base is not None else None) if rows else None


def reference_of(atlas: AtlasReader, model: str, base: str | None) -> Reference:
    """A model that is to be run: its commit and relation if it is indexed, and the commit of its base.

    The base of a model that is not indexed is the one named, if any: only adapters and comparisons need it.
    """
    require("Running a model", *READERS)
    from indexer.profiles.single import Reference

    try:
        canonical = atlas.base_named(model)
        return Reference(canonical, _commit_of(atlas, canonical))
    except AtlasError:
        pass
    parsed = ModelRef.parse(model)
    known = atlas.find(parsed, base) if parsed.folder is None else None
    if known is not None:
        (row,) = atlas.rows("SELECT relation FROM fine_tunes WHERE model_id = ?", [known.model_id])
        return Reference(known.model, known.commit, row["relation"], known.base, _commit_of(atlas, known.base))
    if base is None:
        return Reference(model)
    canonical = atlas.base_named(base)
    return Reference(model, None, "finetune", canonical, _commit_of(atlas, canonical))


def _commit_of(atlas: AtlasReader, base: str) -> str:
    return str(atlas.rows('SELECT "commit" FROM bases WHERE base = ?', [base])[0]["commit"])


# ---- names that are not known


def no_record(known: IndexedModel, name: str) -> AtlasError:
    """The error for a model that was skipped."""
    if known.reason == "gated":
        return AtlasError(f"{known.model} has no record: it is gated.", access_hint(known.model))
    return AtlasError(f"{known.model} has no record: {known.reason}: {known.detail}.", f"See: `atlas.show({name!r})`")


def unknown_model(atlas: AtlasReader, name: str, hint: str = "") -> AtlasError:
    """The error for a model that :meth:`AtlasReader.find` does not find, naming the closest ids.

    It says so if the name is that of a base, of a model with another revision, or of one that was listed but not read.
    """
    reference = ModelRef.parse(name)
    listed = atlas.rows(
        'SELECT model, "commit" FROM fine_tunes WHERE lower(model) = lower(?) ORDER BY model = ? DESC LIMIT 1',
        [reference.id] * 2,
    )
    if listed and reference.revision is None:
        return AtlasError(f"{listed[0]['model']} is listed in this atlas but was not read.", hint)
    if listed:
        commit = f"commit {listed[0]['commit'][:12]}" if listed[0]["commit"] else "an unknown commit"
        message = f"This atlas holds {listed[0]['model']} at {commit}, not at {reference.revision}."
        return AtlasError(message, f"Leave @{reference.revision} out.")
    if (is_base := _is_base(atlas, reference.id)) is not None:
        return is_base
    close = ", ".join(nearest(without_address(name).partition("@")[0], _indexed_names(atlas)))
    return AtlasError(
        f"{name} is not in this atlas" + (f"; closest ids: {close}." if close else "."),
        hint or "Check the spelling, or give the path of a checkpoint folder.",
    )


def _is_base(atlas: AtlasReader, name: str) -> AtlasError | None:
    try:
        base = atlas.base_named(name)
    except AtlasError:
        return None
    return AtlasError(
        f"{base} is the base itself, not a model tuned from it.", f"Its models: `atlas.models(base={base!r})`"
    )


def _indexed_names(atlas: AtlasReader) -> list[str]:
    rows = atlas.rows("SELECT DISTINCT model FROM fine_tunes WHERE status = 'indexed' ORDER BY model")
    return [row["model"] for row in rows]


def base_in_hint(atlas: AtlasReader, base: str | None) -> str:
    """The base to name in advice: the one that was given, else the only one of the atlas, else ID."""
    bases = atlas.bases()
    return base or (bases[0] if len(bases) == 1 else "ID")
