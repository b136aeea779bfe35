"""Every model type of the installed transformers, built small and saved: the names of its matrices, as one JSON file.

Each type is built in a forked process of its own, with limits of time and memory: a few die or never end.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import resource
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from multiprocessing.connection import Connection
from typing import Any

import transformers

from indexer.architectures.architecture import load_architecture
from indexer.errors import Skipped
from scripts.model_types.build import NoModelError, model_types, saved_model

SECONDS = 90
MEMORY = 96 << 30  # of addresses; most of them are never written
_NUMBER = re.compile(r"(?<![^.])(\d+)(?![^.])")
_EXPERTS = re.compile(r"\.experts\.|\.mlp\.experts|\.block_sparse_moe\.(in|out)put_linear")
# Values of config.json that say how fused matrices divide.
_COUNTS = re.compile(
    r"(num_|n_)?(attention_|key_value_|kv_)?heads?(_kv)?|n_head|n_head_kv|multi_query|new_decoder_architecture"
)


def sweep(chosen: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
    """Model type → the class built and its ``matrices``, or the ``reason`` why there is none."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    found = {}
    for model_type in chosen or model_types():
        found[model_type] = in_own_process(describe, model_type)
        print(f"{model_type:40} {found[model_type].get('reason', '')[:90]}", file=sys.stderr)
    return found


def describe(model_type: str) -> dict[str, Any]:
    """One entry of the file: what ``saved_model`` saves, numbered matrices only."""
    try:
        name, shapes, held, config = saved_model(model_type)
    except NoModelError as error:
        return {"reason": str(error)}
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return {"reason": f"{type(error).__name__}: {lines[0][:200] if lines else 'no message'}"}
    numbered = {each: shape for each, shape in shapes.items() if is_layer_matrix(each, shape)}
    counts = _counts(model_type, config)
    live = {each: shape for each, shape in held.items() if is_layer_matrix(each, shape)}
    entry: dict[str, Any] = {"class": name, "matrices": folded(numbered)}
    if live.keys() != numbered.keys():
        entry["modules"] = folded(live)
    return entry | ({"config": counts} if counts else {})


def _counts(model_type: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Those values of a config.json that data files use: numbers of heads, and what the type's own file names."""
    named: set[str] = set()
    with contextlib.suppress(Skipped):
        architecture = load_architecture(model_type)
        named.update(*architecture.counts.values(), architecture.switches)
        for stack in architecture.stacks:
            named.update((stack.depth,), stack.types, (variant.last for part in stack.parts for variant in part))
    found = {
        key: value
        for key, value in config.items()
        if (isinstance(value, int | bool) if _COUNTS.fullmatch(key) else key in named and value is not None)
    }
    text = config.get("text_config")
    is_nested = any(not _COUNTS.fullmatch(key) for key in named if key) or (any(named) and not found)
    if is_nested and isinstance(text, dict):
        found["text_config"] = _counts(model_type, text)
    return found


def is_layer_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is a matrix in a numbered layer; fused experts, matrices in one tensor, count as well."""
    if not _NUMBER.search(name) or name.endswith((".bias", "_bias")):
        return False
    return len(shape) == 2 or (len(shape) == 3 and _EXPERTS.search(name) is not None)


def folded(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """The names and shapes in a short form, which :func:`unfolded` inverts.

    ``layers.0.q.weight`` and ``layers.1.q.weight`` of 4 × 8 are ``{"layers.{0-1}": "q 4x8"}``; a name that does not end
    in ".weight" has a "!" behind it.
    """
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        groups.setdefault((_NUMBER.sub("{}", name), shape), []).append(tuple(map(int, _NUMBER.findall(name))))
    table: dict[str, list[str]] = {}
    for (pattern, shape), numbers in groups.items():
        axes = [sorted(set(axis)) for axis in zip(*numbers, strict=True)]
        is_grid = sorted(numbers) == list(product(*axes)) and all(axis[-1] - axis[0] == len(axis) - 1 for axis in axes)
        ranges = [f"{{{axis[0]}-{axis[-1]}}}" if len(axis) > 1 else f"{axis[0]}" for axis in axes]
        for each in [ranges] if is_grid else [[str(number) for number in one] for one in numbers]:
            head, _, rest = pattern.partition("{}")
            rest = rest.removeprefix(".").format(*each[1:])
            rest = rest.removesuffix(".weight") if rest.endswith(".weight") else f"{rest}!"
            table.setdefault(head + each[0], []).append(f"{rest} {'x'.join(map(str, shape))}")
    return {head: " ".join(sorted(rests)) for head, rests in sorted(table.items())}


def unfolded(table: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """The inverse of :func:`folded`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head, rests in table.items():
        words = rests.split(" ")
        for rest, sizes in zip(words[::2], words[1::2], strict=True):
            ending = rest[:-1] if rest.endswith("!") else f"{rest}.weight"
            name = f"{head}.{ending}" if ending else head
            pieces = re.split(r"\{(\d+)-(\d+)\}", name)
            axes = [range(int(low), int(high) + 1) for low, high in zip(pieces[1::3], pieces[2::3], strict=True)]
            for numbers in product(*axes):
                between = [piece for pair in zip(map(str, numbers), pieces[3::3], strict=True) for piece in pair]
                shapes["".join([pieces[0], *between])] = tuple(int(size) for size in sizes.split("x"))
    return shapes


def in_own_process(work: Callable[[str], dict[str, Any]], argument: str) -> dict[str, Any]:
    """``work(argument)`` in a forked process with limits; what went wrong there is the ``reason``."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, argument, sender), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(SECONDS):
            return {"reason": f"building it takes more than {SECONDS} seconds"}
        return dict(json.loads(receiver.recv()))
    except EOFError:
        process.join(5)
        return {"reason": f"the process that builds it ends with {process.exitcode}"}
    finally:
        process.kill()
        process.join()
        receiver.close()


def _run(work: Callable[[str], dict[str, Any]], argument: str, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    sender.send(json.dumps(work(argument)))
