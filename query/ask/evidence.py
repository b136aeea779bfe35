"""Features of texts, from one pass through the base.

They are kept in the user's cache, so that the same file asked about again needs no base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indexer.errors import WRONG_KINDS, AtlasError, require
from indexer.records.identity import canonical_json
from indexer.storage.arrays import checksum, read_arrays, write_arrays
from query.ask.scoring import Null
from query.resolved import READERS
from query.texts import Texts

if TYPE_CHECKING:
    from indexer.console.messages import Progress
    from indexer.profiles.inputs import BaseModel, Whitening
    from query.reader import AtlasReader

METHOD = "inputs-2"  # change it when the features of a text change
NULL_METHOD = "null-1"  # change it when the scores of the reference change
MOST_BYTES = 4 << 30
# Number of texts in each set of a user's own reference texts, in the order of the file.
TEXTS_OF_A_SET = 12
INPUTS_OF_A_SET = 256  # of a set of reference texts


@dataclass(frozen=True)
class Features:
    """Of n sets of texts: ``blocks`` (n, d) vectors like those of models, ``rates`` (n, rows) shares of tokens."""

    blocks: NDArray[np.float32]
    rates: NDArray[np.float32]


def reference_sets(own: Texts | None = None) -> dict[str, tuple[str, ...]]:
    """Sets of texts of one kind by its name: those of this package; or those of ``own``, in the order of the file."""
    if own is not None:
        starts = range(0, len(own), TEXTS_OF_A_SET)
        return {f"{own.name} {start}": own.texts[start : start + TEXTS_OF_A_SET] for start in starts}
    sets: dict[str, list[str]] = {}
    kind: list[str] = []
    for line in (files("query.ask") / "reference.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            kind = sets.setdefault(line.removeprefix("== "), [])
        elif line:
            kind.append(line)
    return {name: tuple(texts) for name, texts in sets.items()}


class Reader:
    """Computes features of sets of texts with one base, or finds them in the cache.

    ``own``: reference texts of the user's. The base is loaded when something is not in the cache.
    """

    def __init__(self, atlas: AtlasReader, base: str, own: Texts | None = None, device: str = "cpu") -> None:
        (row,) = atlas.rows('SELECT deltas, "commit" FROM bases WHERE base = ?', [base])
        self._base, self._commit, self._keys = base, str(row["commit"]), [str(key) for key in row["deltas"]]
        self._length = atlas.index(base).length // len(self._keys)
        self._device, self._state = device, atlas.state
        self._loaded: BaseModel | None = None
        self._whitening: Whitening | None = None
        shipped = reference_sets()
        self._reference = shipped if own is None else reference_sets(own)
        # Sets of the user's own texts may be few, or all of one kind.
        self._sets = list({**self._reference, **shipped}.values())
        said = {"method": METHOD, "base": base, "commit": self._commit, "keys": self._keys, "length": self._length}
        self._digest = _digest(said | {"reference": [list(one) for one in self._reference.values()]})
        self._null_name = f"{self._digest}-{NULL_METHOD}-{_digest({'atlas': str(atlas.folder.root.resolve())})}"

    def reference(self) -> Features:
        """Of every set of reference texts."""
        name = f"{self._digest}-sets"
        found = self._cached(name)
        if found is None:
            found = self._computed(self._sets, "reference texts", INPUTS_OF_A_SET)
            self._keep(name, {"blocks": found.blocks, "rates": found.rates})
        return found

    def pooled_rates(self) -> NDArray[np.float32]:
        """(rows,) of all reference texts together, each set with the same weight."""
        found: NDArray[np.float32] = self.reference().rates[: len(self._reference)].mean(axis=0)
        return found

    def of(self, texts: Texts) -> Features:
        """Of one set of texts."""
        name = f"{self._digest}-{_digest({'texts': list(texts.texts)})}"
        found = self._cached(name)
        if found is None:
            found = self._computed([texts.texts], texts.name)
            self._keep(name, {"blocks": found.blocks, "rates": found.rates})
        return found

    def null(self) -> Null | None:
        """What the reference scores with the models of this publish of the atlas; None if it is not in the cache."""
        arrays = None if self._state is None else self._arrays(self._null_name, self._state)
        return None if arrays is None else Null.of_arrays(arrays)

    def keep_null(self, null: Null) -> None:
        """Keep it for later questions, in place of that of an earlier publish."""
        if self._state is not None:
            self._keep(self._null_name, null.arrays(), self._state)

    def _computed(self, sets: Sequence[Sequence[str]], what: str, most: int | None = None) -> Features:
        from indexer.console.messages import Progress

        base = self._model()
        encoded = [base.encode(texts) for texts in sets]
        if not any(base.has_tokens(one) for one in encoded):
            raise AtlasError(f"{self._base} knows none of the tokens of {what}.", "Check the language and the file.")
        whitening = self._of_reference()
        with Progress(sum(map(len, sets)), f"{what} through {self._base}") as bar:
            blocks = base.blocks(encoded, whitening, _progress(bar), most)
        return Features(blocks.reshape(len(sets), -1), np.stack([base.rates(one) for one in encoded]))

    def _model(self) -> BaseModel:
        if self._loaded is None:
            require("Running texts through a base", *READERS)
            from indexer.profiles.inputs import read_base

            self._loaded = read_base(self._base, self._commit, self._keys, self._length, self._device)
        return self._loaded

    def _of_reference(self) -> Whitening:
        """The reference's moments."""
        from indexer.console.messages import Progress
        from indexer.profiles.inputs import Whitening

        if self._whitening is not None:
            return self._whitening
        name = f"{self._digest}-moments"
        base = self._model()
        arrays = self._arrays(name)
        if arrays is None:
            texts = [text for one in self._reference.values() for text in one]
            encoded = base.encode(texts)
            with Progress(len(texts), f"reference texts through {self._base}, once") as bar:
                found = base.whitening(encoded, _progress(bar))
            arrays = {"roots": found.roots}
            for group in found.values:
                arrays |= {
                    f"values {group}": found.values[group],
                    f"vectors {group}": found.vectors[group],
                    f"ridge {group}": np.array([found.ridges[group]]),
                }
            self._keep(name, arrays)
        groups = [one.removeprefix("values ") for one in arrays if one.startswith("values ")]
        self._whitening = Whitening(
            {group: arrays[f"values {group}"] for group in groups},
            {group: arrays[f"vectors {group}"] for group in groups},
            {group: float(arrays[f"ridge {group}"][0]) for group in groups},
            arrays["roots"],
        )
        return self._whitening

    # ---- the cache

    def _path(self, name: str) -> Path:
        from huggingface_hub import cached_assets_path

        folder = self._base.replace("/", "--")
        return (
            Path(cached_assets_path("vectors-in-the-wild", namespace="texts", subfolder=folder)) / f"{name}.safetensors"
        )

    def _arrays(self, name: str, state: str = "") -> dict[str, NDArray[Any]] | None:
        """The arrays of a file in the cache; None if there is none, it was altered, or it is of another ``state``."""
        try:
            arrays, texts = read_arrays(self._path(name), MOST_BYTES)
            return arrays if texts["checksum"] == checksum(name + state, arrays) else None
        except (OSError, *WRONG_KINDS):
            return None

    def _cached(self, name: str) -> Features | None:
        arrays = self._arrays(name)
        return None if arrays is None else Features(arrays["blocks"], arrays["rates"])

    def _keep(self, name: str, arrays: dict[str, NDArray[Any]], state: str = "") -> None:
        try:
            write_arrays(self._path(name), arrays, {"checksum": checksum(name + state, arrays)})
        except (OSError, AtlasError):
            return  # without a cache everything is computed again


def _progress(bar: Progress) -> Callable[[int], None]:
    """Moves a bar on by the texts of one set that are done."""
    before = bar.done
    return lambda done: bar.update(before + done - bar.done)


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:32]
