"""What an adapter stands on, where that is not the base itself."""

from __future__ import annotations

from dataclasses import dataclass, field

# How ``StandsOn.why`` begins where an adapter's row in the listing named something else than its own file.
ROW_NAMES = "its listing row names "


@dataclass(frozen=True)
class Parent:
    """A model at a commit that an adapter was trained on; ``parent``: what that one stands on, where it is an adapter.

    ``relation`` is what its files say: adapter or finetune. ``filenames`` are those of its repository, where known.
    """

    model: str
    commit: str
    relation: str
    parent: Parent | None = None
    filenames: tuple[str, ...] | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """``owner/name@commit``, and after a ">" what it stands on itself: one spelling for one sum of weights."""
        own = f"{self.model}@{self.commit}"
        return f"{own}>{self.parent.name}" if self.parent else own


@dataclass(frozen=True)
class StandsOn:
    """What an adapter's ``named`` base (adapter_config.json, made printable) turned out to be.

    ``verdict``: ``base``; ``finetune`` (``parent`` is what was added to the adapter's own change); ``foreign``: another
    base; ``unknown``: nobody can tell, and the adapter is taken as one of the base. ``why`` is a sentence.
    """

    named: str
    verdict: str
    parent: str = ""
    why: str = ""
