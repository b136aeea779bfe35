"""What a model was made from: the model, every model that its weights lead to, and the base, with their files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple

from indexer.console.messages import Progress
from indexer.errors import AtlasError, ModelError
from indexer.formats import WEIGHTS
from indexer.records.kinds.label import change_of
from indexer.records.representations.registry import DEFAULT
from indexer.sources.registry import ModelRef, page_of, source_of
from indexer.sources.rows import facts_of
from query.contract.columns import BaseId, Notes
from query.contract.results import Data, Detail, Doc, Format, Hidden, Result, Rounded
from query.models.lookup import describe_unindexed, resolve_model, weight_hashes
from query.questions.lineage.result import (
    CARD_AGREES,
    CONVERSION,
    RESIDUAL,
    STEP_EVIDENCE,
    STEP_KIND,
    STEP_PROBABILITY,
    TUNED,
    UNRELATED,
    Edge,
)
from query.questions.lineage.stored import declared_by, stored_lineage
from query.questions.predict.predict import predict
from query.questions.predict.result import NONE_OF_THESE

if TYPE_CHECKING:
    from query.models.reader import AtlasReader
    from query.questions.lineage.result import Lineage

# A chain of lineage has at most so many models: an atlas may come from anyone.
_MOST_MODELS = 200
_BLOCK = 1 << 23
# Where a data set is named: not by the files of a training tool, which may hold private names.
_PUBLIC = "source <> 'training'"

# Data sets below this probability are no finding.
_LEAST_PROBABILITY = 0.05

_NAME = Doc("The model; one that is not public has the name that was given, or a neutral one.")

MODEL, ANCESTOR, BASE = "model", "ancestor", "base"


@dataclass(frozen=True)
class MaterialFile:
    """One weight file; ``sha256`` is None where it is not known and the file is not on this machine."""

    name: Annotated[str, Doc("Name of the file.")]
    size: Annotated[int | None, Doc("Its bytes; empty if they are not known.")]
    sha256: Annotated[str | None, Doc("SHA-256 of the file; empty if it is not known.")]


@dataclass(frozen=True)
class MeasuredDataset:
    """A data set that the weights point to."""

    dataset: Annotated[str, Doc("A data set that its weights point to.")]
    probability: Annotated[float, Doc("Probability that the model was tuned on it, from 0 to 1."), Rounded(4)]


@dataclass(frozen=True)
class Material:
    """One model of the chain. ``model``: its public id, or a name that says nothing."""

    model: Annotated[str, _NAME]
    role: Annotated[str, Doc("model (the one asked about), ancestor (a model that it was made from), or base.")]
    version: Annotated[str | None, Doc("Its commit, or a digest of the contents of a folder."), Detail()]
    licence: Annotated[str | None, Doc("Licence on its card.")]
    licence_name: Annotated[str | None, Doc("Name of a licence that the Hub calls other."), Detail()]
    licence_link: Annotated[str | None, Doc("Address or file of that licence."), Detail()]
    author: Annotated[str | None, Doc("Its owner; empty if it is not public."), Detail()]
    page: Annotated[str | None, Doc("Address of its page."), Detail()]
    purl: Annotated[str | None, Doc("Package URL (https://github.com/package-url/purl-spec)."), Detail()]
    created: Annotated[datetime | None, Doc("When its repository was created."), Detail()]
    architecture: Annotated[str | None, Doc("model_type of its config.json."), Detail()]
    datasets: Annotated[tuple[str, ...], Doc("Data sets that its card names."), Format(", ".join)]
    files: Annotated[
        tuple[MaterialFile, ...],
        Doc("Its weight files."),
        Format(lambda files: f"{len(files):,}", in_details=False),
    ]
    is_public: Annotated[bool, Hidden()] = True
    change: Annotated[str | None, Doc("What was done to the base's weights, with the reason."), Detail()] = None

    @property
    def licences(self) -> tuple[StatedLicence, ...]:
        """Its licences, one by one; for one that the Hub calls other, the name that the card gives it."""
        names = [name for name in (self.licence or "").split(", ") if name]
        own_name = self.licence_name
        return tuple(
            StatedLicence(own_name, is_own_name=True)
            if name.lower() == "other" and own_name
            else StatedLicence(name, False)
            for name in names
        )


class StatedLicence(NamedTuple):
    """One licence of a card; ``is_own_name``: the Hub has no identifier for it."""

    name: str
    is_own_name: bool


@dataclass(frozen=True)
class Derivation:
    """One step: ``child`` was made from ``parent``."""

    child: Annotated[str, Doc("The model that was made.")]
    parent: Annotated[str, Doc("What it was made from.")]
    kind: Annotated[str, STEP_KIND]
    probability: Annotated[float | None, STEP_PROBABILITY, Rounded(4)]
    residual: Annotated[float | None, RESIDUAL, Rounded(6)]
    evidence: Annotated[str, STEP_EVIDENCE]
    card: Annotated[str, CARD_AGREES]
    is_proven: Annotated[bool, Hidden()] = False


@dataclass(frozen=True, repr=False, eq=False)
class BillOfMaterials(Result):
    """What a model was made from; :func:`query.questions.bom.bom.document` writes it in a format for other programs."""

    ROWS = "materials"
    SHOW_HEADLINE = True
    OPTIONAL_COLUMNS = ("licence", "datasets")

    model: Annotated[str, _NAME]
    base: BaseId
    materials: Annotated[tuple[Material, ...], Doc("The model, its ancestors and its base.")]
    derivations: Annotated[tuple[Derivation, ...], Doc("The steps between them.")]
    measured_datasets: Annotated[
        tuple[MeasuredDataset, ...], Doc("Data sets that the weights of the model point to, the likeliest first.")
    ]
    generation: Annotated[int, Doc("The generation of the atlas that answers."), Data()]
    notes: Notes = ()

    @property
    def headline(self) -> str:
        """How the model was made, in a sentence."""
        steps = [f"{step.kind} ({step.parent})" for step in self.derivations if step.child == self.model]
        return f"{self.model}: {'; '.join(steps) or 'what it was made from is not known'}."


def bill_of(atlas: AtlasReader, answer: Lineage, typed: str, name: str | None) -> BillOfMaterials:
    """The bill of a model with a lineage. ``typed``: as the user names it; ``name``: for a model that is not public."""
    materials, edges, notes = chain_of(atlas, answer, typed)
    public = _public_names([*materials, _base_material(atlas, answer.base)], name)
    steps = [
        Derivation(
            public[edge.child],
            public[edge.parent or answer.base],
            edge.kind,
            edge.probability,
            edge.residual if edge.kind != TUNED or edge.parent is not None else None,
            _without(public, edge.evidence),
            edge.card,
            edge.is_proven,
        )
        for edge in edges
    ]
    return BillOfMaterials(
        public[answer.model],
        public.get(answer.base, answer.base),
        tuple(_published(material, public) for material in materials),
        tuple(steps),
        _measured(atlas, answer, notes),
        atlas.generation,
        tuple(_without(public, note) for note in notes),
    )


def chain_of(
    atlas: AtlasReader, answer: Lineage, typed: str, *, hashes: bool = True
) -> tuple[list[Material], list[Edge], list[str]]:
    """The model, its ancestors and its base under their own names; the steps between them; notes.

    Without ``hashes`` no file on this machine is hashed. An unrelated model has neither steps nor a base.
    """
    edges = [*_edges_above(atlas, answer)]
    if answer.answered_at is None:
        notes = [str(note) for note in answer.notes]
    else:
        notes = [f"its steps were measured on {answer.answered_at:%Y-%m-%d}"]
    materials = [_own_material(atlas, answer, typed, notes, hashes)]
    ids = {edge.parent: edge.parent_id for edge in edges if edge.parent is not None}
    materials += [
        _indexed_material(atlas, model_id, ANCESTOR) if model_id is not None else _unknown_material(parent)
        for parent, model_id in ids.items()
        if parent != answer.base
    ]
    if answer.verdict == UNRELATED:
        notes.append(f"its weights show that it is not made from {answer.base}")
        return materials, [], notes
    return [*materials, _base_material(atlas, answer.base)], edges, notes


def _edges_above(atlas: AtlasReader, answer: Lineage) -> Iterable[Edge]:
    """The edges of the model and of all its ancestors, as they are stored; by the record where none is."""
    queue, visited = list(answer.edges), {answer.model}
    if not queue:
        queue = [_edge_by_record(atlas, answer.model, answer.model_id, answer.base)]
    while queue:
        edge = queue.pop(0)
        yield edge
        parent = edge.parent
        if parent is None or parent == answer.base or parent in visited or len(visited) > _MOST_MODELS:
            continue
        visited.add(parent)
        stored_answer = None if edge.parent_id is None else stored_lineage(atlas, edge.parent_id)
        queue += stored_answer.edges if stored_answer else [_edge_by_record(atlas, parent, edge.parent_id, answer.base)]


def _edge_by_record(atlas: AtlasReader, model: str, model_id: int | None, base: str) -> Edge:
    """The step from the base that a build measured, or that the model claims."""
    rows = [] if model_id is None else atlas.rows(
        "SELECT model_id, relation, claimed_by, verified, base_cosine FROM models WHERE model_id = ?",
        [model_id],
    )  # fmt: skip
    if not rows:
        return Edge(model, None, TUNED, 1.0, 1.0, "its weights were not read", card="unsure", is_proven=False)
    (row,) = rows
    if row["verified"]:
        evidence = f"cosine {row['base_cosine']:.3f} between its weights and the base's"
    else:
        evidence = f"claimed by its {row['claimed_by']}; its weights have not been compared with other models"
    kind = "adapter" if row["relation"] == "adapter" else TUNED
    card = declared_by(atlas, row["model_id"], base).agreement(None)
    return Edge(model, None, kind, 1.0, 1.0, evidence, card=card, is_proven=False)


def _own_material(atlas: AtlasReader, answer: Lineage, typed: str, notes: list[str], hashes: bool) -> Material:
    """The model itself; with ``hashes``, its local files are hashed."""
    if answer.model_id is not None:
        material = _indexed_material(atlas, answer.model_id, MODEL)
    else:
        material = _read_material(atlas, answer, typed)
    if not hashes:
        return material
    reference = ModelRef.parse(typed)
    if any(file.sha256 is None for file in material.files) and not reference.source.is_remote:
        with suppress(AtlasError, ModelError):
            material = replace(material, files=_hashed(reference, material.files))
    unknown = sum(file.sha256 is None for file in material.files)
    if unknown:
        notes.append(
            f"the SHA-256 of {unknown} of its {len(material.files)} weight files is not known: name the folder instead"
        )
    return material


def _hashed(reference: ModelRef, files: Sequence[MaterialFile]) -> tuple[MaterialFile, ...]:
    """The files with their SHA-256, of which all bytes are read."""
    version = reference.source.open(reference)
    hashed = []
    with Progress(sum(file.size or 0 for file in files), "bytes hashed") as bar:
        for file in files:
            with closing(version.open(file.name)) as source:
                digest = hashlib.sha256()
                for start in range(0, source.size, _BLOCK):
                    block = source.read(start, min(start + _BLOCK, source.size))
                    digest.update(block)
                    bar.update(len(block))
            hashed.append(MaterialFile(file.name, source.size, digest.hexdigest()))
    return tuple(hashed)


def _indexed_material(atlas: AtlasReader, model_id: int, role: str) -> Material:
    """A model that the atlas lists: indexed, or one without a vector, such as a conversion."""
    (row,) = atlas.rows(
        'SELECT model, listed.base, author, listed."commit", licence, licence_name, licence_link, created, private, '
        "model_type, weight_files, changes.change, changes.change_probability, changes.change_evidence, "
        f"(SELECT list_sort(list(DISTINCT dataset)) FROM model_datasets WHERE {_PUBLIC} AND dataset IS NOT NULL "
        "AND model_datasets.model_id = listed.model_id) AS datasets "
        "FROM fine_tunes AS listed LEFT JOIN records USING (model_id) LEFT JOIN changes USING (model_id, base, model) "
        "WHERE model_id = ?",
        [model_id],
    )
    source, model = source_of(row["model"]), row["model"]
    is_public = source.is_public and not row["private"]
    files = (MaterialFile(file["name"], file["size"], file["sha256"]) for file in row["weight_files"] or ())
    return Material(
        model,
        role,
        row["commit"],
        row["licence"],
        row["licence_name"],
        row["licence_link"],
        row["author"] if is_public else None,
        atlas.crawl_of(row["base"]).page_of(model) if is_public else None,
        source.package_url(model, row["commit"]) if is_public else None,
        row["created"],
        row["model_type"],
        tuple(row["datasets"] or ()),
        tuple(files),
        is_public,
        _in_words(row["change"], row["change_probability"], row["change_evidence"]),
    )


def _read_material(atlas: AtlasReader, answer: Lineage, typed: str) -> Material:
    """A model that is not indexed, by a sample of its weights."""
    reference = ModelRef.parse(typed)
    is_conversion = any(edge.kind == CONVERSION for edge in answer.edges)
    record = None if is_conversion else resolve_model(atlas, reference, answer.base, DEFAULT).record
    described, _ = describe_unindexed(atlas, reference, answer.base)
    facts = facts_of(described.row)
    licence = facts.licence
    is_public = reference.source.is_public and not facts.private
    commit = described.row.get("sha") if record is None else record.identity.commit
    change = None if record is None else change_of(record)
    files = [MaterialFile(file.name, file.size, file.sha256) for file in record.files] if record else []
    if record is None:  # a conversion, whose files are not listed by a record
        names = (str(file.get("rfilename")) for file in described.row.get("siblings") or ())
        files = [MaterialFile(name, None, None) for name in names if name.endswith(WEIGHTS)]
    return Material(
        answer.model,
        MODEL,
        commit,
        licence.licence if licence else None,
        licence.licence_name if licence else None,
        licence.licence_link if licence else None,
        reference.source.author(answer.model) if is_public else None,
        page_of(answer.model) if is_public else None,
        reference.source.package_url(answer.model, commit) if is_public else None,
        facts.created if is_public else None,
        None,
        facts.dataset_names,
        tuple(files),
        is_public,
        None if change is None else _in_words(change.kind, change.probability, change.evidence),
    )


def _in_words(kind: str | None, probability: float | None, evidence: str | None) -> str | None:
    """``trained (probability 0.99): why``; None if nothing is known."""
    return None if kind is None or probability is None else f"{kind} (probability {probability:.4f}): {evidence}"


def _base_material(atlas: AtlasReader, base: str) -> Material:
    row = atlas.base_row(base)
    hashes = weight_hashes(atlas.published_base(base))
    files = tuple(MaterialFile(f"weights-{number}", None, sha256) for number, sha256 in enumerate(hashes, 1) if sha256)
    is_public = source_of(base).is_public
    return Material(
        base, BASE, row["commit"], row["licence"], row["licence_name"], row["licence_link"],
        base.rpartition("/")[0] or None if is_public else None, page_of(base) if is_public else None,
        source_of(base).package_url(base, row["commit"]), None,
        row["model_type"], (), files, is_public,
    )  # fmt: skip


def _unknown_material(name: str) -> Material:
    """An ancestor that the atlas does not contain."""
    is_public = source_of(name).is_public
    return Material(
        name, ANCESTOR, None, None, None, None, None, page_of(name) if is_public else None,
        source_of(name).package_url(name, None), None, None, (), (), is_public,
    )  # fmt: skip


def _measured(atlas: AtlasReader, answer: Lineage, notes: list[str]) -> tuple[MeasuredDataset, ...]:
    """The data sets that the weights of the model point to, the likeliest first."""
    if answer.model_id is None:
        return ()
    try:
        answers = predict(atlas, answer.model, base=answer.base).answers
    except AtlasError as error:
        notes.append(f"no data set was measured: {error.message}")
        return ()
    return tuple(
        MeasuredDataset(answer.dataset, answer.probability)
        for answer in answers
        if answer.dataset != NONE_OF_THESE and answer.probability >= _LEAST_PROBABILITY
    )


def _public_names(materials: Sequence[Material], name: str | None) -> dict[str, str]:
    """The public name of each model: its id if it is public, else ``name`` for the model itself, or a number."""
    names: dict[str, str] = {}
    for number, material in enumerate(materials):
        neutral = (name or "private-model") if material.role == MODEL else f"private-model-{number}"
        names.setdefault(material.model, material.model if material.is_public else neutral)
    return names


def _neutral(material: Material, name: str) -> Material:
    """A private model without the names that could identify it."""
    files = [
        replace(file, name=f"weights-{number}{_suffix(file.name)}") for number, file in enumerate(material.files, 1)
    ]
    return replace(material, model=name, author=None, page=None, purl=None, created=None, files=tuple(files))


def _published(material: Material, public: Mapping[str, str]) -> Material:
    """A material under its public name, with public names in its evidence: that of a merge names its parents."""
    change = None if material.change is None else _without(public, material.change)
    material = replace(material, change=change)
    return material if material.is_public else _neutral(material, public[material.model])


def _suffix(name: str) -> str:
    """The end of a file's name that tells its format."""
    _, dot, end = name.rpartition(".")
    return f".{end}" if dot and end.isalnum() and len(end) <= 12 else ""


def _without(public: Mapping[str, str], text: str) -> str:
    for name, neutral in public.items():
        if name != neutral:
            text = text.replace(name, neutral)
    return text
