"""Architectures as data: which tensors of a checkpoint are the block matrices, and how to read them.

A file in ``architectures/`` describes a group of model types: the names of layers, the family of each tensor, the rows
of fused tensors and the orientation of matrices (``pattern.py`` reads it). This module applies these files to the
tensor names of a checkpoint or to the module names of a LoRA adapter.
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
from indexer.checkpoints.architectures.pattern import NAMES_SHOWN, Index, Pattern, Settings, Stack, StackNames
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

# Prefixes of names that have underscores in place of dots (sd-scripts, networks/lora*.py: LORA_PREFIX_UNET; LyCORIS).
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

# The names of tensors, or modules, under one prefix, by stack.
NamesByStack = dict[str, StackNames]


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
        names_by_prefix = self._by_prefix({name: name.removesuffix(".weight") for name in shapes}, of_tensors=True)
        prefix = self._choose_prefix(names_by_prefix, settings)
        matrices: list[Matrix] = []
        for stack in self.stacks:
            for layer, names in enumerate(stack.layers(names_by_prefix[prefix].get(stack.name, {}), prefix, settings)):
                matrices += self._layer(stack.name, layer, names, shapes, settings)
        return Layout(self.name, prefix, tuple(sorted(matrices, key=lambda matrix: matrix.key.sort_key)))

    def refuse_absent(self, layout: Layout, config: Mapping[str, Any]) -> None:
        """Raise Skipped("missing_matrices") if a checkpoint has no layer of a stack that its class has.

        By config.json a class may have only one of two stacks (by its name or ``is_encoder_decoder``), or no layers in
        one of them.
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
            owner = f"a {shown(of_class, 60)} has" if of_class else "the whole model has"
            present_stacks = " and ".join(sorted(present))
            raise Skipped(
                "missing_matrices",
                f"the checkpoint has no layer of the {stack.name} ({example} …), which {owner}; if it is the "
                f"{present_stacks} alone, its class in config.json (architectures) must say so",
            )

    def locate_modules(self, modules: Collection[str], base_layout: Layout) -> dict[str, tuple[Matrix, ...]]:
        """The base's matrices of each module, by its path (in a LoRA adapter, without ``.lora_A.weight``).

        Other modules are left out. The paths are those in memory, so their prefix, and for some models the names of
        layers, differ from the base checkpoint's. Kohya's scripts write them with "_" for "." after ``lora_unet_``.
        A module may fuse matrices that the base stores separately, in consecutive rows. Raises Skipped:
        ``layer_mismatch`` (a layer the base lacks), ``missing_matrices`` (a family the base lacks), ``malformed``
        (several prefixes without a way to decide), ``adapter_unsupported`` (a module in which such matrices alternate).
        """
        # The base's matrices by stack and layer number in the tensors' names, then by family.
        names = {tensor: tensor.removesuffix(".weight") for tensor in base_layout.tensors}
        base_matrices: dict[tuple[str, Index], dict[str, Matrix]] = defaultdict(dict)
        for stack, _, index, name in _entries(self._by_prefix(names, of_tensors=True).get(base_layout.prefix, {})):
            base_matrices[stack, index] |= {matrix.key.family: matrix for matrix in base_layout.by_tensor[name]}
        dotted_names = self._flat_names(base_matrices) if any(module.startswith(_FLAT) for module in modules) else {}
        module_by_spelling: dict[str, str] = {}  # module by its name in the architecture's own spelling
        for module in modules:
            if module_by_spelling.setdefault(self._spelled(module, dotted_names), module) != module:
                raise Skipped("malformed", f"the adapter names the module {shown(module)} in two ways")
        names_by_prefix = self._by_prefix({name: name for name in module_by_spelling}, self._by_last_part_of_modules)
        if not names_by_prefix:
            return {}
        prefix = self._prefer(list(names_by_prefix), "the adapter's modules", base_layout.prefix)
        unused = {path for stack in self.stacks for path in stack.unused}
        located: dict[str, tuple[Matrix, ...]] = {}
        for stack, pattern, index, name in _entries(names_by_prefix[prefix]):
            module = module_by_spelling[name]
            if (stack, index) not in base_matrices:
                depth = f"{sum(name == stack for name, _ in base_matrices)} {stack} layers".replace("  ", " ")
                raise Skipped("layer_mismatch", f"the adapter changes {shown(module)}, the base has {depth}")
            layer = base_matrices[stack, index]
            families = tuple(filter(None, pattern.families))
            if pattern.path in unused and not any(family in layer for family in families):
                continue
            for family in families:
                if family not in layer:
                    raise Skipped("missing_matrices", f"the adapter changes {shown(module)}, the base has no {family}")
            matrices = tuple(layer[family] for family in families)
            if len(matrices) == 1:
                # A separate module in memory may be fused in the base's file; then B has only its own rows.
                matrices = (replace(matrices[0], rows=None),)
            elif any(matrix.fused != pattern.fused_name for matrix in matrices):
                if pattern.groups != 1 or any(matrix.rows for matrix in matrices):
                    fused = f"{shown(module)} is {pattern.fused_name} in one module"
                    raise Skipped("adapter_unsupported", f"the adapter's {fused}, which the base stores differently")
                stops = list(accumulate((matrix.shape[0] for matrix in matrices), initial=0))
                matrices = tuple(
                    replace(matrix, rows=Rows(1, stops[-1], start, stop))
                    for matrix, start, stop in zip(matrices, stops[:-1], stops[1:], strict=True)
                )
            located[module] = matrices
        return located

    def _flat_names(self, layers: Iterable[tuple[str, Index]]) -> dict[str, str]:
        """The names of the base's modules with dots, by all their spellings with "_" for "."."""
        stacks = {stack.name: stack for stack in self.stacks}
        dotted_names: dict[str, str] = {}
        for name, index in layers:
            for pattern in dict.fromkeys((*stacks[name].patterns, *stacks[name].other_names)):
                if len(index) == sum(part.startswith("{") for part in pattern.path):
                    dotted = pattern.name(index)
                    spellings = [
                        dotted.replace(f"{new}.", f"{old}.", 1)
                        for old, new in self.other_prefixes.items()
                        if dotted.startswith(f"{new}.")
                    ]
                    dotted_names |= {spelling.replace(".", "_"): dotted for spelling in (dotted, *spellings)}
        return dotted_names

    def _spelled(self, module: str, dotted_names: Mapping[str, str]) -> str:
        """A module's name in this architecture's spelling."""
        start = next((prefix for prefix in _FLAT if module.startswith(prefix)), None)
        if start is not None:
            return dotted_names.get(module.removeprefix(start), module)
        for old, new in self.other_prefixes.items():
            before, separator, after = f".{module}".partition(f".{old}.")
            if separator:
                return f"{before}.{new}.{after}".removeprefix(".")
        return module

    @cached_property
    def _by_last_part_of_modules(self) -> dict[str, list[tuple[str, Pattern]]]:
        """``_by_last_part``, and the names that only adapters have."""
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
    ) -> dict[str, NamesByStack]:
        """Group the names of possible block matrices by the prefix before their layer.

        ``names``: each with the path that is matched with patterns; for a tensor, without ".weight".
        """
        patterns = self._by_last_part if patterns is None else patterns
        names_by_prefix: dict[str, NamesByStack] = {}
        for name, path in names.items():
            parts = path.split(".")
            for stack, pattern in patterns.get(parts[-1], ()):
                if pattern.is_parameter != (of_tensors and name == path):
                    continue
                index, before = pattern.match(parts), parts[: -len(pattern.path)]
                if index is not None and self.foreign.isdisjoint(before):
                    prefix = "".join(f"{part}." for part in before)
                    stack_names = names_by_prefix.setdefault(prefix, {}).setdefault(stack, {})
                    stack_names.setdefault(pattern, {})[index] = name
        return names_by_prefix

    def _choose_prefix(self, names_by_prefix: Mapping[str, NamesByStack], settings: Settings) -> str:
        """The prefix under which a layer is complete, or else the prefix with the most tensors."""
        complete = [
            prefix
            for prefix, names_by_stack in names_by_prefix.items()
            if any(stack.has_a_layer(names_by_stack.get(stack.name, {}), settings) for stack in self.stacks)
        ]
        if complete:
            return self._prefer(complete, "the checkpoint's layers")
        if names_by_prefix:
            return max(names_by_prefix, key=lambda prefix: sum(1 for _ in _entries(names_by_prefix[prefix])))
        example = next(self.stacks[0].patterns).tensor((0, 0))
        raise Skipped("missing_matrices", f"no tensor is named like those of {self.name} ({example})")

    def _prefer(self, candidates: list[str], subject: str, *more_prefixes: str) -> str:
        """The only candidate, or else the first known prefix. Raises Skipped("malformed") with their names.

        ``subject``: the beginning of the message; ``more_prefixes``: known prefixes besides the data file's.
        """
        if len(candidates) == 1:
            return candidates[0]
        for prefix in (*self.prefixes, *more_prefixes):
            if prefix in candidates:
                return prefix
        names = ", ".join(shown(prefix) for prefix in candidates[:NAMES_SHOWN])
        raise Skipped("malformed", f"{subject} are under {len(candidates)} prefixes, and each could be right: {names}")

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
                requirement = "the matrices of experts have three" if pattern.is_stacked else "a block matrix has two"
                raise Skipped("malformed", f"{shown(tensor)} has the shape {stated}, {requirement} sizes above zero")
            transposed = pattern.is_transposed(sizes, self.transposed, settings)
            leading = sizes[-2] if pattern.is_stacked else None
            out, inner = reversed(sizes[-2:]) if transposed else sizes[-2:]
            for family, rows in zip(pattern.families, pattern.divide(tensor, out, settings), strict=True):
                if family:
                    key, shape = DeltaKey(stack, layer, family), (rows.total if rows else out, inner)
                    fused = pattern.fused_name if rows else None
                    matrices[family] = Matrix(key, tensor, shape, transposed, rows, fused, leading)
        # The output matrix has a column for each row of the queries or, if their sizes differ, of the values.
        inputs, output = (
            [matrices[family] for family in ("query", "value") if family in matrices],
            matrices.get("output"),
        )
        by_config = any(
            isinstance(share, str)
            for pattern in names
            if not {"query", "value"}.isdisjoint(pattern.families)
            for share in (*pattern.shares, pattern.groups)
        )
        if by_config and output is not None and output.shape[1] not in {matrix.shape[0] for matrix in inputs}:
            raise Skipped(
                "malformed",
                f"by config.json {shown(inputs[0].tensor)} holds {inputs[0].shape[0]} rows of {inputs[0].key.family}, "
                f"but {shown(output.tensor)} takes {output.shape[1]} columns",
            )
        return list(matrices.values())


def load_architecture(model_type: str) -> Architecture:
    """The architecture of a config's ``model_type``. Raises Skipped("unknown_architecture")."""
    architecture = _catalogue().get(model_type) if isinstance(model_type, str) else None
    if architecture is None:
        problem = f"model type {shown(model_type)} has no architecture file"
        if model_type in _WITHOUT_BASE:
            problem = f"policies of type {shown(model_type)} are trained from scratch, so there is no base to subtract"
        raise Skipped("unknown_architecture", problem)
    return architecture


def known_model_types() -> tuple[str, ...]:
    """All model types of the data files, sorted."""
    return tuple(sorted(_catalogue()))


@cache
def _catalogue() -> dict[str, Architecture]:
    """All data files, by model type."""
    architectures = [Architecture.read(path) for path in sorted(_FOLDER.glob("*.toml"))]
    return {model_type: architecture for architecture in architectures for model_type in architecture.model_types}


def _entries(names_by_stack: NamesByStack) -> Iterator[tuple[str, Pattern, Index, str]]:
    """(stack, pattern, index, name) of every name under one prefix."""
    for stack, stack_names in names_by_stack.items():
        for pattern, names in stack_names.items():
            for index, name in names.items():
                yield stack, pattern, index, name
