"""The model that a question names: as the atlas holds it, or read on the fly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from indexer.errors import AtlasError, BadArgument, require
from indexer.names import READS, ModelRef
from query.resolved import READERS, ResolvedModel, no_record

if TYPE_CHECKING:
    from indexer.profiles.single import Reference
    from query.reader import AtlasReader, IndexedModel


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
    from query.unindexed import read_unindexed  # an indexed model does not need it

    return read_unindexed(atlas, reference, base, representation, read)


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


def reference_of(atlas: AtlasReader | None, model: str, base: str | None) -> Reference:
    """A model that is to be run: its commit and relation if it is indexed, and the commit of its base.

    The base of a model that is not indexed is the one named, if any: only adapters and comparisons need it. Without an
    atlas nothing is indexed.
    """
    require("Running a model", *READERS)
    from indexer.profiles.single import Reference

    if atlas is None:
        return Reference(model) if base is None else Reference(model, None, "finetune", base)
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
