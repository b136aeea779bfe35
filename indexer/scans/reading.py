"""Reads one model of a scan: what it is, what its files state, which base its weights tell, and what is wrong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from indexer.builds.report import Result
from indexer.builds.worker import classify_error
from indexer.checkpoints.adapter import adapter_plan
from indexer.checkpoints.checkpoint import Checkpoint
from indexer.deltas.conversions.rows import ConversionRows
from indexer.deltas.conversions.source import Candidate, find_source, opened_once
from indexer.deltas.identification.bases import OpenedBase
from indexer.deltas.identification.identify import SURE, Identification, KnownBase, identify_opened, open_model
from indexer.deltas.identification.rows import SampledRows
from indexer.errors import AtlasError, Failed, ModelError, Skipped
from indexer.formats import WEIGHTS
from indexer.network.session import install_session
from indexer.records.conversion import ConversionSource
from indexer.scans.bases import BasePlace, bases_of_process, claimed, kept
from indexer.scans.content import (
    ChangeSketch,
    Content,
    adapter_sketch,
    changes_nothing,
    read_content,
    sketch_of,
)
from indexer.sources.addresses import opened
from indexer.sources.cards.modelcard import MalformedRow
from indexer.sources.cards.training_files import Training
from indexer.sources.file_systems import FileSystem
from indexer.sources.registry import ModelRef
from indexer.sources.rows import facts_of
from indexer.sources.tree import TreeModel
from indexer.sources.tree_rows import stated
from indexer.untrusted import tidy

FULL = "full model"
_LONGEST = 200
# Metadata of a safetensors file that name a licence.
_LICENCES = ("license", "licence", "modelspec.license", "general.license")
# Models of the scan that one conversion is compared with, those that are likelier first.
MOST_SOURCES, MOST_SOURCES_REMOTE = 64, 8


@dataclass(frozen=True)
class Digest:
    """Tells a unit of a scan from the others."""

    digest: str


@dataclass(frozen=True)
class PossibleSource:
    """A full model of the scan that a conversion may be a copy of: its name, and where it lies."""

    name: str
    model: TreeModel
    address: str
    options: tuple[tuple[str, Any], ...] = ()

    def opened(self) -> Checkpoint:
        """Its weights. Raises ModelError, AtlasError."""
        return open_model(self.model.reference(self.name, opened(self.address, dict(self.options)), self.options))


@dataclass(frozen=True)
class ModelToRead:
    """One model of a place. ``number``: its place in the scan; ``name``: what the page calls it.

    ``options``: fsspec's for the ``address``. ``bases``: those to compare with besides the one that it names, if that
    is in the cache. ``only_content``: read all of the weights, and nothing else. ``finds_source``: look for
    what a conversion is a copy of, among ``sources`` and their ``base`` ("" if it is not here), and for nothing else.
    """

    number: int
    name: str
    model: TreeModel
    address: str
    options: tuple[tuple[str, Any], ...] = ()
    bases: tuple[BasePlace, ...] = ()
    only_content: bool = False
    finds_source: bool = False
    sources: tuple[PossibleSource, ...] = ()
    base: str = ""

    @property
    def identity(self) -> Digest:
        """Its number in the scan."""
        return Digest(f"{self.number}{' content' if self.only_content else ' source' if self.finds_source else ''}")


@dataclass(frozen=True)
class Reading:
    """What was found in one model; each part is None or empty where it says nothing.

    Attributes:
        kind: "full model", the kind of an adapter, or the format of a conversion ("GGUF Q4_K_M").
        is_conversion: whether it is a copy of a model in another format.
        source: what such a copy was made from, if that was looked for.
        bytes: of its weight files.
        claim: the base that its files name; ``claimed_in``: what names it; ``is_claim_here``: whether it was compared.
        identification: the comparison with the bases that are here; None if there were none.
        content: the weights' hashes.
        sketch: its change, for near-duplicates.
        untrained: why it is as if it had not been trained.
        licence: as its card or its metadata name it.
        training: what the files beside it say, without settings.
        inodes: of its files, which tell links from copies.
        modified: when its files were modified, ISO 8601.
    """

    kind: str = ""
    is_conversion: bool = False
    source: ConversionSource | None = None
    bytes: int = 0
    claim: str | None = None
    claimed_in: str = ""
    is_claim_here: bool = False
    identification: Identification | None = None
    content: Content | None = None
    sketch: ChangeSketch | None = None
    untrained: str = ""
    licence: str | None = None
    training: Training = field(default_factory=Training)
    inodes: tuple[tuple[int, int], ...] = ()
    modified: str = ""


@dataclass(frozen=True)
class ModelRead(Result[ModelToRead]):
    """A model that was read. Of one with an ``error`` the reading has what was found before."""

    reading: Reading = field(default_factory=Reading)


@dataclass(frozen=True)
class ScanWorker:
    """Reads models in whatever process it is called. ``atlas``: the folder of one whose bases are known too."""

    atlas: str | None = None

    def __call__(self, unit: ModelToRead) -> ModelRead:
        """Read one model. Never raises because of it."""
        torch.set_num_threads(1)
        install_session()
        reading = _Model(unit, self.atlas)
        error: ModelError | None = None
        reference: ModelRef | None = None
        try:
            files = opened(unit.address, dict(unit.options))
            reference = unit.model.reference(unit.name, files, unit.options)
            reading.read(files, reference)
        except AtlasError:  # its message names the place
            error = Failed("not_found", "its place cannot be opened any more")
        except Exception as problem:
            error = classify_error(problem)
            if reference is not None:
                error = type(error)(error.reason, reference.source.without_private(reference, error.detail))
        return ModelRead(unit, error, bytes_read=reading.bytes_read, reading=reading.found)

    def give_up(self, unit: ModelToRead, error: ModelError) -> ModelRead:
        """The result of a model whose process died each time."""
        return ModelRead(unit, error)


class _Model:
    """One model while it is read."""

    def __init__(self, unit: ModelToRead, atlas: str | None) -> None:
        self.unit, self.atlas = unit, atlas
        self.found = Reading(bytes=sum(_weight_sizes(unit.model)))
        self.bytes_read = 0

    def _note(self, **parts: Any) -> None:
        self.found = replace(self.found, **parts)

    def read(self, files: FileSystem, reference: ModelRef) -> None:
        """Read it, part by part. Raises ModelError."""
        if not files.is_remote:
            self._note(inodes=_inodes(self.unit.model, files.address))
        if self.unit.finds_source:
            with closing(open_model(reference)) as checkpoint:
                self._note(source=self._source(checkpoint))
                self.bytes_read = checkpoint.bytes_read
            return
        if self.unit.only_content:
            with closing(open_model(reference)) as checkpoint:
                self._note(content=read_content(checkpoint, files.is_remote, whole=True))
            return
        facts, row = stated(self.unit.model, files)
        bases = bases_of_process(self.atlas)
        known = bases.known(self.unit.bases)
        claim = claimed(facts, reference.id, known)
        if claim is not None and not _is_among(claim, known) and (place := kept(claim)) is not None:
            known = bases.known([*self.unit.bases, place])
            claim = claimed(facts, reference.id, known)
        where = next((what for what, name in facts.named if claim is not None and _names(name, claim, known)), "")
        self._note(
            claim=claim,
            claimed_in=where,
            is_claim_here=claim is not None and _is_among(claim, known),
            licence=_licence_of_row(row),
            modified=str(row.get("lastModified", "")),
        )
        with closing(open_model(reference)) as checkpoint:
            try:
                self._read_weights(checkpoint, reference, known, files.is_remote)
            finally:
                self.bytes_read = checkpoint.bytes_read

    def _read_weights(
        self, checkpoint: Checkpoint, reference: ModelRef, known: Sequence[KnownBase], is_remote: bool
    ) -> None:
        is_conversion = bool(checkpoint.conversion)
        self._note(kind=checkpoint.conversion_kind or FULL, is_conversion=is_conversion)
        self._note(bytes=sum(file.size for file in checkpoint.files))
        training = checkpoint.training()
        self._note(
            training=replace(training, settings={}, tags=()),
            licence=self.found.licence or training.licence or _licence_in(checkpoint),
        )
        if checkpoint.kind == "adapter":
            self._note(kind=_kind_of_adapter(checkpoint))
        content = read_content(checkpoint, is_remote)
        self._note(content=content)
        plan = adapter_plan(checkpoint) if checkpoint.kind == "adapter" else None
        rows = SampledRows(checkpoint) if plan is None else None
        identification = identify_opened(reference, checkpoint, known, rows) if known else None
        self._note(identification=identification)
        if plan is not None:
            if changes_nothing(checkpoint, plan, content):
                self._note(untrained="its output side is zero in all modules: it changes nothing")
            self._note(sketch=adapter_sketch(checkpoint, plan))
        elif rows is not None and identification is not None and identification.base is not None:
            best = identification.candidates[0]
            if best.relation == "the base itself":
                self._note(untrained=f"its weights are those of {best.base}, in all rows that were read")
            matrices = next(base.matrices for base in known if base.base == best.base)
            if matrices is not None and best.probability >= SURE:
                self._note(sketch=sketch_of(f"full {best.base}", rows.change(matrices)))

    def _source(self, checkpoint: Checkpoint) -> ConversionSource | None:
        """What a conversion is a copy of: one of the models to compare with, or their base; None if it is of none.

        Where the base is not here, the first of the models that is like the conversion stands for it.
        """
        most = MOST_SOURCES_REMOTE if checkpoint.is_remote else MOST_SOURCES
        candidates = [Candidate(one.name, partial(opened_once, one.opened)) for one in self.unit.sources[:most]]
        if self.unit.base:
            known = bases_of_process(self.atlas).known(self.unit.bases)
            matrices = next((base.matrices for base in known if base.base == self.unit.base), None)
            if matrices is None:
                return None
            with suppress(Skipped):
                return find_source(ConversionRows(checkpoint, matrices), self.unit.base, candidates, most_read=most)
            return None
        for source in self.unit.sources[:most]:
            with suppress(ModelError, AtlasError), closing(source.opened()) as opened_source:
                rows = ConversionRows(checkpoint, OpenedBase(opened_source))
                return find_source(rows, source.name, candidates, most_read=most)
        return None


def _is_among(base: str, known: Sequence[KnownBase]) -> bool:
    """Whether a base can be compared with."""
    return any(base == known_base.base and known_base.matrices is not None for known_base in known)


def _names(name: str, claim: str, known: Sequence[KnownBase]) -> bool:
    ids = next((base.ids for base in known if base.base == claim), (claim,))
    return name.lower() in {identifier.lower() for identifier in ids} or name.lower().rpartition("/")[2] in {
        identifier.lower().rpartition("/")[2] for identifier in ids
    }


def _weight_sizes(model: TreeModel) -> list[int]:
    return [file.facts.size for name, file in model.files.items() if name.endswith(WEIGHTS)]


def _inodes(model: TreeModel, root: str) -> tuple[tuple[int, int], ...]:
    """Device and inode of each weight file; () where one cannot be looked up."""
    inodes = []
    for name, file in sorted(model.files.items()):
        if not name.endswith(WEIGHTS):
            continue
        try:
            status = os.stat(f"{root}/{file.path}")  # noqa: PTH116 - paths here are text, for names that are not UTF-8
        except (OSError, ValueError):
            return ()
        inodes.append((status.st_dev, status.st_ino))
    return tuple(inodes)


def _kind_of_adapter(checkpoint: Checkpoint) -> str:
    """The kind of an adapter; of one that cannot be read, what adapter_config.json calls it."""
    with suppress(Skipped):
        return adapter_plan(checkpoint).kind
    stated_type = (checkpoint.adapter_config or {}).get("peft_type")
    return f"adapter ({tidy(stated_type, 40)})" if isinstance(stated_type, str) and stated_type else "adapter"


def _licence_of_row(row: dict[str, Any]) -> str | None:
    try:
        licence = facts_of({**row, "id": "x/y"}).licence
    except MalformedRow:
        return None
    return tidy(str(licence), _LONGEST) or None if licence else None


def _licence_in(checkpoint: Checkpoint) -> str | None:
    texts = (checkpoint.metadata.get(key) for key in _LICENCES)
    return next((tidy(text, _LONGEST) for text in texts if isinstance(text, str) and text.strip()), None)


def is_broken(error: ModelError) -> bool:
    """Whether a model cannot be read for what it is: damaged, cut short, not finite, or out of reach now."""
    if error.reason == "not_installed":
        return False
    return isinstance(error, Failed) or (isinstance(error, Skipped) and error.reason in _DAMAGED)


_DAMAGED = frozenset(("corrupt_file", "malformed", "not_finite", "no_weights", "unsafe_pickle"))
