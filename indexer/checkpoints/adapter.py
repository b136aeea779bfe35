"""Adapters in files: their kind, the tensors of each module, and the factor of its change.

The readable adapters are those of PEFT (``adapter_model.safetensors``) that change weights, those of mlx-lm
(``adapters.safetensors``), and those of image and video models, which diffusers, kohya's sd-scripts or LyCORIS saved
and only their names identify. ``indexer.deltas.adapter_deltas`` computes δW from their tensors. docs/guide/adapters.md
has the formulas and their sources. Adapters that change no weights, or whose change cannot be computed from their files
and the base, are skipped with the reason.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from indexer.checkpoints.adapter_forms import (
    FORMS,
    FROM_BASE,
    MARKER,
    SAVED_WHOLE,
    Form,
    Shapes,
    check_parts,
    checked_form,
    checked_number,
    is_complete,
    rank_of,
    scale_function,
)
from indexer.checkpoints.checkpoint import Checkpoint
from indexer.errors import Skipped
from indexer.records.record import NO_ALPHA, WHOLE_MATRICES
from indexer.untrusted import load_json, shown

# mlx-lm, tuner/lora.py and tuner/dora.py; and PEFT's names for the same tensors.
_MLX = re.compile(r"(?P<module>.+)\.(?P<part>lora_a|lora_b|m)")
_MLX_PARTS = {"lora_a": "lora_A", "lora_b": "lora_B", "m": "lora_magnitude_vector"}
_MLX_KINDS = {"lora": "LoRA", "dora": "DoRA", "full": WHOLE_MATRICES}
_MLX_SCALE = 20.0

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
# How programs of image models name the module that a path belongs to; "transformer.h.0" is one of GPT-2.
_OF_IMAGE_MODELS = re.compile(
    r"(?:lora_unet|lora_te|lora_transformer|lycoris|unet\.|diffusion_model\.|text_encoder|transformer\.(?!h\.\d)"
    r"|.*(?:transformer_blocks|single_blocks|double_blocks|mid_block|down_blocks|up_blocks))"
)
_TEXT_ENCODERS = ("text_encoder", "lora_te")
# The key of the settings in the metadata of a file that diffusers saved.
_SETTINGS = "lora_adapter_metadata"

_SHARED = re.compile(r"(?:base_model\.)?(?P<part>vera_[AB])(?:\.[^.]+)?")


@dataclass(frozen=True)
class AdapterPlan:
    """The contents of an adapter by its config and the headers of its files.

    - ``kind``: LoRA, rsLoRA, DoRA, PiSSA, OLoRA, AdaLoRA, LoHa, LoKr, OFT, BOFT, HRA, IA3, VeRA, FourierFT, or "whole
      matrices".
    - ``peft_type``: LORA for adapters of mlx-lm too.
    - ``modules``: the names of each module's tensors, by path and part; ``scales``: the factor of its change, by path.
    - ``start``: "pissa" or "olora" if the initial factors were subtracted from the base.
    - ``shared``: the tensors that all modules share, by part.
    - ``passed_over``: the kinds of tensors that are not read, in words, with their numbers.
    - ``notes``: sentences on settings that the file leaves open.
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
    notes: tuple[str, ...] = ()

    @property
    def tensors(self) -> list[str]:
        """The names of all tensors that are read."""
        return [*self.shared.values(), *(name for names in self.modules.values() for name in names.values())]


@dataclass(frozen=True)
class AdapterModule:
    """The tensors of one module, as stored.

    ``path``: the module's name in the base model; ``parts``: the tensors by PEFT's names; ``scale``: the factor of its
    change.
    """

    path: str
    parts: Mapping[str, torch.Tensor]
    scale: float


# A plan is needed several times, and an untrusted header may make it slow to compute.
_plans: WeakKeyDictionary[Checkpoint, AdapterPlan] = WeakKeyDictionary()


def adapter_plan(checkpoint: Checkpoint) -> AdapterPlan:
    """The plan of an adapter, computed once. Raises Skipped."""
    if checkpoint not in _plans:
        config = checkpoint.adapter_config
        if config is None:
            _plans[checkpoint] = _loose_plan(checkpoint)
        else:
            _plans[checkpoint] = _mlx_plan(checkpoint, config) if _is_mlx(config) else _peft_plan(checkpoint, config)
    return _plans[checkpoint]


def stated_base(config: Mapping[str, Any] | None) -> object:
    """The base that adapter_config.json names, as written there: PEFT's key, or mlx-lm's."""
    config = config or {}
    stated = config.get("base_model_name_or_path")
    return config.get("model") if stated is None and "fine_tune_type" in config else stated


def read_modules(checkpoint: Checkpoint, only: Collection[str] | None = None) -> Iterator[AdapterModule]:
    """Stream the modules of an adapter in file order.

    ``only``: the paths of the modules to read, None for all. The headers are checked before the first tensor is read. A
    tensor is held until the other tensors of its module are read; in files written by PEFT they are adjacent.

    Raises Skipped: ``adapter_unsupported``, ``malformed``, ``unreadable_dtype``, ``corrupt_file``; or Failed.
    """
    plan = adapter_plan(checkpoint)
    form = FORMS[plan.peft_type]
    shared = dict.fromkeys(plan.shared, torch.empty(0))
    kinds = {name: part for part, name in plan.shared.items()}
    for name, tensor in checkpoint.stream(kinds):
        shared[kinds[name]] = tensor.clone()
    modules = {path: names for path, names in plan.modules.items() if only is None or path in only}
    path_and_part = {name: (path, part) for path, names in modules.items() for part, name in names.items()}
    waiting: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in checkpoint.stream(path_and_part):
        path, part = path_and_part[name]
        parts = waiting.setdefault(path, {})
        parts[part] = tensor.mT if plan.is_mlx and tensor.ndim == 2 else tensor
        if len(parts) == len(modules[path]):
            del waiting[path]
            scale = plan.scales[path]
            if (alpha := parts.pop("alpha", None)) is not None and (rank := rank_of(form, parts)):
                scale = checked_number(float(alpha), f"alpha of {shown(path)}") / rank
            yield AdapterModule(path, {**parts, **shared}, scale)


def whole_weights(checkpoint: Checkpoint) -> dict[str, str]:
    """Tensors of an adapter that replace one of the base's (``modules_to_save``, resized embeddings, biases).

    Returns their names in the file, by their names in the base model. ``read_modules`` does not yield them.
    """
    names: dict[str, str] = {}
    if checkpoint.adapter_config is None:
        return names
    of_mlx = _is_mlx(checkpoint.adapter_config)
    for name in checkpoint.tensors:
        is_factor = _MLX.fullmatch(name) if of_mlx else MARKER.search(name)
        if not is_factor:
            names[SAVED_WHOLE.sub("", name.removeprefix("base_model.model.").replace(".original_module", ""))] = name
    return names


def _is_mlx(config: Mapping[str, Any]) -> bool:
    """Whether an adapter_config.json was written by mlx-lm."""
    return "peft_type" not in config and ("fine_tune_type" in config or "lora_parameters" in config)


def _peft_plan(checkpoint: Checkpoint, config: Mapping[str, Any]) -> AdapterPlan:
    """The plan of an adapter with PEFT's adapter_config.json. Raises Skipped."""
    form, start = checked_form(config)
    peft_type = str(config["peft_type"])
    modules: dict[str, dict[str, str]] = {}
    shared: dict[str, str] = {}
    ignored_paths: set[str] = set()
    pattern, ignored = form.pattern, re.compile("|".join(rf"\.{name}(\.|$)" for name in form.ignored) or r"(?!)")
    for name in checkpoint.tensors:
        match = pattern.fullmatch(name)
        if match is not None:
            if modules.setdefault(match["module"], {}).setdefault(match["part"], name) != name:
                raise Skipped("malformed", f"the module {shown(match['module'])} has the same factor twice")
        elif (shared_match := _SHARED.fullmatch(name)) is not None:
            shared[shared_match["part"]] = name
        elif ignored.search(name):
            ignored_paths.add(re.split(ignored, name.removeprefix("base_model.model."))[0])
        elif f".{form.marker}" in name and not name.endswith(".bias"):
            raise Skipped("adapter_unsupported", f"it holds an unknown kind of factor: {shown(name)}")
    parameters = _targeted_parameters(config)

    def why_not(path: str, shapes: Shapes) -> str:
        parts = path.split(".")
        while parts and parts[-1] == "base_layer":  # several parameters of one module are wrapped in each other
            parts.pop()
        bare = ".".join(parts)
        if any(bare == parameter or bare.endswith(f".{parameter}") for parameter in parameters):
            return "factors of bare parameters (target_parameters)"
        is_convolution = form.name in ("LoRA", "LoHa") and any(len(shape) > 2 for shape in shapes.values())
        return "factors of convolutions" if is_convolution or path in ignored_paths else ""

    passed_over = _pass_over(checkpoint, modules, why_not)
    scale_of = scale_function(config, peft_type)
    scales: dict[str, float] = {}
    for path, names in modules.items():
        shapes = _shapes(checkpoint, names)
        check_parts(form, path, shapes)
        if config.get("use_dora") and form.name == "LoRA" and "lora_magnitude_vector" not in shapes:
            raise Skipped("malformed", f"the module {shown(path)} has no lora_magnitude_vector, which use_dora needs")
        scales[path] = scale_of(path, shapes)
    if not modules and not any(SAVED_WHOLE.search(name) for name in checkpoint.tensors):
        raise _empty(passed_over, form)
    kind = form.name
    if form.name == "LoRA":
        is_dora = config.get("use_dora") or any("lora_magnitude_vector" in names for names in modules.values())
        kind = "DoRA" if is_dora else FROM_BASE[start] if start else "rsLoRA" if config.get("use_rslora") else "LoRA"
    return AdapterPlan(kind, peft_type, config, modules, scales, start, shared, passed_over=_notes(passed_over))


def _mlx_plan(checkpoint: Checkpoint, config: Mapping[str, Any]) -> AdapterPlan:
    """mlx-lm: W + scale · (lora_a @ lora_b)ᵀ with lora_a (in, r) and lora_b (r, out)."""
    kind = config.get("fine_tune_type", "lora")
    if not isinstance(kind, str) or kind not in _MLX_KINDS:
        raise Skipped("adapter_unsupported", f"it is an adapter of another kind: fine_tune_type {shown(kind, 40)}")
    modules: dict[str, dict[str, str]] = {}
    scales: dict[str, float] = {}
    passed_over = Counter[str]()
    notes: dict[str, None] = {}
    name_of_kind = _MLX_KINDS[kind]
    if kind != "full":
        settings = config.get("lora_parameters")
        if not isinstance(settings, dict):
            raise Skipped("malformed", "lora_parameters in adapter_config.json is not an object")
        for name in checkpoint.tensors:
            if match := _MLX.fullmatch(name):
                modules.setdefault(match["module"], {})[_MLX_PARTS[match["part"]]] = name

        def why_not(path: str, shapes: Shapes) -> str:  # LoRASwitchLinear holds the factors of all experts
            return "factors of fused experts" if any(len(shape) > 2 for shape in shapes.values()) else ""

        passed_over = _pass_over(checkpoint, modules, why_not)
        if not modules:
            raise _empty(passed_over, FORMS["LORA"])
        for path, names in modules.items():
            peft_shapes = {part: shape[::-1] for part, shape in _shapes(checkpoint, names).items()}
            check_parts(FORMS["LORA"], path, peft_shapes)
            scales[path], note = _mlx_scale(config, settings, peft_shapes["lora_A"][0])
            if note:
                notes[note] = None
        if any("lora_magnitude_vector" in names for names in modules.values()):  # use_dora, before fine_tune_type
            name_of_kind = _MLX_KINDS["dora"]
    return AdapterPlan(
        name_of_kind, "LORA", config, modules, scales, is_mlx=True, passed_over=_notes(passed_over), notes=tuple(notes)
    )


def _mlx_scale(config: Mapping[str, Any], settings: Mapping[str, Any], rank: int) -> tuple[float, str]:
    """The scale of a module by ``lora_parameters``, and a sentence on a missing setting ("" for none).

    By the released packages, tuner/lora.py and lora.py: up to 0.14.1 mlx-lm multiplied the scale by alpha/rank. From
    0.14.2 to 0.22 it still wrote ``alpha``, and did not use it. adapter_config.json names ``lora_layers`` up to 0.18,
    ``use_dora`` from 0.13.1 to 0.18, ``fine_tune_type`` and ``num_layers`` from 0.19 on.
    """
    note = ""
    if settings.get("scale") is None:
        note = f"lora_parameters gives no scale, so mlx-lm's default of {_MLX_SCALE:g} was taken."
    stated = settings["scale"] if settings.get("scale") is not None else _MLX_SCALE
    scale = checked_number(stated, "lora_parameters.scale")
    if "fine_tune_type" in config or "num_layers" in config or settings.get("alpha") is None:
        return scale, note
    factor = checked_number(settings["alpha"], "lora_parameters.alpha") / rank
    if "lora_layers" in config and "use_dora" not in config:
        return scale * factor, note
    if factor != 1:
        note += (
            f" lora_parameters.alpha was not applied: mlx-lm ignores it since 0.14.2, and adapter_config.json does not "
            f"say which version wrote it; if that was an older one, the change is {factor:.3g} times as large."
        )
    return scale, note.strip()


def _loose_plan(checkpoint: Checkpoint) -> AdapterPlan:
    """The plan of a file that comes without adapter_config.json.

    The scale is alpha/r with the alpha of each module, or of the metadata, else 1 (diffusers then uses r for alpha).
    Alpha is then unknown if no program for image models names modules like these.
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
    counts = {kind: sum(is_complete(form, names) for names in modules.values()) for kind, form in FORMS.items()
              if kind in ("LORA", "LOHA", "LOKR")}  # fmt: skip
    peft_type = max(counts, key=lambda kind: counts[kind])
    if not counts[peft_type]:
        raise Skipped("malformed", "there is no adapter_config.json, and no tensor is named like those of a LoRA")
    form = FORMS[peft_type]

    def why_not(path: str, shapes: Shapes) -> str:
        if path.startswith(_TEXT_ENCODERS):
            return "factors of text encoders"
        if any(len(shape) > 2 for shape in shapes.values()) or set(form.ignored) & set(shapes) or "lora_mid" in shapes:
            return "factors of convolutions"
        return "" if is_complete(form, shapes) else "parameters of another kind of adapter"

    passed_over = _pass_over(checkpoint, modules, why_not)
    if not modules:
        raise _empty(passed_over, form)
    settings = _settings(checkpoint)
    scales: dict[str, float] = {}
    is_open = False
    for path, names in modules.items():
        shapes = _shapes(checkpoint, names)
        check_parts(form, path, shapes)
        is_open |= "alpha" not in names and _OF_IMAGE_MODELS.match(path) is None and peft_type != "LOKR"
        magnitudes = shapes.get("lora_magnitude_vector", ())
        if len(magnitudes) == 2 and magnitudes[0] == 1 < magnitudes[1]:
            raise Skipped("adapter_unsupported", f"it is a DoRA with magnitudes of columns: {shown(path)}")
        if "alpha" in names and math.prod(checkpoint.tensors[names["alpha"]].shape) != 1:
            raise Skipped("malformed", f"alpha of {shown(path)} is not a number")
        prefix, _, inner_path = path.partition(".")
        module_settings = settings.get(prefix) if peft_type == "LORA" else None
        scales[path] = scale_function(module_settings, "LORA")(inner_path, shapes) if module_settings else 1.0
    is_dora = any("lora_magnitude_vector" in names for names in modules.values())
    kind = "DoRA" if is_dora else form.name
    notes = (NO_ALPHA,) if is_open else ()
    return AdapterPlan(kind, peft_type, {}, modules, scales, passed_over=_notes(passed_over), notes=notes)


def _shapes(checkpoint: Checkpoint, names: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """The shapes of a module's tensors, by part; ``alpha`` is a number."""
    return {part: checkpoint.tensors[name].shape for part, name in names.items() if part != "alpha"}


def _pass_over(
    checkpoint: Checkpoint, modules: dict[str, dict[str, str]], why_not: Callable[[str, Shapes], str]
) -> Counter[str]:
    """Remove the modules for which ``why_not`` returns a reason; returns their number for each reason."""
    reasons = {path: why_not(path, _shapes(checkpoint, names)) for path, names in modules.items()}
    for path, reason in reasons.items():
        if reason:
            del modules[path]
    return Counter(filter(None, reasons.values()))


def _notes(passed_over: Counter[str]) -> tuple[str, ...]:
    return tuple(f"{reason}: {count}" for reason, count in passed_over.items())


def _empty(passed_over: Counter[str], form: Form) -> Skipped:
    """The error for an adapter without a module that can be read."""
    if passed_over:
        return Skipped("adapter_unsupported", f"the adapter holds only {' and '.join(passed_over)}")
    return Skipped("malformed", f"the adapter holds no {form.name} factors")


def _settings(checkpoint: Checkpoint) -> dict[str, dict[str, Any]]:
    """The settings in a file's metadata, by component: {"transformer": {"r": 16, "lora_alpha": 16, …}}."""
    try:
        entries = load_json(checkpoint.metadata.get(_SETTINGS, "{}"))
    except ValueError:
        return {}
    by_component: dict[str, dict[str, Any]] = {}
    for name, value in entries.items() if isinstance(entries, dict) else ():
        component, dot, key = name.partition(".")
        if dot:
            by_component.setdefault(component, {})[key] = value
    return {name: settings for name, settings in by_component.items() if "lora_alpha" in settings and "r" in settings}


def _targeted_parameters(config: Mapping[str, Any]) -> list[str]:
    """The modules whose bare parameters have factors, from ``target_parameters`` ("mlp.experts.gate_up_proj")."""
    parameters = config.get("target_parameters") or []
    if (
        not isinstance(parameters, list)
        or not all(isinstance(name, str) for name in parameters)
        or len(parameters) > 10_000
    ):
        raise Skipped("malformed", "target_parameters in adapter_config.json is not a list of names")
    return list(dict.fromkeys(name.rpartition(".")[0] for name in parameters))
