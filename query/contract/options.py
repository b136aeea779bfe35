"""Arguments that several questions share, each described once for Python, the command line and agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from indexer.console.option import Argument, Option
from indexer.names import READS

ROWS_ON_A_TERMINAL = 40

MODEL = Argument(
    "An indexed id, any other Hub id, or a local checkpoint folder.",
    completes="model",
    agents="An indexed model (owner/name), or any other model of the Hub, which is downloaded in part and not stored. "
    "A folder only if the server was started with --folders.",
)
Model = Annotated[str | Path, MODEL]
OptionalModel = Annotated[str | None, MODEL]
Base = Annotated[
    str | None,
    Option(
        "Base model, by old or new id. Needed if the atlas holds several.", metavar="ID", completes="base",
        agents="Id of the base model. Needed if the atlas holds several.",
    ),
]  # fmt: skip


def _vectors() -> str:
    """Vectors to use, by the name of their representation."""
    # A function, because the registry is slow to import; help(Atlas) shows the line above.
    from indexer.records.representations.registry import REPRESENTATIONS

    return f"Vectors to use: {', '.join(REPRESENTATIONS)}."


Representation = Annotated[
    str,
    Option(
        _vectors, metavar="NAME", completes="representation",
        agents="Vectors to compare; the tool `bases` lists the published ones. `input` is the best.",
    ),
]  # fmt: skip
Where = Annotated[
    str | None,
    Option(
        'Only models that satisfy this condition, e.g. "downloads > 100".', metavar="SQL",
        agents='SQL condition on the view `models`, e.g. "downloads > 100".',
    ),
]  # fmt: skip
Read = Annotated[
    str | None,
    Option(
        "How a model that is not indexed is read: sample, some rows of every matrix (default), or full.", choices=READS
    ),
]
Seed = Annotated[int, Option("Random seed.", least=0)]
Device = Annotated[str, Option("Device: cpu, cuda, cuda:1 …")]
Layers = Annotated[
    str | Sequence[int] | None, Option("Only these layers. Default: all, or 12 evenly spaced.", metavar="1,4")
]
Stem = Annotated[
    str | None,
    Option("Patch embedding for a language model: a random one, or that of this ViT.", metavar="image|VIT"),
]
Limit = Annotated[
    int | None, Option(f"Maximum number of rows. Default: {ROWS_ON_A_TERMINAL} on a terminal, else all.", least=1)
]
DRAW = "Also draw it: .png, .svg or .pdf."
Out = Annotated[str | None, Option(DRAW, metavar="FILE")]
THEME = Option("Colours of the picture.")
DETAILS = Option("Show everything in the table.")
