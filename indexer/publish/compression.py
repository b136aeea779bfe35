"""When a publish builds a compressed index, extends it, trains it again, or does not publish it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from indexer.errors import AtlasError
from indexer.publish.tables import Tables
from indexer.vectors.choice import AUTO, COMPRESSED, EXACT, IndexChoice, check_index
from indexer.vectors.files import VectorFile, open_index, write_index
from indexer.vectors.masks import Masks
from indexer.vectors.published import StoredIndex
from indexer.vectors.search import INSTANT_BYTES
from indexer.vectors.segments import OpenSegment, Segment

if TYPE_CHECKING:
    from indexer.vectors.compressed import Compressed

# Segments that are not in the compressed index are searched exactly. Beyond this many bytes they are added to it.
EXTEND_ABOVE = INSTANT_BYTES // 4

# An index is trained again if the atlas has this many times the models that it was trained on, or if it has this many
# codes per valid model.
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
        """The segments, marked by whether the compressed index covers them; none are if the search is exact.

        ``stored``: the current index, if it was made with this choice. An index that cannot be built, or whose recall
        is too low, is not published: ``say`` receives a message, and the search stays exact.
        """
        count = sum(one.count for one in segments)
        size = sum(one.bytes for one in segments)
        if choice.index == EXACT or not count or (choice.index == AUTO and size <= INSTANT_BYTES):
            self._delete()
            return [replace(one, in_compressed=False) for one in segments]
        if stored is None or count > TRAIN_AGAIN * stored.trained_on:
            return self._trained(segments, choice)
        if stored.file is None:
            return list(segments)
        from indexer.vectors.compressed import Compressed, extend, index_bytes

        others = [one for one in segments if not one.in_compressed]
        is_extended = sum(one.bytes for one in others) > EXTEND_ABOVE
        codes = stored.file.count + (sum(one.count for one in others) if is_extended else 0)
        is_too_large = index_bytes(stored.factory, stored.file.length, codes) > choice.memory
        if is_too_large or codes > TRAIN_AGAIN * count:
            return self._trained(segments, choice)
        if not is_extended:
            return list(segments)
        opened = [OpenSegment(self.root, one, self.masks) for one in segments]
        new = [one.vectors() for one in opened if not one.segment.in_compressed]
        index = open_index(self.root, stored.file, is_mapped=False)
        old = Compressed(index, stored.factory, stored.candidates, stored.recall, stored.queries)
        made = extend(old, new, [one.vectors() for one in opened], choice.promised, masks=self.masks)
        if made.recall < choice.promised:
            return self._trained(segments, choice)
        return self._published(segments, choice, made, stored.trained_on)

    def _trained(self, segments: Sequence[Segment], choice: IndexChoice) -> list[Segment]:
        """Train indexes until one has the promised recall."""
        from indexer.vectors.compressed import compress, index_bytes

        parts = [OpenSegment(self.root, one, self.masks).vectors() for one in segments]
        count = sum(len(part) for part in parts)
        length = segments[0].file.length
        factories = [choice.index]
        if choice.index == AUTO:
            factories = [name for name in COMPRESSED if index_bytes(name, length, count) <= choice.memory]
        best: Compressed | None = None
        for factory in factories:
            try:
                check_index(factory)
                self.say(f"{self.base}, {self.representation}: training a compressed index, {factory}")
                made = compress(parts, factory, choice.promised, memory=choice.memory, masks=self.masks)
            except AtlasError as error:
                self.say(f"{error.message} It is not published.")
                continue
            if best is None or made.recall > best.recall:
                best = made
            if made.recall >= choice.promised:
                break
        return self._published(segments, choice, best, count)

    def _published(
        self, segments: Sequence[Segment], choice: IndexChoice, made: Compressed | None, trained_on: int
    ) -> list[Segment]:
        """Publish an index with the promised recall; of another one, store only the measurement.

        There is a row even if nothing could be measured, so that the next publish does not try the same again.
        """
        file: VectorFile | None = None
        if made is not None and made.recall >= choice.promised:
            file = write_index(self.root, self.base, self.representation, made.index, made.factory)
        elif made is not None:
            self.say(
                f"{made.factory} finds {made.recall:.1%} of the 10 nearest, less than the promised "
                f"{choice.promised:.1%}: it is not published, searches stay exact"
            )
        elif choice.index == AUTO:
            self.say(f"no compressed index of at most {choice.memory:,} bytes can be built: searches stay exact")
        self._delete()
        row = {
            "base": self.base,
            "representation": self.representation,
            "factory": made.factory if made else choice.index,
            "candidates": made.candidates if made else 0,
            "trained_on": trained_on,
            "vectors": int(made.index.ntotal) if made else 0,
            "recall_at_10": made.recall if made else 0.0,
            "queries": made.queries if made else 0,
            "faiss_file": file.name if file else None,
            "faiss_sha256": file.sha256 if file else None,
            "faiss_bytes": file.size if file else None,
        }
        self.tables.insert("internal.compressed_indexes", [row])
        return [replace(one, in_compressed=file is not None) for one in segments]

    def _delete(self) -> None:
        self.tables.run(
            "DELETE FROM internal.compressed_indexes WHERE base = ? AND representation = ?",
            [self.base, self.representation],
        )
