"""`query serve` for agents and `query browse` for people: the atlas served by this machine."""

from __future__ import annotations

from pathlib import Path

import click

from indexer.console.terminal import atlas_option, handle_sigterm, say
from query.cli.options import base_option, opened_atlas


@click.command()
@click.option("--mcp", is_flag=True, expose_value=False, help="The protocol, which is the only one.")
@click.option("--folders", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Let agents also read models from folders in DIR. By default they read no folder.")  # fmt: skip
@atlas_option
def serve(folders: Path | None, atlas: str) -> None:
    """Serve the questions to agents as read-only tools, by the Model Context Protocol on stdin and stdout.

    For a client's settings: command "query", arguments "serve --atlas /path/to/atlas" (or hf://OWNER/NAME).
    """
    from query.serve.mcp import serve as answer

    with opened_atlas(atlas) as opened:
        answer(opened, folders)


@click.command()
@base_option()
@click.option("--port", default=0, type=click.IntRange(0, 65535), metavar="N", help="Port. Default: any free one.")
@click.option("--open/--no-open", "opens", default=True, help="Open a browser, or only print the address.")
@click.option("--method", type=click.Choice(["umap", "tsne", "pca"]),
              show_default="tsne below 1,000 models, else umap", help="Projection method of the map.")  # fmt: skip
@atlas_option
def browse(base: str | None, port: int, opens: bool, method: str | None, atlas: str) -> None:
    """Explore the atlas on a local page: the map, a table and histograms of all models, and everything about each.

    The page is served to this machine only, until Ctrl-C. The printed address contains its key.
    """
    from query.browse.browse import browse as serve

    handle_sigterm()

    def on_start(address: str) -> None:
        click.echo(address)
        say("press Ctrl-C to stop")

    with opened_atlas(atlas) as opened:
        try:
            serve(opened, base, port=port, opens=opens, method=method, on_address=on_start)
        except KeyboardInterrupt as stop:
            raise type(stop)("the page is no longer served.") from stop
