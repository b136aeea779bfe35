"""Columns on their way to the page: JSON for names, and the bytes of the arrays behind it.

``length of the JSON`` (4 bytes, little-endian), the JSON, padding to 8, the arrays, each padded to 8. In the JSON an
array stands as ``{"$array": [kind, where its bytes begin, its length]}``; kinds are those of JavaScript's typed arrays.
A hundred thousand models are some 20 MB of it, which a browser takes in without parsing most of them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

_KINDS = {"int32": "Int32Array", "uint32": "Uint32Array", "float32": "Float32Array", "float64": "Float64Array"}
_ALIGNED = 8


def packed(value: Any) -> bytes:
    """``value``: JSON's own types and numpy arrays of one dimension, of the kinds above (little-endian)."""
    parts: list[bytes] = []
    place = 0

    def put(array: Any) -> Any:
        nonlocal place
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{type(array).__name__} cannot be packed")
        payload = np.ascontiguousarray(array).tobytes()
        parts.append(payload + bytes(-len(payload) % _ALIGNED))
        told = {"$array": [_KINDS[array.dtype.name], place, len(array)]}
        place += len(parts[-1])
        return told

    head = json.dumps(value, separators=(",", ":"), allow_nan=False, default=put).encode()
    start = len(head).to_bytes(4, "little") + head
    return b"".join([start, bytes(-len(start) % _ALIGNED), *parts])
