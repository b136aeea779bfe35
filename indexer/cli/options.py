"""Options that several commands of `index` have, and what the library takes in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from indexer.console.completion import complete_base
from indexer.console.ranges import FiniteRange
from indexer.console.typed import as_typed
from indexer.errors import AtlasError
from indexer.names import DISCOVERIES, SORTS

if TYPE_CHECKING:
    from indexer.builds.report import BuildOptions
    from indexer.vectors.choice import IndexChange


def base_option(text: str, *name: str, **options: Any) -> Any:
    """``--base``, which completes what is in the atlas."""
    return click.option("--base", *name, metavar="ID", shell_complete=complete_base, help=text, **options)


def together(*options: Any) -> Any:
    """Several options as one decorator, in the order given."""

    def decorated(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


length_option = click.option(
    "--vector-length", type=click.IntRange(1, 1 << 20), metavar="N",
    help="About how many numbers a vector has, divided among the matrices; 8,208 unless chosen, less for small bases.",
)  # fmt: skip

record_options = together(
    click.option("--rank", default=8, show_default=True, type=click.IntRange(1, 256), help="Singular triplets kept."),
    click.option(
        "--spectra",
        is_flag=True,
        help="Also keep all singular values of δW and W, for `query rank`; models without them are read again.",
    ),
    click.option("--no-keep-factors", is_flag=True, help="Keep only vectors and norms: saves disk."),
    click.option("--device", default="cpu", show_default=True, help="Where the SVD runs: cpu, cuda, cuda:1 …"),
    length_option,
)
selection_options = together(
    click.option("--limit", type=click.IntRange(min=1), help="Only the first N models of the listing."),
    click.option(
        "--sort", type=click.Choice(SORTS), default="downloads", show_default=True, help="Which come first."
    ),
    click.option(
        "--relation", default="finetune,adapter", show_default=True, help="finetune, adapter, merge, quantized."
    ),
    click.option("--discover", type=click.Choice(DISCOVERIES), default="tags", show_default=True,
                 help="names: also look for untagged fine-tunes by card, config and name."),
    click.option("--descendants", is_flag=True, help="Follow fine-tunes of fine-tunes."),
    click.option("--since", metavar="DATE", help="Only models created on or after this day (2024-01-31)."),
    click.option("--author", help="Only this author's models."),
    click.option("--retry-failed", is_flag=True, help="Try every failure again now, however recent."),
)  # fmt: skip
resource_options = together(
    click.option("--workers", type=click.IntRange(1, 256), help="Processes; one for each processor by default."),
    click.option("--memory", metavar="SIZE",
                 help="Most for all workers, e.g. 2G; by default half of what is free. "
                 "Publishing takes some besides: 1.5 GB for 10,000 new models."),
    click.option("--bandwidth", metavar="SIZE", help="Most bytes a second for all workers, e.g. 20M."),
)  # fmt: skip

index_options = together(
    click.option("--index", metavar="auto|exact|FACTORY",
                 help="How vectors are searched: auto is exact while that is instant, then what fits."),
    click.option("--index-memory", metavar="SIZE",
                 help="Most that a compressed index may take, e.g. 4G; 1 GiB unless chosen."),
    click.option("--recall", type=FiniteRange(0, 1), help="Least recall@10 of a compressed index; 0.95 unless chosen."),
)  # fmt: skip


def options_of(chosen: dict[str, Any]) -> BuildOptions:
    """The options of a build; what is wrong with one is a usage error."""
    from indexer.builds.options import build_options

    keep_factors = not chosen.pop("no_keep_factors")
    try:
        return build_options(keep_factors=keep_factors, **chosen)
    except AtlasError as error:
        raise click.UsageError(as_typed(str(error))) from None


def index_change_of(chosen: dict[str, Any]) -> IndexChange | None:
    """The index asked for, None where nothing is said of it; its options are taken out of ``chosen``."""
    from indexer.builds.options import index_change

    index, memory, recall = (chosen.pop(name, None) for name in ("index", "index_memory", "recall"))
    length = chosen.pop("vector_length", None)
    try:
        return index_change(index, memory, recall, length)
    except AtlasError as error:
        raise click.UsageError(as_typed(str(error))) from None
