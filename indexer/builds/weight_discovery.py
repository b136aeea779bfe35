"""Finds fine-tunes that name no base, by their weights: `index build --discover weights`.

Candidates are untagged models that have the base's architecture and size according to the Hub's listing. A few rows of
one matrix are read from each and compared with the same rows of the base, and of every other base in the atlas with the
same shapes. The rows of a fine-tune are nearly those of its base; those of a model that was trained from scratch, or
from another base, are almost orthogonal to them. A model that is claimed this way is read like any listed model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.builds.build import Build
from indexer.checkpoints.ahead import in_threads
from indexer.checkpoints.architectures.layout import Matrix
from indexer.checkpoints.checkpoint import shards_of
from indexer.checkpoints.checkpoint_files import choose
from indexer.checkpoints.repository import open_repository
from indexer.checkpoints.safetensors_header import FIRST_GUESS
from indexer.checkpoints.stored_tensor import read_safetensors
from indexer.deltas.base import BaseMatrices, open_base
from indexer.deltas.stored_base import stored_bases
from indexer.errors import AtlasError, Failed, Skipped
from indexer.network.rows import commit_of, listed_filenames
from indexer.quantities import size_in_words
from indexer.records.identity import Thresholds
from indexer.records.row_plan import lines_to_read, stripes, stripes_of
from indexer.sources.claims import Claim, stated_models
from indexer.sources.questions import BadRow, CheckedRow, ClaimedRow, RawRow, Rejected
from indexer.sources.registry import ModelRef, author_of
from indexer.sources.rows import bad_row
from indexer.untrusted import is_count, shown

# Models examined in one run, unless `--max-candidates` says otherwise.
MOST_CANDIDATES = 1_000
# Models of one author: the Hub's bots upload thousands of models of one architecture.
MOST_OF_AUTHOR = 50
# Fine-tuning may add a head to a base, or an embedding that the head no longer shares.
LARGEST_SIZE = 1.5
# Bytes of a safetensors header for each block matrix, for an estimate.
_HEADER_BYTES = 300
# Repositories that test programs and bots make, whose weights are random.
_BOTS = re.compile(r"myawesomemodel|test-?repo|tiny-random|dummy", re.IGNORECASE)


@dataclass(frozen=True)
class Reference:
    """A base that candidates are compared with: the rows of the probed matrix, and the hashes of its weight files."""

    base: str
    rows: torch.Tensor
    file_hashes: frozenset[str]


@dataclass
class Examination:
    """Checks which untagged models of a listing come from a base, by rows of one matrix.

    ``known``: id → (commit, claim or None) of models that were examined before. With ``counts_only`` nothing is read.
    """

    build: Build
    known: Mapping[str, tuple[str, Claim | None]]
    counts_only: bool = False
    listed: int = 0
    candidates: int = 0
    claimed: int = 0
    is_cut: bool = False
    _of_author: Counter[str] = field(default_factory=Counter)

    @property
    def most(self) -> int:
        """How many models may be examined."""
        return self.build.options.max_candidates or MOST_CANDIDATES

    @property
    def is_full(self) -> bool:
        """Whether no further model may be examined."""
        return self.candidates >= self.most

    @cached_property
    def model_type(self) -> str:
        """The base's architecture, as configurations and the Hub's tags name it."""
        return str(self.build.facts.config.get("model_type"))

    def __call__(self, rows: Sequence[Any]) -> list[CheckedRow | None]:
        """What the rows of a page are; None for a model that is not a candidate or was left for a later run.

        Raises AtlasError if the Hub cannot be asked any more, or the base cannot be read.
        """
        checked_rows: list[CheckedRow | None] = [None] * len(rows)
        candidates: list[tuple[int, RawRow]] = []
        for number, row in enumerate(rows):
            self.listed += 1
            if not self._is_candidate(row):
                continue
            identifier, commit = str(row["id"]), str(row["sha"])
            known = self.known.get(identifier)
            if known is not None and known[0] == commit:
                claim = known[1]
                checked_rows[number] = (
                    ClaimedRow(row, claim) if claim else Rejected(identifier, commit, "examined before", "unrelated")
                )
                continue
            author = author_of(identifier)
            if self.is_full or self._of_author[author] >= MOST_OF_AUTHOR:
                self.is_cut = True
                continue
            self.candidates += 1
            self._of_author[author] += 1
            candidates.append((number, row))
        if self.counts_only:
            self.is_cut = True
            return checked_rows
        if candidates:
            self.references  # noqa: B018 - the bases are read once, before threads ask for them
        verdicts = in_threads([partial(self._examined, row) for _, row in candidates], self.build.options.connections)
        for (number, _), verdict in zip(candidates, verdicts, strict=True):
            checked_rows[number] = verdict
            self.claimed += isinstance(verdict, ClaimedRow)
        return checked_rows

    def _is_candidate(self, row: Any) -> bool:
        """Whether a row may be an untagged fine-tune of the base, according to the listing."""
        if bad_row(row, self.build.source.valid_id) or "id" not in row or commit_of(row) is None:
            return False
        if row["id"] in self.build.facts.ids or stated_models(row) or _BOTS.search(row["id"]):
            return False
        config, filenames = row.get("config"), listed_filenames(row)
        if not isinstance(config, dict) or config.get("model_type") != self.model_type:
            return False
        if config.get("quantization_config") or any(row.get(name) for name in ("gated", "private", "disabled")):
            return False
        try:
            choice = choose(filenames or (), "finetune")
        except Skipped:
            return False
        least, most = self.sizes
        is_readable = choice.kind == "full" and ".safetensors" in choice.name and "config.json" in (filenames or ())
        return is_readable and least <= _weights_in(row) <= most

    @cached_property
    def sizes(self) -> tuple[int, float]:
        """The smallest and the largest number of weights that a fine-tune can have."""
        shape = self.build.base.shape
        blocks = sum(matrix.shape[0] * matrix.shape[1] for matrix in shape.layout.matrices)
        return blocks, LARGEST_SIZE * max(_weights_in(self.build.facts.row) or 2 * blocks, blocks)

    @cached_property
    def probe(self) -> Matrix:
        """The matrix that is compared: in the middle, because the first and last layers may be frozen or replaced."""
        layout = self.build.base.shape.layout
        depth = max(matrix.key.layer for matrix in layout.matrices)
        nearest = min(abs(matrix.key.layer - depth // 2) for matrix in layout.matrices)
        near = [matrix for matrix in layout.matrices if abs(matrix.key.layer - depth // 2) == nearest]
        return next((matrix for matrix in near if matrix.key.family == "value"), near[0])

    @cached_property
    def lines(self) -> NDArray[np.int64]:
        """The rows of it that are read: the first stripe of the smallest sample."""
        probe = self.probe
        return np.array(stripes(probe.lines, lines_to_read(probe.shape, probe.transposed, 4))[0], dtype=np.int64)

    @cached_property
    def references(self) -> list[Reference]:
        """The base, and every other base of the atlas with the same matrices. Raises AtlasError."""
        build = self.build
        shapes = {(matrix.key, matrix.shape) for matrix in build.base.shape.layout.matrices}
        reference_of: dict[str, Reference] = {}
        for stored in stored_bases(build.folder):
            try:
                is_like = {(matrix.key, matrix.shape) for matrix in stored.layout.matrices} == shapes
                if not is_like or stored.base in reference_of:
                    continue
                stored.check()
                with closing(BaseMatrices(stored.path, resident=False)) as matrices:
                    rows = matrices.lines(self.probe.key, self.lines).float().clone()
            except (AtlasError, KeyError):
                continue  # a damaged base, or one whose weights are not kept
            hashes = frozenset(digest for digest in stored.file_hashes if digest)
            reference_of[stored.base] = Reference(stored.base, rows, hashes)
        if build.facts.id not in reference_of:
            with closing(open_base(build.facts)) as checkpoint:
                rows_to_read = stripes_of(self.probe.stored_lines(self.lines))
                ((_, rows),) = checkpoint.stripes({self.probe.tensor: rows_to_read})
                hashes = frozenset(file.sha256 for file in checkpoint.files if file.sha256)
                reference_of[build.facts.id] = Reference(build.facts.id, self.probe.extract_lines(rows).float(), hashes)
        return list(reference_of.values())

    def _examined(self, row: RawRow) -> CheckedRow:
        identifier, commit = str(row["id"]), str(row["sha"])
        unrelated = partial(Rejected, identifier, commit, kind="unrelated")
        try:
            rows, digest = self._rows_of(identifier, commit, listed_filenames(row) or ())
        except Failed as error:
            if error.reason in ("network", "rate_limited"):
                raise self.build.source.stopped(error, f"the weights of {identifier}") from error
            return BadRow.of({"id": identifier}, f"its weights could not be compared: {error.detail}")
        except Skipped as error:
            return unrelated(error.detail)
        copied = next((reference.base for reference in self.references if digest in reference.file_hashes), None)
        if copied is not None:
            return unrelated(f"its weights are the file of {copied}")
        nearest = min(self.references, key=lambda reference: float((rows.double() - reference.rows.double()).norm()))
        model_values, base_values = rows.double().flatten(), nearest.rows.double().flatten()
        cosine = float(torch.dot(model_values, base_values) / (model_values.norm() * base_values.norm()))
        if not cosine >= Thresholds().unrelated_below:  # also NaN: one of them is zero
            return unrelated(f"its weights are unrelated (cosine {cosine:.2f} with {nearest.base})")
        if nearest.base != self.build.facts.id:
            return unrelated(f"its weights are nearer to {nearest.base}")
        return ClaimedRow(row, Claim("finetune", "weights", self.build.facts.id))

    def _rows_of(self, identifier: str, commit: str, filenames: Sequence[str]) -> tuple[torch.Tensor, str | None]:
        """The probed rows of a candidate, and the hash of its weight file. Raises ModelError."""
        probe = self.probe
        repository = open_repository(ModelRef.of_atlas(identifier), commit=commit, filenames=filenames)
        choice = choose(repository.filenames, "finetune")
        path = choice.folder + choice.name
        if choice.is_index:
            files = {name: file for file, names in shards_of(repository, choice).items() for name in names}
            listed_name = _name_like(probe.tensor, files)
            if listed_name is None:
                raise Skipped("missing_matrices", f"its index names no shard with {shown(probe.tensor)}")
            path = files[listed_name]
        with closing(repository.open(path)) as source:
            index = read_safetensors(source)
            name = _name_like(probe.tensor, index.tensors)
            if name is None:
                raise Skipped("missing_matrices", f"it has no tensor {shown(probe.tensor)}")
            expected = (probe.stored_rows, probe.shape[1])
            info = index.tensors[name]
            if info.shape != (expected[::-1] if probe.transposed else expected):
                raise Skipped("shape_mismatch", f"its {shown(name)} is {info.shape}")
            rows = torch.cat([index.read(name, stripe) for stripe in stripes_of(probe.stored_lines(self.lines))])
            digest = source.sha256 if not choice.is_index else None
        return probe.extract_lines(rows).float(), digest

    def sentence(self) -> str:
        """What was found, or what it would take."""
        words = f"untagged models of type {self.model_type}: {self.listed:,} listed, {self.candidates:,} candidates"
        more = f", more of them in a later run (`max_candidates` {self.most:,})" if self.is_full else ""
        if self.counts_only:
            width = self.probe.stored_rows if self.probe.transposed else self.probe.shape[1]
            header = max(FIRST_GUESS, _HEADER_BYTES * len(self.build.base.shape.layout.matrices))
            size = size_in_words(self.candidates * (len(self.lines) * width * 4 + header))
            return f"{words}{more}; comparing them takes ≈ {self.candidates:,} file requests and {size}"
        return f"{words}, {self.claimed:,} with weights like those of {self.build.facts.id}{more}"


def _weights_in(row: Mapping[str, Any]) -> int:
    """How many weights a model has, by the Hub's count; 0 if it has none."""
    stored = row.get("safetensors")
    total = stored.get("total") if isinstance(stored, dict) else None
    return total if isinstance(total, int) and is_count(total) else 0


def _name_like(tensor: str, names: Mapping[str, Any]) -> str | None:
    """The tensor of this name, with any prefix that a head adds or drops; None if not exactly one fits."""
    parts = tensor.split(".")
    for start in range(len(parts)):
        if not any(part.isdigit() for part in parts[start:]):
            break  # a name without the number of its layer is ambiguous
        ending = ".".join(parts[start:])
        matches = [name for name in names if name == ending or name.endswith(f".{ending}")]
        if matches:
            return matches[0] if len(matches) == 1 else None
    return None
