"""Duplicates: models that were uploaded before, byte for byte or in another file format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Upload:
    """What decides whether two models are one, and which of them came first."""

    model_id: int
    created: datetime | None
    file_hashes: tuple[str, ...]


class UnionFind:
    """Models put together two by two (union–find; Galler & Fischer, 1964), those of equal file hashes to begin with."""

    def __init__(self, uploads: Sequence[Upload]) -> None:
        self._leader = {upload.model_id: upload.model_id for upload in uploads}
        seen: dict[tuple[str, ...], int] = {}
        for upload in uploads:
            if upload.file_hashes:
                self.join(upload.model_id, seen.setdefault(upload.file_hashes, upload.model_id))

    def find(self, model_id: int) -> int:
        """The model that stands for this one's group."""
        while self._leader[model_id] != model_id:
            self._leader[model_id] = self._leader[self._leader[model_id]]
            model_id = self._leader[model_id]
        return model_id

    def join(self, one: int, other: int) -> None:
        """Put two groups together."""
        self._leader[self.find(other)] = self.find(one)

    def are_together(self, one: int, other: int) -> bool:
        """Whether two models are in one group."""
        return self.find(one) == self.find(other)


def find_duplicates(
    uploads: Sequence[Upload], differences: Iterable[tuple[int, int, float]], within: float
) -> dict[int, int]:
    """Map each member of a group of duplicates to the model_id of the group's earliest upload.

    Two models are duplicates where their weight files have the same hashes, or where their changes, compared matrix
    by matrix, differ by no more than ``within``. Unique models do not appear.
    """
    groups = UnionFind(uploads)
    known = {upload.model_id for upload in uploads}
    for one, other, difference in differences:
        if difference <= within and one in known and other in known:
            groups.join(one, other)
    members: dict[int, list[Upload]] = {}
    for upload in uploads:
        members.setdefault(groups.find(upload.model_id), []).append(upload)
    return {
        upload.model_id: min(group, key=_age).model_id
        for group in members.values()
        if len(group) > 1
        for upload in group
    }


def _age(upload: Upload) -> tuple[bool, float, int]:
    created = upload.created
    return (created is None, created.timestamp() if created else 0.0, upload.model_id)
