"""One model that is not in the atlas, vectorised on the fly for a query. Nothing is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from indexer.build.plan import commit_of
from indexer.cards.local import facts_of, local_row
from indexer.deltas.base import BaseMatrices
from indexer.deltas.vectorise import vectorise
from indexer.errors import AtlasError, ModelError
from indexer.listing.claims import listed_filenames, untyped_relation
from indexer.names import ModelRef
from indexer.network.hub import conversion_revision, model_row
from indexer.network.session import as_model_error, install_session
from indexer.records.identity import SVD_METHOD, Spec
from indexer.records.record import Record
from indexer.records.unit import Unit


@dataclass(frozen=True)
class PublishedBase:
    """A base of an atlas: its matrices on disk, and the rank its published vectors were made with."""

    base: str
    commit: str
    file: Path
    rank: int


def read_model(reference: ModelRef, choose_base: Callable[[list[str]], PublishedBase]) -> Record:
    """Read ``reference`` (a Hub id or a folder) and vectorise it against one base of an atlas.

    ``choose_base`` is given the bases that the model claims, in falling order of trust. Raises ModelError
    ("not_found" where the Hub does not know the model), AtlasError where the choice or the folder is impossible.
    """
    install_session()
    torch.set_num_threads(1)
    row = local_row(reference) if reference.folder is not None else model_row(reference.id, reference.revision)
    facts = facts_of(row)
    base = choose_base([claim.base for claim in facts.base_claims])
    if not base.file.is_file():
        raise AtlasError(
            f"The block matrices of {base.base} are not in this atlas ({base.file.name} is missing).",
            f"Fetch them: index build --base {base.base}",
        )
    model = reference.id if reference.folder is not None else str(row["id"])
    unit = Unit(
        model=ModelRef(model, folder=reference.folder),
        commit=commit_of(row) or "main",
        base=base.base,
        base_commit=base.commit,
        relation=untyped_relation(row),
        spec=Spec(rank=base.rank, svd=SVD_METHOD),
        filenames=listed_filenames(row),
        representations=(),
        card={"datasets": list(facts.dataset_names)},
    )
    matrices = BaseMatrices(base.file, resident=False)
    matrices.check()
    try:
        return vectorise(unit, matrices, lambda: conversion_revision(model))
    except (ModelError, AtlasError):
        raise
    except Exception as error:
        raise as_model_error(error) from error
    finally:
        matrices.close()
