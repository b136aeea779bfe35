"""Reads what training tools wrote beside the weights of a model, in the folders above them and in their header."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from typing import Any

from indexer.checkpoints.repository import Repository
from indexer.errors import ModelError, Skipped
from indexer.sources.cards.training_files import (
    LARGEST_FILE,
    Training,
    is_training_file,
    read_training,
    state_from_ends,
)

# Over the network each file takes a request, and a server counts them.
_MOST_REMOTE_FILES = 3
_MOST_REMOTE_BYTES = 256 << 10
_END = 32 << 10  # bytes at either end of a state that is longer
_MOST_FILES = 200  # of an MLflow run each parameter and each metric is a file
_ADAPTER_CONFIG = "adapter_config.json"

# Settings as they were set come before the state, which may be long; summaries repeat what that says.
_STATE = "trainer_state.json"
_AFTER = re.compile(
    r".*_results\.json|trainer_log\.jsonl|wandb-summary\.json|(?:.*/)?(?:params|metrics|tags)/.*", re.DOTALL
)
# Folders beside the weights that hold records of the same run.
_OF_RUN = re.compile(r"(?:params|metrics|tags)/.*|(?:wandb/[^/]+/files|\.hydra|logs?|files)/[^/]+", re.DOTALL)


def training_beside(
    repository: Repository,
    folder: str,
    adapter_config: Mapping[str, Any] | None,
    metadata: Mapping[str, str],
    is_remote: bool,
) -> Training:
    """What is known of the training of the weights in ``folder`` ("" or "name/") of a repository.

    ``adapter_config``: the settings of an adapter, which have been read; ``metadata``: of the weights' header.
    """
    return read_training(_contents(repository, folder, adapter_config, is_remote), metadata)


def remote_files(names: Collection[str], folder: str) -> int:
    """How many files ``training_beside`` asks a server for, at most."""
    return min(sum(not path.endswith(_ADAPTER_CONFIG) for path in training_paths(names, folder)), _MOST_REMOTE_FILES)


def training_paths(names: Collection[str], folder: str) -> list[str]:
    """The files that say how the weights in ``folder`` were trained: its own and those of the folders above.

    The nearest come first, and of one folder those that say most.
    """
    ordered: list[tuple[int, int, str]] = []
    for path in names:
        for depth, above in enumerate(_and_above(folder)):
            rest = path.removeprefix(above)
            if path.startswith(above) and ("/" not in rest or _OF_RUN.fullmatch(rest)) and is_training_file(rest):
                order = 1 if rest.rpartition("/")[2] == _STATE else 2 if _AFTER.fullmatch(rest) else 0
                ordered.append((depth, order, path))
                break
    return [path for _, _, path in sorted(ordered)]


def _and_above(folder: str) -> Iterator[str]:
    """A folder ("" or "name/name/") and those that it lies in, the nearest first."""
    while folder:
        yield folder
        folder = "".join(folder[:-1].rpartition("/")[:2])
    yield ""


def _contents(
    repository: Repository, folder: str, adapter_config: Mapping[str, Any] | None, is_remote: bool
) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files, those nearest to the weights first."""
    if adapter_config is not None:
        yield _ADAPTER_CONFIG, json.dumps(adapter_config).encode()
    bytes_left = _MOST_REMOTE_BYTES - 2 * _END if is_remote else LARGEST_FILE
    files: list[tuple[Callable[[str, int], bytes], str, str]] = [
        (repository.read_small, path, path.removeprefix(folder))
        for path in training_paths(repository.filenames, folder)
    ]
    files += [(repository.read_above, path, path) for path in repository.above if is_training_file(path)]
    files = [(read, path, name) for read, path, name in files if name.rpartition("/")[2] != _ADAPTER_CONFIG]
    for read, path, name in files[: _MOST_REMOTE_FILES if is_remote else _MOST_FILES]:
        try:
            content = read(path, bytes_left)
        except Skipped:  # it is longer than the bytes that were left
            is_state = name.rpartition("/")[2] == _STATE and path in repository.filenames
            if is_state and (ends := _ends(repository, path)) is not None:
                yield name, ends
            return
        except (ModelError, OSError):  # what it says is a help, and not needed
            continue
        bytes_left -= len(content)
        yield name, content


def _ends(repository: Repository, path: str) -> bytes | None:
    """What the two ends of a long state say; None if they cannot be read."""
    try:
        with closing(repository.open(path)) as file:
            head = bytes(file.read(0, min(_END, file.size)))
            tail = bytes(file.read(max(len(head), file.size - _END), file.size))
    except (ModelError, OSError):
        return None
    repository.small_bytes += len(head) + len(tail)
    return state_from_ends(head, tail)
