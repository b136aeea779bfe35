"""Everything the atlas knows of one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from indexer.database.deepening import deepening
from indexer.errors import AtlasError, Call, Text
from indexer.names import family_order
from indexer.sources.registry import ModelRef
from query.contract.options import Base, Model
from query.contract.registry import Invocation, Tool, question
from query.contract.results import Detail, Result, Shown, Spread, plain
from query.models.facts import Place, facts_of, most_probable
from query.models.lookup import indexed_model, model_of_folder
from query.models.resolved import base_in_hint, unknown_model, unrelated_notes
from query.models.sampled import CHECKSUM, SAMPLE, rows_in_words
from query.questions.lineage.stored import stored_lineage
from query.questions.similar import nothing_like, stored_neighbours

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

_NEIGHBOURS_SHOWN = 10
_SHOWN = 6  # rows of a table without ``details``; a base of one stack has six families

_KINDS = {"finetune": "a fine-tune", "adapter": "an adapter", "merge": "a merge", "quantized": "a quantised copy"}
_TABLES = ("weight_files", "datasets_as_written", "evaluations", "families", "neighbours", "predictions", "lineage")


@dataclass(frozen=True, repr=False, eq=False)
class ShownModel(Result, Mapping[str, Any]):
    """Everything known of one model: a mapping with the keys of the command's JSON."""

    ROWS = "rows"
    SHEET = ("usual_facts", "all_facts")
    SHOW_HEADLINE = True
    # Facts are columns of the views and tables fine_tunes and records; these are the first to be asked about.
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
            "What shows that nothing changed: checksum (its file is the base's), weights (all matrices are "
            "equal), sample (equal in all that was read, which does not prove it), untrained (an adapter that "
            "adds zero), or unmeasurable (an adapter whose change is below float32's rounding)."
        ),
        "is_unrelated": "Whether its weights contradict the base that it claims.",
        "is_like_none": (
            "Whether none of the nearest models is more similar to it than unrelated models are; empty if it "
            "has no neighbours."
        ),
        "is_partly_frozen": "Whether some matrices are exactly those of the base.",
        "base_grid": (
            "The form in 4 bits to which the base was rounded before training; this rounding is not counted as change."
        ),
        "duplicate_of": "An earlier upload with the same weights.",
        "delta_norm": "Frobenius norm of all weight changes together; an estimate if a sample was read.",
        "delta_norm_error": "Standard error of delta_norm; 0 if all rows were read.",
        "relative_norm": "Norm of the weight change over the norm of the base's weights: 0.05 is a change of 5 %.",
        "claimed_by": "What names the base: the card, a tag, config.json or the model's name.",
        "path": "The models from the base to this one, according to their claims.",
        "datasets": "Datasets that the card, the tags or the reported results name, each under one spelling.",
        "family": (
            "Family of matrices: query, key, value, output, feedforward1, feedforward2, gate and others "
            "(docs/families.md); with its stack (encoder, decoder) if there are two."
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
        """Whether it is unrelated to its base, whether other models began as it did, and whether any is like it."""
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
        """Everything but the signature and the notes."""
        return {name: value for name, value in self.facts.items() if name not in ("signature", "notes")}

    @property
    def usual_facts(self) -> Annotated[dict[str, Any], Shown(in_details=False), Spread()]:
        """The usual facts in words, families and neighbours."""
        facts = {fact.name: fact.in_words(self.facts) for fact in facts_of(Place.SHOW) if not fact.is_usual(self.facts)}
        facts = {name: value for name, value in facts.items() if value not in (None, "", [])}
        columns = {
            "families": ("stack", "family", "layers", "relative_norm", "rank_50", "rank_90"),
            "neighbours": ("rank", "model", "similarity", "datasets"),
        }
        tables = {
            name: [{column: row[column] for column in shown if row[column] != ""} for row in self[name][:_SHOWN]]
            for name, shown in columns.items()
        }
        return facts | {name: rows for name, rows in tables.items() if rows}


def _command(call: Invocation, **options: Any) -> None:
    with call.opened() as atlas:
        shown = atlas.show(**options)
        call.show(shown, rows=[shown.to_dict()] if call.output == "jsonl" else None)


@question(
    example="show textattack/roberta-base-MNLI",
    agents=Tool("Show what is known of an indexed model: card, datasets, norms, ranks, duplicates, neighbours."),
    command=_command,
)
def show(atlas: AtlasReader, model: Model, base: Base = None) -> ShownModel:
    """Show what is known of ``model``: the usual facts, or everything (``details``, or any other format).

    Returns:
        A mapping: what the Hub says, its datasets and results, its deltas by family, its neighbours. A model that was
        skipped or failed is shown with the reason.

    Raises:
        AtlasError: the atlas does not know the model. The message names the closest ids.
    """
    model = str(model)
    reference = ModelRef.parse(model)
    known = atlas.find(reference, base) if reference.is_name else model_of_folder(atlas, reference, base)
    if known is None:
        raise unknown_model(atlas, model, Text("Add it: ", Call("add", model, base_in_hint(atlas, base))))
    return shown_model(atlas, known.model_id)


def shown_model(atlas: AtlasReader, model_id: int) -> ShownModel:
    """What ``show`` says of the model with this id. Raises AtlasError if there is none."""
    found = atlas.rows("SELECT * EXCLUDE (fingerprint) FROM fine_tunes WHERE model_id = ?", [model_id])
    if not found:
        raise AtlasError(f"The atlas holds no model {model_id}.", "")
    shown, others = found[0], 0
    weights = atlas.rows(
        "SELECT * EXCLUDE (model_id, record_key, row_space, token_codes), "
        "(SELECT count(*) FROM records AS other WHERE other.initialisation = records.initialisation "
        "AND other.model_id <> records.model_id) AS others "
        "FROM records WHERE model_id = ?",
        [model_id],
    )
    if weights:
        shown |= weights[0]
        others = shown.pop("others") or 0
        shown["initialisation"] = shown["initialisation"] if others else None
        shown["duplicate_of"] = _name(atlas, shown["duplicate_of"])
        shown["duplicate_group"] = _name(atlas, shown["duplicate_group"])
    is_on_hub = shown["claimed_by"] != "folder"
    shown["page"] = atlas.crawl_of(shown["base"]).page_of(shown["model"]) if is_on_hub else None
    # What its card and tags say.
    named = atlas.rows(
        "SELECT dataset, parent, list_sort(list(DISTINCT raw)) AS spellings, list_sort(list(DISTINCT source)) AS "
        "sources FROM model_datasets WHERE model_id = ? GROUP BY dataset, parent ORDER BY dataset",
        [model_id],
    )
    shown["datasets"] = sorted({row["dataset"] for row in named if row["dataset"]})
    shown["datasets_as_written"] = named
    shown["tags"] = [row["tag"] for row in atlas.rows("SELECT tag FROM tags WHERE model_id = ?", [model_id])]
    shown["evaluations"] = atlas.rows("SELECT * EXCLUDE (model_id) FROM evaluations WHERE model_id = ?", [model_id])
    # Its deltas by family, and the models that are near.
    shown["families"] = atlas.rows(
        "SELECT stack, family, count(*) AS layers, avg(relative_norm) AS relative_norm, "
        "avg(energy) FILTER (rows_read IS NULL) AS energy, "
        "count(*) FILTER (norm = 0) AS untouched, avg(rank_50) AS rank_50, avg(rank_90) AS rank_90 "
        "FROM deltas WHERE model_id = ? GROUP BY stack, family",
        [model_id],
    )
    shown["families"].sort(key=lambda row: family_order(row["stack"], row["family"]))
    shown["neighbours"] = atlas.rows(
        "SELECT rank, model, similarity, author, datasets FROM neighbours "
        "JOIN models ON models.model_id = neighbour_id "
        "WHERE neighbours.model_id = ? AND representation = 'input' AND rank <= ? ORDER BY rank",
        [model_id, _NEIGHBOURS_SHOWN],
    )
    # Stored answers, each with the time when it was computed.
    shown["predictions"] = atlas.rows(
        "SELECT dataset, probability, votes, authors, declared, calibrated, answered_at FROM predictions "
        "WHERE model_id = ? ORDER BY rank",
        [model_id],
    )
    kept = stored_lineage(atlas, model_id)
    shown["lineage"] = [] if kept is None else [plain(edge) | {"answered_at": kept.answered_at} for edge in kept.edges]
    notes = list(unrelated_notes(indexed_model(atlas, model_id))) if weights else []
    if shown.get("read") == SAMPLE:
        rows = atlas.rows("SELECT rows_read FROM deltas WHERE model_id = ?", [model_id])
        shown["rows_read"] = rows_in_words(row["rows_read"] for row in rows)
        if shown["copy_evidence"] != CHECKSUM:
            notes.append(Text("Its norms are estimates. ", deepening(atlas, shown["base"], [shown["model"]])))
    passed_over = shown.get("passed_over") or []
    if parts := [one for one in passed_over if not one.endswith(".")]:
        notes.append(f"Parts of the adapter were not read: {'; '.join(parts)}.")
    notes += [one for one in passed_over if one.endswith(".")]  # sentences on its settings
    shown["is_like_none"] = None
    if shown["neighbours"]:
        near = stored_neighbours(atlas, indexed_model(atlas, model_id), _NEIGHBOURS_SHOWN, "input")
        shown["is_like_none"] = all(one.is_like_unrelated for one in near)
    if shown["is_like_none"]:
        notes.append(f"{nothing_like('it', shown['base'])}: unrelated models are as similar as the nearest.")
    if others:
        count = f"{others:,} others" if others > 1 else "another"
        notes.append(f"It was made with the same initialisation as {count}: one tool, one seed.")
    return ShownModel(shown | {"notes": notes})


def _name(atlas: AtlasReader, model_id: int | None) -> str | None:
    if model_id is None:
        return None
    rows = atlas.rows("SELECT model FROM fine_tunes WHERE model_id = ?", [model_id])
    if not rows:
        raise AtlasError(f"The atlas names a model {model_id} that it does not hold.", "Run `index verify`.")
    return str(rows[0]["model"])
