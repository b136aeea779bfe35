"""The page of one model: everything about it in the atlas, without reading weights or using the network."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from indexer.atlas import NEIGHBOURS
from indexer.console.advice import for_command_line
from indexer.console.messages import clean
from indexer.console.output import as_plain
from indexer.console.terminal import explain
from indexer.errors import AtlasError
from query.contract.results import plain
from query.models.facts import Place, facts_of
from query.models.lookup import indexed_model
from query.questions.depth.depth import PANELS, read_profiled
from query.questions.layers import stored_layers
from query.questions.show import shown_model
from query.questions.similar import stored_neighbours

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

LONGEST = 2000  # characters of one string
MOST = 500  # entries of a list: tags, evaluation results, children
_EXACT = 2**53  # a browser rounds larger integers
# Advice for a terminal or for Python: part of a sentence, or a whole one.
_OTHERWISE = re.compile(r",? or (raise|use) `[^`]+`")
_ELSEWHERE = re.compile(r"`[^`]+`|--debug|query sql")


def model_page(atlas: AtlasReader, model_id: int) -> dict[str, Any]:
    """The page's data, ready for JSON and safe in a page that sets it as text.

    Lists have at most ``MOST`` entries; the key ``left`` counts, by name, the entries that were cut. Raises AtlasError
    if there is no such model.
    """
    details = shown_model(atlas, model_id)
    model, base = str(details["model"]), str(details["base"])
    facts = {fact.name: fact.in_words(details) for fact in facts_of(Place.PAGE)}
    facts = {name: value for name, value in facts.items() if value not in (None, [], False)}
    layers = stored_layers(atlas, model_id, model, base)
    changed = layers.to_dict() | {"headline": layers.headline, "notes": list(layers.estimates)}
    neighbours = []
    if details["status"] == "indexed" and atlas.is_published(base, "input"):
        rows = atlas.rows(
            "SELECT model, neighbour_id FROM neighbours JOIN fine_tunes ON fine_tunes.model_id = neighbour_id "
            "WHERE neighbours.model_id = ? AND representation = 'input'",
            [model_id],
        )
        ids = {row["model"]: row["neighbour_id"] for row in rows}
        near = stored_neighbours(atlas, indexed_model(atlas, model_id), NEIGHBOURS, "input")
        neighbours = [plain(neighbour) | {"id": ids.get(neighbour.model)} for neighbour in near]
    predictions = atlas.rows(
        "SELECT dataset, probability, votes, authors, vectors, head, declared, calibrated, models FROM predictions "
        "WHERE model_id = ? ORDER BY rank",
        [model_id],
    )
    # Parents and children according to the weights, and parents according to cards and tags.
    parents = atlas.rows(
        'SELECT parent_id AS id, coalesce(parent.model, child.base) AS model, kind, method, coefficient, "left", card, '
        "direction, evidence AS because, same, probability FROM lineage JOIN fine_tunes AS child USING (model_id) "
        "LEFT JOIN fine_tunes AS parent ON parent.model_id = parent_id WHERE lineage.model_id = ? "
        "ORDER BY coefficient DESC, parent_id",
        [model_id],
    )
    children = atlas.rows(
        "SELECT child.model_id AS id, child.model, kind, coefficient, card, direction FROM lineage "
        "JOIN fine_tunes AS child USING (model_id) WHERE parent_id = ? ORDER BY child.model",
        [model_id],
    )
    declared = atlas.rows("SELECT DISTINCT parent FROM declared_lineage WHERE model_id = ? ORDER BY parent", [model_id])
    lineage = {"parents": parents, "children": children, "declared": [row["parent"] for row in declared]}
    depth = None
    if profiles := read_profiled(atlas, base, subject="fine_tune", model=model):
        newest = profiles[0]
        base_profiles = read_profiled(atlas, base, subject="base", probe=newest.probe_sha256)
        depth = {name: getattr(newest, name) for name in ("probe", "sequences", "tokens", "layers")}
        depth["base"] = base_profiles[0].layers if base_profiles else []
        measured = [name for name in PANELS if any(row.get(name) is not None for row in newest.layers)]
        depth["panels"] = [{"name": name, "title": PANELS[name][0], "axis": PANELS[name][1]} for name in measured]
    page = {
        "id": model_id,
        "model": model,
        "base": base,
        "facts": facts,
        "datasets": details["datasets_as_written"],
        "tags": details["tags"],
        "evaluations": details["evaluations"],
        "layers": changed if layers.deltas else None,
        "neighbours": neighbours,
        "is_like_none": details["is_like_none"],
        "predictions": predictions,
        "lineage": lineage,
        "depth": depth,
    }
    omitted = {}
    for part in (page, facts, lineage):
        for name, value in part.items():
            if isinstance(value, list) and len(value) > MOST:
                omitted[name] = len(value) - MOST
                part[name] = value[:MOST]
    return harmless(page | {"left": omitted})


def harmless(value: Any, longest: int | None = LONGEST) -> Any:
    """JSON types; hidden characters in strings are spelt out, and strings longer than ``longest`` are cut with "…".

    Integers that a browser would round become strings. Nothing else changes.
    """
    return _harmless(as_plain(value), longest)


def _harmless(value: Any, longest: int | None) -> Any:
    if isinstance(value, str):
        text = clean(value)
        return text if longest is None or len(text) <= longest else text[:longest] + "…"
    if isinstance(value, dict):
        return {clean(str(name)): _harmless(item, longest) for name, item in value.items()}
    if isinstance(value, list):
        return [_harmless(item, longest) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        return str(value)
    return value


def error_in_words(error: Exception) -> str:
    """One line for a page, without advice about arguments or options."""
    if isinstance(error.__cause__, AtlasError):
        error = error.__cause__  # the same without the name of an argument
    message, advice = (error.message, error.hint) if isinstance(error, AtlasError) else ("", explain(error))
    sentences = [
        sentence for sentence in re.split(r"(?<=[.?!]) ", _OTHERWISE.sub("", advice)) if not _ELSEWHERE.search(sentence)
    ]
    text = " ".join([message.replace("`where`", "The condition"), *sentences]).strip()
    return clean(for_command_line(text))[:LONGEST]
