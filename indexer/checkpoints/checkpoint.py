"""Checkpoints: the tensors in a model's files, streamed one after another.

To open a checkpoint, only the indexes of its files are read. ``Checkpoint.stream`` then fetches the requested tensors
with few requests and holds one at a time. ``indexer.checkpoints.checkpoint_files`` chooses the files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from indexer.checkpoints.ahead import in_threads, read_ahead
from indexer.checkpoints.architectures.nested import by_nested_config
from indexer.checkpoints.checkpoint_files import (
    GGUF,
    ONNX,
    Choice,
    Kind,
    choose,
    choose_conversion,
    gguf_shards,
    is_plain_name,
    read_adapter_config,
    read_config,
)
from indexer.checkpoints.gguf_file import checkpoint_names, file_type, model_config, name_in_gguf, read_gguf
from indexer.checkpoints.onnx_file import read_onnx
from indexer.checkpoints.quantised import (
    QUANTISATION_KEYS,
    ScaledMatrix,
    logical_tensors,
    quantised_matrices,
    refuse_quantised,
    stated_method,
)
from indexer.checkpoints.quantised_matrix import Codes, Quantised, QuantisedMatrix
from indexer.checkpoints.repository import Repository, open_repository
from indexer.checkpoints.stored_tensor import (
    READABLE,
    Buffers,
    TensorIndex,
    TensorInfo,
    check_readable,
    dtype_name,
    plan_runs,
    read_safetensors,
)
from indexer.checkpoints.torch_files import read_torch_index
from indexer.checkpoints.training import training_beside
from indexer.errors import Failed, ModelError, Skipped
from indexer.network.byterange import ByteSource
from indexer.network.remote_file import RemoteFile
from indexer.network.retries import RetryPolicy
from indexer.records.record import StoredFile
from indexer.records.row_plan import stripes_of
from indexer.sources.cards.training_files import Training
from indexer.sources.gguf_header import GgufHeader
from indexer.sources.registry import ModelRef
from indexer.untrusted import shown

_MOST_SHARD_INDEX = 16 << 20
_MOST_SHARDS = 1000
# Names of input embeddings, with any prefix.
_TOKEN_EMBEDDING = re.compile(r"(?:^|\.)(?:word_embeddings|wte|embed_tokens|tok_embeddings|shared|embed_in)\.weight$")
# Parts of names that wrappers of modules add: PyTorch's FSDP, activation checkpointing, torch.compile and
# DistributedDataParallel, Lightning's strategies, fairscale.
_WRAPPERS = frozenset(
    ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "module", "_forward_module", "_fpw_module")
)
# PEFT's name for a module that it wraps. In an adapter's own file it distinguishes several adapters of one module.
_WRAPPED_BY_PEFT = frozenset(("base_layer",))
# Between stripes of rows: the bytes between two matrices (biases, norms) cost less than another request.
SEAM_BYTES = 32 << 10


@dataclass(frozen=True)
class CodedRows:
    """Some rows of a matrix as they are stored. ``tensors``: the codes of these rows, and all scales."""

    matrix: QuantisedMatrix
    tensors: Mapping[str, torch.Tensor]
    numbers: torch.Tensor

    def values(self) -> torch.Tensor:
        """The numbers that they stand for, (rows, in)."""
        return self.matrix.decode(self.tensors, self.numbers)

    def codes(self) -> Codes:
        """What is stored, as bytes (rows, n)."""
        return self.matrix.codes(self.tensors, self.numbers)

    def quantised(self, values: torch.Tensor) -> Quantised | None:
        """What the format's quantiser makes of other numbers (rows, in); see ``QuantisedMatrix``."""
        return self.matrix.quantised(values.float(), self.tensors)


class Checkpoint:
    """The weights of one model at one commit.

    - ``kind``: "full" or "adapter".
    - ``config``: config.json ({} for an adapter without one), with ``quantised`` = True in place of settings of
      quantisation; for an unknown model type, with the type of its language model (``by_nested_config``).
    - ``tensors``: the tensors in the order of the files.
    - ``folder``: the folder of the files ("" or "name/").
    - ``quantised``: the matrices that are stored in few bits. ``tensors`` and all methods have their values instead.
    """

    def __init__(
        self,
        repository: Repository,
        choice: Choice,
        files: Mapping[str, TensorIndex],
        config: dict[str, Any],
        adapter_config: dict[str, Any] | None,
        shards: Mapping[str, Collection[str]] | None,
        matrices: Mapping[str, QuantisedMatrix] | None = None,
        header: GgufHeader | None = None,
    ) -> None:
        """``matrices``: those stored in few bits, if the files say by themselves which; ``header``: of a GGUF file."""
        self.kind: Kind = choice.kind
        self.folder = choice.folder
        self.commit = repository.commit
        self.adapter_config = adapter_config
        self._repository = repository
        self._files = files
        self._index_of: dict[str, TensorIndex] = {}
        tensors: dict[str, TensorInfo] = {}
        # A shard's header lists its tensors. If several shards hold a tensor, the list of shards decides, else the last
        # shard, as in libraries that load all of them.
        stated = {name: files[path] for path, names in (shards or {}).items() for name in names}
        for index in files.values():
            for name in index.tensors:
                if name not in tensors or stated.get(name) is not self._index_of[name]:
                    tensors[name] = index.tensors[name]
                    self._index_of[name] = index
        self._header = header
        self.quantised: Mapping[str, QuantisedMatrix] = matrices or {}
        if choice.kind == "full" and matrices is None:
            self.quantised = quantised_matrices(tensors, config, self._read_bytes)
        logical = logical_tensors(tensors, self.quantised)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(logical)
        # The tensors of the scales of each matrix, once they have been read: the base is rounded with them.
        self._scales: dict[str, dict[str, torch.Tensor]] = {}
        if choice.kind == "full":
            refuse_quantised(logical, self.quantised, config)
        # The values have the usual dtypes, so the settings of quantisation do not apply to them.
        self.config = {key: value for key, value in config.items() if key not in QUANTISATION_KEYS}
        if choice.kind == "full":
            self.config = by_nested_config(self.config, {name: info.shape for name, info in logical.items()})
        if choice.kind == "full" and (matrices is not None or stated_method(config) is not None):
            self.config["quantised"] = True  # experts that cannot be read may be missing

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """The weight files; the format of an adapter's file begins with "adapter"."""
        prefix = "adapter-" if self.kind == "adapter" else ""
        return tuple(
            StoredFile(path, index.source.size, index.source.sha256, prefix + index.format)
            for path, index in self._files.items()
        )

    @property
    def sources(self) -> tuple[ByteSource, ...]:
        """The weight files, to be read by ranges."""
        return tuple(index.source for index in self._files.values())

    @property
    def stored(self) -> Mapping[str, TensorInfo]:
        """The tensors as they are stored: of a matrix in few bits its codes and scales."""
        return {name: index.tensors[name] for name, index in self._index_of.items()}

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of a single safetensors file, the texts of a GGUF header; {} for other checkpoints."""
        is_known = len(self._files) == 1 or self._header is not None
        return next(iter(self._files.values())).metadata if is_known else {}

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, from disk or in response bodies, including configs and indexes."""
        return self._repository.small_bytes + sum(index.source.bytes_read for index in self._files.values())

    @property
    def dtype(self) -> str:
        """The dtype of most bytes, by PyTorch's name, or the form of matrices stored in few bits."""
        sizes: Counter[str] = Counter()
        for name, info in self.tensors.items():
            stored = self.quantised[name].label if name in self.quantised else dtype_name(info.dtype)
            sizes[stored] += info.nbytes
        return max(sizes, key=lambda name: (sizes[name], name), default="")

    @property
    def conversion(self) -> str:
        """The format, if the file is a conversion of a model ("GGUF"): no vector is made of it. Else ""."""
        return next((matrix.format for matrix in self.quantised.values() if matrix.format), "")

    @property
    def conversion_kind(self) -> str:
        """The format with how most of it is stored: ``GGUF Q4_K_M``, by the header if the tensors agree; else ""."""
        if self.conversion != GGUF:
            return self.conversion
        stated = "" if self._header is None else file_type(self._header)
        return f"{GGUF} {stated if stated.startswith(self.dtype) else self.dtype}"

    def stored_name(self, name: str) -> str | None:
        """The name that the tensor ``name`` of another checkpoint of the architecture has here; None without one."""
        if name in self.tensors or self._header is None:
            return name if name in self.tensors else None
        stored = name_in_gguf(name, self._header)
        return stored if stored in self.tensors else None

    @property
    def is_remote(self) -> bool:
        """Whether its weights come over the network."""
        return any(isinstance(index.source, RemoteFile) for index in self._files.values())

    def stream(
        self, names: Collection[str], ahead_bytes: int = 0, rows: Mapping[str, range] | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors ``names``, or only the given ``rows`` of them, file by file in the order they are stored.

        The memory of a tensor is reused once it is dropped. ``ahead_bytes``: about how many bytes a thread may read
        ahead from the network.

        Raises Skipped: ``missing_matrices`` and ``unreadable_dtype`` before anything is read,
        ``corrupt_file``; and Failed.
        """
        self._check(names)
        limited = {name for name in rows or () if name in self.quantised}
        assert not limited, "the rows of stacked matrices are limited, which are not quantised"
        rows_of_parts = {part: (rows or {}).get(part) for name in names for part in self._parts(name)}
        if not (ahead_bytes and self.is_remote and rows_of_parts):
            yield from self._decoded(self._read(rows_of_parts, Buffers()), names)
            return
        largest = max(self.tensors[name].nbytes for name in names)
        buffers = Buffers(most=2 + ahead_bytes // max(largest, 1))
        ahead = read_ahead(self._read(rows_of_parts, buffers), lambda item: item[1].nbytes, ahead_bytes)
        yield from self._decoded(ahead, names)

    def stripes(self, rows: Mapping[str, Sequence[range]], connections: int = 1) -> Iterator[tuple[str, torch.Tensor]]:
        """Some stripes of rows of each of these matrices, joined in the given order: (rows, columns).

        A tensor with three dimensions counts as its matrices, one below the other. Stripes less than SEAM_BYTES apart
        are fetched by one request. ``connections``: how many requests to the network run at once. A matrix whose rows
        are not consecutive in its file is read whole. Raises like ``stream``.
        """
        self._check(rows)
        packed = [name for name in rows if name in self.quantised]
        if packed:
            yield from self._quantised_stripes({name: rows[name] for name in packed}, connections)
            rows = {name: stripes for name, stripes in rows.items() if name not in self.quantised}
        yield from self._stored_stripes(rows, connections)

    def coded(self, rows: Mapping[str, Sequence[range]], connections: int = 1) -> Iterator[tuple[str, CodedRows]]:
        """Some stripes of rows of quantised matrices as they are stored. Raises like ``stream``.

        All scales of a matrix, which are small, are read; of a matrix whose rows do not lie together all codes.
        """
        self._check(rows)
        scales: dict[str, range | None] = dict.fromkeys(
            part for name in rows if name not in self._scales for part in self.quantised[name].parts[1:]
        )
        tensors = dict(self._read(scales, Buffers(most=0)))
        stripes: dict[str, Sequence[range]] = {}
        requests: dict[str, tuple[str, torch.Tensor, np.ndarray | None]] = {}
        for name, ranges in rows.items():
            matrix = self.quantised[name]
            if name not in self._scales:
                self._scales[name] = {part: tensors[part] for part in matrix.parts[1:]}
            numbers = np.concatenate([np.arange(stripe.start, stripe.stop) for stripe in ranges])
            if numbers.size == 0 or numbers.min() < 0 or numbers.max() >= matrix.shape[0]:
                raise Skipped("shape_mismatch", f"{shown(name)} has no such rows")
            stored, codes = matrix.stored_rows(numbers), matrix.parts[0]
            if stored is None:
                stripes[codes], order = [range(self._index_of[codes].tensors[codes].shape[0])], None
            else:
                distinct, order = np.unique(stored, return_inverse=True)
                stripes[codes] = stripes_of(distinct)
            requests[codes] = (name, torch.from_numpy(numbers), order)
        for part, read in self._stored_stripes(stripes, connections):
            name, row_numbers, order = requests[part]
            ordered = read if order is None else read[order]
            yield name, CodedRows(self.quantised[name], {part: ordered} | self._scales[name], row_numbers)

    def _quantised_stripes(
        self, rows: Mapping[str, Sequence[range]], connections: int
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The values of some rows of matrices stored in few bits."""
        for name, coded in self.coded(rows, connections):
            yield name, coded.values()

    def _read_bytes(self, names: Collection[str]) -> dict[str, torch.Tensor]:
        """Small stored tensors."""
        return {name: tensor.clone() for name, tensor in self._read(dict.fromkeys(names), Buffers(most=0))}

    def _stored_stripes(
        self, rows: Mapping[str, Sequence[range]], connections: int
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """``stripes`` for stored tensors, not decoded."""
        threads = connections if self.is_remote else 1
        for index in self._files.values():
            names = [name for name in rows if self._index_of[name] is index]
            scattered = [name for name in names if not index.has_rows_in_one_piece(name)]
            for name, tensor in self._read(dict.fromkeys(scattered), Buffers()):
                flat = tensor.flatten(0, -2)
                yield name, torch.cat([flat[stripe.start : stripe.stop] for stripe in rows[name]])
            names = [name for name in names if name not in scattered]
            located = in_threads([partial(index.locate_stripes, name, rows[name]) for name in names], threads)
            runs = plan_runs([stripe for stripes in located for stripe in stripes], SEAM_BYTES)
            extents = [(run[0].start, max(stripe.stop for stripe in run)) for run in runs]
            bodies = in_threads([partial(index.source.read, *extent) for extent in extents], threads)
            pieces: dict[str, list[torch.Tensor]] = {name: [] for name in names}
            data_offsets: dict[str, int] = {}  # of storages, from the headers that were read with the data
            for run, (start, stop), body in zip(runs, extents, bodies, strict=True):
                for stripe in run:
                    info, first = stripe.span.info, stripe.start
                    if (storage := stripe.storage) is not None and storage.read_header is not None:
                        if stripe.span.key not in data_offsets:
                            header = body[first - start :][: storage.header_bytes]
                            data_offsets[stripe.span.key] = storage.read_header(bytes(header))
                        first = data_offsets[stripe.span.key] + stripe.span.first
                    if first + info.nbytes <= stop:
                        piece = np.frombuffer(body, np.uint8, info.nbytes, first - start).copy()
                    else:  # a header longer than PyTorch writes
                        content = index.source.read(first, first + info.nbytes)
                        piece = np.frombuffer(content, np.uint8).copy()
                    pieces[info.name].append(torch.from_numpy(piece).view(info.dtype).reshape(info.shape))
                    if len(pieces[info.name]) == len(rows[info.name]):
                        yield info.name, torch.cat(pieces.pop(info.name))
            index.source.close()

    def rows(self, rows: Mapping[str, range]) -> Iterator[tuple[str, torch.Tensor]]:
        """Some rows of each of these matrices, reading little more of the files. Raises like ``stream``."""
        self._check(rows)
        packed = {name: [span] for name, span in rows.items() if name in self.quantised}
        yield from self._read({name: span for name, span in rows.items() if name not in packed}, Buffers())
        yield from self._quantised_stripes(packed, 1)

    def rounded_like(self, name: str, values: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Other ``values`` for these rows of a matrix stored in few bits, rounded as the matrix is.

        ``name``: the matrix, some rows of which must have been read before.
        """
        matrix = self.quantised[name]
        assert isinstance(matrix, ScaledMatrix)  # the others are conversions
        return matrix.rounded(values, self._scales[name], rows)

    def stream_stored(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All stored tensors, of any dtype that torch has, in the order of the files. Raises like ``stream``."""
        yield from self._read(dict.fromkeys(self._index_of), Buffers())

    def _parts(self, name: str) -> tuple[str, ...]:
        """The stored tensors that a tensor consists of."""
        return self.quantised[name].parts if name in self.quantised else (name,)

    def _decoded(
        self, items: Iterable[tuple[str, torch.Tensor]], names: Collection[str]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Stored tensors in any order → the tensors ``names``, each as soon as all of its parts have been read."""
        owners = {part: name for name in names if name in self.quantised for part in self._parts(name)}
        waiting: dict[str, dict[str, torch.Tensor]] = {}
        for part, tensor in items:
            name = owners.get(part)
            if name is None:
                yield part, tensor
                continue
            matrix, parts = self.quantised[name], waiting.setdefault(name, {})
            parts[part] = tensor
            if len(parts) == len(matrix.parts):
                del waiting[name]
                self._scales[name] = {key: parts[key].clone() for key in matrix.parts[1:]}
                parts[matrix.parts[0]] = matrix.whole(parts[matrix.parts[0]])
                yield name, matrix.decode(parts)

    def _check(self, names: Collection[str]) -> None:
        for name in names:
            if name not in self.tensors:
                raise Skipped("missing_matrices", f"the checkpoint has no tensor {shown(name)}")
            check_readable(self.tensors[name])

    def _read(self, rows_by_name: Mapping[str, range | None], buffers: Buffers) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors, or the given rows of them, run by run."""
        for index in self._files.values():
            located = [index.locate(name, rows) for name, rows in rows_by_name.items() if self._index_of[name] is index]
            for tensors in plan_runs(located):
                stop = tensors[-1].stop
                with closing(index.source.run(tensors[0].start, stop)) as run:
                    for tensor in tensors:
                        run.skip_to(tensor.start)
                        yield tensor.span.info.name, tensor.load(run, buffers)
                    run.skip_to(stop)
            index.source.close()

    @property
    def token_embedding(self) -> str | None:
        """The name of the input embedding, a readable matrix with a row for each token; None if none is clear."""
        names = [name for name in self.tensors if _TOKEN_EMBEDDING.search(name)]
        shared = [name for name in names if name.endswith("shared.weight")]  # the others repeat this matrix
        (name,) = shared if len(shared) == 1 else names if len(names) == 1 else (None,)
        if (
            name is None
            or name in self.quantised
            or len(self.tensors[name].shape) != 2
            or self.tensors[name].dtype not in READABLE
        ):
            return None
        return name

    def read_small(self, name: str, limit: int) -> bytes | None:
        """A small file (tokenizer.json), preferably from the weights' folder; None if the repository lacks it.

        Raises Skipped("malformed") if it is longer than ``limit``, Failed if a retry may work.
        """
        return self._repository.read_beside(self.folder, name, limit)

    def training(self) -> Training:
        """What the files beside the weights, the settings of an adapter and the weights' own header say of training.

        Files that cannot be read say nothing. Over the network few and short ones are read.
        """
        metadata = next(iter(self._files.values())).metadata if self._files else {}
        return training_beside(self._repository, self.folder, self.adapter_config, metadata, self.is_remote)

    def close(self) -> None:
        """Close files and connections."""
        for index in self._files.values():
            index.source.close()


def open_checkpoint(
    reference: ModelRef,
    *,
    commit: str | None = None,
    filenames: Sequence[str] | None = None,
    relation: str = "finetune",
    conversion: Callable[[], str | None] | None = None,
    retries: RetryPolicy | None = None,
    most_small: int | None = None,
    needs_config: bool = True,
    needs_adapter_config: bool = True,
) -> Checkpoint:
    """Open the checkpoint that ``reference`` names, from a folder, the cache or the Hub.

    - ``commit``, ``filenames``: if known, they save a request.
    - ``relation``: "adapter" prefers adapters, any other a full model.
    - ``conversion`` is called if only pickles hold the weights, and returns a revision with a safetensors conversion,
      or None.
    - ``most_small``: the most bytes of a configuration, list of shards or header.
    - ``needs_config``: whether a full model without a config.json is refused.
    - ``needs_adapter_config``: whether an adapter without an adapter_config.json is refused.

    Raises Skipped if these files can never be read, Failed if a retry may work.
    """
    repository = None
    try:
        repository = open_repository(
            reference, commit=commit, filenames=filenames, retries=retries, most_small=most_small
        )
        choice = choose(repository.filenames, relation)
        config = read_config(repository, choice, is_needed=needs_config and choice.format != GGUF)
        adapter_config = None
        if choice.kind == "adapter":
            adapter_config = read_adapter_config(repository, choice, is_needed=needs_adapter_config)
        if choice.is_pickle and conversion is not None:
            try:
                if (revision := conversion()) is not None:
                    converted_repository = open_repository(
                        replace(reference, revision=revision), retries=retries, most_small=most_small
                    )
                    if (converted := choose_conversion(converted_repository.filenames, choice.folder)) is not None:
                        repository, choice = converted_repository, converted
            except ModelError:  # the conversion cannot be read now, but the pickle can
                pass
        return _open(repository, choice, config, adapter_config)
    except Skipped as skip:
        if repository is not None and repository.lacking:  # then the error is not permanent
            raise Failed("network", f"{skip.detail} ({repository.lacking})") from skip
        raise


def _open(
    repository: Repository, choice: Choice, config: dict[str, Any], adapter_config: dict[str, Any] | None
) -> Checkpoint:
    if choice.format == GGUF:
        return _open_gguf(repository, choice, config)
    if choice.format == ONNX:
        return _open_onnx(repository, choice, config)
    shards = shards_of(repository, choice) if choice.is_index else None
    files: dict[str, TensorIndex] = {}
    with _closing_on_errors() as sources:
        for path in shards or [choice.folder + choice.name]:
            source = repository.open(path)
            sources.append(source)
            if path.endswith(".safetensors"):
                files[path] = read_safetensors(source, repository.most_small)
            else:
                files[path] = read_torch_index(source)
            if shards:
                source.close()
        names = bare_names([name for index in files.values() for name in index.tensors], choice.kind)
        if names:
            files = {path: index.renamed(names) for path, index in files.items()}
            shards = shards and {path: [names.get(name, name) for name in tensors] for path, tensors in shards.items()}
        return Checkpoint(repository, choice, files, config, adapter_config, shards)


def _refuse_empty(files: Mapping[str, TensorIndex], choice: Choice) -> None:
    if not any(index.tensors for index in files.values()):
        raise Skipped("corrupt_file", f"{shown(choice.name)} holds no tensors")


def _open_gguf(repository: Repository, choice: Choice, config: dict[str, Any]) -> Checkpoint:
    """A GGUF file, or all shards of one; the first one's header holds the facts of the model."""
    files: dict[str, TensorIndex] = {}
    matrices: dict[str, QuantisedMatrix] = {}
    header: GgufHeader | None = None
    with _closing_on_errors() as sources:
        for path in gguf_shards(repository.filenames, choice):
            source = repository.open(path)
            sources.append(source)
            files[path], file_header, stored = read_gguf(source, repository.most_small, header)
            header = header or file_header
            header = (
                replace(header, tensors=(*header.tensors, *file_header.tensors))
                if file_header is not header
                else header
            )
            matrices |= stored
        assert header is not None
        _refuse_empty(files, choice)
        config = {**model_config(header), **config}
        names = checkpoint_names(header, str(config["model_type"]))
        matrices = {names.get(name, name): matrix for name, matrix in matrices.items()}
        return Checkpoint(repository, choice, files, config, None, None, matrices, header)


def _open_onnx(repository: Repository, choice: Choice, config: dict[str, Any]) -> Checkpoint:
    with _closing_on_errors() as sources:

        def open_beside(name: str) -> ByteSource:
            path = choice.folder + name
            if not is_plain_name(name) or path not in repository.filenames:
                raise Skipped("corrupt_file", f"{choice.name} names a file {shown(name)} that is not beside it")
            sources.append(repository.open(path))
            return sources[-1]

        sources.append(repository.open(choice.folder + choice.name))
        files, matrices = read_onnx(sources[0], open_beside)
        _refuse_empty(files, choice)
        names = {choice.folder + name if name != sources[0].name else choice.folder + choice.name: index
                 for name, index in files.items()}  # fmt: skip
        return Checkpoint(repository, choice, names, config, None, None, matrices)


@contextmanager
def _closing_on_errors() -> Iterator[list[ByteSource]]:
    """A list of files, which are closed if the block fails."""
    sources: list[ByteSource] = []
    try:
        yield sources
    except ModelError:
        for source in sources:
            source.close()
        raise


def bare_names(names: Collection[str], kind: Kind) -> dict[str, str]:
    """The names of tensors without the parts that wrappers added, by the name in the file; only names that differ.

    A name is not changed if the new name is that of another tensor, too.
    """
    wrappers = _WRAPPERS if kind == "adapter" else _WRAPPERS | _WRAPPED_BY_PEFT
    bare = {}
    for name in names:
        parts = name.split(".")
        if not wrappers.isdisjoint(parts):
            bare[name] = ".".join(part for part in parts if part not in wrappers)
    counts = Counter(bare.values())
    counts.update(set(names).difference(bare))
    return {name: bare_name for name, bare_name in bare.items() if bare_name and counts[bare_name] == 1}


def shards_of(repository: Repository, choice: Choice) -> dict[str, list[str]]:
    """The shards in order, with their tensors by the (untrusted) index."""
    weight_map = repository.read_json(choice.folder + choice.name, _MOST_SHARD_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise Skipped("malformed", f"{choice.name} has no weight_map")
    shards: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        if not is_plain_name(name) or not name.endswith((".safetensors", ".bin")):
            raise Skipped(
                "malformed", f"{choice.name} names a shard {shown(name)}, which is not the name of a weight file"
            )
        shards.setdefault(choice.folder + name, []).append(tensor)
    if len(shards) > _MOST_SHARDS:
        raise Skipped("malformed", f"{choice.name} names {len(shards)} shards; up to {_MOST_SHARDS} are read")
    missing = sorted(path for path in shards if path not in repository.filenames)
    if missing:
        raise Skipped("corrupt_file", f"{len(missing)} of {len(shards)} shards are missing, {shown(missing[0])} first")
    return dict(sorted(shards.items()))
