"""Sampled models (only some of their rows were read): notes on them, and the cost of reading the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from indexer.database.deepening import deepening
from indexer.errors import AtlasError, Text
from indexer.names import UNMEASURABLE, UNTRAINED
from query.shared.wording import counted

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

SAMPLE = "sample"
CHECKSUM = "checksum"
COPY = "copy of the base"
UNTRAINED_ADAPTER = "untrained adapter"
UNMEASURABLE_ADAPTER = "adapter that changes nothing measurable"
LIKE_THE_BASE = "like the base in all that was read"
_FLAGS = {
    "is_copy": COPY, "is_unrelated": "unrelated to the base", "is_partly_frozen": "partly frozen",
    "deleted_at_hub": "gone from its source",
}  # fmt: skip
_COPIES = {SAMPLE: LIKE_THE_BASE, UNTRAINED: UNTRAINED_ADAPTER, UNMEASURABLE: UNMEASURABLE_ADAPTER}


def flags_in_words(model: Mapping[str, Any]) -> list[str]:
    """The oddities of a model, by the flags that ``model`` has. A sample does not prove a copy."""
    flags = [words for name, words in _FLAGS.items() if model.get(name)]
    return [copy_in_words(model.get("copy_evidence")) if words == COPY else words for words in flags]


def copy_in_words(evidence: str | None) -> str:
    """A phrase for a model without a change, by its ``copy_evidence``."""
    return _COPIES.get(evidence or "", COPY)


def sample_gives(representation: str) -> bool:
    """Whether a sample gives vectors of this representation. Raises BadArgument for an unknown one."""
    if representation == "input":  # the default, without the import
        return True
    from indexer.records.representations.registry import representation_named

    return not representation_named(representation).needs_all_rows


def needs_all(
    atlas: AtlasReader, base: str, models: Sequence[str], lacking: str, *, spectra: bool = False
) -> AtlasError:
    """The error for a question about ``lacking`` ("'output' vectors") of sampled models."""
    names = " and ".join(models)
    return AtlasError(
        f"Only a sample of rows was read of {names}, which gives no {lacking}.",
        deepening(atlas, base, models, spectra=spectra),
    )


def note_on_sampled(
    atlas: AtlasReader, base: str, count: int, lacking: str, *, spectra: bool = False
) -> tuple[str, ...]:
    """A note that ``count`` sampled models of ``base`` have no ``lacking`` and do not count; none if there are none."""
    if not count:
        return ()
    verb = "has" if count == 1 else "have"
    return (
        Text(
            f"{counted(count, 'sampled model')} {verb} no {lacking} and {'does' if count == 1 else 'do'} not count. ",
            deepening(atlas, base, spectra=spectra),
        ),
    )


def rows_in_words(rows_read: Iterable[int | None]) -> str:
    """From how many rows of each matrix were read (None: all): "16 to 22 rows of each matrix"."""
    row_counts = list(rows_read)
    counts = sorted({count for count in row_counts if count is not None})
    if not counts:
        return "all rows"
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    partial = sum(count is not None for count in row_counts)
    if partial == len(row_counts):
        return f"{span} rows of each matrix"
    return f"{span} rows of {partial} of {len(row_counts)} matrices, all of the others"
