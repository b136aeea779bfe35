"""Which record this is: what of which model it was computed from, and how. The same identity, the same file name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMAT_VERSION = 1

# Names the algorithm of `indexer.deltas.svd` and the constants there. Change it when results change.
# Method 1 started from a seed of model and commit, method 2 from one of base, base commit and matrix: both find the
# same triplets to within their tolerance, so records of either serve, and only new ones are made by the newest.
SVD_METHOD = "block-krylov-2"
SVD_METHODS = (SVD_METHOD, "block-krylov-1")

# What `--spectra` keeps: all singular values of every δW, of every W, and of fused matrices taken whole.
SPECTRA_FORM = "delta-weights-1"


@dataclass(frozen=True)
class Spec:
    """What is computed from the weights: everything here changes the record, nothing else does.

    ``spectra`` is False or ``SPECTRA_FORM``; True stands in records of the first form, which has those of δW alone.
    """

    rank: int = 8
    spectra: bool | str = False
    svd: str = ""
    format: int = FORMAT_VERSION


@dataclass(frozen=True)
class Identity:
    """Which record this is: the same identity gives the same record, so its digest is the file's name.

    ``parent`` is the name of what an adapter stands on (``indexer.records.parent``), "" where that is the base.
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
        """From its JSON. Raises KeyError or TypeError where it is none."""
        fields = dict(row)
        return cls(spec=Spec(**fields.pop("spec")), **fields)

    def as_row(self) -> dict[str, Any]:
        """As JSON. Without a parent where there is none: most records have none, and earlier ones knew of none."""
        # Not asdict: ten thousand of these are asked for before every publish.
        fields = {**vars(self), "spec": vars(self.spec)}
        if not self.parent:
            del fields["parent"]
        return fields

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical JSON of ``as_row``."""
        return hashlib.sha256(canonical_json(self.as_row()).encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no spaces, no NaN (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
