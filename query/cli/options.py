"""What every question on the command line begins with: which atlas, and which base."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from indexer.console.terminal import say

if TYPE_CHECKING:
    from query.atlas import Atlas


def base_option(required: bool = False) -> Any:
    """``--base ID``."""
    text = "Base model, by old or new id." + ("" if required else " Needed where the atlas holds several.")
    return click.option("--base", required=required, metavar="ID", help=text)


def opened_atlas(folder: str) -> Atlas:
    """The atlas in ``folder``, opened; what is odd about it is said on stderr."""
    from query.atlas import Atlas

    opened = Atlas(folder)
    for note in opened.notes:
        say(note)
    return opened
