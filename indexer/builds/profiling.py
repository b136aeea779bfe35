"""Depth profiles of an atlas's models: who has one already, who gets one now, and what became of each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from indexer.atlas import AtlasFolder
from indexer.builds.executor import in_processes
from indexer.builds.free_memory import available_memory
from indexer.builds.profile_worker import (
    Bench,
    Profiled,
    Target,
    Told,
    forget_base,
    given_up,
    profile_one,
    store_profile,
)
from indexer.builds.resources import PROCESS_BYTES, workers_for
from indexer.builds.worker import what_it_means
from indexer.console.messages import Progress, say, say_more
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError, Failed
from indexer.listing.listing import Listing
from indexer.names import ModelRef
from indexer.network.rows import listed_filenames
from indexer.profiles.asking import ProbeChoice
from indexer.profiles.layers import chosen_layers
from indexer.profiles.measure import Asked
from indexer.profiles.store import ProfileIdentity, ProfileStore
from indexer.profiles.subject import WORKING_BYTES, Source, Subject, check_device, kept_base, read_subject
from indexer.publish.publication import Publication
from indexer.publish.publish import publish
from indexer.quantities import duration_in_words, size_in_words


@dataclass(frozen=True)
class ProfileOptions:
    """``asked`` and ``probe`` say what is measured; ``limit``: only so many models, most downloads first.

    ``workers`` processes, as many as fit into ``memory`` bytes (None: what is free).
    """

    asked: Asked = field(default_factory=Asked)
    probe: ProbeChoice = field(default_factory=ProbeChoice)
    recipe: str = "default"
    with_untrained: bool = False
    limit: int | None = None
    device: str = "cpu"
    workers: int = 1
    memory: int | None = None


@dataclass
class ProfileReport:
    """Counts as those of a build; ``refused`` names who was skipped or failed, and why."""

    base: str
    base_commit: str
    atlas: str
    discovered: int = 0
    indexed: int = 0
    unchanged: int = 0
    skipped: int = 0
    failed: int = 0
    seconds: float = 0.0
    refused: list[dict[str, str]] = field(default_factory=list)

    @property
    def is_success(self) -> bool:
        """Whether a model has a profile now."""
        return bool(self.indexed or self.unchanged)

    def as_row(self) -> dict[str, Any]:
        """The keys of the command's JSON."""
        counts = ("base", "base_commit", "discovered", "indexed", "unchanged", "skipped", "failed", "seconds", "atlas")
        return {name: getattr(self, name) for name in counts} | {"refused": self.refused}


def profile_base(folder: AtlasFolder, base: str, models: Sequence[str], options: ProfileOptions) -> ProfileReport:
    """Profile a base and its indexed fine-tunes (those in ``models``, or all), then publish.

    What has a profile of these measures already is left alone. Ctrl-C keeps the layers that are whole, publishes, and
    goes on upwards. The caller holds the writer's lock. Raises AtlasError where the base itself cannot be profiled.
    """
    work = _Work(folder, base, models, options)
    started = time.monotonic()
    try:
        work.run()
    finally:
        work.report.seconds = round(time.monotonic() - started, 1)
        if work.is_new:
            publish(folder, [Publication(work.stored, (), (), work.rank)], say=say)
    return work.report


def profile_plan(folder: AtlasFolder, base: str, models: Sequence[str], options: ProfileOptions) -> dict[str, Any]:
    """What `--dry-run` says: models, bytes to read, layers, and a guess at the seconds."""
    work = _Work(folder, base, models, options)
    due = work.due()
    subjects = len(due) + sum(not work.is_done(one) for one in work.yardsticks())
    layers = len(options.asked.layers or chosen_layers(work.depth))
    each = _seconds_guessed(work.stored.block_bytes / work.stored.item_bytes, work.width, work.depth, layers, options)
    return {
        "base": base,
        "models": len(work.targets),
        "due": len(due),
        "unchanged": len(work.targets) - len(due),
        "layers": layers,
        "bytes": sum(target.weight_bytes for target in due),
        "steps": layers * (30 if options.asked.recover else 0),
        "seconds": round(subjects * each),
        "time": duration_in_words(subjects * each),
        "atlas": str(folder.root),
    }


# Multiplications and additions a second of one thread, and what a model costs that is too small to count.
FLOPS = 6e10
OVERHEAD_SECONDS = 2.0


def _seconds_guessed(numbers: float, width: int, depth: int, layers: int, options: ProfileOptions) -> float:
    """From the tokens that pass through the blocks: candidates, the regression, gradients."""
    tokens = 48 * 32 * 16 + max(2560, 4 * width) + 2 * 8 * 128 * (layers + 1) / 2
    if options.asked.recover:
        tokens += 30 * 3 * 256 * layers / 2
    return OVERHEAD_SECONDS + 2 * numbers * tokens / FLOPS


class _Work:
    """One base's part."""

    def __init__(self, folder: AtlasFolder, base: str, models: Sequence[str], options: ProfileOptions) -> None:
        self.folder, self.base, self.options = folder, base, options
        self.store = ProfileStore(folder)
        with Reading(folder.database) as connection:
            (row,) = connection.rows(
                'SELECT "commit", rank, model_type FROM bases JOIN representations USING (base) '
                "WHERE base = ? AND representation = 'input'",
                (base,),
            )
            found = connection.rows(
                'SELECT model, "commit", relation, '
                "list_sum([file.size FOR file IN weight_files])::BIGINT AS weight_bytes "
                "FROM fine_tunes JOIN records USING (model_id) WHERE base = ? AND status = 'indexed' "
                "ORDER BY downloads DESC NULLS LAST, model",
                (base,),
            )
        self.commit, self.rank = str(row["commit"]), int(row["rank"])
        self.takes_images = row["model_type"] in IMAGE_TYPES
        self.stored = StoredBase(folder.base(base, self.commit))
        self.depth = self.stored.layout.depth.get("encoder", self.stored.layout.depth.get("", 1))
        self.width = next(iter(self.stored.layout.matrices)).shape[1]
        self.block_bytes, self.numbers = self.stored.block_bytes, self.stored.block_bytes // self.stored.item_bytes
        self.targets = self._targets(found, models)
        self.report = ProfileReport(base, self.commit, str(folder.root), discovered=len(self.targets))
        self.is_new = False

    def _targets(self, found: list[dict[str, Any]], models: Sequence[str]) -> list[Target]:
        listed = {one.id: one.row for one in Listing(self.folder.listing(self.base)).models()}
        targets = [
            Target(
                self.identity("fine_tune", row["model"], str(row["commit"] or "main")),
                row["relation"],
                listed_filenames(listed[row["model"]]) if row["model"] in listed else None,
                int(row["weight_bytes"] or 0),
            )
            for row in found
            if not models or row["model"] in models
        ]
        return targets[: self.options.limit]

    def identity(self, subject: str, model: str, commit: str) -> ProfileIdentity:
        """Of a profile with these options."""
        asked, chosen = self.options.asked, self.options.probe
        return ProfileIdentity(
            subject=subject,
            model=model,
            commit=commit,
            base=self.base,
            base_commit=self.commit,
            probe=chosen.name(self.takes_images),
            probe_source=chosen.source,
            seed=asked.seed,
            recipe=self.options.recipe,
            asked=(*asked.names, *_extras(asked)),
            layers=asked.layers or (),
        )

    def is_done(self, identity: ProfileIdentity) -> bool:
        """Whether there is a whole profile."""
        found = self.store.find(identity)
        return found is not None and found.is_complete

    def due(self) -> list[Target]:
        """The models that have none yet."""
        return [target for target in self.targets if not self.is_done(target.identity)]

    def run(self) -> None:
        """Everything that is due."""
        check_device(self.options.device)
        due = self.due()
        self.report.unchanged = len(self.targets) - len(due)
        first = [one for one in self.yardsticks() if not self.is_done(one)]
        if not due and not first:
            return
        workers = self._workers(len(due))
        layers = len(self.options.asked.layers or chosen_layers(self.depth))
        with Progress((len(due) + len(first)) * layers, "layers") as progress:
            bench = self._bench(first, progress, self._budget() // workers if workers > 1 else self.options.memory)
            try:
                for done in self._results(due, bench, workers, progress):
                    if workers > 1:
                        progress.update(layers, done.target.model)
                    self._settle(done)
            finally:
                forget_base()

    def yardsticks(self) -> list[ProfileIdentity]:
        """The base, and a model of its kind with fresh weights where that is asked for."""
        kinds = ("base", "untrained") if self.options.with_untrained else ("base",)
        return [self.identity(kind, self.base, self.commit) for kind in kinds]

    def _workers(self, models: int) -> int:
        """As many as there is memory for. Raises AtlasError where --memory does not even hold one."""
        wanted = workers_for(self.options.workers, models)
        one = PROCESS_BYTES + WORKING_BYTES + self.block_bytes + 4 * self.numbers
        budget = self._budget()
        if self.options.memory is not None and one > budget:
            raise AtlasError(
                f"`memory` {size_in_words(budget)} is too little for this base: a model takes about "
                f"{size_in_words(one)}.",
                "Allow more, or leave --memory out.",
            )
        fitting = max(1, min(wanted, budget // one - 1))  # this process stays beside them
        if fitting < wanted:
            say(f"memory for {fitting} of {wanted} workers")
        return fitting

    def _budget(self) -> int:
        return self.options.memory or available_memory()

    def _bench(self, first: Sequence[ProfileIdentity], progress: Progress, memory: int | None) -> Bench:
        """What all models are measured against. The base itself is gone from memory when this returns."""
        torch.set_num_threads(1)
        asked = self.options.asked
        source, base = self._base()
        probe = self.options.probe.probe(base)
        chosen = asked.layers or tuple(chosen_layers(base.layers.depth))
        base.layers.check(chosen)
        self.is_new = True  # from here on: what is stopped keeps its layers, and they are published
        for identity in first:
            subject = base if identity.subject == "base" else base.twin(asked.seed, self.options.device)
            store_profile(self.folder.root, identity, subject, probe, asked, None, _told(identity.model, progress))
        with torch.no_grad():
            states = base.layers.states(probe.inputs(base.layers), chosen)
        return Bench.of(
            probe, states, atlas=self.folder.root, asked=asked, base=source, tokens=base.tokens,
            choice=self.options.probe,
            device=self.options.device, memory=memory,
        )  # fmt: skip

    def _base(self) -> tuple[Source, Subject]:
        """Raises AtlasError where it cannot be read."""
        try:
            source = kept_base(Source(ModelRef.of_atlas(self.base), self.commit))
            return source, read_subject(source, device=self.options.device, memory=self._budget())
        except AtlasError:
            raise
        except Exception as error:
            known = what_it_means(error)
            raise AtlasError(f"{self.base} cannot be profiled: {known.detail}.", "Choose another base.") from error

    def _results(self, due: Sequence[Target], bench: Bench, workers: int, progress: Progress) -> Iterator[Profiled]:
        if workers > 1:
            with closing(in_processes(due, partial(profile_one, bench=bench), given_up, workers)) as results:
                yield from results
            return
        for target in due:
            yield profile_one(target, bench, _told(target.model, progress))

    def _settle(self, done: Profiled) -> None:
        """Whatever is wrong with one model is its own trouble."""
        error, model = done.error, done.target.model
        if error is None:
            self.report.indexed += 1
            return
        if isinstance(error, Failed):
            self.report.failed += 1
        else:
            self.report.skipped += 1
        self.report.refused.append({"model": model, "reason": error.reason, "detail": error.detail})
        say(f"{model} has no profile ({error.reason}): {error.detail}")


def _told(model: str, progress: Progress) -> Told:
    def told(what: str, layer: int) -> None:
        if what == "layer":
            progress.update(1, model)
        say_more(f"{model}: {what}" + (f" {layer}" if layer else ""))

    return told


def _extras(asked: Asked) -> list[str]:
    """Settings that change numbers, as part of a profile's identity."""
    named = {"shift": asked.shift, "steps": asked.steps, "rate": asked.rate}
    return [f"{name}={value:g}" for name, value in named.items() if value is not None]


IMAGE_TYPES = frozenset({"vit", "deit", "beit", "data2vec-vision", "vit_mae", "vit_msn", "dinov2"})
