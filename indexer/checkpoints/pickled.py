"""Read the pickle of a PyTorch checkpoint without unpickling it.

A small stack machine executes the pickle's instructions with stand-ins for the names, storages and tensors. It calls
and imports nothing, and creates nothing larger than the pickle. ``torch.load(weights_only=True)`` also refuses unknown
code, but it calls the functions on its list: a pickle of thirty bytes makes it allocate ``bytearray(3 << 30)``. And it
does not give the offsets of tensors in files of the older form.

All numbers in the result are untrusted until ``indexer.checkpoints.torch_files`` has checked them against the file.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any, Protocol, cast

import torch

from indexer.errors import Skipped
from indexer.shared_state import ignored_warnings
from indexer.untrusted import is_count, shown

# A state dict takes about 30 instructions and 120 bytes a tensor.
MOST_BYTES = 16 << 20
_MOST_INSTRUCTIONS = 1_000_000
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
# Names that a checkpoint may use besides the types of PyTorch and NumPy, as in ``torch.load(weights_only=True)``.
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
# Trainers store numbers of NumPy beside the weights (a loss, the state of a random generator). They are passed over.
_NUMPY_MODULES = frozenset(
    f"numpy{part}"
    for part in ("", ".dtypes", ".core.multiarray", ".core.numeric", "._core.multiarray", "._core.numeric")
)
_NUMPY_NAMES = frozenset(
    (
        "scalar", "_reconstruct", "_frombuffer", "dtype", "ndarray", "str_", "bytes_", "bool_", "bool", "longlong",
        "ulonglong", "longdouble", "datetime64", "timedelta64", "int8", "int16", "int32", "int64", "uint8", "uint16",
        "uint32", "uint64", "float16", "float32", "float64", "float128", "complex64", "complex128",
    )
)  # fmt: skip
_TORCH_MODULES = ("torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse")
_TORCH_KINDS = (torch.dtype, torch.qscheme)

# Anything in a checkpoint that is not needed here.
_OTHER = object()


class MalformedPickleError(Exception):
    """The pickle is invalid, or describes something impossible."""


class ByteReader(Protocol):
    """A file from which a pickle is read."""

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
class PickledName:
    """A global that the pickle names. It is never imported."""

    module: str
    name: str

    @property
    def is_allowed(self) -> bool:
        """Whether a checkpoint may name it."""
        if (self.module, self.name) in _HARMLESS:
            return True
        if self.module in _NUMPY_MODULES:
            return self.name in _NUMPY_NAMES or (self.module == "numpy.dtypes" and self.name.endswith("DType"))
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
    """Memory that tensors share, with the name ``key`` and ``elements`` numbers of ``dtype``.

    ``first``: in the oldest files the start of a view, in elements.
    """

    key: str
    dtype: torch.dtype
    elements: int
    first: int = 0

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True)
class PickledTensor:
    """A tensor; ``offset`` and ``stride`` in elements."""

    storage: PickledStorage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read_pickle(file: ByteReader, filename: str) -> tuple[Any, dict[str, PickledStorage]]:
    """Read one pickle: its object, made of stand-ins, and the storages it mentions by key.

    ``file`` is then positioned after it. Raises Skipped("unsafe_pickle") with the first global that a checkpoint must
    not name, and Skipped("corrupt_file") for an invalid or too large pickle.
    """
    machine = _Machine(filename)
    try:
        with ignored_warnings(category=DeprecationWarning):  # of invalid escape sequences in texts
            for count, (opcode, argument, _) in enumerate(pickletools.genops(cast("IO[bytes]", file))):
                if count >= _MOST_INSTRUCTIONS:
                    raise MalformedPickleError(f"more than {_MOST_INSTRUCTIONS} instructions")
                machine.follow(opcode.name, argument)
        return machine.stack.pop(), machine.storages
    except (MalformedPickleError, ValueError, LookupError, TypeError, OverflowError, struct.error) as error:
        raise Skipped("corrupt_file", f"{shown(filename)} holds a broken pickle ({shown(error)})") from error


def state_dict_of(value: Any) -> dict[str, PickledTensor]:
    """The tensors by name, of ``value`` itself or of the dictionary in it that holds the model.

    A dictionary called state_dict, model_state_dict or model is preferred, then the one with the most tensors.
    """
    best_rank: tuple[bool, int] = (False, 0)
    best: dict[str, PickledTensor] = {}
    for name, candidate in _dictionaries(value):
        tensors = {key: item for key, item in candidate.items() if isinstance(item, PickledTensor)}
        rank = (name in ("", "state_dict", "model_state_dict", "model"), len(tensors))
        if tensors and rank > best_rank:
            best_rank, best = rank, tensors
    return best


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
    """Pickle's stack machine, with stand-ins for all objects that are not plain data."""

    def __init__(self, filename: str) -> None:
        self.stack: list[Any] = []
        self.storages: dict[str, PickledStorage] = {}
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._filename = filename

    def follow(self, opcode: str, argument: Any) -> None:
        """Execute one instruction. Raises Skipped for a forbidden name or an unknown instruction."""
        stack = self.stack
        match opcode:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode])
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_SET":
                stack.append(_OTHER)
            case "MARK":
                self._marks.append(len(stack))
            case "POP" | "BUILD":
                stack.pop()
            case "POP_MARK" | "ADDITEMS":
                self._since_mark()
            case "DUP":
                stack.append(stack[-1])
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [stack.pop() for _ in range(int(opcode[-1]))]
                stack.append(tuple(reversed(items)))
            case "LIST":
                stack.append(self._since_mark())
            case "DICT":
                stack.append(_dictionary(self._since_mark()))
            case "FROZENSET":
                self._since_mark()
                stack.append(_OTHER)
            case "APPEND" | "APPENDS":
                items = [stack.pop()] if opcode == "APPEND" else self._since_mark()
                if isinstance(stack[-1], list):
                    stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                items = [stack.pop(), stack.pop()][::-1] if opcode == "SETITEM" else self._since_mark()
                if isinstance(stack[-1], dict):
                    stack[-1].update(_dictionary(items))
            case "GLOBAL":
                self._push_name(*argument.partition(" ")[::2])
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                self._push_name(module, name)
            case "REDUCE" | "NEWOBJ" | "NEWOBJ_EX":
                if opcode == "NEWOBJ_EX":
                    stack.pop()  # arguments by name
                arguments, function = stack.pop(), stack.pop()
                stack.append(_result(function, arguments))
            case "BINPERSID":
                storage = _storage(stack.pop())
                first = self.storages.setdefault(storage.key, storage)
                if (first.dtype, first.elements) != (storage.dtype, storage.elements):
                    raise MalformedPickleError(f"two descriptions of the storage {storage.key[:40]}")
                stack.append(storage)
            case "INST":
                raise self._unsafe(argument.replace(" ", "."))
            case _ if opcode in _PUSHED:
                stack.append(argument)
            case _:
                raise self._unsafe(f"the instruction {opcode}")

    def _since_mark(self) -> list[Any]:
        mark = self._marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def _push_name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise MalformedPickleError("a global without a name")
        pickled_name = PickledName("builtins" if module == "__builtin__" else module, name)
        if not pickled_name.is_allowed:
            raise self._unsafe(f"{module}.{name}")
        self.stack.append(pickled_name)

    def _unsafe(self, name: str) -> Skipped:
        return Skipped(
            "unsafe_pickle",
            f"{shown(self._filename)} is a pickle that wants {shown(name)}, which does not belong in "
            "a checkpoint; it was not run",
        )


_PUSHED = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
    | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
)


def _dictionary(items: list[Any]) -> dict[str, Any]:
    """Alternating keys and values, as a dictionary of those whose key is a string.

    Names of tensors are strings, and only strings have hashes that cannot be made to collide.
    """
    if len(items) % 2:
        raise MalformedPickleError("a dictionary with a key and no value")
    pairs = zip(items[::2], items[1::2], strict=True)
    return {key: value for key, value in pairs if isinstance(key, str)}


def _name(value: Any) -> str:
    """The name of a global without its module; "" for anything else."""
    return value.name if isinstance(value, PickledName) else ""


def _result(function: Any, arguments: Any) -> Any:
    """A stand-in for the result of a call. Nothing is called."""
    while isinstance(arguments, tuple) and len(arguments) == 4 and _name(function) == "_rebuild_from_type_v2":
        function, _, arguments, _ = arguments
    if not isinstance(arguments, tuple):
        raise MalformedPickleError("a call without arguments")
    match _name(function):
        case "OrderedDict":
            pairs = arguments[0] if arguments and isinstance(arguments[0], list) else []
            return _dictionary([item for pair in pairs if len(pair) == 2 for item in pair])
        case "_rebuild_parameter" | "_rebuild_parameter_with_state" | "Parameter" | "Size":
            return arguments[0] if arguments else _OTHER
        case "_rebuild_tensor" | "_rebuild_tensor_v2":
            return _tensor(arguments, None)
        case "_rebuild_tensor_v3":
            dtype = vars(torch).get(_name(arguments[6]))
            if not isinstance(dtype, torch.dtype):
                raise MalformedPickleError("a tensor of an unknown dtype")
            return _tensor(arguments, dtype)
    return _OTHER


def _tensor(arguments: tuple[Any, ...], dtype: torch.dtype | None) -> PickledTensor:
    """(storage, offset, shape, stride, …); ``dtype`` if it is not the storage's."""
    storage, offset, shape, stride = arguments[:4]
    if not isinstance(storage, PickledStorage):
        raise MalformedPickleError("a tensor without a storage")
    for sizes in (shape, stride):
        is_list = isinstance(sizes, tuple | list) and len(sizes) <= MOST_DIMENSIONS
        if not is_list or not all(map(is_count, sizes)):
            raise MalformedPickleError("a tensor of an impossible shape")
    if not is_count(offset) or len(shape) != len(stride):
        raise MalformedPickleError("a tensor of an impossible shape")
    return PickledTensor(storage, dtype or storage.dtype, offset, tuple(shape), tuple(stride))


def _storage(identifier: Any) -> PickledStorage:
    """("storage", type, key, location, elements[, view]), where a view is (key, first element, elements)."""
    if not isinstance(identifier, tuple) or len(identifier) not in (5, 6) or identifier[0] != "storage":
        raise MalformedPickleError("a persistent id that is not a storage")
    kind, key, elements = identifier[1], identifier[2], identifier[4]
    dtype = _STORAGE_DTYPES.get(_name(kind))
    if dtype is None or not isinstance(key, str) or not is_count(elements):
        raise MalformedPickleError("a storage of an unknown kind")
    view = identifier[5] if len(identifier) == 6 else None
    if view is None:
        return PickledStorage(key, dtype, elements)
    if not isinstance(view, tuple) or len(view) != 3 or not is_count(view[1]):
        raise MalformedPickleError("an invalid view")
    return PickledStorage(key, dtype, elements, view[1])
