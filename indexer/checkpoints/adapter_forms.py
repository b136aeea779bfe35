"""The kinds of adapters by PEFT's names: which are read, the tensors of a module, and the factor of its change."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from indexer.checkpoints.name_pattern import NamePatterns
from indexer.errors import Skipped
from indexer.untrusted import shown

Shapes = Mapping[str, tuple[int, ...]]

# Defaults of PEFT for settings that a file leaves out, by peft_type.
_ALPHA = {"LORA": ("lora_alpha", 8), "ADALORA": ("lora_alpha", 8), "LOHA": ("alpha", 8), "LOKR": ("alpha", 8)}
_PEFT_DEFAULT_RANK = 8

# The kinds that are refused, and the reason in the words of the message.
_PROMPTS = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "CPT",
            "CARTRIDGE")  # fmt: skip
_WITHOUT_WEIGHTS = {
    **dict.fromkeys(_PROMPTS, "it trains a prompt and changes no weights"),
    "LN_TUNING": "it trains layer norms and changes no block matrix",
    "TRAINABLE_TOKENS": "it trains rows of the embedding and changes no block matrix",
    "XLORA": "it mixes several adapters by input, so the weights have no single change",
    "POLY": "it mixes several adapters by task, so the weights have no single change",
}
# Settings in adapter_config.json of adapters that are not W + s·B@A, and their usual names.
_UNSUPPORTED = {
    "layer_replication": "layer replication",
    "use_qalora": "QA-LoRA",
    "use_bdlora": "block-diagonal LoRA",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "arrow_config": "Arrow routing",
    "alora_invocation_tokens": "activated LoRA",
}
# Initialisations that do not change the base's weights (peft 0.21: tuners/lora/layer.py, update_layer).
_INITIALISATIONS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
# Initialisations that subtract a part of the base, which can be computed from the base alone.
FROM_BASE = {"pissa": "PiSSA", "olora": "OLoRA"}
_WHY_NOT = {
    "corda": "what it subtracts from the base depends on the data it was prepared with",
    "loftq": "it was trained on a quantised base",
    "lora_ga": "what it subtracts from the base depends on gradients",
}


@dataclass(frozen=True)
class Form:
    """How PEFT stores one kind of adapter.

    ``parts``: the names of a module's tensors. ``complete``: sets of parts, one of which must be present. ``marker``:
    the beginning of a part of the name of every tensor of this kind. ``ignored``: tensors of embeddings, biases or
    convolutions, which are not read.
    """

    name: str
    parts: tuple[str, ...]
    complete: tuple[frozenset[str], ...]
    marker: str
    ignored: tuple[str, ...] = ()

    @property
    def pattern(self) -> re.Pattern[str]:
        """A tensor's name: module, part, perhaps the adapter's name in memory, perhaps ``.weight``."""
        part = "|".join(self.parts)
        return re.compile(
            rf"(?:base_model\.model\.)?(?P<module>.+)\.(?P<part>{part})(?:\.(?!weight$|bias$)[^.]+)?(?:\.weight)?"
        )


def _form(name: str, marker: str, *complete: str, optional: str = "", ignored: str = "") -> Form:
    sets = tuple(frozenset(names.split()) for names in complete)
    parts = dict.fromkeys(" ".join((*complete, optional)).split())
    return Form(name, tuple(parts), sets, marker, tuple(ignored.split()))


# By peft_type. peft 0.21, tuners/*/layer.py: adapter_layer_names.
FORMS = {
    "LORA": _form(
        "LoRA", "lora_", "lora_A lora_B", optional="lora_magnitude_vector", ignored="lora_embedding_A lora_embedding_B"
    ),
    "ADALORA": _form("AdaLoRA", "lora_", "lora_A lora_B lora_E", ignored="lora_embedding_A lora_embedding_B"),
    "LOHA": _form("LoHa", "hada_", "hada_w1_a hada_w1_b hada_w2_a hada_w2_b", ignored="hada_t1 hada_t2"),
    "LOKR": _form(
        "LoKr", "lokr_", "lokr_w1 lokr_w2", "lokr_w1 lokr_w2_a lokr_w2_b", "lokr_w1_a lokr_w1_b lokr_w2",
        "lokr_w1_a lokr_w1_b lokr_w2_a lokr_w2_b", ignored="lokr_t2",
    ),
    "OFT": _form("OFT", "oft_", "oft_R", ignored="oft_embedding_R"),
    "BOFT": _form("BOFT", "boft_", "boft_R boft_s"),
    "HRA": _form("HRA", "hra_", "hra_u"),
    "IA3": _form("IA3", "ia3_", "ia3_l"),
    "VERA": _form("VeRA", "vera_", "vera_lambda_b vera_lambda_d", ignored="vera_A vera_B"),
    "FOURIERFT": _form("FourierFT", "fourierft_", "fourierft_spectrum"),
}  # fmt: skip

# Tensors that an adapter saves whole, and the names of the parts of adapters.
SAVED_WHOLE = re.compile(r"\.modules_to_save(\.[^.]+)?(?=\.)")
MARKER = re.compile(r"\.(lora|hada|lokr|oft|boft|hra|ia3|vera|fourierft)_[A-Za-z0-9_]+(\.|$)|^(base_model\.)?vera_[AB]")


def checked_form(config: Mapping[str, Any]) -> tuple[Form, str | None]:
    """The form of an adapter, and "pissa" or "olora" if it starts so. Raises Skipped if it cannot be read."""
    kind = config.get("peft_type")
    if kind is None:
        raise Skipped("malformed", "adapter_config.json does not say what kind of adapter it is (peft_type)")
    if not isinstance(kind, str) or kind not in FORMS:
        why = _WITHOUT_WEIGHTS.get(kind, "it is an adapter of another kind") if isinstance(kind, str) else "unknown"
        raise Skipped("adapter_unsupported", f"{why}: peft_type {shown(kind, 40)}")
    if kind != "LORA":
        return FORMS[kind], None
    for setting, name in _UNSUPPORTED.items():
        if config.get(setting):
            raise Skipped("adapter_unsupported", f"it uses {name} ({setting})")
    start = config.get("init_lora_weights", True)
    initialisation = start.lower() if isinstance(start, str) else start
    if isinstance(initialisation, str) and initialisation in FROM_BASE:
        return FORMS[kind], initialisation
    if not any(
        initialisation is initial_value or (isinstance(initialisation, str) and initialisation == initial_value)
        for initial_value in _INITIALISATIONS
    ):
        why = "its initialisation changes the base's weights, or is unknown"
        if isinstance(initialisation, str) and initialisation.startswith("pissa_niter_"):
            why = "what it subtracted from the base came from a random approximation, which cannot be repeated"
        elif isinstance(initialisation, str) and initialisation in _WHY_NOT:
            why = _WHY_NOT[initialisation]
        raise Skipped("adapter_unsupported", f"{why}: init_lora_weights {shown(start, 40)}")
    return FORMS[kind], None


def rank_of(form: Form, parts: Mapping[str, torch.Tensor]) -> int:
    """The rank by which alpha is divided; 0 for LoKr's two whole matrices, which are not scaled."""
    names = {"LoRA": ("lora_A",), "LoHa": ("hada_w1_b",), "LoKr": ("lokr_w2_b", "lokr_w1_b")}[form.name]
    return next((parts[name].shape[0] for name in names if name in parts), 0)


def is_complete(form: Form, names: Collection[str]) -> bool:
    """Whether a module with these parts is an adapter of this form."""
    return any(parts <= set(names) for parts in form.complete)


def check_parts(form: Form, path: str, shapes: Shapes) -> None:
    """Raise Skipped("malformed") unless a module has the tensors of its form, and their shapes make a matrix."""
    required = [parts for parts in form.complete if parts <= set(shapes)]
    if not required:
        has = "/".join(sorted(shapes))
        raise Skipped("malformed", f"the module {shown(path)} has only {has}, not all of {'/'.join(form.parts)}")
    if any(0 in shape or len(shape) > 4 for shape in shapes.values()):
        raise _not_a_pair(path, shapes)

    def sizes(part: str, dimensions: int = 2) -> tuple[int, ...]:
        if len(shapes[part]) != dimensions:
            raise _not_a_pair(path, shapes)
        return shapes[part]

    pairs = {
        "LoRA": [("lora_B", "lora_A")],
        "AdaLoRA": [("lora_B", "lora_A")],
        "LoHa": [("hada_w1_a", "hada_w1_b"), ("hada_w2_a", "hada_w2_b")],
        "LoKr": [("lokr_w1_a", "lokr_w1_b"), ("lokr_w2_a", "lokr_w2_b")],
    }.get(form.name, [])
    for left, right in pairs:
        if left in shapes and right in shapes and sizes(left)[1] != sizes(right)[0]:
            raise _not_a_pair(path, shapes)
    if form.name == "AdaLoRA" and shapes["lora_E"] != (shapes["lora_A"][0], 1):
        raise _not_a_pair(path, shapes)
    magnitudes = shapes.get("lora_magnitude_vector")
    if magnitudes is not None and "lora_B" in shapes and math.prod(magnitudes) != shapes["lora_B"][0]:
        raise _not_a_pair(path, shapes)


def _not_a_pair(path: str, shapes: Shapes) -> Skipped:
    described = ", ".join(f"{part} is {shape[:9]}" for part, shape in sorted(shapes.items()))
    return Skipped("malformed", f"the factors of {shown(path)} are not a pair of matrices: {described}")


def scale_function(config: Mapping[str, Any], peft_type: str) -> Callable[[str, Shapes], float]:
    """A function of a module's path and shapes that returns the factor of its change, as PEFT computes it.

    For LoRA, LoHa and LoKr the ranks in the file must agree with the config.
    """
    if peft_type not in _ALPHA:
        return lambda path, shapes: 1.0
    key, default = _ALPHA[peft_type]
    alpha = checked_number(config.get(key, default), key)
    rank_key = "init_r" if peft_type == "ADALORA" else "r"
    rank = _checked_rank(config.get(rank_key, 12 if peft_type == "ADALORA" else _PEFT_DEFAULT_RANK), rank_key)
    is_stabilised = config.get("use_rslora", False)
    if not isinstance(is_stabilised, bool | None):
        raise Skipped("malformed", "use_rslora is neither true nor false")
    if peft_type == "ADALORA":
        # Its rank_pattern lists the remaining ranks, but the scale is that of the initial rank.
        return lambda path, shapes: (alpha if alpha > 0 else shapes["lora_A"][0]) / (rank + 1e-5)
    for name in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config.get(name) or {}, dict):
            raise Skipped("malformed", f"{name} in adapter_config.json is not an object")
    ranks = NamePatterns(config.get("rank_pattern") or {}, "rank_pattern")
    alphas = NamePatterns(config.get("alpha_pattern") or {}, "alpha_pattern")

    def scale(path: str, shapes: Shapes) -> float:
        stated_rank, module_alpha = ranks.find(path), alphas.find(path)
        stated_rank = rank if stated_rank is None else _checked_rank(stated_rank, "a value of rank_pattern")
        module_alpha = alpha if module_alpha is None else checked_number(module_alpha, "a value of alpha_pattern")
        # In LoKr only a matrix that is stored as a product shows the rank.
        part = {"LORA": "lora_A", "LOHA": "hada_w1_b"}.get(peft_type) or (
            "lokr_w2_b" if "lokr_w2_b" in shapes else "lokr_w1_b"
        )
        stored_rank = shapes[part][0] if part in shapes else stated_rank
        if stated_rank != stored_rank:
            raise Skipped(
                "malformed", f"the factors of {shown(path)} have rank {stored_rank}, the config says {stated_rank}"
            )
        return module_alpha / (math.sqrt(stored_rank) if is_stabilised and peft_type == "LORA" else stored_rank)

    return scale


def _checked_rank(value: object, setting: str) -> int:
    if type(value) is not int or not 0 < value < 1 << 31:
        raise Skipped("malformed", f"{setting} in adapter_config.json is not a rank: {shown(value, 40)}")
    return value


def checked_number(value: object, setting: str) -> float:
    """A number of a config or a file. Raises Skipped("malformed")."""
    if type(value) not in (int, float) or not abs(value) < 1e30:  # type: ignore[arg-type]
        raise Skipped("malformed", f"{setting} in adapter_config.json is not a number: {shown(value, 40)}")
    return float(value)  # type: ignore[arg-type]
