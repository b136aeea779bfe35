"""Everything the atlas knows of one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from indexer.errors import AtlasError
from indexer.names import ModelRef
from query.lineage.stored import stored_lineage
from query.lookup import base_in_hint, held_folder, unknown_model
from query.results import Result

if TYPE_CHECKING:
    from query.reader import AtlasReader

NEIGHBOURS_SHOWN = 10


@dataclass(frozen=True, repr=False, eq=False)
class ShownModel(Result, Mapping[str, Any]):
    """Everything known of one model: a mapping with the keys of the command's JSON."""

    LEAST_TELLING = ("stack", "untouched", "rank_90", "rank_50", "author", "spellings", "sources", "parent")

    facts: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.facts)

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def headline(self) -> str:
        """What it is, and what became of it."""
        reason = f" ({self['reason']})" if self["reason"] else ""
        datasets = f", tuned on {', '.join(self['datasets'])}" if self["datasets"] else ", names no dataset"
        return f"{self['model']}: {self['relation']} of {self['base']}, {self['status']}{reason}{datasets}"

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON object."""
        return dict(self.facts)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row: what is a value or a list of them; the tables (families, neighbours, results) are in the object."""
        return [{name: value for name, value in self.facts.items() if not _is_nested(value)}]

    def table(self, *, details: bool = False) -> dict[str, Any]:
        """The object."""
        return self.to_dict()


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))


def show(atlas: AtlasReader, model: str, base: str | None = None) -> ShownModel:
    """One object: what the Hub said, what the weights said, datasets, results, deltas by family, neighbours.

    A model that was skipped or failed is shown with the reason. Raises AtlasError for one the atlas has never
    met, naming the closest ids.
    """
    reference = ModelRef.parse(model)
    known = atlas.find(reference, base) if reference.folder is None else held_folder(atlas, reference, base)
    if known is None:
        raise unknown_model(atlas, model, f"Add it: `add({model!r}, {base_in_hint(atlas, base)!r})`")
    return shown_model(atlas, known.model_id)


def shown_model(atlas: AtlasReader, model_id: int) -> ShownModel:
    """The same of a model that is known by its id. Raises AtlasError where the atlas holds none of it."""
    found = atlas.rows("SELECT * EXCLUDE (fingerprint) FROM fine_tunes WHERE model_id = ?", [model_id])
    if not found:
        raise AtlasError(f"The atlas holds no model {model_id}.", "")
    shown = found[0]
    weights = atlas.rows("SELECT * EXCLUDE (model_id, record_key) FROM records WHERE model_id = ?", [model_id])
    if weights:
        shown |= weights[0]
        shown["duplicate_of"] = _name(atlas, shown["duplicate_of"])
        shown["duplicate_group"] = _name(atlas, shown["duplicate_group"])
    kept = stored_lineage(atlas, model_id)
    lineage = {"lineage": [] if kept is None else kept.to_rows()}
    return ShownModel(shown | _claims(atlas, model_id) | lineage | _measured(atlas, model_id))


def _claims(atlas: AtlasReader, model_id: int) -> dict[str, Any]:
    """What its card and tags say."""
    named = atlas.rows(
        "SELECT dataset, parent, list_sort(list(DISTINCT raw)) AS spellings, list_sort(list(DISTINCT source)) AS "
        "sources FROM model_datasets WHERE model_id = ? GROUP BY dataset, parent ORDER BY dataset",
        [model_id],
    )
    tags = atlas.rows("SELECT tag FROM tags WHERE model_id = ?", [model_id])
    results = atlas.rows("SELECT * EXCLUDE (model_id) FROM evaluations WHERE model_id = ?", [model_id])
    return {
        "datasets": sorted({row["dataset"] for row in named if row["dataset"]}),
        "datasets_as_written": named,
        "tags": [row["tag"] for row in tags],
        "evaluations": results,
    }


def _measured(atlas: AtlasReader, model_id: int) -> dict[str, Any]:
    """What its deltas look like, by family, and which models are near."""
    families = atlas.rows(
        "SELECT stack, family, count(*) AS layers, avg(relative_norm) AS relative_norm, avg(energy) AS energy, "
        "count(*) FILTER (norm = 0) AS untouched, avg(rank_50) AS rank_50, avg(rank_90) AS rank_90 "
        "FROM deltas WHERE model_id = ? GROUP BY stack, family ORDER BY stack DESC, min(rowid)",
        [model_id],
    )
    near = atlas.rows(
        "SELECT rank, model, similarity, author, datasets FROM neighbours "
        "JOIN models ON models.model_id = neighbour_id "
        "WHERE neighbours.model_id = ? AND representation = 'input' AND rank <= ? ORDER BY rank",
        [model_id, NEIGHBOURS_SHOWN],
    )
    return {"families": families, "neighbours": near}


def _name(atlas: AtlasReader, model_id: int | None) -> str | None:
    if model_id is None:
        return None
    rows = atlas.rows("SELECT model FROM fine_tunes WHERE model_id = ?", [model_id])
    if not rows:
        raise AtlasError(f"The atlas names a model {model_id} that it does not hold.", "Run `index verify`.")
    return str(rows[0]["model"])
