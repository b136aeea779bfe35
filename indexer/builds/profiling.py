"""Depth profiles of an atlas's models: which have one already, measuring the others, and publishing them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import torch

from indexer.atlas import AtlasFolder
from indexer.builds.executor import run_units
from indexer.builds.options import ProfileOptions
from indexer.builds.profile_worker import OnProgress, ProfileUnit, ProfileWorker, base_weights, store_profile
from indexer.builds.report import ProfileReport
from indexer.builds.resources import PROCESS_BYTES, workers_for
from indexer.builds.worker import classify_error
from indexer.console.messages import Progress, say, say_more
from indexer.database.connection import base_named, indexed_models, published_bases
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError, first_error_kept
from indexer.listing.listing import Listing
from indexer.machine import available_memory, check_device
from indexer.network.rows import listed_filenames
from indexer.profiles.layers import chosen_layers
from indexer.profiles.store import ProfileIdentity, ProfileStore
from indexer.profiles.subject import WORKING_BYTES, download_base, read_subject
from indexer.publish.publish import publish
from indexer.publish.rows import Publication
from indexer.quantities import duration_in_words, size_in_words
from indexer.records.identity import ModelVersion
from indexer.sources.registry import ModelRef
from indexer.upkeep.removal import finish_removals

# For the estimate: multiplications and additions a second of one thread, and the least that a model costs.
_FLOPS = 6e10
_OVERHEAD_SECONDS = 2.0

_IMAGE_TYPES = frozenset({"vit", "deit", "beit", "data2vec-vision", "vit_mae", "vit_msn", "dinov2"})


def base_and_models(folder: AtlasFolder, base: str | None, models: Sequence[str]) -> tuple[str, list[str]]:
    """The canonical base, and the models as the atlas names them.

    Raises AtlasError if a model is not indexed, for models of several bases, and if no base is named but there is not
    just one.
    """
    with Reading(folder.database) as connection:
        canonical = None if base is None else base_named(connection, base)
        rows = indexed_models(connection, models, canonical)
        bases = [str(row["base"]) for row in rows or connection.rows("SELECT base FROM bases ORDER BY base")]
    if canonical is None and len(set(bases)) != 1:
        raise AtlasError(f"This atlas has several bases ({', '.join(bases) or 'none'}).", "Choose one with `base`.")
    return canonical or bases[0], [str(row["model"]) for row in rows]


def profile_base(folder: AtlasFolder, base: str, models: Sequence[str], options: ProfileOptions) -> ProfileReport:
    """Profile a base and its indexed fine-tunes (those in ``models``, or all), then publish.

    Models that have a profile of these measures already are left alone. On Ctrl-C the complete layers are kept and
    published before it is raised again. The caller holds the writer's lock. Raises AtlasError if the base itself
    cannot be profiled.
    """
    finish_removals(folder, [base], say)
    work = _Profiling(folder, base, models, options)
    started = time.monotonic()
    try:
        work.run()
    except BaseException as stop:
        with first_error_kept(stop):
            work.publish()
        raise
    work.publish()
    work.report.seconds = round(time.monotonic() - started, 1)
    return work.report


def profile_plan(folder: AtlasFolder, base: str, models: Sequence[str], options: ProfileOptions) -> dict[str, Any]:
    """What `--dry-run` prints: models, bytes to read, layers, and an estimate of the seconds."""
    work = _Profiling(folder, base, models, options)
    # From the tokens that pass through the blocks: candidates, the regression, gradients.
    tokens = 48 * 32 * 16 + max(2560, 4 * work.width) + 2 * 8 * 128 * (work.layer_count + 1) / 2
    if options.request.recover:
        tokens += 30 * 3 * 256 * work.layer_count / 2
    numbers = work.stored.block_bytes / work.stored.item_bytes
    seconds = (len(work.due) + len(work.baselines)) * (_OVERHEAD_SECONDS + 2 * numbers * tokens / _FLOPS)
    return {
        "base": base,
        "models": work.report.discovered,
        "due": len(work.due),
        "unchanged": work.report.unchanged,
        "layers": work.layer_count,
        "bytes": sum(unit.weight_bytes for unit in work.due),
        "steps": work.layer_count * (30 if options.request.recover else 0),
        "seconds": round(seconds),
        "time": duration_in_words(seconds),
        "atlas": str(folder.root),
    }


class _Profiling:
    """The models of one base that are to be profiled: ``due``, and ``baselines``, which they are compared with.

    ``baselines``: the base, and if asked for the base with fresh weights, unless they have complete profiles already.
    """

    def __init__(self, folder: AtlasFolder, base: str, models: Sequence[str], options: ProfileOptions) -> None:
        self.folder, self.base, self.options = folder, base, options
        with Reading(folder.database) as connection:
            (row,) = published_bases(connection, base)
            fine_tunes = connection.rows(
                'SELECT model, "commit", relation, '
                "list_sum([file.size FOR file IN weight_files])::BIGINT AS weight_bytes "
                "FROM fine_tunes JOIN records USING (model_id) WHERE base = ? AND status = 'indexed' "
                "ORDER BY downloads DESC NULLS LAST, model",
                (base,),
            )
            is_published_complete = {
                row["profile_key"]: row["is_complete"]
                for row in connection.rows("SELECT profile_key, is_complete FROM profiles WHERE base = ?", (base,))
            }
        self.commit, self.rank = str(row["commit"]), int(row["rank"])
        self.takes_images = row["model_type"] in _IMAGE_TYPES
        self.stored = StoredBase(folder.base(base, self.commit))
        depth = self.stored.layout.depth.get("encoder", self.stored.layout.depth.get("", 1))
        self.layer_count = len(options.request.layers or chosen_layers(depth))
        self.width = next(iter(self.stored.layout.matrices)).shape[1]
        self.budget = options.memory_bytes or available_memory()
        listed = {model.id: model.row for model in Listing(folder.listing(base)).models()}
        units = [
            ProfileUnit(
                self._identity("fine_tune", row["model"], str(row["commit"] or "main")),
                row["relation"],
                listed_filenames(listed[row["model"]]) if row["model"] in listed else None,
                int(row["weight_bytes"] or 0),
            )
            for row in fine_tunes
            if not models or row["model"] in models
        ][: options.limit]
        kinds = ("base", "untrained") if options.with_untrained else ("base",)
        self.due = [unit for unit in units if not self._is_done(unit.identity)]
        identities = [self._identity(kind, base, self.commit) for kind in kinds]
        self.baselines = [identity for identity in identities if not self._is_done(identity)]
        self.report = ProfileReport(base, self.commit, str(folder.root), discovered=len(units))
        self.report.unchanged = len(units) - len(self.due)
        # Whether there may be something to publish: also what a command that was killed had measured.
        self.is_new = self._is_any_unpublished(is_published_complete)

    def _is_any_unpublished(self, published: Mapping[str, bool]) -> bool:
        """Whether a file holds more of this base than the database.

        ``published``: whether each published profile is complete, by its key.
        """
        store = ProfileStore(self.folder)
        for digest in store.digests():
            if not published.get(digest):
                with suppress(AtlasError):
                    profile = store.read(digest)
                    if profile.identity.base == self.base and (digest not in published or profile.is_complete):
                        return True
        return False

    def _identity(self, subject: str, model: str, commit: str) -> ProfileIdentity:
        """The identity of a profile with these options."""
        request, probe = self.options.request, self.options.choice
        return ProfileIdentity(
            subject=subject,
            model=model,
            commit=commit,
            base=self.base,
            base_commit=self.commit,
            probe=probe.name(self.takes_images),
            probe_source=probe.source,
            seed=request.seed,
            recipe=request.recipe,
            asked=request.terms,
            layers=request.layers or (),
        )

    def _is_done(self, identity: ProfileIdentity) -> bool:
        profile = ProfileStore(self.folder).find(identity)
        return profile is not None and profile.is_complete

    def run(self) -> None:
        """Profile everything that is due."""
        check_device(self.options.device)
        if not self.due and not self.baselines:
            return
        workers, layers, report = self._workers(), self.layer_count, self.report
        with Progress((len(self.due) + len(self.baselines)) * layers, "layers") as progress:

            def on_progress(model: str, what: str, layer: int) -> None:
                if what == "layer":
                    progress.update(1, model)
                say_more(f"{model}: {what}" + (f" {layer}" if layer else ""))

            worker = self._worker(on_progress, self.budget // workers if workers > 1 else self.options.memory_bytes)
            if workers == 1:  # in this process, so progress is shown by layer
                worker = replace(worker, on_progress=on_progress)
            try:
                with closing(run_units(self.due, worker, workers)) as results:
                    for result in results:
                        error, model = result.error, result.unit.identity.model
                        if workers > 1:
                            progress.update(layers, model)
                        report.count(error)
                        if error is not None:
                            report.refused.append({"model": model, "reason": error.reason, "detail": error.detail})
                            say(f"{model} has no profile ({error.reason}): {error.detail}")
            finally:
                base_weights.cache_clear()

    def publish(self) -> None:
        """Publish what was profiled, if there is anything."""
        if self.is_new:
            publish(self.folder, [Publication(self.stored, (), (), self.rank)], say=say)

    def _workers(self) -> int:
        """As many workers as there is memory for. Raises AtlasError if ``memory`` cannot hold even one."""
        workers, stored = workers_for(self.options.workers, len(self.due)), self.stored
        worker_bytes = (
            PROCESS_BYTES + WORKING_BYTES + stored.block_bytes + 4 * (stored.block_bytes // stored.item_bytes)
        )
        if self.options.memory_bytes is not None and worker_bytes > self.budget:
            raise AtlasError(
                f"`memory` {size_in_words(self.budget)} is too little for this base: a model takes about "
                f"{size_in_words(worker_bytes)}.",
                "Allow more, or leave `memory` out.",
            )
        # One less, because this process also needs room.
        fitting = max(1, min(workers, self.budget // worker_bytes - 1))
        if fitting < workers:
            say(f"memory for {fitting} of {workers} workers")
        return fitting

    def _worker(self, on_progress: OnProgress, memory: int | None) -> ProfileWorker:
        """Profile the baselines and make the worker for all models. The base is freed when this returns."""
        torch.set_num_threads(1)
        options, request = self.options, self.options.request
        try:
            version = ModelVersion(ModelRef.of_atlas(self.base), self.commit)
            download_base(version)
            base = read_subject(version, device=options.device, memory=self.budget)
        except AtlasError:
            raise
        except Exception as error:
            failure = classify_error(error)
            raise AtlasError(f"{self.base} cannot be profiled: {failure.detail}.", "Choose another base.") from error
        probe = options.choice.probe(base)
        numbers = base.layers.choose(request.layers)
        self.is_new = True  # from here on there are complete layers to publish, even after an interruption
        for identity in self.baselines:
            subject = base if identity.subject == "base" else base.twin(request.seed, options.device)
            store_profile(self.folder.root, identity, subject, probe, request, None, on_progress)
        with torch.no_grad():
            states = base.layers.states(probe.inputs(base.layers), numbers)
        return ProfileWorker.of(
            probe,
            states,
            atlas=self.folder.root,
            request=request,
            base=version,
            tokenizer=base.tokenizer,
            choice=options.choice,
            device=options.device,
            memory=memory,
        )
