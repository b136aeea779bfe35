"""Depth profiles of an atlas's models: who has one already, who gets one now, and what became of each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.build.free_memory import available_memory
from indexer.console.messages import Progress, say, say_more
from indexer.database.reading import Reading
from indexer.deltas.stored_base import StoredBase
from indexer.errors import AtlasError, Failed, ModelError
from indexer.listing.listing import Listing
from indexer.names import ModelRef
from indexer.network.rows import listed_filenames
from indexer.profiles.asking import ProbeChoice
from indexer.profiles.layers import States, chosen_layers
from indexer.profiles.make import make_profile
from indexer.profiles.measure import Asked
from indexer.profiles.probes import Probe
from indexer.profiles.store import ProfileIdentity, ProfileStore
from indexer.profiles.subject import Source, Subject, check_device, kept_base, read_subject
from indexer.publish.publish import Publication, publish
from indexer.quantities import duration_in_words


@dataclass(frozen=True)
class ProfileOptions:
    """``asked`` and ``probe`` say what is measured; ``limit``: only so many models, most downloads first."""

    asked: Asked = field(default_factory=Asked)
    probe: ProbeChoice = field(default_factory=ProbeChoice)
    recipe: str = "default"
    with_untrained: bool = False
    limit: int | None = None
    device: str = "cpu"


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


@dataclass(frozen=True)
class Target:
    """One model to be profiled."""

    model: str
    commit: str
    relation: str
    filenames: Sequence[str] | None
    weight_bytes: int

    @property
    def source(self) -> Source:
        """Where its files are; a local folder is its own."""
        reference = ModelRef.parse(self.model)
        is_local = reference.folder is not None
        return Source(reference, None if is_local else self.commit, None if is_local else self.filenames, self.relation)


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
    subjects = len(due) + work.is_base_due + (options.with_untrained and not work.is_done("untrained", base))
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
        self.targets = self._targets(found, models)
        self.report = ProfileReport(base, self.commit, str(folder.root), discovered=len(self.targets))
        self.is_new = False

    def _targets(self, found: list[dict[str, Any]], models: Sequence[str]) -> list[Target]:
        listed = {one.id: one.row for one in Listing(self.folder.listing(self.base)).models()}
        targets = [
            Target(
                row["model"],
                str(row["commit"] or "main"),
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

    def is_done(self, subject: str, model: str, commit: str | None = None) -> bool:
        """Whether there is a whole profile."""
        found = self.store.find(self.identity(subject, model, commit or self.commit))
        return found is not None and found.is_complete

    @property
    def is_base_due(self) -> bool:
        """Whether the base has none yet."""
        return not self.is_done("base", self.base)

    def due(self) -> list[Target]:
        """The models that have none yet."""
        return [target for target in self.targets if not self.is_done("fine_tune", target.model, target.commit)]

    def run(self) -> None:
        """Everything that is due."""
        check_device(self.options.device)
        due = self.due()
        self.report.unchanged = len(self.targets) - len(due)
        untrained = self.options.with_untrained and not self.is_done("untrained", self.base)
        if not due and not self.is_base_due and not untrained:
            return
        base = self._base()
        probe = self.options.probe.probe(base)
        subjects = len(due) + self.is_base_due + untrained
        layers = len(self.options.asked.layers or chosen_layers(base.layers.depth))
        with Progress(subjects * layers, "layers") as progress:
            states = self._base_states(base, probe, progress)
            if untrained:
                twin = base.twin(self.options.asked.seed, self.options.device)
                self._make("untrained", self.base, self.commit, twin, probe, None, progress)
            for target in due:
                self._model(target, base, probe, states, progress)

    def _base(self) -> Subject:
        try:
            source = kept_base(Source(ModelRef.parse(self.base), self.commit))
            return self._read(source, keep_weights=True)
        except ModelError as error:
            raise AtlasError(f"{self.base} cannot be profiled: {error.detail}.", "Choose another base.") from error

    def _base_states(self, base: Subject, probe: Probe, progress: Progress) -> States:
        if self.is_base_due:
            return self._make("base", self.base, self.commit, base, probe, None, progress)
        chosen = self.options.asked.layers or tuple(chosen_layers(base.layers.depth))
        import torch

        with torch.no_grad():
            return base.layers.states(probe.inputs(base.layers), chosen)

    def _read(self, source: Source, base: Subject | None = None, keep_weights: bool = False) -> Subject:
        from indexer.network.session import as_model_error

        held = None if base is None else base.weights
        weights = None if held is None else lambda: held
        try:
            return read_subject(
                source,
                weights,
                device=self.options.device,
                tokens=base.tokens if base else None,
                keep_weights=keep_weights,
                memory=available_memory(),
            )
        except (ModelError, AtlasError):
            raise
        except Exception as error:
            raise as_model_error(error) from error

    def _model(self, target: Target, base: Subject, probe: Probe, states: States, progress: Progress) -> None:
        """One model; whatever is wrong with it is its own trouble."""
        try:
            subject = self._read(target.source, base)
            self._make("fine_tune", target.model, target.commit, subject, probe, states, progress)
        except (ModelError, AtlasError) as error:
            reason = error.reason if isinstance(error, ModelError) else "does_not_fit"
            detail = error.detail if isinstance(error, ModelError) else error.message
            if isinstance(error, Failed):
                self.report.failed += 1
            else:
                self.report.skipped += 1
            self.report.refused.append({"model": target.model, "reason": reason, "detail": detail})
            say(f"{target.model} has no profile ({reason}): {detail}")
            return
        self.report.indexed += 1

    def _make(
        self,
        kind: str,
        model: str,
        commit: str,
        subject: Subject,
        probe: Probe,
        base: States | None,
        progress: Progress,
    ) -> States:
        identity = self.identity(kind, model, commit)

        def told(what: str, layer: int) -> None:
            if what == "layer":
                progress.update(1, model)
            say_more(f"{model}: {what}" + (f" {layer}" if layer else ""))

        def stopped(profile: Any) -> None:
            self.store.write(profile)
            self.is_new = True

        profile, states = make_profile(
            identity,
            subject,
            probe,
            self.options.asked,
            base=base,
            earlier=self.store.find(identity),
            progress=told,
            stopped=stopped,
        )
        self.store.write(profile)
        self.is_new = True
        return states


def _extras(asked: Asked) -> list[str]:
    """Settings that change numbers, as part of a profile's identity."""
    named = {"shift": asked.shift, "steps": asked.steps, "rate": asked.rate}
    return [f"{name}={value:g}" for name, value in named.items() if value is not None]


IMAGE_TYPES = frozenset({"vit", "deit", "beit", "data2vec-vision", "vit_mae", "vit_msn", "dinov2"})
