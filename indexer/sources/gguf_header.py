"""The header of a GGUF file: facts of the model, and the names, types and places of its tensors.

Key-value pairs hold the architecture's numbers, what the model was made from, and the vocabulary; the tensors follow
(described by llama.cpp as versions 2 and 3). All of it is untrusted: every number is checked against the size of the
file before it is used. This module imports neither torch nor gguf, because listings read the facts alone.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from indexer.network.byterange import ByteSource, corrupt, refuse_pointer
from indexer.untrusted import shown, tidy

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_FIRST_READ = 128 << 10
# Vocabularies of 256,000 words with their merges take 12 MB.
_MOST_HEADER = 64 << 20
_MOST_FACTS = 2 << 20  # of a header of which only the facts are read
_MOST_PAIRS = 10_000
_MOST_TENSORS = 100_000
_MOST_NAME = 200
_MOST_VALUE = 500
_MOST_TEXT = 1 << 20  # of a template of a chat
_MOST_DIMENSIONS = 4
_LARGEST = 2**40

# The scalar types of key-value pairs by their number: struct formats. 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# Where converters say what the model was made from, and which checkpoint they converted.
_BASES = tuple(f"general.base_model.{number}.repo_url" for number in range(4))
_SOURCES = ("general.source.repo_url", "general.source.url", "general.source.huggingface.repository")
_NAMES = (*(f"general.base_model.{number}.name" for number in range(4)), "general.name")
_HUB = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+).*")
# How the keys of the vocabulary begin. Converters write them after what they say of the model.
_VOCABULARY = "tokenizer."


@dataclass(frozen=True)
class GgufHeader:
    """``facts``: the pairs that are single numbers or short texts.

    ``tensors``: the name of each, the number of its type, its shape and its offset from ``data``.
    """

    facts: Mapping[str, Any]
    tensors: Sequence[tuple[str, int, tuple[int, ...], int]]
    data: int

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        return str(self.facts.get("general.architecture", ""))

    def number(self, key: str) -> int | None:
        """A number of the architecture, ``attention.head_count``; None if it is not one."""
        value = self.facts.get(f"{self.architecture}.{key}")
        return value if type(value) is int and 0 < value < 1 << 31 else None


class _Cursor:
    """Reads the front of a file, piece by piece."""

    def __init__(self, source: ByteSource, most: int) -> None:
        self._source, self._most = source, min(most, source.size)
        self._content = bytes(source.read(0, min(_FIRST_READ, source.size), keep=True))
        self.position = 0

    def take(self, count: int) -> bytes:
        """The next bytes. Raises Skipped("corrupt_file") if the header would end beyond the file, or the limit."""
        stop = self.position + count
        if stop > self._most:
            limit = "the file" if self._most == self._source.size else f"the {self._most >> 20} MB that are read of one"
            raise corrupt(self._source, f"has a header that is longer than {limit}")
        if stop > len(self._content):
            more = min(max(stop, 2 * len(self._content)), self._most)
            self._content += bytes(self._source.read(len(self._content), more))
        piece = self._content[self.position : stop]
        self.position = stop
        return piece

    def number(self, form: str) -> Any:
        """One little-endian number."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]

    def text(self, most: int) -> str:
        """A string. Raises Skipped("corrupt_file") if it is longer than ``most`` bytes."""
        length = self.number("Q")
        if length > most:
            raise corrupt(self._source, f"has a text of {shown(length)} bytes in its header; up to {most} are read")
        return self.take(length).decode("utf-8", "replace")


def read_header(source: ByteSource, most: int | None = None) -> GgufHeader:
    """Read and check the header, of at most ``most`` bytes. Raises Skipped("corrupt_file"), or Failed."""
    cursor = _Cursor(source, min(most or _MOST_HEADER, _MOST_HEADER))
    tensor_count, pair_count = _counts(source, cursor)
    facts = {key: value for key, value in _pairs(source, cursor, pair_count) if value is not None}
    tensors = []
    names: set[str] = set()
    for _ in range(tensor_count):
        name, dimensions = cursor.text(_MOST_NAME), cursor.number("I")
        if name in names:
            raise corrupt(source, f"names {shown(name)} twice in its header")
        if not 0 < dimensions <= _MOST_DIMENSIONS:
            raise corrupt(source, f"gives {shown(name)} {shown(dimensions)} dimensions")
        names.add(name)
        shape = tuple(cursor.number("Q") for _ in range(dimensions))[::-1]
        if not all(0 < size < _LARGEST for size in shape) or math.prod(shape) >= _LARGEST:
            raise corrupt(source, f"gives {shown(name)} a shape that is too large or empty")
        tensors.append((name, cursor.number("I"), shape, cursor.number("Q")))
    alignment = facts.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20:
        raise corrupt(source, "has an alignment that is not a small number")
    return GgufHeader(MappingProxyType(facts), tensors, -(-cursor.position // alignment) * alignment)


def read_facts(source: ByteSource) -> dict[str, Any]:
    """The facts that stand before the vocabulary: all that converters say of the model. Little of a file is read.

    Raises Skipped("corrupt_file") or Failed if there are none.
    """
    cursor = _Cursor(source, _MOST_FACTS)
    _, pair_count = _counts(source, cursor)
    pairs = _pairs(source, cursor, pair_count, until=_VOCABULARY)
    return {key: value for key, value in pairs if value is not None}


def _counts(source: ByteSource, cursor: _Cursor) -> tuple[int, int]:
    """How many tensors and how many facts there are, by the beginning of the file."""
    front = cursor.take(min(64, source.size))
    refuse_pointer(source, front)
    cursor.position = 4
    if front[:4] != _MAGIC:
        raise corrupt(source, "does not begin as a GGUF file")
    version = cursor.number("I")
    if version not in _VERSIONS:
        raise corrupt(source, f"is of version {shown(version)} of GGUF; versions 2 and 3 are read")
    tensor_count, pair_count = cursor.number("Q"), cursor.number("Q")
    if tensor_count > _MOST_TENSORS or pair_count > _MOST_PAIRS:
        raise corrupt(source, f"says that it has {shown(tensor_count)} tensors and {shown(pair_count)} facts")
    return tensor_count, pair_count


def _pairs(source: ByteSource, cursor: _Cursor, count: int, until: str | None = None) -> Iterator[tuple[str, Any]]:
    """The pairs, up to the first whose key begins with ``until``."""
    for _ in range(count):
        key = cursor.text(_MOST_NAME)
        if until is not None and key.startswith(until):
            return
        yield key, _value(source, cursor, cursor.number("I"))


def _value(source: ByteSource, cursor: _Cursor, kind: int) -> Any:
    """A number or a short text; None for a longer one, and for an array, which is skipped."""
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind])
    if kind == _STRING:
        text = cursor.text(_MOST_TEXT)
        return tidy(text) if len(text) <= _MOST_VALUE else None
    if kind != _ARRAY:
        raise corrupt(source, f"has a fact of the unknown type {shown(kind)}")
    inner, count = cursor.number("I"), cursor.number("Q")
    if inner in _SCALARS:
        cursor.take(count * struct.calcsize(f"<{_SCALARS[inner]}"))
    elif inner == _STRING:
        for _ in range(count):  # each takes at least eight bytes of the header, which is bounded
            cursor.take(cursor.number("Q"))
    else:
        raise corrupt(source, f"has a list of the unknown type {shown(inner)}")
    return None


def stated_bases(facts: Mapping[str, Any]) -> list[str]:
    """The ids, or addresses, of what a file says that its model was made from."""
    return _without_hub(facts, _BASES)


def stated_sources(facts: Mapping[str, Any]) -> list[str]:
    """The same of the checkpoint that it says that it was converted from."""
    return _without_hub(facts, _SOURCES)


def _without_hub(facts: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    texts = [facts.get(key) for key in keys]
    return [_HUB.sub(r"\1", text) for text in texts if isinstance(text, str) and text]


def stated_titles(facts: Mapping[str, Any]) -> list[str]:
    """What a file calls its bases and itself, as the last part of an id is spelled: ``Llama-3.2-1B``.

    These are titles for readers, not ids.
    """
    texts = [facts.get(key) for key in _NAMES]
    return ["-".join(text.split()) for text in texts if isinstance(text, str) and text.strip()]
