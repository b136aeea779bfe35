"""The base's block matrices as a file of the atlas, and what is known of them without reading one.

The file is an ordinary safetensors file whose tensors are named after deltas ("3.query") and oriented
(out, in), in the base's own dtype. Its notes hold the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from indexer.architectures.architecture import load_architecture
from indexer.architectures.layout import Layout
from indexer.atlas import AtlasFolder
from indexer.names import DeltaKey
from indexer.network.byterange import LocalFile
from indexer.regular_files import regular_status
from indexer.weights.safetensors_header import ITEM_BYTES, SafetensorsHeader, read_header


@dataclass
class StoredBase:
    """A base kept in the atlas.

    ``layout`` is that of the base's own checkpoint, ``norms`` the Frobenius norm of every matrix.
    """

    path: Path

    @cached_property
    def _header(self) -> SafetensorsHeader:
        regular_status(self.path)  # no link: it may lead anywhere
        with closing(LocalFile(self.path)) as file:
            return read_header(file)

    @cached_property
    def description(self) -> Mapping[str, Any]:
        """What was written beside the matrices: base, commit, config, shapes, norms."""
        found: Mapping[str, Any] = json.loads(self._header.metadata["base"])
        return found

    @property
    def base(self) -> str:
        """The base's canonical id."""
        return str(self.description["base"])

    @property
    def commit(self) -> str:
        """The commit the matrices come from."""
        return str(self.description["commit"])

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The base's config.json."""
        found: Mapping[str, Any] = self.description["config"]
        return found

    @cached_property
    def layout(self) -> Layout:
        """Where the block matrices lie in the base's own checkpoint."""
        shapes = {name: tuple(shape) for name, shape in self.description["shapes"].items()}
        return load_architecture(str(self.config["model_type"])).locate(shapes, self.config)

    @cached_property
    def norms(self) -> dict[DeltaKey, float]:
        """‖W_base‖ (Frobenius) of every matrix."""
        return {DeltaKey.parse(name): float(norm) for name, norm in self.description["norms"].items()}

    @property
    def block_bytes(self) -> int:
        """Bytes of all block matrices as stored."""
        return sum(entry.nbytes for entry in self._header.entries.values())

    @property
    def item_bytes(self) -> int:
        """Bytes of one stored number."""
        return max(ITEM_BYTES[entry.dtype] for entry in self._header.entries.values())

    @property
    def file_hashes(self) -> tuple[str | None, ...]:
        """sha256 of the weight files that the matrices come from, where known."""
        return tuple(self.description["file_hashes"])


def stored_bases(folder: AtlasFolder, base: str | None = None) -> list[StoredBase]:
    """Bases kept in the atlas (all commits of ``base``, or of every base), newest first."""
    paths = [path for path in folder.bases.glob("[!.]*.safetensors") if path.is_file() and not path.is_symlink()]
    found = [StoredBase(path) for path in sorted(paths, key=lambda path: (-path.stat().st_mtime_ns, path.name))]
    return [one for one in found if base is None or one.base == base]
