"""Options that several commands of `index` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from indexer.console.advice import for_command_line
from indexer.console.completion import complete_base
from indexer.console.messages import say
from indexer.console.terminal import FiniteRange
from indexer.names import CONNECTIONS, DEFAULT_RELATIONS, DISCOVERIES, MOST_QUESTIONS, MOST_STEPS, READS, SORTS

if TYPE_CHECKING:
    from indexer.builds.report import BuildEvent


def print_note(event: BuildEvent) -> None:
    """Print the message of an event: the ``progress`` of commands without a bar."""
    say(for_command_line(event.message))


def base_option(text: str, *name: str, **options: Any) -> Any:
    """``--base``, completed with the bases of the atlas."""
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
    help="About how many numbers a vector has, divided among the matrices. Default: 8,208, fewer for small bases.",
)  # fmt: skip

record_options = together(
    click.option(
        "--read",
        type=click.Choice(READS),
        help="sample: some rows of every matrix, a thirtieth of the bytes or less. full: all of them. Default: sample; "
        "full with --spectra.",
    ),
    click.option(
        "--rank",
        default=8,
        show_default=True,
        type=click.IntRange(1, 256),
        help="Singular triplets kept of each matrix.",
    ),
    click.option(
        "--spectra",
        is_flag=True,
        help="Also keep all singular values of δW and W, for `query rank`; models without them are read again.",
    ),
    click.option("--no-keep-factors", is_flag=True, help="Keep only vectors and norms, to save disk space."),
    click.option("--device", default="cpu", show_default=True, help="Device of the SVD: cpu, cuda, cuda:1 …"),
    click.option(
        "--same-as",
        multiple=True,
        metavar="ID",
        help="Another id under which the base's weights are on the Hub. May be given several times.",
    ),
    length_option,
)
selection_options = together(
    click.option("--limit", type=click.IntRange(min=1), help="Only the first N models of the listing."),
    click.option(
        "--sort", type=click.Choice(SORTS), default="downloads", show_default=True, help="Which models come first."
    ),
    click.option(
        "--relation",
        default=",".join(DEFAULT_RELATIONS),
        show_default=True,
        help="Any of finetune, adapter, merge, quantized.",
    ),
    click.option("--discover", type=click.Choice(DISCOVERIES), default="tags", show_default=True,
                 help="names: also find untagged fine-tunes by card, config and name. weights: by comparing some rows "
                 "of models of the base's type and size with the base's."),
    click.option("--max-candidates", type=click.IntRange(min=1), metavar="N",
                 help="Untagged models to examine in one run. Default: 5,000 by name, 1,000 by weights."),
    click.option("--descendants/--no-descendants", default=True, show_default=True,
                 help="Also models made from the base's fine-tunes and merges, or only from the base itself."),
    click.option("--depth", type=click.IntRange(1, 20), default=MOST_STEPS, show_default=True,
                 help="Maximum number of steps from the base to a model."),
    click.option("--questions", type=click.IntRange(1, 100_000), default=MOST_QUESTIONS, show_default=True,
                 help="Maximum number of models whose own fine-tunes are looked up, at one API call or more each."),
    click.option("--since", metavar="DATE", help="Only models created on or after this day (2024-01-31)."),
    click.option("--author", help="Only this author's models."),
    click.option("--retry-failed", is_flag=True, help="Try every failed model again now, however recent the failure."),
)  # fmt: skip
resource_options = together(
    click.option("--workers", type=click.IntRange(1, 256),
                 help="Number of processes. Default: one per processor, two to read samples."),
    click.option("--connections", type=click.IntRange(1, 64), default=CONNECTIONS, show_default=True,
                 help="Number of connections to the Hub for all workers together."),
    click.option("--memory", metavar="SIZE",
                 help="Memory limit for all workers together, e.g. 2G. Default: half of the free memory. "
                 "Publishing needs more: 1.5 GB for 10,000 new models."),
    click.option("--bandwidth", metavar="SIZE", help="Limit in bytes a second for all workers together, e.g. 20M."),
)  # fmt: skip

index_options = together(
    click.option("--index", metavar="auto|exact|RaBitQ|RaBitQ2",
                 help="How vectors are searched. auto: exact while that is instant, then compressed."),
    click.option("--index-memory", metavar="SIZE",
                 help="Size limit of a compressed index, e.g. 4G. Default: 1 GiB."),
    click.option("--recall", type=FiniteRange(0, 1), help="Minimum recall@10 of a compressed index. Default: 0.95."),
)  # fmt: skip
