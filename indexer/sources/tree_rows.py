"""What the files of a model in a tree say of it: its version, a listing row, and what names its base."""

from __future__ import annotations

import hashlib
import io
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files as resources
from typing import Any

from indexer.errors import Failed, ModelError
from indexer.formats import CONVERTED, GGUF_FILE, NOT_WEIGHTS, ONNX_FILE, WEIGHTS
from indexer.names import with_dots
from indexer.network.byterange import ByteSource
from indexer.sources.cards.paths import without_paths
from indexer.sources.cards.readme import MAX_README, card_facts, sentence_bases
from indexer.sources.cards.training_files import read_training
from indexer.sources.claims import YES, classify_path, hub_id_in, out_of_caches, untyped_relation
from indexer.sources.file_systems import FileSystem, TreeFile
from indexer.sources.folder import HASHED, digest_of_files, facts_in_files, json_object, sample_digest
from indexer.sources.gguf_header import read_facts, stated_bases, stated_sources, stated_titles
from indexer.sources.runs import TRACKED
from indexer.sources.source import Row
from indexer.sources.tree import TreeModel
from indexer.untrusted import load_json, tidy

_LARGEST_CONFIG = 4 << 20
_MOST_HEADER = 16 << 20
_WHOLE = 2 << 20  # of a file of so many bytes all are hashed
_PIECE = 64 << 10  # of the head and the tail of a file at an address
_LONGEST_NAME = 500
_TEXTS = (".md", ".txt", ".yaml", ".yml", ".model", ".jinja")
_MOST_NAMED = 20
_ADAPTER = re.compile(r"lora|lokr|loha|hada|oft_|\.dora|\.alpha$|ia3|boft|glora|vera_", re.IGNORECASE)
_LISTED_BY_TRAINERS = ("ss_base_model_version", "ss_sd_model_name", "modelspec.architecture", "base_model",
                       "base_model_name_or_path")  # fmt: skip
_TITLE = "a title in its header"  # of a base, or of the model: it tells a base that is known, and names no other


@dataclass(frozen=True)
class TreeFacts:
    """Of one model: its ``version`` (40 hex digits, the same wherever it lies), and what names its base, best first.

    ``version``: "" if the weights were not looked at. ``named``: (what names it, the name); ``relation``: adapter,
    quantized (GGUF and ONNX, in as many bits as they may be) or finetune, by the files.
    """

    version: str
    named: tuple[tuple[str, str], ...]
    relation: str


def described(model: TreeModel, files: FileSystem) -> tuple[TreeFacts, Row]:
    """What the files of a model say, and its listing row, which has no id yet. Raises ModelError if one has changed."""
    facts, row = stated(model, files)
    version = model.commit or _version(model, files)
    return replace(facts, version=version), {**row, "sha": version}


def stated(model: TreeModel, files: FileSystem) -> tuple[TreeFacts, Row]:
    """The same without the version, for which some of the weights are read. Raises ModelError if a file has changed."""
    row, named, is_adapter = _row(model, files)
    relation = untyped_relation(row) if is_adapter is None else "adapter" if is_adapter else "finetune"
    if is_converted(model.files):
        relation = "quantized"
    return TreeFacts("", tuple(named[:_MOST_NAMED]), relation), row


def is_converted(names: Iterable[str]) -> bool:
    """Whether the weights among these files are only there in a format that models are converted to."""
    weights = [name for name in names if name.endswith(WEIGHTS) and not NOT_WEIGHTS.search(name)]
    return bool(weights) and all(name.endswith(CONVERTED) for name in weights)


def _row(model: TreeModel, files: FileSystem) -> tuple[Row, list[tuple[str, str]], bool | None]:
    readme = _text(model, files, "README.md", MAX_README)
    config, adapter = (json_object(_text(model, files, name, _LARGEST_CONFIG)) for name in
                       ("config.json", "adapter_config.json"))  # fmt: skip
    times = [_time(one) for one in model.files.values()]
    modified = datetime.fromtimestamp(max((one for one in times if one is not None), default=0.0), UTC).isoformat()
    row = facts_in_files(model.files, readme, config, adapter, modified) | {"createdAt": modified}
    tracked = read_training((), tracked=model.tracked).to_dict()
    if tracked:
        row[TRACKED] = tracked
    is_adapter = None
    metadata: Mapping[str, Any] = {}
    weights = [name for name in model.files if name.endswith(".safetensors")]
    if len(weights) == 1 and "config.json" not in model.files and "adapter_config.json" not in model.files:
        metadata, names = _header(model.files[weights[0]], files)
        if names:
            is_adapter = any(_ADAPTER.search(name) for name in names)
    named: list[tuple[str, Any]] = [
        ("adapter_config.json", adapter.get("base_model_name_or_path")),
        ("config.json", config.get("_name_or_path")),
        ("its run", tracked.get("base")),
    ]
    for key in _LISTED_BY_TRAINERS:
        value = metadata.get(key)
        named += [(key, one) for one in _image_bases(value)] or [(key, value)]
    header = _gguf_facts(model, files)
    named += [("its header", one) for one in (*stated_bases(header), *stated_sources(header))]
    stated = card_facts(readme).get("base_model")
    named += [("the card", one) for one in (stated if isinstance(stated, list) else [stated])]
    named += [("the card", one) for one in sentence_bases(readme)]
    named += [(_TITLE, one) for one in stated_titles(header)]
    found = [
        (what, str(without_paths(with_dots(out_of_caches(tidy(one, _LONGEST_NAME))))))
        for what, one in named
        if isinstance(one, str) and one.strip()
    ]
    return row, list(dict.fromkeys(found)), is_adapter


def _text(model: TreeModel, files: FileSystem, name: str, limit: int) -> str:
    """A small file of a model; "" if it has none, or more than ``limit`` bytes. Raises ModelError if it has changed."""
    listed = model.files.get(name)
    if listed is None or listed.facts.size > limit:
        return ""
    try:
        with closing(files.open(listed.path, name)) as file:
            return bytes(file.read(0, file.size)).decode("utf-8", errors="replace") if file.size <= limit else ""
    except Failed as error:
        if error.reason == "not_found":  # no permission, or gone: reading the weights says so
            return ""
        raise


def _gguf_facts(model: TreeModel, files: FileSystem) -> Mapping[str, Any]:
    """What the header of a GGUF file says of the model; nothing if it cannot be read."""
    name = min((name for name in model.files if name.endswith(GGUF_FILE)), default=None)
    if name is None or not is_converted(model.files):
        return {}
    try:
        with closing(files.open(model.files[name].path, "its weights")) as file:
            return read_facts(file)
    except ModelError:
        return {}


def _header(listed: TreeFile, files: FileSystem) -> tuple[Mapping[str, Any], Collection[str]]:
    """The metadata and the names of the tensors of a safetensors file; nothing if its header cannot be read."""
    try:
        with closing(files.open(listed.path, "its weights")) as file:
            if file.size < 10:
                return {}, ()
            length = int.from_bytes(file.read(0, 8), "little")
            if not 2 <= length <= min(_MOST_HEADER, file.size - 8):
                return {}, ()
            header = load_json(bytes(file.read(8, 8 + length)))
    except (ModelError, ValueError):
        return {}, ()
    if not isinstance(header, dict):
        return {}, ()
    metadata = header.pop("__metadata__", {})
    return (metadata if isinstance(metadata, dict) else {}), header.keys()


def _version(model: TreeModel, files: FileSystem) -> str:
    """A hash of the content of the files: of their names, sizes and samples here, of sizes and ETags at an address.

    The times of files that are not hashed whole count too. The first half is that of a folder that is read alone.
    """
    samples: dict[str, str] = {}
    marks: list[str] = []
    hashed = WEIGHTS if model.is_file else HASHED
    has_data = any(name.endswith(ONNX_FILE) for name in model.files)  # in files of any name
    names = sorted(name for name in model.files if name.endswith(hashed) or (has_data and not name.endswith(_TEXTS)))
    for number, name in enumerate(names):
        one = model.files[name]
        known = name if not model.is_file else f"weights {number}" if number else "weights"  # whatever it is called
        if one.facts.mark.startswith("etag:"):
            samples[known] = f"{one.facts.size} {one.facts.mark}"
            continue
        try:
            with closing(files.open(one.path, name)) as file:
                samples[known] = ends_digest(file) if files.is_remote else sample_digest(_Reader(file))
        except Failed as error:
            if error.reason != "not_found":
                raise
            samples[known] = "unreadable"
        if one.facts.size > _WHOLE:
            marks.append(f"{known} {one.facts.mark}")
    first = digest_of_files(samples)
    return first + hashlib.sha1("\n".join([first, *marks]).encode(), usedforsecurity=False).hexdigest()[:20]


def ends_digest(file: ByteSource) -> str:
    """The size of a file, and a hash of its head and its tail."""
    digest = hashlib.sha256(file.read(0, min(file.size, _PIECE)))
    if file.size > _PIECE:
        digest.update(file.read(max(_PIECE, file.size - _PIECE), file.size))
    return f"{file.size} {digest.hexdigest()}"


class _Reader(io.RawIOBase):
    """A source of ranges as a file."""

    def __init__(self, source: ByteSource) -> None:
        self._source, self._at = source, 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte."""
        self._at = self._source.size + offset if whence == io.SEEK_END else offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        stop = self._source.size if size < 0 else min(self._source.size, self._at + size)
        piece = bytes(self._source.read(min(self._at, stop), stop))
        self._at += len(piece)
        return piece


def _time(file: TreeFile) -> float | None:
    mark = file.facts.mark
    try:
        if mark.isdigit():
            return int(mark) / 1e9
        return datetime.fromisoformat(mark.removeprefix("time:")).timestamp() if mark.startswith("time:") else None
    except (ValueError, OverflowError):
        return None


# ---- bases


@cache
def _image_table() -> Mapping[str, list[str]]:
    text = resources("indexer.sources").joinpath("image_bases.toml").read_text(encoding="utf-8")
    return {name: list(ids) for name, ids in tomllib.loads(text).items()}


def _image_bases(name: Any) -> list[str]:
    """Ids of the base that a trainer of image LoRAs calls so."""
    if not isinstance(name, str):
        return []
    last = name.lower().replace("\\", "/")
    last = last.removesuffix("/lora").removesuffix("/lokr").rpartition("/")[2]
    return _image_table().get(last.removesuffix(".safetensors").removesuffix(".ckpt"), [])


def base_among(
    facts: TreeFacts, identifier: str, bases: Mapping[str, Collection[str]]
) -> tuple[str | None, str | None]:
    """(the base of a model, another that it names): by what names it, the best first; ``bases`` with all their ids.

    Neither if nothing names a model that could be a base.
    """
    other = None
    for what, name in facts.named:
        verdicts = {base: classify_path(name, identifier, ids) for base, ids in bases.items()}
        if matching := next((base for base, verdict in verdicts.items() if verdict == YES), None):
            return matching, None
        if what != _TITLE and other is None and (named := hub_id_in(name, identifier)) is not None:
            other = named
            if what in ("adapter_config.json", "config.json"):
                break
    return None, other
