"""The folder of an atlas: its paths, and the lock of its writer.

Nothing here imports torch, transformers or huggingface_hub, because every query imports this file.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from indexer.errors import AtlasError, Call, Text, system_errors
from indexer.regular_files import descriptor_of
from indexer.shared_state import usable_umask

SCHEMA_VERSION = 12

# Rows of the table neighbours for each model and representation.
NEIGHBOURS = 50
# The similarity of two models that both changed fewer matrices than this is shrunk: it is the mean of too few cosines.
FEWEST_SHARED = 4


def fewest_shared(blocks: int) -> int:
    """The same for vectors of ``blocks`` blocks. A model has one of the two of ``vocabulary``, so one is enough."""
    return min(FEWEST_SHARED, blocks) if blocks > 2 else min(1, blocks)


ON_HUB = "hf://"

# The name, and the folder, of the small atlas that comes with this program. It is data of the package: nothing writes
# there, whoever owns the folder. `python -m scripts.demo --ship` makes it.
DEMO = "demo"
DEMO_FOLDER = Path(__file__).resolve().parent / "demo"

# Atlases whose lock a process holds: folder and process, because forks inherit this.
_LOCKED_HERE: set[tuple[Path, int]] = set()

DATABASE = "atlas.duckdb"

# Files that a DuckDB 1.4 shell can open too.
STORAGE_VERSION = "v1.4.0"


class AtlasFolder:
    """The paths of one atlas. Nothing is created.

    ``root``: its folder, or the text "demo" for the one that comes with this program (see ``is_demo``).

    - ``database``: metadata, and the names of the FAISS files that belong to it; ``checksums``: its possible checksums
    - ``origin``: the source of a pulled atlas; while this file exists, the atlas is read-only
    - ``trees``: where models of trees lie, which is private
    - folders: ``listings`` (one database for each base, with its stored answers), ``bases`` (block matrices of bases),
      ``records`` (and stored failures), ``profiles`` (by depth); ``exports``: the folder of a pulled atlas's JSON lines
    """

    def __init__(self, root: str | Path) -> None:
        if is_on_hub(root):
            raise AtlasError(
                f"{root} is on the Hub, and this command works on a folder.",
                f"Fetch it first: index pull {str(root).removeprefix(ON_HUB)} --atlas DIR",
            )
        self.root = DEMO_FOLDER if is_demo(root) else Path(root).expanduser().absolute()
        if "?" in str(self.root):
            raise AtlasError(
                f"An atlas cannot lie in {self.root}: DuckDB takes what follows a ? in a path for settings.",
                "Rename the folder, or choose another `atlas`.",
            )
        self.database = self.root / DATABASE
        self.checksums = self.root / "checksums.json"
        self.origin = self.root / "pulled.json"
        self.listings = self.root / "listing"
        self.bases = self.root / "bases"
        self.records = self.root / "records"
        self.profiles = self.root / "profiles"
        self.exports = self.root
        self.trees = self.root / "sources" / "trees.sqlite"

    def with_database_in(self, root: Path) -> AtlasFolder:
        """The same listings, bases, records, profiles and answers with database and vectors in another folder."""
        made = AtlasFolder(root)
        for name in ("listings", "bases", "records", "profiles", "exports"):
            setattr(made, name, getattr(self, name))
        return made

    def listing(self, base: str) -> Path:
        """The database of one base: its listing and stored answers."""
        return self.listings / f"{file_name(base)}.sqlite"

    def exported(self, kind: str, base: str) -> Path:
        """The listing of one base (``kind``: listing) or its stored answers (lineage, predictions) as JSON lines.

        Only an atlas that was pulled and not adopted has these files: a database by somebody else is not opened.
        """
        return self.exports / kind / f"{file_name(base)}.jsonl"

    def base(self, base: str, commit: str) -> Path:
        """The block matrices of one base at one commit."""
        return self.bases / f"{file_name(base)}@{commit}.safetensors"

    def record(self, digest: str) -> Path:
        """The record with this identity."""
        return self.records / digest[:2] / f"{digest}.safetensors"

    def failure(self, digest: str) -> Path:
        """The failure that is stored in place of a record."""
        return self.records / digest[:2] / f"{digest}.json"

    def profile(self, digest: str) -> Path:
        """The depth profile with this identity."""
        return self.profiles / digest[:2] / f"{digest}.safetensors"

    def require_writable(self) -> AtlasFolder:
        """Raises AtlasError if this is the atlas that comes with the program."""
        if self.root == DEMO_FOLDER:
            raise AtlasError(
                "The atlas demo comes with this program and is read-only.",
                Text("Name a folder of your own: ", Call(atlas="DIR"), "; a folder that is called demo is ./demo."),
            )
        return self

    def require(self) -> AtlasFolder:
        """Raises AtlasError if there is no published atlas."""
        if not self.database.is_file():
            if self.root.exists() and not self.root.is_dir():
                what = "is not an atlas: it is a file, and an atlas is a folder"
            else:
                what = f"{'is not an atlas' if self.root.exists() else 'does not exist'} (no atlas.duckdb there)"
            raise AtlasError(
                f"{self.root} {what}.",
                Text(
                    "Give ",
                    Call(atlas="DIR"),
                    ", try ",
                    Call(atlas=DEMO),
                    ", or make one: ",
                    Call("build", "roberta-base", limit=50),
                    ". Without an atlas, ",
                    Call("scan", "PLACE"),
                    " says what files and folders hold.",
                ),
            )
        return self

    @contextmanager
    def locked(self, command: str, *, wait: bool = False, pulled: bool = False) -> Iterator[None]:
        """Hold the writer's lock; the system releases it when the process ends in any way.

        Folders that are empty in the end are removed, including the atlas's own and those above it that were made
        here, so that a command without a result leaves nothing. Raises AtlasError that names the process holding the
        lock (with ``wait`` it waits instead), where the file system has no such locks, and where the atlas was pulled
        (unless ``pulled``, for pulling and adopting) or comes with the program. What is written meanwhile has a usable
        umask.
        """
        self.require_writable()
        if not pulled and self.origin.exists():
            raise AtlasError(
                f"{self.root} was pulled from the Hub and is read-only.",
                "To make it your own: index build --adopt",
            )
        with usable_umask():
            made = [folder for folder in (self.root, *self.root.parents) if not folder.exists()]
            handle = self._opened_lock()
            try:
                while True:
                    self._take_lock(handle, wait, made)
                    with suppress(FileNotFoundError):
                        found, opened = (self.root / "lock").stat(), os.fstat(handle)
                        if (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino):
                            break
                    os.close(handle)  # the process before us removed the file at its end
                    handle = self._opened_lock()
                claim = {
                    "pid": os.getpid(),
                    "host": socket.gethostname(),
                    "command": command,
                    "since": datetime.now(UTC).isoformat(timespec="seconds"),
                }
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps(claim).encode(), 0)
                _LOCKED_HERE.add((self.root, os.getpid()))
                try:
                    yield
                finally:
                    _LOCKED_HERE.discard((self.root, os.getpid()))
                    os.ftruncate(handle, 0)
                    self._remove_if_empty(made)
            finally:
                os.close(handle)

    def _opened_lock(self) -> int:
        lock, other = self.root / "lock", "Choose another `atlas`."

        def unwritable(why: str) -> AtlasError:
            hint = copied_hint(self.root) if lock.is_symlink() else other
            return AtlasError(f"{self.root} cannot be written to: {why}.", hint)

        with system_errors(unwritable):
            for _ in range(100):
                with suppress(FileNotFoundError):  # removed by another process meanwhile
                    self.root.mkdir(parents=True, exist_ok=True)
                    return descriptor_of(lock, os.O_RDWR | os.O_CREAT)
        raise AtlasError(f"{self.root} cannot be made.", other)

    def _take_lock(self, handle: int, wait: bool, made: Sequence[Path]) -> None:
        try:
            take_lock(handle, self.root, wait=wait)
        except BlockingIOError as error:
            holder = "another process"
            with suppress(ValueError, KeyError, TypeError):
                claim = json.loads(os.pread(handle, 4096, 0))
                holder = f"`{claim['command']}` (process {claim['pid']} on {claim['host']}, since {claim['since']})"
            raise AtlasError(
                f"{self.root} is being written to by {holder}.", "Wait for it to finish; queries still work meanwhile."
            ) from error
        except AtlasError:
            self._remove_if_empty(made)
            raise

    def _remove_if_empty(self, made: Sequence[Path]) -> None:
        """Remove what this command made and did not use: its folders, then the lock, then the folders around them."""
        own = {
            "lock": self.root / "lock",
            **{folder.name: folder for folder in (self.listings, self.bases, self.records, self.trees.parent)},
        }
        with suppress(OSError):
            names = [path.name for path in self.root.iterdir()]
            if set(names) <= set(own) and not any(own[name].is_dir() and any(own[name].iterdir()) for name in names):
                for name in set(names) - {"lock"}:
                    own[name].rmdir()
                own["lock"].unlink()
                for folder in made:
                    folder.rmdir()


def is_locked_here(root: Path) -> bool:
    """Whether this process is the writer of the atlas in ``root``."""
    return (root, os.getpid()) in _LOCKED_HERE


def take_lock(handle: int, root: Path, *, wait: bool = False) -> None:
    """Lock an open file of the atlas in ``root``; ``wait`` until whoever holds the lock has released it.

    Raises BlockingIOError if it is held, and AtlasError if the file system has no such locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError as error:
        raise AtlasError(
            f"{root} cannot be locked: {error.strerror or error}.",
            "Its file system needs flock (Lustre: mounted with -o flock); choose another `atlas` meanwhile.",
        ) from error


def mending(root: Path, own: str) -> str:
    """Advice about a damaged atlas: fetch a pulled one again, install the demo again; ``own`` for any other."""
    if root == DEMO_FOLDER:
        return "Install vectors-in-the-wild again."
    if not AtlasFolder(root).origin.exists():
        return own
    return f"Fetch it again (pulled.json names its source): index pull OWNER/NAME --atlas {root}"


def with_records(folder: AtlasFolder) -> str:
    """Advice about an atlas that came without its records."""
    if folder.root == DEMO_FOLDER:
        return "An atlas that you build has them."
    return f"Fetch them (pulled.json names its source): index pull OWNER/NAME --with-records --atlas {folder.root}"


def copied_hint(root: Path) -> str:
    """Advice about an atlas of which files are links, as in the Hub's cache or under DVC."""
    return f"An atlas needs files and not links to them. Copy what the links name: cp -rL {root} COPY"


def is_demo(atlas: str | Path) -> bool:
    """Whether this is the name of the atlas that comes with the program: "demo", unless ./demo is an atlas itself.

    A path is always a folder: ``Path("demo")``, and ./demo on a command line.
    """
    return atlas == DEMO and not (Path(DEMO) / DATABASE).exists()


def demo_note(atlas: str | Path) -> str | None:
    """Which atlas the name "demo" stands for, as a sentence, if there is a folder ./demo too; None otherwise."""
    if atlas != DEMO or not Path(DEMO).exists():
        return None
    if is_demo(atlas):
        return "demo is the atlas that comes with this program: ./demo is there, too, and is not an atlas"
    return "demo is the folder ./demo, and not the atlas that comes with this program"


def is_on_hub(atlas: str | Path) -> bool:
    """Whether this is the address of an atlas on the Hub: hf://owner/name@tag."""
    return str(atlas).startswith(ON_HUB)


def file_name(base: str) -> str:
    """A base's id as part of a file name: "/" becomes "--", as in the Hugging Face cache, and ":" (of a source) "@"."""
    return base.replace("/", "--").replace(":", "@")


def schema_sql() -> str:
    """The text of schema.sql, from an installed wheel or from a source tree."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "schema.sql", here.parent / "schema.sql"):
        if candidate.is_file():
            return candidate.read_text(encoding="utf-8")
    raise AtlasError("schema.sql is missing from this installation.", "Install vectors-in-the-wild again.")
