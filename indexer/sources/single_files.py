"""A place of models that is named by one of its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from indexer.formats import GGUF_SHARD, ONNX_FILE, WEIGHTS
from indexer.network.byterange import ByteSource
from indexer.sources.addresses import file_system, is_remote
from indexer.sources.file_systems import FileFacts, FileSystem, FolderContent, LocalFiles, Problems, TrackedRun
from indexer.sources.folder import OF_FOLDER


class OneFile:
    """The folder ``files``, of which only one file is seen; ``name``: its path there."""

    def __init__(self, files: FileSystem, name: str) -> None:
        self.address, self.is_remote = files.address, files.is_remote
        self._files, self._name = files, name

    def content(self, path: str, problems: Problems) -> FolderContent:
        """That file alone, or all shards of it."""
        if path:
            return FolderContent()
        if (shard := GGUF_SHARD.fullmatch(self._name)) is None:
            return FolderContent({self._name: None})
        found = self._files.content("", problems).files
        of_file = [
            name
            for name in found
            if (other := GGUF_SHARD.fullmatch(name)) and other.group("stem", "count") == shard.group("stem", "count")
        ]
        return FolderContent({name: found[name] for name in of_file})

    def facts(self, path: str) -> FileFacts:
        """As the folder has them."""
        return self._files.facts(path)

    def run_at(self, path: str) -> TrackedRun | None:
        """As the folder has it."""
        return self._files.run_at(path)

    def open(self, path: str, name: str) -> ByteSource:
        """As the folder opens it."""
        return self._files.open(path, name)


class OneFolder(OneFile):
    """The same for a file whose folder is the model: of that its files, and not the folders in it."""

    def content(self, path: str, problems: Problems) -> FolderContent:
        """The files of the folder."""
        return FolderContent(self._files.content("", problems).files) if not path else FolderContent()


def files_at(address: str, options: Mapping[str, Any] | None = None) -> FileSystem:
    """The place at an address, which may be that of a file of weights. Raises AtlasError if it cannot be opened."""
    remote = is_remote(address)
    if not address.endswith(WEIGHTS) or (not remote and not Path(address).expanduser().is_file()):
        return file_system(address, options)
    folder, slash, name = address.rpartition("/")
    files = file_system(folder, options) if remote else LocalFiles(folder + slash or ".")
    is_whole = OF_FOLDER.fullmatch(name) is not None or name.endswith(ONNX_FILE)
    return (OneFolder if is_whole else OneFile)(files, name)
