"""`query browse`: a local page over the atlas. A thin skin over the library."""

from __future__ import annotations

import click

from indexer.console.terminal import atlas_option, handle_sigterm, say
from query.cli.options import base_option, opened_atlas


@click.command()
@base_option()
@click.option("--port", default=0, type=click.IntRange(0, 65535), metavar="N", help="Default: any that is free.")
@click.option("--open/--no-open", "opens", default=True, help="Open a browser there, or only print the address.")
@click.option("--method", type=click.Choice(["umap", "tsne", "pca"]),
              show_default="tsne below 1,000 models, else umap", help="How to flatten the map.")  # fmt: skip
@atlas_option
def browse(base: str | None, port: int, opens: bool, method: str | None, atlas: str) -> None:
    """Look around: a page with the map, a table and histograms of all models, and all that is known of each.

    It is served to this machine alone, until Ctrl-C; the address that is printed holds its key.
    """
    from query.browse.browse import browse as serve

    handle_sigterm()

    def told(address: str) -> None:
        click.echo(address)
        say("Ctrl-C ends it")

    with opened_atlas(atlas) as opened:
        try:
            serve(opened, base, port=port, opens=opens, method=method, told=told)
        except KeyboardInterrupt as stop:
            raise type(stop)("the page is no longer served.") from stop
