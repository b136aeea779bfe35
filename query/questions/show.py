"""All facts about one model in the atlas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from indexer.database.deepening import deepening
from indexer.errors import AtlasError, Call, Text
from indexer.names import family_order
from indexer.records.conversion import CONVERSION
from indexer.sources.registry import ModelRef
from query.contract.options import Base, Model
from query.contract.registry import Invocation, Tool, question
from query.contract.results import Detail, Result, Shown, Spread, plain
from query.models.conversions import stored_conversion
from query.models.facts import Place, facts_of, most_probable
from query.models.lookup import indexed_model, model_of_folder
from query.models.resolved import base_in_hint, unknown_model, unrelated_notes
from query.models.sampled import CHECKSUM, SAMPLE, rows_in_words
from query.questions.lineage.stored import stored_lineage
from query.questions.runs import path_around
from query.questions.similar import nothing_like, stored_neighbours

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

_NEIGHBOURS_SHOWN = 10
_SHOWN = 6  # rows of a table without ``details``; a base of one stack has six families

_KINDS = {"finetune": "a fine-tune", "adapter": "an adapter", "merge": "a merge", "quantized": "a quantised copy"}
_TABLES = (
    "weight_files",
    "datasets_as_written",
    "evaluations",
    "families",
    "neighbours",
    "predictions",
    "lineage",
    "checkpoints",
)


@dataclass(frozen=True, repr=False, eq=False)
class ShownModel(Result, Mapping[str, Any]):
    """All facts about one model: a mapping with the keys of the command's JSON."""

    ROWS = "rows"
    SHEET = ("usual_facts", "all_facts")
    SHOW_HEADLINE = True
    # Facts are columns of the views and tables fine_tunes and records; these need an explanation most.
    TABLE_COLUMNS: ClassVar[Mapping[str, str]] = {
        "status": "indexed, skipped (the model can never be read) or failed (it is tried again).",
        "reason": "Why the model was skipped or failed: a code to group by.",
        "read": (
            "What was read of the model: full, or sample (some rows of every matrix). Norms of a sample are estimates."
        ),
        "rows_read": "How many rows of a matrix were read; empty if all were.",
        "verified": "Whether the weights agree with the relation to the base that the card claims.",
        "base_cosine": (
            "Cosine of the model's weights with the base's, from -1 to 1. Below 0.3 the model was not made from it."
        ),
        "is_copy": (
            "Whether its weights are those of the base in all that was read, or it is an adapter that changes "
            "nothing; see copy_evidence."
        ),
        "copy_evidence": (
            "The evidence that nothing changed: checksum (its file is the base's), weights (all matrices are "
            "equal), sample (equal in all that was read, which does not prove it), untrained (an adapter that "
            "adds zero), or unmeasurable (an adapter whose change is below float32's rounding)."
        ),
        "is_unrelated": "Whether its weights contradict the base that it claims.",
        "is_like_none": (
            "Whether none of the nearest models is more similar to it than unrelated models are; empty if it "
            "has no neighbours."
        ),
        "is_partly_frozen": "Whether some matrices are exactly those of the base.",
        "change": "What was done to the base's weights, by the weights alone (docs/guide/kinds.md).",
        "change_probability": "Calibrated probability of change; empty for a skipped model, of which it is certain.",
        "change_evidence": "Why, in words.",
        "base_grid": (
            "The form in 4 bits to which the base was rounded before training; this rounding is not counted as change."
        ),
        "checkpoints": (
            "The indexed checkpoints of its training run, in order, with the distance from the base and the similarity "
            "with the last one."
        ),
        "duplicate_of": "An earlier upload with the same weights.",
        "delta_norm": "Frobenius norm of all weight changes together; an estimate if a sample was read.",
        "delta_norm_error": "Standard error of delta_norm; 0 if all rows were read.",
        "relative_norm": "Norm of the weight change over the norm of the base's weights: 0.05 is a change of 5 %.",
        "claimed_by": "Where the base is named: the card, a tag, config.json or the model's name.",
        "conversion": (
            "The row of the table conversions (for GGUF, AWQ …): its format, its source, the verdict, and the "
            "differences."
        ),
        "path": "The models from the base to this one, according to their claims.",
        "datasets": (
            "Datasets that the card, the tags, the reported results or the files of the training tool name, each under "
            "one spelling."
        ),
        "training": (
            "The training according to the files beside the weights and their header: tool, run, steps, losses, "
            "settings."
        ),
        "family": (
            "Family of matrices: query, key, value, output, feedforward1, feedforward2, gate and others "
            "(docs/guide/families.md); with its stack (encoder, decoder) if there are two."
        ),
        "layers": "Number of layers that have the family.",
        "energy": (
            "Share of the squared norm that the kept singular values hold, from 0 to 1; empty if only a "
            "sample was read."
        ),
        "untouched": "Number of matrices of the family that did not change.",
        "rank_50": (
            "Directions that hold 50 % of the energy Σσ²; 0 if nothing changed, empty if the kept singular "
            "values hold less."
        ),
        "rank_90": (
            "Directions that hold 90 % of the energy Σσ²; 0 if nothing changed, empty if the kept singular "
            "values hold less."
        ),
        "rank": "Place in the list; 1 is the nearest.",
        "similarity": (
            "How alike two weight changes are, from -1 to 1: the mean cosine of the matrices that both models "
            "changed. 1 is the same direction, 0 nothing in common."
        ),
    }
    OPTIONAL_COLUMNS = ("stack", "untouched", "rank_90", "rank_50", "author", "spellings", "sources", "parent")

    facts: Annotated[Mapping[str, Any], Spread()]

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.facts)

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Notes on its relation to the base, on models with the same initialisation, and on similar models."""
        return tuple(self["notes"])

    @property
    def headline(self) -> str:
        """Its kind, its status, and the datasets it was tuned on."""
        kind = _KINDS.get(self["relation"], f"a {self['relation']}")
        reason = f" ({self['reason']})" if self["reason"] else ""
        status = "" if self["status"] == "indexed" else f", {self['status']}{reason}"
        datasets = f"tuned on {', '.join(self['datasets'])}" if self["datasets"] else "it names no dataset"
        probably = "" if self["datasets"] else most_probable(self.facts)
        guess = f", and was probably tuned on {probably}" if probably else ""
        alone = f" {nothing_like(self['model'], self['base'])}." if self["is_like_none"] else ""
        return f"{self['model']} is {kind} of {self['base']}{status}; {datasets}{guess}.{alone}"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row with the facts. The tables (families, neighbours, results …) and the notes are in the object."""
        return [{name: value for name, value in self.facts.items() if name not in (*_TABLES, "notes")}]

    @property
    def all_facts(self) -> Annotated[dict[str, Any], Shown(), Detail(), Spread()]:
        """All facts except the signature and the notes."""
        return {name: value for name, value in self.facts.items() if name not in ("signature", "notes")}

    @property
    def usual_facts(self) -> Annotated[dict[str, Any], Shown(in_details=False), Spread()]:
        """The usual facts in words, families and neighbours."""
        facts = {fact.name: fact.in_words(self.facts) for fact in facts_of(Place.SHOW) if not fact.is_usual(self.facts)}
        facts = {name: value for name, value in facts.items() if value not in (None, "", [])}
        columns = {
            "families": ("stack", "family", "layers", "relative_norm", "rank_50", "rank_90"),
            "neighbours": ("rank", "model", "similarity", "datasets"),
            "checkpoints": ("model", "step", "distance", "similarity", "eval_loss"),
        }
        tables = {
            table: [{name: row[name] for name in names if row[name] != ""} for row in self[table][:_SHOWN]]
            for table, names in columns.items()
        }
        return facts | {name: rows for name, rows in tables.items() if rows}


def _command(call: Invocation, **options: Any) -> None:
    with call.opened() as atlas:
        answer = atlas.show(**options)
        call.show(answer, rows=[answer.to_dict()] if call.output == "jsonl" else None)


@question(
    example="show textattack/roberta-base-MNLI",
    agents=Tool("Show what is known of an indexed model: card, datasets, norms, ranks, duplicates, neighbours."),
    command=_command,
)
def show(atlas: AtlasReader, model: Model, base: Base = None) -> ShownModel:
    """Show what is known of ``model``: the usual facts, or everything (``details``, or any other format).

    Returns:
        A mapping: facts from the Hub, datasets and results, deltas by family, neighbours. A model that was skipped or
        failed is shown with the reason.

    Raises:
        AtlasError: the atlas does not contain the model. The message has the closest ids.
    """
    model = str(model)
    reference = ModelRef.parse(model)
    indexed = atlas.find(reference, base) if reference.is_name else model_of_folder(atlas, reference, base)
    if indexed is None:
        raise unknown_model(atlas, model, Text("Add it: ", Call("add", model, base_in_hint(atlas, base))))
    return shown_model(atlas, indexed.model_id)


def shown_model(atlas: AtlasReader, model_id: int) -> ShownModel:
    """The answer of ``show`` for the model with this id. Raises AtlasError if there is none."""
    rows_of_model = atlas.rows("SELECT * EXCLUDE (fingerprint) FROM fine_tunes WHERE model_id = ?", [model_id])
    if not rows_of_model:
        raise AtlasError(f"The atlas contains no model {model_id}.", "")
    facts, other_models = rows_of_model[0], 0
    weights = atlas.rows(
        "SELECT * EXCLUDE (model_id, record_key, row_space, token_codes), "
        "(SELECT count(*) FROM records AS other WHERE other.initialisation = records.initialisation "
        "AND other.model_id <> records.model_id) AS others "
        "FROM records WHERE model_id = ?",
        [model_id],
    )
    if weights:
        facts |= weights[0]
        other_models = facts.pop("others") or 0
        facts["initialisation"] = facts["initialisation"] if other_models else None
        facts["duplicate_of"] = _name(atlas, facts["duplicate_of"])
        facts["duplicate_group"] = _name(atlas, facts["duplicate_group"])
        facts["training"] = json.loads(facts["training"]) if facts["training"] else None
    facts |= next(
        iter(
            atlas.rows("SELECT change, change_probability, change_evidence FROM changes WHERE model_id = ?", [model_id])
        ),
        {},
    )
    is_on_hub = facts["claimed_by"] != "folder"
    facts["page"] = atlas.crawl_of(facts["base"]).page_of(facts["model"]) if is_on_hub else None
    # Datasets, tags and results, from its card and other metadata.
    dataset_rows = atlas.rows(
        "SELECT dataset, parent, list_sort(list(DISTINCT raw)) AS spellings, list_sort(list(DISTINCT source)) AS "
        "sources FROM model_datasets WHERE model_id = ? GROUP BY dataset, parent ORDER BY dataset",
        [model_id],
    )
    facts["datasets"] = sorted({row["dataset"] for row in dataset_rows if row["dataset"]})
    facts["datasets_as_written"] = dataset_rows
    facts["tags"] = [row["tag"] for row in atlas.rows("SELECT tag FROM tags WHERE model_id = ?", [model_id])]
    facts["evaluations"] = atlas.rows("SELECT * EXCLUDE (model_id) FROM evaluations WHERE model_id = ?", [model_id])
    # Its deltas by family, and its neighbours.
    facts["families"] = atlas.rows(
        "SELECT stack, family, count(*) AS layers, avg(relative_norm) AS relative_norm, "
        "avg(energy) FILTER (rows_read IS NULL) AS energy, "
        "count(*) FILTER (norm = 0) AS untouched, avg(rank_50) AS rank_50, avg(rank_90) AS rank_90 "
        "FROM deltas WHERE model_id = ? GROUP BY stack, family",
        [model_id],
    )
    facts["families"].sort(key=lambda row: family_order(row["stack"], row["family"]))
    facts["neighbours"] = atlas.rows(
        "SELECT rank, model, similarity, author, datasets FROM neighbours "
        "JOIN models ON models.model_id = neighbour_id "
        "WHERE neighbours.model_id = ? AND representation = 'input' AND rank <= ? ORDER BY rank",
        [model_id, _NEIGHBOURS_SHOWN],
    )
    # Stored answers, each with the time of its computation.
    facts["predictions"] = atlas.rows(
        "SELECT dataset, probability, votes, authors, declared, calibrated, answered_at FROM predictions "
        "WHERE model_id = ? ORDER BY rank",
        [model_id],
    )
    conversion = stored_conversion(atlas, model_id) if facts["reason"] == CONVERSION else None
    facts["conversion"] = None if conversion is None else conversion.facts
    facts["checkpoints"] = path_around(atlas, model_id) if facts.get("run_group") is not None else []
    lineage = stored_lineage(atlas, model_id)
    facts["lineage"] = []
    if lineage is not None:
        facts["lineage"] = [plain(edge) | {"answered_at": lineage.answered_at} for edge in lineage.edges]
    notes = list(unrelated_notes(indexed_model(atlas, model_id))) if weights else []
    if conversion is not None:
        notes.append(f"It is {conversion.match.headline}.")
    if facts.get("read") == SAMPLE:
        rows = atlas.rows("SELECT rows_read FROM deltas WHERE model_id = ?", [model_id])
        facts["rows_read"] = rows_in_words(row["rows_read"] for row in rows)
        if facts["copy_evidence"] != CHECKSUM:
            notes.append(Text("Its norms are estimates. ", deepening(atlas, facts["base"], [facts["model"]])))
    passed_over = facts.get("passed_over") or []
    if unread_parts := [part for part in passed_over if not part.endswith(".")]:
        notes.append(f"Parts of the adapter were not read: {'; '.join(unread_parts)}.")
    notes += [part for part in passed_over if part.endswith(".")]  # sentences on its settings
    facts["is_like_none"] = None
    if facts["neighbours"]:
        neighbours = stored_neighbours(atlas, indexed_model(atlas, model_id), _NEIGHBOURS_SHOWN, "input")
        facts["is_like_none"] = all(neighbour.is_like_unrelated for neighbour in neighbours)
    if facts["is_like_none"]:
        notes.append(f"{nothing_like('it', facts['base'])}: unrelated models are as similar as the nearest.")
    if other_models:
        count = f"{other_models:,} others" if other_models > 1 else "another"
        notes.append(f"It was made with the same initialisation as {count}: one tool, one seed.")
    return ShownModel(facts | {"notes": notes})


def _name(atlas: AtlasReader, model_id: int | None) -> str | None:
    if model_id is None:
        return None
    rows = atlas.rows("SELECT model FROM fine_tunes WHERE model_id = ?", [model_id])
    if not rows:
        raise AtlasError(f"The atlas names a model {model_id} that it does not contain.", "Run `index verify`.")
    return str(rows[0]["model"])
