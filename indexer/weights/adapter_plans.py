"""What the config of an adapter and the headers of its files say: kind, modules, scales, and what cannot be read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from indexer.errors import Skipped
from indexer.records.record import WHOLE_MATRICES
from indexer.untrusted import load_json, shown
from indexer.weights.checkpoint import Checkpoint
from indexer.weights.name_pattern import NamePatterns


@dataclass(frozen=True)
class _Form:
    """How PEFT stores one kind of adapter.

    ``parts``: the names of a module's tensors. ``complete``: sets of parts, one of which must be there.
    ``marker``: every tensor of the kind has a part of its name that begins like this. ``ignored``: tensors that belong
    to embeddings, biases or convolutions, which are not read.
    """

    name: str
    parts: tuple[str, ...]
    complete: tuple[frozenset[str], ...]
    marker: str
    ignored: tuple[str, ...] = ()

    @property
    def pattern(self) -> re.Pattern[str]:
        """A tensor's name: module, part, perhaps the name the adapter had in memory, perhaps ``.weight``."""
        part = "|".join(self.parts)
        return re.compile(
            rf"(?:base_model\.model\.)?(?P<module>.+)\.(?P<part>{part})(?:\.(?!weight$|bias$)[^.]+)?(?:\.weight)?"
        )


def _form(name: str, marker: str, *complete: str, optional: str = "", ignored: str = "") -> _Form:
    sets = tuple(frozenset(one.split()) for one in complete)
    parts = dict.fromkeys(" ".join((*complete, optional)).split())
    return _Form(name, tuple(parts), sets, marker, tuple(ignored.split()))


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
# mlx-lm, tuner/lora.py and tuner/dora.py; the names that PEFT has for the same.
MLX = re.compile(r"(?P<module>.+)\.(?P<part>lora_a|lora_b|m)")
_MLX_PARTS = {"lora_a": "lora_A", "lora_b": "lora_B", "m": "lora_magnitude_vector"}
_MLX_KINDS = {"lora": "LoRA", "dora": "DoRA", "full": WHOLE_MATRICES}

# Files without adapter_config.json: diffusers (loaders/lora_conversion_utils.py, lora_base.py), older diffusers
# ("to_q_lora.down", "lora_linear_layer.up"), sd-scripts (networks/lora.py) and LyCORIS (lycoris/modules).
_LOOSE = re.compile(
    r"(?P<module>.+?)(?:\.(?P<part>lora_A|lora_B|lora_down|lora_up|lora_mid|lora_magnitude_vector|dora_scale|alpha|"
    r"hada_\w+|lokr_\w+)(?:\.default(?:_\d)?)?(?:\.weight)?|(?P<join>\.lora|_lora|\.lora_linear_layer)"
    r"\.(?P<side>down|up)\.weight)"
)
_LOOSE_PARTS = {
    "lora_down": "lora_A", "lora_up": "lora_B", "down": "lora_A", "up": "lora_B", "dora_scale": "lora_magnitude_vector",
}  # fmt: skip
_TEXT_ENCODERS = ("text_encoder", "lora_te")
# The key of the settings in the metadata of a file that diffusers saved.
_SETTINGS = "lora_adapter_metadata"

# What is refused, and what a person is told about it.
_PROMPTS = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "CPT",
            "CARTRIDGE")  # fmt: skip
_WITHOUT_WEIGHTS = {
    **dict.fromkeys(_PROMPTS, "it trains a prompt and changes no weights"),
    "LN_TUNING": "it trains layer norms and changes no block matrix",
    "TRAINABLE_TOKENS": "it trains rows of the embedding and changes no block matrix",
    "XLORA": "it mixes several adapters anew for every input, so there is not one change of the weights",
    "POLY": "it mixes several adapters by task, so there is not one change of the weights",
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
# Those that subtract a part of the base which follows from the base alone.
_FROM_BASE = {"pissa": "PiSSA", "olora": "OLoRA"}
_WHY_NOT = {
    "corda": "what it subtracts from the base depends on the data it was prepared with",
    "loftq": "it was trained on a quantised base",
    "lora_ga": "what it subtracts from the base depends on gradients",
}

SAVED_WHOLE = re.compile(r"\.modules_to_save(\.[^.]+)?(?=\.)")
_SHARED = re.compile(r"(?:base_model\.)?(?P<part>vera_[AB])(?:\.[^.]+)?")
MARKER = re.compile(r"\.(lora|hada|lokr|oft|boft|hra|ia3|vera|fourierft)_[A-Za-z0-9_]+(\.|$)|^(base_model\.)?vera_[AB]")

# Defaults of PEFT for settings that a file leaves out, by peft_type.
_ALPHA = {"LORA": ("lora_alpha", 8), "ADALORA": ("lora_alpha", 8), "LOHA": ("alpha", 8), "LOKR": ("alpha", 8)}
_PEFT_DEFAULT_RANK = 8


@dataclass(frozen=True)
class AdapterPlan:
    """Everything about an adapter that its config and the headers of its files say.

    ``kind``: LoRA, rsLoRA, DoRA, PiSSA, OLoRA, AdaLoRA, LoHa, LoKr, OFT, BOFT, HRA, IA3, VeRA, FourierFT, or "whole
    matrices". ``peft_type``: LORA for adapters of mlx-lm too. ``start``: "pissa" or "olora" if the initial factors were
    subtracted from the base. ``modules``: the names of each module's tensors, by path and part. ``shared``: tensors of
    all modules, by part. ``passed_over``: what is not read, in words.
    """

    kind: str
    peft_type: str
    config: Mapping[str, Any]
    modules: Mapping[str, Mapping[str, str]]
    scales: Mapping[str, float]
    start: str | None = None
    shared: Mapping[str, str] = field(default_factory=dict)
    is_mlx: bool = False
    passed_over: tuple[str, ...] = ()


def is_mlx(config: Mapping[str, Any]) -> bool:
    """Whether an adapter_config.json was written by mlx-lm."""
    return "peft_type" not in config and ("fine_tune_type" in config or "lora_parameters" in config)


def rank_of(form: _Form, parts: Mapping[str, torch.Tensor]) -> int:
    """The rank that alpha is divided by; 0 for LoKr's two whole matrices, which are not scaled."""
    names = {"LoRA": ("lora_A",), "LoHa": ("hada_w1_b",), "LoKr": ("lokr_w2_b", "lokr_w1_b")}[form.name]
    return next((parts[name].shape[0] for name in names if name in parts), 0)


def peft_plan(checkpoint: Checkpoint, config: Mapping[str, Any]) -> AdapterPlan:
    """The plan of an adapter with PEFT's adapter_config.json. Raises Skipped."""
    form, start = _checked_kind(config)
    peft_type = str(config["peft_type"])
    passed_over: dict[str, int] = {}
    modules: dict[str, dict[str, str]] = {}
    shared: dict[str, str] = {}
    left_out: set[str] = set()
    pattern, ignored = form.pattern, re.compile("|".join(rf"\.{name}(\.|$)" for name in form.ignored) or r"(?!)")
    for name in checkpoint.tensors:
        match = pattern.fullmatch(name)
        if match is not None:
            if modules.setdefault(match["module"], {}).setdefault(match["part"], name) != name:
                raise Skipped("malformed", f"the module {shown(match['module'])} has the same factor twice")
        elif (of_all := _SHARED.fullmatch(name)) is not None:
            shared[of_all["part"]] = name
        elif ignored.search(name):
            left_out.add(re.split(ignored, name.removeprefix("base_model.model."))[0])
        elif f".{form.marker}" in name and not name.endswith(".bias"):
            raise Skipped("adapter_unsupported", f"it holds an unknown kind of factor: {shown(name)}")
    parameters = _targeted_parameters(config)
    scale_of = _scales(config, peft_type)
    scales: dict[str, float] = {}
    for path, names in list(modules.items()):
        shapes = {part: checkpoint.tensors[name].shape for part, name in names.items()}
        why = ""
        if parameters and _is_of_parameters(path, parameters):
            why = "factors of bare parameters (target_parameters)"
        elif path in left_out or any(len(shape) > 2 for shape in shapes.values() if form.name in ("LoRA", "LoHa")):
            why = "factors of convolutions"
        if why:
            passed_over[why] = passed_over.get(why, 0) + 1
            del modules[path]
            continue
        _check_parts(form, path, shapes)
        if config.get("use_dora") and form.name == "LoRA" and "lora_magnitude_vector" not in shapes:
            raise Skipped("malformed", f"the module {shown(path)} has no lora_magnitude_vector, which use_dora needs")
        scales[path] = scale_of(path, shapes)
    notes = tuple(f"{what}: {count}" for what, count in passed_over.items())
    if not modules and not any(SAVED_WHOLE.search(name) for name in checkpoint.tensors):
        holds = f"only {' and '.join(passed_over)}" if passed_over else f"no {form.name} factors"
        raise Skipped("adapter_unsupported" if passed_over else "malformed", f"the adapter holds {holds}")
    kind = form.name
    if form.name == "LoRA":
        is_dora = config.get("use_dora") or any("lora_magnitude_vector" in names for names in modules.values())
        kind = "DoRA" if is_dora else _FROM_BASE[start] if start else "rsLoRA" if config.get("use_rslora") else "LoRA"
    return AdapterPlan(kind, peft_type, config, modules, scales, start, shared, passed_over=notes)


def mlx_plan(checkpoint: Checkpoint, config: Mapping[str, Any]) -> AdapterPlan:
    """mlx-lm: W + scale · (lora_a @ lora_b)ᵀ with lora_a (in, r) and lora_b (r, out).

    Versions before 0.15 wrote a scale that was still to be multiplied by alpha/r, and ``alpha`` beside it.
    """
    kind = config.get("fine_tune_type", "lora")
    if kind not in _MLX_KINDS:
        raise Skipped("adapter_unsupported", f"it is an adapter of another kind: fine_tune_type {shown(kind, 40)}")
    modules: dict[str, dict[str, str]] = {}
    scales: dict[str, float] = {}
    passed_over = 0
    if kind != "full":
        settings = config.get("lora_parameters")
        if not isinstance(settings, dict):
            raise Skipped("malformed", "lora_parameters in adapter_config.json is not an object")
        scale = checked_number(settings.get("scale", 20.0), "lora_parameters.scale")
        for name in checkpoint.tensors:
            if match := MLX.fullmatch(name):
                modules.setdefault(match["module"], {})[_MLX_PARTS[match["part"]]] = name
        for path, names in list(modules.items()):
            shapes = {part: checkpoint.tensors[name].shape for part, name in names.items()}
            if any(len(shape) > 2 for shape in shapes.values()):  # experts (LoRASwitchLinear)
                passed_over += 1
                del modules[path]
                continue
            turned = {part: shape[::-1] for part, shape in shapes.items()}
            _check_parts(FORMS["LORA"], path, turned)
            scales[path] = scale
            if "alpha" in settings:
                scales[path] *= checked_number(settings["alpha"], "lora_parameters.alpha") / turned["lora_A"][0]
        if not modules:
            holds = "only factors of fused experts" if passed_over else "no LoRA factors"
            raise Skipped("adapter_unsupported" if passed_over else "malformed", f"the adapter holds {holds}")
    notes = (f"factors of fused experts: {passed_over}",) if passed_over else ()
    return AdapterPlan(_MLX_KINDS[kind], "LORA", config, modules, scales, is_mlx=True, passed_over=notes)


def loose_plan(checkpoint: Checkpoint) -> AdapterPlan:
    """The plan of a file that comes without adapter_config.json.

    The scale is alpha/r with the alpha of each module, or that of the metadata, else 1 (diffusers takes alpha for r).
    """
    modules: dict[str, dict[str, str]] = {}
    for name in checkpoint.tensors:
        match = _LOOSE.fullmatch(name)
        if match is None:
            continue
        module, part = match["module"].replace(".processor.", "."), match["part"] or match["side"]
        if match["join"] == "_lora" and module.endswith(".to_out"):
            module += ".0"
        if modules.setdefault(module, {}).setdefault(_LOOSE_PARTS.get(part, part), name) != name:
            raise Skipped("malformed", f"the module {shown(module)} has the same factor twice")
    counts = {kind: sum(_parts_of(form, names) for names in modules.values()) for kind, form in FORMS.items()
              if kind in ("LORA", "LOHA", "LOKR")}  # fmt: skip
    peft_type = max(counts, key=lambda kind: counts[kind])
    if not counts[peft_type]:
        raise Skipped("malformed", "there is no adapter_config.json, and no tensor is named like those of a LoRA")
    form = FORMS[peft_type]
    settings = _settings(checkpoint)
    passed_over: dict[str, int] = {}
    scales: dict[str, float] = {}
    for path, names in list(modules.items()):
        shapes = {part: checkpoint.tensors[name].shape for part, name in names.items() if part != "alpha"}
        why = ""
        if path.startswith(_TEXT_ENCODERS):
            why = "factors of text encoders"
        elif (
            any(len(shape) > 2 for shape in shapes.values()) or set(form.ignored) & set(shapes) or "lora_mid" in shapes
        ):
            why = "factors of convolutions"
        elif not _parts_of(form, names):
            why = "parameters of another kind of adapter"
        if why:
            passed_over[why] = passed_over.get(why, 0) + 1
            del modules[path]
            continue
        _check_parts(form, path, shapes)
        magnitudes = shapes.get("lora_magnitude_vector", ())
        if len(magnitudes) == 2 and magnitudes[0] == 1 < magnitudes[1]:
            raise Skipped("adapter_unsupported", f"it is a DoRA with magnitudes of columns: {shown(path)}")
        if "alpha" in names and math.prod(checkpoint.tensors[names["alpha"]].shape) != 1:
            raise Skipped("malformed", f"alpha of {shown(path)} is not a number")
        prefix, _, rest = path.partition(".")
        own = settings.get(prefix) if peft_type == "LORA" else None
        scales[path] = _scales(own, "LORA")(rest, shapes) if own else 1.0
    if not modules:
        raise Skipped("adapter_unsupported", f"the adapter holds only {' and '.join(passed_over)}")
    is_dora = any("lora_magnitude_vector" in names for names in modules.values())
    kind = "DoRA" if is_dora else form.name
    notes = tuple(f"{what}: {count}" for what, count in passed_over.items())
    return AdapterPlan(kind, peft_type, {}, modules, scales, passed_over=notes)


def _parts_of(form: _Form, names: Collection[str]) -> bool:
    return any(one <= set(names) for one in form.complete)


def _settings(checkpoint: Checkpoint) -> dict[str, dict[str, Any]]:
    """The settings in a file's metadata, by component: {"transformer": {"r": 16, "lora_alpha": 16, …}}."""
    try:
        found = load_json(checkpoint.metadata.get(_SETTINGS, "{}"))
    except ValueError:
        return {}
    by_component: dict[str, dict[str, Any]] = {}
    for name, value in found.items() if isinstance(found, dict) else ():
        component, dot, key = name.partition(".")
        if dot:
            by_component.setdefault(component, {})[key] = value
    return {name: one for name, one in by_component.items() if "lora_alpha" in one and "r" in one}


def _checked_kind(config: Mapping[str, Any]) -> tuple[_Form, str | None]:
    """The form of an adapter, and "pissa" or "olora" if it starts so. Raises Skipped for what cannot be read."""
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
    known = start.lower() if isinstance(start, str) else start
    if isinstance(known, str) and known in _FROM_BASE:
        return FORMS[kind], known
    if not any(known is one or (isinstance(known, str) and known == one) for one in _INITIALISATIONS):
        why = "its initialisation changes the base's weights, or is unknown"
        if isinstance(known, str) and known.startswith("pissa_niter_"):
            why = "what it subtracted from the base came from a random approximation, which cannot be repeated"
        elif isinstance(known, str) and known in _WHY_NOT:
            why = _WHY_NOT[known]
        raise Skipped("adapter_unsupported", f"{why}: init_lora_weights {shown(start, 40)}")
    return FORMS[kind], None


def _targeted_parameters(config: Mapping[str, Any]) -> list[str]:
    """The modules whose bare parameters have factors, from ``target_parameters`` ("mlp.experts.gate_up_proj")."""
    found = config.get("target_parameters") or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found) or len(found) > 10_000:
        raise Skipped("malformed", "target_parameters in adapter_config.json is not a list of names")
    return list(dict.fromkeys(one.rpartition(".")[0] for one in found))


def _is_of_parameters(path: str, parameters: Collection[str]) -> bool:
    # Of several parameters of one module each is wrapped in the next, as its base_layer.
    while path.endswith(".base_layer"):
        path = path.removesuffix(".base_layer")
    return any(path == one or path.endswith(f".{one}") for one in parameters)


def _check_parts(form: _Form, path: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise Skipped("malformed") unless a module's tensors are those of its form and make a matrix."""
    required = [one for one in form.complete if one <= set(shapes)]
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
    if magnitudes is not None and math.prod(magnitudes) != shapes["lora_B"][0]:
        raise _not_a_pair(path, shapes)


def _not_a_pair(path: str, shapes: Mapping[str, tuple[int, ...]]) -> Skipped:
    found = ", ".join(f"{part} is {shape[:9]}" for part, shape in sorted(shapes.items()))
    return Skipped("malformed", f"the factors of {shown(path)} are not a pair of matrices: {found}")


def _scales(config: Mapping[str, Any], peft_type: str) -> Callable[[str, Mapping[str, tuple[int, ...]]], float]:
    """A function of a module's path and shapes: the factor of its change, as PEFT computes it.

    Of LoRA's kin the ranks in the file must agree with the config.
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
        # Its rank_pattern says which of the first ranks are left; the scale stays that of the first.
        return lambda path, shapes: (alpha if alpha > 0 else shapes["lora_A"][0]) / (rank + 1e-5)
    for name in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config.get(name) or {}, dict):
            raise Skipped("malformed", f"{name} in adapter_config.json is not an object")
    ranks = NamePatterns(config.get("rank_pattern") or {}, "rank_pattern")
    alphas = NamePatterns(config.get("alpha_pattern") or {}, "alpha_pattern")

    def of(path: str, shapes: Mapping[str, tuple[int, ...]]) -> float:
        stated, own = ranks.find(path), alphas.find(path)
        stated = rank if stated is None else _checked_rank(stated, "a value of rank_pattern")
        own = alpha if own is None else checked_number(own, "a value of alpha_pattern")
        # Of LoKr only a matrix that is stored as a product shows the rank.
        shown_by = {"LORA": "lora_A", "LOHA": "hada_w1_b"}.get(peft_type) or (
            "lokr_w2_b" if "lokr_w2_b" in shapes else "lokr_w1_b"
        )
        found = shapes[shown_by][0] if shown_by in shapes else stated
        if stated != found:
            raise Skipped("malformed", f"the factors of {shown(path)} have rank {found}, the config says {stated}")
        return own / (math.sqrt(found) if is_stabilised and peft_type == "LORA" else found)

    return of


def _checked_rank(value: object, what: str) -> int:
    if type(value) is not int or not 0 < value < 1 << 31:
        raise Skipped("malformed", f"{what} in adapter_config.json is not a rank: {shown(value, 40)}")
    return value


def checked_number(value: object, what: str) -> float:
    """A number of a config or a file. Raises Skipped("malformed")."""
    if type(value) not in (int, float) or not abs(value) < 1e30:  # type: ignore[arg-type]
        raise Skipped("malformed", f"{what} in adapter_config.json is not a number: {shown(value, 40)}")
    return float(value)  # type: ignore[arg-type]
