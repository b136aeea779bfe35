"""Names that everything shares: of models, deltas, families and options."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

SORTS = ("downloads", "created", "likes")
DISCOVERIES = ("tags", "names", "weights")
EXECUTORS = ("local", "dask")
READS = ("sample", "full")
# ``copy_evidence`` of an adapter whose change is zero, as before training (every B is), and of one whose change is so
# small that float32 may lose it.
UNTRAINED, UNMEASURABLE = "untrained", "unmeasurable"

# How a model repeats another: an equal file, equal weights in other files, the same weights in another dtype, or a
# change whose distance from the other's is at most NEAR of the larger one.
DuplicateKind = Literal["same file", "same weights", "same conversion", "rounded", "near"]
NEAR = 0.1

# Columns of what the files beside the weights say of the training, with their names in ``Record.training``.
TRAINING_COLUMNS = {
    "training_tool": "tool", "run": "run", "step": "step", "epoch": "epoch", "train_loss": "train_loss",
    "eval_loss": "eval_loss", "learning_rate": "learning_rate", "stated_base": "base",
}  # fmt: skip

# Connections to one host at a time: the Hub's edge is reported to throttle more.
CONNECTIONS = 8
RELATIONS = ("finetune", "adapter", "merge", "quantized")
# Those that a crawl lists unless others are asked for: the weights of a quantised copy cannot be compared.
DEFAULT_RELATIONS = ("finetune", "adapter", "merge")

# Bounds of a crawl unless others are given: models asked for their children, and steps from the base. Without a token
# the Hub answers 500 questions in five minutes.
MOST_QUESTIONS = 500
MOST_STEPS = 5

# The order of families wherever they are listed or concatenated; docs/guide/families.md says what they are.
FAMILIES = (
    "query_a",
    "query",
    "key_value_a",
    "key",
    "value",
    "output_gate",
    "output",
    "ssm_gate",
    "ssm_input",
    "ssm_b",
    "ssm_c",
    "ssm_output",
    "conv_b",
    "conv_c",
    "conv_input",
    "conv_output",
    "cross_query",
    "cross_key",
    "cross_value",
    "cross_output",
    "gate",
    "feedforward1",
    "feedforward2",
    "expert_gate",
    "expert_feedforward1",
    "expert_feedforward2",
)

# The order of stacks: of text and speech models; of a U-Net; of transformers with streams for images and for texts; of
# models with towers side by side; of robot policies; of images in stages.
STACKS = (
    "", "encoder", "decoder", "down", "mid", "up", "image", "text", "single", "vision", "multimodal", "expert",
    "stage1", "stage2", "stage3", "stage4",
)  # fmt: skip

# What is measured of each layer of a model: the columns of depth profiles, on disk, in the database and in answers.
# Of each there may be an error; NULL if it was not asked for or says nothing.
MEASURES = (
    "tolerance",
    "tolerance_own",
    "readable",
    "recovered",
    "recovered_seed",
    "closer",
    "closer_ratio",
    "verified",
    "reach",
    "own",
    "start_share",
    "cka",
    "drift",
    "image_error",
)

# Two spellings that are less similar than this are different names.
_LEAST_LIKENESS = 0.6


def family_key(stack: str, family: str) -> str:
    """``query`` for a model of one stack (""), ``encoder.query`` for one of several."""
    return f"{stack}.{family}" if stack else family


def family_order(stack: str, family: str) -> tuple[int, int]:
    """Sorts by STACKS, then by FAMILIES; names that this version does not know come last."""
    return (
        STACKS.index(stack) if stack in STACKS else len(STACKS),
        FAMILIES.index(family) if family in FAMILIES else len(FAMILIES),
    )


@dataclass(frozen=True)
class DeltaKey:
    """Names one weight change: ``stack`` is "" in a model of one stack, else one of STACKS."""

    stack: str
    layer: int
    family: str

    @property
    def family_key(self) -> str:
        """See :func:`family_key`."""
        return family_key(self.stack, self.family)

    @property
    def layer_key(self) -> str:
        """The layer, with its stack where there are several."""
        return f"{self.stack}.{self.layer}" if self.stack else str(self.layer)

    @property
    def sort_key(self) -> tuple[int, int, int]:
        """In the order of STACKS, then by depth, then in the order of FAMILIES."""
        return (STACKS.index(self.stack), self.layer, FAMILIES.index(self.family))

    def __str__(self) -> str:
        return f"{self.stack}.{self.layer}.{self.family}" if self.stack else f"{self.layer}.{self.family}"

    @staticmethod
    @lru_cache(maxsize=4096)  # every record has the same few hundred names
    def parse(text: str) -> DeltaKey:
        """The inverse of ``str``. Raises ValueError on anything else."""
        *stack, layer, family = text.split(".")
        if len(stack) > 1 or family not in FAMILIES or (stack and stack[0] not in STACKS):
            raise ValueError(f"{text!r} is not the name of a delta")
        return DeltaKey(stack[0] if stack else "", int(layer), family)


def voters(authors: Sequence[str], models: Sequence[str]) -> list[str]:
    """Whose vote each model is part of: its author's or, where all are by one author, its own.

    Statistics take voters as independent. Runs of one author are less so than authors are, but one's own models have
    nothing else. ``models`` holds no two checkpoints of one run (``is_earlier_checkpoint``).
    """
    return list(authors) if len(set(authors)) != 1 else list(models)


def with_dots(name: str) -> str:
    """A name with ``.`` for ``___``, as folders of ModelScope spell it: ``Qwen/Qwen2___5-7B``."""
    return name.replace("___", ".")


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Up to three of ``names`` that are spelled like ``name``, nearest first.

    The larger similarity counts, of the two ids or of their parts after the owner: people mistype either.
    """
    near = []
    for other in names:
        if other != name:
            first, second = name.lower(), other.lower()
            pairs = ((first, second), (first.rpartition("/")[2], second.rpartition("/")[2]))
            likeness = max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
            if likeness >= _LEAST_LIKENESS:
                near.append((-likeness, other))
    return [other for _, other in sorted(near)[:3]]
