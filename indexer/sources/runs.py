"""Checkpoints of one training run, by the names of their folders and files."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from indexer.untrusted import is_count

# The key of a listing row that says which run a model belongs to: {"key": …, "number": …}.
RUN = "run"
# The key of a listing row that holds what a tracking server says of the training, as ``Training.to_dict``.
TRACKED = "training"
_LONGEST_KEY = 250  # characters: an id serves
_MOST = 1 << 53

_SERIES = r"checkpoint|ckpt|global[_\-]?step|step|iter|epoch"
# The name of a numbered folder: what is counted, a plural, the number.
NUMBERED = re.compile(rf"({_SERIES})(s?)[_\-]?(\d{{1,15}})", re.ASCII | re.IGNORECASE)
# The folder of a finished model.
FINALS = frozenset(("final", "final_model", "final-model", "final_checkpoint", "final-checkpoint", "last"))
_UNNAMED = FINALS | {"best", "model", "output"}
# Not "epochs-3", which is how far a whole training went.
_NAMED = re.compile(rf"(.+?)[_\-.](?:{_SERIES})[_\-]?(\d{{1,15}})", re.ASCII | re.IGNORECASE)
# sd-scripts and ai-toolkit: "cats-000004", "cats_000001250"; the last file has no number.
_OF_FILE = re.compile(r"(.+?)[_\-](0\d{5,14})", re.ASCII)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a run: the path of the run, and the number of the checkpoint; None for the last one."""

    run: str
    number: int | None


def is_named_in_run(folder: str) -> bool:
    """Whether the name of a folder says only which part of a run it is: ``checkpoint-500``, ``final``, ``best``."""
    return NUMBERED.fullmatch(folder) is not None or folder.lower() in _UNNAMED


def _number(folder: str) -> int | None:
    """The number of a checkpoint in the name of its folder. Folders ``epochs-3`` and ``epochs-5`` are of two runs."""
    match = NUMBERED.fullmatch(folder)
    return int(match[3]) if match and not match[2] else None


def checkpoint_at(path: str, beside: Collection[str] = (), inside: Collection[str] = ()) -> Checkpoint | None:
    """The checkpoint that lies in a folder, by its path with "/"; None if it is none of a run.

    ``beside``: the names of the other folders there; ``inside``: those of the folders in it.
    """
    parent, _, name = path.rpartition("/")
    if (number := _number(name)) is not None:
        return Checkpoint(parent, number)
    if name.lower() in FINALS and any(_number(other) is not None for other in beside):
        return Checkpoint(parent, None)
    # The folder of a run, in which its checkpoints lie.
    return Checkpoint(path, None) if any(_number(inner) is not None for inner in inside) else None


def checkpoints_of_files(folder: str, names: Collection[str]) -> dict[str, Checkpoint]:
    """The same for weight files that are models of their own, in one folder: by name, those that belong to a run."""
    below = f"{folder}/" if folder else ""
    stems = {name: name.rpartition(".")[0] or name for name in names}
    matches = {name: _NAMED.fullmatch(stem) or _OF_FILE.fullmatch(stem) for name, stem in stems.items()}
    numbered = {name: Checkpoint(below + match[1], int(match[2])) for name, match in matches.items() if match}
    runs = {match[1] for match in matches.values() if match}
    last = {
        name: Checkpoint(below + stem, None) for name, stem in stems.items() if name not in numbered and stem in runs
    }
    return numbered | last


def checkpoint_named(identifier: str) -> Checkpoint | None:
    """The checkpoint that an id names (``owner/name-checkpoint-500``); None for another id."""
    match = _NAMED.fullmatch(identifier)
    return Checkpoint(match[1], int(match[2])) if match and "/" in match[1] else None


def run_in(row: Mapping[str, Any]) -> tuple[str, int | None] | None:
    """The key of the run that a listing row names, and the number of the checkpoint; None if it names none."""
    stated = row.get(RUN)
    if not isinstance(stated, Mapping):
        return None
    key, number = stated.get("key"), stated.get("number")
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY or not key.isprintable():
        return None
    return key, number if isinstance(number, int) and is_count(number) and number < _MOST else None


def run_of(identifier: str, row: Mapping[str, Any]) -> tuple[str, int | None] | None:
    """The same, or by the id of the model where the row says nothing. A folder's own name says too little."""
    if (stated := run_in(row)) is not None:
        return stated
    named = None if ":" in identifier else checkpoint_named(identifier)
    return None if named is None else (named.run, named.number)
