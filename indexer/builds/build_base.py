"""The base of a build: its shape, its block matrices, which are fetched if the atlas lacks them, and its other ids."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property

from indexer.atlas import AtlasFolder
from indexer.builds.options import WorkOptions
from indexer.database.reading import earlier_database
from indexer.deltas.stored_base import BaseShape, StoredBase, stored_bases
from indexer.errors import AtlasError, BadArgument, ModelError
from indexer.listing.listing import Listing
from indexer.network.rate_limit import limit_bandwidth, share_limits
from indexer.publish.previous_atlas import PublishedRank, rank_of
from indexer.sources.bases import base_of
from indexer.sources.cards.modelcard import Licence
from indexer.sources.registry import ModelRef, base_source, is_listed_id, source_of
from indexer.sources.rows import facts_of, row_of
from indexer.sources.source import BaseFacts
from indexer.untrusted import printable

# At most this many models that were found to be copies of the base are asked for their children as its mirrors.
_MOST_COPIES = 20


@dataclass(frozen=True)
class PreviousBase:
    """What the earlier builds of an atlas left: the rank of a base's records, copies of it, and their speed.

    ``copies``: models whose weights turned out to be the base's, the most downloaded first. ``bytes_per_second``: of
    all builds of the atlas so far; None before the first.
    """

    rank: PublishedRank | None
    copies: tuple[str, ...]
    bytes_per_second: float | None


class BuildBase:
    """The base with these ``facts``. ``say`` is called with remarks."""

    def __init__(self, folder: AtlasFolder, facts: BaseFacts, options: WorkOptions, say: Callable[[str], None]) -> None:
        self.facts = facts
        self._folder = folder
        self._options = options
        self._say = say
        self._source = source_of(facts.id)
        self._opened_hashes: tuple[str | None, ...] = ()

    @cached_property
    def shape(self) -> BaseShape:
        """The base's block matrices, from the header alone if need be. Raises AtlasError."""
        if stored := self._undamaged(self.facts.commit):
            return stored.shape
        from indexer.deltas.base import open_base, shape_of_base

        self._limit_bandwidth()  # before the first byte: headers count too
        with closing(open_base(self.facts)) as checkpoint:
            self._opened_hashes = tuple(facts.sha256 for facts in checkpoint.files)
            return shape_of_base(checkpoint)

    def check(self) -> None:
        """Raise AtlasError if the base cannot be used, before its fine-tunes are looked for."""
        if not stored_bases(self._folder, self.facts.id):
            self.shape  # noqa: B018 - raises

    def hashes(self) -> tuple[str | None, ...]:
        """The checksums of its weight files; () if they are not known without asking."""
        stored = [base for base in stored_bases(self._folder, self.facts.id) if base.commit == self.facts.commit]
        return stored[0].file_hashes if stored else self._opened_hashes

    def stored(self, *, whole: bool = True) -> StoredBase:
        """Its block matrices in the atlas, fetched if they are not there. Raises AtlasError.

        Unless ``whole``, some rows of each matrix do if the atlas has no more (``indexer.upkeep.prune``).
        A new commit that does not change the weight files (an edited card) is not a new base: the atlas keeps the
        commit it knows, and with it every record.
        """
        if (stored := self._usable(self.facts.commit, whole)) is not None:
            return stored
        from indexer.deltas.base import open_base, store_base
        from indexer.profiles.words import words_of_base

        self._limit_bandwidth()
        try:
            opened = open_base(self.facts)
        except AtlasError as error:
            sample = None if self._asks_for_whole else self._usable(self.facts.commit, False)
            if sample is None:
                raise
            self._say(f"only some rows of {self.facts.id} are used, as the atlas keeps them: {error.message}")
            return sample
        with closing(opened) as checkpoint:
            hashes = tuple(facts.sha256 for facts in checkpoint.files)
            for stored_base in stored_bases(self._folder, self.facts.id):
                if None not in hashes and stored_base.file_hashes == hashes:
                    self.facts = replace(self.facts, commit=stored_base.commit)
                    if (stored := self._usable(stored_base.commit, whole)) is not None:
                        return stored
                    break
            self._say(f"fetching the block matrices of {self.facts.id}")
            # Most models of images and video are LoRAs, whose changes need no base.
            is_sampled = bool(self.facts.component) and not self._asks_for_whole
            path = self._folder.base(self.facts.id, self.facts.commit)
            return store_base(
                checkpoint, self.facts.id, self.facts.commit, path,
                component=self.facts.component, is_sampled=is_sampled, words=words_of_base(checkpoint, self._say),
            )  # fmt: skip

    @property
    def _asks_for_whole(self) -> bool:
        return self._options.spectra or self._options.read == "full"

    def _limit_bandwidth(self) -> None:
        share_limits(self._folder.root)
        limit_bandwidth(str(self._folder.root), self._options.bytes_per_second)

    def _usable(self, commit: str, whole: bool) -> StoredBase | None:
        """The file of a commit, unless it is damaged, or a sample and the build needs all rows.

        So it does if ``whole``, but of a component of diffusers, which has many gigabytes; or if an option says so.

        Raises AtlasError if such a file cannot be replaced offline.
        """
        stored = self._undamaged(commit)
        if stored is None or not stored.is_sampled or not (self._asks_for_whole or (whole and not stored.component)):
            return stored
        if self._asks_for_whole and (offline := self._source.offline):
            raise AtlasError(
                f"This atlas keeps a sample of the rows of {self.facts.id}, and {offline}.",
                "Unset it, or read a sample of the models too: --read sample.",
            )
        return None

    def _undamaged(self, commit: str) -> StoredBase | None:
        """The file of a commit, if it is there as it was written. Raises AtlasError for a damaged one offline."""
        path = self._folder.base(self.facts.id, commit)
        if not path.is_file():
            return None
        stored = StoredBase(path)
        try:
            stored.check()
        except AtlasError as error:
            if self._source.offline:
                raise
            self._say(error.message)
            return None
        return stored

    def mirrors(self, listing: Listing) -> tuple[str, ...]:
        """Other ids of the base's weights: named by the user, known by name, or read before and found to be copies."""
        listing.note_base(self.facts.ids, self.licence)
        self.note_mirrors(listing)
        candidates = [*listing.mirrors(), *self._source.mirrors(self.facts.ids), *self.previous.copies]
        return tuple(name for name in dict.fromkeys(candidates) if name not in self.facts.ids)

    @property
    def licence(self) -> Licence | None:
        """The licence that the card of the base gives; None if it gives none, or the Hub was not asked."""
        return facts_of(self.facts.row).licence if self.facts.row else None

    def note_mirrors(self, listing: Listing) -> None:
        """Look up each new id of ``same_as``, and remember it: with a wrong one, adapters of another model are read.

        One that the Hub does not have is taken, because models can still name it. Raises AtlasError for a model of
        another type.
        """
        for name in self._options.same_as:
            source = source_of(name)
            if name in listing.mirrors() or source.offline:
                continue
            try:
                config = row_of(ModelRef.of_atlas(name)).get("config")
            except ModelError as error:
                if error.reason != "not_found":
                    problem = f"Cannot look up {name} (same_as): {error.detail}."
                    raise AtlasError(problem, "Run it again later.") from error
                self._say(f"there is no {name} on {source.title}; models that name it are still looked for (same_as)")
                continue
            their_type, our_type = (config or {}).get("model_type"), self.facts.config.get("model_type")
            if (
                isinstance(their_type, str)
                and isinstance(our_type, str)
                and their_type != our_type
                and not self.facts.component
            ):
                raise AtlasError(
                    f"{name} is of type {printable(their_type, 60)}, "
                    f"{self.facts.id} of type {printable(our_type, 60)}: "
                    "they do not have the same weights (same_as).",
                    "Name another id of the base's own weights.",
                )
        listing.note_mirrors(self._options.same_as, self.facts.id)

    @cached_property
    def previous(self) -> PreviousBase:
        """What the atlas said of it before this build published."""
        copies = (
            "SELECT model, base, downloads FROM fine_tunes JOIN records USING (model_id) WHERE is_copy "
            "AND relation = 'finetune'"
        )
        builds = "SELECT bytes_read, seconds FROM builds WHERE bytes_read > 0 AND seconds > 0"
        with earlier_database(self._folder.database) as earlier:
            rank = rank_of(earlier, self.facts.id)
            (rows,) = earlier(["fine_tunes", "records"], [copies]) or ([],)
            (built,) = earlier(["builds"], [builds]) or ([],)
        rows_of_copies = [row for row in rows if row["base"] == self.facts.id and is_listed_id(row["model"])]
        rows_of_copies = sorted(rows_of_copies, key=lambda row: -(row["downloads"] or 0))[:_MOST_COPIES]
        seconds = sum(row["seconds"] for row in built)
        rate = sum(row["bytes_read"] for row in built) / seconds if seconds else None
        return PreviousBase(rank, tuple(row["model"] for row in rows_of_copies), rate)


def find_base(folder: AtlasFolder, name: str) -> BaseFacts:
    """A base by any of its names: from its source, or offline from the atlas, else from what the source keeps here.

    Raises AtlasError if none knows it, and BadArgument if ``name`` is no text.
    """
    if not isinstance(name, str) or not name.strip():
        raise BadArgument(f"`base` is {name!r}, not the id of a base model.", "For example: FacebookAI/roberta-base")
    source, typed = base_source(name)
    if not source.offline:
        return base_of(source, name)
    for base in stored_bases(folder):
        facts = facts_of_stored(base, Listing(folder.listing(base.base)))
        if typed.lower() in {name.lower() for name in facts.ids}:
            return facts
    with suppress(AtlasError):
        if (cached := source.base(name)) is not None:
            return cached
    raise AtlasError(f"The base {name} is not in this atlas, and {source.offline}.", f"Unset it to ask {source.title}.")


def facts_of_stored(base: StoredBase, listing: Listing) -> BaseFacts:
    """The facts of a base from the atlas, without a request to the Hub."""
    return BaseFacts(base.base, base.commit, listing.aliases(), dict(base.config), component=base.component)
