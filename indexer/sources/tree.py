"""Trees of models: every checkpoint below a folder, as this machine, a bucket or a page of links holds it.

A folder with the usual files of a model is one model, and so is each loose ``.safetensors`` file (ComfyUI's
``models/loras``, sd-scripts) and each GGUF file with its shards. An export to ONNX is one model. A pipeline of
diffusers and a model of sentence-transformers are one model with the folders of their parts. Three layouts are known by
the names of their folders: the cache of the Hub's client (``models--owner--name/snapshots/COMMIT``), Ollama's store
(``manifests/…``, ``blobs/sha256-…``), and ModelScope's spelling of names (``Qwen2___5`` is ``Qwen2.5``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

from indexer.errors import AtlasError, Failed, ModelError, Skipped
from indexer.formats import (
    GGUF_FILE,
    GGUF_SHARD,
    NO_GGUF,
    NOT_WEIGHTS,
    ONNX_FILE,
    ONNX_NAMES,
    WEIGHTS,
    onnx_export,
    other_formats,
)
from indexer.hub_ids import is_hub_id
from indexer.names import with_dots
from indexer.network.byterange import ByteSource
from indexer.sources.cards.paths import without_paths
from indexer.sources.cards.training_files import is_training_file
from indexer.sources.claims import BY_FOLDER, out_of_caches
from indexer.sources.file_systems import (
    NOT_READ,
    VANISHED,
    FileFacts,
    FileSystem,
    FolderContent,
    Problems,
    TreeFile,
    in_order,
)
from indexer.sources.registry import ModelRef, TreePlace
from indexer.sources.runs import NUMBERED, Checkpoint, checkpoint_at, checkpoints_of_files, is_named_in_run
from indexer.sources.source import Row, Source, Version
from indexer.untrusted import COMMIT, load_json, shown

# What the files that save_pretrained, PEFT, mlx-lm, diffusers and accelerate write are called.
_USUAL = re.compile(
    r"adapter_model\.(?:safetensors|bin)|adapters\.safetensors|pytorch_lora_weights\.safetensors"
    r"|pytorch_model_fsdp\.bin|(?:diffusion_pytorch_)?model(?:\.[\w\-]+)?\.safetensors(?:\.index\.json)?"
    r"|pytorch_model\.bin(?:\.index\.json)?|.+-\d{1,6}-of-\d{1,6}\.(?:safetensors|bin)",
    re.ASCII,
)
_NO_MODEL = re.compile(r"consolidated.*\.safetensors|\d+_adapters\.safetensors", re.ASCII)
_LISTS_PARTS = ("model_index.json", "modules.json")
_PART_DEPTH = 2

# Files that are kept beside the weights. Of a folder with more files than MOST_BESIDE only those of these names are.
_BESIDE = (".json", ".md", ".yaml", ".yml", ".txt", ".model", ".jinja", ".bin", ".safetensors")
_NAMED = frozenset((
    "README.md", "adapter_config.json", "added_tokens.json", "config.json", "generation_config.json", "merges.txt",
    "model_index.json", "modules.json", "preprocessor_config.json", "special_tokens_map.json", "tokenizer.json",
    "tokenizer.model", "tokenizer_config.json", "trainer_state.json", "vocab.json", "vocab.txt",
))  # fmt: skip
MOST_BESIDE = 200
MOST_DEPTH = 60  # of folders
_MOST_MANIFEST = 1 << 20
_MOST_MANIFESTS = 100_000
_DIGEST = re.compile(r"sha256[:\-]([0-9a-f]{64})")
_OF_HUB = re.compile(r"models--(?:([\w.\-]+?)--)?([\w.\-]+)", re.ASCII)
_WEIGHTS = (".safetensors", ".bin")
_README = "README.md"
_ONNX_FOLDER = "onnx"  # in the folder of a model, as optimum and the Hub's users lay it out
NOT_IN_CACHE = "models of the cache without weights in it"
SEVERAL = "folders that are deeper than is looked"
NO_MODEL = "GGUF files that are no models (projectors, importance matrices, adapters)"
NEEDS_GGUF = "GGUF files, which pip install 'vectors-in-the-wild[gguf]' reads"


@dataclass(frozen=True)
class TreeModel:
    """One model of a tree: ``files`` by their names in the model.

    ``path``: of its folder or its file in the tree. ``words``: what it can be named after, the last ones first.
    ``hub_id`` and ``commit``: of a model of the Hub, in the cache of its client. ``is_file``: a file of its own.
    ``checkpoint``: which one of a training run it is, by the names of folders and files. ``above``: the paths of what a
    training tool wrote of the whole run, by name. ``tracked``: what a tracking server says of the run.
    """

    path: str
    files: Mapping[str, TreeFile]
    words: tuple[str, ...]
    hub_id: str = ""
    commit: str = ""
    is_file: bool = False
    checkpoint: Checkpoint | None = None
    above: Mapping[str, str] = field(default_factory=dict)
    tracked: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the names, sizes and times of its files and of its run, 32 hex digits; not of where they lie."""
        parts = [self.commit] if self.commit else []
        parts += [json.dumps(self.tracked, sort_keys=True)] if self.tracked else []
        parts += [f"{'' if self.is_file else name} {file.facts.size} {file.facts.mark}" for name, file in self._sorted]
        return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def reference(self, name: str, files: FileSystem, options: tuple[tuple[str, Any], ...] = ()) -> ModelRef:
        """The model as it lies in ``files``, under a ``name``. ``options``: fsspec's for the address."""
        place = TreePlace(
            files.address, self.path, self.files, files.is_remote, options, bool(self.hub_id), self.above
        )  # fmt: skip
        return ModelRef(name, place=place)

    @property
    def _sorted(self) -> list[tuple[str, TreeFile]]:
        return sorted(self.files.items())


@dataclass
class TreeListing:
    """The models of a tree, in the order of their paths, and what could not be read."""

    models: list[TreeModel] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)


def list_tree(files: FileSystem, said: Callable[[int], None] = lambda count: None) -> TreeListing:
    """Every checkpoint of a place. ``said`` is called with the number found so far, now and then."""
    return _Walk(files, said).run()


class _Walk:
    def __init__(self, files: FileSystem, said: Callable[[int], None]) -> None:
        self.files = files
        self.said = said
        self.listing = TreeListing()
        self.problems = self.listing.problems
        # By the path of a folder: the numbered folders in it, and the files of training tools.
        self._numbered: dict[str, list[str]] = {}
        self._training_files: dict[str, list[str]] = {}
        self._exported: set[str] = set()  # folders whose ONNX files belong to the model of the folder above
        self._reads_gguf = find_spec("gguf") is not None

    def run(self) -> TreeListing:
        waiting = [""]
        counted = 0
        while waiting:
            path = waiting.pop()
            content = self._content(path)
            deeper = list(self._models_in(path, content))
            if deeper and path.count("/") + 1 >= MOST_DEPTH:
                self.problems.note(SEVERAL, path, is_unseen=True)
                continue
            waiting += [_joined(path, name) for name in reversed(in_order(deeper))]
            if len(self.listing.models) >= counted + 500:
                counted = len(self.listing.models)
                self.said(counted)
        self.listing.models = [self._with_tracked_run(self._with_run(model)) for model in self.listing.models]
        return self.listing

    def _with_tracked_run(self, model: TreeModel) -> TreeModel:
        """The model with the run that a tracking server knows. It is named after it, and its checkpoints are of it."""
        run = self.files.run_at(model.path)
        if run is None:
            return model
        checkpoint = model.checkpoint and replace(model.checkpoint, run=run.key)
        return replace(model, words=run.words, checkpoint=checkpoint, tracked=run.settings)

    def _with_run(self, model: TreeModel) -> TreeModel:
        """The model with what its folder and those around it show of its run."""
        if model.hub_id or model.is_file:
            return model
        parent, _, name = model.path.rpartition("/")
        beside = self._numbered.get(parent, ()) if model.path else ()
        checkpoint = checkpoint_at(model.path, beside, self._numbered.get(model.path, ()))
        above = self._training_files.get(parent, ()) if model.path and is_named_in_run(name) else ()
        if checkpoint is None and not above:
            return model
        return replace(model, checkpoint=checkpoint, above={name: _joined(parent, name) for name in sorted(above)})

    def _content(self, path: str) -> FolderContent:
        return self.files.content(path, self.problems)

    def _models_in(self, path: str, content: FolderContent) -> Iterator[str]:
        """Note the models of one folder; the names of the folders in which others may be."""
        name = path.rpartition("/")[2] or self._own_name
        if _is_atlas(content):
            return
        if numbered := [name for name in content.folders if NUMBERED.fullmatch(name)]:
            self._numbered[path] = numbered
            self._training_files[path] = [name for name in content.files if is_training_file(name)]
        elif any(is_named_in_run(name) for name in content.folders):
            self._training_files[path] = [name for name in content.files if is_training_file(name)]
        if "snapshots" in content.folders and (cached := _OF_HUB.fullmatch(name)):
            self._cached_model(path, cached)
            return
        if path == "" and (found := self._inside_cache()):
            self._snapshot("", content, *found)
            return
        if {"manifests", "blobs"} <= set(content.folders):
            self._ollama(path)
            yield from (name for name in content.folders if name not in ("manifests", "blobs"))
            return
        parts: list[str] = []
        if not content.files.keys().isdisjoint(_LISTS_PARTS):
            parts = [name for name in content.folders if not NUMBERED.fullmatch(name)]
            members = dict.fromkeys(self._kept(content))
            inner: dict[str, TreeFile] = {}
            for part in parts:
                inner |= self._part_files(_joined(path, part), part, _PART_DEPTH)
            has_model = any(_USUAL.fullmatch(name.rpartition("/")[2]) for name in (*members, *inner))
            if has_model:
                self._add(path, {**self._with_facts(path, content, members), **inner})
            self._conversions(path, content, has_model=has_model)
            yield from (name for name in content.folders if name not in parts)
            return
        self._plain_models(path, content)
        yield from content.folders

    def _plain_models(self, path: str, content: FolderContent) -> None:
        names = content.files
        weights = [name for name in names if name.endswith(_WEIGHTS) and not NOT_WEIGHTS.search(name)]
        usual = [name for name in (*weights, *(name for name in names if name.endswith(".index.json"))) if
                 _USUAL.fullmatch(name)]  # fmt: skip
        loose = [
            name
            for name in weights
            if name.endswith(".safetensors") and not _USUAL.fullmatch(name) and not _NO_MODEL.fullmatch(name)
        ]
        is_described = "config.json" in names or "adapter_config.json" in names
        has_model = bool((is_described and (usual or len(loose) == 1)) or (usual and not loose))
        if has_model:
            self._add(path, self._with_facts(path, content, self._kept(content)))
        else:
            own = in_order([*loose, *(name for name in usual if name.endswith(".safetensors") and "-of-" not in name)])
            checkpoints = checkpoints_of_files(path, own)
            for name in own:
                self._add_file(path, [name], content, name.removesuffix(".safetensors"), checkpoints.get(name))
        read = self._conversions(path, content, has_model=has_model)
        if not weights:
            for form in sorted(self._formats(names) - read):
                self.problems.note(f"files in a format that is not read yet: {form}", path)

    def _conversions(self, path: str, content: FolderContent, *, has_model: bool) -> set[str]:
        """Note the models of a folder in other formats; the formats of which nothing more is to be said."""
        self._gguf_files(path, content)
        exported = path in self._exported or self._onnx_export(path, content, has_model)
        return {"GGUF", "ONNX"} if exported else {"GGUF"}

    def _gguf_files(self, path: str, content: FolderContent) -> None:
        """Each GGUF file of a folder is a model, with the card beside it; the shards of one are one."""
        models: dict[str, list[str]] = {}
        for name in in_order(name for name in content.files if name.endswith(GGUF_FILE)):
            if NO_GGUF.search(name):
                self.problems.note(NO_MODEL, _joined(path, name))
                continue
            shard = GGUF_SHARD.fullmatch(name)
            stem = name.removesuffix(GGUF_FILE) if shard is None else shard["stem"]
            models.setdefault(stem if shard is None else f"{stem}/{shard['count']}", []).append(name)
        for key, names in models.items():
            if self._can_read_gguf(_joined(path, names[0])):
                card = [_README] if _README in content.files else []
                self._add_file(path, [*names, *card], content, key.partition("/")[0])

    def _can_read_gguf(self, path: str) -> bool:
        """Whether the package that reads GGUF is installed. Without it the file at ``path`` has not left the place."""
        if not self._reads_gguf:
            self.problems.note(NEEDS_GGUF, path, is_unseen=True)
        return self._reads_gguf

    def _onnx_export(self, path: str, content: FolderContent, has_model: bool) -> bool:
        """Note the export of a model that lies in its folder, or in ``onnx/`` there; whether there is one.

        ``has_model``: whether the folder is a model already. Files of other names are programs, as often as not.
        """
        is_described = "config.json" in content.files
        folder, inner = path, content
        if is_described and not any(name.endswith(ONNX_FILE) for name in content.files):
            if _ONNX_FOLDER not in content.folders:
                return False
            folder = _joined(path, _ONNX_FOLDER)
            inner = self.files.content(folder, Problems())
            if "config.json" in inner.files:  # a model of its own
                return False
        name = onnx_export(inner.files)
        if name is None or not (is_described or name in ONNX_NAMES):
            return False
        if folder != path:
            self._exported.add(folder)
        below = "" if folder == path else f"{_ONNX_FOLDER}/"
        files = self._with_facts(path, content, [one for one in content.files if one in _NAMED])
        data = [one for one in inner.files if one != name and not one.endswith((*_BESIDE, *WEIGHTS))][:MOST_BESIDE]
        files |= {f"{below}{one}": file for one, file in self._with_facts(folder, inner, [name, *data]).items()}
        own = path.rpartition("/")[2] or self._own_name
        if has_model:
            self._add(_joined(folder, name), files, words=(*path.split("/")[:-1], f"{own}-onnx"))
        else:
            self._add(path, files)
        return True

    @staticmethod
    def _formats(names: Mapping[str, Any]) -> set[str]:
        formats: set[str] = set()
        for ending in (
            {name[name.rfind(".") :] for name in names if "." in name} - set(_BESIDE) - {".pt", ".pth", ".pkl"}
        ):
            formats.update(filter(None, [other_formats([f"weights{ending}"])]))
        return formats

    @property
    def _own_name(self) -> str:
        return self.files.address.rstrip("/").rpartition("/")[2]

    @property
    def _root_words(self) -> tuple[str, ...]:
        """The name of the place, for a model in it: not that of a bucket."""
        is_bucket = self.files.is_remote and self.files.address.count("/") < 3
        return () if is_bucket else (self._own_name,)

    @staticmethod
    def _kept(content: FolderContent) -> list[str]:
        if len(content.files) <= MOST_BESIDE:
            return [name for name in content.files if name.endswith(_BESIDE)]
        return [name for name in content.files if name in _NAMED or _USUAL.fullmatch(name)]

    def _part_files(self, path: str, below: str, depth: int) -> dict[str, TreeFile]:
        """The files of a part of a model, by their names in the model."""
        content = self._content(path)
        files = {f"{below}/{name}": file for name, file in self._with_facts(path, content, self._kept(content)).items()}
        for inner in content.folders if depth > 1 else ():
            files |= self._part_files(_joined(path, inner), f"{below}/{inner}", depth - 1)
        return files

    def _with_facts(
        self, path: str, content: FolderContent, names: Sequence[str] | Mapping[str, Any]
    ) -> dict[str, TreeFile]:
        files = {}
        for name in names:
            inner = _joined(path, name)
            facts = content.files.get(name)
            try:
                files[name] = TreeFile(inner, facts if facts is not None else self.files.facts(inner))
            except Failed:
                self.problems.note(VANISHED, inner)
        return files

    def _add(
        self,
        path: str,
        files: Mapping[str, TreeFile],
        hub_id: str = "",
        commit: str = "",
        words: Sequence[str] | None = None,
    ) -> None:
        if not any(name.endswith(WEIGHTS) for name in files):
            return
        words = (*self._root_words, *path.split("/")) if words is None else words
        words = tuple(with_dots(word) for word in words if word)
        self.listing.models.append(TreeModel(path, files, words, hub_id, commit))

    def _add_file(
        self,
        path: str,
        names: Sequence[str],
        content: FolderContent,
        called: str,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """A model that is a file, or several: ``names``, the first of which says where it lies."""
        files = self._with_facts(path, content, names)
        if names[0] in files:
            words = tuple(with_dots(word) for word in (*path.split("/"), called) if word)
            members = {plain_name(name): file for name, file in files.items()}
            model = TreeModel(files[names[0]].path, members, words, is_file=True, checkpoint=checkpoint)
            self.listing.models.append(model)

    # ---- the cache of the Hub's client

    def _inside_cache(self) -> tuple[str, str] | None:
        """Id and commit, if the place is a snapshot in the cache."""
        *_, folder, snapshots, commit = ["", "", "", *self.files.address.rstrip("/").split("/")]
        cached = _OF_HUB.fullmatch(folder) if snapshots == "snapshots" and COMMIT.fullmatch(commit) else None
        return (_cached_id(cached), commit) if cached else None

    def _cached_model(self, path: str, cached: re.Match[str]) -> None:
        """The snapshot to which the branch main points, else the newest."""
        snapshots = _joined(path, "snapshots")
        commits = [commit_name for commit_name in self._content(snapshots).folders if COMMIT.fullmatch(commit_name)]
        if not commits:
            return
        head = self._small(_joined(path, "refs/main"), 64)
        commit = head.decode("ascii", "replace").strip() if head else ""
        if commit not in commits:
            commit = max(commits, key=lambda commit_name: (self._newest(_joined(snapshots, commit_name)), commit_name))
        folder = _joined(snapshots, commit)
        self._snapshot(folder, self._content(folder), _cached_id(cached), commit)

    def _newest(self, path: str) -> int:
        files = self._with_facts(path, (content := self._content(path)), content.files)
        return max((int(file.facts.mark) for file in files.values() if file.facts.mark.isdigit()), default=0)

    def _snapshot(self, path: str, content: FolderContent, hub_id: str, commit: str) -> None:
        files = self._with_facts(path, content, content.files)
        for folder in content.folders:
            files |= self._part_files(_joined(path, folder), folder, _PART_DEPTH)
        formats = {ending for ending in WEIGHTS if any(name.endswith(ending) for name in files)}
        if not is_hub_id(hub_id) or not formats:
            self.problems.note(NOT_IN_CACHE, path)
            return
        if formats == {GGUF_FILE} and not self._can_read_gguf(path):
            return
        self._add(path, files, hub_id=hub_id, commit=commit)

    # ---- Ollama's store

    def _ollama(self, path: str) -> None:
        """The adapters, else the weights, that manifests name: a model for each name and tag."""
        waiting, blobs, seen = [("", _joined(path, "manifests"))], _joined(path, "blobs"), 0
        known = self._content(blobs).files
        while waiting:
            below, folder = waiting.pop()
            content = self._content(folder)
            waiting += [
                (_joined(below, folder_name), _joined(folder, folder_name)) for folder_name in reversed(content.folders)
            ]
            for name in in_order(content.files):
                seen += 1
                if seen <= _MOST_MANIFESTS:
                    self._manifest(_joined(folder, name), (*below.split("/"), name), blobs, known)

    def _manifest(self, path: str, names: tuple[str, ...], blobs: str, known: Mapping[str, FileFacts | None]) -> None:
        try:
            manifest = load_json(self._small(path, _MOST_MANIFEST) or b"{}")
            layers = [(layer["mediaType"], layer["digest"]) for layer in manifest.get("layers", ())]
        except (ValueError, KeyError, TypeError, AttributeError):
            self.problems.note(NOT_READ, path)
            return
        kinds = ("application/vnd.ollama.image.adapter", "application/vnd.ollama.image.model")
        kind = next((kind for kind in kinds if any(found == kind for found, _ in layers)), None)
        for digest in [digest for found, digest in layers if found == kind]:
            match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
            blob = next((name for mark in "-:" if match and (name := f"sha256{mark}{match[1]}") in known), None)
            if blob is None:
                self.problems.note("layers of Ollama's store that are missing", path)
                continue
            start = self._start(_joined(blobs, blob), 16)
            words = tuple(word for word in (*names[:-2], "-".join(names[-2:])) if word)
            if start[:4] == b"GGUF":
                if kind == kinds[0]:
                    self.problems.note(NO_MODEL, path)
                elif self._can_read_gguf(path):
                    self._add_blob(path, blobs, blob, known, f"model{GGUF_FILE}", words)
            elif start[8:9] == b"{":
                self._add_blob(path, blobs, blob, known, f"{plain_name(words[-1])}.safetensors", words)
            else:
                self.problems.note("files of Ollama's store in a format that is not read", path)

    def _add_blob(
        self,
        path: str,
        blobs: str,
        blob: str,
        known: Mapping[str, FileFacts | None],
        name: str,
        words: tuple[str, ...],
    ) -> None:
        """The model of a manifest, whose file is a blob; ``name``: what it is called in the model."""
        files = self._with_facts(blobs, FolderContent({blob: known[blob]}), [blob])
        if files:
            self.listing.models.append(TreeModel(path, {name: files[blob]}, words, is_file=True))

    def _small(self, path: str, limit: int) -> bytes | None:
        """A small file; None, and a problem if it is there, if it cannot be read."""
        try:
            with closing(self.files.open(path, path.rpartition("/")[2])) as file:
                return bytes(file.read(0, min(file.size, limit)))
        except ModelError as error:
            if error.reason != "not_found" or "denied" in error.detail:
                self.problems.note(NOT_READ, path)
            return None

    def _start(self, path: str, count: int) -> bytes:
        return self._small(path, count) or b""


def _is_atlas(content: FolderContent) -> bool:
    """Whether a folder is an atlas: its records and vectors are no models."""
    parts = {"bases", "listing", "records", "sources"}
    return "atlas.duckdb" in content.files or ("lock" in content.files and not parts.isdisjoint(content.folders))


def _cached_id(cached: re.Match[str]) -> str:
    return f"{cached[1]}/{cached[2]}" if cached[1] else cached[2]


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path and name else path or name


def plain_name(name: str) -> str:
    """A file name with other characters than those that names of weights have replaced by "-"."""
    return re.sub(r"[^\w.\-+ ]", "-", name)[-180:].lstrip(". ") or "weights.safetensors"


class Tree(Source):
    """The models of a tree. Their ids are those of folders, or the Hub's: ``ModelRef.place`` says where they lie."""

    title = "the tree"
    kind = ""
    claimed_by = BY_FOLDER

    def valid_id(self, text: str) -> bool:
        """None: see above."""
        return False

    def parse(self, text: str) -> ModelRef | None:
        """Nobody names a model so."""
        return None

    def without_private(self, reference: ModelRef, text: str) -> str:
        """Without the place and the path in it; of a path in place of a name the last part is kept."""
        shortened = str(without_paths(out_of_caches(text)))
        return shortened if reference.place is None or shortened != text else reference.place.taken_out_of(text)

    def row(self, reference: ModelRef, *, whole: bool = True) -> Row:
        """A listing makes the rows of a tree."""
        raise Failed("not_found", "a tree is listed as a whole")

    def open(
        self,
        reference: ModelRef,
        *,
        commit: str | None = None,
        filenames: Sequence[str] | None = None,
        retries: object = None,
    ) -> Version:
        """Its files, if they are as they were when the tree was listed."""
        place = reference.place
        if place is None:
            raise Skipped("folder", "was found in a tree, and the atlas does not know where")
        try:
            files = place.file_system()
        except AtlasError as error:
            raise Failed("not_found", "the tree that it lies in cannot be opened") from error

        def open_file(name: str) -> ByteSource:
            file = place.files[name]
            if not file.facts.agrees(files.facts(file.path)):
                raise Failed("file_changed", f"{shown(name)} has changed since the tree was listed")
            return files.open(file.path, name)

        return Version(
            commit,
            place.files,
            open_file,
            subfolder=reference.subfolder,
            lacking="in the cache of the Hub's client" if place.is_cached else "",
            above={name: partial(files.open, path, name) for name, path in place.above.items()},
        )


class RemoteTree(Tree):
    """The same at an address."""

    title = "the address"
    is_remote = True
