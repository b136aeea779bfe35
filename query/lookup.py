"""The model that a question is about: as the atlas holds it, or read on the fly and not stored.

A name that is neither is told with what was probably meant.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from indexer.errors import AtlasError, Failed, ModelError, UnknownRevision, access_hint, require, unreadable
from indexer.names import ModelRef, author_of, nearest, without_address

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from indexer.deltas.single import Described
    from indexer.profiles.single import Reference
    from indexer.records.record import Record
    from indexer.vectors.published import Published, PublishedBase
    from query.reader import AtlasReader, IndexedModel


# What reads weights: the extra [build], which an atlas that is only queried does without.
READERS = ("torch", "transformers")


@dataclass(frozen=True)
class ResolvedModel:
    """The model asked about: its id where it is indexed, its record where it was read for this question.

    ``vector`` is as the published ones are, centred with their centre; it is None for a copy of the base, and where it
    has not been looked up. ``group``: the model's, whose centre that is.
    """

    name: str
    base: str
    author: str
    model_id: int | None
    is_copy: bool
    vector: NDArray[np.float32] | None = None
    record: Record | None = None
    group: str = ""
    initialisation: int | None = None


def resolve_model(atlas: AtlasReader, model: str | ModelRef, base: str | None, representation: str) -> ResolvedModel:
    """Find ``model``, an indexed id, or read it: any other Hub id, or a local folder (no ModelRef of an atlas's name).

    Raises AtlasError where it is unknown, has no record, or cannot be read.
    """
    reference = model if isinstance(model, ModelRef) else ModelRef.parse(model)
    known = atlas.find(reference, base) if reference.folder is None else None
    if known is None:
        _refuse_misnamed(atlas, reference)
        return _read_now(atlas, reference, base, representation)
    if known.status == "indexed":
        return ResolvedModel(known.model, known.base, known.author, known.model_id, known.is_copy)
    if known.status == "skipped" and known.reason == "gated":
        raise AtlasError(f"{known.model} has no record: it is gated.", access_hint(known.model))
    if known.status == "skipped":
        raise AtlasError(
            f"{known.model} has no record: {known.reason}: {known.detail}.", f"See: `atlas.show({reference.id!r})`"
        )
    return _read_now(atlas, reference, base or known.base, representation)


def _read_now(atlas: AtlasReader, reference: ModelRef, base: str | None, representation: str) -> ResolvedModel:
    """Vectorise a model that is not in the atlas: the same unit of work, through one function, loaded only now."""
    require(f"Reading {reference.id}, which this atlas has not indexed,", *READERS)
    from indexer.deltas.single import describe, read_model
    from indexer.records.representation import representation_named

    chosen = representation_named(representation)
    typed = f"{reference.id}@{reference.revision}" if reference.revision else reference.id
    try:
        described = describe(reference)
        record = read_model(described, atlas.published_base(base, described.claims))
    except ModelError as error:
        if reference.folder is None and isinstance(error, Failed) and not isinstance(error, UnknownRevision):
            why = "the Hub does not know it either" if error.reason == "not_found" else error.detail
            raise unknown_model(atlas, typed, f"It could not be read from the Hub: {why}.") from error
        raise unreadable(reference.id, error) from error
    identity = record.identity
    published = atlas.published(identity.base, representation)
    if chosen.version != published.version:
        raise AtlasError(
            f"The atlas holds version {published.version} of {representation!r}, this is {chosen.version}.",
            f"Publish it again: index represent {representation}",
        )
    initialisation = _initialisation(atlas, record)
    vector = _as_published(atlas, record, published, initialisation)
    same = _held_as(atlas, identity.commit, identity.base) if reference.folder is not None else None
    if reference.folder is None and atlas.holds(identity.model, identity.base):
        same = atlas.find(ModelRef(identity.model), identity.base)
    return ResolvedModel(
        name=identity.model,
        base=identity.base,
        author=author_of(identity.model),
        model_id=same.model_id if same is not None else None,
        is_copy=vector is None,
        vector=vector,
        record=record,
        group=record.vector_group,
        initialisation=initialisation,
    )


def _initialisation(atlas: AtlasReader, record: Record) -> int | None:
    """The initialisation of the atlas whose models' row spaces agree best with the record's; None where none does.

    A model that has none yet stands for itself.
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


def initialisation_of(atlas: AtlasReader, asked: ResolvedModel) -> tuple[int | None, int]:
    """The asked model's initialisation, and how many other models of the atlas have it."""
    found = asked.initialisation
    if asked.record is None:
        rows = atlas.rows("SELECT initialisation FROM records WHERE model_id = ?", [asked.model_id])
        found = rows[0]["initialisation"] if rows else None
    (others,) = atlas.rows(
        "SELECT count(*) AS models FROM records WHERE coalesce(initialisation, model_id) = ? "
        "AND row_space IS NOT NULL AND model_id IS DISTINCT FROM ?",
        [found, asked.model_id],
    )
    return found, others["models"]


def _as_published(
    atlas: AtlasReader, record: Record, published: Published, initialisation: int | None
) -> NDArray[np.float32] | None:
    """The vector of a record like those of the atlas: of their length, and minus their centre. None for a copy."""
    from indexer.records.representation import representation_named
    from indexer.vectors.segments import normalised

    vector = representation_named(published.representation, published.choice.budget).vector(record)
    if not published.masks.blocks or published.centre is None:
        return normalised(vector)
    centre = atlas.centre(published.base, published.representation)
    if centre is None or normalised(vector) is None:
        return None
    group = centre.group_of(record.vector_group, initialisation)
    centred: NDArray[np.float32] = centre.centred(vector[None, :], group)[0]
    return centred


def held_folder(atlas: AtlasReader, reference: ModelRef, base: str | None) -> IndexedModel | None:
    """The model of the atlas that has the content of a folder; None where none has. Raises AtlasError."""
    require("Reading a folder", *READERS)
    from indexer.deltas.single import describe

    return _held_as(atlas, str(describe(reference).row["sha"]), None if base is None else atlas.base_named(base))


def _held_as(atlas: AtlasReader, commit: str, base: str | None) -> IndexedModel | None:
    """A model that came from a folder, by the hash of its content: where the folder lay is kept nowhere."""
    rows = atlas.rows(
        "SELECT model, base FROM fine_tunes WHERE \"commit\" = $1 AND claimed_by = 'folder' "
        "AND coalesce(base = $2, true) ORDER BY model_id",
        [commit, base],
    )
    return atlas.find(ModelRef(rows[0]["model"]), rows[0]["base"] if base is not None else None) if rows else None


def describe_unindexed(atlas: AtlasReader, reference: ModelRef, base: str | None) -> tuple[Described, PublishedBase]:
    """What a model that is not in the atlas says of itself, and the base to set it against. Raises AtlasError."""
    require(f"Reading {reference.id}, which this atlas has not indexed,", *READERS)
    from indexer.deltas.single import describe

    _refuse_misnamed(atlas, reference)
    try:
        described = describe(reference)
    except ModelError as error:
        if reference.folder is None and isinstance(error, Failed) and not isinstance(error, UnknownRevision):
            why = "the Hub does not know it either" if error.reason == "not_found" else error.detail
            raise unknown_model(atlas, reference.id, f"It could not be read from the Hub: {why}.") from error
        raise unreadable(reference.id, error) from error
    return described, atlas.published_base(base, described.claims)


def reference_of(atlas: AtlasReader, model: str, base: str | None) -> Reference:
    """What is known of a model before it is read: its commit and relation where it is indexed, and its base's.

    Of a model that is not, the base is the one named, else the atlas's only one where the model's config fits no
    other: it is only used by adapters and for comparison.
    """
    require("Running a model", *READERS)
    from indexer.profiles.single import Reference

    try:
        canonical = atlas.base_named(model)
        (row,) = atlas.rows('SELECT "commit" FROM bases WHERE base = ?', [canonical])
        return Reference(canonical, row["commit"])
    except AtlasError:
        pass
    parsed = ModelRef.parse(model)
    known = atlas.find(parsed, base) if parsed.folder is None else None
    if known is not None:
        (row,) = atlas.rows('SELECT "commit" FROM bases WHERE base = ?', [known.base])
        (of_model,) = atlas.rows("SELECT relation FROM fine_tunes WHERE model_id = ?", [known.model_id])
        return Reference(known.model, known.commit, of_model["relation"], known.base, row["commit"])
    if base is None:
        return Reference(model)
    canonical = atlas.base_named(base)
    (row,) = atlas.rows('SELECT "commit" FROM bases WHERE base = ?', [canonical])
    return Reference(model, None, "finetune", canonical, row["commit"])


def unrelated(atlas: AtlasReader, asked: ResolvedModel) -> str:
    """Why the weights of ``asked`` were not made from its base's, in a clause; empty where they were."""
    record = asked.record
    if record is None:
        rows = atlas.rows(
            "SELECT is_unrelated, base_cosine, vector_group FROM records WHERE model_id = ?", [asked.model_id]
        )
        if not rows:
            return ""
        is_unrelated, cosine, group = rows[0].values()
    else:
        cosine, group = record.base_cosine, record.vector_group
        is_unrelated = (record.stands_on is not None and record.stands_on.verdict == "foreign") or (
            cosine is not None and cosine < thresholds(atlas, asked.base)["unrelated_below"]
        )
    if not is_unrelated:
        return ""
    if cosine is None and group == "adapter":
        return f"{asked.name} is an adapter of another base than {asked.base}"
    # Rounded first: no minus before 0.00.
    measured = "" if cosine is None else f" (cosine of the weights {round(cosine, 2) + 0.0:.2f})"
    return f"{asked.name} is not made from {asked.base}{measured}"


def unrelated_notes(atlas: AtlasReader, *models: ResolvedModel) -> tuple[str, ...]:
    """A note for each of the models that is unrelated to its base."""
    found = (unrelated(atlas, one) for one in models)
    return tuple(f"{why}: its change and its neighbours say little of its data" for why in found if why)


def thresholds(atlas: AtlasReader, base: str) -> dict[str, float]:
    """Those of the last build of the base; the defaults after a rebuild, which records no build."""
    from indexer.records.thresholds import Thresholds

    rows = atlas.rows(
        "SELECT thresholds FROM builds WHERE base = ? AND thresholds IS NOT NULL ORDER BY build_id DESC LIMIT 1",
        [base],
    )
    return asdict(Thresholds()) | (json.loads(rows[0]["thresholds"]) if rows else {})


def refuse_copy(asked: ResolvedModel) -> None:
    """Raise AtlasError where the model is a copy of its base, which no vector can place."""
    if asked.is_copy:
        raise AtlasError(
            f"{asked.name} is a copy of {asked.base}: its delta is zero, so nothing is more or less like it.", ""
        )


def with_vector(atlas: AtlasReader, asked: ResolvedModel, representation: str) -> ResolvedModel:
    """The same with its vector looked up. Raises AtlasError where the atlas has none."""
    if asked.vector is not None:
        return asked
    assert asked.model_id is not None
    vector = atlas.index(asked.base, representation).rows([asked.model_id]).row(asked.model_id)
    if vector is None:
        raise AtlasError(f"{asked.name} has no {representation!r} vector.", "Run `index verify`.")
    return replace(asked, vector=vector)


def _refuse_misnamed(atlas: AtlasReader, reference: ModelRef) -> None:
    """Raise AtlasError for a base, and for a name without an owner that is like one of the atlas: no Hub is asked."""
    if reference.folder is not None or reference.revision is not None:
        return
    if (misnamed := _misnamed(atlas, reference.id, "")) is not None:
        raise misnamed
    if "/" not in reference.id and nearest(reference.id, _indexed_names(atlas)):
        hint = f"If it is the name of a model on the Hub, write {reference.id}@main."
        raise unknown_model(atlas, reference.id, hint)


def unknown_model(atlas: AtlasReader, name: str, hint: str = "") -> AtlasError:
    """The error for a model that :meth:`Atlas.find` does not find, naming the closest ids.

    A base, a model that is held at another revision, and one that is listed but was not read, are told as such.
    """
    if (misnamed := _misnamed(atlas, name, hint)) is not None:
        return misnamed
    close = ", ".join(nearest(without_address(name).partition("@")[0], _indexed_names(atlas)))
    return AtlasError(
        f"{name} is not in this atlas" + (f"; closest ids: {close}." if close else "."),
        hint or "Check the spelling, or give the path of a checkpoint folder.",
    )


def _misnamed(atlas: AtlasReader, name: str, hint: str) -> AtlasError | None:
    reference = ModelRef.parse(name)
    held = atlas.rows(
        'SELECT model, "commit" FROM fine_tunes WHERE lower(model) = lower(?) ORDER BY model = ? DESC LIMIT 1',
        [reference.id] * 2,
    )
    if held and reference.revision is None:
        return AtlasError(f"{held[0]['model']} is listed in this atlas but was not read.", hint)
    if held:
        commit = f"commit {held[0]['commit'][:12]}" if held[0]["commit"] else "an unknown commit"
        message = f"This atlas holds {held[0]['model']} at {commit}, not at {reference.revision}."
        return AtlasError(message, f"Leave @{reference.revision} out.")
    try:
        base = atlas.base_named(reference.id)
    except AtlasError:
        return None
    return AtlasError(
        f"{base} is the base itself, not a model tuned from it.", f"Its models: `atlas.models(base={base!r})`"
    )


def _indexed_names(atlas: AtlasReader) -> list[str]:
    rows = atlas.rows("SELECT DISTINCT model FROM fine_tunes WHERE status = 'indexed' ORDER BY model")
    return [row["model"] for row in rows]


def base_in_hint(atlas: AtlasReader, base: str | None) -> str:
    """The base as a command to copy names it: the one that was asked for, else the only one there is, else ID."""
    bases = atlas.bases()
    return base or (bases[0] if len(bases) == 1 else "ID")
