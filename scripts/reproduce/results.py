"""What a study found, as it stands in ``results.json``."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.reproduce.planted import Check

PACKAGES = (
    "vectors-in-the-wild", "torch", "transformers", "peft", "safetensors", "huggingface_hub", "numpy", "scipy",
    "scikit-learn", "faiss-cpu", "duckdb", "umap-learn", "matplotlib", "pandas",
)  # fmt: skip


@dataclass(frozen=True)
class Reply:
    """What came of one question: ``answer`` is the command's JSON, ``error`` its last line where it failed."""

    name: str
    command: str
    seconds: float
    answer: Any = None
    file: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Counts:
    """Models found for a base by what became of them; the flagged ones are indexed ones."""

    indexed: int
    skipped: int
    failed: int
    not_tried: int  # listed, and beyond --limit
    copies: int
    duplicates: int
    unrelated: int
    adapters: int
    datasets: int  # named by the indexed models
    authors: int  # of the indexed models
    reasons: Mapping[str, int]  # of what was skipped or failed


@dataclass(frozen=True)
class BaseResults:
    """One base. ``seconds`` by part: training (of its family), build, and each kind of question."""

    seed_base: str
    base: str
    commit: str
    counts: Counts
    bytes_read: int
    check: Check | None  # of what was planted; None on the Hub, where nothing was
    replies: Mapping[str, Reply]
    seconds: Mapping[str, float]

    def answer(self, name: str) -> Any:
        """The answer to a question; None where there is none."""
        reply = self.replies.get(name)
        return None if reply is None else reply.answer


@dataclass(frozen=True)
class Results:
    """The whole study: ``source`` is the Hub's address, or what stood in its place."""

    source: str
    size: str | None
    limit: int | None
    bases: tuple[BaseResults, ...]
    represent_seconds: Mapping[str, float]  # to publish each representation, of all bases together
    purity_figure: str
    versions: Mapping[str, str] = field(default_factory=lambda: versions())

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=True) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Of Python and of the packages that numbers depend on; those that are not installed are left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
