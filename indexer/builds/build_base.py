"""The base of a build: its shape, and its block matrices, which are fetched if the atlas does not have them yet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cached_property

from huggingface_hub import constants

from indexer.atlas import AtlasFolder
from indexer.builds.options import BuildOptions
from indexer.deltas.stored_base import BaseShape, StoredBase, stored_bases
from indexer.errors import AtlasError
from indexer.network.hub import BaseFacts
from indexer.network.rate_limit import limit_bandwidth


class BuildBase:
    """The base with these ``facts``. ``say`` is called with remarks."""

    def __init__(
        self, folder: AtlasFolder, facts: BaseFacts, options: BuildOptions, say: Callable[[str], None]
    ) -> None:
        self.facts = facts
        self._folder = folder
        self._options = options
        self._say = say
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
        """Raise AtlasError if the base cannot be used, before the Hub is asked about its fine-tunes."""
        if not stored_bases(self._folder, self.facts.id):
            self.shape  # noqa: B018 - raises

    def hashes(self) -> tuple[str | None, ...]:
        """The checksums of its weight files; () if they are not known without asking."""
        stored = [one for one in stored_bases(self._folder, self.facts.id) if one.commit == self.facts.commit]
        return stored[0].file_hashes if stored else self._opened_hashes

    def stored(self) -> StoredBase:
        """Its block matrices in the atlas, fetched if they are not there. Raises AtlasError.

        A new commit that does not change the weight files (an edited card) is not a new base: the atlas keeps the
        commit it knows, and with it every record.
        """
        if (stored := self._usable(self.facts.commit)) is not None:
            return stored
        from indexer.deltas.base import open_base, store_base

        self._limit_bandwidth()
        with closing(open_base(self.facts)) as checkpoint:
            hashes = tuple(facts.sha256 for facts in checkpoint.files)
            for known in stored_bases(self._folder, self.facts.id):
                if None not in hashes and known.file_hashes == hashes:
                    self.facts = replace(self.facts, commit=known.commit)
                    if (stored := self._usable(known.commit)) is not None:
                        return stored
                    break
            self._say(f"fetching the block matrices of {self.facts.id}")
            # Most models of images and video are LoRAs, whose changes need no base.
            is_sampled = bool(self.facts.component) and not self._options.spectra and self._options.read == "sample"
            path = self._folder.base(self.facts.id, self.facts.commit)
            return store_base(
                checkpoint, self.facts.id, self.facts.commit, path,
                component=self.facts.component, is_sampled=is_sampled,
            )  # fmt: skip

    def _limit_bandwidth(self) -> None:
        limit_bandwidth(str(self._folder.root), self._options.bandwidth)

    def _usable(self, commit: str) -> StoredBase | None:
        """The file of a commit, unless it is damaged or a sample and the build needs all rows.

        Raises AtlasError if such a file cannot be replaced offline.
        """
        stored = self._undamaged(commit)
        if stored is None or not stored.is_sampled or not (self._options.spectra or self._options.read == "full"):
            return stored
        if constants.HF_HUB_OFFLINE:
            raise AtlasError(
                f"This atlas keeps a sample of the rows of {self.facts.id}, and HF_HUB_OFFLINE is set.",
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
            if constants.HF_HUB_OFFLINE:
                raise
            self._say(error.message)
            return None
        return stored
