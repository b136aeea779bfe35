"""What cards and weights say of two models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from query.lookup import ResolvedModel
    from query.reader import AtlasReader

# Columns of the models view, in the order in which they are told.
FACTS = (
    "author", "relation", "parent", "datasets", "licence", "languages", "pipeline_tag", "head_class", "label_count",
    "label_names", "problem_type", "created", "modified", "downloads", "delta_norm", "relative_norm", "base_cosine",
    "dtype", "duplicate_group", "initialisation",
)  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """One fact of both; None where it is not known."""

    fact: str
    a: Any
    b: Any

    @property
    def differs(self) -> bool:
        """Whether both are known and not the same."""
        return self.a is not None and self.b is not None and self.a != self.b


def facts_of(atlas: AtlasReader, first: ResolvedModel, second: ResolvedModel) -> tuple[Fact, ...]:
    """Those that are known of one of the two at least."""
    one, other = _known(atlas, first), _known(atlas, second)
    told = (Fact(name, one.get(name), other.get(name)) for name in FACTS)
    return tuple(fact for fact in told if fact.a not in (None, []) or fact.b not in (None, []))


def _known(atlas: AtlasReader, asked: ResolvedModel) -> dict[str, Any]:
    if asked.record is None:
        return atlas.rows(f"SELECT {', '.join(FACTS)} FROM models WHERE model_id = ?", [asked.model_id])[0]
    record = asked.record
    norm, of_base = (sum(getattr(one, name) ** 2 for one in record.deltas) ** 0.5 for name in ("norm", "base_norm"))
    return {
        "author": asked.author,
        "relation": record.identity.relation,
        "datasets": list(record.card.get("datasets", ())),
        "head_class": record.head.get("architecture_class"),
        "label_count": record.head.get("label_count"),
        "label_names": record.head.get("label_names"),
        "problem_type": record.head.get("problem_type"),
        "delta_norm": float(norm),
        "relative_norm": float(norm / of_base) if of_base else 0.0,
        "base_cosine": record.base_cosine,
        "dtype": record.dtype,
        "initialisation": asked.initialisation,
    }
