"""The bases that models of a scan are compared with: those given, those of an atlas, and those in the Hub's cache."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from indexer.atlas import AtlasFolder
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.deltas.identification.bases import OpenedBase
from indexer.deltas.identification.identify import KnownBase, all_ids, known_bases, open_model
from indexer.errors import AtlasError, ModelError, Skipped, unreadable
from indexer.sources.bases import base_of
from indexer.sources.claims import out_of_caches
from indexer.sources.registry import ModelRef, base_source, is_listed_id
from indexer.sources.source import BaseFacts
from indexer.sources.tree_rows import TreeFacts, base_among, ends_digest

_MOST_OPEN = 32  # in a process


@dataclass(frozen=True)
class BasePlace:
    """Where a base lies. ``ids``: the first is its name here. ``commit``: of its files; None for those of a path."""

    ids: tuple[str, ...]
    reference: ModelRef
    commit: str | None = None
    filenames: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """What it is called on the page."""
        return self.ids[0]

    def opened(self) -> OpenedBase:
        """Its matrices. Raises ModelError."""
        if self.commit is None:
            checkpoint = open_model(self.reference)
            if checkpoint.kind != "full":
                checkpoint.close()
                raise Skipped("missing_matrices", "it is an adapter")
        else:
            checkpoint = open_checkpoint(self.reference, commit=self.commit, filenames=self.filenames)
        try:
            return OpenedBase(checkpoint)
        except ModelError:
            checkpoint.close()
            raise


def given_base(text: str) -> BasePlace:
    """The base that a person names: a folder, a file, or an id, in the cache or else on the Hub.

    Raises AtlasError if it cannot be used.
    """
    reference = ModelRef.parse(str(Path(text).expanduser()) if text.startswith("~") else text)
    if reference.folder is not None:
        cached = out_of_caches(str(reference.folder))  # an id, for a folder of the Hub's cache
        place = BasePlace((cached if is_listed_id(cached) else reference.folder.name,), reference)
    else:
        source, _ = base_source(text)
        place = _of_facts(source.kept_base(text) or base_of(source, text))
    try:
        place.opened().close()
    except ModelError as error:
        raise unreadable(f"The base {place.name}", error) from error
    return place


def kept_base(name: str) -> BasePlace | None:
    """A base in the cache of the Hub's client, by its id; None if it is not there. Nothing is asked."""
    with suppress(AtlasError):
        source, _ = base_source(name)
        if (facts := source.kept_base(name)) is not None:
            return _of_facts(facts)
    return None


def _of_facts(facts: BaseFacts) -> BasePlace:
    reference = ModelRef(facts.id, subfolder=facts.component)
    return BasePlace(all_ids(facts.id, facts.aliases), reference, facts.commit, facts.filenames)


class OpenBases:
    """The bases that this process has opened; each is opened once and stays open."""

    def __init__(self, atlas: str | None) -> None:
        self._of_atlas = [] if atlas is None else known_bases(AtlasFolder(atlas))
        self._open: dict[BasePlace, KnownBase | None] = {}
        self._files: dict[BasePlace, tuple[str, ...]] = {}

    def known(self, places: Sequence[BasePlace]) -> list[KnownBase]:
        """The bases of the atlas, and those at ``places`` that can be read; each once."""
        bases = list(self._of_atlas)
        by_files: dict[tuple[str, ...], int] = {}
        for place in places:
            if place not in self._open:
                self._make_room()
                self._open[place] = self._opened(place)
            base = self._open[place]
            if base is None or any(base.base in known.ids for known in bases):
                continue
            files = self._files[place]
            if files not in by_files:
                by_files[files] = len(bases)
                bases.append(base)
            else:  # the same files under another id: two equal bases would share the probability
                same = bases[by_files[files]]
                bases[by_files[files]] = replace(same, ids=(*same.ids, *base.ids))
        return bases

    def _opened(self, place: BasePlace) -> KnownBase | None:
        try:
            opened = place.opened()
            self._files[place] = tuple(ends_digest(source) for source in opened.checkpoint.sources)
        except (ModelError, AtlasError):
            return None
        return KnownBase(place.ids, opened)

    def close(self) -> None:
        """Close their files and release their memory."""
        for base in (*self._of_atlas, *self._open.values()):
            if base is not None and base.matrices is not None:
                base.matrices.close()

    def _make_room(self) -> None:
        while len(self._open) >= _MOST_OPEN:
            base = self._open.pop(next(iter(self._open)))
            if base is not None and base.matrices is not None:
                base.matrices.close()


_opened: dict[str | None, OpenBases] = {}


def bases_of_process(atlas: str | None) -> OpenBases:
    """The bases of this process, with those of an atlas."""
    if atlas not in _opened:
        _opened[atlas] = OpenBases(atlas)
    return _opened[atlas]


@lru_cache(maxsize=4096)
def kept(name: str) -> BasePlace | None:
    """``kept_base``, looked for once in a process."""
    return kept_base(name)


def forget_bases() -> None:
    """Close the bases of this process. A later scan looks for them again: there may be others by then."""
    for bases in _opened.values():
        bases.close()
    _opened.clear()
    kept.cache_clear()


def claimed(facts: TreeFacts, identifier: str, known: Sequence[KnownBase]) -> str | None:
    """The base that the files of a model name: one that is ``known``, by its first id, else any id; None for none."""
    base, other = base_among(facts, identifier, {base.base: base.ids for base in known})
    return base or other
