"""Architectures as data: which tensors of a checkpoint are the block matrices, and how to read them.

A file in ``architectures/`` says, for a group of model types, how layers are named, which tensor belongs to which
family, how fused tensors divide into rows, and how the checkpoint orients them (``pattern.py`` reads it). This module
applies these files to the tensor names of a checkpoint or to the module names of a LoRA adapter.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from indexer.checkpoints.architectures.layout import Layout, Matrix, Rows, compare
from indexer.checkpoints.architectures.pattern import NAMES_SHOWN, Found, Index, Pattern, Settings, Stack
from indexer.errors import Skipped
from indexer.names import DeltaKey
from indexer.untrusted import shown

__all__ = [
    "Architecture",
    "Layout",
    "Matrix",
    "Rows",
    "compare",
    "known_model_types",
    "load_architecture",
]

# Prefixes of names that have underscores for dots (sd-scripts, networks/lora*.py: LORA_PREFIX_UNET; LyCORIS).
_FLAT = ("lora_unet_", "lora_transformer_", "lycoris_")

# Classes that have one stack of two, by their names (transformers: T5EncoderModel, MBartForCausalLM, CLIPTextModel).
_ALONE = {
    "encoder": re.compile(r"Encoder(?!-?Decoder)|For(Token|Audio)Classification$"),
    "decoder": re.compile(r"(?<!Encoder)Decoder|ForCausalLM$"),
    "text": re.compile(r"Text(?!Dual)"),
    "vision": re.compile(r"Vision(?!-?(Text|Encoder))|ForImageClassification$"),
}

# Robot policies that LeRobot trains from scratch: there are no weights of a base to subtract.
_WITHOUT_BASE = ("act", "diffusion", "tdmpc", "vqbet")

_FOLDER = Path(__file__).parent

# The names found under one prefix, by stack.
Place = dict[str, Found]


@dataclass(frozen=True)
class Architecture:
    """One data file.

    If a checkpoint holds the layers several times, the first of ``prefixes`` is used. Everything below a module in
    ``foreign`` is ignored. ``with_adapters``: model types whose checkpoints hold adapters beside the matrices.
    """

    name: str
    model_types: tuple[str, ...]
    prefixes: tuple[str, ...]
    foreign: frozenset[str]
    transposed: bool
    counts: Mapping[str, tuple[str, ...]]
    switches: Mapping[str, bool]
    stacks: tuple[Stack, ...]
    other_prefixes: Mapping[str, str] = field(default_factory=dict)
    with_adapters: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Architecture:
        """Read one data file."""
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(
            name=path.stem,
            model_types=tuple(data["model_types"]),
            prefixes=tuple(data["prefixes"]),
            foreign=frozenset(data.get("foreign", ())),
            transposed=data.get("transposed", False),
            counts={name: tuple(keys) for name, keys in data.get("counts", {}).items()},
            switches=data.get("switches", {}),
            stacks=tuple(Stack.read(stack) for stack in data["stack"]),
            other_prefixes=data.get("other_prefixes", {}),
            with_adapters=tuple(data.get("with_adapters", ())),
        )

    def locate(self, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> Layout:
        """Find the block matrices of a full checkpoint among the ``shapes`` of its tensors.

        Both arguments are untrusted; the work is linear in the number of names. Raises Skipped: ``missing_matrices``
        (none, or an incomplete layer), ``malformed`` (an impossible shape or config, or layers of several models in
        one file without a way to decide).
        """
        settings = Settings(config, self.counts, self.switches)
        places = self._by_prefix({name: name.removesuffix(".weight") for name in shapes}, of_tensors=True)
        prefix = self._choose_prefix(places, settings)
        matrices: list[Matrix] = []
        for stack in self.stacks:
            for layer, names in enumerate(stack.layers(places[prefix].get(stack.name, {}), prefix, settings)):
                matrices += self._layer(stack.name, layer, names, shapes, settings)
        return Layout(self.name, prefix, tuple(sorted(matrices, key=lambda matrix: matrix.key.sort_key)))

    def refuse_absent(self, layout: Layout, config: Mapping[str, Any]) -> None:
        """Raise Skipped("missing_matrices") if a checkpoint has no layer of a stack that its class has.

        By config.json a class may have one of two stacks alone (by its name or ``is_encoder_decoder``), or give one of
        them no layers.
        """
        classes = config.get("architectures")
        of_class = str(classes[0]) if isinstance(classes, list) and classes else ""
        present = {matrix.key.stack for matrix in layout.matrices}
        for stack in self.stacks:
            if stack.name in present or stack.absent_in is None or config.get("model_type") in stack.absent_in:
                continue
            is_alone = any(name in _ALONE and _ALONE[name].search(of_class) for name in present)
            counts = (config.get(f"{stack.name}_layers"), config.get(f"num_{stack.name}_layers"))
            if is_alone or config.get("is_encoder_decoder") is False or 0 in counts:
                continue
            example = next(stack.patterns).tensor((0, 0))
            of = f"a {shown(of_class, 60)} has" if of_class else "the whole model has"
            others = " and ".join(sorted(present))
            raise Skipped(
                "missing_matrices",
                f"the checkpoint has no layer of the {stack.name} ({example} …), which {of}; if it is the {others} "
                "alone, its class in config.json (architectures) must say so",
            )

    def locate_modules(self, modules: Collection[str], base_layout: Layout) -> dict[str, tuple[Matrix, ...]]:
        """The base's matrices that module paths (of a LoRA adapter, without ``.lora_A.weight``) stand for.

        Other modules are left out. The paths are those in memory, so their prefix, and for some models the names of
        layers, differ from the base checkpoint's. Kohya's scripts write them with "_" for "." after ``lora_unet_``.
        A module may fuse matrices that the base stores separately, one after the other. Raises Skipped:
        ``layer_mismatch`` (a layer the base lacks), ``missing_matrices`` (a family the base lacks), ``malformed``
        (several prefixes without a way to decide), ``adapter_unsupported`` (a module in which such matrices alternate).
        """
        # The base's matrices by stack and layer number in the tensors' names, then by family.
        names = {tensor: tensor.removesuffix(".weight") for tensor in base_layout.tensors}
        held: dict[tuple[str, Index], dict[str, Matrix]] = defaultdict(dict)
        for stack, _, index, name in _entries(self._by_prefix(names, of_tensors=True).get(base_layout.prefix, {})):
            held[stack, index] |= {matrix.key.family: matrix for matrix in base_layout.by_tensor[name]}
        flat = self._flat_names(held) if any(module.startswith(_FLAT) for module in modules) else {}
        spelled: dict[str, str] = {}  # module by its name in the architecture's own spelling
        for module in modules:
            if spelled.setdefault(self._spelled(module, flat), module) != module:
                raise Skipped("malformed", f"the adapter names the module {shown(module)} in two ways")
        places = self._by_prefix({name: name for name in spelled}, self._by_last_part_of_modules)
        if not places:
            return {}
        prefix = self._prefer(list(places), "the adapter's modules", base_layout.prefix)
        unused = {path for one in self.stacks for path in one.unused}
        found: dict[str, tuple[Matrix, ...]] = {}
        for stack, pattern, index, name in _entries(places[prefix]):
            module = spelled[name]
            if (stack, index) not in held:
                depth = f"{sum(name == stack for name, _ in held)} {stack} layers".replace("  ", " ")
                raise Skipped("layer_mismatch", f"the adapter changes {shown(module)}, the base has {depth}")
            layer = held[stack, index]
            families = tuple(filter(None, pattern.families))
            if pattern.path in unused and not any(family in layer for family in families):
                continue
            for family in families:
                if family not in layer:
                    raise Skipped("missing_matrices", f"the adapter changes {shown(module)}, the base has no {family}")
            matrices = tuple(layer[family] for family in families)
            if len(matrices) == 1:
                # A separate module in memory may be fused in the base's file; then B has no other rows.
                matrices = (replace(matrices[0], rows=None),)
            elif any(matrix.fused != pattern.whole for matrix in matrices):
                if pattern.groups != 1 or any(matrix.rows for matrix in matrices):
                    whole = f"{shown(module)} is {pattern.whole} in one module"
                    raise Skipped("adapter_unsupported", f"the adapter's {whole}, which the base stores differently")
                stops = list(accumulate((matrix.shape[0] for matrix in matrices), initial=0))
                matrices = tuple(
                    replace(matrix, rows=Rows(1, stops[-1], start, stop))
                    for matrix, start, stop in zip(matrices, stops[:-1], stops[1:], strict=True)
                )
            found[module] = matrices
        return found

    def _flat_names(self, held: Iterable[tuple[str, Index]]) -> dict[str, str]:
        """The names of the base's modules with "_" for ".", in all spellings; each with the one in dots."""
        stacks = {stack.name: stack for stack in self.stacks}
        found: dict[str, str] = {}
        for name, index in held:
            for pattern in dict.fromkeys((*stacks[name].patterns, *stacks[name].other_names)):
                if len(index) == sum(part.startswith("{") for part in pattern.path):
                    dotted = pattern.name(index)
                    others = [
                        dotted.replace(f"{new}.", f"{old}.", 1)
                        for old, new in self.other_prefixes.items()
                        if dotted.startswith(f"{new}.")
                    ]
                    found |= {one.replace(".", "_"): dotted for one in (dotted, *others)}
        return found

    def _spelled(self, module: str, flat: Mapping[str, str]) -> str:
        """A module's name as this architecture spells it."""
        start = next((one for one in _FLAT if module.startswith(one)), None)
        if start is not None:
            return flat.get(module.removeprefix(start), module)
        for old, new in self.other_prefixes.items():
            before, found, after = f".{module}".partition(f".{old}.")
            if found:
                return f"{before}.{new}.{after}".removeprefix(".")
        return module

    @cached_property
    def _by_last_part_of_modules(self) -> dict[str, list[tuple[str, Pattern]]]:
        """``_by_last_part`` with the names that only adapters have."""
        table: dict[str, list[tuple[str, Pattern]]] = defaultdict(list)
        for last, patterns in self._by_last_part.items():
            table[last] += patterns
        for stack in self.stacks:
            for pattern in stack.other_names:
                table[pattern.path[-1]].append((stack.name, pattern))
        return dict(table)

    @cached_property
    def _by_last_part(self) -> dict[str, list[tuple[str, Pattern]]]:
        """The patterns, each with its stack, by the last part of their path."""
        table: dict[str, list[tuple[str, Pattern]]] = defaultdict(list)
        for stack in self.stacks:
            for pattern in dict.fromkeys(stack.patterns):
                table[pattern.path[-1]].append((stack.name, pattern))
        return dict(table)

    def _by_prefix(
        self,
        names: Mapping[str, str],
        patterns: Mapping[str, list[tuple[str, Pattern]]] | None = None,
        *,
        of_tensors: bool = False,
    ) -> dict[str, Place]:
        """Group the names of possible block matrices by the prefix before their layer.

        ``names``: each with the path by which patterns find it, that of a tensor without ".weight".
        """
        patterns = self._by_last_part if patterns is None else patterns
        places: dict[str, Place] = {}
        for name, path in names.items():
            parts = path.split(".")
            for stack, pattern in patterns.get(parts[-1], ()):
                if pattern.is_parameter != (of_tensors and name == path):
                    continue
                index, before = pattern.match(parts), parts[: -len(pattern.path)]
                if index is not None and self.foreign.isdisjoint(before):
                    prefix = "".join(f"{part}." for part in before)
                    found = places.setdefault(prefix, {}).setdefault(stack, {})
                    found.setdefault(pattern, {})[index] = name
        return places

    def _choose_prefix(self, places: Mapping[str, Place], settings: Settings) -> str:
        """The prefix under which a layer is complete, or else the one with the most tensors."""
        complete = [
            prefix
            for prefix, place in places.items()
            if any(stack.has_a_layer(place.get(stack.name, {}), settings) for stack in self.stacks)
        ]
        if complete:
            return self._prefer(complete, "the checkpoint's layers")
        if places:
            return max(places, key=lambda prefix: sum(1 for _ in _entries(places[prefix])))
        example = next(self.stacks[0].patterns).tensor((0, 0))
        raise Skipped("missing_matrices", f"no tensor is named like those of {self.name} ({example})")

    def _prefer(self, candidates: list[str], what: str, *more_known: str) -> str:
        """The only candidate, or else the first known one. Raises Skipped("malformed") with their names."""
        if len(candidates) == 1:
            return candidates[0]
        for prefix in (*self.prefixes, *more_known):
            if prefix in candidates:
                return prefix
        some = ", ".join(shown(prefix) for prefix in candidates[:NAMES_SHOWN])
        raise Skipped("malformed", f"{what} are under {len(candidates)} prefixes, and each could be right: {some}")

    def _layer(
        self,
        stack: str,
        layer: int,
        names: Mapping[Pattern, str],
        shapes: Mapping[str, tuple[int, ...]],
        settings: Settings,
    ) -> list[Matrix]:
        """The matrices of one layer. Raises Skipped("malformed") for impossible shapes."""
        matrices: dict[str, Matrix] = {}
        for pattern, tensor in names.items():
            sizes = tuple(shapes[tensor])
            expected = 3 if pattern.is_stacked else 2
            if len(sizes) != expected or not all(type(size) is int and 0 < size < 2**40 for size in sizes):
                stated = " × ".join(shown(size) for size in sizes[:8]) or "of one number"
                what = "the matrices of experts have three" if pattern.is_stacked else "a block matrix has two"
                raise Skipped("malformed", f"{shown(tensor)} has the shape {stated}, {what} sizes above zero")
            transposed = pattern.is_transposed(sizes, self.transposed, settings)
            leading = sizes[-2] if pattern.is_stacked else None
            out, inner = reversed(sizes[-2:]) if transposed else sizes[-2:]
            for family, rows in zip(pattern.families, pattern.divide(tensor, out, settings), strict=True):
                if family:
                    key, shape = DeltaKey(stack, layer, family), (rows.total if rows else out, inner)
                    whole = pattern.whole if rows else None
                    matrices[family] = Matrix(key, tensor, shape, transposed, rows, whole, leading)
        # The output has a column for each row of the queries or, if their sizes differ, of the values.
        given, output = [matrices[one] for one in ("query", "value") if one in matrices], matrices.get("output")
        by_config = any(
            isinstance(share, str)
            for pattern in names
            if not {"query", "value"}.isdisjoint(pattern.families)
            for share in (*pattern.shares, pattern.groups)
        )
        if by_config and output is not None and output.shape[1] not in {one.shape[0] for one in given}:
            raise Skipped(
                "malformed",
                f"by config.json {shown(given[0].tensor)} holds {given[0].shape[0]} rows of {given[0].key.family}, "
                f"but {shown(output.tensor)} takes {output.shape[1]} columns",
            )
        return list(matrices.values())


def load_architecture(model_type: str) -> Architecture:
    """The architecture of a config's ``model_type``. Raises Skipped("unknown_architecture")."""
    found = _catalogue().get(model_type) if isinstance(model_type, str) else None
    if found is None:
        problem = f"model type {shown(model_type)} has no architecture file"
        if model_type in _WITHOUT_BASE:
            problem = f"policies of type {shown(model_type)} are trained from scratch, so there is no base to subtract"
        raise Skipped("unknown_architecture", problem)
    return found


def known_model_types() -> tuple[str, ...]:
    """All model types of the data files, sorted."""
    return tuple(sorted(_catalogue()))


@cache
def _catalogue() -> dict[str, Architecture]:
    """All data files, by model type."""
    architectures = [Architecture.read(path) for path in sorted(_FOLDER.glob("*.toml"))]
    return {model_type: each for each in architectures for model_type in each.model_types}


def _entries(place: Place) -> Iterator[tuple[str, Pattern, Index, str]]:
    """(stack, pattern, index, name) of everything under one prefix."""
    for stack, found in place.items():
        for pattern, names in found.items():
            for index, name in names.items():
                yield stack, pattern, index, name
