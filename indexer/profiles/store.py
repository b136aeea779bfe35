"""Profiles on disk: one safetensors file each, named by what was asked of whom, written by rename."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.atlas import AtlasFolder
from indexer.errors import WRONG_KINDS, AtlasError
from indexer.records.depth_measures import MEASURES
from indexer.records.identity import canonical_json
from indexer.records.record import checksum
from indexer.regular_files import read_regular
from indexer.storage.atomic_files import write_atomically
from indexer.untrusted import load_json

METHOD = "depth-1"
SUBJECTS = ("base", "fine_tune", "untrained")
_LARGEST = 64 << 20  # a layer has some dozen numbers
_LARGEST_RUN = 1 << 16
HINT = "Delete it; `index profile` makes it again."


@dataclass(frozen=True)
class ProfileIdentity:
    """What a profile is of: everything that its numbers depend on, but for device and threads.

    ``probe`` is random, text or image; ``probe_source`` the sha256 of the text or the images where they are the user's.
    ``asked`` and ``layers`` as in ``Asked``; no layers means those that are chosen by default.
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
        """The name of its file."""
        return hashlib.sha256(canonical_json(asdict(self)).encode()).hexdigest()

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ProfileIdentity:
        """From the header of a file. Raises TypeError and KeyError on anything else."""
        return cls(**{**row, "asked": tuple(row["asked"]), "layers": tuple(row["layers"])})


@dataclass(frozen=True)
class Profile:
    """What was measured. ``layers`` (n,) from 1; ``values`` and ``errors`` map a column to (n,), NaN for NULL.

    ``is_complete`` is false where the run was stopped: the layers that are there are whole. ``cpu_seconds`` and
    ``made`` say something of a run and nothing of the model: they lie in a file beside it, so that the same model
    always gives the same bytes.
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
        found = []
        for place, layer in enumerate(self.layers.tolist()):
            row: dict[str, Any] = {"stack": self.stack, "layer": layer, "is_constant": bool(self.is_constant[place])}
            for name in (*MEASURES, "spread"):
                row[name] = _plain(self.values, name, place)
                if name != "spread":
                    row[f"{name}_error"] = _plain(self.errors, name, place)
            found.append(row)
        return found


_IDENTITY_TEXTS = ("subject", "model", "commit", "base", "base_commit", "probe", "probe_source", "recipe", "method")
_PLAIN = ("is_complete", "stack", "probe_sha256", "sequences", "tokens", "device", "threads")


def _plain(columns: Mapping[str, NDArray[np.float32]], name: str, place: int) -> float | None:
    value = float(columns[name][place]) if name in columns else float("nan")
    return None if np.isnan(value) else value


class ProfileStore:
    """The profiles folder of one atlas."""

    def __init__(self, folder: AtlasFolder) -> None:
        self.folder = folder

    def read(self, digest: str) -> Profile:
        """Raises AtlasError where it is missing, truncated, altered or of a later method."""
        return read_profile(self.folder.profile(digest))

    def find(self, identity: ProfileIdentity) -> Profile | None:
        """The profile of this identity, whole or not; None where there is none that can be read."""
        try:
            return self.read(identity.digest)
        except AtlasError:
            return None

    def write(self, profile: Profile) -> None:
        """Keep a profile; what stood in its place goes."""
        write_profile(profile, self.folder.profile(profile.identity.digest))

    def digests(self) -> Iterator[str]:
        """Every file's name, sorted."""
        for path in sorted(self.folder.profiles.glob("[0-9a-f][0-9a-f]/*.safetensors")):
            yield path.stem


def write_profile(profile: Profile, path: Path) -> None:
    """Write by temporary file and rename; before it, what the run was."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {"layers": profile.layers, "is_constant": profile.is_constant.astype(np.uint8)}
    for name, column in profile.values.items():
        arrays[name] = np.ascontiguousarray(column, dtype=np.float32)
    for name, column in profile.errors.items():
        arrays[f"{name}_error"] = np.ascontiguousarray(column, dtype=np.float32)
    header = {"identity": asdict(profile.identity), "notes": list(profile.notes)}
    header |= {name: getattr(profile, name) for name in _PLAIN}
    # One key alone: safetensors writes several in any order, and the same profile must have the same bytes.
    told = canonical_json({"checksum": checksum(canonical_json(header), arrays), "header": header})
    run = {"cpu_seconds": round(profile.cpu_seconds, 2), "made": profile.made}
    write_atomically(_run_file(path), canonical_json(run).encode())
    write_atomically(path, save(arrays, metadata={"profile": told}))


def read_profile(path: Path) -> Profile:
    """Read and check one profile; raises AtlasError where that cannot be."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        payload = read_regular(path, most=_LARGEST)
        arrays = load(payload)
        length = int.from_bytes(payload[:8], "little")
        told = load_json(load_json(payload[8 : 8 + length])["__metadata__"]["profile"])
        header = told["header"]
        if told["checksum"] != checksum(canonical_json(header), arrays):
            raise AtlasError(f"The profile {path.name} was altered: its checksum does not fit.", HINT)
        identity = ProfileIdentity.from_row(header["identity"])
        sizes = {array.shape for array in arrays.values()}
        if sizes != {arrays["layers"].shape} or arrays["layers"].ndim != 1:
            raise ValueError("columns of different lengths")
        _check(identity, header, arrays)
        return Profile(
            identity=identity,
            layers=arrays["layers"],
            is_constant=arrays["is_constant"].astype(bool),
            values={name: arrays[name] for name in (*MEASURES, "spread") if name in arrays},
            errors={name: arrays[f"{name}_error"] for name in MEASURES if f"{name}_error" in arrays},
            notes=tuple(header["notes"]),
            **{name: header[name] for name in _PLAIN},
            **_run(path),
        )
    except AtlasError:
        raise
    except (OSError, SafetensorError, *WRONG_KINDS) as error:
        raise AtlasError(f"The profile {path.name} cannot be read ({type(error).__name__}).", HINT) from error


def _check(identity: ProfileIdentity, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raises one of WRONG_KINDS where something is of another type than this program writes."""
    texts = [getattr(identity, name) for name in _IDENTITY_TEXTS]
    texts += [
        *identity.asked,
        *header["notes"],
        *(header[name] for name in ("stack", "probe_sha256", "device")),
    ]
    if not all(isinstance(text, str) for text in texts) or identity.subject not in SUBJECTS:
        raise ValueError("a text that is none")
    numbers = [identity.seed, *identity.layers, header["sequences"], header["tokens"] or 0, header["threads"]]
    if not all(type(number) is int for number in numbers) or type(header["is_complete"]) is not bool:
        raise ValueError("a number that is none")
    kinds = {"layers": np.int64, "is_constant": np.uint8}
    if any(array.dtype != kinds.get(name, np.float32) for name, array in arrays.items()):
        raise ValueError("numbers of another type")


def _run_file(path: Path) -> Path:
    return path.with_suffix(".run.json")


def _run(path: Path) -> dict[str, Any]:
    """What the run was that made a profile; nothing where that is not told."""
    try:
        said = load_json(read_regular(_run_file(path), most=_LARGEST_RUN))
        seconds = float(said["cpu_seconds"])
        return {"cpu_seconds": seconds if math.isfinite(seconds) else 0.0, "made": str(said["made"])}
    except (OSError, *WRONG_KINDS):
        return {}


def joined(profile: Profile, earlier: Profile | None) -> Profile:
    """With the layers of an earlier, interrupted run that this one left out."""
    if earlier is None or not len(earlier.layers):
        return profile
    order = np.argsort(np.concatenate([earlier.layers, profile.layers]), kind="stable")
    columns: dict[str, Any] = {}
    for part in ("values", "errors"):
        before, now = getattr(earlier, part), getattr(profile, part)
        columns[part] = {
            name: np.concatenate([_column(before, name, earlier), _column(now, name, profile)])[order]
            for name in {**before, **now}
        }
    return replace(
        profile,
        layers=np.concatenate([earlier.layers, profile.layers])[order],
        is_constant=np.concatenate([earlier.is_constant, profile.is_constant])[order],
        cpu_seconds=earlier.cpu_seconds + profile.cpu_seconds,
        **columns,
    )


def _column(columns: Mapping[str, NDArray[np.float32]], name: str, of: Profile) -> NDArray[np.float32]:
    return columns.get(name, np.full(len(of.layers), np.nan, dtype=np.float32))
