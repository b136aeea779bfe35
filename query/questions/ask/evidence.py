"""Features of texts, from one pass through the base.

They are kept in the user's cache, so that the same file asked about again needs no base.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indexer.console.messages import say
from indexer.errors import WRONG_KINDS, AtlasError, require
from indexer.records.identity import ModelVersion, canonical_json
from indexer.records.representations.registry import DEFAULT
from indexer.storage.arrays import arrays_of, as_bytes, checksum
from indexer.storage.own_files import read_own, write_own
from query.models.resolved import READERS
from query.models.texts import Texts
from query.questions.ask.scoring import Null

if TYPE_CHECKING:
    from indexer.profiles.inputs import BaseModel, ReferenceMoments
    from query.models.reader import AtlasReader

METHOD = "inputs-4"  # change it when the features of a text change
NULL_METHOD = "null-1"  # change it when the scores of the reference change
MOST_BYTES = 4 << 30
# A user's own reference texts are divided into at most OWN_SETS sets of at least TEXTS_OF_A_SET texts, in file order.
OWN_SETS, TEXTS_OF_A_SET = 34, 12


@dataclass(frozen=True)
class Features:
    """Features of n sets of texts: ``blocks`` (n, d), vectors like those of models; ``rates`` (n, rows), of tokens."""

    blocks: NDArray[np.float32]
    rates: NDArray[np.float32]


def reference_sets(own_texts: Texts | None = None) -> dict[str, tuple[str, ...]]:
    """Sets of texts of one kind, by name: parts of ``own_texts`` in the order of the file, or this package's texts."""
    if own_texts is not None:
        step = max(TEXTS_OF_A_SET, -(-len(own_texts) // OWN_SETS))
        return {
            f"{own_texts.name} {start}": own_texts.texts[start : start + step]
            for start in range(0, len(own_texts), step)
        }
    sets: dict[str, list[str]] = {}
    kind: list[str] = []
    for line in (files("query.questions.ask") / "reference.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            kind = sets.setdefault(line.removeprefix("== "), [])
        elif line:
            kind.append(line)
    return {name: tuple(texts) for name, texts in sets.items()}


class Reader:
    """Computes features of sets of texts with one base, or finds them in the cache.

    ``own_texts``: the user's own reference texts. The base is loaded when something is not in the cache.
    """

    def __init__(self, atlas: AtlasReader, base: str, own_texts: Texts | None = None, device: str = "cpu") -> None:
        self._base, self._commit = base, str(atlas.base_row(base)["commit"])
        self._keys = [str(key) for key in atlas.delta_keys(base, DEFAULT)]
        self._length = atlas.index(base).length // len(self._keys)
        self._device, self._state = device, atlas.state
        atlas.require_base_elsewhere()
        self._loaded: BaseModel | None = None
        self._whitening: ReferenceMoments | None = None
        shipped = reference_sets()
        self._reference = shipped if own_texts is None else reference_sets(own_texts)
        # The user's own sets may be few, or all of one kind, so the moments also use the shipped sets.
        self._sets = list({**self._reference, **shipped}.values())
        identity = {"method": METHOD, "base": base, "commit": self._commit, "keys": self._keys, "length": self._length}
        self._digest = _digest(identity | {"reference": [list(texts) for texts in self._reference.values()]})
        self._null_name = f"{self._digest}-{NULL_METHOD}-{_digest({'atlas': str(atlas.folder.root.resolve())})}"

    def reference(self) -> Features:
        """The features of every set of reference texts."""
        features = self._cached(f"{self._digest}-sets")
        return self._run_reference()[1] if features is None else features

    def pooled_rates(self) -> NDArray[np.float32]:
        """(rows,) the token rates of all reference texts together, each set with the same weight."""
        return self.reference().rates[: len(self._reference)].mean(axis=0)

    def features_of(self, texts: Texts) -> Features:
        """The features of one set of texts."""
        name = f"{self._digest}-{_digest({'texts': list(texts.texts)})}"
        features = self._cached(name)
        if features is not None:
            return features
        from indexer.console.messages import Progress
        from indexer.profiles.inputs import ASKED

        base, whitening = self._model(), self._moments()
        encoded = base.encode(texts.texts)
        if not base.has_tokens(encoded):
            raise self._unknown(texts.name)
        with Progress(min(len(texts), ASKED.texts), f"{texts.name} through {self._base}") as bar:
            blocks = base.blocks([encoded], whitening, bar.update)
        features = Features(blocks.reshape(1, -1), base.rates(encoded)[None])
        self._keep(name, {"blocks": features.blocks, "rates": features.rates})
        return features

    def null(self) -> Null | None:
        """The reference's scores with the models of this publish of the atlas; None if the cache does not have them."""
        arrays = None if self._state is None else self._arrays(self._null_name, self._state)
        return None if arrays is None else Null.of_arrays(arrays)

    def keep_null(self, null: Null) -> None:
        """Store these scores for later questions, in place of those of an earlier publish."""
        if self._state is not None:
            self._keep(self._null_name, null.arrays(), self._state)

    def _unknown(self, name: str) -> AtlasError:
        return AtlasError(
            f"The vocabulary of {self._base} has none of the tokens of {name}.", "Check the language and the file."
        )

    def _model(self) -> BaseModel:
        if self._loaded is None:
            # torch reads it when it is loaded: waiting threads sleep. On a busy machine spinning doubles the cost.
            os.environ.setdefault("OMP_WAIT_POLICY", "passive")
            require("Running texts through a base", *READERS)
            from indexer.profiles.inputs import read_base

            self._loaded = read_base(
                ModelVersion.of_atlas(self._base, self._commit), self._keys, self._length, self._device
            )
        return self._loaded

    def _moments(self) -> ReferenceMoments:
        """The reference's moments."""
        from indexer.profiles.inputs import ReferenceMoments

        if self._whitening is None:
            arrays = self._arrays(f"{self._digest}-moments")
            if arrays is None:
                return self._run_reference()[0]
            groups = [name.removeprefix("values ") for name in arrays if name.startswith("values ")]
            self._whitening = ReferenceMoments(
                {group: arrays[f"values {group}"] for group in groups},
                {group: arrays[f"vectors {group}"] for group in groups},
                {group: float(arrays[f"ridge {group}"][0]) for group in groups},
                arrays["roots"],
            )
        return self._whitening

    def _run_reference(self) -> tuple[ReferenceMoments, Features]:
        """Run the reference through the base, and keep its moments and features."""
        from indexer.console.messages import Progress
        from indexer.profiles.inputs import OF_A_SET

        base = self._model()
        encoded = [base.encode(texts) for texts in self._sets]
        if not any(base.has_tokens(encoded_set) for encoded_set in encoded):
            raise self._unknown("the reference texts")
        count = sum(min(len(encoded_set), OF_A_SET.texts) for encoded_set in encoded)
        with Progress(count, f"reference texts through {self._base}, once") as bar:
            moments, blocks = base.reference(encoded, len(self._reference), bar.update)
        arrays = {"roots": moments.roots}
        for group in moments.values:
            arrays |= {
                f"values {group}": moments.values[group],
                f"vectors {group}": moments.vectors[group],
                f"ridge {group}": np.array([moments.ridges[group]]),
            }
        self._keep(f"{self._digest}-moments", arrays)
        features = Features(
            blocks.reshape(len(encoded), -1), np.stack([base.rates(encoded_set) for encoded_set in encoded])
        )
        self._keep(f"{self._digest}-sets", {"blocks": features.blocks, "rates": features.rates})
        self._whitening = moments
        return moments, features

    # ---- the cache

    def _path(self, name: str) -> Path:
        from huggingface_hub import cached_assets_path, constants

        folder = self._base.replace("/", "--")
        texts = cached_assets_path(
            "vectors-in-the-wild", namespace="texts", subfolder=folder, assets_dir=constants.HF_ASSETS_CACHE
        )
        return texts / f"{name}.safetensors"

    def _arrays(self, name: str, state: str = "") -> dict[str, NDArray[Any]] | None:
        """The arrays of a file in the cache; None if it is missing, was altered, or belongs to another ``state``."""
        try:
            arrays, texts = arrays_of(read_own(self._path(name), MOST_BYTES, say))
            return arrays if texts["checksum"] == checksum(name + state, arrays) else None
        except (OSError, *WRONG_KINDS):
            return None

    def _cached(self, name: str) -> Features | None:
        arrays = self._arrays(name)
        return None if arrays is None else Features(arrays["blocks"], arrays["rates"])

    def _keep(self, name: str, arrays: dict[str, NDArray[Any]], state: str = "") -> None:
        try:
            write_own(self._path(name), as_bytes(arrays, {"checksum": checksum(name + state, arrays)}))
        except (OSError, ValueError, AtlasError):
            return  # without a cache everything is computed again


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:32]
