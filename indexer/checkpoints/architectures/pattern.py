"""Reads an architecture's data file: the names of the tensors of a layer, and the parts of fused tensors.

The format of a file in ``architectures/``:

    model_types = ["…"]                    the config.json model types it serves
    prefixes = ["bert.", ""]               if a file holds several models, the first of these is used
    foreign = ["vision_tower"]             modules whose contents are ignored (default: none)
    transposed = true                      the checkpoint stores in × out (default: out × in)
    with_adapters = ["…"]                  those model types whose checkpoints hold adapters beside the matrices, which
                                           are not read; other such checkpoints are refused
    [counts]
    heads = ["num_attention_heads"]        keys of config.json, the first found wins; text_config is searched first
    [switches]
    multi_query = true                     boolean keys of config.json and their defaults; "quantised" is true if
                                           some of the weights are
    [[stack]]                              one or more
    name = "encoder"                       left out where there is one stack
    numbering = "listed"                   layers are counted as they are found (default: numbers without gaps)
    absent_in = ["trocr"]                  a checkpoint without a layer of this stack is refused, except of these model
                                           types, and of classes that have only another stack by their name
    layer = "encoder.layer.{layer}"        the prefix of a layer's tensors; {group} and {layer} count together
    depth = "num_hidden_layers"            key of config.json with the number of layers; later ones are ignored
                                           (default: as many as there are types, or tensors)
    types = ["layer_types"]                keys of config.json, the first found wins: the type of each layer, as a list
                                           of names or as a string of one letter for each
    [[stack.attention]]                    a part of every layer; several tables are its variants: the config and the
                                           tensors that exist decide which one a layer has
    when = { multi_query = true }          a variant for these values of switches,
    types = ["full_attention", "*"]        for layers of these types, or
    last = "num_kv_shared_layers"          for the last layers, whose number is this key of config.json, and which have
                                           no other variant; if the config lacks the key, the tensors decide
    unused = ["self_attn.k_proj"]          names that layers of this variant may have, and do not use
    layer = "layers.{layer}"               a variant may name layers its own way
    "attention.self.query" = "query"       tensor, without ".weight" = family
    "attn.c_attn" = ["query", "key"]       fused, equal parts one after the other
    "attn.qkv" = { families = ["query", "key"], shares = ["heads", "kv_heads"], groups = "kv_heads" }
                                           fused: relative numbers of rows ("heads*head_dim" is a product), and how
                                           often the sequence repeats; rows of the family "" are left out
    "mlp.experts.up_proj" = { family = "expert_feedforward1", stacked = true, parameter = true, transposed = true }
                                           stacked: the tensor holds the matrices of all experts, and the first is
                                           read; parameter: its name does not end in ".weight"; transposed: as above,
                                           of this tensor only; inputs = "hidden" instead: it may be stored either way,
                                           and this count is the number of its inputs
    [[stack.other_names]]                  names of the same modules in adapters only, in the same form
    [other_prefixes]                       the same for the beginnings of names
    "input_blocks.4.1" = "down_blocks.1.attentions.0"

With a variant without tensors, a layer may lack the part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

from indexer.checkpoints.architectures.layout import Rows
from indexer.errors import Skipped
from indexer.untrusted import shown

_MAX_HEADS = 4096  # far above any model
_MAX_SIZE = 1 << 20  # of one side of a matrix
_MAX_LAYER = 10**9  # larger layer numbers are read as this

NAMES_SHOWN = 3  # of untrusted names in an error

_NOT_PARTS = ("name", "layer", "depth", "types", "numbering", "other_names", "absent_in")
_NOT_TENSORS = ("when", "types", "last", "unused", "layer")

Index = tuple[int, ...]
# The names of one stack in a checkpoint: pattern → layer → full name of the tensor, or module.
StackNames = dict["Pattern", dict[Index, str]]


@dataclass(frozen=True)
class Pattern:
    """A tensor of a layer: its dotted path, with ``{…}`` for a layer's number.

    ``families``: in the order of their rows. If there are several, ``shares`` are their relative numbers of rows, and
    ``groups`` is how often the whole sequence repeats; both are numbers or names of counts in the config (see
    ``Settings``). ``is_stacked``: it has a third size before the others, the number of experts. ``is_parameter``: its
    name does not end in ".weight". ``transposed``: None for the setting of the whole data file; ``inputs``: the count
    of its inputs, if its orientation follows from that.
    """

    path: tuple[str, ...]
    families: tuple[str, ...]
    shares: tuple[int | str, ...]
    groups: int | str
    is_stacked: bool = False
    is_parameter: bool = False
    transposed: bool | None = None
    inputs: str = ""

    @classmethod
    def read(cls, path: str, entry: str | list[str] | dict[str, Any]) -> Pattern:
        """One line of a data file. ``entry``: a family, a list of families in equal parts, or a table of settings."""
        table: dict[str, Any] = (
            entry if isinstance(entry, dict) else {"families": [entry] if isinstance(entry, str) else entry}
        )
        families = tuple(table.get("families") or [table["family"]])
        shares = tuple(table.get("shares", [1] * len(families)))
        return cls(
            tuple(path.split(".")), families, shares, table.get("groups", 1),
            table.get("stacked", False), table.get("parameter", False), table.get("transposed"),
            table.get("inputs", ""),
        )  # fmt: skip

    @property
    def fused_name(self) -> str:
        """The families of a fused tensor in one name: ``query_key_value``."""
        return "_".join(filter(None, self.families))

    def match(self, parts: list[str]) -> Index | None:
        """The layer's number(s) in a name split at its dots, or None if it is the name of another tensor."""
        if len(parts) < len(self.path):
            return None
        numbers: list[int] = []
        for expected, part in zip(reversed(self.path), reversed(parts), strict=False):
            if expected.startswith("{"):
                if not (part.isascii() and part.isdigit() and (part == "0" or part[0] != "0")):
                    return None
                numbers.append(int(part) if len(part) <= 9 else _MAX_LAYER)
            elif expected != part:
                return None
        return tuple(reversed(numbers))

    def name(self, index: Index) -> str:
        """The tensor's name in one layer, without prefix and ``.weight``."""
        numbers = iter(index)
        return ".".join(str(next(numbers)) if part.startswith("{") else part for part in self.path)

    def tensor(self, index: Index) -> str:
        """The tensor's name in one layer, without prefix."""
        return self.name(index) if self.is_parameter else f"{self.name(index)}.weight"

    def is_transposed(self, sizes: tuple[int, ...], usually: bool, settings: Settings) -> bool:
        """Whether a tensor of these sizes is stored in × out. ``usually``: the setting of the whole data file."""
        if self.inputs:
            return sizes[-2] == settings.count(self.inputs, _MAX_SIZE) != sizes[-1]
        return usually if self.transposed is None else self.transposed

    def divide(self, tensor: str, out: int, settings: Settings) -> list[Rows | None]:
        """The rows of each family among the ``out`` rows of ``tensor``; None if it holds only one family.

        Raises Skipped("malformed") if the rows cannot be divided by the counts of the config.
        """
        if len(self.families) == 1:
            return [None]
        products = [product for product in (*self.shares, self.groups) if isinstance(product, str)]
        counts = {name: settings.count(name) for product in products for name in product.split("*")}
        shares = [
            math.prod(counts[factor] for factor in share.split("*")) if isinstance(share, str) else share
            for share in self.shares
        ]
        groups = counts[self.groups] if isinstance(self.groups, str) else self.groups
        unit, remainder = divmod(out, sum(shares))
        uneven = remainder or any(share * unit % groups for share in shares)
        if uneven or counts.get("heads", 0) % counts.get("kv_heads", 1):
            by = ", ".join(f"{name} = {count}" for name, count in counts.items()) or "equal parts"
            raise Skipped(
                "malformed",
                f"{shown(tensor)} has {out} rows, which do not divide into {self.fused_name} by {by}",
            )
        stops = [sum(shares[: number + 1]) * unit // groups for number in range(len(shares))]
        return [Rows(groups, stops[-1], start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


@dataclass(frozen=True)
class Variant:
    """One way to store a part of a layer; for ``when``, ``types``, ``last`` and ``unused`` see the data files."""

    patterns: tuple[Pattern, ...]
    when: Mapping[str, bool]
    types: tuple[str, ...] = ()
    last: str = ""
    unused: tuple[Pattern, ...] = ()

    @classmethod
    def read(cls, variant: Mapping[str, Any], layer: str) -> Variant:
        """One table of a data file; ``layer`` is used if the table has none."""
        lines = {name: entry for name, entry in variant.items() if name not in _NOT_TENSORS}
        layer = variant.get("layer", layer)
        patterns = (Pattern.read(f"{layer}.{name}", entry) for name, entry in lines.items())
        unused = (Pattern.read(f"{layer}.{name}", "") for name in variant.get("unused", ()))
        return cls(
            tuple(patterns), variant.get("when", {}), tuple(variant.get("types", ())), variant.get("last", ""),
            tuple(unused),
        )  # fmt: skip


@dataclass(frozen=True)
class Stack:
    """A stack and the parts that each of its layers has, each part in one of its variants.

    ``depth``, ``types`` and ``absent_in``: see the data files; ``absent_in`` is None if the stack may be absent.
    ``is_listed``: layers are counted as they are found. ``other_names``: other patterns by which adapters name modules.
    """

    name: str
    parts: tuple[tuple[Variant, ...], ...]
    depth: str = ""
    types: tuple[str, ...] = ()
    is_listed: bool = False
    other_names: tuple[Pattern, ...] = ()
    absent_in: tuple[str, ...] | None = None

    @classmethod
    def read(cls, stack: Mapping[str, Any]) -> Stack:
        """One ``[[stack]]`` of a data file."""
        parts = [variants for key, variants in stack.items() if key not in _NOT_PARTS]
        parsed = (tuple(Variant.read(variant, stack["layer"]) for variant in variants) for variants in parts)
        other_names = (Variant.read(variant, stack["layer"]).patterns for variant in stack.get("other_names", ()))
        return cls(
            stack.get("name", ""), tuple(parsed), stack.get("depth", ""), tuple(stack.get("types", ())),
            stack.get("numbering") == "listed", tuple(chain.from_iterable(other_names)),
            tuple(stack["absent_in"]) if "absent_in" in stack else None,
        )  # fmt: skip

    @property
    def patterns(self) -> Iterator[Pattern]:
        """Every pattern of every variant."""
        return (pattern for part in self.parts for variant in part for pattern in variant.patterns)

    @cached_property
    def unused(self) -> frozenset[tuple[str, ...]]:
        """The paths of tensors that some layers may have and do not use."""
        return frozenset(pattern.path for part in self.parts for variant in part for pattern in variant.unused)

    def has_a_layer(self, names: StackNames, settings: Settings) -> bool:
        """Whether at least one layer is complete."""
        layers = _Layers(self, names, settings)
        return any(not layers.missing(index) for index in layers.present)

    def layers(self, names: StackNames, prefix: str, settings: Settings) -> Iterator[dict[Pattern, str]]:
        """The layers in order, from number 0 on, each complete: pattern → full name of the tensor.

        Raises Skipped("missing_matrices") if a matrix or a whole layer is missing.
        """
        layers = _Layers(self, names, settings)
        if not layers.present:
            return

        def numbered() -> Iterable[Index]:
            return sorted(layers.present) if self.is_listed else _grid(layers.sizes)

        # This must be lazy: a hostile number makes the grid huge, but a gap appears within len(present) steps.
        gaps = (pattern.tensor(index) for index in numbered() for pattern in layers.missing(index))
        if missing := [shown(f"{prefix}{name}") for name in islice(gaps, NAMES_SHOWN)]:
            raise Skipped(
                "missing_matrices", f"the checkpoint's layers are not complete, it lacks {', '.join(missing)}"
            )
        for index in numbered():
            yield {pattern: names[pattern][index] for pattern in layers.chosen(index)}


class _Layers:
    """The layers of one stack of one checkpoint, each with the variants of its parts.

    ``present``: the layers with at least one tensor; ``sizes``: how many there are, by each of their numbers.
    """

    def __init__(self, stack: Stack, names_by_pattern: StackNames, settings: Settings) -> None:
        self._names = names_by_pattern
        self._types = settings.types(stack.types)
        depth = settings.number(stack.depth) if stack.depth else None
        depth = len(self._types) or None if depth is None else depth
        self.present = {
            index
            for names in names_by_pattern.values()
            for index in names
            if depth is None or len(index) != 1 or index[0] < depth
        }
        self.sizes = [max(numbers) + 1 for numbers in zip(*self.present, strict=True)]
        if depth is not None and len(self.sizes) == 1:
            self.sizes = [depth]
        # For each part the variants that the config allows, each with the number of the last layers it applies to.
        self._parts = [
            [
                (variant, settings.number(variant.last) if variant.last else None)
                for variant in part
                if all(settings.switch(name) == value for name, value in variant.when.items())
            ]
            for part in stack.parts
        ]

    def chosen(self, index: Index) -> list[Pattern]:
        """The tensors of one layer: of each part the variant with the most tensors present, then the fewest missing."""
        patterns: list[Pattern] = []
        for part in self._parts:
            fitting = [variant for variant, last in part if last is not None and index[-1] >= self.sizes[-1] - last]
            fitting = fitting or [variant for variant, last in part if last is None]
            if len(index) == 1 and index[0] < len(self._types):
                layer_type = self._types[index[0]]
                fitting = [
                    variant for variant in fitting if not variant.types or layer_type in variant.types
                ] or fitting
            if len(fitting) == 1:
                patterns += fitting[0].patterns
                continue

            def presence(variant: Variant) -> tuple[int, int, int]:
                count = sum(index in self._names.get(pattern, ()) for pattern in variant.patterns)
                in_all_layers = sum(len(self._names.get(pattern, ())) for pattern in variant.patterns)
                return count, count - len(variant.patterns), in_all_layers

            patterns += max(fitting, key=presence).patterns
        return patterns

    def missing(self, index: Index) -> list[Pattern]:
        """The tensors that one layer lacks."""
        missing = [pattern for pattern in self.chosen(index) if index not in self._names.get(pattern, ())]
        if not missing and index not in self.present:  # every part may be missing, but not all of them
            return [next(pattern for part in self._parts for variant, _ in part for pattern in variant.patterns)]
        return missing


@dataclass(frozen=True)
class Settings:
    """The values of an untrusted config.json that determine how fused tensors divide.

    ``counts``: for each count the keys of the config, the preferred key first; ``switches``: booleans with their
    defaults. Both come from the data file.
    """

    config: Mapping[str, Any]
    counts: Mapping[str, tuple[str, ...]]
    switches: Mapping[str, bool]

    def count(self, name: str, most: int = _MAX_HEADS) -> int:
        """A number of heads, or another count; "kv_heads" defaults to "heads".

        Raises Skipped("malformed").
        """
        for key in self.counts[name]:
            value = self._value(key)
            if value is None:
                continue
            if type(value) is not int or not 1 <= value <= most:
                raise Skipped("malformed", f"config.json says {key} = {shown(value)}, not a number of 1 to {most}")
            return value
        if name == "kv_heads":
            return self.count("heads", most)
        raise Skipped("malformed", f"config.json does not say {' or '.join(self.counts[name])}")

    def switch(self, name: str) -> bool:
        """True or false, by default as in the data file. Raises Skipped("malformed")."""
        value = self._value(name)
        if value is not None and not isinstance(value, bool):
            raise Skipped("malformed", f"config.json says {name} = {shown(value)}, neither true nor false")
        return self.switches[name] if value is None else value

    def number(self, key: str) -> int | None:
        """A number of layers; None if the config lacks it. Raises Skipped("malformed")."""
        value = self._value(key)
        if value is not None and (type(value) is not int or not 0 <= value <= _MAX_HEADS):
            raise Skipped("malformed", f"config.json says {key} = {shown(value)}, not a number of 0 to {_MAX_HEADS}")
        return value

    def types(self, keys: tuple[str, ...]) -> list[str]:
        """The types of the layers; empty if the config lacks them. Raises Skipped("malformed")."""
        for key in keys:
            value = self._value(key)
            if value is not None:
                if not isinstance(value, list | str) or not all(isinstance(name, str) for name in value):
                    raise Skipped("malformed", f"config.json says {key} = {shown(value)}, not a list of types")
                return list(value)
        return []

    def _value(self, key: str) -> Any:
        """A value of the config: that of its text_config (InternVL: llm_config) if it has one, else its own."""
        for name in ("text_config", "llm_config"):
            text = self.config.get(name)
            value = text.get(key) if isinstance(text, Mapping) else None
            if value is not None:
                return value
        return self.config.get(key)


def _grid(sizes: list[int]) -> Iterator[Index]:
    """All index tuples below ``sizes``, in order; itertools.product would hold a hostile range in memory."""
    if not sizes:
        yield ()
        return
    for first in range(sizes[0]):
        for inner in _grid(sizes[1:]):
            yield (first, *inner)
