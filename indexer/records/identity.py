"""The unit of work: one model at one commit against one base; the identity of its record, and its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from indexer.errors import AtlasError, Skipped, unreadable
from indexer.sources.registry import ModelRef
from indexer.untrusted import shown

# The version of everything that a record and a stored base hold. Change it when any of that changes, or how it is
# computed: fields, the algorithm and the constants of ``indexer.deltas.svd``, the rows of ``indexer.records.row_plan``
# and ``indexer.records.tokens``, the spectra that are kept. Records of another version are read again by a build.
RECORD_VERSION = 2

# Start of ``AdapterBase.why`` if the listing row of an adapter names another base than its file.
ROW_NAMES = "its listing row names "


class OtherVersion(AtlasError):
    """A record, failure or base is of a version that this program does not read."""


def check_version(version: Any, what: str, repair: str) -> None:
    """Raise OtherVersion if ``what`` ("The record X") is of a version that this program cannot read.

    Earlier versions are read as far as their form allows. ``repair``: what to do about anything that is not newer.
    """
    if type(version) is not int or not 1 <= version <= RECORD_VERSION:
        is_newer = type(version) is int and version > RECORD_VERSION
        raise OtherVersion(
            f"{what} is of record version {shown(version)}; this program reads version {RECORD_VERSION}.",
            "Upgrade." if is_newer else repair,
        )


@dataclass(frozen=True)
class Spec:
    """The settings of a record: everything here changes the record, and nothing else does.

    ``spectra``: with all singular values of every δW, of every W, and of fused matrices taken whole. ``sample``: only
    some rows of each matrix were read (``indexer.records.row_plan``).
    """

    rank: int = 8
    spectra: bool = False
    sample: bool = False
    version: int = RECORD_VERSION

    def as_row(self) -> dict[str, Any]:
        """As JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Identity:
    """The identity of a record. The same identity gives the same record, so its digest is the file name.

    ``parent`` is the name of the model that an adapter was trained on (``ModelVersion.name``), "" for the base.
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
    def from_row(cls, row: Mapping[str, Any], what: str = "The record") -> Identity:
        """From its JSON. Raises OtherVersion, which names ``what``, and one of WRONG_KINDS if it is malformed."""
        fields = dict(row)
        check_version(fields["spec"].get("version"), what, "Run `index build`, which reads the model again.")
        return cls(spec=Spec(**fields.pop("spec")), **fields)

    def as_row(self) -> dict[str, Any]:
        """As JSON."""
        # Not asdict: every publish needs this for every record, perhaps ten thousand times.
        return {**vars(self), "spec": self.spec.as_row()}

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical JSON of ``as_row``."""
        return hashlib.sha256(canonical_json(self.as_row()).encode()).hexdigest()


@dataclass(frozen=True)
class ModelVersion:
    """A model at one commit, and the model that it was trained on.

    ``commit``: None for the newest. ``relation``: adapter or finetune, according to its files. ``parent``: of an
    adapter, None for the base of the atlas; the same for the parent of that, if it is an adapter itself.
    ``filenames``: those of its repository. Where ``commit`` and ``filenames`` are known they save a request.
    """

    model: ModelRef
    commit: str | None = None
    relation: str = "finetune"
    parent: ModelVersion | None = None
    filenames: tuple[str, ...] | None = field(default=None, compare=False)

    @classmethod
    def of_atlas(
        cls, name: str, commit: str | None = None, relation: str = "finetune", parent: ModelVersion | None = None
    ) -> ModelVersion:
        """A model by its name in an atlas; never a folder. Raises AtlasError if no model can have this name."""
        try:
            return cls(ModelRef.of_atlas(name), commit, relation, parent)
        except Skipped as error:
            raise unreadable(name, error) from error

    @property
    def name(self) -> str:
        """``owner/name@commit``, followed by ">" and the name of its own parent."""
        model_at_commit = f"{self.model.id}@{self.commit}"
        return f"{model_at_commit}>{self.parent.name}" if self.parent else model_at_commit


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
    parent: ModelVersion | None = None
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
