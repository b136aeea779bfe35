"""The model that a question is about: its vector, notes on it, and errors for unknown names."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from indexer.errors import AtlasError, Call, Text, access_hint
from indexer.names import TRAINING_COLUMNS, UNMEASURABLE, UNTRAINED, nearest
from indexer.sources.registry import ModelRef, typed_id
from query.models.sampled import LIKE_THE_BASE, SAMPLE, needs_all, rows_in_words, sample_gives

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from indexer.records.record import Record
    from indexer.sources.source import Source
    from indexer.vectors.table import VectorTable
    from query.models.reader import AtlasReader, IndexedModel


# Needed to read weights (extra [build]), but not to query an atlas.
READERS = ("torch", "transformers")


@dataclass(frozen=True)
class ResolvedModel:
    """The model of a question: ``model_id`` if it is indexed, ``record`` if it was read for this question.

    ``vector``: of a model that was read, centred like the published ones; None for a copy of the base. For that of an
    indexed model see ``vector_of``. ``group``: the group whose centre was subtracted. ``read``: sample or full;
    ``copy_evidence``: the evidence that it is a copy, as in the database. ``through``: a sentence on the conversion
    that was asked about, if the model answers as its source.
    """

    name: str
    base: str
    author: str
    model_id: int | None
    is_copy: bool
    group: str
    initialisation: int | None = None
    is_unrelated: bool = False
    base_cosine: float | None = None
    read: str = "full"
    copy_evidence: str | None = None
    vector: NDArray[np.float32] | None = None
    record: Record | None = None
    through: str = ""

    @property
    def as_copy(self) -> str:
        """A phrase for a model without a change; a sample does not prove that it is a copy."""
        if self.copy_evidence == UNTRAINED:
            return f"an untrained adapter of {self.base}"
        if self.copy_evidence == UNMEASURABLE:
            return f"an adapter of {self.base} that changes nothing measurable"
        return LIKE_THE_BASE if self.copy_evidence == SAMPLE else f"a copy of {self.base}"

    @property
    def unrelated(self) -> str:
        """A clause that says why the weights do not derive from the base; empty if they do."""
        if not self.is_unrelated:
            return ""
        if self.base_cosine is None and self.is_adapter:
            return f"{self.name} is an adapter of another base than {self.base}"
        return f"{self.name} is not made from {self.base}{self._cosine_in_words}"

    @property
    def is_adapter(self) -> bool:
        """Whether its change is that of an adapter alone."""
        return self.group.startswith("adapter")

    @property
    def evidence(self) -> str:
        """The evidence that it has no change of its own, or is unrelated to its base; empty for other models."""
        if self.copy_evidence == UNTRAINED:
            return "it adds zero, as before training: every B (or its equivalent) is zero"
        if self.copy_evidence == UNMEASURABLE:
            return "its change is smaller than the rounding of float32"
        if self.is_copy:
            return "all its deltas are zero" + (" in all that was read" if self.copy_evidence == SAMPLE else "")
        if not self.is_unrelated:
            return ""
        if self.base_cosine is None and self.is_adapter:
            return "it is an adapter of another base"
        return f"its weights are not the base's{self._cosine_in_words}"

    @property
    def _cosine_in_words(self) -> str:
        # Rounded first, so that there is no minus before 0.00.
        return "" if self.base_cosine is None else f" (cosine of the weights {round(self.base_cosine, 2) + 0.0:.2f})"


def vector_of(atlas: AtlasReader, model: ResolvedModel, representation: str) -> NDArray[np.float32]:
    """The vector of a model that is not a copy of its base. Raises AtlasError if the atlas has none."""
    if model.vector is not None:
        return model.vector
    assert model.model_id is not None
    vector = atlas.index(model.base, representation).rows([model.model_id]).row(model.model_id)
    if vector is None and model.read == SAMPLE and not sample_gives(representation):
        raise needs_all(atlas, model.base, [model.name], f"{representation!r} vector")
    if vector is None:
        from indexer.records.representations.registry import representation_named

        raise representation_named(representation).absent(model.name)
    return vector


def table_of(atlas: AtlasReader, model: ResolvedModel, representation: str) -> VectorTable:
    """The vectors of one model, to be compared with others of the atlas. Raises AtlasError if the atlas has none."""
    import numpy as np

    from indexer.records.representations.registry import representation_named
    from indexer.vectors.table import FULL, VectorTable, group_codes

    vector = vector_of(atlas, model, representation)
    index = atlas.index(model.base, representation)
    if index.outputs is None:
        return VectorTable(vector[None, :], index.masks.blocks)
    output = None
    output_representation = representation_named(representation).adapters_by
    if model.record is not None and model.is_adapter and output_representation is not None:
        output = vector_of_record(atlas, model.record, output_representation)
    elif model.model_id is not None:
        output = index.outputs.rows([model.model_id]).row(model.model_id)
    group = FULL if output is None else model.group
    if output is None:
        output = np.zeros(index.outputs.length, np.float32)
    return VectorTable(vector[None, :], index.masks.blocks, output[None, :], group_codes([group]))


def vector_of_record(atlas: AtlasReader, record: Record, representation: str) -> NDArray[np.float32] | None:
    """The vector of a record, normalised and centred like those of the atlas; None for a copy of the base.

    Raises AtlasError if the representation is not published, or the record does not hold it.
    """
    from indexer.records.representations.registry import representation_named
    from indexer.vectors.stored import normalised, with_unit_blocks

    published = atlas.published(record.identity.base, representation)
    words = atlas.base_row(published.base)["words"] or ()
    raw = representation_named(representation, published.budget).with_words(words).vector(record)
    vector = normalised(raw)
    if vector is None or not published.masks.blocks:
        return vector
    if published.centre is None:
        return with_unit_blocks(raw[None, :], published.masks.blocks)[0]
    centre = atlas.centre(published.base, representation)
    if centre is None:
        return None
    return centre.centred(raw[None, :], record.vector_group)[0]


def unrelated_notes(*models: ResolvedModel) -> tuple[str, ...]:
    """A note for each of the models that is unrelated to its base."""
    reasons = (model.unrelated for model in models)
    return tuple(f"{why}: its change and its neighbours say little about its data" for why in reasons if why)


def vector_notes(atlas: AtlasReader, model: ResolvedModel) -> tuple[str, ...]:
    """Notes that a model answers for a conversion of it, and that the vector of a sampled model is an estimate."""
    through = (model.through,) if model.through else ()
    if model.read != SAMPLE:
        return through
    if model.record is not None:
        rows = [delta.lines for delta in model.record.deltas]
    else:
        deltas = atlas.rows("SELECT rows_read FROM deltas WHERE model_id = ?", [model.model_id])
        rows = [row["rows_read"] for row in deltas]
    return (*through, f"The vector of {model.name} is estimated from {rows_in_words(rows)}.")


def start_of(atlas: AtlasReader, model: ResolvedModel) -> dict[str, Any] | None:
    """The column ``start`` of a model; None if it is not known."""
    if model.record is not None:
        return start_as_row(model.record)
    start: dict[str, Any] | None
    (start,) = (row["start"] for row in atlas.rows("SELECT start FROM records WHERE model_id = ?", [model.model_id]))
    return start


def start_as_row(record: Record) -> dict[str, Any] | None:
    """The column ``start`` of a model that was read for this question."""
    return None if record.start is None else record.start.as_row()


def are_same(start: dict[str, Any] | None, other_start: dict[str, Any] | None) -> bool | None:
    """Whether two adapters began at the same random numbers; None if the start of one is not known."""
    if start is None or other_start is None or start["seed"] is None or other_start["seed"] is None:
        return None
    return all(start[name] == other_start[name] for name in ("generator", "seed", "offset"))


def start_in_words(start: dict[str, Any]) -> str:
    """The start of an adapter, in words."""
    if start["seed"] is None:
        return f"from the base's weights ({start['generator']})"
    tool = f", as {start['tool']} draws them" if start["tool"] else ""
    coverage = "" if start["found"] == start["modules"] else f", in {start['found']} of {start['modules']} modules"
    return (
        f"{start['generator']} numbers of seed {start['seed']} after {start['offset']:,} others{tool}{coverage}; "
        f"A has moved by {start['distance']:.0%} since"
    )


def facts_of_record(record: Record) -> dict[str, Any]:
    """Columns of the models view, for a model that was read for this question."""
    claimed = [name for claim in record.dataset_claims for name in (claim.dataset, claim.parent) if name]
    norm, base_norm = (math.hypot(*(getattr(delta, name) for delta in record.deltas)) for name in ("norm", "base_norm"))
    return {
        "relation": record.identity.relation,
        "datasets": sorted({*record.card.get("datasets", ()), *claimed}),
        "head_class": record.head.get("architecture_class"),
        "label_count": record.head.get("label_count"),
        "label_names": record.head.get("label_names"),
        "problem_type": record.head.get("problem_type"),
        "read": record.read,
        "delta_norm": norm if record.has_norm else None,
        "delta_norm_error": record.norm_error,
        "relative_norm": (norm / base_norm if base_norm else 0.0) if record.has_norm else None,
        "base_cosine": record.base_cosine,
        "dtype": record.dtype,
        "start": start_as_row(record),
        "training": json.dumps(dict(record.training)) if record.training else None,
        **{column: record.training.get(name) for column, name in TRAINING_COLUMNS.items()},
    }


def is_unrelated(atlas: AtlasReader, base: str, cosine: float | None, adapter_verdict: str = "") -> bool:
    """Whether a model does not derive from a base, by the rule that sets the flag of indexed models.

    ``cosine``: of its weights with the base's, None for an adapter; ``adapter_verdict``: of an AdapterBase.
    """
    return adapter_verdict == "foreign" or (cosine is not None and cosine < thresholds(atlas, base)["unrelated_below"])


def thresholds(atlas: AtlasReader, base: str) -> dict[str, float]:
    """The thresholds of the base's latest build; the defaults after a rebuild, which records no build."""
    from indexer.records.identity import Thresholds

    rows = atlas.rows(
        "SELECT thresholds FROM builds WHERE base = ? AND thresholds IS NOT NULL ORDER BY build_id DESC LIMIT 1",
        [base],
    )
    return asdict(Thresholds()) | (json.loads(rows[0]["thresholds"]) if rows else {})


# ---- names that are not known


_WEIGHT_FILES = (".safetensors", ".bin", ".gguf", ".onnx")


def not_there(source: Source, name: str) -> str:
    """The hint for a model that its source does not have either."""
    if name.endswith(_WEIGHT_FILES):
        return "No file has this name either. Check the path, which is relative to the current folder."
    return f"{source.subject} does not have it either. Check the spelling{source.access}."


def no_record(indexed: IndexedModel, name: str) -> AtlasError:
    """The error for a model that was skipped."""
    if indexed.reason == "gated":
        return AtlasError(f"{indexed.model} has no record: it is gated.", access_hint(indexed.model))
    return AtlasError(
        f"{indexed.model} has no record: {indexed.reason}: {indexed.detail}.", Text("See: ", Call("show", name))
    )


def unknown_model(atlas: AtlasReader, name: str, hint: str = "") -> AtlasError:
    """The error for a model that :meth:`AtlasReader.find` does not find, naming the closest ids.

    It says so if the name is that of a base, of a model with another revision, or of one that was listed but not read.
    """
    reference = ModelRef.parse(name)
    listed_rows = atlas.rows(
        'SELECT model, "commit" FROM fine_tunes WHERE lower(model) = lower(?) ORDER BY model = ? DESC LIMIT 1',
        [reference.id] * 2,
    )
    if listed_rows and reference.revision is None:
        return AtlasError(f"{listed_rows[0]['model']} is listed in this atlas but was not read.", hint)
    if listed_rows:
        commit = f"commit {listed_rows[0]['commit'][:12]}" if listed_rows[0]["commit"] else "an unknown commit"
        message = f"This atlas holds {listed_rows[0]['model']} at {commit}, not at {reference.revision}."
        return AtlasError(message, f"Leave @{reference.revision} out.")
    if (error := base_error(atlas, reference.id)) is not None:
        return error
    close = ", ".join(nearest(typed_id(name), indexed_names(atlas)))
    return AtlasError(
        f"{name} is not in this atlas" + (f"; closest ids: {close}." if close else "."),
        hint or "Check the spelling, or give the path of a checkpoint folder.",
    )


def base_error(atlas: AtlasReader, name: str) -> AtlasError | None:
    """The error for the name of a base where a model is asked for; None for other names."""
    try:
        base = atlas.base_named(name)
    except AtlasError:
        return None
    return AtlasError(
        f"{base} is the base itself, not a model tuned from it.", Text("Its models: ", Call("models", base=base))
    )


def indexed_names(atlas: AtlasReader) -> list[str]:
    """The ids of all indexed models."""
    rows = atlas.rows("SELECT DISTINCT model FROM fine_tunes WHERE status = 'indexed' ORDER BY model")
    return [row["model"] for row in rows]


def base_in_hint(atlas: AtlasReader, base: str | None) -> str:
    """The base to name in advice: the one that was given, else the only one of the atlas, else ID."""
    bases = atlas.bases()
    return base or (bases[0] if len(bases) == 1 else "ID")
