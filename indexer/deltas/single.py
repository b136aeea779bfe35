"""Vectorises a model that is not in the atlas for a query. Nothing is stored."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import torch

from indexer.deltas.base import published_matrices
from indexer.deltas.vectorise import vectorise
from indexer.listing.parents import Parents, ask_source, named_base, names_another
from indexer.names import CONNECTIONS
from indexer.network.hub_errors import model_errors
from indexer.network.rows import commit_of, listed_filenames
from indexer.network.session import install_session
from indexer.records.identity import Spec, Unit
from indexer.records.record import Record
from indexer.sources.claims import NO, classify_path, is_named_after, untyped_relation
from indexer.sources.readmes import completed
from indexer.sources.registry import ModelRef, is_listed_id, source_of
from indexer.sources.rows import facts_of, row_of
from indexer.vectors.published import PublishedBase


@dataclass(frozen=True)
class Described:
    """A model as its repository or folder describes it, before weights are read.

    ``claims``: the bases it names, most trusted first. ``created``: of the repository; None for a folder.
    """

    reference: ModelRef
    row: dict[str, Any]
    claims: tuple[str, ...]
    datasets: tuple[str, ...]
    created: datetime | None = None


def describe(reference: ModelRef) -> Described:
    """Describe a model of any source.

    Raises ModelError ("not_found" if its source does not know it), AtlasError if a folder holds no checkpoint.
    """
    install_session()
    row = completed(row_of(reference, whole=False))
    facts = facts_of(row)
    created = facts.created if reference.is_name else None
    return Described(reference, row, facts.bases, tuple(facts.dataset_names), created)


def read_model(described: Described, base: PublishedBase, read: str = "sample") -> Record:
    """Vectorise a described model against one base of an atlas. ``read``: "sample", or "full" for all rows.

    Raises ModelError and AtlasError.
    """
    torch.set_num_threads(1)
    reference, row = described.reference, described.row
    matrices = published_matrices(base)
    parents = Parents(
        (base.base,), (), None if source_of(base.base).offline else ask_source, hashes=matrices.file_hashes
    )
    parent = parents.of_row(row) if untyped_relation(row) == "adapter" else None
    model = replace(reference, id=str(row["id"]), revision=None)
    unit = Unit(
        model=model,
        commit=commit_of(row) or "main",
        base=base.base,
        base_commit=base.commit,
        relation=untyped_relation(row),
        spec=Spec(rank=base.rank, sample=read == "sample" and matrices.shape.is_partial),
        filenames=listed_filenames(row),
        representations=(),
        parent=parent,
        is_on_base=parent is None and not parents.unknown,
        refused=next(iter(parents.refused.values()), ""),
        circle=next(iter(parents.circles.values()), ""),
        card={"datasets": list(described.datasets)},
    )
    matrices.check()
    with closing(matrices), model_errors():
        return vectorise(unit, matrices, lambda: model.source.conversion(model), connections=CONNECTIONS)


def names_base(described: Described, base: str) -> bool:
    """Whether an adapter, by its row, names this base."""
    return named_base(described.row) is not None and not names_another(described.row, base)


def names_another_model(name: str, model: str, base: str) -> bool:
    """Whether the base that an adapter's file names, which could not be resolved, is a model other than this base.

    A name without an owner, as old models have, must be called after the base; else it may be a folder. ``model``: the
    adapter's own id.
    """
    name = name.strip()
    if _letters(name) in (_letters(base), _letters(base.rpartition("/")[2])):
        return False
    is_name = is_listed_id(f"owner/{name}")
    return classify_path(name, model, (base,)) == NO or (is_name and is_named_after(name, (base,)))


def _letters(name: str) -> str:
    """Only the letters and digits, in lower case, so that gemma3-270m and Gemma-3-270m are equal."""
    return "".join(filter(str.isalnum, name.lower()))
