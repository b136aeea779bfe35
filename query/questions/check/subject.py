"""The two sides of a check: the claims of a model's card, and measurements on its weights and files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indexer.errors import AtlasError
from indexer.records.kinds.change import Change
from indexer.records.kinds.label import change_of
from indexer.records.representations.registry import DEFAULT
from indexer.sources.registry import ModelRef, author_of
from indexer.sources.rows import facts_of
from query.models.conversions import Conversion, read_conversion, stored_conversion
from query.models.lookup import describe_unindexed, resolve_model
from query.models.resolved import ResolvedModel
from query.questions.bom.materials import Material, chain_of
from query.questions.lineage.lineage import lineage
from query.questions.lineage.result import CONVERSION
from query.questions.predict.predict import predict

if TYPE_CHECKING:
    from pathlib import Path

    from query.models.reader import AtlasReader
    from query.questions.lineage.result import Lineage
    from query.questions.predict.result import Prediction

# Bytes of a number, by the dtype of most weights. Codes with scales are not counted: their files hold both.
_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d{1,4}(?:\.\d{1,3})?)([bm])(?![A-Za-z0-9])", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Card:
    """The claims of a model: of its card, its tags, its files and its name.

    Attributes:
        bases: models that it names as its source. relation: finetune, adapter, merge or quantized; "" if it does not
        say. parameters: the number of parameters that its name states; None if it states none, or several.
    """

    author: str
    bases: tuple[str, ...]
    relation: str
    datasets: tuple[str, ...]
    library: str
    tags: frozenset[str]
    parameters: float | None


@dataclass(frozen=True)
class Weights:
    """Measurements on the weights and files of a model.

    Attributes:
        change: what was done to the base's weights; None if that is not known. verified: whether its weights were
        compared with the base's and are like them; None for adapters. evidence: why it is a copy, or unrelated; "" for
        other models. formats: the formats of its weight files. parameters: the number of its parameters by the bytes of
        its files; None for adapters and codes.
    """

    is_adapter: bool
    is_copy: bool
    is_unrelated: bool
    verified: bool | None
    base_cosine: float | None
    evidence: str
    dtype: str
    formats: frozenset[str]
    parameters: float | None
    change: Change | None


@dataclass(frozen=True)
class Subject:
    """A model that is checked. ``chain``: the model, its ancestors and its base, as far as they are known."""

    model: str
    base: str
    card: Card
    weights: Weights
    lineage: Lineage
    chain: tuple[Material, ...]
    prediction: Prediction | None
    notes: tuple[str, ...]

    @property
    def own(self) -> Material:
        """The model itself."""
        return self.chain[0]


def read_subject(atlas: AtlasReader, model: str | Path, base: str | None) -> Subject:
    """Read both sides of a model: indexed, of any source, or a folder. Raises AtlasError if it cannot be read."""
    answer = lineage(atlas, model, base)
    materials, _, notes = chain_of(atlas, answer, str(model), hashes=False)
    prediction = None
    try:
        prediction = predict(atlas, model, base=answer.base)
    except AtlasError as error:
        notes.append(f"data sets were not compared: {error.message}")
    reference = ModelRef.parse(str(model))
    is_conversion = any(edge.kind == CONVERSION for edge in answer.edges)
    resolved = None if is_conversion else resolve_model(atlas, reference, answer.base, DEFAULT)
    if answer.model_id is not None:
        card, weights = _indexed(atlas, answer.model_id, resolved)
    else:
        card, weights = _read(atlas, reference, answer, resolved)
    if weights is None:
        stored = None if answer.model_id is None else stored_conversion(atlas, answer.model_id)
        weights = _of_conversion(stored or read_conversion(atlas, reference, answer.base))
    return Subject(
        answer.model, answer.base, card, weights, answer, tuple(materials), prediction, tuple(dict.fromkeys(notes))
    )


def _indexed(atlas: AtlasReader, model_id: int, resolved: ResolvedModel | None) -> tuple[Card, Weights | None]:
    """The two sides of a model that the atlas lists; without ``resolved``, of a conversion, the card alone."""
    (row,) = atlas.rows(
        "SELECT model, author, listed.base, relation, claimed_by, library, verified, adapter_kind, dtype, "
        "weight_files, changes.change, changes.change_probability, changes.change_evidence, "
        "(SELECT list_sort(list(DISTINCT dataset)) FROM model_datasets AS named "
        "WHERE named.model_id = listed.model_id AND dataset IS NOT NULL) AS datasets, "
        "(SELECT list(tag) FROM tags WHERE tags.model_id = listed.model_id) AS tags, "
        "(SELECT list_sort(list(DISTINCT parent)) FROM declared_lineage AS declared "
        "WHERE declared.model_id = listed.model_id) AS declared "
        "FROM fine_tunes AS listed LEFT JOIN records USING (model_id) LEFT JOIN changes USING (model_id, base, model) "
        "WHERE model_id = ?",
        [model_id],
    )
    # A build that was told the base, or found it, is no claim of the model.
    is_claimed = row["claimed_by"] not in ("user", "folder", "record")
    bases = tuple(row["declared"] or ((row["base"],) if is_claimed else ()))
    card = Card(
        row["author"],
        bases,
        row["relation"] if is_claimed else "",
        tuple(row["datasets"] or ()),
        row["library"] or "",
        frozenset(tag.lower() for tag in row["tags"] or ()),
        _stated_parameters(row["model"]),
    )
    if resolved is None:
        return card, None
    files = row["weight_files"] or ()
    formats = frozenset(str(file["format"]) for file in files)
    change = None
    if row["change"]:
        change = Change(row["change"], row["change_probability"], row["change_evidence"])
    weights = _weights(resolved, bool(row["adapter_kind"]), row["verified"], row["dtype"] or "", formats, files, change)
    return card, weights


def _read(
    atlas: AtlasReader, reference: ModelRef, answer: Lineage, resolved: ResolvedModel | None
) -> tuple[Card, Weights | None]:
    """The two sides of a model that the atlas does not list; without ``resolved``, of a conversion, the card alone."""
    described, _ = describe_unindexed(atlas, reference, answer.base)
    facts = facts_of(described.row)
    card = Card(
        author_of(answer.model),
        described.claims,
        "",
        tuple(facts.dataset_names),
        facts.library or "",
        frozenset(tag.lower() for tag in facts.tags),
        _stated_parameters(answer.model),
    )
    if resolved is None:
        return card, None
    record = resolved.record
    assert record is not None  # the model is not indexed
    files = [{"size": file.size, "format": file.format} for file in record.files]
    formats = frozenset(file.format for file in record.files)
    verified = None if record.base_cosine is None else not resolved.is_unrelated
    change = change_of(record)
    return card, _weights(resolved, bool(record.adapter_kind), verified, record.dtype, formats, files, change)


def _of_conversion(conversion: Conversion) -> Weights:
    """A conversion: its rows are like the base's, else its source would not have been looked for there."""
    match = conversion.match
    formats = frozenset({match.format.lower()})
    return Weights(False, False, False, True, None, match.headline, match.types, formats, None, None)


def _weights(
    resolved: ResolvedModel,
    is_adapter: bool,
    verified: bool | None,
    dtype: str,
    formats: frozenset[str],
    files: Sequence[Mapping[str, object]],
    change: Change | None,
) -> Weights:
    size = sum(int(str(file["size"])) for file in files)
    item = _ITEM_BYTES.get(dtype)
    return Weights(
        is_adapter,
        resolved.is_copy,
        resolved.is_unrelated,
        verified,
        resolved.base_cosine,
        resolved.evidence,
        dtype,
        formats,
        None if is_adapter or item is None or not size else size / item,
        change,
    )


def _stated_parameters(name: str) -> float | None:
    sizes = {
        float(number) * (1e9 if unit.lower() == "b" else 1e6)
        for number, unit in _SIZE.findall(name.rpartition("/")[2].replace("_", "-"))
    }
    return sizes.pop() if len(sizes) == 1 else None
