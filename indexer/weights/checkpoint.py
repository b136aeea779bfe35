"""Checkpoints: the tensors in a model's files, streamed one after another.

Opening a checkpoint reads only the indexes of its files. ``Checkpoint.stream`` then fetches the requested tensors
with as few requests as make sense and holds one at a time. ``indexer.weights.checkpoint_files`` chooses the files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
from huggingface_hub import is_offline_mode

from indexer.errors import Failed, ModelError, Skipped
from indexer.names import ModelRef
from indexer.network.byterange import ByteSource
from indexer.network.hub_requests import RetryPolicy
from indexer.network.remote_file import RemoteFile
from indexer.untrusted import shown
from indexer.weights.ahead import read_ahead
from indexer.weights.checkpoint_files import (
    Choice,
    Kind,
    choose,
    choose_conversion,
    is_plain_name,
    read_adapter_config,
    read_config,
    refuse_quantised_tensors,
)
from indexer.weights.repository import Repository, open_repository, open_revision, read_json_object
from indexer.weights.safetensors_index import read_index
from indexer.weights.stored_tensor import Buffers, StoredTensor, TensorIndex, TensorInfo, check_readable
from indexer.weights.torch_index import read_torch_index

__all__ = ["Checkpoint", "FileFacts", "TensorInfo", "open_checkpoint", "plan_runs"]

MOST_SHARD_INDEX = 16 << 20
MOST_SHARDS = 1000
# Unused bytes that may be fetched, as a share of the used ones: a small gap costs less than a request.
GAP_SHARE = 0.01


@dataclass(frozen=True)
class FileFacts:
    """A weight file. ``sha256`` is its LFS id if known; an adapter's ``format`` begins with "adapter"."""

    name: str
    size: int
    sha256: str | None
    format: str


@dataclass(frozen=True)
class _WeightFile:
    name: str
    source: ByteSource
    index: TensorIndex


class Checkpoint:
    """The weights of one model at one commit.

    ``kind`` is "full" or "adapter", ``config`` the unchanged config.json ({} for an adapter without one), ``tensors``
    the tensors in the order of the files, and ``folder`` the folder of the files ("" or "name/").
    """

    def __init__(
        self,
        repository: Repository,
        choice: Choice,
        files: Sequence[_WeightFile],
        config: dict[str, Any],
        adapter_config: dict[str, Any] | None,
        names_of_file: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.kind: Kind = choice.kind
        self.folder = choice.folder
        self.commit = repository.commit
        self.config = config
        self.adapter_config = adapter_config
        self._repository = repository
        self._files = tuple(files)
        self._file_of: dict[str, _WeightFile] = {}
        tensors: dict[str, TensorInfo] = {}
        for file in files:
            names = file.index.tensors if names_of_file is None else names_of_file[file.name]
            for name in names:
                if name in file.index.tensors:
                    tensors[name] = file.index.tensors[name]
                    self._file_of[name] = file
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)

    @property
    def files(self) -> tuple[FileFacts, ...]:
        """The weight files."""
        prefix = "adapter-" if self.kind == "adapter" else ""
        return tuple(
            FileFacts(file.name, file.source.size, file.source.sha256, prefix + file.index.format)
            for file in self._files
        )

    @property
    def bytes_read(self) -> int:
        """Bytes read so far, from disk or in response bodies, including configs and indexes."""
        return self._repository.small_bytes + sum(file.source.bytes_read for file in self._files)

    @property
    def is_remote(self) -> bool:
        """Whether its weights come over the network."""
        return any(isinstance(file.source, RemoteFile) for file in self._files)

    def stream(self, names: Collection[str], ahead_bytes: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors ``names``, file by file in the order they are stored in.

        The memory of a tensor is reused once it is dropped. From the network a thread reads ahead by up to about
        ``ahead_bytes``.

        Raises Skipped: ``missing_matrices`` and ``unreadable_dtype`` before anything is read,
        ``corrupt_file``; and Failed.
        """
        for name in names:
            if name not in self.tensors:
                raise Skipped("missing_matrices", f"the checkpoint has no tensor {shown(name)}")
            check_readable(self.tensors[name])
        if not (ahead_bytes and self.is_remote and names):
            yield from self._read(names, Buffers())
            return
        largest = max(self.tensors[name].nbytes for name in names)
        buffers = Buffers(held=2 + ahead_bytes // max(largest, 1))
        yield from read_ahead(self._read(names, buffers), lambda item: item[1].nbytes, ahead_bytes)

    def rows(self, rows: Mapping[str, range]) -> Iterator[tuple[str, torch.Tensor]]:
        """Some rows of each of these matrices, reading little more of the files. Raises like ``stream``."""
        for name in rows:
            if name not in self.tensors:
                raise Skipped("missing_matrices", f"the checkpoint has no tensor {shown(name)}")
            check_readable(self.tensors[name])
        for file in self._files:
            located = [file.index.locate_rows(name, rows[name]) for name in rows if self._file_of[name] is file]
            for tensors in plan_runs(located):
                yield from _read_run(file.source, tensors, Buffers())
            file.source.close()

    def _read(self, names: Collection[str], buffers: Buffers) -> Iterator[tuple[str, torch.Tensor]]:
        for file in self._files:
            located = [file.index.locate(name) for name in set(names) if self._file_of[name] is file]
            for tensors in plan_runs(located):
                yield from _read_run(file.source, tensors, buffers)
            file.source.close()

    def read_small(self, name: str, limit: int) -> bytes | None:
        """A small file of the repository (tokenizer.json), preferably from the weights' folder; None if there is none.

        Raises Skipped("malformed") if it is longer than ``limit``, Failed if a retry may work.
        """
        for path in dict.fromkeys((self.folder + name, name)):
            if path in self._repository.filenames:
                return self._repository.read_small(path, limit)
        return None

    def close(self) -> None:
        """Close files and connections."""
        for file in self._files:
            file.source.close()


def plan_runs(located: Collection[StoredTensor]) -> list[list[StoredTensor]]:
    """Group tensors into runs, each fetched by one request.

    Adjacent tensors share a run. Gaps are fetched as well, the smallest first, as long as all fetched gaps together
    stay within GAP_SHARE of the tensors' bytes. Overlapping tensors do not share a run.
    """
    ordered = sorted(located, key=lambda tensor: (tensor.start, tensor.stop))
    allowance = GAP_SHARE * sum(tensor.stop - tensor.start for tensor in ordered)
    gaps = sorted(
        (after.start - before.stop, position) for position, (before, after) in enumerate(pairwise(ordered), start=1)
    )
    breaks = set()
    for gap, position in gaps:
        allowance -= max(gap, 0)
        if gap < 0 or allowance < 0:
            breaks.add(position)
    runs: list[list[StoredTensor]] = []
    for position, tensor in enumerate(ordered):
        if position == 0 or position in breaks:
            runs.append([])
        runs[-1].append(tensor)
    return runs


def open_checkpoint(
    reference: ModelRef,
    *,
    commit: str | None = None,
    filenames: Sequence[str] | None = None,
    relation: str = "finetune",
    conversion: Callable[[], str | None] | None = None,
    config: Mapping[str, Any] | None = None,
    endpoint: str | None = None,
    retries: RetryPolicy | None = None,
    most_small: int | None = None,
) -> Checkpoint:
    """Open the checkpoint that ``reference`` names, from a folder, the cache or the Hub.

    Known ``commit`` and ``filenames`` save a request. ``conversion`` is called if only pickles hold the weights, and
    returns a revision with a safetensors conversion, or None. ``config`` replaces a missing config.json.
    ``most_small``: the most bytes of a configuration, list of shards or header.

    Raises Skipped if these files can never be read, Failed if a retry may work.
    """
    try:
        repository = open_repository(reference, commit=commit, filenames=filenames, endpoint=endpoint, retries=retries)
        if most_small is not None:
            repository.most_small = most_small
        choice = choose(repository.filenames, relation)
        found_config = read_config(repository, choice, config)
        if choice.kind == "adapter":
            return _open(repository, choice, found_config, read_adapter_config(repository, choice))
        if choice.is_pickle and conversion is not None and reference.folder is None:
            converted = _converted(reference, choice, conversion, endpoint, retries)
            repository, choice = converted or (repository, choice)
        return _open(repository, choice, found_config, None)
    except Skipped as skip:
        if reference.folder is None and is_offline_mode():
            # The cache may lack files of the repository, so this is not permanent.
            raise Failed("network", f"{skip.detail} (in the cache; HF_HUB_OFFLINE forbids asking the Hub)") from skip
        raise


def _open(
    repository: Repository, choice: Choice, config: dict[str, Any], adapter_config: dict[str, Any] | None
) -> Checkpoint:
    names_of_file = _shards(repository, choice) if choice.is_index else None
    files: list[_WeightFile] = []
    try:
        for path in names_of_file or [choice.folder + choice.name]:
            files.append(_open_file(repository, path))
            if names_of_file:
                files[-1].source.close()
        checkpoint = Checkpoint(repository, choice, files, config, adapter_config, names_of_file)
        if checkpoint.kind == "full":
            refuse_quantised_tensors(checkpoint.tensors)
    except ModelError:
        for file in files:
            file.source.close()
        raise
    return checkpoint


def _open_file(repository: Repository, path: str) -> _WeightFile:
    source = repository.open(path)
    try:
        index: TensorIndex = (
            read_index(source, repository.most_small) if path.endswith(".safetensors") else read_torch_index(source)
        )
    except ModelError:
        source.close()
        raise
    return _WeightFile(path, source, index)


def _shards(repository: Repository, choice: Choice) -> dict[str, list[str]]:
    """The shards in order, with the tensors that the (untrusted) index says they hold."""
    found = read_json_object(repository, choice.folder + choice.name, MOST_SHARD_INDEX).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise Skipped("malformed", f"{choice.name} has no weight_map")
    shards: dict[str, list[str]] = {}
    for tensor, name in found.items():
        if not is_plain_name(name) or not name.endswith((".safetensors", ".bin")):
            raise Skipped(
                "malformed", f"{choice.name} names a shard {shown(name)}, which is not the name of a weight file"
            )
        shards.setdefault(choice.folder + name, []).append(tensor)
    if len(shards) > MOST_SHARDS:
        raise Skipped("malformed", f"{choice.name} names {len(shards)} shards; up to {MOST_SHARDS} are read")
    missing = sorted(path for path in shards if path not in repository.filenames)
    if missing:
        raise Skipped("corrupt_file", f"{len(missing)} of {len(shards)} shards are missing, {shown(missing[0])} first")
    return dict(sorted(shards.items()))


def _read_run(
    source: ByteSource, tensors: Sequence[StoredTensor], buffers: Buffers
) -> Iterator[tuple[str, torch.Tensor]]:
    stop = tensors[-1].stop
    run = source.run(tensors[0].start, stop)
    try:
        for tensor in tensors:
            run.skip_to(tensor.start)
            yield tensor.info.name, tensor.load(run, buffers)
        run.skip_to(stop)
    finally:
        run.close()


def _converted(
    reference: ModelRef,
    choice: Choice,
    conversion: Callable[[], str | None],
    endpoint: str | None,
    retries: RetryPolicy | None,
) -> tuple[Repository, Choice] | None:
    """The conversion and its files; None if there is none or it cannot be read now."""
    try:
        revision = conversion()
        if revision is None:
            return None
        repository = open_revision(reference, revision, endpoint, retries)
    except ModelError:
        return None
    found = choose_conversion(repository.filenames, choice.folder)
    return (repository, found) if found else None
