"""Read the pickle of a PyTorch checkpoint without unpickling it.

A small machine follows the pickle's instructions with stand-ins: it knows what a state dict is made of
(dictionaries, names, descriptions of tensors), calls nothing, imports nothing, and makes nothing larger than
the pickle is. ``torch.load(weights_only=True)`` also refuses to run strange code, but it calls what is on its
list: thirty bytes of pickle make it allocate ``bytearray(3 << 30)``. And it cannot tell where in a file of the
older form a tensor lies.

What a pickle may name is what ``torch.load(weights_only=True)`` lets through.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, Any, Protocol, cast

import torch

from indexer.errors import Skipped
from indexer.stored_tensor import is_count, shown

# A state dict takes about 30 instructions and 120 bytes a tensor.
MOST_BYTES = 16 << 20
MOST_INSTRUCTIONS = 2_000_000
MOST_DIMENSIONS = 16

_STORAGE_DTYPES: dict[str, torch.dtype] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "UntypedStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "QInt8Storage": torch.qint8,
    "QUInt8Storage": torch.quint8,
    "QInt32Storage": torch.qint32,
}
_HARMLESS = frozenset(
    {
        ("collections", "OrderedDict"),
        ("collections", "Counter"),
        ("builtins", "set"),
        ("builtins", "bytearray"),
        ("builtins", "complex"),
        ("_codecs", "encode"),
        ("torch.serialization", "_get_layout"),
        ("torch._tensor", "_rebuild_from_type_v2"),
        ("torch.storage", "TypedStorage"),
        ("torch.storage", "UntypedStorage"),
        ("torch.nn.parameter", "Parameter"),
    }
)
_TORCH_MODULES = ("torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse")
_TORCH_KINDS = (torch.dtype, torch.qscheme)


@dataclass(frozen=True)
class PickledName:
    """A global that the pickle names; it is never looked up."""

    module: str
    name: str

    @property
    def is_allowed(self) -> bool:
        """Whether a checkpoint may name it."""
        if (self.module, self.name) in _HARMLESS:
            return True
        if self.module == "torch._utils":
            return self.name.startswith("_rebuild_")
        if self.module not in _TORCH_MODULES:
            return False
        return (
            self.name in ("Size", "device")
            or self.name.endswith(("Storage", "Tensor"))
            or isinstance(vars(torch).get(self.name), _TORCH_KINDS)
        )


@dataclass(frozen=True)
class PickledStorage:
    """Memory that tensors share: ``elements`` of ``dtype`` under ``key``; all of it unverified.

    ``first`` is where in it a view of the oldest files begins, in elements.
    """

    key: str
    dtype: torch.dtype
    elements: int
    first: int = 0


@dataclass(frozen=True)
class PickledTensor:
    """A tensor as the pickle describes it; ``offset`` and ``stride`` in elements, all of it unverified."""

    storage: PickledStorage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Other:
    """Whatever a checkpoint may hold that is of no interest here."""


_OTHER = _Other()


class _MalformedError(Exception):
    """The pickle is not one."""


@dataclass(frozen=True)
class Pickled:
    """What one pickle says: its object in stand-ins, and the storages it mentions by key."""

    value: Any
    storages: dict[str, PickledStorage]


class ByteReader(Protocol):
    """What a pickle is read from."""

    def read(self, count: int, /) -> bytes: ...
    def readline(self) -> bytes: ...
    def tell(self) -> int: ...


def read_pickle(file: ByteReader, filename: str) -> Pickled:
    """Follow one pickle to its end; ``file`` then stands behind it.

    Raises Skipped("unsafe_pickle") naming the first global that has no place in a checkpoint, and
    Skipped("corrupt_file") for what is no pickle, or too large a one.
    """
    machine = _Machine(filename)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(cast("IO[bytes]", file))):
            if count >= MOST_INSTRUCTIONS:
                raise _MalformedError(f"more than {MOST_INSTRUCTIONS} instructions")
            machine.follow(opcode.name, argument)
        return Pickled(machine.stack.pop(), machine.storages)
    except (
        _MalformedError,
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        OverflowError,
        struct.error,
    ) as error:
        raise Skipped("corrupt_file", f"{shown(filename)} holds a broken pickle ({shown(error)})") from error


def state_dict_of(value: Any) -> dict[str, PickledTensor]:
    """The tensors by name: of ``value`` itself, or of the dictionary in it that holds the model.

    One called state_dict, model_state_dict or model is preferred; else the one with the most tensors.
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
    """``value`` and the dictionaries in it, three levels deep, each once, with the names they go by."""
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
    """The stack machine of pickle, with stand-ins for everything that is not plain data."""

    def __init__(self, filename: str) -> None:
        self.stack: list[Any] = []
        self.storages: dict[str, PickledStorage] = {}
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._filename = filename

    def follow(self, opcode: str, argument: Any) -> None:
        """One instruction."""
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
            raise _MalformedError("a global without a name")
        found = PickledName("builtins" if module == "__builtin__" else module, name)
        if not found.is_allowed:
            raise self._unsafe(f"{module}.{name}")
        self.stack.append(found)

    def _unsafe(self, wanted: str) -> Skipped:
        return Skipped(
            "unsafe_pickle",
            f"{shown(self._filename)} is a pickle that wants {shown(wanted)}, which has no place in a "
            "checkpoint; it was not run",
        )

    # One method for each instruction that does more than push a constant.

    def mark(self) -> None:
        self._marks.append(len(self.stack))

    def pop(self) -> None:
        self.stack.pop()

    def pop_mark(self) -> None:
        self._since_mark()

    def duplicate(self) -> None:
        self.stack.append(self.stack[-1])

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self.stack[-1]

    def stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._push_name(module, name)

    def tuple_of(self, count: int | None = None) -> None:
        if count is None:
            self.stack.append(tuple(self._since_mark()))
        else:
            items = [self.stack.pop() for _ in range(count)]
            self.stack.append(tuple(reversed(items)))

    def list_of(self) -> None:
        self.stack.append(self._since_mark())

    def dict_of(self) -> None:
        self.stack.append(_dictionary(self._since_mark()))

    def append(self) -> None:
        self._extend([self.stack.pop()])

    def appends(self) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(items)

    def add_items(self) -> None:
        self._since_mark()

    def frozenset_of(self) -> None:
        self._since_mark()
        self.stack.append(_OTHER)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def set_items(self) -> None:
        self._update(self._since_mark())

    def _update(self, items: list[Any]) -> None:
        if isinstance(self.stack[-1], dict):
            self.stack[-1].update(_dictionary(items))

    def build(self) -> None:
        self.stack.pop()

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(arguments, tuple):
            raise _MalformedError("a call without arguments")
        self.stack.append(_stand_in(function, arguments))

    def new_object(self) -> None:
        self.reduce()

    def new_object_with_names(self) -> None:
        self.stack.pop()
        self.reduce()

    def persistent_id(self) -> None:
        storage = _storage(self.stack.pop())
        first = self.storages.setdefault(storage.key, storage)
        if (first.dtype, first.elements) != (storage.dtype, storage.elements):
            raise _MalformedError(f"two descriptions of the storage {storage.key[:40]}")
        self.stack.append(storage)


_PUSHED = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT "
    "STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8".split()
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": lambda: _OTHER,
}
_STEPS: dict[str, Callable[[_Machine], None]] = {
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    "DUP": _Machine.duplicate,
    "MEMOIZE": _Machine.memoize,
    "STACK_GLOBAL": _Machine.stack_global,
    "TUPLE": _Machine.tuple_of,
    "TUPLE1": lambda machine: machine.tuple_of(1),
    "TUPLE2": lambda machine: machine.tuple_of(2),
    "TUPLE3": lambda machine: machine.tuple_of(3),
    "LIST": _Machine.list_of,
    "DICT": _Machine.dict_of,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "ADDITEMS": _Machine.add_items,
    "FROZENSET": _Machine.frozenset_of,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "BUILD": _Machine.build,
    "REDUCE": _Machine.reduce,
    "NEWOBJ": _Machine.new_object,
    "NEWOBJ_EX": _Machine.new_object_with_names,
    "BINPERSID": _Machine.persistent_id,
}


def _dictionary(items: list[Any]) -> dict[str, Any]:
    """The pairs whose key is a string: the names of tensors are strings, and only their hashes are safe."""
    if len(items) % 2:
        raise _MalformedError("a dictionary with a key and no value")
    pairs = zip(items[::2], items[1::2], strict=True)
    return {key: value for key, value in pairs if isinstance(key, str)}


def _stand_in(function: Any, arguments: tuple[Any, ...]) -> Any:
    """What a call would give, as far as it matters here."""
    if not isinstance(function, PickledName):
        return _OTHER
    if function.name == "OrderedDict":
        if not arguments:
            return {}
        pairs = arguments[0] if isinstance(arguments[0], list) else []
        return _dictionary([item for pair in pairs if len(pair) == 2 for item in pair])
    if function.name in ("_rebuild_parameter", "_rebuild_parameter_with_state", "Parameter", "Size"):
        return arguments[0] if arguments else _OTHER
    if function.name == "_rebuild_from_type_v2" and len(arguments) == 4 and isinstance(arguments[2], tuple):
        return _stand_in(arguments[0], arguments[2])
    if function.name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"):
        return _tensor(function.name, arguments)
    return _OTHER


def _tensor(builder: str, arguments: tuple[Any, ...]) -> PickledTensor:
    storage, offset, shape, stride = arguments[:4]
    if not isinstance(storage, PickledStorage):
        raise _MalformedError("a tensor without a storage")
    shape, stride = _sizes(shape), _sizes(stride)
    if not is_count(offset) or shape is None or stride is None or len(shape) != len(stride):
        raise _MalformedError("a tensor with an impossible shape")
    dtype = storage.dtype
    if builder == "_rebuild_tensor_v3":
        named = arguments[6]
        found = vars(torch).get(named.name) if isinstance(named, PickledName) else None
        if not isinstance(found, torch.dtype):
            raise _MalformedError("a tensor of an unknown dtype")
        dtype = found
    return PickledTensor(storage, dtype, offset, shape, stride)


def _sizes(found: Any) -> tuple[int, ...] | None:
    if isinstance(found, tuple | list) and len(found) <= MOST_DIMENSIONS and all(map(is_count, found)):
        return tuple(found)
    return None


def _storage(identifier: Any) -> PickledStorage:
    """("storage", type, key, location, elements[, view]), where a view is (key, first element, elements)."""
    if not isinstance(identifier, tuple) or len(identifier) not in (5, 6) or identifier[0] != "storage":
        raise _MalformedError("a persistent id that is no storage")
    kind, key, elements = identifier[1], identifier[2], identifier[4]
    dtype = _STORAGE_DTYPES.get(kind.name) if isinstance(kind, PickledName) else None
    if dtype is None or not isinstance(key, str) or not is_count(elements):
        raise _MalformedError("a storage of an unknown kind")
    view = identifier[5] if len(identifier) == 6 else None
    if view is None:
        return PickledStorage(key, dtype, elements)
    if not isinstance(view, tuple) or len(view) != 3 or not is_count(view[1]):
        raise _MalformedError("a view that is none")
    return PickledStorage(key, dtype, elements, view[1])
