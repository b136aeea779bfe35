"""What a record says of the start of an adapter: where the random numbers of its factors came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

# ``AdapterStart.generator`` of PyTorch's CPU generator, by the distribution of A.
UNIFORM: Literal["uniform"] = "uniform"
NORMAL: Literal["normal"] = "normal"

# Kinds of adapters (``Record.adapter_kind``) whose factors A libraries draw at random.
DRAWN_KINDS = ("LoRA", "rsLoRA", "DoRA")

_COLUMNS = ("generator", "seed", "offset", "prefix", "with_weights", "found", "modules", "distance", "tool")

# Unsloth sets this seed immediately before it makes the factors.
_UNSLOTH = 3407


@dataclass(frozen=True)
class AdapterStart:
    """The start of an adapter's factors A.

    ``generator``: UNIFORM or NORMAL numbers of PyTorch's CPU generator, or the name of a start that was made from the
    base's weights ("pissa", "olora"); of the latter nothing else is known. ``seed``: its low 32 bits. ``offset``: how
    many words of the generator come before A of the first module; ``prefix``: how many before anything that belongs to
    that module. ``with_weights``: every module's own weights were drawn as well, as PEFT before 0.6 did. ``found``: the
    modules whose A was found at the place that the others give, out of ``modules``. ``distance``: ‖A − A₀‖ / ‖A₀‖ over
    these. ``has_learned``: A was moved by more than the rounding of its file, so that what it learned is known.
    """

    generator: str
    seed: int | None = None
    offset: int | None = None
    prefix: int | None = None
    with_weights: bool = False
    found: int = 0
    modules: int = 0
    distance: float | None = None
    has_learned: bool = False

    def as_row(self) -> dict[str, Any]:
        """The column ``start`` of the database."""
        return {name: getattr(self, name) for name in _COLUMNS}

    @property
    def tool(self) -> str | None:
        """What the seed and the prefix tell of the program that made the adapter; None if nothing."""
        if self.seed is None:
            return None
        if self.with_weights:
            return "PEFT before 0.6"
        if self.seed == _UNSLOTH and self.prefix == 0:
            return "Unsloth"
        return "diffusers" if self.generator == NORMAL else None
