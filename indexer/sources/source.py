"""What a source of models does: it lists them, it says what one model is, it opens files, and it knows its own ids.

A new source is a class derived from :class:`Source` with ``valid_id``, ``row``, ``open`` and, if models that descend
from a base can be found in it, ``list``; and its line in ``registry.SOURCES`` or among the entry points of a package.
Everything it says is untrusted: rows are checked in ``rows``, bytes where they are parsed.

Errors: Failed where another try may help ("not_found", "network", "rate_limited", …), Skipped where none will
("gated", "malformed", …), and AtlasError for what the user has to mend before anything can be read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from indexer.errors import AtlasError, Call, Failed, ModelError, Skipped, Text, unreadable
from indexer.network.rows import filenames_in
from indexer.sources.registry import ModelRef
from indexer.untrusted import shown

if TYPE_CHECKING:
    from indexer.network.byterange import ByteSource
    from indexer.network.retries import RetryPolicy
    from indexer.sources.questions import CrawlProgress, CrawlRequest, Page, RowCheck

Row = dict[str, Any]

LONGEST_REVISION = 250  # characters: branches and tags of git are files


@dataclass(frozen=True)
class BaseFacts:
    """A base model: canonical id, other ids, commit, parsed config.json, and its row.

    ``component``: the folder of the weights in a repository of diffusers ("transformer"), and of its config.json.
    """

    id: str
    commit: str
    aliases: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    row: Row = field(default_factory=dict)
    component: str = ""

    @property
    def ids(self) -> tuple[str, ...]:
        """All its ids, the canonical one first."""
        return (self.id, *self.aliases)

    @property
    def filenames(self) -> tuple[str, ...]:
        """The files of its repository."""
        return filenames_in(self.row)


class Version:
    """The files of one model at one commit, by their paths in it or in the requested subfolder.

    ``open_file`` opens one for reading by ranges; ``read_small`` reads a short one, where that takes less than opening.
    ``lacking``: why files may be missing here that the model has; "" if they cannot. ``above``: by name, how to open
    the files of the folders above, nearest first; what training tools wrote of a whole run lies there.
    """

    def __init__(
        self,
        commit: str | None,
        names: Iterable[str],
        open_file: Callable[[str], ByteSource],
        *,
        read_small: Callable[[str, int], bytes] | None = None,
        subfolder: str = "",
        lacking: str = "",
        above: Mapping[str, Callable[[], ByteSource]] | None = None,
    ) -> None:
        below = f"{subfolder}/" if subfolder else ""
        paths = list(names)
        self.commit = commit
        self.names = frozenset(path.removeprefix(below) for path in paths if path.startswith(below))
        self.lacking = lacking
        self.above: Mapping[str, Callable[[], ByteSource]] = above or {
            path: partial(open_file, path)
            for path in sorted(paths, key=lambda path: -path.count("/"))
            if not path.startswith(below) and below.startswith("".join(path.rpartition("/")[:2]))
        }
        self._open_file, self._read_small, self._below = open_file, read_small, below

    def open(self, path: str) -> ByteSource:
        """One file, to be read by ranges. Raises ModelError."""
        return self._open_file(self._below + path)

    def read(self, path: str, limit: int) -> bytes:
        """A whole file. Raises Skipped("malformed") if it is longer than ``limit``, ModelError if it cannot be read."""
        if self._read_small is not None:
            return self._read_small(self._below + path, limit)
        if path not in self.names:
            raise Failed("not_found", f"there is no file {shown(path)}")
        return whole_file(self.open(path), limit)


def whole_file(file: ByteSource, limit: int) -> bytes:
    """All bytes of a file, which is closed. Raises Skipped("malformed") if it is longer than ``limit``."""
    with closing(file):
        if file.size > limit:
            raise Skipped("malformed", f"{shown(file.name)} is longer than the {limit} bytes that are read")
        return bytes(file.read(0, file.size))


class Source(ABC):
    """One kind of place where models lie. It has no state of its own: every process makes one."""

    scheme: str = ""
    """Its name in the list of sources, and how the ids of its models begin."""
    title: ClassVar[str]
    """What it is called in a sentence: "the Hub"."""
    examples: tuple[str, ...] = ()
    """How its models are written, for a hint."""
    claimed_by: ClassVar[str] = "user"
    """``fine_tunes.claimed_by`` of a model that a person adds from it by name."""
    lists: ClassVar[bool] = False
    """Whether it finds the models that descend from a base."""
    checks_rows: ClassVar[bool] = False
    """Whether its pages hold only rows that it has checked with ``rows.bad_row``; else they are checked behind it."""
    is_remote: ClassVar[bool] = False
    """Whether reading waits for a server that counts connections and requests."""
    is_public: ClassVar[bool] = False
    """Whether everybody may see what it lists. A process that answers agents has no other models read."""

    @property
    def subject(self) -> str:
        """Its title as the first words of a sentence."""
        return self.title[:1].upper() + self.title[1:]

    # ---- ids

    @abstractmethod
    def valid_id(self, text: str) -> bool:
        """Whether an atlas may call a model of this source so."""

    @property
    def kind(self) -> str:
        """What a person can name a model of it by ("a folder here"); "" if models cannot be read from it."""
        return f"a model of {self.title}"

    access: ClassVar[str] = ""
    """What else to do about a model that it does not show, after a full sentence: "; log in …"."""

    @property
    def limit(self) -> str:
        """What follows in the error for a name that no source knows: why fewer names are allowed here."""
        return ""

    def parse(self, text: str) -> ModelRef | None:
        """The model that a person names; None if it is none of this source. Nothing is asked."""
        identifier, _, revision = text.partition("@")
        if not identifier.startswith(f"{self.scheme}:") or not self.valid_id(identifier):
            return None
        return ModelRef(identifier, revision or None) if len(revision) <= LONGEST_REVISION else None

    def author(self, identifier: str) -> str:
        """The account that a model belongs to; "" if the id does not say."""
        return identifier.partition(":")[2].strip("/").rpartition("/")[0].rpartition("/")[2]

    def page(self, identifier: str, endpoint: str | None = None) -> str | None:
        """The address of a model's public page; None if it has none."""
        return None

    def package_url(self, identifier: str, commit: str | None) -> str | None:
        """The package URL of a public model (https://github.com/package-url/purl-spec); None without a type for it."""
        return None

    def check_name(self, reference: ModelRef, wanted: str | None) -> None:
        """Raise AtlasError if the user cannot give an added model the name ``wanted``; None for none."""
        if wanted is not None:
            hint = Text(Call(name="OWNER/NAME"), " gives a folder its name in the atlas.")
            raise AtlasError(f"{reference.typed} has a name on {self.title}.", hint)

    def name_in_atlas(self, reference: ModelRef, row: Row, wanted: str | None, places: Mapping[str, str]) -> str:
        """What an atlas calls an added model. ``wanted``: by the user.

        ``places``: names in use, each with what identifies its folder ("" if it is of none). Raises AtlasError if
        another model has the name that is wanted.
        """
        return str(row["id"])

    def without_private(self, reference: ModelRef, text: str) -> str:
        """A text from its files, or an error of reading them, without what an atlas must not store."""
        return text

    # ---- whether it can be asked

    @property
    def offline(self) -> str:
        """Why it must not be asked, by what the user has set; "" if it may be."""
        return ""

    def unreachable(self) -> str:
        """Why it will not answer, as far as a moment can tell; "" if it may."""
        return self.offline

    def explain(self, error: ModelError, reference: ModelRef) -> AtlasError:
        """The error for a model that a person named, and that could not be read."""
        return unreadable(reference.id, error)

    def stopped(self, error: ModelError, what: str) -> AtlasError:
        """The error that ends a build or a question, because the source cannot be asked for ``what`` any more."""
        return AtlasError(f"Cannot get {what} from {self.title}: {error.detail.rstrip('.')}.", "Run it again later.")

    # ---- models

    @abstractmethod
    def row(self, reference: ModelRef, *, whole: bool = True) -> Row:
        """One model as a row of the Hub's listing.

        It has ``id``, ``sha`` (its version), and what is known of siblings (its files), tags, cardData, config,
        createdAt and so on. Unless ``whole``, a version that a question can compare is enough.

        Raises ModelError, and UnknownRevision if the model has no such revision. Callers take ``rows.row_of``, which
        checks the row.
        """

    @abstractmethod
    def open(
        self,
        reference: ModelRef,
        *,
        commit: str | None = None,
        filenames: Sequence[str] | None = None,
        retries: RetryPolicy | None = None,
    ) -> Version:
        """The files of a model at ``commit`` (by default its revision, or the newest), in ``reference.subfolder``.

        Known ``filenames`` may save a request. Raises ModelError.
        """

    def read_small(self, reference: ModelRef, path: str, commit: str, limit: int) -> bytes:
        """One short file. Raises Skipped("malformed") if it is longer than ``limit``, and ModelError."""
        return self.open(reference, commit=commit, filenames=(path,)).read(path, limit)

    def conversion(self, reference: ModelRef) -> str | None:
        """A revision that holds the weights as safetensors where the model has only pickles; None if there is none."""
        return None

    def keep(self, reference: ModelRef, commit: str | None, paths: Collection[str]) -> None:
        """Keep these files where later reads find them on this machine. Raises ModelError."""
        return None

    # ---- what descends from a base

    def base(self, name: str) -> BaseFacts | None:
        """A base by any of its ids, if there is more to ask of it than its row and its config.json; see ``bases``.

        Raises AtlasError if it is unknown, cannot be read, or cannot be a base.
        """
        return None

    def kept_base(self, name: str) -> BaseFacts | None:
        """A base as earlier downloads left it on this machine, without asking; None if it is not here."""
        return None

    def list(self, request: CrawlRequest, progress: CrawlProgress) -> Iterator[Page]:
        """The pages of what descends from ``request.ids``; each may be stored as soon as it is yielded.

        What ``progress`` calls finished is not asked again. Raises AtlasError if it cannot go on; pages that were
        yielded stay valid.
        """
        return iter(())

    def list_type(
        self, model_type: str, request: CrawlRequest, progress: CrawlProgress, check: RowCheck
    ) -> Iterator[Page]:
        """The pages of all models of one architecture, whose rows ``check`` examines.

        Raises AtlasError if the source does not list them.
        """
        raise AtlasError(f"{self.subject} does not list models by their architecture.", "Leave `discover` out.")

    def count_children(self, identifier: str) -> dict[str, int]:
        """How many models are made from this one, by relation; {} if the source does not say."""
        return {}

    def mirrors(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Ids that are known to stand for the weights of one of ``ids``; they need not exist."""
        return ()
