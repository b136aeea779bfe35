"""The commands that look at one model, or at two: layers, compare. Thin skins over the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from indexer.console.completion import complete_model
from indexer.console.terminal import atlas_option, output_options
from query.cli.options import Question, base_option, opened_atlas, representation_option, tell, theme_option

if TYPE_CHECKING:
    from query.results import ThemeName

# As query.layers.parts.MEASURES, which stays unread until a question needs it.
MEASURES = ("relative_norm", "norm", "share", "rank_50", "rank_90", "energy")


@click.command(cls=Question)
@click.argument("model", shell_complete=complete_model)
@base_option()
@click.option("--of", type=click.Choice(MEASURES), default="relative_norm", show_default=True, help="What to show.")
@click.option("--out", metavar="FILE", help="Also draw it: .png, .svg or .pdf.")
@theme_option
@atlas_option
@output_options
def layers(model: str, base: str | None, of: str, out: str | None, theme: ThemeName, atlas: str, output: str) -> None:
    """Say where MODEL changed, by layer and family: an indexed id, any other Hub id, or a local folder."""
    from query.figures import checked_output

    file = checked_output(out) if out else None
    with opened_atlas(atlas) as opened:
        found = opened.layers(model, base)
        if file is not None:
            found.write(file, theme, of)
        tell(found, output, file=file, table=found.table(of=of))


@click.command(cls=Question)
@click.argument("a", metavar="A", shell_complete=complete_model)
@click.argument("b", metavar="B", shell_complete=complete_model)
@base_option()
@representation_option
@atlas_option
@output_options
def compare(a: str, b: str, base: str | None, representation: str, atlas: str, output: str) -> None:
    """Set models A and B side by side: how similar their changes are, and what cards and weights say.

    Each is an indexed id, any other Hub id, or a local folder; both of one base.
    """
    with opened_atlas(atlas) as opened:
        tell(opened.compare(a, b, base=base, representation=representation), output)


MODELS = (layers, compare)
