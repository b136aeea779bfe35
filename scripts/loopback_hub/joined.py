"""Several repository stores as one: what a Hub serves that holds more than one family."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.loopback_hub.store import Repository, Store, StoreError


class JoinedStore:
    """The repositories below all of ``roots``, each served from where it lies. Thread-safe.

    Raises StoreError if a root is not a folder, or an id (old ones included) is in two of them.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self.stores = [Store(root) for root in roots]
        if len(roots) > 1:
            self._refuse_clashes()

    def _refuse_clashes(self) -> None:
        found: dict[str, Store] = {}
        for store in self.stores:
            for repository in store.repositories():
                for name in {repository.id, *repository.old_ids}:
                    other = found.setdefault(name, store)
                    if other is not store:
                        raise StoreError(f"{name} stands both in {other.root} and in {store.root}")

    def repository(self, repo_id: str) -> Repository | None:
        """The repository with exactly this id, or None."""
        return next(filter(None, (store.repository(repo_id) for store in self.stores)), None)

    def renamed(self, old_id: str) -> Repository | None:
        """The repository that once had this id."""
        return next(filter(None, (store.renamed(old_id) for store in self.stores)), None)

    def repositories(self) -> Iterator[Repository]:
        """Every repository, by id."""
        return heapq.merge(*(store.repositories() for store in self.stores), key=_by_id)


def _by_id(repository: Repository) -> list[str]:
    return repository.id.split("/")
