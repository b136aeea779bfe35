"""Records in packs: uncompressed tar files of 1 to 5 GB, as a repository does not bear one file a model.

A pack is named by what it holds and never changed. ``records/packs.json`` says what each holds, so that the next push
keeps the full ones, and a pull leaves out those whose members are there already.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.errors import WRONG_KINDS, AtlasError
from indexer.regular_files import open_regular
from indexer.share.contents import is_packable
from indexer.storage.whole_files import beside
from indexer.untrusted import load_json

INDEX = "records/packs.json"
TARGET_BYTES = 2 << 30
LEAST_BYTES = 1 << 30
_COPIED = 4 << 20


@dataclass(frozen=True)
class Pack:
    """One pack: bytes of its members by their path in the atlas."""

    members: Mapping[str, int]

    @property
    def path(self) -> str:
        """Its path in the repository: a name that says what is in it."""
        told = json.dumps(sorted(self.members.items())).encode()
        return f"records/{hashlib.sha256(told).hexdigest()[:16]}.tar"

    @property
    def bytes(self) -> int:
        """Bytes of all members."""
        return sum(self.members.values())

    def is_in(self, root: Path) -> bool:
        """Whether every member lies below ``root`` with its size."""
        return all(_size(root / path) == size for path, size in self.members.items())


def plan_packs(
    files: Mapping[str, int], before: Iterable[Pack], target: int = TARGET_BYTES, least: int = LEAST_BYTES
) -> list[Pack]:
    """Packs of all ``files`` (bytes by path): full ones of ``before`` that still hold are kept."""
    kept: list[Pack] = []
    left = dict(files)
    for pack in before:
        if pack.bytes >= least and all(left.get(path) == size for path, size in pack.members.items()):
            kept.append(pack)
            for path in pack.members:
                del left[path]
    held: dict[str, int] = {}
    room = target
    for path, size in sorted(left.items()):
        if held and size > room:
            kept.append(Pack(held))
            held, room = {}, target
        held[path] = size
        room -= size
    return [*kept, Pack(held)] if held else kept


def encode_index(packs: Iterable[Pack]) -> bytes:
    """The file that says what each pack holds."""
    told = {pack.path: dict(sorted(pack.members.items())) for pack in packs}
    return (json.dumps(told, indent=0, sort_keys=True) + "\n").encode()


def decode_index(content: bytes, where: str) -> dict[str, Pack]:
    """The packs by path, as a stranger wrote them. Raises AtlasError."""
    try:
        packs = {}
        for path, members in load_json(content).items():
            if not all(is_packable(name) and type(size) is int and size >= 0 for name, size in members.items()):
                raise ValueError(f"{path[:60]!r} holds what is no record")
            pack = packs[path] = Pack(dict(members))
            if pack.path != path:
                raise ValueError(f"{path[:60]!r} is not named by what it holds")
        return packs
    except WRONG_KINDS as error:
        raise AtlasError(f"{INDEX} of {where} cannot be read: {error}.", "Ask whoever published it.") from error


def write_pack(pack: Pack, root: Path, target: Path) -> None:
    """Write a pack from the files below ``root``: the same members give the same bytes. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        _write(pack, root, file)


def hash_pack(pack: Pack, root: Path) -> tuple[int, str]:
    """Bytes and sha256 of what ``write_pack`` would write, without the disk that it takes. Raises OSError."""
    sink = _Hashing()
    _write(pack, root, sink)
    return sink.bytes, sink.digest.hexdigest()


class _Hashing:
    """A file that keeps nothing but its checksum."""

    def __init__(self) -> None:
        self.bytes = 0
        self.digest = hashlib.sha256()

    def write(self, part: bytes) -> int:
        self.bytes += len(part)
        self.digest.update(part)
        return len(part)


def _write(pack: Pack, root: Path, target: Any) -> None:
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path, size in sorted(pack.members.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mode = size, 0o644
            with open_regular(root / path) as file:
                tar.addfile(member, file)


def unpack(pack: Pack, source: Path, root: Path) -> None:
    """Take the members of a pack out, each whole or not at all; what is there already stays.

    Raises AtlasError where it holds anything else than its members.
    """
    seen = set()
    try:
        with tarfile.open(source, "r:") as tar:
            for member in tar:
                size = pack.members.get(member.name)
                if not member.isreg() or size is None or member.size != size or member.name in seen:
                    raise AtlasError(f"{pack.path} holds {member.name[:80]!r}, which it should not.", "Do not use it.")
                seen.add(member.name)
                target = root / member.name
                if _size(target) == size:
                    continue
                content = tar.extractfile(member)
                assert content is not None  # of a regular member
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = beside(target)
                try:
                    with temporary.open("xb") as file:
                        while part := content.read(_COPIED):
                            file.write(part)
                    temporary.replace(target)
                finally:
                    temporary.unlink(missing_ok=True)
    except tarfile.TarError as error:
        raise AtlasError(f"{pack.path} is no tar file that can be read ({error}).", "Pull it again.") from error
    if missing := pack.members.keys() - seen:
        raise AtlasError(f"{pack.path} lacks {sorted(missing)[0]}.", "Pull it again.")


def _size(path: Path) -> int | None:
    try:
        return os.lstat(path).st_size
    except OSError:
        return None
