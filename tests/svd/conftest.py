"""One thread, as a unit of work has; deltas of a real training."""

from __future__ import annotations

import inspect
import json
import textwrap
import zlib
from collections.abc import Iterator

import pytest
import torch
import transformers


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def trained() -> dict[str, torch.Tensor]:
    """Deltas of a small encoder after a dozen real AdamW steps (nearly sign-like: a hard, flat kind)."""
    torch.manual_seed(0)
    words = [word for module in (json, textwrap, inspect) for word in inspect.getsource(module).split()]
    tokens = torch.tensor([5 + zlib.crc32(word.encode()) % 995 for word in words[: 12 * 8 * 24]])
    config = transformers.RobertaConfig(
        vocab_size=1000,
        hidden_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=768,
        max_position_embeddings=40,
        num_labels=3,
    )
    model = transformers.RobertaForSequenceClassification(config)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    for step, batch in enumerate(tokens.view(12, 8, 24)):
        labels = torch.arange(8).add(step) % 3
        model(input_ids=batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {
        name: weight - before[name]
        for name, weight in model.state_dict().items()
        if ".layer." in name and weight.ndim == 2
    }
