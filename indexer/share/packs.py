"""Packs of records: uncompressed tar files of 1 to 5 GB, because one file per model is too many for a repository.

A pack is named after its members and never changes. ``records/packs.json`` lists the members of each, so that the next
push keeps packs, and a pull skips packs whose members are already on disk.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from indexer.errors import AtlasError
from indexer.regular_files import open_regular, regular_status
from indexer.share.contents import is_packable
from indexer.share.manifest import FileEntry
from indexer.share.options import PACK_BYTES
from indexer.storage.atomic_files import replacing
from indexer.untrusted import load_json, malformed, printable

INDEX = "records/packs.json"
LEAST_BYTES = 1 << 30
LARGEST_INDEX = 256 << 20
_COPIED = 4 << 20
_ASK = "Ask its publisher."


@dataclass(frozen=True)
class Pack:
    """One pack: the bytes of its members by their path in the atlas."""

    members: Mapping[str, int]

    @property
    def path(self) -> str:
        """Its path in the repository, with a hash of its member list."""
        members = json.dumps(sorted(self.members.items())).encode()
        return f"records/{hashlib.sha256(members).hexdigest()[:16]}.tar"

    @property
    def bytes(self) -> int:
        """Bytes of all members."""
        return sum(self.members.values())


def plan_packs(
    files: Mapping[str, int], before: Iterable[Pack], target: int = PACK_BYTES, least: int = LEAST_BYTES
) -> list[Pack]:
    """Packs of all ``files`` (bytes by path). A pack of ``before`` whose members still exist is kept if it is full.

    A smaller one is kept unless at least as many bytes are new: then it is joined with them. So there are few packs,
    and a record is sent again only when what is sent doubles.
    """
    packs: list[Pack] = []
    files_left = dict(files)
    for pack in before:
        if all(files_left.get(path) == size for path, size in pack.members.items()):
            packs.append(pack)
            for path in pack.members:
                del files_left[path]
    new_bytes = sum(files_left.values())
    for pack in sorted(packs, key=lambda pack: pack.bytes):
        if pack.bytes <= min(new_bytes, least - 1):
            packs.remove(pack)
            files_left |= pack.members
            new_bytes += pack.bytes
    members: dict[str, int] = {}
    room = target
    for path, size in sorted(files_left.items()):
        if members and size > room:
            packs.append(Pack(members))
            members, room = {}, target
        members[path] = size
        room -= size
    return [*packs, Pack(members)] if members else packs


def encode_index(packs: Iterable[Pack]) -> bytes:
    """The content of INDEX."""
    members = {pack.path: dict(sorted(pack.members.items())) for pack in packs}
    return (json.dumps(members, indent=0, sort_keys=True) + "\n").encode()


def decode_index(content: bytes, where: str) -> dict[str, Pack]:
    """Parse an untrusted index: the packs by path. Raises AtlasError."""
    with malformed(lambda why: AtlasError(f"{INDEX} of {where} cannot be read: {why}.", _ASK)):
        packs: dict[str, Pack] = {}
        seen_members: set[str] = set()
        for path, members in load_json(content).items():
            if not all(is_packable(name) and type(size) is int and size > 0 for name, size in members.items()):
                raise ValueError(f"{path[:60]!r} holds something other than records")
            if twice := members.keys() & seen_members:
                raise ValueError(f"{min(twice)} is in two packs")
            seen_members |= members.keys()
            pack = packs[path] = Pack(dict(members))
            if pack.path != path:
                raise ValueError(f"{path[:60]!r} is not named after its members")
        return packs


class _Hashing:
    """A writable file that computes a checksum of what passes through it to ``target``."""

    def __init__(self, target: BinaryIO | None) -> None:
        self.target = target
        self.bytes = 0
        self.digest = hashlib.sha256()

    def write(self, part: bytes) -> int:
        self.bytes += len(part)
        self.digest.update(part)
        return self.target.write(part) if self.target is not None else len(part)


def write_pack(pack: Pack, roots: Sequence[Path], target: BinaryIO | None = None) -> tuple[int, str]:
    """Write a pack to ``target``, or only compute its bytes and sha256, which are returned. Raises OSError.

    Each member is read from the first of ``roots`` that has a file of its path and size. The same members give the same
    bytes.
    """
    sources = {path: first_of(roots, path, size) for path, size in sorted(pack.members.items())}
    sink: Any = _Hashing(target)
    # This format has room for sizes of more than eleven octal digits in its plain header.
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for path, source in sources.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = pack.members[path], 0o644
            with open_regular(source) as file:
                tar.addfile(member, file)
    return sink.bytes, sink.digest.hexdigest()


def is_on_disk(pack: Pack, roots: Sequence[Path], entry: FileEntry) -> bool:
    """Whether the members below ``roots`` make exactly the pack that a manifest lists as ``entry``."""
    try:
        return write_pack(pack, roots) == (entry.bytes, entry.sha256)
    except OSError:
        return False


def first_of(roots: Sequence[Path], path: str, size: int) -> Path:
    """The first file of that path and size (bytes) below one of ``roots``. Raises FileNotFoundError."""
    for root in roots:
        with suppress(OSError):
            if regular_status(root / path).st_size == size:
                return root / path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(roots[0] / path))


def unpack(pack: Pack, source: Path, root: Path) -> None:
    """Extract the members of a pack below ``root``, each completely or not at all.

    Only headers of plain files are read: each member once, with the size in the index. Raises AtlasError if the pack
    holds anything else, and OSError.
    """
    missing = dict(pack.members)
    with open_regular(source) as file:
        while (header := file.read(tarfile.BLOCKSIZE)).strip(b"\0"):
            try:
                member = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
            except (tarfile.TarError, ValueError) as error:
                raise AtlasError(f"{pack.path} is not a readable tar file ({error}).", _ASK) from error
            if member.type != tarfile.REGTYPE or missing.pop(member.name, None) != member.size:
                raise AtlasError(f"{pack.path} holds {printable(member.name, 80)!r}, which it should not.", _ASK)
            with replacing(root / member.name, sync=False) as out:
                bytes_left = member.size
                while bytes_left and (part := file.read(min(bytes_left, _COPIED))):
                    out.write(part)
                    bytes_left -= len(part)
                if bytes_left:
                    raise AtlasError(f"{pack.path} ends within {Path(member.name).name}.", _ASK)
            file.seek(-member.size % tarfile.BLOCKSIZE, os.SEEK_CUR)
    if missing:
        raise AtlasError(f"{pack.path} lacks {min(missing)}.", _ASK)
