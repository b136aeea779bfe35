"""The base model's block matrices: fetched once, stored in the atlas, read one by one."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from indexer.checkpoints.adapter_forms import MARKER
from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.checkpoints.architectures.layout import Layout
from indexer.checkpoints.checkpoint import Checkpoint, open_checkpoint
from indexer.checkpoints.checkpoint_files import GGUF, ONNX
from indexer.checkpoints.stored_tensor import DTYPE_NAMES, READABLE, TensorIndex, read_safetensors
from indexer.deltas.embeddings import base_stripes, embedding_names
from indexer.deltas.stored_base import (
    EMBEDDINGS,
    TOKENS,
    UNKNOWN,
    BaseShape,
    StoredBase,
    date_as_newest,
    sampled_lines,
    sampled_shape,
    with_checksum,
)
from indexer.deltas.svd import spectrum
from indexer.errors import AtlasError, Call, Failed, ModelError, Skipped, Text
from indexer.names import CONNECTIONS, DeltaKey
from indexer.network.byterange import LocalFile
from indexer.records.identity import RECORD_VERSION
from indexer.records.row_plan import leading, lines_of, stripes_of
from indexer.records.tokens import token_rows
from indexer.sources.registry import ModelRef
from indexer.sources.source import BaseFacts
from indexer.storage.atomic_files import replacing, temporary_path
from indexer.untrusted import shown

if TYPE_CHECKING:
    from indexer.vectors.published import PublishedBase


@dataclass
class BaseMatrices(StoredBase):
    """The base's block matrices on disk.

    ``resident``: matrices stay in memory after their first use. Otherwise each is read again: processes share the page
    cache, but not their memory.
    """

    resident: bool = True
    _resident: dict[DeltaKey, torch.Tensor] = field(default_factory=dict, repr=False)
    _spectra: dict[tuple[DeltaKey, ...], NDArray[np.float32]] = field(default_factory=dict, repr=False)
    _lines: dict[tuple[DeltaKey, bytes], torch.Tensor] = field(default_factory=dict, repr=False)
    scales: dict[tuple[Any, ...], torch.Tensor] = field(default_factory=dict, repr=False)  # see indexer.deltas.nf4

    @cached_property
    def _file(self) -> LocalFile:
        return LocalFile(self.path)

    @cached_property
    def _index(self) -> TensorIndex:
        return read_safetensors(self._file)

    def matrix(self, key: DeltaKey) -> torch.Tensor:
        """One matrix, (out, in), in the base's own dtype. Do not write to it.

        Raises Skipped("base_sampled") if the atlas keeps only some of its rows.
        """
        if self.is_sampled:
            problem = f"it needs whole matrices of {self.base}, but this atlas keeps only some of their rows"
            raise Skipped("base_sampled", f"{problem}: build with --read full")
        return self._stored(key)

    def _stored(self, key: DeltaKey) -> torch.Tensor:
        weight = self._resident.get(key)
        if weight is None:
            weight = self._index.read(str(key))
            if self.resident:
                self._resident[key] = weight
        return weight

    def lines(self, key: DeltaKey, lines: NDArray[np.int64]) -> torch.Tensor:
        """Some rows of a matrix; of a matrix that checkpoints store transposed, some input coordinates (out, n).

        They stay in memory, because all models need the same rows. Do not write to them.
        """
        block = self._lines.get((key, lines.tobytes()))
        if block is None:
            matrix = self.layout.by_key[key]
            if self.is_sampled:
                stored = self._stored(key)
                positions = np.searchsorted(lines_of(matrix.lines, sampled_lines(matrix)), lines)
                block = stored[:, positions] if matrix.transposed else stored[positions]
            elif matrix.transposed:
                block = self.matrix(key)[:, lines]
            elif key in self._resident:
                block = self._resident[key][lines]
            else:
                block = torch.cat([self._index.read(str(key), stripe) for stripe in stripes_of(lines)])
            self._lines[key, lines.tobytes()] = block
        return block

    def leading_rows(self, key: DeltaKey) -> int:
        """How many of the first rows of one matrix are stored: all of them, unless the base is sampled."""
        matrix = self.layout.by_key[key]
        count = sampled_lines(matrix)
        return matrix.shape[0] if not self.is_sampled or count == matrix.lines else leading(count)

    def leading(self, key: DeltaKey, rows: int, columns: int) -> torch.Tensor:
        """The first rows, up to ``leading_rows``, and columns of one matrix (out, in)."""
        return self._stored(key)[:rows, :columns]

    @cached_property
    def embeddings(self) -> Mapping[str, torch.Tensor]:
        """The rows of its embeddings that are compared with those of fine-tunes (``indexer.deltas.embeddings``).

        Empty if it has none.
        """
        return {kind: self._index.read(kind) for kind in EMBEDDINGS if kind in self._header.entries}

    def spectrum(self, keys: tuple[DeltaKey, ...]) -> NDArray[np.float32]:
        """All singular values of the matrices ``keys``, stacked; computed once."""
        if keys not in self._spectra:
            stacked = torch.cat([self.matrix(key).float() for key in keys])
            self._spectra[keys] = spectrum(stacked).numpy()
        return self._spectra[keys]

    def close(self) -> None:
        """Close the file and release the memory."""
        self._resident.clear()
        self._lines.clear()
        self.scales.clear()
        self._spectra.clear()
        if "_file" in self.__dict__:
            self._file.close()


def published_matrices(base: PublishedBase) -> BaseMatrices:
    """The block matrices of a published base. Raises AtlasError if they are not in the atlas."""
    if not base.file.is_file():
        raise AtlasError(
            f"The block matrices of {base.base} are not in this atlas ({base.file.name} is missing).",
            Text("Fetch them: ", Call("build", base.base)),
        )
    return BaseMatrices(base.file, resident=False)


def open_base(facts: BaseFacts) -> Checkpoint:
    """The base's checkpoint on the Hub. Raises AtlasError if it cannot be read."""
    try:
        reference = ModelRef(facts.id, subfolder=facts.component)
        return open_checkpoint(reference, commit=facts.commit, filenames=facts.filenames or None)
    except ModelError as error:
        raise AtlasError(
            f"The weights of the base {facts.id} cannot be read: {error.detail}.",
            "Try again later." if isinstance(error, Failed) else "Choose another base.",
        ) from error


def store_base(
    checkpoint: Checkpoint,
    base: str,
    commit: str,
    path: Path,
    *,
    component: str = "",
    is_sampled: bool = False,
    words: Sequence[str] = (),
) -> BaseMatrices:
    """Stream the block matrices of ``checkpoint`` into ``path`` (by temporary file and rename).

    ``base``, ``commit``: its canonical id and the commit of ``checkpoint``. ``component``: see ``BaseFacts``.
    ``is_sampled``: store only the rows that a sample of a fine-tune may hold, and estimate the norms from them.
    ``words``: of the rows of its input embedding that are read (``indexer.profiles.words``).

    Raises AtlasError if the checkpoint cannot be a base: an architecture without a data file, missing tensors, or
    weights that are not finite.
    """
    try:
        layout = locate_matrices(checkpoint, checkpoint.config)
        _write_matrices(checkpoint, layout, base, commit, path, component, is_sampled, words)
    except Skipped as reason:
        raise AtlasError(f"{base} cannot be a base: {reason.detail}.", "Choose another base.") from reason
    return BaseMatrices(path)


def shape_of_base(checkpoint: Checkpoint) -> BaseShape:
    """The block matrices that ``store_base`` would write, from the header alone.

    Raises AtlasError if the checkpoint cannot be a base.
    """
    try:
        layout = locate_matrices(checkpoint, checkpoint.config)
        sizes = [checkpoint.tensors[matrix.tensor].dtype.itemsize for matrix in layout.matrices]
    except Skipped as reason:
        raise AtlasError(f"It cannot be a base: {reason.detail}.", "Choose another base.") from reason
    block_bytes = sum(size * math.prod(matrix.shape) for size, matrix in zip(sizes, layout.matrices, strict=True))
    embedding = checkpoint.token_embedding
    vocabulary, width = checkpoint.tensors[embedding].shape if embedding is not None else (0, 0)
    return BaseShape(layout, block_bytes, max(sizes), len(token_rows(vocabulary)) * width)


def locate_matrices(checkpoint: Checkpoint, config: Mapping[str, Any]) -> Layout:
    """The block matrices of a full checkpoint; if it is partly quantised, only the readable matrices.

    Raises Skipped as ``Architecture.locate``, and ``quantized`` if a matrix that is needed cannot be read.
    """
    if checkpoint.conversion in (GGUF, ONNX):
        raise Skipped("conversion", f"it is there only as {checkpoint.conversion}, without the configuration of a base")
    architecture = load_architecture(str(config.get("model_type")))
    is_quantised = bool(config.get("quantised"))
    shapes = {
        name: info.shape for name, info in checkpoint.tensors.items() if not is_quantised or info.dtype in READABLE
    }
    try:
        layout = architecture.locate(shapes, config)
        architecture.refuse_absent(layout, config)
    except Skipped as problem:
        if is_quantised and problem.reason == "missing_matrices":
            raise Skipped(
                "quantized", f"it is quantised; without its quantised matrices, {problem.detail}"
            ) from problem
        raise
    if config.get("model_type") not in architecture.with_adapters:
        _refuse_unmerged(checkpoint.tensors, layout)
    return layout


def _refuse_unmerged(names: Iterable[str], layout: Layout) -> None:
    """Raise Skipped if the file also holds factors of an adapter of one of the matrices: the model is their sum.

    The file does not hold the scale of the adapter.
    """
    modules = {matrix.tensor.removesuffix(".weight") for matrix in layout.matrices}
    factors = [name for name in names if (match := MARKER.search(name)) and name[: match.start()] in modules]
    if factors:
        raise Skipped(
            "adapter_unsupported",
            f"it holds {len(factors)} tensors of an adapter that is not merged into the weights beside them, "
            f"{shown(factors[0])} first: merge it (merge_and_unload), or upload the adapter by itself",
        )


def _write_matrices(
    checkpoint: Checkpoint,
    layout: Layout,
    base: str,
    commit: str,
    path: Path,
    component: str,
    is_sampled: bool,
    words: Sequence[str],
) -> None:
    """Write the data, then the file with its header: the norms are known only after all data were read."""
    header: dict[str, Any] = {}
    offset = 0
    # The rows of each matrix that are kept, and those rows of its tensor.
    kept_lines = {matrix.key: lines_of(matrix.lines, sampled_lines(matrix)) for matrix in layout.matrices if is_sampled}
    rows_of = {
        name: np.unique(np.concatenate([matrix.stored_lines(kept_lines[matrix.key]) for matrix in matrices]))
        for name, matrices in layout.by_tensor.items()
        if is_sampled
    }
    for matrix in layout.matrices:
        dtype = checkpoint.tensors[matrix.tensor].dtype
        shape = list(sampled_shape(matrix) if is_sampled else matrix.shape)
        size = math.prod(shape) * dtype.itemsize
        header[str(matrix.key)] = {
            "dtype": DTYPE_NAMES[dtype],
            "shape": shape,
            "data_offsets": [offset, offset + size],
        }
        offset += size
    embeddings = embedding_names(checkpoint)
    for kind, name in embeddings.items():
        dtype, (rows, width) = checkpoint.tensors[name].dtype, checkpoint.tensors[name].shape
        count = sum(map(len, base_stripes(kind, rows)))
        size = count * width * dtype.itemsize
        entry = {"dtype": DTYPE_NAMES[dtype], "shape": [count, width]}
        header[kind] = entry | {"data_offsets": [offset, offset + size]}
        offset += size
    norms: dict[str, float] = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    data = temporary_path(path, "data")
    try:
        with data.open("wb") as file:
            if is_sampled:
                stripes = {name: stripes_of(rows) for name, rows in rows_of.items()}
                tensors = checkpoint.stripes(stripes, CONNECTIONS)
            else:
                tensors = checkpoint.stream(layout.tensors, rows=layout.leading_rows)
            for name, tensor in tensors:
                for matrix in layout.by_tensor[name]:
                    if is_sampled:
                        positions = np.searchsorted(rows_of[name], matrix.stored_lines(kept_lines[matrix.key]))
                        piece = matrix.extract_lines(tensor[positions]).contiguous()
                        scale = math.sqrt(matrix.lines / len(positions))
                    else:
                        piece, scale = matrix.extract(tensor).contiguous(), 1.0
                    norms[str(matrix.key)] = float(torch.linalg.vector_norm(piece.float())) * scale
                    if not math.isfinite(norms[str(matrix.key)]):
                        raise Skipped("not_finite", f"its tensor {shown(name)} holds NaN or infinite values")
                    file.seek(header[str(matrix.key)]["data_offsets"][0])
                    file.write(piece.view(torch.uint8).numpy().data)
            kinds = {name: kind for kind, name in embeddings.items()}
            embedding_stripes = {
                name: base_stripes(kind, checkpoint.tensors[name].shape[0]) for name, kind in kinds.items()
            }
            for name, piece in checkpoint.stripes(embedding_stripes):
                file.seek(header[kinds[name]]["data_offsets"][0])
                file.write(piece.contiguous().view(torch.uint8).numpy().data)
        description = {
            "base": base,
            "commit": commit,
            "file_hashes": [facts.sha256 for facts in checkpoint.files],
            "config": dict(checkpoint.config),
            "shapes": {matrix.tensor: list(checkpoint.tensors[matrix.tensor].shape) for matrix in layout.matrices},
            "norms": norms,
            "version": RECORD_VERSION,
            "vocabulary": checkpoint.tensors[embeddings[TOKENS]].shape[0] if embeddings else 0,
            "component": component,
            "is_sampled": is_sampled,
            "words": list(words),
        }
        _join(header, description, data, path)
        date_as_newest(path)
    finally:
        data.unlink(missing_ok=True)


def _join(header: dict[str, Any], description: Mapping[str, Any], data: Path, path: Path) -> None:
    """Write ``path`` (by rename): the header of its tensors with the description, then the content of ``data``."""
    header["__metadata__"] = {"base": json.dumps(description), "sha256": UNKNOWN}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    front = with_checksum(len(text).to_bytes(8, "little") + text, data)
    with replacing(path) as target, data.open("rb") as source:
        target.write(front)
        shutil.copyfileobj(source, target, 1 << 22)


def reduce_to_sample(path: Path) -> int:
    """Keep of a stored base only the rows that a sample of a fine-tune may hold; returns the bytes that this frees.

    Its norms stay those of the whole matrices. The date of the file stays, because the newest of a base is used.
    Raises AtlasError if the file is damaged.
    """
    base = BaseMatrices(path, resident=False)
    base.check()
    before = path.stat()
    header: dict[str, Any] = {}
    data = temporary_path(path, "data")
    try:
        with closing(base), data.open("wb") as file:
            pieces: list[tuple[str, tuple[int, ...]]] = [
                (str(matrix.key), sampled_shape(matrix)) for matrix in base.layout.matrices
            ]
            pieces += [(kind, tuple(tensor.shape)) for kind, tensor in base.embeddings.items()]
            for name, shape in pieces:
                if name in base.embeddings:
                    piece = base.embeddings[name]
                else:
                    matrix = base.layout.by_key[DeltaKey.parse(name)]
                    lines = torch.from_numpy(lines_of(matrix.lines, sampled_lines(matrix)))
                    piece = base.matrix(matrix.key).index_select(int(matrix.transposed), lines)
                assert tuple(piece.shape) == tuple(shape), name
                start = file.tell()
                file.write(piece.contiguous().view(torch.uint8).numpy().data)
                header[name] = {
                    "dtype": DTYPE_NAMES[piece.dtype],
                    "shape": list(shape),
                    "data_offsets": [start, file.tell()],
                }
        _join(header, {**base.description, "is_sampled": True}, data, path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    finally:
        data.unlink(missing_ok=True)
    return before.st_size - path.stat().st_size
