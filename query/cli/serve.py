"""`query serve`: the atlas for other programs. A thin skin over the library."""

from __future__ import annotations

from pathlib import Path

import click

from indexer.console.terminal import atlas_option
from query.cli.options import opened_atlas


@click.command()
@click.option("--mcp", is_flag=True, expose_value=False, help="The protocol; there is no other.")
@click.option("--folders", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Let agents read models from the folders in DIR too. By default they read none.")  # fmt: skip
@atlas_option
def serve(folders: Path | None, atlas: str) -> None:
    """Answer agents by the Model Context Protocol, on stdin and stdout: the questions as tools, all read-only.

    For a client's settings: command "query", arguments "serve --atlas /path/to/atlas" (or hf://OWNER/NAME).
    """
    from query.serve.mcp import serve as answer

    with opened_atlas(atlas) as opened:
        answer(opened, folders)
