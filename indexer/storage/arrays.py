"""Arrays and a few texts in one safetensors file, without pickles: the files of records and of depth profiles.

A checksum over header and arrays, stored as one of the texts, detects a truncated or altered file before it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.regular_files import open_regular, read_regular
from indexer.storage.atomic_files import write_atomically
from indexer.untrusted import load_json

# No record has a longer header: one delta takes 200 bytes of it.
_LONGEST_HEADER = 64 << 20


def checksum(text: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """sha256 (hex) of a header and of all arrays with their names, dtypes and shapes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(array.data)
    return digest.hexdigest()


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], texts: Mapping[str, str]) -> None:
    """Write the file atomically: a reader finds all of it or none."""
    write_atomically(path, as_bytes(arrays, texts))


def as_bytes(arrays: Mapping[str, NDArray[Any]], texts: Mapping[str, str]) -> bytes:
    """The content of a file of arrays and texts."""
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return save(contiguous, metadata=dict(texts))


def read_arrays(path: Path, most: int) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays and the texts of a regular file of at most ``most`` bytes; the caller compares the checksum.

    Raises OSError, or ValueError or TypeError if it is not such a file.
    """
    return arrays_of(read_regular(path, most=most))


def arrays_of(content: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays and the texts of a file's content. Raises ValueError or TypeError if it is not such a file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
    except SafetensorError as error:
        raise ValueError(f"not a safetensors file: {error}") from error
    return arrays, _texts(content[8 : 8 + int.from_bytes(content[:8], "little")])


def read_texts(path: Path) -> dict[str, str]:
    """The texts of a file, from its header alone, unchecked. Raises like ``read_arrays``."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        return _texts(file.read(min(length, _LONGEST_HEADER)))


def _texts(header: bytes) -> dict[str, str]:
    texts = load_json(header)["__metadata__"]
    if not isinstance(texts, dict):
        raise ValueError("the header holds no texts")
    return texts
