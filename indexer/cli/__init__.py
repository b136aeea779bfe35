"""The command `index`: thin skins over the library."""

from indexer.cli.commands import main

__all__ = ["main"]
