"""Files of checkpoint folders: nothing outside the folder that was allowed is opened, and no link stops the rest."""

from __future__ import annotations

import os
import threading

import pytest

from indexer.checkpoints.repository import open_repository
from indexer.errors import AtlasError, ModelError
from indexer.regular_files import descriptor_of, files_below
from indexer.sources import registry
from indexer.sources.folder import local_row
from indexer.sources.registry import ModelRef


@pytest.fixture
def root(tmp_path):
    """A folder that may be read, with a model, next to one that may not."""
    for folder in ("allowed/model", "allowed/blobs", "secret"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "secret" / "model.safetensors").write_bytes(b"secret")
    (tmp_path / "secret" / "config.json").write_text("{}")
    (tmp_path / "allowed" / "blobs" / "b").write_bytes(b"own")
    return tmp_path / "allowed"


def read(path, beneath):
    with os.fdopen(descriptor_of(path, through_links=True, beneath=beneath), "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    "target",
    ["../blobs/b", "{root}/blobs/b", "./../model/../blobs//b", "again", "in/b"],
)
def test_links_inside_the_folder_are_followed(root, target):
    (root / "model" / "again").symlink_to("../blobs/b")
    (root / "model" / "in").symlink_to(root / "blobs")
    (root / "model" / "a").symlink_to(target.format(root=root))
    assert read(root / "model" / "a", root) == b"own"
    assert "a" in files_below(root / "model", root)
    assert "in/b" in files_below(root / "model", root)


@pytest.mark.parametrize(
    "target",
    ["../../secret/model.safetensors", "{root}/../secret/model.safetensors", "out/model.safetensors", "/dev/null"],
)
def test_links_out_of_it_are_not(root, target):
    (root / "model" / "out").symlink_to("../../secret")
    (root / "model" / "a").symlink_to(target.format(root=root))
    with pytest.raises(OSError, match="leads out of"):
        read(root / "model" / "a", root)
    with pytest.raises(OSError, match="leads out of"):
        read(root / "model" / "out" / "model.safetensors", root)
    assert "out/model.safetensors" not in files_below(root / "model", root)
    assert "out/model.safetensors" in files_below(root / "model")


def test_a_link_that_is_put_there_meanwhile_does_not_help(root):
    """A folder of the path is exchanged for a link out of the root, again and again."""
    (root / "model" / "sub").mkdir()
    (root / "model" / "sub" / "model.safetensors").write_bytes(b"own")
    (root / "model" / "other").symlink_to("../../secret")
    sub, other, aside = (root / "model" / name for name in ("sub", "other", "aside"))
    is_done = threading.Event()

    def exchange():
        while not is_done.is_set():
            for source, target in ((sub, aside), (other, sub), (sub, other), (aside, sub)):
                source.rename(target)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(3_000):
            try:
                assert read(sub / "model.safetensors", root) == b"own"
            except OSError:
                continue
    finally:
        is_done.set()
        thread.join()


def test_links_that_lead_nowhere_and_pipes_cost_only_themselves(root):
    model = root / "model"
    (model / "loop").symlink_to("loop")
    (model / "a").symlink_to("b")
    (model / "b").symlink_to("a")
    (model / "nowhere").symlink_to("none")
    (model / "round").symlink_to(".")
    for name in ("README.md", "config.json", "model.safetensors.index.json"):
        os.mkfifo(model / name)
    (model / "model.safetensors").write_bytes(b"own")
    (model / "device.bin").symlink_to("/dev/zero")
    for beneath in (None, root):
        files = files_below(model, beneath)
        assert "model.safetensors" in files
        assert not {"loop", "a", "b", "nowhere", "README.md", "config.json"} & set(files)
    assert local_row(ModelRef(str(model), folder=model))["config"] == {}


def test_a_server_reads_nothing_outside_its_folder(root, monkeypatch):
    model = root / "model"
    (model / "sub").symlink_to("../../secret")
    (model / "model.safetensors").symlink_to("../../secret/model.safetensors")
    (model / "config.json").symlink_to("../../secret/config.json")
    monkeypatch.setattr(registry, "limits", None)
    registry.limit_reading(root)
    reference = ModelRef.parse(str(model))
    row = local_row(reference)
    assert [sibling["rfilename"] for sibling in row["siblings"]] == ["config.json", "model.safetensors", "sub"]
    repository = open_repository(reference)
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(ModelError, match="leads out of"):
            repository.open(name)
    monkeypatch.setattr(registry, "limits", None)
    assert bytes(open_repository(reference).open("model.safetensors").read(0, 6)) == b"secret"


@pytest.mark.parametrize("text", ["out", "./out", "{root}/out", "model/../out", "out/deeper", "nowhere"])
def test_a_folder_that_a_link_leads_out_of_is_named(root, monkeypatch, text):
    monkeypatch.setattr(registry, "limits", None)
    registry.limit_reading(root)
    monkeypatch.chdir(root)
    (root / "out").symlink_to("../secret")
    (root / "nowhere").symlink_to("../none")  # whether there is one outside is not told
    with pytest.raises(AtlasError, match=r"leads out of .*allowed through a link"):
        ModelRef.parse(text.format(root=root))


def test_so_is_a_link_in_a_folder_without_other_weights(root, monkeypatch):
    monkeypatch.setattr(registry, "limits", None)
    registry.limit_reading(root)
    (root / "model" / "checkpoint").symlink_to("../../secret")
    with pytest.raises(AtlasError, match=r"model/checkpoint leads out of .*allowed through a link"):
        local_row(ModelRef("m", folder=root / "model"))
