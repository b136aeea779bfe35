"""A matrix that a file stores in another form than as its numbers: the interface of all such forms.

``indexer.checkpoints.quantised`` knows the forms in safetensors files, ``gguf_file`` those of GGUF, ``onnx_file``
matrices that ONNX stores transposed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Codes = NDArray[np.uint8]


class Quantised(NamedTuple):
    """Rows after a quantiser: their codes, as ``QuantisedMatrix.codes``, and what these stand for, (rows, in)."""

    codes: Codes
    values: torch.Tensor


def octets(rows: torch.Tensor) -> Codes:
    """The bytes of each row."""
    return rows.contiguous().view(torch.uint8).reshape(len(rows), -1).numpy()


@dataclass(frozen=True)
class QuantisedMatrix(ABC):
    """The stored form of one matrix (out, in).

    ``parts``: the names of the tensor of codes and of those of scales. ``bits``: of a code, without its scales.
    """

    shape: tuple[int, int]
    parts: tuple[str, ...]
    bits: int

    @property
    @abstractmethod
    def label(self) -> str:
        """The form in words: ``fp8``, ``mlx (8 bits)``, ``Q4_K``."""

    @property
    def format(self) -> str:
        """The format of a conversion ("GGUF"); "" for a form in which models are trained or can be compared."""
        return ""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of ``decode``."""
        return torch.float32

    def stored_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Which rows of the tensor of codes hold these rows, one for each; None if all of the tensor is needed."""
        return rows

    def whole(self, codes: torch.Tensor) -> torch.Tensor:
        """The whole tensor of codes in the order that ``decode`` expects for all rows."""
        stored = self.stored_rows(np.arange(self.shape[0]))
        return codes if stored is None else codes[stored]

    @abstractmethod
    def decode(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor | None = None) -> torch.Tensor:
        """The values (rows, in) in ``dtype``.

        ``tensors``: the parts; of the codes the ``stored_rows`` of ``rows``, or the ``whole`` tensor for None.
        """

    def codes(self, tensors: Mapping[str, torch.Tensor], rows: torch.Tensor) -> Codes:
        """What is stored of these rows, as bytes (rows, n). ``tensors`` as in ``decode``."""
        return octets(tensors[self.parts[0]].reshape(len(rows), -1))

    def quantised(self, values: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> Quantised | None:
        """What the format's own quantiser makes of these rows of numbers (rows, in), float32.

        None if that depends on more than these rows: on calibration data, or on a quantiser that is not installed.
        ``tensors``: the parts of scales.
        """
        return None
