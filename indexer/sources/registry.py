"""Which sources there are, and to which of them a model belongs.

The form of an id decides: ``owner/name`` is a model of the Hub, ``SCHEME:…`` one of the source with that scheme. Other
packages name their sources as entry points of the group ``model_atlas.sources``, by their schemes::

    [project.entry-points."model_atlas.sources"]
    s3 = "atlas_s3:Buckets"

A source is imported when one of its models is asked for. No other package can add to the ids of the Hub or of folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.entry_points import entry_points
from indexer.errors import AtlasError, Skipped
from indexer.untrusted import printable

if TYPE_CHECKING:
    from indexer.sources.file_systems import FileSystem, TreeFile
    from indexer.sources.source import Source

GROUP = "model_atlas.sources"
HUB, FOLDER, TREE, REMOTE_TREE = "hub", "local", "tree", "address"
# By scheme; the Hub's ids are written without one. An existing folder wins over an id of the same spelling. Models of
# trees have ids of the others.
SOURCES = {
    FOLDER: "indexer.sources.folder:Folder",
    HUB: "indexer.sources.hub:Hub",
    TREE: "indexer.sources.tree:Tree",
    REMOTE_TREE: "indexer.sources.tree:RemoteTree",
    "modelscope": "indexer.sources.modelscope:ModelScope",
}

# The id of a model of any source but the Hub. What a source itself calls valid is a part of these.
_ID = re.compile(r"([a-z][a-z0-9+.\-]{1,30}):([\w./\-+=]{1,200})", re.ASCII)
_LONGEST_SHOWN = 200


@dataclass(frozen=True)
class Limits:
    """What a process may read that answers somebody else's questions: public models, and folders in ``folders``."""

    folders: Path | None


limits: Limits | None = None


def limit_reading(folders: Path | None) -> None:
    """From now on this process reads models only from public sources, and from folders in ``folders`` (None: none)."""
    global limits
    limits = Limits(None if folders is None else folders.resolve())


def check_readable(reference: ModelRef) -> None:
    """Raise AtlasError if this process may not have the newest version of a model read."""
    source = reference.source
    if limits is not None and not source.is_public and source.scheme != FOLDER:  # folders have a limit of their own
        raise AtlasError(f"Models of {source.title} are not read here.", "Ask about a model that the atlas holds.")


@dataclass(frozen=True)
class TreePlace:
    """Where a model of a tree lies: ``files`` by their names in the model, at an address or in a folder.

    ``options``: those of fsspec for the address. ``is_cached``: in the cache of the Hub's client, so that files may be
    missing. ``above``: the paths of what a training tool wrote of the whole run, by name. All of it is private.
    """

    address: str
    path: str
    files: Mapping[str, TreeFile] = field(hash=False)
    is_remote: bool = False
    options: tuple[tuple[str, Any], ...] = field(default=(), hash=False)
    is_cached: bool = False
    above: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_of_process(self) -> bool:
        """Whether only this process can read it (fsspec's ``memory://``)."""
        return self.address.startswith("memory:")

    def file_system(self) -> FileSystem:
        """The place, opened. Raises AtlasError."""
        from indexer.sources.addresses import opened

        return opened(self.address, dict(self.options))

    def taken_out_of(self, text: str) -> str:
        """A text without the address and the path."""
        last = self.path.rpartition("/")[2] or "the tree"
        for private in (f"{self.address}/{self.path}", self.address, self.path):
            if len(private) > 1 and private != last:
                text = text.replace(private, last)
        return text


@dataclass(frozen=True)
class ModelRef:
    """A model: ``owner/name``, ``owner/name@revision``, the address of its page, a folder, or ``SCHEME:…``.

    ``id``: its name in an atlas; for a folder that is not in one, its path. ``folder``: where a model of a folder lies,
    which no atlas stores. ``place``: where a model of a tree lies. ``subfolder``: the part of its files that is read.
    """

    id: str
    revision: str | None = None
    folder: Path | None = None
    subfolder: str = ""
    place: TreePlace | None = None

    @classmethod
    def parse(cls, text: str) -> ModelRef:
        """Read what a person typed. Raises AtlasError if it names no model of any source."""
        for source in sources():
            if (reference := source.parse(text)) is not None:
                return reference
        _source_by_form(text.partition("@")[0])  # raises for one that cannot be imported
        what = repr(text) if len(text) <= _LONGEST_SHOWN else f"A name of {len(text):,} characters"
        kinds = [source.kind for source in sources() if source.kind]
        why = f"neither {' nor '.join(kinds)}" if len(kinds) > 1 else f"not {''.join(kinds)}"
        *examples, last = [example for source in reversed(list(sources())) for example in source.examples]
        raise AtlasError(f"{what} is {why}{source_named(FOLDER).limit}.", f"Give {', '.join(examples)}, or {last}.")

    @classmethod
    def of_atlas(cls, name: str) -> ModelRef:
        """A model by its name in an atlas; never a local folder, whatever exists on this machine.

        Raises Skipped("malformed") if no model can have this name: the atlas may not be trustworthy.
        """
        if not is_model_id(name):
            raise Skipped(
                "malformed", f"the atlas names a model {name[:100]!r}, which is not a Hub id, and of no other source"
            )
        return cls(id=name)

    @property
    def source(self) -> Source:
        """The source that it belongs to. Raises Skipped("malformed") if there is none."""
        if self.place is not None:
            return source_named(REMOTE_TREE if self.place.is_remote else TREE)
        return source_of(self.id) if self.folder is None else source_named(FOLDER)

    @property
    def is_name(self) -> bool:
        """Whether an atlas may know it by this id; else it lies somewhere, and the content identifies the model."""
        return self.folder is None and self.place is None

    @property
    def typed(self) -> str:
        """As a person types it: the id, with its revision if it has one."""
        return f"{self.id}@{self.revision}" if self.revision else self.id


def sources() -> Iterator[Source]:
    """Every source, ours first; those of other packages are only imported if the caller comes to them.

    One that cannot be imported is left out: only a model of it needs it.
    """
    yield from map(source_named, SOURCES)
    for scheme in sorted(_others()):
        try:
            source = source_named(scheme)
        except AtlasError:
            continue
        yield source


def source_named(scheme: str) -> Source:
    """The source with this scheme. Raises AtlasError if there is none, or that of another package cannot be used."""
    source = _known(scheme)
    if source is None:
        raise AtlasError(f"There is no source {printable(scheme, 60)!r}.", "Install the package that reads it.")
    return source


def source_of(identifier: str) -> Source:
    """The source of a model, by the form of its id. Raises Skipped("malformed") if there is none."""
    if (source := _source_by_form(identifier)) is None:
        raise Skipped("malformed", f"{printable(identifier, 100)!r} is not the id of a model that can be read here")
    return source


def listing_source(place: str) -> Source | None:
    """The source besides the Hub that a person names by its scheme, to list what descends from bases; else None."""
    if place in (HUB, FOLDER, TREE, REMOTE_TREE):
        return None
    source = _known(place)
    return source if source is not None and source.lists else None


def base_source(name: str) -> tuple[Source, str]:
    """The source that lists the models made of a base, and the base's id as it was typed; never a folder.

    Raises AtlasError if the name is none of a base.
    """
    if (reference := listed_reference(name)) is None:
        _source_by_form(name.partition("@")[0])  # raises for one that cannot be imported
        raise AtlasError(
            f"{printable(name, 100)!r} is not a Hub id.", "A base model is named owner/name, as on the Hub."
        )
    if "--" in reference.id:  # it names files, where "--" stands for "/"
        raise AtlasError(f"{reference.id} cannot be a base: its name holds '--'.", "Give it another name.")
    return reference.source, reference.id


def listed_reference(text: str) -> ModelRef | None:
    """The model that a person named, if a source can list it: never a folder. None for any other text.

    Raises AtlasError for the address of something other than a model.
    """
    references = (source.parse(text) for source in sources() if source.lists)
    return next((reference for reference in references if reference is not None), None)


def typed_id(text: str) -> str:
    """The id in what a person typed, by its form alone: no folder is looked for. Any other text stays as it is.

    Raises AtlasError as ``listed_reference``.
    """
    reference = listed_reference(text)
    return text.partition("@")[0] if reference is None else reference.id


def is_model_id(text: str) -> bool:
    """Whether an atlas may hold a model of this name: its source is known here, and calls the id valid."""
    source = _readable(text)
    return source is not None and source.valid_id(text)


def is_listed_id(text: str) -> bool:
    """Whether ``text`` is the id of a model that a source can list. A base has such an id, one of a folder has not."""
    source = _readable(text)
    return source is not None and source.lists and source.valid_id(text)


def is_addable(text: str) -> bool:
    """Whether a person may list a model of this name: a valid id, or the path of a folder."""
    source = _readable(text)
    return source is not None and (source.valid_id(text) or (source.scheme == FOLDER and Path(text).is_absolute()))


def author_of(identifier: str) -> str:
    """Whose model it is: the owner in its id, "local" for a folder, "" where the id does not say."""
    source = _readable(identifier)
    return "" if source is None else source.author(identifier)


def page_of(identifier: str, endpoint: str | None = None) -> str | None:
    """The address of a model's page, at the Hub's ``endpoint``; None for a model without a public page."""
    return source_of(identifier).page(identifier, endpoint) if is_model_id(identifier) else None


def _readable(identifier: str) -> Source | None:
    """The source of a model by the form of its id, if it can be used: many texts are only looked at."""
    try:
        return _source_by_form(identifier)
    except AtlasError:
        return None


def _source_by_form(identifier: str) -> Source | None:
    if ":" not in identifier:
        return source_named(FOLDER if identifier.startswith(("/", "\\")) else HUB)
    if identifier[1:2] == ":":  # a path of Windows
        return source_named(FOLDER)
    written = _ID.fullmatch(identifier)
    if written is None or ".." in written[2]:
        return None
    return _known(written[1]) if written[1] != HUB else None


@cache
def _known(scheme: str) -> Source | None:
    """The source with this scheme, imported now. Raises AtlasError if that of another package cannot be used."""
    place = SOURCES.get(scheme) or _others().get(scheme)
    if place is None:
        return None
    module, _, name = place.partition(":")
    try:
        source = getattr(import_module(module), name)()
        if not hasattr(source, "scheme"):
            raise TypeError(f"{place} is not derived from Source")
    except Exception as error:
        if scheme in SOURCES:
            raise
        raise AtlasError(f"The source {scheme!r} cannot be loaded: {type(error).__name__}: {error}.", "") from error
    source.scheme = scheme
    return source


@cache
def _others() -> dict[str, str]:
    """The sources of other packages: module and class by scheme."""
    schemes: dict[str, str] = {}
    for entry in entry_points(GROUP):
        if entry.name not in SOURCES and _ID.fullmatch(f"{entry.name}:x"):
            schemes.setdefault(entry.name, entry.place.partition("[")[0].strip())  # without extras
    return schemes
