"""`index merge`: combine atlases of different bases, or shards of one base, into one atlas.

Listings are joined, records linked (or copied), and everything is published again from them: ids are assigned again,
and duplicates and neighbours are found across the sources. Contradictions between the sources are reported.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.arguments import plain_arguments
from indexer.atlas import DEMO, AtlasFolder
from indexer.builds.report import Progress, Watcher
from indexer.database.gate import check_tables
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase, stored_bases
from indexer.errors import AtlasError
from indexer.listing.exchange import join_listings
from indexer.publish.origin import fetched_again, read_origin
from indexer.publish.previous_atlas import PreviousAtlas, rank_of
from indexer.publish.stored_answers import ANSWERS, Line, exported_answers, write_answers
from indexer.records.store import RecordStore
from indexer.share.contents import packable
from indexer.storage.atomic_files import link_or_copy, write_atomically
from indexer.storage.checksums import file_sha256
from indexer.upkeep.maintenance import rebuild

Say = Callable[[str], None]

# In the new atlas until the merge has ended. If a merge is killed, the next one into that folder begins anew.
_BEGUN = ".merge"


@dataclass(frozen=True)
class MergeReport:
    """The result of a merge; ``in_several``: models that more than one source lists."""

    atlas: str
    sources: list[str]
    bases: list[str]
    models: int
    records: int
    in_several: int
    seconds: float


@plain_arguments
def merge(paths: Sequence[str | Path], atlas: str | Path = "atlas", *, progress: Progress | None = None) -> MergeReport:
    """Merge the records of several atlases into a new one, ``atlas``: what `index merge` does. They do not change.

    Raises AtlasError if one has no records, if they hold the same base at two commits or ranks (whose vectors cannot be
    compared), or if ``atlas`` is not empty.
    """
    started, say = time.monotonic(), Watcher(progress).say
    sources, target = [AtlasFolder(path) for path in paths], AtlasFolder(atlas)
    if len({source.root.resolve() for source in sources}) != len(sources):
        raise AtlasError("The same atlas is named twice.", "Name each once.")
    for source in sources:
        if not source.root.is_dir():
            raise AtlasError(f"{source.root} does not exist.", "Give the folders of atlases.")
        if not (source.bases.is_dir() and any(_is_record(path) for path, _ in packable(source))):
            origin = read_origin(source)
            is_pulled = origin is not None and origin.repository != DEMO
            hint = fetched_again(source, origin, with_records=True) if is_pulled else "index build"
            raise AtlasError(
                f"{source.root} has no records, from which a merge is made.", f"Fetch or make them: {hint}"
            )
    begun = target.root / _BEGUN
    if begun.is_file() and target.database.exists():
        begun.unlink(missing_ok=True)  # only that was missing
    if target.root.exists() and not begun.is_file() and any(path.name != "lock" for path in target.root.iterdir()):
        raise AtlasError(f"{target.root} is not empty.", "Choose another --atlas: a merge makes a new one.")
    # The newest commit of each base, and what is published now.
    bases = [{base.base: base for base in reversed(stored_bases(source))} for source in sources]
    published, ranks = zip(*(_published(source, say) for source in sources), strict=True)
    _check_bases(sources, bases, ranks)
    with target.locked("index merge"):
        _clear(target, begun)
        write_atomically(begun, b"")
        try:
            in_several = _gather(sources, bases, target, say)
            aliases: dict[str, tuple[str, ...]] = {}
            for previous in published:
                for base, names in previous.aliases.items():
                    aliases[base] = tuple(dict.fromkeys((*aliases.get(base, ()), *names)))
            representations = dict.fromkeys(name for previous in published for name in previous.representations)
            lengths = {
                base: length for previous in reversed(published) for base, length in previous.vector_lengths.items()
            }
            licences = {base: text for previous in reversed(published) for base, text in previous.licences.items()}
            before = PreviousAtlas(list(representations), lengths, aliases, licences)
            rebuilt = rebuild(target, say=say, before=before)
        except BaseException:
            _clear(target, begun)
            raise
        begun.unlink(missing_ok=True)
    return MergeReport(
        atlas=str(target.root),
        sources=[str(source.root) for source in sources],
        bases=rebuilt["bases"],
        models=rebuilt["models"],
        records=rebuilt["records"],
        in_several=in_several,
        seconds=round(time.monotonic() - started, 2),
    )


def _clear(target: AtlasFolder, begun: Path) -> None:
    """Remove what a merge has made that did not end, and last of all the file that says so."""
    for path in [path for path in target.root.iterdir() if path.name != "lock" and path != begun]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    begun.unlink(missing_ok=True)


def _is_record(path: str) -> bool:
    return path.startswith("records/") and path.endswith(".safetensors")


def _published(source: AtlasFolder, say: Say) -> tuple[PreviousAtlas, dict[str, int]]:
    """What the database of a source says of its bases, and the rank of each.

    Nothing, and a note says why, if it is damaged, of another schema, or somebody has put odd things into it.
    """
    if not source.database.is_file():
        return PreviousAtlas(), {}
    try:
        with Reading(source.database) as connection:
            check_tables(connection, ("bases", "representations"))

            def rows(_: Sequence[str], statements: Sequence[str]) -> list[list[dict[str, Any]]]:
                return [connection.rows(statement) for statement in statements]

            previous = PreviousAtlas.read(rows)
            ranks = {base: rank_of(rows, base) for base in previous.aliases}
            return previous, {base: rank.rank for base, rank in ranks.items() if rank is not None}
    except (AtlasError, OSError) as error:
        say(f"only the records of {source.root} are used: {getattr(error, 'message', error)}")
        return PreviousAtlas(), {}


def _check_bases(
    sources: Sequence[AtlasFolder], bases: Sequence[dict[str, StoredBase]], published: Sequence[dict[str, int]]
) -> None:
    """Raise AtlasError if the vectors of a base cannot be compared; ``published``: the rank of each base."""
    for name in sorted({name for stored in bases for name in stored}):
        holders = [(source, stored[name]) for source, stored in zip(sources, bases, strict=True) if name in stored]
        commits = {base.commit: source for source, base in holders}
        if len(commits) > 1:
            origins = " and ".join(f"{commit[:12]} in {source.root}" for commit, source in commits.items())
            raise AtlasError(
                f"{name} occurs at two commits: {origins}; their vectors cannot be compared.",
                f"Bring one up to date first: index build --base {name}",
            )
        ranks = {
            of_source[name]: source for source, of_source in zip(sources, published, strict=True) if name in of_source
        }
        if len(ranks) > 1:
            origins = " and ".join(f"rank {rank} in {source.root}" for rank, source in ranks.items())
            raise AtlasError(
                f"{name} occurs with two ranks: {origins}; their vectors cannot be compared.",
                f"Build one of them again: index build --base {name} --rank N",
            )


def _gather(
    sources: Sequence[AtlasFolder], bases: Sequence[dict[str, StoredBase]], target: AtlasFolder, say: Say
) -> int:
    """Collect everything the atlas is made of; returns how many models more than one source lists."""
    in_several = 0
    for name in sorted({name for bases_of_source in bases for name in bases_of_source}):
        holders = [source for source, bases_of_source in zip(sources, bases, strict=True) if name in bases_of_source]
        stored = next(bases_of_source[name] for bases_of_source in bases if name in bases_of_source)
        link_or_copy(stored.path, target.bases / stored.path.name)
        joined = join_listings(holders, name, target.listing(name))
        in_several += len(joined)
        if joined:
            shown = ", ".join(joined[:3]) + (" …" if len(joined) > 3 else "")
            say(f"{name}: {len(joined)} models are in several atlases ({shown}); the latest row is used")
        for kind in ANSWERS:  # stored lineage and predictions
            answers: list[Line] = []
            for source in sources:
                lines, problems = exported_answers(kind, source, name)
                answers += lines
                for problem in problems[:1]:
                    say(f"{source.root}: the stored {kind.table} of {name}: {problem}; the others are used")
            if answers:
                write_answers(kind, target, name, answers)
    store = RecordStore(target)
    differing = 0
    for source in sources:
        for path, file in packable(source):
            copied_path = target.root / path
            if not copied_path.exists():
                link_or_copy(file, copied_path)
            elif _is_record(path) and file_sha256(copied_path) != file_sha256(file):
                differing += 1
                try:
                    is_readable = store.read(copied_path.stem).identity.digest == copied_path.stem
                except AtlasError:
                    is_readable = False
                if not is_readable:
                    link_or_copy(file, copied_path)
    if differing:
        say(f"{differing} records of the same models differ; the first readable one is kept")
    return in_several
