"""An atlas on the Hub by name: OWNER/NAME, OWNER/NAME@TAG, with hf:// before it or without."""

from __future__ import annotations

import re
from dataclasses import dataclass

from indexer.atlas import ON_HUB
from indexer.errors import AtlasError
from indexer.names import is_hub_id
from indexer.untrusted import printable

_REVISION = re.compile(r"[\w.\-/]{1,200}", re.ASCII)


@dataclass(frozen=True)
class Address:
    """A dataset repository, and a revision of it; None: what was published last."""

    name: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """From what a person writes. Raises AtlasError."""
        name, at, revision = text.removeprefix(ON_HUB).removeprefix("datasets/").rstrip("/").partition("@")
        if not (is_hub_id(name) and "/" in name):
            raise AtlasError(
                f"{printable(text, 100)!r} names no atlas on the Hub.", "Write OWNER/NAME, or OWNER/NAME@TAG."
            )
        is_plain = _REVISION.fullmatch(revision) and ".." not in revision and not revision.startswith(("/", "-"))
        if at and not is_plain:
            raise AtlasError(f"{printable(revision, 60)!r} is no tag, branch or commit.", "Write OWNER/NAME@TAG.")
        return cls(name, revision or None)

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name
