"""The options of `index push`, of which `index pull` has some too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from indexer.console.option import Option
from indexer.console.options import Options

PACK_BYTES = 2 << 30  # of a pack of records, about


# fmt: off
@dataclass(frozen=True, kw_only=True)
class PushOptions(Options):
    """What is pushed, and what may be."""

    private: Annotated[bool, Option("If the repository is new, make it private.")] = False
    tag: Annotated[str | None, Option(
        "Tag of this state. Default: g and the number of the generation.", metavar="T")] = None
    with_records: Annotated[bool, Option(
        "Also the records, from which a build can continue: many gigabytes.")] = False
    with_private: Annotated[bool, Option("Push even if models are private or gated on the Hub.")] = False
    with_local: Annotated[bool, Option("Push even if models were added from local folders.")] = False
    force: Annotated[bool, Option(
        "Push even if this replaces a newer atlas, or if the repository has other files.")] = False
    pack_bytes: Annotated[int, Option("Largest size of a pack of records, in bytes.", least=2)] = PACK_BYTES
    dry_run: Annotated[bool, Option("Only print what would be sent.")] = False
# fmt: on
