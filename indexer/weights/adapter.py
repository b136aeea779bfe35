"""LoRA adapters as PEFT saves them: pairs of factors and the scale they are applied with.

δW = s · B @ A with A (r, in) and B (out, r), whatever orientation the base stores its weight in; s = α/r, or
α/√r for rank-stabilised LoRA (Kalajdzievski, 2023, arXiv 2312.03732), where r and α may differ by module.
Adapters of another form, and adapters whose initialisation changed the base's weights, are skipped with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from indexer.errors import Skipped
from indexer.untrusted import shown
from indexer.weights.checkpoint import Checkpoint
from indexer.weights.name_pattern import NamePatterns

# Settings in adapter_config.json of adapters that are not W + s·B@A, and their usual names.
_UNSUPPORTED = {
    "use_dora": "DoRA",
    "layer_replication": "layer replication",
    "target_parameters": "factors for bare parameters",
    "use_qalora": "QA-LoRA",
    "use_bdlora": "block-diagonal LoRA",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "arrow_config": "Arrow routing",
    "alora_invocation_tokens": "activated LoRA",
}
# Initialisations that do not change the base's weights (peft 0.21: tuners/lora/layer.py, update_layer).
# The others (pissa, olora, corda, loftq, lora_ga) subtract something from the base, or quantise it.
_INITIALISATIONS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
_PEFT_DEFAULT_RANK = 8
_PEFT_DEFAULT_ALPHA = 8

_FACTOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.(?P<adapter>[^.]+))?\.weight")
_EMBEDDING = re.compile(r"\.lora_embedding_[AB](\.|$)")
_BIAS = re.compile(r"\.lora_B(\.[^.]+)?\.bias$")
_OTHER_FACTOR = re.compile(r"\.lora_[A-Za-z_]+(\.|$)")
_SAVED_WHOLE = re.compile(r"\.modules_to_save(\.[^.]+)?(?=\.)")


@dataclass(frozen=True)
class LoraModule:
    """The factors of one module: ``a`` (r, in) and ``b`` (out, r) as stored, δW = scale · b @ a.

    ``path`` is the module's name in the base model.
    """

    path: str
    a: torch.Tensor
    b: torch.Tensor
    scale: float


@dataclass(frozen=True)
class _Pair:
    """The names of a module's two factors, whose shapes and config were checked."""

    path: str
    a: str
    b: str
    scale: float


def read_lora(checkpoint: Checkpoint) -> Iterator[LoraModule]:
    """Stream the modules of a LoRA adapter in file order.

    Everything is checked before the first factor is read. A factor is held until its partner arrives, which is the next
    tensor in files written by PEFT.

    Raises Skipped: ``adapter_unsupported``, ``malformed``, ``unreadable_dtype``, ``corrupt_file``; or Failed.
    """
    pairs = _pairs(checkpoint)
    pair_of = {name: pair for pair in pairs for name in (pair.a, pair.b)}
    waiting: dict[str, torch.Tensor] = {}
    for name, tensor in checkpoint.stream(pair_of):
        pair = pair_of[name]
        partner = waiting.pop(pair.b if name == pair.a else pair.a, None)
        if partner is None:
            waiting[name] = tensor
        elif name == pair.a:
            yield LoraModule(pair.path, tensor, partner, pair.scale)
        else:
            yield LoraModule(pair.path, partner, tensor, pair.scale)


def lora_paths(checkpoint: Checkpoint) -> list[str]:
    """The modules that ``read_lora`` will yield, from the index alone. Raises Skipped like it."""
    return [pair.path for pair in _pairs(checkpoint)]


def factor_names(checkpoint: Checkpoint) -> list[str]:
    """The tensors that ``read_lora`` reads, from the index alone. Raises Skipped like it."""
    return [name for pair in _pairs(checkpoint) for name in (pair.a, pair.b)]


def whole_weights(checkpoint: Checkpoint) -> list[str]:
    """Tensors of an adapter that replace one of the base's (``modules_to_save``, resized embeddings, biases).

    Their names are those in the base model. ``read_lora`` does not yield them.
    """
    found = []
    for name in checkpoint.tensors:
        if not _OTHER_FACTOR.search(name):
            found.append(_SAVED_WHOLE.sub("", name.removeprefix("base_model.model.")))
    return found


# The pairs are needed three times (paths, names, reading), and an untrusted header may make them slow to compute.
_pairs_of: WeakKeyDictionary[Checkpoint, tuple[_Pair, ...]] = WeakKeyDictionary()


def _pairs(checkpoint: Checkpoint) -> tuple[_Pair, ...]:
    """All pairs of an adapter, computed once. Raises Skipped."""
    if checkpoint not in _pairs_of:
        _pairs_of[checkpoint] = tuple(_checked_pairs(checkpoint))
    return _pairs_of[checkpoint]


def _checked_pairs(checkpoint: Checkpoint) -> list[_Pair]:
    config = checkpoint.adapter_config or {}
    _refuse_unsupported(config)
    scales = _Scales(config)
    # By module, the names of its factors: {"A": name, "B": name}.
    factors: dict[str, dict[str, str]] = {}
    for name in checkpoint.tensors:
        match = _FACTOR.fullmatch(name)
        if match is not None:
            if factors.setdefault(match["module"], {}).setdefault(match["side"], name) != name:
                raise Skipped("malformed", f"the module {shown(match['module'])} has the same factor twice")
        elif ".lora_magnitude_vector" in name:
            raise Skipped("adapter_unsupported", "it holds the magnitudes of DoRA (use_dora)")
        elif _OTHER_FACTOR.search(name) and not _EMBEDDING.search(name) and not _BIAS.search(name):
            raise Skipped("adapter_unsupported", f"it holds an unknown kind of factor: {shown(name)}")
    pairs = []
    for path, names in factors.items():
        if set(names) != {"A", "B"}:
            raise Skipped("malformed", f"the module {shown(path)} has only its factor lora_{'/'.join(names)}")
        a, b = checkpoint.tensors[names["A"]].shape, checkpoint.tensors[names["B"]].shape
        if len(a) != 2 or len(b) != 2 or a[0] != b[1] or 0 in (*a, *b):
            raise Skipped(
                "malformed",
                f"the factors of {shown(path)} are not a pair of matrices: A is {a[:9]}, B is {b[:9]}",
            )
        pairs.append(_Pair(path, names["A"], names["B"], scales.of(path, a[0])))
    if not pairs:
        raise Skipped("malformed", "the adapter holds no LoRA factors")
    return pairs


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind is None:
        raise Skipped("malformed", "adapter_config.json does not say what kind of adapter it is (peft_type)")
    if kind != "LORA":
        raise Skipped("adapter_unsupported", f"it is an adapter of another kind: peft_type {shown(kind, 40)}")
    for setting, name in _UNSUPPORTED.items():
        if config.get(setting):
            raise Skipped("adapter_unsupported", f"it uses {name} ({setting})")
    start = config.get("init_lora_weights", True)
    known = start.lower() if isinstance(start, str) else start
    if not any(known is one or (isinstance(known, str) and known == one) for one in _INITIALISATIONS):
        raise Skipped(
            "adapter_unsupported",
            f"its initialisation changes the base's weights, or is unknown: init_lora_weights {shown(start, 40)}",
        )


class _Scales:
    """The scale of each module, from adapter_config.json as PEFT reads it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._rank = _checked_rank(config.get("r", _PEFT_DEFAULT_RANK), "r")
        self._alpha = _checked_alpha(config.get("lora_alpha", _PEFT_DEFAULT_ALPHA), "lora_alpha")
        for name in ("rank_pattern", "alpha_pattern"):
            if not isinstance(config.get(name) or {}, dict):
                raise Skipped("malformed", f"{name} in adapter_config.json is not an object")
        self._ranks = NamePatterns(config.get("rank_pattern") or {}, "rank_pattern")
        self._alphas = NamePatterns(config.get("alpha_pattern") or {}, "alpha_pattern")
        self._is_stabilised = config.get("use_rslora", False)
        if not isinstance(self._is_stabilised, bool | None):
            raise Skipped("malformed", "use_rslora is neither true nor false")

    def of(self, module: str, rank: int) -> float:
        """The scale s of a module whose A has ``rank`` rows, which must agree with the config."""
        stated, alpha = self._ranks.find(module), self._alphas.find(module)
        stated = self._rank if stated is None else _checked_rank(stated, "a value of rank_pattern")
        if stated != rank:
            raise Skipped("malformed", f"the factors of {shown(module)} have rank {rank}, the config says {stated}")
        alpha = self._alpha if alpha is None else _checked_alpha(alpha, "a value of alpha_pattern")
        return alpha / (math.sqrt(rank) if self._is_stabilised else rank)


def _checked_rank(value: object, what: str) -> int:
    if type(value) is not int or not 0 < value < 1 << 31:
        raise Skipped("malformed", f"{what} in adapter_config.json is not a rank: {shown(value, 40)}")
    return value


def _checked_alpha(value: object, what: str) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e30:  # type: ignore[arg-type]
        raise Skipped("malformed", f"{what} in adapter_config.json is not a number: {shown(value, 40)}")
    return float(value)  # type: ignore[arg-type]
