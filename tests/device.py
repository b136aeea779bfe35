"""The devices that tests run on: the processor, and a GPU where there is one."""

from __future__ import annotations

import pytest
import torch

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICES = ("cpu", pytest.param("cuda", marks=on_a_gpu))
