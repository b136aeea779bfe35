"""Profiles on disk: one safetensors file each, named by the digest of its identity and written atomically."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.errors import WRONG_KINDS, AtlasError, system_errors
from indexer.names import MEASURES
from indexer.records.identity import canonical_json
from indexer.regular_files import read_regular
from indexer.storage.arrays import checksum, read_arrays, write_arrays
from indexer.storage.atomic_files import write_atomically
from indexer.untrusted import load_json, malformed

METHOD = "depth-1"
_SUBJECTS = ("base", "fine_tune", "untrained")
MOST_BYTES = 64 << 20  # a layer has a few dozen numbers
HINT = "Delete it; `index profile` makes it again."


@dataclass(frozen=True)
class ProfileIdentity:
    """All inputs that determine the numbers of a profile, except device and threads.

    ``probe``: random, text or image; ``probe_source``: the sha256 of the user's own text or images; ``asked``: the
    terms of a ``ProfileRequest``; ``layers``: empty for the default choice.
    """

    subject: str
    model: str
    commit: str
    base: str
    base_commit: str
    probe: str = "random"
    probe_source: str = ""
    seed: int = 0
    recipe: str = "default"
    asked: tuple[str, ...] = ("default",)
    layers: tuple[int, ...] = ()
    method: str = METHOD

    @property
    def digest(self) -> str:
        """The name of the file."""
        return hashlib.sha256(canonical_json(asdict(self)).encode()).hexdigest()


@dataclass(frozen=True)
class Profile:
    """The measures of one model. ``layers`` (n,) from 1; ``values`` and ``errors`` map a column to (n,), NaN for NULL.

    ``is_complete``: false if the run was interrupted; the layers that are present are complete. ``cpu_seconds`` and
    ``made`` describe the run, not the model. They are stored in a second file, so that the same model always gives the
    same bytes.
    """

    identity: ProfileIdentity
    layers: NDArray[np.int64]
    is_constant: NDArray[np.bool_]
    values: Mapping[str, NDArray[np.float32]]
    errors: Mapping[str, NDArray[np.float32]]
    is_complete: bool = True
    stack: str = ""
    probe_sha256: str = ""
    sequences: int = 0
    tokens: int | None = None
    device: str = "cpu"
    threads: int = 1
    cpu_seconds: float = 0.0
    made: str = ""
    notes: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """A row for each layer with every column and error; None for NULL."""
        columns = {"spread": self.values.get("spread")}
        for name in MEASURES:
            columns |= {name: self.values.get(name), f"{name}_error": self.errors.get(name)}
        rows = []
        for index, layer in enumerate(self.layers.tolist()):
            row: dict[str, Any] = {"stack": self.stack, "layer": layer, "is_constant": bool(self.is_constant[index])}
            for name, column in columns.items():
                value = math.nan if column is None else float(column[index])
                row[name] = None if math.isnan(value) else value
            rows.append(row)
        return rows


# The fields of a profile in a file's header, besides its identity and notes.
_HEADER = {
    "is_complete": bool,
    "stack": str,
    "probe_sha256": str,
    "sequences": int,
    "tokens": int,
    "device": str,
    "threads": int,
}


class ProfileStore:
    """The profiles folder of one atlas."""

    def __init__(self, folder: AtlasFolder) -> None:
        self.folder = folder

    def read(self, digest: str) -> Profile:
        """Read and check a profile. Raises AtlasError if it is missing, truncated, altered or malformed."""
        return read_profile(self.folder.profile(digest))

    def find(self, identity: ProfileIdentity) -> Profile | None:
        """The profile of this identity, complete or not; None if it is missing or cannot be read."""
        try:
            return self.read(identity.digest)
        except AtlasError:
            return None

    def write(self, profile: Profile) -> None:
        """Write a profile atomically, after the file that describes its run; an earlier one is replaced."""
        arrays: dict[str, NDArray[Any]] = {
            "layers": profile.layers,
            "is_constant": profile.is_constant.astype(np.uint8),
        }
        for name, column in profile.values.items():
            arrays[name] = column.astype(np.float32)
        for name, column in profile.errors.items():
            arrays[f"{name}_error"] = column.astype(np.float32)
        header = {"identity": asdict(profile.identity), "notes": list(profile.notes)}
        header |= {name: getattr(profile, name) for name in _HEADER}
        # A single key: safetensors writes several in any order, and the same profile must give the same bytes.
        metadata = canonical_json({"checksum": checksum(canonical_json(header), arrays), "header": header})
        path = self.folder.profile(profile.identity.digest)
        run = {"cpu_seconds": round(profile.cpu_seconds, 2), "made": profile.made}
        write_atomically(path.with_suffix(".run.json"), canonical_json(run).encode())
        write_arrays(path, arrays, {"profile": metadata})

    def digests(self) -> Iterator[str]:
        """The digests of all profiles, sorted."""
        for path in sorted(self.folder.profiles.glob("[0-9a-f][0-9a-f]/*.safetensors")):
            yield path.stem


def read_profile(path: Path) -> Profile:
    """Read and check a profile. Raises AtlasError if it is missing, truncated, altered or malformed."""

    def unreadable(why: str) -> AtlasError:
        return AtlasError(f"The profile {path.name} cannot be read ({why}).", HINT)

    with system_errors(unreadable), malformed(unreadable):
        arrays, texts = read_arrays(path, MOST_BYTES)
        metadata = load_json(texts["profile"])
        header = metadata["header"]
        if metadata["checksum"] != checksum(canonical_json(header), arrays):
            raise AtlasError(f"The profile {path.name} was altered: its checksum does not match.", HINT)
        row = header["identity"]
        identity = ProfileIdentity(**{**row, "asked": tuple(row["asked"]), "layers": tuple(row["layers"])})
        sizes = {array.shape for array in arrays.values()}
        if sizes != {arrays["layers"].shape} or arrays["layers"].ndim != 1:
            raise ValueError("columns of different lengths")
        _check(identity, header, arrays)
        run: dict[str, Any] = {}  # stays empty if the run's own file cannot be read
        with suppress(OSError, *WRONG_KINDS):
            description = load_json(read_regular(path.with_suffix(".run.json"), most=1 << 16))
            seconds = float(description["cpu_seconds"])
            run = {"cpu_seconds": seconds if math.isfinite(seconds) else 0.0, "made": str(description["made"])}
        return Profile(
            identity=identity,
            layers=arrays["layers"],
            is_constant=arrays["is_constant"].astype(bool),
            values={name: arrays[name] for name in (*MEASURES, "spread") if name in arrays},
            errors={name: arrays[f"{name}_error"] for name in MEASURES if f"{name}_error" in arrays},
            notes=tuple(header["notes"]),
            **{name: header[name] for name in _HEADER},
            **run,
        )


def _check(identity: ProfileIdentity, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise one of WRONG_KINDS if a value has another type than ``ProfileStore.write`` writes."""
    fields = asdict(identity)
    numbers = [fields.pop("seed"), *fields.pop("layers")]
    texts = [*fields.pop("asked"), *header["notes"], *fields.values()]
    if not all(isinstance(text, str) for text in texts) or identity.subject not in _SUBJECTS:
        raise ValueError("invalid text")
    if not all(type(number) is int for number in numbers):
        raise ValueError("invalid number")
    if any(
        type(header[name]) is not kind for name, kind in _HEADER.items() if (name, header[name]) != ("tokens", None)
    ):
        raise ValueError("invalid header")
    kinds = {"layers": np.int64, "is_constant": np.uint8}
    if any(array.dtype != kinds.get(name, np.float32) for name, array in arrays.items()):
        raise ValueError("array of another type")
