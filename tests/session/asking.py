"""The question that most tests put to the Hub, and how it fails."""

from __future__ import annotations

import pytest
from huggingface_hub import HfApi, constants


def info(identifier: str = "me/model"):
    return HfApi(endpoint=constants.ENDPOINT).model_info(identifier)


def failure(call) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is, is what the tests look at
        call()
    return caught.value
