"""Reads an architecture's data file: how the tensors of a layer are named, and how fused ones divide.

The format of a file in ``architectures/``:

    model_types = ["…"]                    the config.json model types it serves
    prefixes = ["bert.", ""]               if a file holds several models, the first of these is used
    foreign = ["vision_tower"]             modules whose contents are ignored (default: none)
    transposed = true                      the checkpoint stores in × out (default: out × in)
    [counts]
    heads = ["num_attention_heads"]        keys of config.json, the first found wins
    [switches]
    multi_query = true                     boolean keys of config.json and their defaults
    [[stack]]                              one or more
    name = "encoder"                       left out where there is one stack
    numbering = "listed"                   layers are counted as they are found (default: numbers without gaps)
    layer = "encoder.layer.{layer}"        the prefix of a layer's tensors; {group} and {layer} count together
    [[stack.attention]]                    a part of every layer; several tables are its variants, of which
    when = { multi_query = true }          the config's switches and the tensors that exist choose one;
    layer = "layers.{layer}"               a variant may name layers its own way
    "attention.self.query" = "query"       tensor, without ".weight" = family
    "attn.c_attn" = ["query", "key"]       fused, equal parts one after the other
    "attn.qkv" = { families = ["query", "key"], shares = ["heads", "kv_heads"], groups = "kv_heads" }
                                           fused: relative numbers of rows, and how often the sequence repeats
    [[stack.other_names]]                  names of the same modules in adapters only, in the same form
    [other_prefixes]                       the same for the beginnings of names
    "input_blocks.4.1" = "down_blocks.1.attentions.0"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from indexer.architectures.layout import Rows
from indexer.errors import Skipped
from indexer.untrusted import shown

MAX_HEADS = 4096  # far above any model
MAX_LAYER = 10**9  # larger layer numbers are read as this

_NOT_PARTS = ("name", "layer", "numbering", "other_names")

NAMES_SHOWN = 3  # of untrusted names in an error

Index = tuple[int, ...]
# The names found of one stack: pattern → layer → name without ".weight".
Found = dict["Pattern", dict[Index, str]]


@dataclass(frozen=True)
class Pattern:
    """A tensor of every layer: its dotted path, with ``{…}`` for a layer's number.

    ``families`` are in the order of their rows. If there are several, ``shares`` are their relative numbers of rows
    and ``groups`` how often the whole sequence repeats; both are numbers or names of counts in the config (see
    ``Settings``).
    """

    path: tuple[str, ...]
    families: tuple[str, ...]
    shares: tuple[int | str, ...]
    groups: int | str

    @classmethod
    def read(cls, path: str, what: str | list[str] | dict[str, Any]) -> Pattern:
        """One line of a data file: a family, a list of families in equal parts, or a table with all of it."""
        table: dict[str, Any] = (
            what if isinstance(what, dict) else {"families": [what] if isinstance(what, str) else what}
        )
        families = tuple(table["families"])
        shares = tuple(table.get("shares", [1] * len(families)))
        return cls(tuple(path.split(".")), families, shares, table.get("groups", 1))

    @property
    def whole(self) -> str:
        """The name of the whole tensor: ``query_key_value``."""
        return "_".join(self.families)

    def match(self, parts: list[str]) -> Index | None:
        """The layer's number(s) in a name split at its dots, or None if it is the name of another tensor."""
        if len(parts) < len(self.path):
            return None
        numbers: list[int] = []
        for expected, part in zip(reversed(self.path), reversed(parts), strict=False):
            if expected.startswith("{"):
                if not (part.isascii() and part.isdigit() and (part == "0" or part[0] != "0")):
                    return None
                numbers.append(int(part) if len(part) <= 9 else MAX_LAYER)
            elif expected != part:
                return None
        return tuple(reversed(numbers))

    def name(self, index: Index) -> str:
        """The tensor's name in one layer, without prefix and ``.weight``."""
        numbers = iter(index)
        return ".".join(str(next(numbers)) if part.startswith("{") else part for part in self.path)

    def divide(self, tensor: str, out: int, settings: Settings) -> list[Rows | None]:
        """The rows of each family among the ``out`` rows of ``tensor``; None if it holds only one.

        Raises Skipped("malformed") if the rows do not divide as the config says.
        """
        if len(self.families) == 1:
            return [None]
        used = {name: settings.count(name) for name in (*self.shares, self.groups) if isinstance(name, str)}
        shares = [used[share] if isinstance(share, str) else share for share in self.shares]
        groups = used[self.groups] if isinstance(self.groups, str) else self.groups
        unit, rest = divmod(out, sum(shares))
        uneven = rest or any(share * unit % groups for share in shares)
        if uneven or used.get("heads", 0) % used.get("kv_heads", 1):
            by = ", ".join(f"{name} = {count}" for name, count in used.items()) or "equal parts"
            raise Skipped(
                "malformed",
                f"{shown(tensor)} has {out} rows, which do not divide into {self.whole} by {by}",
            )
        stops = [sum(shares[: place + 1]) * unit // groups for place in range(len(shares))]
        return [Rows(groups, stops[-1], start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


@dataclass(frozen=True)
class Variant:
    """One way to store a part of a layer, used if the config's switches are ``when``."""

    patterns: tuple[Pattern, ...]
    when: Mapping[str, bool]

    @classmethod
    def read(cls, variant: Mapping[str, Any], layer: str) -> Variant:
        """One table of a data file; ``layer`` is used if the table has none."""
        lines = {name: what for name, what in variant.items() if name not in ("when", "layer")}
        layer = variant.get("layer", layer)
        patterns = (Pattern.read(f"{layer}.{name}", what) for name, what in lines.items())
        return cls(tuple(patterns), variant.get("when", {}))


@dataclass(frozen=True)
class Stack:
    """A stack and the parts that each of its layers has, each part in one of its variants.

    ``is_listed``: layers are counted as they are found. ``other_names``: other patterns by which adapters name modules.
    """

    name: str
    parts: tuple[tuple[Variant, ...], ...]
    is_listed: bool = False
    other_names: tuple[Pattern, ...] = ()

    @classmethod
    def read(cls, stack: Mapping[str, Any]) -> Stack:
        """One ``[[stack]]`` of a data file."""
        parts = [variants for key, variants in stack.items() if key not in _NOT_PARTS]
        read = (tuple(Variant.read(variant, stack["layer"]) for variant in variants) for variants in parts)
        others = (Variant.read(variant, stack["layer"]).patterns for variant in stack.get("other_names", ()))
        is_listed = stack.get("numbering") == "listed"
        return cls(stack.get("name", ""), tuple(read), is_listed, tuple(chain.from_iterable(others)))

    @property
    def patterns(self) -> Iterator[Pattern]:
        """Every pattern of every variant."""
        return (pattern for part in self.parts for variant in part for pattern in variant.patterns)

    def choose(self, found: Found, settings: Settings) -> tuple[Pattern, ...]:
        """For every part of a layer the patterns of the variant with the most tensors present."""
        chosen: list[Pattern] = []
        for part in self.parts:
            allowed = [
                variant.patterns
                for variant in part
                if all(settings.switch(name) == value for name, value in variant.when.items())
            ]
            chosen += max(allowed, key=lambda patterns: sum(len(found.get(one, ())) for one in patterns))
        return tuple(chosen)

    def has_a_layer(self, found: Found, settings: Settings) -> bool:
        """Whether at least one layer is complete."""
        layers = [set(found.get(pattern, ())) for pattern in self.choose(found, settings)]
        return bool(set.intersection(*layers))

    def layers(self, found: Found, prefix: str, settings: Settings) -> Iterator[dict[Pattern, str]]:
        """The layers in order, each complete: pattern → full name of the tensor.

        Raises Skipped("missing_matrices") if a matrix or a whole layer is missing.
        """
        chosen = {pattern: found.get(pattern, {}) for pattern in self.choose(found, settings)}
        present = {index for names in chosen.values() for index in names}
        if not present:
            return
        sizes = [max(numbers) + 1 for numbers in zip(*present, strict=True)]
        listed = sorted(present)

        def layers() -> Iterable[Index]:
            return listed if self.is_listed else _grid(sizes)

        # Must be lazy: a hostile number makes the grid huge, but a gap appears within len(present) steps.
        gaps = ((pattern, index) for index in layers() for pattern in chosen if index not in chosen[pattern])
        if some := [shown(f"{prefix}{pattern.name(index)}.weight") for pattern, index in islice(gaps, NAMES_SHOWN)]:
            raise Skipped("missing_matrices", f"the checkpoint's layers are not complete, it lacks {', '.join(some)}")
        for index in layers():
            yield {pattern: names[index] + ".weight" for pattern, names in chosen.items()}


@dataclass(frozen=True)
class Settings:
    """The few values of an untrusted config.json that say how fused tensors divide.

    ``counts`` gives for each count the keys of the config, of which the first present one is used; ``switches`` are
    booleans with their defaults. Both come from the data file.
    """

    config: Mapping[str, Any]
    counts: Mapping[str, tuple[str, ...]]
    switches: Mapping[str, bool]

    def count(self, name: str) -> int:
        """A number of heads; "kv_heads" defaults to "heads".

        Raises Skipped("malformed").
        """
        for key in self.counts[name]:
            value = self.config.get(key)
            if value is None:
                continue
            if type(value) is not int or not 1 <= value <= MAX_HEADS:
                raise Skipped("malformed", f"config.json says {key} = {shown(value)}, not a number of 1 to {MAX_HEADS}")
            return value
        if name == "kv_heads":
            return self.count("heads")
        raise Skipped("malformed", f"config.json does not say {' or '.join(self.counts[name])}")

    def switch(self, name: str) -> bool:
        """True or false, by default as in the data file. Raises Skipped("malformed")."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise Skipped("malformed", f"config.json says {name} = {shown(value)}, neither true nor false")
        return self.switches[name] if value is None else value


def _grid(sizes: list[int]) -> Iterator[Index]:
    """All index tuples below ``sizes``, in order; itertools.product would hold a hostile range in memory."""
    if not sizes:
        yield ()
        return
    for first in range(sizes[0]):
        for rest in _grid(sizes[1:]):
            yield (first, *rest)
