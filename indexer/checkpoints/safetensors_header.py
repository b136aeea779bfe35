"""The header of a safetensors file: eight bytes of length, then JSON with the offsets of every tensor.

It is untrusted: every number in it is checked against the size of the file before it is used. This module does not
import torch, which takes longer to load than most uses of a header take.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from indexer.network.byterange import ByteSource, corrupt, refuse_pointer
from indexer.untrusted import is_count, load_json, shown

# The header of a model of 12 layers is about 20 KiB, so the first request usually includes it.
FIRST_GUESS = 32 << 10
# The format allows 100 MB. Parsed, that is a gigabyte of Python objects; 16 MiB name some 150,000 tensors.
MOST_HEADER = 16 << 20
MOST_DIMENSIONS = 16

# Bytes per number of each readable dtype, by its name in the format.
ITEM_BYTES = {
    **dict.fromkeys(("F64", "C64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"), 1),
}


@dataclass(frozen=True)
class HeaderEntry:
    """A tensor in [start, stop) of the file. ``dtype`` is as in the file and may be unknown."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.stop - self.start


@dataclass(frozen=True)
class SafetensorsHeader:
    """The tensors by name, in the order of the file, and the file's ``metadata``."""

    entries: Mapping[str, HeaderEntry]
    metadata: Mapping[str, str]


def read_header(source: ByteSource, most: int = MOST_HEADER) -> SafetensorsHeader:
    """Read and check the header, of at most ``most`` and MOST_HEADER bytes.

    Raises Skipped("corrupt_file") if it is invalid or does not match the file; its message contains the number of
    missing bytes of a truncated upload. Raises Failed if it cannot be read now.
    """
    front = source.read(0, min(FIRST_GUESS, source.size), keep=True)
    if len(front) < 8:
        raise corrupt(source, f"has {len(front)} bytes, less than the length of a header")
    length = int.from_bytes(front[:8], "little")
    refuse_pointer(source, bytes(front))
    if length > source.size - 8:
        raise corrupt(source, f"has {source.size} bytes, but says that its header alone has {length}")
    if length > min(most, MOST_HEADER):
        raise corrupt(source, f"has a header of {length} bytes; up to {min(most, MOST_HEADER)} are read")
    text = bytes(front[8 : 8 + length])
    if len(text) < length:
        text += bytes(source.read(8 + len(text), 8 + length))

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            duplicate = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise corrupt(source, f"names {shown(duplicate)} twice in its header")
        return entries

    try:
        header = load_json(text.decode(), without_duplicates)
    except ValueError:
        raise corrupt(source, "has a header that is not JSON, or holds too much") from None
    if not isinstance(header, dict):
        raise corrupt(source, "has a header that is not a JSON object")
    metadata = header.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata  # mlx writes null where there is none
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise corrupt(source, "has metadata that is not a mapping of text to text")
    data_start = 8 + length
    entries = {name: _entry(source, name, description, data_start) for name, description in header.items()}
    # The tensors must fill the file: without overlaps or gaps, and exactly to its end.
    position, previous = data_start, ""
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.stop)):
        if entry.start < position:
            raise corrupt(source, f"puts {shown(entry.name)} over {shown(previous)}")
        if entry.start > position:
            raise corrupt(source, f"leaves {entry.start - position} bytes before {shown(entry.name)}")
        position, previous = entry.stop, entry.name
    if position > source.size:
        raise corrupt(source, f"is cut short: {position - source.size} of its {position} bytes are missing")
    if position < source.size:
        raise corrupt(source, f"has {source.size - position} bytes that belong to no tensor")
    return SafetensorsHeader(MappingProxyType(entries), MappingProxyType(metadata))


def _entry(source: ByteSource, name: str, description: Any, data_start: int) -> HeaderEntry:
    """One entry of the header, checked by itself."""
    if not isinstance(description, dict):
        raise corrupt(source, f"describes {shown(name)} by something that is not an object")
    dtype_name, shape, offsets = description.get("dtype"), description.get("shape"), description.get("data_offsets")
    if not isinstance(dtype_name, str):
        raise corrupt(source, f"gives {shown(name)} no dtype")
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS or not all(map(is_count, shape)):
        raise corrupt(source, f"gives {shown(name)} a shape that is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):
        raise corrupt(source, f"gives {shown(name)} offsets that are not two positions")
    begin, end = offsets
    if begin > end:
        raise corrupt(source, f"says that {shown(name)} ends before it begins ({begin}, {end})")
    item_bytes = ITEM_BYTES.get(dtype_name)
    if item_bytes is not None and math.prod(shape) * item_bytes != end - begin:
        raise corrupt(
            source,
            f"gives {shown(name)} {end - begin} bytes, but {dtype_name} of shape {tuple(shape)} takes "
            f"{shown(math.prod(shape) * item_bytes)}",
        )
    return HeaderEntry(name, dtype_name, tuple(shape), data_start + begin, data_start + end)
