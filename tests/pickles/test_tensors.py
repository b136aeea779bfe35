"""Tensors of pickled checkpoints, the same as torch loads them."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.checkpoints.torch_files import read_torch_index
from indexer.network.byterange import LocalFile
from tests.pickles.saved import FORMS, check_against_torch, load, save


def rich_state() -> dict[str, torch.Tensor]:
    """Tensors of every kind that state dicts hold."""
    torch.manual_seed(0)
    flat = torch.randn(1000)
    tied = torch.randn(30, 8)
    return {
        "plain.weight": torch.randn(64, 32),
        "half": torch.randn(5, 3).half(),
        "bfloat": torch.randn(7).bfloat16(),
        "double": torch.randn(3, 2, 2).double(),
        "scalar": torch.tensor(3.5),
        "ids": torch.arange(512).unsqueeze(0),
        "flag": torch.tensor([True, False]),
        "byte": torch.arange(5, dtype=torch.uint8),
        "empty": torch.empty(0, 4),
        "transposed": torch.randn(9, 7).t(),
        "column": torch.randn(20, 6)[:, 2],
        "flat.first": flat[:600].view(20, 30),
        "flat.rest": flat[600:],
        "tied.one": tied,
        "tied.two": tied,
        "parameter": torch.nn.Parameter(torch.randn(4, 4)),
        "bytes of \u00fc": torch.randn(2),
    }


@FORMS
def test_every_kind_of_tensor(tmp_path: Path, zipped: bool) -> None:
    state = rich_state()
    path = save(state, tmp_path / "a.bin", zipped)
    loaded = torch.load(path, weights_only=True)
    check_against_torch(path, {name: tensor.detach() for name, tensor in loaded.items()})
    assert read_torch_index(LocalFile(path)).format == ("torch-zip" if zipped else "torch-legacy")


@FORMS
def test_real_models(tmp_path: Path, zipped: bool) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64)
    state = BertModel(config).state_dict()
    assert isinstance(state, collections.OrderedDict)
    check_against_torch(save(state, tmp_path / "a.bin", zipped), dict(state))


@FORMS
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"state_dict": state, "epoch": 3, "optimizer": {"state": {0: {"step": torch.ones(2)}}}},
        lambda state: {"model": state, "args": {"lr": 1e-3}, "ema": {**state, "more": torch.ones(3)}},
        lambda state: {"checkpoint": {"module": state}, "history": [1.0, None, "x", (2, b"y")]},
        lambda state: {**state, "epoch": 3, "note": "text", "nested": {"a": torch.ones(5)}},
        lambda state: collections.OrderedDict(state),
    ],
    ids=["state_dict", "model", "deep", "flat", "ordered"],
)
def test_the_state_dict_is_found_where_it_is(tmp_path: Path, zipped: bool, wrap: Callable) -> None:
    state = {"a": torch.randn(3, 2), "b": torch.randn(4)}
    check_against_torch(save(wrap(state), tmp_path / "a.bin", zipped), state)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@FORMS
def test_other_pickle_protocols(tmp_path: Path, zipped: bool, protocol: int) -> None:
    state = {"a" * 300: torch.randn(3, 2), "b": torch.randn(4)}
    path = tmp_path / "a.bin"
    torch.save(state, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    check_against_torch(path, state)


@FORMS
def test_only_what_is_needed_is_read(tmp_path: Path, zipped: bool) -> None:
    state = {f"layer.{layer}.weight": torch.randn(256, 256) for layer in range(40)}
    path = save(state, tmp_path / "a.bin", zipped)
    file = LocalFile(path)
    index = read_torch_index(file)
    assert file.size > 10_000_000
    assert file.bytes_read < 150_000
    before = file.bytes_read
    load(path, index, file, "layer.7.weight")
    assert file.bytes_read - before < 256 * 256 * 4 + 300


@FORMS
def test_a_small_view_of_a_large_storage_costs_little(tmp_path: Path, zipped: bool) -> None:
    flat = torch.randn(2_000_000)
    state = {"head": flat[:10], "middle": flat[1_000_000:1_000_100].view(10, 10)}
    path = save(state, tmp_path / "a.bin", zipped)
    file = LocalFile(path)
    index = read_torch_index(file)
    before = file.bytes_read
    assert torch.equal(load(path, index, file, "middle"), state["middle"])
    assert file.bytes_read - before < 1000


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=5),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_arbitrary_views(shapes: list[list[int]], data: st.DataObject) -> None:
    import tempfile

    state = {}
    base = torch.arange(2000, dtype=torch.float32)
    for number, shape in enumerate(shapes):
        count = 1
        for size in shape:
            count *= size
        offset = data.draw(st.integers(0, 100))
        step = data.draw(st.integers(1, 2))
        tensor = base[offset : offset + count * step : step].view(shape) if count else torch.empty(shape)
        order = data.draw(st.permutations(range(len(shape))))
        state[str(number)] = tensor.permute(order) if shape else tensor
    with tempfile.TemporaryDirectory() as folder:
        for zipped in (True, False):
            check_against_torch(save(state, Path(folder) / "a.bin", zipped), state)


def test_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    paths = []
    for number in range(6):
        torch.manual_seed(number)
        state = {f"{number}.{i}": torch.randn(20, 20) for i in range(30)}
        paths.append((save(state, tmp_path / f"{number}.bin", number % 2 == 0), state))
    problems: list[BaseException] = []

    def check(path: Path, state: dict[str, torch.Tensor]) -> None:
        try:
            for _ in range(5):
                check_against_torch(path, state)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=check, args=each) for each in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


@FORMS
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_numbers_of_numpy_beside_the_weights_are_passed_over(tmp_path: Path, zipped: bool, protocol: int) -> None:
    """A loss, a step, the state of a generator: read as data, and not needed."""
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    beside = {
        "loss": np.float64(0.25), "step": np.int64(7), "best": np.float32(1), "is_best": np.bool_(True),
        "name": np.str_("x"), "when": np.datetime64("2024-01-01"), "dtype": np.dtype("float16"), "kind": np.float32,
        "state": np.random.get_state(), "table": np.zeros((2, 2), order="F"), "objects": np.array(["x", None], object),
        "fields": np.zeros(3, dtype=[("x", "f4")]),
    }  # fmt: skip
    for number, content in enumerate(
        (weights | beside, {"model": weights, **beside}, {"state_dict": weights | beside})
    ):
        path = tmp_path / f"{number}.bin"
        torch.save(content, path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
        check_against_torch(path, weights)
