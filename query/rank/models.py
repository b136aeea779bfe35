"""Which models a study of ranks counts: each once, and none that says nothing of fine-tuning this base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from indexer.errors import AtlasError, BadArgument
from indexer.names import RELATIONS, ModelRef
from query.lookup import base_in_hint, unknown_model
from query.population import LeftOut

if TYPE_CHECKING:
    from query.reader import AtlasReader


@dataclass(frozen=True)
class Candidate:
    """A model that a study is about."""

    model_id: int
    model: str
    record_key: str
    has_spectra: bool


def checked_relations(text: str | None) -> tuple[str, ...]:
    """Names of relations between commas; none for None. Raises AtlasError where one is not a relation."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text is not None else ()
    for name in names:
        if name not in RELATIONS:
            raise BadArgument(f"The relation {name!r} is none of {', '.join(RELATIONS)}.", "Say `relation='finetune'`.")
    return names


def countable_models(atlas: AtlasReader, base: str, relations: tuple[str, ...]) -> tuple[list[Candidate], LeftOut]:
    """The models of a base that count, by id, and how many do not: copies, unrelated models and repeats.

    A repeat stands in where its first upload has no spectra. Raises AtlasError where no model is left.
    """
    rows = atlas.rows(
        "SELECT model_id, model, record_key, has_spectra, is_copy, is_unrelated, duplicate_group FROM models "
        "WHERE base = ? AND (len(?::VARCHAR[]) = 0 OR list_contains(?, relation)) "
        "ORDER BY has_spectra DESC, duplicate_of IS NOT NULL, model_id",
        [base, list(relations), list(relations)],
    )
    if not rows:
        what = f"No {' or '.join(relations)} of {base} is indexed." if relations else f"No model of {base} is indexed."
        raise AtlasError(what, f"Run: `build({base!r}, spectra=True)`")
    chosen: list[Candidate] = []
    groups: set[int] = set()
    counts = {"copies": 0, "unrelated": 0, "duplicates": 0}
    for row in rows:
        if row["is_copy"]:
            counts["copies"] += 1
        elif row["is_unrelated"]:
            counts["unrelated"] += 1
        elif row["duplicate_group"] in groups:
            counts["duplicates"] += 1
        else:
            groups |= {row["duplicate_group"]} - {None}
            chosen.append(Candidate(row["model_id"], row["model"], row["record_key"], row["has_spectra"]))
    left_out = LeftOut(**counts)
    if not chosen:
        why = f"left out: {', '.join(left_out.words())}"
        raise AtlasError(f"No model of {base} is left to study: {why}.", "")
    return sorted(chosen, key=lambda one: one.model_id), left_out


def one_model(atlas: AtlasReader, name: str, base: str | None) -> tuple[Candidate, str, list[str]]:
    """One model, its base, and what is odd about it. Raises AtlasError where it is not indexed."""
    found = atlas.find(ModelRef.parse(name), base)
    if found is None:
        hint = f"Only models of the atlas: `add({name!r}, {base_in_hint(atlas, base)!r}, spectra=True)`"
        raise unknown_model(atlas, name, hint)
    rows = atlas.rows(
        "SELECT record_key, has_spectra, is_copy, is_unrelated, duplicate_of IS NOT NULL AS is_duplicate "
        "FROM models WHERE model_id = ?",
        [found.model_id],
    )
    if not rows:
        why = f": {found.detail}" if found.detail else ""
        raise AtlasError(f"{found.model} is not indexed but {found.status}{why}.", f"See: query show {found.model}")
    row = rows[0]
    flags = {"is_copy": "a copy of the base", "is_unrelated": "unrelated to the base", "is_duplicate": "a duplicate"}
    notes = [f"it is {words}" for flag, words in flags.items() if row[flag]]
    return Candidate(found.model_id, found.model, row["record_key"], row["has_spectra"]), found.base, notes
