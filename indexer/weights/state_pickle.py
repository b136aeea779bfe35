"""Read the pickle of a PyTorch checkpoint without unpickling it.

A small machine follows the pickle's instructions with stand-ins (``indexer.weights.pickled``). It calls and imports
nothing, and creates nothing larger than the pickle. ``torch.load(weights_only=True)`` also refuses unknown code, but it
calls the functions on its list: a pickle of thirty bytes makes it allocate ``bytearray(3 << 30)``. And it does not give
the offsets of tensors in files of the older form.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, Any, Protocol, cast

from indexer.errors import Skipped
from indexer.untrusted import shown
from indexer.weights.pickled import (
    OTHER,
    MalformedPickleError,
    PickledName,
    PickledStorage,
    PickledTensor,
    dictionary_of,
    stand_in,
    storage_of,
)

# A state dict takes about 30 instructions and 120 bytes a tensor.
MOST_BYTES = 16 << 20
MOST_INSTRUCTIONS = 1_000_000


class ByteReader(Protocol):
    """What a pickle is read from."""

    def read(self, count: int, /) -> bytes:
        """At most ``count`` bytes, fewer at the end."""
        ...

    def readline(self) -> bytes:
        """Up to and with the next newline."""
        ...

    def tell(self) -> int:
        """The number of bytes read."""
        ...


@dataclass(frozen=True)
class Pickled:
    """The object in a pickle, made of stand-ins, and the storages it mentions by key."""

    value: Any
    storages: dict[str, PickledStorage]


def read_pickle(file: ByteReader, filename: str) -> Pickled:
    """Read one pickle; ``file`` is then positioned after it.

    Raises Skipped("unsafe_pickle") with the first global that a checkpoint must not name, and Skipped("corrupt_file")
    for an invalid or too large pickle.
    """
    machine = _Machine(filename)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(cast("IO[bytes]", file))):
            if count >= MOST_INSTRUCTIONS:
                raise MalformedPickleError(f"more than {MOST_INSTRUCTIONS} instructions")
            machine.follow(opcode.name, argument)
        return Pickled(machine.stack.pop(), machine.storages)
    except (MalformedPickleError, ValueError, LookupError, TypeError, OverflowError, struct.error) as error:
        raise Skipped("corrupt_file", f"{shown(filename)} holds a broken pickle ({shown(error)})") from error


def state_dict_of(value: Any) -> dict[str, PickledTensor]:
    """The tensors by name, of ``value`` itself or of the dictionary in it that holds the model.

    A dictionary called state_dict, model_state_dict or model is preferred, then the one with the most tensors.
    """
    best: tuple[bool, int] = (False, 0)
    found: dict[str, PickledTensor] = {}
    for name, candidate in _dictionaries(value):
        tensors = {key: item for key, item in candidate.items() if isinstance(item, PickledTensor)}
        rank = (name in ("", "state_dict", "model_state_dict", "model"), len(tensors))
        if tensors and rank > best:
            best, found = rank, tensors
    return found


def _dictionaries(value: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    """``value`` and the dictionaries in it, three levels deep, each once, with their names."""
    seen: set[int] = set()
    level: list[tuple[str, Any]] = [("", value)]
    for _ in range(4):
        below: list[tuple[str, Any]] = []
        for name, item in level:
            if isinstance(item, dict) and id(item) not in seen:
                seen.add(id(item))
                yield name, item
                below.extend(item.items())
        level = below


class _Machine:
    """Pickle's stack machine, with stand-ins for everything that is not plain data."""

    def __init__(self, filename: str) -> None:
        self.stack: list[Any] = []
        self.storages: dict[str, PickledStorage] = {}
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._filename = filename

    def follow(self, opcode: str, argument: Any) -> None:
        """Execute one instruction. Raises Skipped for a forbidden name or an unknown instruction."""
        if opcode in _PUSHED:
            self.stack.append(argument)
        elif opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode]())
        elif opcode in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self.stack[-1]
        elif opcode in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[argument])
        elif opcode in _STEPS:
            _STEPS[opcode](self)
        elif opcode == "GLOBAL":
            module, _, name = argument.partition(" ")
            self._push_name(module, name)
        elif opcode == "INST":
            raise self._unsafe(argument.replace(" ", "."))
        elif opcode not in ("PROTO", "FRAME", "STOP"):
            raise self._unsafe(f"the instruction {opcode}")

    def _since_mark(self) -> list[Any]:
        mark = self._marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def _push_name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise MalformedPickleError("a global without a name")
        found = PickledName("builtins" if module == "__builtin__" else module, name)
        if not found.is_allowed:
            raise self._unsafe(f"{module}.{name}")
        self.stack.append(found)

    def _unsafe(self, wanted: str) -> Skipped:
        return Skipped(
            "unsafe_pickle",
            f"{shown(self._filename)} is a pickle that wants {shown(wanted)}, which does not belong in "
            "a checkpoint; it was not run",
        )

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self.stack[-1]

    def stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._push_name(module, name)

    def tuple_of(self, count: int) -> None:
        items = [self.stack.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def extend(self, items: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(items)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.update([key, value])

    def update(self, items: list[Any]) -> None:
        if isinstance(self.stack[-1], dict):
            self.stack[-1].update(dictionary_of(items))

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self.stack.append(stand_in(function, arguments))

    def reduce_with_names(self) -> None:
        self.stack.pop()
        self.reduce()

    def frozen_set(self) -> None:
        self._since_mark()
        self.stack.append(OTHER)

    def persistent_id(self) -> None:
        storage = storage_of(self.stack.pop())
        first = self.storages.setdefault(storage.key, storage)
        if (first.dtype, first.elements) != (storage.dtype, storage.elements):
            raise MalformedPickleError(f"two descriptions of the storage {storage.key[:40]}")
        self.stack.append(storage)


_PUSHED = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
    | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": lambda: OTHER,
}
_STEPS: dict[str, Callable[[_Machine], object]] = {
    "MARK": lambda machine: machine._marks.append(len(machine.stack)),
    "POP": lambda machine: machine.stack.pop(),
    "POP_MARK": _Machine._since_mark,
    "DUP": lambda machine: machine.stack.append(machine.stack[-1]),
    "MEMOIZE": _Machine.memoize,
    "STACK_GLOBAL": _Machine.stack_global,
    "TUPLE": lambda machine: machine.stack.append(tuple(machine._since_mark())),
    "TUPLE1": lambda machine: machine.tuple_of(1),
    "TUPLE2": lambda machine: machine.tuple_of(2),
    "TUPLE3": lambda machine: machine.tuple_of(3),
    "LIST": lambda machine: machine.stack.append(machine._since_mark()),
    "DICT": lambda machine: machine.stack.append(dictionary_of(machine._since_mark())),
    "APPEND": lambda machine: machine.extend([machine.stack.pop()]),
    "APPENDS": lambda machine: machine.extend(machine._since_mark()),
    "ADDITEMS": _Machine._since_mark,
    "FROZENSET": _Machine.frozen_set,
    "SETITEM": _Machine.set_item,
    "SETITEMS": lambda machine: machine.update(machine._since_mark()),
    "BUILD": lambda machine: machine.stack.pop(),
    "REDUCE": _Machine.reduce,
    "NEWOBJ": _Machine.reduce,
    "NEWOBJ_EX": _Machine.reduce_with_names,
    "BINPERSID": _Machine.persistent_id,
}
