"""`index starts`: search further for the random numbers that adapters began with."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from indexer.arguments import plain_arguments
from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.build_base import facts_of_stored
from indexer.builds.commands import prepare
from indexer.builds.indexed import check_choice, choose_indexed, refuse_folders
from indexer.builds.options import ResourceOptions, StartsOptions, WorkOptions
from indexer.builds.report import BuildReport, Progress, Watcher
from indexer.builds.trees import places_in_trees
from indexer.builds.unknown_starts import UNKNOWN
from indexer.console.options import with_options
from indexer.database.connection import published_bases
from indexer.database.reading import Reading
from indexer.deltas.starts.search import FurtherSearch
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError, BadArgument, Call, Text, system_errors
from indexer.listing.listing import Listing
from indexer.machine import check_device
from indexer.network.rows import listed_filenames
from indexer.publish.rows import Entry
from indexer.quantities import duration_in_words
from indexer.records.identity import Unit
from indexer.regular_files import read_regular
from indexer.sources.claims import BY_FOLDER
from indexer.sources.registry import ModelRef
from indexer.sources.rows import row_of
from indexer.upkeep.removal import finish_removals

# Seeds searched further than at indexing if no file names others: the default of the Trainer of transformers.
_SEEDS = (42,)
_DRAWS, _DRAWS_OF_FILE = 1 << 27, 1 << 22
_LARGEST_FILE = 64 << 20
_MOST_SEEDS = 1_000_000


@dataclass(repr=False)
class StartsReport(BuildReport):
    """The report of `index starts`: ``indexed`` counts the starts that were found, ``unchanged`` what was not.

    ``starts``: those that were found, as rows of model, generator, seed, offset, tool and so on.
    """

    starts: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        return super().to_dict() | {"starts": self.starts}

    @property
    def headline(self) -> str:
        """How many were found, in a line."""
        return f"{self.base}: the starts of {self.indexed} of {self.discovered} adapters were found"


@plain_arguments
@with_options(StartsOptions)
def find_starts(
    models: str | Sequence[str] = (),
    base: str | None = None,
    atlas: str | Path = "atlas",
    *,
    progress: Progress | None = None,
    options: StartsOptions,
) -> StartsReport:
    """Search for the start of ``models``, or of adapters of ``base`` without a known one: what `index starts` does.

    The start of an adapter is the seed and the place in its random numbers that its factors A were made from. A build
    looks through some numbers of usual seeds. This reads the adapters again and looks through more: the first ``draws``
    numbers of each of ``seeds`` (the path of a file with one in a line, or a list), and, for adapters that training
    moved little, of any seed. It takes minutes of processor an adapter. What is found is published, and the vectors
    of these adapters are then made of what training did alone. ``device``: a GPU, which then also tries all 2³² seeds
    for all adapters together (``indexer.deltas.starts.sweep``), whatever their distance from the start.

    A model from a folder is named by its path, which is not stored.

    Raises AtlasError if a model is not indexed, or is not an adapter whose factors were drawn, or if the device cannot
    be used, and BadArgument for seeds that cannot be read.
    """
    names = [models] if isinstance(models, str) else list(models)
    check_choice(names, base, options)
    seeds, draws, device = options.seeds, options.draws, options.device
    if device is not None:
        _check_sweep(device)
    search = FurtherSearch(_SEEDS, draws or _DRAWS)
    if seeds is not None:
        search = FurtherSearch(_read_seeds(seeds), draws or _DRAWS_OF_FILE)
    folder, watcher = AtlasFolder(atlas).require(), Watcher(progress)
    with folder.locked("index starts"):
        finish_removals(folder, say=watcher.say)
        with Reading(folder.database) as connection:
            listings = [Listing(folder.listing(model["base"])) for model in published_bases(connection)]
            names, places = _with_names(names, listings)
            published, rows = choose_indexed(
                folder, connection, names, base, UNKNOWN, "adapter of unknown start", options
            )
            statement = f"SELECT model, start, adapter_kind, {UNKNOWN} AS is_unknown FROM models WHERE base = $base"
            row_by_model = {row["model"]: row for row in connection.rows(statement, {"base": published.base})}
        stored = StoredBase(published.file)
        stored.check()
        listing = Listing(folder.listing(published.base))
        work_options = WorkOptions(**options.part(ResourceOptions), read="full", rank=published.rank)
        prepare(work_options, watcher)
        build = Build(folder, facts_of_stored(stored, listing), work_options, watcher, listing, search=search)
        build.report = report = StartsReport(build.facts.id, build.facts.commit, str(folder.root))
        for name in sorted(rows) if names else ():
            _check(row_by_model[name], watcher)
        selected = [model for model in listing.models() if model.id in rows and row_by_model[model.id]["is_unknown"]]
        places = places_in_trees(folder, {model.id for model in selected}) | places
        readable = {model.id for model in selected if model.claimed_by != BY_FOLDER} | set(places)
        unread = [model for model in selected if model.id not in readable]
        refuse_folders(unread, bool(names), "Name its path.", "name its path", watcher)
        planned = _planned(build, readable & {model.id for model in selected}, places)
        report.discovered = sum(model.unit is not None for model in planned)
        seconds = search.seconds * report.discovered
        sentence = "no adapter whose start is unknown and can be looked for"
        if report.discovered:
            adapters = f"{report.discovered:,} adapter{'s' if report.discovered > 1 else ''}"
            sentence = f"searching for the start of {adapters}: up to {duration_in_words(seconds)} of processor"
        if options.dry_run:
            report.dry_run = {"models": report.discovered, "seconds_of_processor": round(seconds)}
            watcher.say(sentence)
            return report
        watcher.say(sentence)
        if device is not None and report.discovered:
            build.search = replace(search, swept=_swept_seeds(build, planned, stored, device))
        build.run(planned, stored)
        report.starts = _starts_in(folder, published.base, build.renewed)
        return report


def _check_sweep(device: str) -> None:
    """Raises AtlasError if all seeds cannot be tried on ``device``."""
    hint = "Leave it out: then seeds are found by linear algebra."
    if device == "cpu":
        raise BadArgument("`device` is cpu: to try all seeds takes days there.", f"Name a GPU. {hint}")
    try:
        check_device(device)
    except AtlasError as error:
        raise AtlasError(error.message, hint) from error


def _swept_seeds(build: Build, planned: Sequence[Entry], stored: StoredBase, device: str) -> tuple[int, ...]:
    """The seeds of all with which one of the adapters may have begun."""
    from indexer.deltas.base import BaseMatrices
    from indexer.deltas.starts.sweep import FirstFactors, sweep
    from indexer.deltas.vectorise import with_start

    factors, units = FirstFactors(), [entry.unit for entry in planned if entry.unit is not None]
    with closing(BaseMatrices(stored.path, resident=False)) as matrices:
        for number, unit in enumerate(units, 1):
            build.watcher.listed(f"reading the first factors of {number} of {len(units)} adapters")
            # A record that cannot be read is read again below, and the error is reported there.
            with suppress(Exception):
                with_start(build.store.read(unit.identity.digest), unit, matrices, factors)
    if not factors.noted:
        build.watcher.say("no adapter has a first factor that can be compared with all seeds")
        return ()
    adapters = f"{len(factors.noted):,} adapter{'s' if len(factors.noted) > 1 else ''}"
    build.watcher.say(f"trying all 4,294,967,296 seeds for {adapters} on {device}")
    begin = time.monotonic()

    def watch(share: float) -> None:
        seconds_left = (time.monotonic() - begin) * (1 / share - 1)
        build.watcher.listed(f"{share:.1%} of the seeds were tried, {duration_in_words(seconds_left)} left")

    seeds_by_model = sweep(factors.noted, device, on_progress=watch)
    build.watcher.say(f"seeds that may be those of adapters: {len(seeds_by_model):,}; they are looked through first")
    return tuple(seeds_by_model)


def _read_seeds(seeds: str | Path | Sequence[int]) -> tuple[int, ...]:
    """The seeds of a list, or of a file with one in a line; what follows a # is a remark. Raises BadArgument."""
    if isinstance(seeds, str | Path):
        with system_errors(lambda why: BadArgument(f"`seeds` {str(seeds)[:200]} cannot be read: {why}.", "")):
            text = read_regular(Path(seeds), most=_LARGEST_FILE, through_links=True).decode("utf-8-sig")
        words = [line.partition("#")[0].strip() for line in text.splitlines()]
    else:
        words = [str(word) for word in seeds]
    seeds_read = []
    for number, word in enumerate(words, 1):
        if not word:
            continue
        digits = word.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 20):
            raise BadArgument(f"`seeds`: line {number} is {word[:60]!r}, not a whole number.", "One seed in a line.")
        seeds_read.append(int(word) & 0xFFFFFFFF)  # the generator takes the low 32 bits
    if not 0 < len(seeds_read) <= _MOST_SEEDS:
        raise BadArgument(f"`seeds` names {len(seeds_read):,} seeds; it must be from 1 to {_MOST_SEEDS:,}.", "")
    return tuple(dict.fromkeys(seeds_read))


def _with_names(names: Sequence[str], listings: Sequence[Listing]) -> tuple[list[str], dict[str, ModelRef]]:
    """``names`` with the names of models for the paths of folders; and where these lie, by these names.

    Raises AtlasError for a folder that was not added, or has changed since.
    """
    model_ids, places = list[str](), dict[str, ModelRef]()
    for name in names:
        reference = ModelRef.parse(name)
        if reference.is_name:
            model_ids.append(name)
            continue
        row = row_of(reference)
        of_folders = [model for listing in listings for model in listing.models() if model.claimed_by == BY_FOLDER]
        model = next((model for model in of_folders if model.row.get("folder") == row.get("folder")), None)
        if model is None:
            raise AtlasError(f"{name} is not in this atlas.", Text("Add it: ", Call("add", "FOLDER", "BASE")))
        if row["sha"] != model.row.get("sha"):
            raise AtlasError(
                f"{name} has changed since it was added.", Text("Add it again: ", Call("add", "FOLDER", "BASE"))
            )
        model_ids.append(model.id)
        places[model.id] = replace(reference, id=model.id)
    return model_ids, places


def _check(row: dict[str, Any], watcher: Watcher) -> None:
    """Say that a start is known. Raises AtlasError if it cannot be looked for."""
    if row["start"] is not None:
        watcher.say(f"{row['model']}: its start is known already; see `query show`")
    elif not row["is_unknown"]:
        kind = f"its kind is {row['adapter_kind']}" if row["adapter_kind"] else "it is no adapter"
        raise AtlasError(
            f"{row['model']} has no start that can be looked for: {kind}.",
            "Name adapters of the base itself with LoRA factors.",
        )


def _planned(build: Build, model_ids: Collection[str], places: Mapping[str, ModelRef]) -> list[Entry]:
    """All listed models, those of ``model_ids`` with the units that their records were made of."""
    planned, previous = [], build.base.previous.rank
    for entry in build.plan([]):
        listed, header = entry.listed, build.store.header(entry.record_key or "")
        if listed.id not in model_ids or header is None:
            planned.append(replace(entry, unit=None))
            continue
        identity = header.identity
        unit = Unit(
            model=replace(places.get(identity.model) or ModelRef(identity.model), subfolder=identity.subfolder),
            commit=identity.commit,
            base=identity.base,
            base_commit=identity.base_commit,
            relation=identity.relation,
            spec=identity.spec,
            filenames=listed_filenames(listed.row),
            vector_length=previous.budget if previous is not None else None,
            is_on_base=True,
        )
        planned.append(replace(entry, unit=unit))
    return planned


def _starts_in(folder: AtlasFolder, base: str, models: Collection[str]) -> list[dict[str, Any]]:
    """The starts of models as they are published, JSON-ready."""
    with Reading(folder.database) as connection:
        rows = connection.rows(
            "SELECT model, start FROM models WHERE base = $base AND list_contains($models, model) ORDER BY model",
            {"base": base, "models": sorted(models)},
        )
    return [{"model": row["model"], **row["start"]} for row in rows if row["start"] is not None]
