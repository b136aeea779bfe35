"""Errors of libraries become ours in one place for each: the Hub's client, the file system, values of the wrong kind."""

from __future__ import annotations

import errno

import httpx2
import pytest

from indexer.errors import AtlasError, Failed, Skipped, system_errors
from indexer.network.hub_errors import model_errors, optional_answer, user_errors
from indexer.untrusted import malformed


def ours(why):
    return AtlasError(f"x cannot be read: {why}.", "")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), "No such file or directory"),
        (OSError("cannot seek"), "cannot seek"),  # no number, so no strerror
        (OSError(), "OSError"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "it is not text"),
    ],
)
def test_what_the_system_says(error, why):
    with pytest.raises(AtlasError, match=rf"^x cannot be read: {why}\.$") as caught, system_errors(ours):
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ValueError("too many files.\nsecond line"), "too many files"),
        (ValueError(), "ValueError"),
        (KeyError("a\x1b[2J"), r"KeyError: 'a\\x1b\[2J'"),
        (RecursionError("x" * 999), f"RecursionError: {'x' * 200}"),
    ],
)
def test_values_of_the_wrong_kind(error, why):
    with pytest.raises(AtlasError, match=rf"^x cannot be read: {why}\.$"), malformed(ours):
        raise error


def test_errors_of_the_network_and_bugs():
    request = httpx2.Request("GET", "https://hub.example/x")
    failure = httpx2.ConnectError("no route", request=request)
    with pytest.raises(Failed, match=r"^network: config.json: the connection failed"), model_errors("config.json"):
        raise failure
    sentence = r"^Cannot get the base model x/y from .*the connection failed"
    with pytest.raises(AtlasError, match=sentence), user_errors("the base model x/y"):
        raise failure
    with optional_answer():
        raise failure
    for translated in (model_errors(), model_errors("x"), user_errors("x"), optional_answer()):
        with pytest.raises(LookupError, match="a bug"), translated:
            raise LookupError("a bug")
    skipped, known = Skipped("gated", "the repository is gated"), AtlasError("known")
    with pytest.raises(Skipped) as caught, model_errors():
        raise skipped
    assert caught.value is skipped
    for translated in (model_errors("x"), user_errors("x")):
        with pytest.raises(AtlasError) as caught, translated:
            raise known
        assert caught.value is known
