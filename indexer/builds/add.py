"""What `index add` does: models that a person names are read and published, each with the base that it was made from.

Where no base is named, the model's files and its weights tell it (``indexer.deltas.identification``). All models of one
base are read together and published once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

from indexer.arguments import plain_arguments
from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.build_base import facts_of_stored, find_base
from indexer.builds.commands import prepare
from indexer.builds.options import AddOptions, RecordOptions, WorkOptions
from indexer.builds.report import BuildReport, Progress, Watcher
from indexer.console.options import with_options
from indexer.deltas.stored_base import stored_bases
from indexer.errors import AtlasError, BadArgument, Call, ModelError, Text
from indexer.formats import WEIGHTS
from indexer.listing.listing import Listing
from indexer.publish.previous_atlas import check_rank
from indexer.sources.claims import BY_FOLDER, untyped_relation
from indexer.sources.labels import ModelLabels, labels_of_row, read_labels, with_labels
from indexer.sources.readmes import completed
from indexer.sources.registry import ModelRef
from indexer.sources.rows import facts_of, row_of
from indexer.sources.source import BaseFacts, Row
from indexer.upkeep.removal import finish_removals

_WILD = frozenset("*?[")


@dataclass(frozen=True)
class _Named:
    """A model as it was typed, and what its base is."""

    typed: str
    reference: ModelRef
    facts: BaseFacts


@overload
def add(model: str | Path, base: str | None = ..., atlas: str | Path = ..., **options: Any) -> BuildReport: ...
@overload
def add(
    model: list[str | Path] | list[str] | tuple[str | Path, ...],
    base: str | None = ...,
    atlas: str | Path = ...,
    **options: Any,
) -> list[BuildReport]: ...
@plain_arguments
@with_options(AddOptions)
def add(
    model: str | Path | Sequence[str | Path],
    base: str | None = None,
    atlas: str | Path = "atlas",
    *,
    progress: Progress | None = None,
    options: AddOptions,
) -> BuildReport | list[BuildReport]:
    """Add models: Hub ids, ``owner/name@revision``, checkpoint folders, files of weights: what `index add` does.

    They are listed and built alone; one that was removed comes back. A text with ``*``, ``?`` or ``[`` that names
    nothing stands for all files and folders that match. Without ``base``, each model's files and weights tell it,
    among the bases of the atlas, or name another. The path of a folder is not stored. What the table ``labels`` says of
    a model replaces ``author``, ``dataset`` and ``licence``; ";" is between its data sets.

    Returns a report, or for a list of models a report for each base; that with the base "" counts models that could not
    be read at all, or whose base is not known. ``report.problem`` says why a model was not indexed. Raises AtlasError
    where a single model cannot be found, is the base itself, or its base cannot be told, and as ``build`` does.
    """
    work_options = WorkOptions(**options.part(RecordOptions), retry_failed=True)
    watcher, folder = Watcher(progress), AtlasFolder(atlas).require_writable()
    prepare(work_options, watcher)
    typed = expanded([model] if isinstance(model, str | Path) else model)
    is_one = isinstance(model, str | Path) and len(typed) == 1
    if options.name is not None and len(typed) != 1:
        raise BadArgument("`name` is for one model.", "Leave it out, or add them one by one.")
    datasets = [options.dataset] if isinstance(options.dataset, str) else options.dataset
    for_all = ModelLabels.checked(options.author, datasets, options.licence)
    table = read_labels(options.labels, typed) if options.labels is not None else {}
    if is_one:
        reference = ModelRef.parse(typed[0])
        reference.source.check_name(reference, options.name)
    adding = _Adding(folder, work_options, watcher, is_one, options.name, for_all, table)
    with folder.locked("index add"):
        reports = adding.run(typed, base)
    return reports[0] if is_one else reports


def expanded(models: Sequence[str | Path]) -> list[str]:
    """Each model once; a pattern that names nothing by itself stands for what matches. Raises AtlasError for none."""
    names: dict[str, None] = {}
    for model in models:
        text = str(model)
        if _WILD.isdisjoint(text) or Path(text).expanduser().exists():
            names[text] = None
            continue
        path = Path(text).expanduser()
        root, pattern = Path(path.anchor), str(path.relative_to(path.anchor))
        matches = sorted(str(match) for match in root.glob(pattern) if match.is_dir() or match.suffix in WEIGHTS)
        if not matches:
            raise AtlasError(f"Nothing matches {text!r}.", "Check the folder, or name the models one by one.")
        names |= dict.fromkeys(matches)
    if not names:
        raise BadArgument("Name a model.", "For example: ./my-fine-tune")
    return list(names)


@dataclass
class _Adding:
    """One run: models are told by their bases, then each base's are read and published."""

    folder: AtlasFolder
    options: WorkOptions
    watcher: Watcher
    is_one: bool
    name: str | None
    for_all: ModelLabels
    labels: dict[str, ModelLabels]
    refused: set[str] = field(default_factory=set)

    def run(self, names: Sequence[str], base: str | None) -> list[BuildReport]:
        facts = find_base(self.folder, base) if base is not None else None
        unread = BuildReport("", "", str(self.folder.root))
        groups: dict[str, list[_Named]] = {}
        for typed in names:
            try:
                reference = ModelRef.parse(typed)
                base_facts = facts or self._base_of(reference)
                groups.setdefault(base_facts.id, []).append(_Named(typed, reference, base_facts))
            except AtlasError as error:
                self._refuse(typed, error, unread)
        reports = [self._add(models, unread) for models in groups.values()]
        if unread.discovered:
            reports.append(unread)
        return [report for report in reports if report.discovered]

    def _refuse(self, typed: str, error: AtlasError, unread: BuildReport) -> None:
        """Count a model that cannot be added; of a single model its error is that of the command."""
        if self.is_one:
            raise error
        unread.discovered += 1
        unread.failed += 1
        unread.problem = f"{typed}: {error.message}"
        self.watcher.say(Text(f"{typed}: ", error.text))

    def _base_of(self, reference: ModelRef) -> BaseFacts:
        """The base that a model's files and weights tell, of the atlas or else of the Hub. Raises AtlasError."""
        from indexer.deltas.identification.identify import SURE, identify, known_bases

        try:
            identification = identify(reference, known_bases(self.folder))
        except ModelError as error:
            raise reference.source.explain(error, reference) from error
        if (base := identification.base) is not None:
            best = identification.candidates[0]
            if best.basis == "shapes":
                self.watcher.say(f"{_shown(reference)}: {base} by its shapes alone; `base` names another")
            stored = stored_bases(self.folder, base)[0]
            return facts_of_stored(stored, Listing(self.folder.listing(base)))
        candidates = identification.candidates
        if identification.named and not candidates:
            return find_base(self.folder, identification.named[0])
        likely = ", ".join(f"{candidate.base} ({candidate.probability:.0%})" for candidate in candidates)
        why = "; ".join(identification.none_evidence[:2])
        message = f"The base of {_shown(reference)} is none of those known here{f': {why}' if why else ''}."
        if candidates and identification.none < SURE:
            message = f"The base of {_shown(reference)} cannot be told; it may be {likely}."
        raise AtlasError(message, Text("Name it: ", Call(base="ID"), "."))

    def _add(self, models: Sequence[_Named], unread: BuildReport) -> BuildReport:
        """Read and publish models of one base."""
        facts = models[0].facts
        options = replace(self.options, workers=1) if len(models) == 1 else self.options
        build = Build(self.folder, facts, options, self.watcher)
        check_rank(self.folder, facts.id, options.rank)
        finish_removals(self.folder, [facts.id], self.watcher.say)
        listed = {model.id: model for model in build.listing.models()}
        places = {
            name: str(model.row.get("folder", "")) * (model.claimed_by == BY_FOLDER) for name, model in listed.items()
        }
        rows: dict[str, tuple[Row, ModelRef]] = {}
        for model in models:
            try:
                row = self._row(model, places, {name: listed_model.row for name, listed_model in listed.items()})
                if row["id"] in facts.ids:
                    message = f"{facts.id} is the base itself, not a model tuned from it."
                    raise AtlasError(message, "Name one of its fine-tunes.")
            except AtlasError as error:
                self._refuse(model.typed, error, unread)
                continue
            rows[row["id"]] = row, model.reference
            places[row["id"]] = str(row.get("folder", ""))
        if not rows:
            return build.report
        is_whole = any(_relation(row, reference) != "adapter" for row, reference in rows.values())
        stored = build.stored_base(whole=is_whole)  # first: nothing is listed for a base that cannot be used
        build.listing.note_base(facts.ids, build.base.licence)
        build.base.note_mirrors(build.listing)
        for row, reference in rows.values():
            build.listing.add(row, _relation(row, reference), facts.id, reference.source.claimed_by)
        selected = [model for model in build.listing.models() if model.id in rows]
        at = {name: replace(reference, id=name, revision=None) for name, (_, reference) in rows.items()}
        planned = build.plan(selected, at)
        return build.run(planned, build.base_for(planned, stored))

    def _row(self, model: _Named, places: dict[str, str], listed: dict[str, Row]) -> Row:
        """The listing row of a model, with its name in the atlas and its labels. Raises AtlasError."""
        reference, source = model.reference, model.reference.source
        try:
            row = completed(row_of(reference))
        except ModelError as error:
            raise source.explain(error, reference) from error
        row |= {"id": source.name_in_atlas(reference, row, self.name, places)}
        typed_labels = self.for_all.updated(self.labels.get(model.typed))
        if source.is_public:
            if typed_labels.is_given:
                message = f"{reference.typed} is public: its card says who made it, and of what."
                raise AtlasError(message, "Labels are for models of your own.")
            return row
        labels = labels_of_row(listed.get(str(row["id"]), {})).updated(typed_labels)
        row = with_labels(row, labels)
        listed_datasets = {dataset.raw for dataset in facts_of(row).datasets}
        for dataset in labels.datasets:
            if dataset not in listed_datasets and dataset not in self.refused:
                self.refused.add(dataset)
                self.watcher.say(f"{dataset!r} names no data set, as many could be called so: write owner/{dataset}")
        return row


def _relation(row: Row, reference: ModelRef) -> str:
    """What a model is by its files; of a single file without any configuration, by its tensors."""
    relation = untyped_relation(row)
    if relation == "adapter" and reference.folder is not None and reference.folder.is_file():
        from indexer.deltas.identification.identify import is_full

        with suppress(ModelError):
            return "finetune" if is_full(reference) else "adapter"
    return relation


def _shown(reference: ModelRef) -> str:
    return reference.typed if reference.is_name else Path(reference.id).name
