"""`query serve`: the atlas for other programs. A thin skin over the library."""

from __future__ import annotations

import click

from indexer.console.terminal import atlas_option
from query.cli.options import opened_atlas


@click.command()
@click.option("--mcp", "is_mcp", is_flag=True, help="Speak the Model Context Protocol on stdin and stdout.")
@atlas_option
def serve(is_mcp: bool, atlas: str) -> None:
    """Answer agents: similar, predict, show, compare, lineage, datasets and sql as tools, read-only.

    For a client's settings: command "query", arguments "serve --mcp --atlas /path/to/atlas" (or hf://OWNER/NAME).
    """
    if not is_mcp:
        raise click.UsageError("Say which protocol: --mcp.")
    from query.serve.mcp import serve as answer

    with opened_atlas(atlas) as opened:
        answer(opened)
