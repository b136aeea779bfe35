"""When an atlas gets a compressed index, when that is extended or trained again, and when it is not published."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.errors import AtlasError
from indexer.publish.tables import Tables
from indexer.vectors.choice import AUTO, EXACT, IndexChoice
from indexer.vectors.factories import auto_factories, read_factory
from indexer.vectors.files import VectorFile, open_index, write_index
from indexer.vectors.masks import Masks
from indexer.vectors.published import StoredIndex
from indexer.vectors.search import INSTANT_BYTES
from indexer.vectors.segments import OpenSegment, Part, Segment

if TYPE_CHECKING:
    from indexer.vectors.compressed import Compressed

# Vectors beside the compressed index are compared exactly; past this many bytes of them they go into it.
EXTEND_ABOVE = INSTANT_BYTES // 4

# Factories are tried on a sample of this many vectors before they are tried on all.
PILOT = 25_000

# What is found among a sample is known to so much only (the standard error of so many questions), and among all there
# are more of a model's kind: a factory that misses the promise by no more is tried on all.
UNSURE = 0.01

# An index is trained again once there are this many times the models that it was trained on, or this many codes for
# each model that still counts.
TRAIN_AGAIN = 2.0


class Compression:
    """The compressed index of one (base, representation)."""

    def __init__(
        self,
        root: Path,
        tables: Tables,
        base: str,
        representation: str,
        say: Callable[[str], None],
        masks: Masks | None = None,
    ) -> None:
        self.root, self.tables, self.say, self.masks = root, tables, say, masks
        self.base, self.representation = base, representation

    def renewed(self, segments: Sequence[Segment], choice: IndexChoice, stored: StoredIndex | None) -> list[Segment]:
        """The segments, marked by whether the index knows them: none where search is to be exact.

        ``stored``: the index there is, if it is one that was chosen like this. One that cannot be made, or does not
        keep its promise, is not published: that is said, and search stays exact.
        """
        count = sum(one.count for one in segments)
        if choice.index == EXACT or not count or (choice.index == AUTO and _bytes(segments) <= INSTANT_BYTES):
            self.forget()
            return [replace(one, in_compressed=False) for one in segments]
        if stored is None or self._is_due(choice, stored, count, segments[0].file.length):
            return self._trained(segments, choice)
        if stored.file is None:
            return list(segments)
        beside = [one for one in segments if not one.in_compressed]
        takes_in = _bytes(beside) > EXTEND_ABOVE
        coming = sum(one.count for one in beside) if takes_in else 0
        if self._is_outgrown(choice, stored, stored.file.count + coming, count):
            return self._trained(segments, choice)
        if takes_in:
            return self._extended(segments, choice, stored)
        return list(segments)

    def forget(self) -> None:
        """There is none from now on."""
        self.tables.run(
            "DELETE FROM internal.compressed_indexes WHERE base = ? AND representation = ?",
            [self.base, self.representation],
        )

    @staticmethod
    def _is_due(choice: IndexChoice, stored: StoredIndex, count: int, length: int) -> bool:
        """Whether there are far more models than at the last attempt, or what could not be tried then now can."""

        def can_be_tried(number: int) -> bool:
            try:
                return bool(_factories(choice, number, length))
            except AtlasError:
                return False

        if count > TRAIN_AGAIN * stored.trained_on:
            return True
        return not stored.queries and not can_be_tried(stored.trained_on) and can_be_tried(count)

    @staticmethod
    def _is_outgrown(choice: IndexChoice, stored: StoredIndex, codes: int, count: int) -> bool:
        """Whether so many codes would be too many for the memory, or mostly of models that count no more."""
        assert stored.file is not None
        needed = read_factory(stored.factory, stored.file.length).bytes(codes)
        return needed > choice.memory or codes > TRAIN_AGAIN * count

    def _trained(self, segments: Sequence[Segment], choice: IndexChoice) -> list[Segment]:
        from indexer.vectors.compressed import compress

        parts = [OpenSegment(self.root, one, self.masks).vectors() for one in segments]
        count = sum(len(part) for part in parts)
        try:
            factories = _factories(choice, count, segments[0].file.length)
        except AtlasError as error:
            self.say(f"{error.message} It is not published.")
            factories = []
        pilot = _Pilot(parts, choice, self.masks) if len(factories) > 1 and count >= 2 * PILOT else None
        best: Compressed | None = None
        for factory in factories:
            try:
                if pilot is not None and not pilot.promises(factory):
                    continue
                self.say(f"{self.base}, {self.representation}: training a compressed index, {factory}")
                made = compress(parts, factory, choice.promised, memory=choice.memory, masks=self.masks)
            except AtlasError as error:
                self.say(f"{error.message} It is not published.")
                continue
            if best is None or made.recall > best.recall:
                best = made
            if made.recall >= choice.promised:
                break
        return self._kept(segments, choice, best, count, pilot.best if pilot else None)

    def _extended(self, segments: Sequence[Segment], choice: IndexChoice, stored: StoredIndex) -> list[Segment]:
        from indexer.vectors.compressed import Compressed, extend

        assert stored.file is not None
        opened = [OpenSegment(self.root, one, self.masks) for one in segments]
        new = [one.vectors() for one in opened if not one.segment.in_compressed]
        index = open_index(self.root, stored.file, is_mapped=False)
        old = Compressed(index, stored.factory, stored.parameters, stored.candidates, stored.recall, stored.queries)
        made = extend(old, new, [one.vectors() for one in opened], choice.promised, masks=self.masks)
        if made.recall < choice.promised:
            return self._trained(segments, choice)
        return self._kept(segments, choice, made, stored.trained_on)

    def _kept(
        self,
        segments: Sequence[Segment],
        choice: IndexChoice,
        made: Compressed | None,
        trained_on: int,
        tried: Compressed | None = None,
    ) -> list[Segment]:
        """Publish an index that keeps its promise; of another only what was measured.

        ``tried``: the best among a sample, where none was made of all. Even where nothing could be measured there is
        a row, so that the next publish does not try the same again.
        """
        self.forget()
        file = None
        if made is not None and made.recall >= choice.promised:
            file = write_index(self.root, self.base, self.representation, made.index, made.factory)
        elif made is not None:
            self.say(
                f"{made.factory} finds {made.recall:.1%} of the 10 nearest, less than the promised "
                f"{choice.promised:.1%}: it is not published, searches stay exact"
            )
        elif choice.index == AUTO:
            self.say(
                f"no compressed index of at most {choice.memory:,} bytes finds {choice.promised:.1%} of the 10 "
                "nearest: searches stay exact"
            )
        self._write(choice, made or tried, trained_on, file)
        return [replace(one, in_compressed=file is not None) for one in segments]

    def _write(self, choice: IndexChoice, made: Compressed | None, trained_on: int, file: VectorFile | None) -> None:
        self.tables.insert(
            "internal.compressed_indexes",
            [
                {
                    "base": self.base,
                    "representation": self.representation,
                    "factory": made.factory if made else choice.index,
                    "parameters": made.parameters if made else "",
                    "candidates": made.candidates if made else 0,
                    "trained_on": trained_on,
                    "vectors": int(made.index.ntotal) if made else 0,
                    "recall_at_10": made.recall if made else 0.0,
                    "queries": made.queries if made else 0,
                    "faiss_file": file.name if file else None,
                    "faiss_sha256": file.sha256 if file else None,
                    "faiss_bytes": file.size if file else None,
                }
            ],
        )


class _Pilot:
    """A sample, among which a factory that loses too much loses more among all: there are more near models to confuse.

    Inverted lists are left out of it: they change the time, and what they miss can be had by visiting more.
    """

    def __init__(self, parts: Sequence[Part], choice: IndexChoice, masks: Masks | None) -> None:
        from indexer.vectors.recall import sample

        self.choice, self.masks = choice, masks
        self.parts = list(sample(parts, PILOT, seed=1))
        self.best: Compressed | None = None

    def promises(self, factory: str) -> bool:
        """Whether the factory finds about what is promised among the sample; AtlasError where it cannot be trained."""
        from indexer.vectors.compressed import compress

        bare = re.sub("IVF[0-9]+,", "", factory)
        made = compress(self.parts, bare, self.choice.promised, memory=self.choice.memory, masks=self.masks)
        if self.best is None or made.recall > self.best.recall:
            self.best = replace(made, factory=factory)
        return made.recall >= self.choice.promised - UNSURE


def _factories(choice: IndexChoice, count: int, length: int) -> list[str]:
    """What is to be tried for ``count`` vectors of ``length`` numbers, in this order.

    Raises AtlasError where a factory was asked for by name and cannot be trained.
    """
    if choice.index == AUTO:
        return auto_factories(count, length, choice.memory)
    read_factory(choice.index, length).check(count, choice.memory)
    return [choice.index]


def _bytes(segments: Sequence[Segment]) -> int:
    return sum(one.bytes for one in segments)
