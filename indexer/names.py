"""The names that every room shares: which model, which delta."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from indexer.errors import AtlasError

RELATIONS = ("finetune", "adapter", "merge", "quantized")

# The order in which families are told wherever they are listed or concatenated.
FAMILIES = (
    "query",
    "key",
    "value",
    "output",
    "cross_query",
    "cross_key",
    "cross_value",
    "cross_output",
    "gate",
    "feedforward1",
    "feedforward2",
)

# As huggingface_hub.utils.validate_repo_id has it, which takes a second to import.
_ID_PART = r"\w(?:[\w.\-]{0,94}\w)?"
_HUB_ID = re.compile(rf"(?:{_ID_PART}/)?{_ID_PART}", re.ASCII)


def family_key(stack: str, family: str) -> str:
    """``query`` where there is one stack (""), ``encoder.query`` where there are two."""
    return f"{stack}.{family}" if stack else family


@dataclass(frozen=True)
class DeltaKey:
    """Names one weight change: ``stack`` is "" where there is one, else "encoder" or "decoder"."""

    stack: str
    layer: int
    family: str

    @property
    def family_key(self) -> str:
        """See :func:`family_key`."""
        return family_key(self.stack, self.family)

    @property
    def sort_key(self) -> tuple[int, int, int]:
        """Encoder before decoder, then by depth, then in the order of FAMILIES."""
        return (self.stack == "decoder", self.layer, FAMILIES.index(self.family))

    def __str__(self) -> str:
        return f"{self.stack}.{self.layer}.{self.family}" if self.stack else f"{self.layer}.{self.family}"

    @classmethod
    def parse(cls, text: str) -> DeltaKey:
        """The inverse of ``str``. Raises ValueError on anything else."""
        return _parsed(text)


@lru_cache(maxsize=4096)  # the same few hundred names stand in every record
def _parsed(text: str) -> DeltaKey:
    *stack, layer, family = text.split(".")
    if len(stack) > 1 or family not in FAMILIES:
        raise ValueError(f"{text!r} is not the name of a delta")
    return DeltaKey(stack[0] if stack else "", int(layer), family)


@dataclass(frozen=True)
class ModelRef:
    """A model as a person names it: ``owner/name``, ``owner/name@revision``, or a local folder."""

    id: str
    revision: str | None = None
    folder: Path | None = None
    subfolder: str = ""

    @classmethod
    def parse(cls, text: str) -> ModelRef:
        """Read what was typed; an existing folder wins over a Hub id of the same spelling.

        Raises AtlasError when it is neither.
        """
        path = Path(text).expanduser()
        if text and path.is_dir():  # no text would be the folder one is in
            return cls(id=str(path.resolve()), folder=path.resolve())
        identifier, _, revision = text.partition("@")
        if not is_hub_id(identifier):
            raise AtlasError(
                f"{text!r} is neither a folder here nor a Hub id.",
                "Give owner/name, owner/name@revision, or the path of a checkpoint folder.",
            )
        return cls(id=identifier, revision=revision or None)


def is_hub_id(text: str) -> bool:
    """Whether ``text`` can be a Hub model id: ``name`` or ``owner/name``, never a path that climbs."""
    return bool(_HUB_ID.fullmatch(text)) and ".." not in text and "--" not in text and not text.endswith(".git")


def author_of(model_id: str) -> str:
    """The account a Hub id belongs to; "" for old ids without an owner, "local" for a folder."""
    if model_id.startswith(("/", "\\")) or model_id[1:2] == ":":
        return "local"
    return model_id.partition("/")[0] if "/" in model_id else ""
