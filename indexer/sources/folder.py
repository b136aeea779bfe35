"""Checkpoint folders on this machine: a listing row as the Hub would give it, files, and names without paths.

A file of weights is a model of its own: a LoRA among others in the folder of a program. Its usual name
(``model.safetensors``) and that of a shard stand for the folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from io import BufferedReader, RawIOBase
from itertools import islice
from pathlib import Path
from typing import Any

from indexer.errors import AtlasError, Call, Failed, ModelError, Skipped, Text, system_errors
from indexer.formats import WEIGHTS, other_formats
from indexer.hub_ids import is_hub_id
from indexer.network.byterange import ByteSource, LocalFile
from indexer.regular_files import MOST_FILES, descriptor_of, files_below
from indexer.sources import registry
from indexer.sources.cards.paths import without_paths
from indexer.sources.cards.readme import SENTENCE, card_facts, sentence_datasets
from indexer.sources.cards.sentence import lacks_sentence
from indexer.sources.cards.training_files import is_training_file
from indexer.sources.claims import BY_FOLDER, out_of_caches
from indexer.sources.local_names import LOCAL, free_name, hash_of, name_of_words
from indexer.sources.registry import ModelRef
from indexer.sources.rows import as_of_hub
from indexer.sources.runs import RUN, Checkpoint, checkpoint_at, checkpoints_of_files, is_named_in_run
from indexer.sources.source import Row, Source, Version
from indexer.untrusted import is_too_deep, load_json, shown

# Files that decide the weights and claims of a folder.
HASHED = (*WEIGHTS, ".json")
# A sample of a file is this many blocks of so many bytes.
_BLOCK, _BLOCKS = 8 << 10, 256
_HINT = "Give the folder that save_pretrained wrote."
_LARGEST_TEXT = 4 << 20

# What a model that was added from a folder is called, by default; its path is private.
_LOCAL_ID = re.compile(rf"{LOCAL}[\w.\-]{{1,96}}", re.ASCII)


# Names of files of weights that stand for their folder, and what else of a folder belongs to any other file in it.
OF_FOLDER = re.compile(
    r"(adapter_|diffusion_pytorch_|pytorch_)?model(-\d+-of-\d+)?(\.safetensors|\.bin)(\.index\.json)?|adapters\.safetensors"
    r"|pytorch_lora_weights\.safetensors"
)
_BESIDE = ("adapter_config.json", "config.json")
_NOT_PLAIN = re.compile(r"[^\w.\-+ ]", re.ASCII)


def folders_root() -> Path | None:
    """The folder outside of which no file of a model's folder may be opened; None if there is no such limit."""
    return registry.limits.folders if registry.limits else None


def _leads_out(text: str, root: Path) -> AtlasError:
    return AtlasError(
        f"{text[:200]} leads out of {root} through a link, so nothing is read there.",
        "Copy what it names into that folder.",
    )


def _folder_named(text: str) -> Path | None:
    """The folder or the file of weights that ``text`` names, if it exists and models may be read from it.

    Raises AtlasError if it lies in the folder of models by its path, but a link leads out.
    """
    root = folders_root()
    if not text or (registry.limits and root is None):  # an empty path would be the current folder
        return None
    try:
        path = Path(text).expanduser().resolve()
        if root is not None and not path.is_relative_to(root):
            typed = Path(os.path.normpath(Path(text).expanduser().absolute()))
            if typed.is_relative_to(root):
                raise _leads_out(text, root)
            return None
        if path.is_dir():
            return path
        # Not where a link leads: in the Hub's cache that is a blob without a name, and without the files beside it.
        file = path if root is not None else Path(os.path.normpath(Path(text).expanduser().absolute()))
        is_whole = OF_FOLDER.fullmatch(file.name) is not None
        if not (is_whole or file.suffix in WEIGHTS) or not file.is_file():
            return None
        return file.parent if is_whole else file
    except (OSError, RuntimeError, ValueError):
        return None  # too long for a path, or the home of an unknown user


class Folder(Source):
    """A folder that ``save_pretrained`` wrote, or one file of weights.

    Its path is private: an atlas calls it ``local:NAME``, or by the name that the user gave it.
    """

    title = "this machine"
    examples = ("the path of a checkpoint folder",)
    claimed_by = BY_FOLDER

    # ---- ids

    def valid_id(self, text: str) -> bool:
        """``local:NAME``."""
        return bool(_LOCAL_ID.fullmatch(text))

    @property
    def kind(self) -> str:
        """A folder, or one inside the only folder that may be read."""
        if registry.limits is None:
            return "a folder here"
        return f"a folder in {folders_root()}" if folders_root() else ""

    @property
    def limit(self) -> str:
        """That no folder may be read, where that is so."""
        return "" if self.kind else "; models are not read from folders here"

    def parse(self, text: str) -> ModelRef | None:
        """An existing folder, a file of weights, or the name of one in an atlas."""
        if (folder := _folder_named(text)) is not None:
            return ModelRef(str(folder), folder=folder)
        return ModelRef(text) if self.valid_id(text) else None

    def author(self, identifier: str) -> str:
        """That it lies on this machine."""
        return "local"

    def check_name(self, reference: ModelRef, wanted: str | None) -> None:
        """A folder may be called as a model of the Hub is."""
        if wanted is not None and (not is_hub_id(wanted) or "/" not in wanted):
            hint = Text(Call(name="OWNER/NAME"), " gives a folder its name in the atlas.")
            raise AtlasError(f"{wanted!r} is not OWNER/NAME.", hint)

    def name_in_atlas(self, reference: ModelRef, row: Row, wanted: str | None, places: Mapping[str, str]) -> str:
        """The name that it was given, or one after the folder."""
        assert reference.folder is not None
        if wanted is None:
            return local_name(reference.folder, {name: at for name, at in places.items() if self.valid_id(name)})
        if places.get(wanted, place_of(reference.folder)) != place_of(reference.folder):
            raise AtlasError(f"This atlas already has another model {wanted}.", "Choose another `name`.")
        return wanted

    def without_private(self, reference: ModelRef, text: str) -> str:
        """Without the folder's path; of a path in place of a name the last part is kept."""
        folder, shortened = reference.folder, str(without_paths(text))
        return shortened if folder is None or shortened != text else text.replace(str(folder), folder.name)

    def explain(self, error: ModelError, reference: ModelRef) -> AtlasError:
        """Asks for the path where only the name in an atlas was given."""
        if reference.folder is None:
            message = f"{reference.id} is a name in an atlas, which does not say where that folder lies."
            return AtlasError(message, "Give its path.")
        return super().explain(error, reference)

    # ---- models

    def row(self, reference: ModelRef, *, whole: bool = True) -> Row:
        """See :func:`local_row`. Raises AtlasError if the folder holds no checkpoint."""
        if reference.folder is None:
            raise Failed("not_found", "its path is not stored")
        return local_row(reference, whole=whole)

    def open(
        self,
        reference: ModelRef,
        *,
        commit: str | None = None,
        filenames: Sequence[str] | None = None,
        retries: object = None,
    ) -> Version:
        """Its files as they are now. Raises Skipped if the atlas does not know where it lies."""
        if reference.folder is None:
            raise Skipped("folder", "was added from a folder, whose path is not stored")
        folder, beneath = reference.folder / reference.subfolder, folders_root()
        cannot_list = f"the folder {shown(folder)} cannot be listed"
        with system_errors(lambda why: Failed("not_found", f"{cannot_list}: {why}")):
            files = _files_of(folder)
        above = _settings_above(folder, beneath)
        return Version(None, files, lambda path: LocalFile(files.get(path, folder / path), path, beneath), above=above)


def local_row(reference: ModelRef, name: str | None = None, *, whole: bool = True) -> dict[str, Any]:
    """A listing row for a folder, with its card, config and files.

    Its commit is a hash of their content, 40 hex digits of which the first half tells of samples of the large files.
    Unless ``whole``, only that half is computed: a question must not read a checkpoint whole of which it needs a
    fiftieth. ``name`` is its id; by default that of the reference, which is a path and must not be stored. Raises
    AtlasError if the folder holds no checkpoint.
    """
    folder = reference.folder
    assert folder is not None
    with system_errors(lambda why: AtlasError(f"{folder} cannot be listed: {why}.", _HINT)):
        files = _files_of(folder)
    names = list(files)
    if not any(name.endswith(WEIGHTS) for name in names):
        if (outside := _first_outside(folder, names)) is not None:
            raise AtlasError(f"{outside} leads out of {folders_root()} through a link, so it is not read.", _HINT)
        formats = other_formats(names)
        why = f"only {formats}, a format that is not read" if formats else "no file of weights"
        raise AtlasError(f"{folder} holds no weights that can be read: {why}.", _HINT)
    modified = datetime.fromtimestamp(max(map(_modified, files.values())), UTC).isoformat()
    hashed = {filename: path for filename, path in files.items() if filename.endswith(HASHED)}
    commit = _digest_of(hashed, sample_digest)
    if whole:
        commit += _digest_of(hashed, lambda file: hashlib.file_digest(file, "sha256").hexdigest())
    row: Row = {"id": name or reference.id, "folder": place_of(folder), "sha": commit, "createdAt": modified}
    if (checkpoint := _checkpoint_in(folder, names)) is not None:
        row[RUN] = {"key": place_of(Path(checkpoint.run)), "number": checkpoint.number}
    readme, config, adapter = (
        _text(files[name]) if name in files else "" for name in ("README.md", "config.json", "adapter_config.json")
    )
    return row | facts_in_files(names, readme, json_object(config), json_object(adapter), modified)


def facts_in_files(
    names: Iterable[str], readme: str, config: Mapping[str, Any], adapter: Mapping[str, Any], modified: str
) -> dict[str, Any]:
    """What a listing row says of a model by its files: the names, the card, and what the configurations state.

    ``adapter``: adapter_config.json. Paths of the author's machine are shortened.
    """
    # The part of config.json and adapter_config.json that a row on the Hub has.
    stated: dict[str, Any] = {key: config[key] for key in ("architectures", "model_type") if key in config}
    if named := adapter.get("base_model_name_or_path"):
        stated["peft"] = {"base_model_name_or_path": out_of_caches(named) if isinstance(named, str) else named}
    row: dict[str, Any] = {
        "lastModified": modified,
        "tags": [],
        "cardData": without_paths(card_facts(readme)),
        "config": without_paths(stated),
        "siblings": [{"rfilename": name} for name in names],
    }
    if lacks_sentence(as_of_hub({"id": "x/y", **row})):
        row[SENTENCE] = without_paths(list(sentence_datasets(readme)))
    return row


def _settings_above(folder: Path, beneath: Path | None) -> dict[str, Callable[[], ByteSource]]:
    """How to open what a training tool wrote of the run that the checkpoint in ``folder`` belongs to, by name."""
    if not is_named_in_run(folder.name) or (beneath is not None and not folder.parent.is_relative_to(beneath)):
        return {}
    run = folder.parent
    try:
        with os.scandir(run) as entries:
            names = [entry.name for entry in islice(entries, MOST_FILES) if is_training_file(entry.name)]
    except OSError:
        return {}
    return {name: partial(LocalFile, run / name, name, beneath) for name in sorted(names)}


def _checkpoint_in(folder: Path, names: Iterable[str]) -> Checkpoint | None:
    """The checkpoint of a run that lies in a folder with these files, if it does."""
    try:
        with os.scandir(folder.parent) as entries:
            beside = [entry.name for entry in islice(entries, MOST_FILES) if entry.name != folder.name]
    except OSError:
        beside = []
    if folder.is_file():
        return checkpoints_of_files(str(folder.parent), [folder.name, *beside]).get(folder.name)
    return checkpoint_at(str(folder), beside, {name.partition("/")[0] for name in names if "/" in name})


def _first_outside(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of the files and folders that a link leads out of the folder of models; None if there is no limit."""
    for name in names if folders_root() is not None else ():
        try:
            os.close(_descriptor(folder / name))
        except OSError as error:
            if error.errno == errno.EXDEV:
                return folder / name
    return None


def _files_of(folder: Path) -> dict[str, Path]:
    """The files of a model, by their names in it: those of a folder, or a file and the configuration beside it.

    Raises OSError.
    """
    if not folder.is_file():
        return {name: folder / name for name in files_below(folder, folders_root())}
    beside = [name for name in _BESIDE if (folder.parent / name).is_file()]
    return {_NOT_PLAIN.sub("_", folder.name): folder} | {name: folder.parent / name for name in beside}


def _digest_of(files: Mapping[str, Path], digest: Callable[[BufferedReader], str]) -> str:
    """A hash of the names of files and of what ``digest`` says of each: 20 hex digits.

    A file that cannot be opened counts as "unreadable": reading the weights then says why.
    """
    contents: dict[str, str] = {}
    for name, path in files.items():
        try:
            with os.fdopen(_descriptor(path), "rb") as file:
                contents[name] = digest(file)
        except OSError:
            contents[name] = "unreadable"
    return digest_of_files(contents)


def digest_of_files(contents: Mapping[str, str]) -> str:
    """A hash of the names of files and of what is said of the content of each, in this order: 20 hex digits."""
    found = hashlib.sha1(usedforsecurity=False)
    for name, content in contents.items():
        found.update(f"{name} {content}\n".encode("utf-8", "surrogatepass"))
    return found.hexdigest()[:20]


def sample_digest(file: RawIOBase | BufferedReader) -> str:
    """The size of a file and a hash of its start, its end, and blocks in between; of all of a small file."""
    size = file.seek(0, os.SEEK_END)
    found = hashlib.sha256()
    places: Iterable[int] = range(0, size, _BLOCK)
    if size > _BLOCK * _BLOCKS:
        places = ((size - _BLOCK) * number // (_BLOCKS - 1) for number in range(_BLOCKS))
    for place in places:
        file.seek(place)
        found.update(file.read(_BLOCK))
    return f"{size} {found.hexdigest()}"


def json_object(text: str) -> dict[str, Any]:
    """A small JSON file; {} if it holds no object."""
    try:
        found = load_json(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and not is_too_deep(found) else {}


def _descriptor(path: Path) -> int:
    """A descriptor of a regular file, opened without waiting. Raises OSError."""
    return descriptor_of(path, through_links=True, beneath=folders_root())


def _modified(path: Path) -> float:
    """When a file was modified; of one that cannot be opened, the link or the file itself."""
    try:
        descriptor = _descriptor(path)
    except OSError:
        return path.lstat().st_mtime
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


def _text(path: Path) -> str:
    try:
        with os.fdopen(_descriptor(path), "rb") as file:
            return file.read(_LARGEST_TEXT).decode("utf-8", errors="replace")
    except OSError:
        return ""


def place_of(folder: Path) -> str:
    """Identifies a folder without its path: the first 16 hex digits of the path's sha256."""
    return hash_of(str(folder))


def local_name(folder: Path, taken: Mapping[str, str]) -> str:
    """``local:NAME`` for a folder, with a number if another folder has that name.

    ``taken``: the assigned names with the :func:`place_of` of each; a folder keeps its name. The checkpoint of a run
    (``run/checkpoint-500``) is named after both folders.
    """
    place = place_of(folder)
    for name, of in taken.items():
        if of == place:
            return name
    last = folder.stem if folder.suffix in WEIGHTS and not folder.is_dir() else folder.name
    return free_name(name_of_words((folder.parent.name, last)), taken)
