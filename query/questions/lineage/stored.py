"""Lineage in the atlas: the parents that cards declare, and the answers stored by ``--all``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from indexer.errors import Call, Text
from query.questions.lineage.result import CONFIRMED, CONTRADICTED, NOT_DECLARED, UNRELATED, Edge, Lineage

if TYPE_CHECKING:
    from query.models.reader import AtlasReader


@dataclass(frozen=True)
class DeclaredParents:
    """The parents that a card names.

    Attributes:
        models: all of them except the base.
        indexed: the models among them that are in the atlas.
        names_base: whether it names the base. A card that names a fine-tune and its base means the fine-tune.
    """

    models: frozenset[str]
    indexed: frozenset[str]
    names_base: bool

    def agreement(self, parent: str | None, copies: Sequence[str] = ()) -> str:
        """Whether the card agrees with a parent (None: the base), or with one of its ``copies``."""
        if parent is None and not self.models:
            return CONFIRMED if self.names_base else NOT_DECLARED
        if parent is not None and {parent, *copies} & self.models:
            return CONFIRMED
        return CONTRADICTED if self.indexed else NOT_DECLARED

    def without(self, name: str | None) -> DeclaredParents:
        """The same without one of the models."""
        return self if name is None else replace(self, models=self.models - {name}, indexed=self.indexed - {name})

    @property
    def of_unrelated(self) -> str:
        """The agreement for a model unrelated to the base: contradicted if the card names the base or a model of it."""
        return CONTRADICTED if self.names_base or self.indexed else NOT_DECLARED


def declared_by(atlas: AtlasReader, model_id: int, base: str) -> DeclaredParents:
    """The parents that the card of an indexed model names, by the tags that the Hub makes from it."""
    rows = atlas.rows("SELECT DISTINCT parent FROM declared_lineage WHERE model_id = ?", [model_id])
    return declared_in(atlas, [row["parent"] for row in rows], base)


def declared_in(atlas: AtlasReader, names: Sequence[str], base: str) -> DeclaredParents:
    """The same for a list of names."""
    base_names = {name.lower() for name in (base, *atlas.base_row(base)["aliases"])}
    models = frozenset(name for name in names if name.lower() not in base_names)
    rows = atlas.rows("SELECT model FROM fine_tunes WHERE model IN (SELECT unnest(?::VARCHAR[]))", [list(models)])
    return DeclaredParents(
        models, frozenset(row["model"] for row in rows), any(name.lower() in base_names for name in names)
    )


def notes_on_card(
    atlas: AtlasReader, model: str, declared: DeclaredParents, edges: Collection[Edge], base: str
) -> list[str]:
    """A note on each parent that the card names and that is not the parent of one of ``edges``."""
    parents = {name for edge in edges for name in (edge.parent, *edge.same)}
    notes = []
    for name in sorted(declared.models - parents):
        rows = atlas.rows(
            "SELECT base, status, reason, detail FROM fine_tunes WHERE model = ? ORDER BY base = ? DESC", [name, base]
        )
        if not rows:
            notes.append(f"its card names {name}, which this atlas does not contain")
        elif rows[0]["status"] != "indexed":
            notes.append(f"its card names {name}, which has no record: {rows[0]['reason']}: {rows[0]['detail']}")
        elif rows[0]["base"] != base:
            notes.append(f"its card names {name}, a fine-tune of {rows[0]['base']}")
        else:
            notes.append(f"its card names {name}; its weights do not show that")
    mutual_rows = atlas.rows(
        "SELECT DISTINCT model FROM declared_lineage WHERE lower(parent) = lower(?) "
        "AND model IN (SELECT unnest(?::VARCHAR[]))",
        [model, sorted(declared.models)],
    )
    notes.extend(f"its card and that of {row['model']} name each other as parents" for row in mutual_rows)
    return notes


# ---- stored answers ----

_EDGES = (
    "SELECT child.model AS child, child.base, parent.model AS parent, lineage.* FROM lineage "
    "JOIN fine_tunes AS child ON child.model_id = lineage.model_id "
    "LEFT JOIN fine_tunes AS parent ON parent.model_id = parent_id"
)
# Attributes of an edge that are columns of the table ``lineage`` with the same name.
_COLUMNS = ("kind", "method", "coefficient", "card", "direction", "probability")


def store(atlas: AtlasReader, base: str, answers: Sequence[Lineage]) -> int:
    """Store these answers in the atlas in place of earlier ones for the same models; return the number of edges.

    Answers with a ``failure`` are skipped, so that the earlier answer stays, and so are those with a parent that the
    atlas does not contain. The query layer only reads: the indexer writes, under its lock. The next generation of the
    atlas shows them. Raises AtlasError if another process is writing.
    """
    from indexer.publish.stored_answers import LINEAGE, store_answers

    rows = atlas.rows("SELECT model, record_key FROM models WHERE base = ?", [base])
    keys = {row["model"]: row["record_key"] for row in rows}
    now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    lines: list[dict[str, Any]] = []
    for answer in answers:
        # The table cannot name a parent that is not in the atlas, such as a base that only an adapter's file names.
        is_elsewhere = any(edge.parent_id is None and edge.parent not in (None, base) for edge in answer.edges)
        if answer.model not in keys or answer.failure or is_elsewhere:
            continue
        for edge in answer.edges:
            parent = edge.parent if edge.parent_id is not None else None
            lines.append(
                {
                    "model": answer.model,
                    "record_key": keys[answer.model],
                    "parent": parent,
                    "parent_key": None if parent is None else keys.get(parent),
                    **{name: getattr(edge, name) for name in _COLUMNS},
                    "left": edge.residual,
                    "evidence": edge.evidence,
                    "same": list(edge.same),
                    "bytes_read": answer.bytes_read,
                    "answered_at": now,
                }
            )
    if lines:
        store_answers(atlas.folder, LINEAGE, base, {line["model"] for line in lines}, lines)
        atlas.has_stored_answers = True
    return len(lines)


def stored_lineage(atlas: AtlasReader, model_id: int) -> Lineage | None:
    """The stored answer for a model (see ``query lineage --all``), with its date; no weights are read.

    None if there is none.
    """
    rows = atlas.rows(f"{_EDGES} WHERE lineage.model_id = ? ORDER BY coefficient DESC, parent_id", [model_id])
    if not rows:
        return None
    edges = tuple(_edge(row) for row in rows)
    model, base, answered_at = rows[0]["child"], rows[0]["base"], rows[0]["answered_at"]
    note = Text(
        f"This answer was stored in the atlas on {answered_at:%Y-%m-%d}; to read the weights again: ",
        Call(fresh=True),
        ".",
    )
    notes = (note, *notes_on_card(atlas, model, declared_by(atlas, model_id, base), edges, base))
    return Lineage(model, base, model_id, edges, 0, 0, notes, answered_at)


def stored_edges(atlas: AtlasReader, base: str) -> list[Edge]:
    """All stored edges of a base."""
    rows = atlas.rows(f"{_EDGES} WHERE child.base = ? ORDER BY child.created, child.model, parent.model", [base])
    return [_edge(row) for row in rows]


def _edge(row: dict[str, Any]) -> Edge:
    return Edge(
        child=row["child"],
        parent=row["parent"] or (None if row["kind"] == UNRELATED else row["base"]),
        residual=row["left"],
        evidence=row["evidence"] or "",
        same=tuple(row["same"]),
        parent_id=row["parent_id"],
        **{name: row[name] for name in _COLUMNS},
    )
