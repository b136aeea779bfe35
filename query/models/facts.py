"""The facts about a model in ``show``, ``compare``, lists and its page in the browser, described in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

from indexer.names import UNMEASURABLE, UNTRAINED
from query.models.resolved import start_in_words
from query.models.sampled import SAMPLE, copy_in_words, flags_in_words
from query.shared.wording import percent

Facts = Mapping[str, Any]  # the known facts about a model, by key


class Place(Flag):
    """Where a fact is shown: by ``show`` without details, by ``compare``, on the page in the browser."""

    SHOW = auto()
    COMPARE = auto()
    PAGE = auto()


@dataclass(frozen=True)
class ModelFact:
    """One fact about a model.

    Attributes:
        name: its key in JSON, which is also its label; a column of the views, unless ``words`` derives it from others.
        places: where it is shown.
        words: a function from the known facts of the model to the text, which is empty if there is nothing to show. By
            default the value is shown.
        is_usual: whether the value is the usual one, which ``show`` leaves out.
    """

    name: str
    places: Place
    words: Callable[[Facts], Any] | None = None
    is_usual: Callable[[Facts], bool] = lambda facts: False

    def in_words(self, facts: Facts) -> Any:
        """The text for people; None if nothing is known."""
        return facts.get(self.name) if self.words is None else self.words(facts)


def facts_of(place: Place) -> tuple[ModelFact, ...]:
    """The facts that are shown there, in order."""
    return tuple(fact for fact in FACTS if place in fact.places)


def names_of(place: Place) -> tuple[str, ...]:
    """The names of the facts that are shown there, in order."""
    return tuple(fact.name for fact in facts_of(place))


_INTENDED = {"step": "max_steps", "epoch": "epochs"}
_IN_WORDS = {"learning_rate": "learning rate", "train_loss": "training loss", "eval_loss": "validation loss"}


def _path(facts: Facts) -> str:
    steps = facts.get("path") or []
    if len(steps) < 2:
        return ""
    return " → ".join([facts["base"], *(f"{step['model']} ({step['relation']})" for step in steps)])


def most_probable(facts: Facts) -> str:
    """The most probable dataset of the stored prediction, with its probability; empty if there is none."""
    best: dict[str, Any] = next(iter(facts["predictions"]), {})
    return f"{best['dataset']} ({percent(best['probability'])})" if best else ""


def _made_from(facts: Facts) -> list[str]:
    return [
        f"{row['parent'] or 'no model known here'} ({row['kind']}, card: {row['card']})" for row in facts["lineage"]
    ]


def _conversion(facts: Facts) -> str:
    row = facts.get("conversion")
    if not row:
        return ""
    return f"{row['format']} ({row['types']}): {row['verdict']}" + (f" ({row['source']})" if row["source"] else "")


def _change(facts: Facts) -> str | None:
    if not facts.get("change") or facts["change_evidence"] == facts.get("detail"):
        return None
    probability = facts["change_probability"]
    certainty = "" if probability is None else f" ({percent(probability)})"
    return f"{facts['change']}{certainty}: {facts['change_evidence']}"


def _is_usual_change(facts: Facts) -> bool:
    return facts.get("change") in ("trained", "adapter", "unchanged")


def _is_read_in_full(facts: Facts) -> bool:
    return facts.get("read") != SAMPLE


def _read(facts: Facts) -> str | None:
    return None if _is_read_in_full(facts) else f"a sample: {facts['rows_read']}"


def _norm_error(facts: Facts) -> float | None:
    return None if _is_read_in_full(facts) else facts.get("delta_norm_error")


def _relative_norm(facts: Facts) -> Any:
    relative, norm, error = (facts.get(name) for name in ("relative_norm", "delta_norm", "delta_norm_error"))
    if _is_read_in_full(facts) or not relative or not norm:
        return relative
    return f"{relative:.4f} ± {relative * error / norm:.4f} (estimated)"


def _start(facts: Facts) -> str | None:
    return start_in_words(facts["start"]) if facts.get("start") else None


def _trace(facts: Facts) -> str:
    exactness = facts.get("token_class")
    return f"{exactness}: `query trace` says which tokens it was trained on" if exactness else ""


def _training(facts: Facts) -> str:
    """The usual settings that the files beside the weights state."""
    stated = facts.get("training") or {}
    if not isinstance(stated, Mapping):
        return ""
    words = [str(stated[name]) for name in ("tool", "run") if stated.get(name)]
    for name in ("step", "epoch"):
        if stated.get(name) is not None:
            most = stated.get(_INTENDED[name])
            words.append(f"{name} {stated[name]:,}" + (f" of {most:,}" if most else ""))
    for name, label in _IN_WORDS.items():
        if stated.get(name) is not None:
            words.append(f"{label} {stated[name]:.4g}")
    return ", ".join(words)


def _flags(facts: Facts) -> list[str]:
    flags = flags_in_words(facts)
    if grid := facts.get("base_grid"):
        flags.append(f"made from the base in 4 bits ({grid}), whose rounding is not counted as change")
    if facts.get("duplicate_of"):
        flags.append(f"duplicate of {facts['duplicate_of']}")
    return flags


def _copy(facts: Facts) -> Any:
    evidence = facts.get("copy_evidence")
    if evidence == SAMPLE:
        return "not proven: it is like the base in all that was read"
    return None if evidence in (UNTRAINED, UNMEASURABLE) else facts.get("is_copy")


def _copy_evidence(facts: Facts) -> str | None:
    evidence: str | None = facts.get("copy_evidence")
    return copy_in_words(evidence) if evidence in (UNTRAINED, UNMEASURABLE) else evidence


_SHOW, _COMPARE, _PAGE = Place.SHOW, Place.COMPARE, Place.PAGE

FACTS = (
    ModelFact("page", _SHOW),
    ModelFact("base", _SHOW),
    ModelFact("relation", _SHOW | _COMPARE | _PAGE),
    ModelFact("adapter_kind", _SHOW),
    ModelFact("parent", _SHOW | _COMPARE | _PAGE, is_usual=lambda facts: facts["parent"] == facts["base"]),
    ModelFact("path", _SHOW, _path),
    ModelFact("author", _SHOW | _COMPARE | _PAGE),
    ModelFact("claimed_by", _PAGE),
    ModelFact("status", _PAGE),
    ModelFact("datasets", _SHOW | _COMPARE),
    ModelFact("probably", _SHOW, most_probable),
    ModelFact("made_from", _SHOW, _made_from),
    ModelFact("conversion", _SHOW, _conversion),
    ModelFact("commit", _PAGE),
    ModelFact("created", _SHOW | _COMPARE | _PAGE),
    ModelFact("modified", _COMPARE | _PAGE),
    ModelFact("downloads", _SHOW | _COMPARE),
    ModelFact("likes", _SHOW | _PAGE),
    ModelFact("gated", _PAGE),
    ModelFact("licence", _SHOW | _COMPARE),
    ModelFact("licence_name", _SHOW | _COMPARE),
    ModelFact("licence_link", _SHOW),
    ModelFact("languages", _COMPARE | _PAGE),
    ModelFact("pipeline_tag", _SHOW | _COMPARE | _PAGE),
    ModelFact("library", _PAGE),
    ModelFact("trigger_words", _SHOW),
    ModelFact("head_class", _COMPARE | _PAGE),
    ModelFact("label_count", _COMPARE | _PAGE),
    ModelFact("label_names", _SHOW | _COMPARE | _PAGE),
    ModelFact("problem_type", _COMPARE | _PAGE),
    ModelFact("change", _SHOW, _change, _is_usual_change),
    ModelFact("change", _COMPARE | _PAGE),
    ModelFact("change_probability", _PAGE),
    ModelFact("change_evidence", _PAGE),
    ModelFact("read", _SHOW, _read, _is_read_in_full),
    ModelFact("read", _COMPARE | _PAGE),
    ModelFact("rows_read", _PAGE),
    ModelFact("delta_norm", _COMPARE | _PAGE),
    ModelFact("delta_norm_error", _COMPARE | _PAGE, _norm_error),
    ModelFact("relative_norm", _SHOW | _COMPARE | _PAGE, _relative_norm),
    ModelFact("base_cosine", _COMPARE | _PAGE),
    ModelFact("dtype", _COMPARE | _PAGE),
    ModelFact("verified", _PAGE),
    ModelFact("duplicate_group", _COMPARE),
    ModelFact("duplicate_of", _PAGE),
    ModelFact("initialisation", _COMPARE),
    ModelFact("start", _SHOW | _COMPARE, _start),
    ModelFact("trace", _SHOW, _trace),
    ModelFact("training", _SHOW | _PAGE, _training),
    ModelFact("training_tool", _COMPARE),
    ModelFact("run", _COMPARE),
    ModelFact("step", _COMPARE),
    ModelFact("epoch", _COMPARE),
    ModelFact("train_loss", _COMPARE),
    ModelFact("eval_loss", _COMPARE),
    ModelFact("learning_rate", _COMPARE),
    ModelFact("stated_base", _COMPARE),
    ModelFact("flags", _SHOW, _flags),
    ModelFact("is_copy", _PAGE, _copy),
    ModelFact("copy_evidence", _PAGE, _copy_evidence),
    ModelFact("is_unrelated", _PAGE),
    ModelFact("is_partly_frozen", _PAGE),
    ModelFact("deleted_at_hub", _PAGE),
    ModelFact("oddities", _PAGE),
    ModelFact("reason", _SHOW | _PAGE),
    ModelFact("detail", _SHOW | _PAGE),
)
