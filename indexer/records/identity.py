"""The unit of work: one model at one commit against one base; the identity of its record, and its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from indexer.names import ModelRef

FORMAT_VERSION = 1

# Start of ``AdapterBase.why`` if the listing row of an adapter names another base than its file.
ROW_NAMES = "its listing row names "

# Names the algorithm of `indexer.deltas.svd` and the constants there. Change it when results change.
# Method 1 started from a seed of model and commit, method 2 from one of base, base commit and matrix: both find the
# same triplets to within their tolerance, so records of both are used, and new ones are made by the newest method.
SVD_METHOD = "block-krylov-2"
SVD_METHODS = (SVD_METHOD, "block-krylov-1")

# What `--spectra` keeps: all singular values of every δW, of every W, and of fused matrices taken whole.
SPECTRA_FORM = "delta-weights-1"


@dataclass(frozen=True)
class Spec:
    """The settings of a record: everything here changes the record, and nothing else does.

    ``spectra`` is False or ``SPECTRA_FORM``; True stands in records of the first form, which has those of δW alone.
    ``sample``: the plan of rows that were read (``indexer.records.row_plan``), "" for a full read.
    """

    rank: int = 8
    spectra: bool | str = False
    svd: str = ""
    format: int = FORMAT_VERSION
    sample: str = ""

    def as_row(self) -> dict[str, Any]:
        """As JSON; without the key ``sample`` for a full read, as in records from before there were samples."""
        fields = dict(vars(self))
        if not self.sample:
            del fields["sample"]
        return fields


@dataclass(frozen=True)
class Identity:
    """The identity of a record. The same identity gives the same record, so its digest is the file name.

    ``parent`` is the name of the model that an adapter was trained on (``Parent``), "" for the base.
    """

    model: str
    commit: str
    base: str
    base_commit: str
    relation: str
    spec: Spec
    subfolder: str = ""
    parent: str = ""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Identity:
        """From its JSON. Raises KeyError or TypeError if it is malformed."""
        fields = dict(row)
        return cls(spec=Spec(**fields.pop("spec")), **fields)

    def as_row(self) -> dict[str, Any]:
        """As JSON; without the key ``parent`` if there is none, as in older records."""
        # Not asdict: every publish needs this for every record, perhaps ten thousand times.
        fields = {**vars(self), "spec": self.spec.as_row()}
        if not self.parent:
            del fields["parent"]
        return fields

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical JSON of ``as_row``."""
        return hashlib.sha256(canonical_json(self.as_row()).encode()).hexdigest()


@dataclass(frozen=True)
class Parent:
    """The model that an adapter was trained on. ``parent``: the same for that model, if it is an adapter itself.

    ``relation``: adapter or finetune, according to its files. ``filenames``: those of its repository, if known.
    """

    model: str
    commit: str
    relation: str
    parent: Parent | None = None
    filenames: tuple[str, ...] | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """``owner/name@commit``, followed by ">" and the name of its own parent."""
        own = f"{self.model}@{self.commit}"
        return f"{own}>{self.parent.name}" if self.parent else own


# Parts of ``AdapterBase.why`` that a publish repeats as an oddity of the model, besides ROW_NAMES.
NAMES_ITSELF = "it names itself as its base"
LEADS_BACK = "its bases lead back to "
NAMES_REVISION = "it names the revision "


@dataclass(frozen=True)
class AdapterBase:
    """How the base ``named`` by an adapter (adapter_config.json, made printable) was resolved.

    ``verdict``: ``base``; ``finetune`` (the change of ``parent`` was added to that of the adapter); ``foreign``
    (another base); ``unknown`` (treated as an adapter of the base). ``why`` is a sentence.
    """

    named: str
    verdict: str
    parent: str = ""
    why: str = ""


@dataclass(frozen=True)
class Unit:
    """One model at one commit against one base. ``filenames``: the files named by the listing, if it names any.

    ``parent``: the model that an adapter was trained on; None for the base, or if unknown. ``is_on_base``: the adapter
    is known to be one of the base, whatever name it gives. ``row_base``: the base named by the listing row of an
    adapter, "" for none; None if there is no row. ``vector_length``: the requested length of a vector, approximately;
    None for the usual one. Vectors in a record are uncentred. ``refused``: why an adapter stands on models that are not
    followed; ``circle``: how they lead back to it; "" otherwise.
    """

    model: ModelRef
    commit: str
    base: str
    base_commit: str
    relation: str
    spec: Spec
    filenames: tuple[str, ...] | None = None
    device: str = "cpu"
    keep_factors: bool = True
    representations: tuple[str, ...] = ("input",)
    vector_length: int | None = None
    card: Mapping[str, Any] | None = None
    parent: Parent | None = None
    is_on_base: bool = False
    row_base: str | None = None
    refused: str = ""
    circle: str = ""

    @property
    def identity(self) -> Identity:
        """The identity of its record."""
        return Identity(
            model=self.model.id,
            commit=self.commit,
            base=self.base,
            base_commit=self.base_commit,
            relation=self.relation,
            spec=self.spec,
            subfolder=self.model.subfolder,
            parent=self.parent.name if self.parent else "",
        )


@dataclass
class Traffic:
    """Bytes read of one model, and the size of its weight files; also counted if it fails."""

    read: int = 0
    total: int = 0


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the flags, stored with every build."""

    unrelated_below: float = 0.3
    duplicate_within: float = 1e-3


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no spaces. Raises ValueError for NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
