"""Models of which a sample of rows was read: what is said of them, and what reading the rest would cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from indexer.errors import AtlasError
from indexer.quantities import duration_in_words, size_in_words
from query.wording import counted

if TYPE_CHECKING:
    from query.reader import AtlasReader

SAMPLE = "sample"
COPY = "copy of the base"
LIKE_THE_BASE = "like the base in all that was read"


def sample_gives(representation: str) -> bool:
    """Whether a sample gives vectors of this representation. Raises BadArgument for an unknown one."""
    if representation == "input":  # the default, without the import
        return True
    from indexer.records.representation import representation_named

    return representation_named(representation).needs == "v"


def deepening(
    atlas: AtlasReader, base: str, models: Sequence[str] = (), *, spectra: bool = False, read: int | None = None
) -> str:
    """Advice to read the rest of ``models``, or of all sampled models of ``base``: the call, its bytes and its time.

    ``spectra``: with all singular values. ``read``: the bytes, of a model that is not indexed and is read in full
    instead. The time is given if a build of the atlas has read models in full: samples are read at a lower rate.
    """
    if read is None:
        (row,) = atlas.rows(
            "SELECT sum(block_bytes)::BIGINT AS bytes FROM models "
            "WHERE base = $1 AND \"read\" = 'sample' AND (len($2::VARCHAR[]) = 0 OR list_contains($2, model))",
            [base, list(models)],
        )
        read = row["bytes"] or 0
    (rate,) = atlas.rows(
        "SELECT sum(bytes_read) / sum(seconds) AS per_second FROM builds WHERE bytes_read > 0 AND seconds > 0 "
        "AND coalesce(json_extract_string(spec, '$.sample'), '') = ''"
    )
    cost = size_in_words(read)
    if rate["per_second"]:
        cost += f", ≈ {duration_in_words(read / rate['per_second'])} at {size_in_words(rate['per_second'])}/s"
    which = repr(models[0]) if len(models) == 1 else repr(list(models)) if models else f"base={base!r}"
    return f"Read the rest ({cost}): `deepen({which}{', spectra=True' if spectra else ''})`"


def needs_all(atlas: AtlasReader, base: str, models: Sequence[str], what: str, *, spectra: bool = False) -> AtlasError:
    """The error for a question about ``what`` ("'output' vectors") of models of which a sample was read."""
    names = " and ".join(models)
    return AtlasError(
        f"Of {names} a sample of rows was read, which gives no {what}.",
        deepening(atlas, base, models, spectra=spectra),
    )


def without_a_full_model(atlas: AtlasReader, base: str, count: int, what: str, *, spectra: bool = False) -> AtlasError:
    """The error for a study of ``what`` that no model of ``base`` is left for, as ``count`` models are sampled."""
    of_all = "Of the only model" if count == 1 else f"Of all {count:,} models"
    return AtlasError(
        f"{of_all} of {base} a sample of rows was read, which gives no {what}.",
        deepening(atlas, base, spectra=spectra),
    )


def note_on_sampled(atlas: AtlasReader, base: str, count: int, what: str, *, spectra: bool = False) -> tuple[str, ...]:
    """A note that ``count`` sampled models of ``base`` have no ``what`` and do not count; none if there are none."""
    if not count:
        return ()
    lack = "has" if count == 1 else "have"
    return (
        f"{counted(count, 'sampled model')} {lack} no {what} and {'does' if count == 1 else 'do'} not count. "
        f"{deepening(atlas, base, spectra=spectra)}",
    )


def rows_in_words(rows_read: Iterable[int | None]) -> str:
    """From how many rows of each matrix were read (None: all): "16 to 22 rows of each matrix"."""
    read = list(rows_read)
    counts = sorted({count for count in read if count is not None})
    if not counts:
        return "all rows"
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    partial = sum(count is not None for count in read)
    if partial == len(read):
        return f"{span} rows of each matrix"
    return f"{span} rows of {partial} of {len(read)} matrices, all of the others"


def estimated(model: str, rows_read: Iterable[int | None], norm: float, error: float) -> str:
    """A note that the norms of a sampled model are estimates, with the standard error of the whole change."""
    of_it = f"; the standard error of the norm of its whole change is {100 * error / norm:.2g} %" if norm else ""
    return f"The norms of {model} are estimated from {rows_in_words(rows_read)}{of_it}."
