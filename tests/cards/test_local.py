"""Checkpoint folders: what is read of them to tell whether they have changed."""

from __future__ import annotations

import pytest

from indexer.builds.build_base import find_base
from indexer.errors import BadArgument
from indexer.machine import refuses_connections
from indexer.sources.folder import local_row
from indexer.sources.registry import ModelRef

SIZE = 64 << 20


@pytest.fixture
def reference(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(SIZE)
    return ModelRef.parse(str(tmp_path))


def bytes_read(monkeypatch, action):
    """The result of an action, and how many bytes of files it reads by their hashes."""
    import hashlib

    counted = []
    real = hashlib.sha256

    class Counting:
        def __init__(self):
            self.digest = real()

        def update(self, data):
            counted.append(len(data))
            self.digest.update(data)

        def hexdigest(self):
            return self.digest.hexdigest()

    def whole(file, name):
        counted.append(SIZE)
        return real(file.read())

    monkeypatch.setattr(hashlib, "sha256", lambda data=b"": real(data) if data else Counting())
    monkeypatch.setattr(hashlib, "file_digest", whole)
    found = action()
    monkeypatch.undo()
    return found, sum(counted)


def test_a_question_does_not_read_a_folder_to_name_it(reference, monkeypatch):
    asked, count = bytes_read(monkeypatch, lambda: local_row(reference, whole=False)["sha"])
    assert count < SIZE / 25
    added, count = bytes_read(monkeypatch, lambda: local_row(reference)["sha"])
    assert count >= SIZE
    assert (len(asked), len(added)) == (20, 40)
    assert added.startswith(asked)


def test_adding_a_folder_notices_any_change(reference):
    before = local_row(reference)["sha"]
    assert local_row(reference)["sha"] == before
    for place in (0, SIZE // 3, SIZE - 1):
        with (reference.folder / "model.safetensors").open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        after = local_row(reference)["sha"]
        assert after != before
        before = after
    (reference.folder / "config.json").write_text('{"model_type": "bert"}')
    assert local_row(reference, whole=False)["sha"] != before[:20]


@pytest.mark.parametrize("base", [None, "", "  ", 5])
def test_a_base_that_is_no_name_is_refused_in_a_sentence(base, tmp_path):
    with pytest.raises(BadArgument, match="not the id of a base model"):
        find_base(None, base)


def test_a_server_that_refuses_is_known_at_once(monkeypatch):
    monkeypatch.delenv("http_proxy", raising=False)
    assert refuses_connections("http://127.0.0.1:9")
    assert refuses_connections("http://no-such-host.invalid")
    assert not refuses_connections("http://")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "")
    assert not refuses_connections("http://no-such-host.invalid")
