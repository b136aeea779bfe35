"""The file of a base's block matrices in the atlas, and its properties, which are known without reading a matrix.

It is an ordinary safetensors file. Its tensors are named after deltas ("3.query"), have the shape (out, in) and the
base's own dtype; its metadata hold everything else. One metadata entry is the sha256 of the whole file, computed with
zeros in place of the entry itself, so it covers every bit including the header.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.checkpoints.architectures.architecture import load_architecture
from indexer.checkpoints.architectures.layout import Layout, Matrix
from indexer.checkpoints.safetensors_header import ITEM_BYTES, MOST_HEADER, SafetensorsHeader, read_header
from indexer.errors import WRONG_KINDS, AtlasError, Call, ModelError, Text, system_errors
from indexer.names import DeltaKey
from indexer.network.byterange import LocalFile
from indexer.records.identity import RECORD_VERSION, OtherVersion, check_version
from indexer.records.row_plan import is_partial, lines_to_read
from indexer.records.tokens import token_rows
from indexer.records.words import plain_word
from indexer.regular_files import regular_status
from indexer.sources.registry import ModelRef, is_listed_id
from indexer.storage.checksums import check_once, stamp_of
from indexer.untrusted import MAX_INTEGER, MAX_TEXT, load_json, malformed

UNKNOWN = "0" * 64

# The names of the rows of embeddings, which are stored after the block matrices: the rows of tokens that are also read
# of fine-tunes, and all rows of positions and token types.
TOKENS, POSITIONS, TOKEN_TYPES = EMBEDDINGS = ("tokens", "positions", "token_types")

_COARSEST_NS = 2_000_000_000  # nanoseconds that two dates differ by on every file system

_CHECKSUM = re.compile(rb'"sha256":"([0-9a-f]{64})"')  # within the other metadata every quote is escaped


@dataclass(frozen=True)
class BaseShape:
    """The layout and the sizes of a base.

    ``block_bytes``: of all its matrices; ``item_bytes``: of its widest number; ``token_numbers``: how many numbers of
    its input embedding are read from every fine-tune.
    """

    layout: Layout
    block_bytes: int
    item_bytes: int
    token_numbers: int = 0

    @property
    def is_partial(self) -> bool:
        """Whether a sample of a fine-tune leaves out any row."""
        return is_partial((matrix.shape, matrix.transposed) for matrix in self.layout.matrices)

    def sample_bytes(self, item_bytes: int) -> int:
        """Bytes of a sample of a fine-tune that stores a number in ``item_bytes``."""
        if not self.is_partial:
            return self.block_bytes * item_bytes // self.item_bytes
        size = self.token_numbers * item_bytes
        for matrix in self.layout.matrices:
            lines = lines_to_read(matrix.shape, matrix.transposed, item_bytes)
            size += lines * matrix.shape[not matrix.transposed] * item_bytes
        return size


def sampled_lines(matrix: Matrix) -> int:
    """How many rows of a matrix a sampled base keeps: every row that a sample of a fine-tune may hold."""
    return lines_to_read(matrix.shape, matrix.transposed, 2, more=True)


def sampled_shape(matrix: Matrix) -> tuple[int, int]:
    """The shape (out, in) of what a sampled base keeps of a matrix; of a transposed one, some input coordinates."""
    rows, columns = matrix.shape
    count = sampled_lines(matrix)
    return (rows, count) if matrix.transposed else (count, columns)


@dataclass
class StoredBase:
    """A base stored in the atlas.

    ``layout`` is that of the base's own checkpoint; ``norms`` are the Frobenius norms of the matrices.
    """

    path: Path

    def check(self, *, recheck: bool = False) -> None:
        """Raise AtlasError if the file is missing, damaged or of another version.

        The whole file is hashed only once, because the check is remembered; ``recheck``: hash it again.
        """

        def check() -> None:
            if actual_checksum(self.path) != stated:
                raise self._damaged("its checksum does not match")

        with system_errors(self._unreadable):
            status, match = regular_status(self.path), _CHECKSUM.search(_header(self.path))
            if match is None:
                self._header  # noqa: B018 - raises if it cannot be read
                raise self._damaged("its checksum cannot be read")
            stated = match[1].decode()
            check_once(self.path, stamp_of(status, stated), check, recheck=recheck)
        if self.description["version"] != RECORD_VERSION:
            raise OtherVersion(
                f"The block matrices of {self.base} are of record version {self.description['version']}; this program "
                f"compares models with those of version {RECORD_VERSION} ({self.path.name}).",
                Text("Run ", Call("build", self.base), ", which fetches them again."),
            )

    def _damaged(self, why: str) -> AtlasError:
        name = base_in(self.path)
        return AtlasError(
            f"The block matrices of {name} are damaged: {why} ({self.path.name}).",
            Text("Run ", Call("build", name), ", which fetches them again."),
        )

    def _unreadable(self, why: str) -> AtlasError:
        return self._damaged(f"it cannot be read: {why}")

    @cached_property
    def _header(self) -> SafetensorsHeader:
        """Raises AtlasError if it cannot be read."""
        try:
            with system_errors(self._unreadable):
                regular_status(self.path)  # refuses a link, which may point anywhere
                with closing(LocalFile(self.path)) as file:
                    return read_header(file)
        except ModelError as error:
            raise self._damaged(error.detail) from error

    @cached_property
    def description(self) -> Mapping[str, Any]:
        """The metadata: base, commit, config, shapes, norms. Raises AtlasError."""
        with malformed(lambda why: self._damaged(f"its metadata cannot be read ({why})")):
            description: Mapping[str, Any] = load_json(self._header.metadata["base"])
            name = base_in(self.path)
            repair = Text("Run ", Call("build", name), ", which fetches them again.")
            check_version(description.get("version"), f"The file of block matrices of {name}", repair)
            _check_description(description)
        return description

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
        config: Mapping[str, Any] = self.description["config"]
        return config

    @cached_property
    def layout(self) -> Layout:
        """The block matrices in the base's own checkpoint. Raises AtlasError if the file contains other matrices."""
        shapes = {name: tuple(shape) for name, shape in self.description["shapes"].items()}
        try:
            layout = load_architecture(str(self.config["model_type"])).locate(shapes, self.config)
        except (ModelError, *WRONG_KINDS) as error:
            raise self._damaged("its architecture is invalid") from error
        expected = {
            str(matrix.key): sampled_shape(matrix) if self.is_sampled else tuple(matrix.shape)
            for matrix in layout.matrices
        }
        stored_shapes = {name: entry.shape for name, entry in self._header.entries.items()}
        rows = stored_shapes.pop(TOKENS, (0, 0))
        embedding_shapes = [stored_shapes.pop(kind, rows) for kind in EMBEDDINGS]
        is_consistent = len(rows) == 2 and all(entry.dtype in ITEM_BYTES for entry in self._header.entries.values())
        is_consistent &= rows[0] == (len(token_rows(self.vocabulary)) if self.vocabulary else 0)
        is_consistent &= all(len(shape) == 2 and shape[1] == rows[1] for shape in embedding_shapes)
        if stored_shapes != expected or not is_consistent:
            raise self._damaged("its matrices are not those of its architecture")
        return layout

    @cached_property
    def norms(self) -> dict[DeltaKey, float]:
        """‖W_base‖ (Frobenius) of every matrix."""
        return {DeltaKey.parse(name): float(norm) for name, norm in self.description["norms"].items()}

    @property
    def is_sampled(self) -> bool:
        """Whether only some rows of each matrix are stored (``sampled_lines``).

        The norms are estimates if no more was ever read of it (``reduce_to_sample`` keeps those of whole matrices).
        """
        return bool(self.description["is_sampled"])

    @property
    def component(self) -> str:
        """The folder of its weights in a repository of diffusers; "" in other repositories."""
        return str(self.description["component"])

    def reference(self, model: ModelRef, filenames: Collection[str] | None) -> ModelRef:
        """The model, with the folder of its weights if its repository holds the same component of diffusers."""
        has_component = self.component and any(name.startswith(f"{self.component}/") for name in filenames or ())
        return replace(model, subfolder=self.component) if has_component else model

    @property
    def vocabulary(self) -> int:
        """The number of rows of its input embedding; 0 if none of them are stored."""
        return int(self.description["vocabulary"])

    @property
    def words(self) -> tuple[str, ...]:
        """The word of each row of its input embedding that is stored, "" for a row that is none; () if not known."""
        return tuple(self.description.get("words", ()))  # record version 1 has none

    @property
    def shape(self) -> BaseShape:
        """Its layout and sizes."""
        tokens = self._header.entries.get(TOKENS)
        token_numbers = math.prod(tokens.shape) if tokens is not None else 0
        return BaseShape(self.layout, self.block_bytes, self.item_bytes, token_numbers)

    @property
    def block_bytes(self) -> int:
        """Bytes of all block matrices in its checkpoint."""
        sizes = self.stored_item_bytes
        return sum(math.prod(matrix.shape) * sizes[matrix.key] for matrix in self.layout.matrices)

    @property
    def item_bytes(self) -> int:
        """Bytes of the widest stored number."""
        return max(self.stored_item_bytes.values())

    @property
    def stored_item_bytes(self) -> dict[DeltaKey, int]:
        """Bytes of a stored number of each matrix."""
        entries = self._header.entries
        return {matrix.key: ITEM_BYTES[entries[str(matrix.key)].dtype] for matrix in self.layout.matrices}

    @property
    def file_hashes(self) -> tuple[str | None, ...]:
        """sha256 of the weight files that the matrices come from, where known."""
        return tuple(self.description["file_hashes"])


def stored_bases(folder: AtlasFolder, base: str | None = None) -> list[StoredBase]:
    """Bases stored in the atlas (all commits of ``base``, or of every base), newest first, without unreadable ones.

    Only the headers are read; call ``check`` before reading matrices.
    """
    paths = [path for path in folder.bases.glob("[!.]*.safetensors") if path.is_file() and not path.is_symlink()]
    bases = []
    for path in sorted(paths, key=lambda path: (-path.stat().st_mtime_ns, path.name)):
        stored = StoredBase(path)
        with suppress(AtlasError):
            if base is None or stored.base == base:
                stored.description  # noqa: B018 - raises if it cannot be read
                bases.append(stored)
    return bases


def date_as_newest(path: Path) -> None:
    """Date a file that was just written as the newest of its base, even if the clock was set back."""
    other_files = [
        other for other in path.parent.glob("[!.]*.safetensors") if base_in(other) == base_in(path) and other != path
    ]
    with suppress(OSError):  # not all file systems let times be set
        latest = max((other.lstat().st_mtime_ns for other in other_files), default=0)
        if path.stat().st_mtime_ns <= latest:
            os.utime(path, ns=(latest + _COARSEST_NS, latest + _COARSEST_NS))


def base_in(path: Path) -> str:
    """The base in a file's name. The first "--" ends the account, whose name hardly contains one."""
    return path.name.rpartition("@")[0].replace("--", "/", 1).replace("@", ":")


def _check_description(description: Any) -> None:
    """Raise one of WRONG_KINDS unless this program could have written the metadata."""
    names = description["base"], description["commit"]
    if not all(isinstance(name, str) and name.isprintable() and 0 < len(name) <= MAX_TEXT for name in names):
        raise ValueError("invalid name")
    if (
        not is_listed_id(description["base"])
        or "/" in description["commit"]
        or not isinstance(description["config"], dict)
    ):
        raise ValueError("invalid id, commit or config")
    for shape in description["shapes"].values():
        if not all(type(size) is int and 0 < size <= MAX_INTEGER for size in shape):
            raise ValueError("invalid shape")
    for name, norm in description["norms"].items():
        DeltaKey.parse(name)
        if type(norm) is not float or not math.isfinite(norm):
            raise ValueError("invalid norm")
    if (
        not isinstance(description["component"], str)
        or "/" in description["component"]
        or type(description["is_sampled"]) is not bool
    ):
        raise ValueError("invalid component")
    if type(vocabulary := description["vocabulary"]) is not int or not 0 <= vocabulary <= MAX_INTEGER:
        raise ValueError("invalid vocabulary")
    words = description.get("words", ())
    if words and len(words) != len(token_rows(vocabulary)):
        raise ValueError("words that are not those of its rows")
    if not all(isinstance(word, str) and (not word or plain_word(word) == word) for word in words):
        raise ValueError("invalid word")
    if not all(sha256 is None or isinstance(sha256, str) for sha256 in description["file_hashes"]):
        raise ValueError("invalid hash")


def with_checksum(header: bytes, data: Path) -> bytes:
    """``header`` (length and JSON), with the checksum of the file of ``header`` and ``data`` in place of UNKNOWN."""
    start, stop = _checksum_span(header)
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.sha256(header))
    return header[:start] + digest.hexdigest().encode() + header[stop:]


def actual_checksum(path: Path) -> str:
    """The checksum of the file as it is. Raises OSError, and ValueError if its header has none."""
    header = _header(path)
    start, stop = _checksum_span(header)
    with path.open("rb") as file:
        file.seek(len(header))
        digest = hashlib.file_digest(file, lambda: hashlib.sha256(header[:start] + UNKNOWN.encode() + header[stop:]))
    return digest.hexdigest()


def _header(path: Path) -> bytes:
    """The length and the header, up to MOST_HEADER bytes."""
    with path.open("rb") as file:
        length = file.read(8)
        return length + file.read(min(int.from_bytes(length, "little"), MOST_HEADER))


def _checksum_span(header: bytes) -> tuple[int, int]:
    match = _CHECKSUM.search(header)
    if match is None:
        raise ValueError("no checksum")
    return match.span(1)
