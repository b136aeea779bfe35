"""Where a unit is done, and what has become of it: what travels between a build and its workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from indexer.builds.resources import Resources
from indexer.errors import ModelError
from indexer.records.unit import Unit


@dataclass(frozen=True)
class Place:
    """Where results go, where the base lies, what may be used: all that a worker needs besides the unit."""

    atlas: Path
    base_file: Path
    resources: Resources = field(default_factory=Resources)


@dataclass(frozen=True)
class Result:
    """What became of one unit; ``error`` is None where a record was written."""

    unit: Unit
    error: ModelError | None
    bytes_read: int = 0
    bytes_total: int = 0
    seconds: float = 0.0
