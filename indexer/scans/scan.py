"""What `index scan` does: list the places, read every model in them once, compare, and describe what was found."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from indexer.arguments import plain_arguments
from indexer.atlas import AtlasFolder
from indexer.builds.executor import run_units
from indexer.builds.options import ScanOptions
from indexer.builds.resources import workers_for
from indexer.console.advice import for_command_line
from indexer.console.options import with_options
from indexer.deltas.identification.identify import SURE
from indexer.errors import AtlasError, BadArgument, require
from indexer.machine import processors
from indexer.network.session import install_session
from indexer.publish.runs import RunCheckpoint, runs_of
from indexer.scans.bases import BasePlace, forget_bases, given_base, kept
from indexer.scans.duplicates import Repeated, change_distance, repeated, unconfirmed
from indexer.scans.reading import FULL, ModelRead, ModelToRead, PossibleSource, Reading, ScanWorker, is_broken
from indexer.scans.report import (
    Broken,
    LeftOut,
    PlaceScanned,
    Scan,
    ScannedDuplicate,
    ScannedModel,
    ScannedRun,
    Verdict,
)
from indexer.sources.addresses import HUB_CACHE
from indexer.sources.file_systems import NOT_LISTED, NOT_READ, VANISHED, FileSystem, Problems
from indexer.sources.local_names import free_name
from indexer.sources.single_files import files_at
from indexer.sources.tree import SEVERAL, TreeModel, list_tree
from indexer.untrusted import printable

_LONGEST_NAME = 300
_MOST_BASES = 20  # that models name most often, and that those that name none are compared with
_WORD = re.compile(r"[a-z0-9]+")
NOT_OPENED = "places that cannot be listed"
_UNREACHABLE = (NOT_OPENED, NOT_LISTED, NOT_READ, VANISHED, SEVERAL)


@dataclass(frozen=True)
class ScanEvent:
    """Progress: ``done`` of ``total`` (None: not known) parts of ``what``; ``bytes_read`` for the last of them.

    ``note``: a remark, which may name a place as it was typed.
    """

    what: str
    done: int
    total: int | None = None
    bytes_read: int = 0
    note: str = ""


Progress = Callable[[ScanEvent], None]


@plain_arguments
@with_options(ScanOptions)
def scan(
    places: str | Path | Sequence[str | Path],
    atlas: str | Path | None = None,
    *,
    progress: Progress | None = None,
    options: ScanOptions,
) -> Scan:
    """Describe what lies in folders, files, the Hub's cache (``hf-cache``) or at addresses: what `index scan` does.

    Nothing is stored. Models are compared with the bases that they name, where these lie in the cache of the Hub's
    client, with those of ``atlas``, and with those given. ``progress`` is called with a :class:`ScanEvent` for each.

    Raises AtlasError if a place or a base that is named cannot be read.
    """
    return Scanner(places, atlas, options, progress).run()


@dataclass
class _Place:
    name: str
    files: FileSystem
    problems: Problems = field(default_factory=Problems)
    options: tuple[tuple[str, Any], ...] = ()


class Scanner:
    """One scan. ``report`` describes what was read so far, also after Ctrl-C.

    Raises AtlasError for a place that cannot be opened.
    """

    def __init__(
        self,
        places: str | Path | Sequence[str | Path],
        atlas: str | Path | None,
        options: ScanOptions,
        progress: Progress | None = None,
    ) -> None:
        require("Scanning models", "torch", "transformers")
        typed = [places] if isinstance(places, str | Path) else list(places)
        if not typed or any(not str(place) for place in typed):
            raise BadArgument("No place is named.", "Name a folder; the current one is `.`.")
        self.options = options
        self.progress: Progress = progress or (lambda event: None)
        self.atlas = None if atlas is None else str(AtlasFolder(atlas).require().root)
        install_session()
        self.bases = tuple(given_base(text) for text in options.bases)
        self.places: list[_Place] = []
        for place in dict.fromkeys(map(str, typed)):
            self.places.append(self._place(place))
        self.started = time.perf_counter()
        self.units: list[ModelToRead] = []
        self.place_of: list[_Place] = []
        self.read: dict[int, ModelRead] = {}
        self.whole: dict[int, ModelRead] = {}
        self.sources: dict[int, ModelRead] = {}
        self.bytes_read = 0

    def _place(self, typed: str) -> _Place:
        files = files_at(typed, self.options.file_system_options)
        name = free_name(_name_of_place(typed, files), {place.name for place in self.places})
        options = tuple(self.options.file_system_options.items()) if files.is_remote else ()
        return _Place(name, files, options=options)

    def run(self) -> Scan:
        """List and read all. Raises AtlasError if no place can be listed."""
        forget_bases()
        try:
            self._list_and_read()
        finally:
            forget_bases()
        return self.report()

    def _list_and_read(self) -> None:
        self._list()
        names = ", ".join(place.name for place in self.places)
        self._read_all(self.units, f"scanning {names}", self.read)
        self._compare_further(names)
        self._find_sources(names)
        contents = {number: model.reading.content for number, model in self.read.items() if model.reading.content}
        again = [self._unit(number, only_content=True) for number in unconfirmed(contents)]
        self._read_all(again, f"comparing likely duplicates in {names}", self.whole)

    # ---- reading

    def _list(self) -> None:
        errors = []
        seen: set[str] = set()
        for place in self.places:

            def said(count: int, name: str = place.name) -> None:
                self.progress(ScanEvent(f"listing {name}", count))

            said(0)
            try:
                listing = list_tree(place.files, said)
            except AtlasError as error:
                errors.append(error)
                self.progress(ScanEvent(f"listing {place.name}", 0, note=for_command_line(error.text)))
                place.problems.note(NOT_OPENED, "")
                continue
            place.problems = listing.problems
            for model in listing.models:
                where = f"{place.files.address}/{model.path}".rstrip("/")
                if where in seen:  # places that lie in each other
                    continue
                seen.add(where)
                name = self._name(place, model)
                self.units.append(
                    ModelToRead(len(self.units), name, model, place.files.address, place.options, self.bases)
                )  # fmt: skip
                self.place_of.append(place)
        if errors and len(errors) == len(self.places):
            raise errors[0]

    def _name(self, place: _Place, model: TreeModel) -> str:
        if model.hub_id:
            return model.hub_id
        path = printable(model.path, _LONGEST_NAME)
        if len(self.places) == 1:
            return path or place.name
        return f"{place.name}/{path}" if path else place.name

    def _unit(self, number: int, *, bases: tuple[BasePlace, ...] = (), **parts: Any) -> ModelToRead:
        return replace(self.units[number], bases=bases, **parts)

    def _read_all(self, units: Sequence[ModelToRead], what: str, into: dict[int, ModelRead]) -> None:
        if not units:
            return
        is_of_process = any(unit.address.startswith("memory:") for unit in units)
        workers = 1 if is_of_process else workers_for(self.options.workers or processors(), len(units))
        self.progress(ScanEvent(what, 0, len(units)))
        for done, result in enumerate(run_units(units, ScanWorker(self.atlas), workers), 1):
            assert isinstance(result, ModelRead)
            into[result.unit.number] = result
            self.bytes_read += result.bytes_read
            self.progress(ScanEvent(what, done, len(units), result.bytes_read))

    def _compare_further(self, names: str) -> None:
        """Compare models whose base is not known yet with the bases that others name."""
        if self.bases:
            return
        claims = Counter(model.reading.claim for model in self.read.values() if model.reading.claim)
        named = (kept(str(claim)) for claim, _ in claims.most_common())
        bases = list(islice((place for place in named if place is not None), _MOST_BASES))
        if not bases:
            return
        units = []
        for number, model in self.read.items():
            reading, identification = model.reading, model.reading.identification
            is_open = identification is None or identification.base is None or _is_by_shapes(reading)
            others = [place for place in bases if reading.claim not in place.ids]
            if model.error is None and is_open and others and (reading.claim is None or reading.is_claim_here):
                units.append(self._unit(number, bases=tuple(bases)))
        self._read_all(units, f"comparing models of {names} with the bases of others", self.read)

    def _find_sources(self, names: str) -> None:
        """Look for what conversions are copies of among the full models of the scan."""
        read = {number: model for number, model in self.read.items() if model.error is None}
        by_base: dict[str, list[int]] = {}
        for number, model in read.items():
            if model.reading.kind == FULL:
                by_base.setdefault(_base_here(model.reading), []).append(number)
        units = []
        for number, model in read.items():
            if not model.reading.is_conversion:
                continue
            base = _base_here(model.reading)
            likely = self._likely_sources(number, by_base.get(base, ()))
            if base or likely:
                place = kept(base) if base else None
                bases = (*self.bases, *model.unit.bases, *([place] if place is not None else []))
                units.append(
                    self._unit(number, bases=tuple(dict.fromkeys(bases)), base=base, finds_source=True, sources=likely)
                )
        self._read_all(units, f"comparing conversions in {names} with models there", self.sources)

    def _likely_sources(self, number: int, models: Sequence[int]) -> tuple[PossibleSource, ...]:
        """The models that a conversion may be a copy of: by their changes of the base, else by their names."""
        conversion = self.read[number]
        sketch, words = conversion.reading.sketch, _words_of(self.units[number])

        def order(other: int) -> tuple[float, int, int]:
            distance = change_distance(sketch, self.read[other].reading.sketch)
            return distance, -len(words & _words_of(self.units[other])), other

        chosen = (self.units[other] for other in sorted(models, key=order))
        return tuple(PossibleSource(unit.name, unit.model, unit.address, unit.options) for unit in chosen)

    # ---- describing

    def report(self) -> Scan:
        """What was read so far."""
        given = {place.name for place in self.bases}
        models = {number: self._described(self.read[number], given) for number in sorted(self.read)}
        names = {number: model.model for number, model in models.items()}
        runs = self._runs()
        places = {}
        for place in self.places:
            own = [model for number, model in models.items() if self.place_of[number] is place]
            places[place.name] = PlaceScanned(place.name, len(own), sum(model.bytes for model in own))
        compared = {
            candidate.base
            for model in self.read.values()
            if model.reading.identification is not None
            for candidate in model.reading.identification.candidates
        }
        return Scan(
            places=tuple(places.values()),
            models=tuple(models.values()),
            runs=tuple(self._run(run, names) for run in runs if len(run) > 1),
            duplicates=tuple(
                ScannedDuplicate(
                    names[repeat.number],
                    names[repeat.of],
                    repeat.kind,
                    round(repeat.distance, 4),
                    models[repeat.number].bytes,
                )
                for repeat in self._repeated(runs)
            ),
            left_out=tuple(self._left_out(models.values())),
            unreachable=tuple(self._unreachable()),
            bases_given=tuple(place.name for place in self.bases),
            unread=len(self.units) - len(self.read),
            bytes_read=self.bytes_read,
            seconds=time.perf_counter() - self.started,
            compared=frozenset(compared | given),
        )

    def _described(self, model: ModelRead, given: Collection[str]) -> ScannedModel:
        reading, number, error = model.reading, model.unit.number, model.error
        identification = reading.identification
        best = identification.candidates[0] if identification is not None and identification.candidates else None
        is_base = best is not None and best.base.lower() == model.unit.model.hub_id.lower()
        sure = best is not None and best.probability >= SURE and (best.basis != "shapes" or best.base in given)
        parts: dict[str, Any] = {}
        if best is not None and sure:
            parts |= {"base": best.base, "probability": round(min(best.probability, 0.9999), 4)}
            parts |= {"basis": best.basis, "evidence": best.evidence}
        elif reading.claim is not None and not reading.is_claim_here:
            words = f"{reading.claimed_in} names {reading.claim}" if reading.claimed_in else ""
            against = () if identification is None else identification.none_evidence
            parts |= {"base": reading.claim, "basis": "stated", "evidence": (*filter(None, [words]), *against)}
        elif identification is not None:
            parts |= {"evidence": identification.none_evidence}
        if number in self.sources and (found := self.sources[number].reading.source) is not None:
            parts |= {"copy_of": found.source, "copy_verdict": found.verdict}
        if error is None:
            parts |= {"verdict": _verdict(reading)}
            if given and identification is not None:
                parts |= {"allowed": identification.is_from(given)}
        return ScannedModel(
            model=model.unit.name,
            place=self.place_of[number].name,
            kind=reading.kind,
            bytes=reading.bytes,
            claim=reading.claim,
            claimed_in=reading.claimed_in,
            step=reading.training.step,
            licence=reading.licence,
            untrained="" if is_base else reading.untrained,
            problem="" if error is None else error.reason,
            detail="" if error is None else error.detail,
            is_broken=error is not None and is_broken(error),
            **parts,
        )

    def _runs(self) -> list[list[RunCheckpoint]]:
        checkpoints = []
        for number, model in sorted(self.read.items()):
            checkpoint, training = model.unit.model.checkpoint, model.reading.training
            key = None if checkpoint is None else f"{model.unit.address}/{checkpoint.run}"
            checkpoints.append(
                RunCheckpoint(
                    model_id=number,
                    author="",
                    key=key,
                    number=None if checkpoint is None else checkpoint.number,
                    step=training.step,
                    epoch=training.epoch,
                    run_id=training.run_id or None,
                    log=training.log,
                )
            )
        return runs_of(checkpoints)

    def _run(self, run: Sequence[RunCheckpoint], names: dict[int, str]) -> ScannedRun:
        numbers = [checkpoint.model_id for checkpoint in run]
        sizes = [self.read[number].reading.bytes for number in numbers]
        steps = [checkpoint.step if checkpoint.step is not None else checkpoint.number for checkpoint in run]
        known = [step for step in steps if step is not None]
        of_folders = {
            checkpoint.run for number in numbers if (checkpoint := self.units[number].model.checkpoint) is not None
        }
        stated = self.read[numbers[-1]].reading.training.run
        place = self.place_of[numbers[-1]]
        name = printable(min(of_folders, key=len), _LONGEST_NAME) if of_folders else stated or names[numbers[-1]]
        return ScannedRun(
            run=(f"{place.name}/{name}" if of_folders and len(self.places) > 1 else name) or place.name,
            checkpoints=len(run),
            last=names[numbers[-1]],
            first_step=min(known, default=None),
            last_step=max(known, default=None),
            bytes=sum(sizes),
            earlier_bytes=sum(sizes[:-1]),
        )

    def _repeated(self, runs: Sequence[Sequence[RunCheckpoint]]) -> list[Repeated]:
        """Duplicates; links to a file that is there already are none."""
        readings = {number: model.reading for number, model in self.read.items() if model.error is None}
        files: set[tuple[tuple[int, int], ...]] = set()
        for number, reading in sorted(readings.items()):
            if reading.inodes and reading.inodes in files:
                del readings[number]
            files.add(reading.inodes)
        contents = {number: reading.content for number, reading in readings.items() if reading.content is not None}
        for number, model in self.whole.items():
            if model.reading.content is not None and number in contents:
                contents[number] = model.reading.content
        sketches = {
            number: reading.sketch
            for number, reading in readings.items()
            if reading.sketch is not None and not reading.is_conversion
        }
        behind = {
            checkpoint.model_id: len(run) - place for run in runs for place, checkpoint in enumerate(run, 1)
        }  # fmt: skip

        def order(number: int) -> tuple[Any, ...]:
            return behind.get(number, 0), readings[number].modified, number

        return repeated(contents, sketches, order)

    def _left_out(self, models: Collection[ScannedModel]) -> list[LeftOut]:
        reasons: dict[str, LeftOut] = {}
        for model in models:
            if model.problem and not model.is_broken:
                known = reasons.get(model.problem)
                count = 1 if known is None else known.count + 1
                first = f"{model.model}: {model.detail}" if known is None else known.first
                reasons[model.problem] = LeftOut(model.problem, count, first)
        for place in self.places:
            for kind, count in sorted(place.problems.counts.items()):
                if not kind.startswith(_UNREACHABLE):
                    known = reasons.get(kind)
                    first = known.first if known else printable(place.problems.first[kind], _LONGEST_NAME)
                    reasons[kind] = LeftOut(kind, count + (known.count if known else 0), first)
        return list(reasons.values())

    def _unreachable(self) -> list[Broken]:
        unreachable = []
        for place in self.places:
            for kind, count in sorted(place.problems.counts.items()):
                path = printable(place.problems.first[kind], _LONGEST_NAME)
                if kind.startswith(_UNREACHABLE):
                    where = f"{place.name}/{path}" if path and len(self.places) > 1 else path or place.name
                    unreachable.append(Broken(where, "unreachable", kind, count))
        return unreachable


def _name_of_place(typed: str, files: FileSystem) -> str:
    """The last name of a place, without the folders or the bucket that it lies in."""
    if typed == HUB_CACHE:
        return typed
    if files.is_remote:
        scheme, _, rest = files.address.partition("://")
        _, slash, path = rest.rstrip("/").partition("/")
        return printable(path.rpartition("/")[2], _LONGEST_NAME) if slash and path else f"the {scheme} bucket"
    return printable(Path(files.address).name, _LONGEST_NAME) or "the root folder"


def _is_by_shapes(reading: Reading) -> bool:
    identification = reading.identification
    return bool(identification and identification.candidates and identification.candidates[0].basis == "shapes")


def _verdict(reading: Reading) -> Verdict | None:
    """What the comparison says of the base that a model's files name; None if they name none."""
    claim, identification = reading.claim, reading.identification
    if claim is None:
        return None
    if identification is None or not reading.is_claim_here or claim in identification.uncompared:
        return "not checked"
    is_from = identification.is_from({claim})
    if is_from is None:
        return "open"
    if not is_from:
        return "contradicted"
    named = next(candidate for candidate in identification.candidates if candidate.base == claim)
    return "confirmed" if named.basis == "weights" else "fits"


def _base_here(reading: Reading) -> str:
    """The base that the weights of a model tell; "" if they tell none that is here."""
    identification = reading.identification
    return identification.base or "" if identification is not None else ""


def _words_of(unit: ModelToRead) -> set[str]:
    """The words in the name of a model, and in those of the folders that it lies in."""
    return set(_WORD.findall(unit.name.lower()))
