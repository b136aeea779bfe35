"""Finds the model that a question names in the atlas, or reads it on the fly as a build would, without storing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from indexer.errors import (
    AtlasError,
    BadArgument,
    Call,
    Failed,
    ModelError,
    Text,
    UnknownRevision,
    require,
    unreadable,
)
from indexer.names import READS, nearest
from indexer.quantities import size_in_words
from indexer.records.conversion import CONVERSION
from indexer.records.identity import ModelVersion
from indexer.sources.registry import ModelRef, author_of
from query.models.conversions import Conversion, conversion_of, is_of_conversion, read_conversion
from query.models.resolved import (
    READERS,
    ResolvedModel,
    base_error,
    indexed_names,
    is_unrelated,
    no_record,
    not_there,
    unknown_model,
    vector_of_record,
)
from query.models.sampled import SAMPLE

if TYPE_CHECKING:
    from indexer.deltas.identification.identify import Identification, KnownBase
    from indexer.deltas.single import Described
    from indexer.records.record import Record
    from indexer.vectors.published import PublishedBase
    from query.models.reader import AtlasReader, IndexedModel


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
    indexed = atlas.find(reference, base) if reference.is_name else None
    if indexed is not None and indexed.status == "indexed":
        return _indexed(indexed)
    if indexed is not None and indexed.status == "skipped":
        if indexed.reason == CONVERSION:
            return _source_of(atlas, conversion_of(atlas, indexed))
        raise no_record(indexed, reference.id)
    if indexed is not None:  # it could not be read when it was indexed
        reference, base = replace(reference, id=indexed.model), base or indexed.base
    try:
        return _read_unindexed(atlas, reference, base, representation, read)
    except AtlasError as error:
        if not is_of_conversion(error):
            raise
    return _source_of(atlas, read_conversion(atlas, reference, base))


def _source_of(atlas: AtlasReader, conversion: Conversion) -> ResolvedModel:
    """The source of a conversion, whose answers stand for it. Raises AtlasError if that is the base, or not known."""
    statement = f"{conversion.model} is {conversion.match.headline}"
    if conversion.source_id is None:
        raise AtlasError(f"{statement}. A conversion has no vector of its own.", "")
    source = indexed_model(atlas, conversion.source_id)
    return replace(source, through=f"{statement}. The answer is that of {source.name}.")


def indexed_model(atlas: AtlasReader, model_id: int) -> ResolvedModel:
    """The indexed model with this id. Raises AtlasError if there is none."""
    indexed = atlas.model(model_id)
    if indexed is None or indexed.status != "indexed":
        raise AtlasError(f"The atlas has no record of a model {model_id}.", "")
    return _indexed(indexed)


def _indexed(indexed: IndexedModel) -> ResolvedModel:
    return ResolvedModel(
        indexed.model, indexed.base, indexed.author, indexed.model_id, indexed.is_copy, indexed.vector_group or "",
        indexed.initialisation, indexed.is_unrelated, indexed.base_cosine, indexed.read, indexed.copy_evidence,
    )  # fmt: skip


def version_of(atlas: AtlasReader | None, model: str, base: str | None) -> ModelVersion:
    """A model that is to be run: its commit and relation if it is indexed, and the commit of its base.

    The base of a model that is not indexed is the one named, if any: only adapters and comparisons need it. Without an
    atlas nothing is indexed.
    """
    require("Running a model", *READERS)

    if atlas is None:
        return ModelVersion(ModelRef.parse(model), parent=None if base is None else ModelVersion.of_atlas(base))

    def base_of(name: str) -> ModelVersion:
        return ModelVersion.of_atlas(name, str(atlas.base_row(name)["commit"]))

    with suppress(AtlasError):
        return base_of(atlas.base_named(model))
    parsed = ModelRef.parse(model)
    indexed = atlas.find(parsed, base) if parsed.is_name else None
    if indexed is not None:
        (row,) = atlas.rows("SELECT relation FROM fine_tunes WHERE model_id = ?", [indexed.model_id])
        return ModelVersion.of_atlas(indexed.model, indexed.commit, row["relation"], base_of(indexed.base))
    return ModelVersion(parsed, parent=None if base is None else base_of(atlas.base_named(base)))


# ---- models that are not in the atlas


def _read_unindexed(
    atlas: AtlasReader, reference: ModelRef, base: str | None, representation: str, read: str | None
) -> ResolvedModel:
    """Compute the record and the vector of a model, as a build would.

    A folder is read in full if the representation needs that: it costs no traffic.
    """
    described, published_base = describe_unindexed(atlas, reference, base)
    from indexer.records.representations.registry import representation_named

    kind_of_vector = representation_named(representation)
    if kind_of_vector.from_tables:
        raise kind_of_vector.absent(reference.id)
    needs_full = kind_of_vector.needs_all_rows and not reference.source.is_remote
    record = read_described(atlas, described, published_base, read or ("full" if needs_full else SAMPLE))
    kind_of_vector = kind_of_vector.with_words(atlas.base_row(record.identity.base)["words"] or ())
    if not kind_of_vector.is_held_by(record) and record.is_sampled:
        raise AtlasError(
            f"Only a sample of rows was read of {record.identity.model}, which gives no {representation!r} vector.",
            Text(f"Read all of it ({size_in_words(record.block_bytes)}): ", Call(read="full")),
        )
    identity = record.identity
    published = atlas.published(identity.base, representation)
    if kind_of_vector.version != published.version:
        raise AtlasError(
            f"The atlas holds version {published.version} of {representation!r}, this is {kind_of_vector.version}.",
            f"Publish it again: index represent {representation}",
        )
    initialisation = _initialisation(atlas, record)
    vector = vector_of_record(atlas, record, representation)
    indexed: IndexedModel | None = None
    if not reference.is_name:
        indexed = _same_content(atlas, identity.commit, identity.base)
    elif atlas.rows("SELECT 1 FROM fine_tunes WHERE model = ? AND base = ?", [identity.model, identity.base]):
        indexed = atlas.find(ModelRef(identity.model), identity.base)
    verdict = "" if record.adapter_base is None else record.adapter_base.verdict
    return ResolvedModel(
        name=identity.model,
        base=identity.base,
        author=author_of(identity.model),
        model_id=indexed.model_id if indexed is not None else None,
        is_copy=vector is None,
        group=record.vector_group,
        initialisation=initialisation,
        is_unrelated=is_unrelated(atlas, identity.base, record.base_cosine, verdict),
        base_cosine=record.base_cosine,
        read=record.read,
        copy_evidence=record.copy_evidence(),
        vector=vector,
        record=record,
    )


def describe_unindexed(atlas: AtlasReader, reference: ModelRef, base: str | None) -> tuple[Described, PublishedBase]:
    """The description of a model that is not indexed, and the base to compare it with. Raises AtlasError."""
    source = reference.source
    if reference.is_name and reference.revision is None:
        # A base, or a bare name that resembles one in the atlas: the Hub is not asked.
        if (error := base_error(atlas, reference.id)) is not None:
            raise error
        if "/" not in reference.id and nearest(reference.id, indexed_names(atlas)):
            hint = f"If it is the name of a model on the Hub, write {reference.id}@main."
            raise unknown_model(atlas, reference.id, hint)
    try:
        require("Reading a model that is not indexed", *READERS)
    except AtlasError as error:
        if reference.is_name:  # most often it is misspelt
            raise unknown_model(atlas, reference.typed, f"{error.message} {error.hint}") from error
        raise
    if why := source.unreachable():
        # At once: tries would take seconds, and most often the id is misspelt.
        hint = f"{source.subject} was not asked: {why}. Check the spelling, or try again later."
        raise unknown_model(atlas, reference.typed, hint) from Failed("network", why)
    from indexer.deltas.single import describe

    with _reading(atlas, reference):
        described = describe(reference)
        return described, atlas.published_base(base, described.claims)


def read_described(atlas: AtlasReader, described: Described, base: PublishedBase, read: str = SAMPLE) -> Record:
    """The record of a model that is not indexed, as a build would make it. Raises AtlasError."""
    from indexer.deltas.single import read_model

    with _reading(atlas, described.reference):
        return read_model(described, base, read)


def known_bases_of(atlas: AtlasReader) -> list[KnownBase]:
    """The bases of an atlas, to identify models by. Raises AtlasError if it has none."""
    require("Identifying a model's base", *READERS)
    from indexer.deltas.identification.identify import known_bases

    rows = atlas.rows("SELECT base, aliases FROM bases ORDER BY base")
    if not rows:
        raise AtlasError("This atlas has no base.", Text("Add one: ", Call("build", "ID")))
    aliases = {row["base"]: tuple(row["aliases"]) for row in rows}
    return [known_base for known_base in known_bases(atlas.folder, aliases) if known_base.base in aliases]


def identify_model(atlas: AtlasReader, reference: ModelRef, bases: Sequence[KnownBase]) -> Identification:
    """Read up to 10 MB of a model and compare it with bases. Raises AtlasError if it cannot be read."""
    source = reference.source
    if reference.is_name and (why := source.unreachable()):
        hint = f"{source.subject} was not asked: {why}. Check the spelling, or try again later."
        raise unknown_model(atlas, reference.typed, hint) from Failed("network", why)
    from indexer.deltas.identification.identify import identify

    with _reading(atlas, reference):
        return identify(reference, bases)


def weight_hashes(base: PublishedBase) -> tuple[str | None, ...]:
    """The SHA-256 of each weight file of a base, where known; () if its matrices are not kept here."""
    from indexer.deltas.stored_base import StoredBase

    with suppress(AtlasError):
        return StoredBase(base.file).file_hashes
    return ()


def names_another_model(named_base: str, model: str, base: str) -> bool:
    """Whether the name in an adapter's file is that of a model other than this base."""
    from indexer.deltas import single

    return single.names_another_model(named_base, model, base)


def names_base(described: Described, base: str) -> bool:
    """Whether an adapter that is not indexed names this base."""
    from indexer.deltas import single

    return single.names_base(described, base)


@contextmanager
def _reading(atlas: AtlasReader, reference: ModelRef) -> Iterator[None]:
    """Turn the errors of reading a model into an AtlasError; if its source has none, name the closest ids."""
    try:
        yield
    except ModelError as error:
        source = reference.source
        if reference.is_name and isinstance(error, Failed) and not isinstance(error, UnknownRevision):
            hint = f"It could not be read from {source.title}: {error.detail}. Check the spelling, or try again later."
            if error.reason == "not_found":
                hint = not_there(source, reference.typed)
            raise unknown_model(atlas, reference.typed, hint) from error
        raise unreadable(reference.id, error) from error


def _initialisation(atlas: AtlasReader, record: Record) -> int | None:
    """The initialisation of the atlas whose row spaces agree best with the record's; None if none agrees.

    A model without an initialisation counts as its own.
    """
    from indexer.records.row_space import ALIKE, agreement, as_text, from_texts, row_space_of

    row_space = row_space_of(record)
    if row_space is None:
        return None
    rows = atlas.rows(
        "SELECT coalesce(initialisation, model_id) AS initialisation, row_space FROM records "
        "JOIN fine_tunes USING (model_id) WHERE base = ? AND model <> ? AND row_space IS NOT NULL",
        [record.identity.base, record.identity.model],
    )
    texts = [as_text(row_space), *(row["row_space"] for row in rows)]
    sketches = from_texts(texts, len(record.deltas))
    agreements = agreement(sketches[:1], sketches[1:])[0]
    return rows[int(agreements.argmax())]["initialisation"] if len(agreements) and agreements.max() >= ALIKE else None


def model_of_folder(atlas: AtlasReader, reference: ModelRef, base: str | None) -> IndexedModel | None:
    """The indexed model with the content of a folder; None if there is none. Raises AtlasError."""
    require("Reading a folder", *READERS)
    from indexer.deltas.single import describe

    return _same_content(atlas, str(describe(reference).row["sha"]), None if base is None else atlas.base_named(base))


def _same_content(atlas: AtlasReader, commit: str, base: str | None) -> IndexedModel | None:
    """A model that was added from a folder, by the first half of the hash of its content: the path is not stored."""
    rows = atlas.rows(
        "SELECT model, base FROM fine_tunes WHERE starts_with(\"commit\", $1) AND claimed_by = 'folder' "
        "AND coalesce(base = $2, true) ORDER BY model_id",
        [commit, base],
    )
    return atlas.find(ModelRef(rows[0]["model"]), rows[0]["base"] if base is not None else None) if rows else None
