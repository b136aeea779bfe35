"""The command `query`: thin skins over the library."""

from query.cli.questions import main

__all__ = ["main"]
