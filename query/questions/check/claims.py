"""Each claim of a card against the weights: a function a claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from query.contract.results import Doc, Rounded
from query.questions.lineage.result import (
    CONFIRMED,
    CONTINUED,
    CONTINUED_OR_RUN,
    CONVERSION,
    COPY,
    LORA,
    MERGE,
    QUANTISED,
    RECAST,
    TUNED,
    UNTRAINED_ADAPTER,
    Edge,
)
from query.questions.lineage.result import (
    CONTRADICTED as CARD_CONTRADICTED,
)
from query.questions.predict.result import NONE_OF_THESE
from query.shared.wording import percent

if TYPE_CHECKING:
    from query.models.reader import AtlasReader
    from query.questions.bom.materials import Material
    from query.questions.check.subject import Subject

AGREES, CONTRADICTED, UNKNOWN = "agrees", "contradicted", "cannot be told"

# A stated data set agrees from this probability on. It is contradicted if another has at least _OTHER_DATASET and it
# has at most _NO_DATASET itself: predictions are calibrated, but a card may name one of several.
_SAME_DATASET, _OTHER_DATASET, _NO_DATASET = 0.5, 0.95, 0.01
# A step below this probability contradicts nothing.
_SURE = 0.9
# A name rounds the number of parameters, and counts embeddings or not.
_LEAST_SIZE, _MOST_SIZE = 0.7, 1.45

# The relation of a card that fits a kind of step in the weights.
_RELATIONS = {
    TUNED: "finetune", CONTINUED: "finetune", CONTINUED_OR_RUN: "finetune", MERGE: "merge", LORA: "finetune",
    CONVERSION: "quantized", COPY: "copy", RECAST: "copy", QUANTISED: "quantized", UNTRAINED_ADAPTER: "adapter",
}  # fmt: skip
# Kinds of change that fit a stated relation; those that a relation says already; and those beside which nothing was
# trained, so that the model is no fine-tune (others may be made of one).
_FITTING = {
    "finetune": ("trained", "adapter merged"), "adapter": ("adapter",), "merge": ("merge",),
    "quantized": ("quantised",),
}  # fmt: skip
_IN_RELATIONS = frozenset({"trained", "adapter", "adapter merged", "merge", "unchanged", "quantised"})
_NOTHING_ELSE = frozenset({"abliterated", "fact edited", "noise added", "embedding rows added", "untrained"})
_LIKELY = 0.5
# Tags and libraries that claim a quantised form, with the dtypes or formats that show it.
_QUANTISED_TAGS = {
    "4-bit": ("nf4", "fp4", "int4", "gguf", "awq", "gptq", "mlx"),
    "8-bit": ("int8", "fp8", "gguf", "gptq", "mlx"),
    "gguf": ("gguf",), "awq": ("awq",), "gptq": ("gptq",), "fp8": ("fp8",), "mlx": ("mlx",),
    "bitsandbytes": ("nf4", "fp4", "int8"),
}  # fmt: skip
_FULL_PRECISION = ("float64", "float32", "float16", "bfloat16")
_OF_ADAPTERS = frozenset({"peft", "adapter-transformers", "lora"})


@dataclass(frozen=True)
class Claim:
    """One claim of a card, and the measurement from weights and files."""

    claim: Annotated[str, Doc("base, parent, relation, change, dataset, licence, quantisation, size or library.")]
    stated: Annotated[str | None, Doc("What the card, the tags, the files or the name say; empty if they do not.")]
    measured: Annotated[str | None, Doc("What weights and files show; empty if they do not.")]
    verdict: Annotated[str, Doc("agrees, contradicted, or cannot be told.")]
    probability: Annotated[
        float | None, Doc("Probability of what was measured, from 0 to 1; empty where none is calibrated."), Rounded(4)
    ]
    evidence: Annotated[str, Doc("Why, in a few words.")]


def claims_of(atlas: AtlasReader, subject: Subject) -> tuple[Claim, ...]:
    """All claims of a model, in a fixed order."""
    return tuple(judge(atlas, subject) for judge in _JUDGES)


def relation_of(subject: Subject) -> str:
    """The relation that the weights show: finetune, adapter, merge, quantized, copy or unrelated; "" if they do not."""
    if subject.weights.is_unrelated:
        return "unrelated"
    if subject.weights.is_adapter:
        return "adapter"
    if subject.weights.is_copy:
        return "copy"
    kinds = {_RELATIONS[edge.kind] for edge in subject.lineage.edges if edge.kind in _RELATIONS}
    return next(iter(kinds)) if len(kinds) == 1 else ""


def kind_of(subject: Subject) -> str:
    """The kind of a model for a policy: what was done to its weights if that is more than training, else its relation.

    "" if the weights show neither.
    """
    change = subject.weights.change
    is_more = change is not None and change.kind not in _IN_RELATIONS and change.probability >= _LIKELY
    return change.kind if change is not None and is_more else relation_of(subject)


def _base(_: AtlasReader, subject: Subject) -> Claim:
    weights, stated = subject.weights, ", ".join(subject.card.bases) or None
    cosine = "" if weights.base_cosine is None else f"cosine {weights.base_cosine:.3f} with the base's weights"
    if weights.is_unrelated:
        verdict = CONTRADICTED if stated else UNKNOWN
        return Claim("base", stated, f"not {subject.base}", verdict, None, weights.evidence)
    if weights.verified or weights.is_copy:
        verdict = AGREES if stated else UNKNOWN
        evidence = cosine or weights.evidence
        return Claim(
            "base", stated, subject.base, verdict, None, evidence if stated else f"{evidence}; it names no base"
        )
    return Claim("base", stated, None, UNKNOWN, None, "an adapter's weights fit every model of the same shapes")


def _parent(_: AtlasReader, subject: Subject) -> Claim:
    parents = [name for name in subject.card.bases if name != subject.base]
    stated = ", ".join(parents) or None
    edges = [edge for edge in subject.lineage.edges if edge.parent not in (None, subject.base)]
    if not edges:
        if not parents:
            return Claim("parent", None, None, UNKNOWN, None, "neither the card nor the weights name a model between")
        evidence = "; ".join(str(edge.evidence) for edge in subject.lineage.edges) or "its weights were not compared"
        return Claim("parent", stated, None, UNKNOWN, _probability(subject.lineage.edges), evidence)
    measured = ", ".join(f"{edge.parent} ({edge.kind})" for edge in edges)
    cards = {edge.card for edge in edges}
    verdict = UNKNOWN
    if CARD_CONTRADICTED in cards and (_probability(edges) or 0) >= _SURE:
        verdict = CONTRADICTED
    elif cards == {CONFIRMED}:
        verdict = AGREES
    return Claim("parent", stated, measured, verdict, _probability(edges), "; ".join(edge.evidence for edge in edges))


def _relation(_: AtlasReader, subject: Subject) -> Claim:
    stated, measured = subject.card.relation or None, relation_of(subject) or None
    edges = subject.lineage.edges
    evidence = subject.weights.evidence or "; ".join(edge.description for edge in edges)
    probability = _probability(edges)
    if subject.weights.is_adapter:
        evidence, probability = f"its files are those of an adapter{'; ' if evidence else ''}{evidence}", None
    if stated is None or measured is None:
        return Claim("relation", stated, measured, UNKNOWN, probability, evidence)
    if stated == measured:
        return Claim("relation", stated, measured, AGREES, probability, evidence)
    is_sure = probability is None or probability >= _SURE
    return Claim("relation", stated, measured, CONTRADICTED if is_sure else UNKNOWN, probability, evidence)


def _change(_: AtlasReader, subject: Subject) -> Claim:
    """What was done to the weights, against the relation that the card states: a fine-tune was trained."""
    stated, change = subject.card.relation or None, subject.weights.change
    if change is None:
        return Claim("change", stated, None, UNKNOWN, None, "its record does not say: build again")
    verdict = UNKNOWN
    if stated is not None and change.probability >= _SURE:
        if stated == "finetune" and change.kind in _NOTHING_ELSE:
            verdict = CONTRADICTED
        elif change.kind in _FITTING.get(stated, ()):
            verdict = AGREES
    return Claim("change", stated, change.kind, verdict, change.probability, change.evidence)


def _dataset(_: AtlasReader, subject: Subject) -> Claim:
    stated = ", ".join(subject.card.datasets) or None
    if subject.prediction is None:
        return Claim("dataset", stated, None, UNKNOWN, None, "no labelled models of other authors to compare with")
    answers = subject.prediction.answers
    best, by_dataset = answers[0], {answer.dataset: answer.probability for answer in answers}
    measured = None if best.dataset == NONE_OF_THESE else best.dataset
    evidence = f"{best.dataset} {percent(best.probability)}"
    if stated is None:
        return Claim("dataset", None, measured, UNKNOWN, best.probability, f"{evidence}; its card names none")
    probabilities = {name: by_dataset[name] for name in subject.card.datasets if name in by_dataset}
    if not probabilities:
        evidence += "; no other model of the atlas names the stated data set"
        return Claim("dataset", stated, measured, UNKNOWN, best.probability, evidence)
    evidence += "; " + ", ".join(f"{name} {percent(value)}" for name, value in probabilities.items())
    verdict = UNKNOWN
    if max(probabilities.values()) >= _SAME_DATASET:
        verdict = AGREES
    elif (
        measured is not None
        and measured not in subject.card.datasets
        and best.probability >= _OTHER_DATASET
        and max(probabilities.values()) <= _NO_DATASET
    ):
        verdict = CONTRADICTED
    return Claim("dataset", stated, measured, verdict, best.probability, evidence)


def _licence(atlas: AtlasReader, subject: Subject) -> Claim:
    """The model's licence against those of everything that it was made from, by the view licence_terms."""
    stated, own_terms = _licence_in_words(subject.own), _terms(atlas, subject.own)
    above = [material for material in subject.chain[1:] if material.licence]
    if not above:
        return Claim("licence", stated, None, UNKNOWN, None, "no licence of what it was made from is known")
    measured = ", ".join(f"{material.model}: {_licence_in_words(material)}" for material in above)
    dropped: list[str] = []
    unknown: list[str] = []
    for material in above:
        terms = _terms(atlas, material)
        if terms is None:
            unknown.append(f"{material.model}'s licence is not judged")
            continue
        if "no derivatives" in terms:
            dropped.append(f"{material.model} allows no derivatives")
        elif stated is not None and own_terms is None and terms:
            unknown.append(f"{stated} is not judged")
        elif lost_terms := sorted(terms - (own_terms or frozenset())):
            dropped.append(f"{', '.join(lost_terms)} of {material.model}")
    if dropped and (stated is not None or any("no derivatives" in text for text in dropped)):
        return Claim("licence", stated, measured, CONTRADICTED, None, f"drops {'; '.join(dropped)}")
    if stated is None:
        return Claim("licence", None, measured, UNKNOWN, None, "; ".join(["its card names none", *dropped]))
    if unknown:
        return Claim("licence", stated, measured, UNKNOWN, None, "; ".join(dict.fromkeys(unknown)))
    return Claim("licence", stated, measured, AGREES, None, "keeps all terms that are passed on")


def _quantisation(_: AtlasReader, subject: Subject) -> Claim:
    card, weights = subject.card, subject.weights
    tags = [tag for tag in _QUANTISED_TAGS if tag in card.tags or tag == card.library.lower()]
    if not tags and card.relation == "quantized":
        tags = ["quantized"]
    stated, measured = ", ".join(tags) or None, weights.dtype or None
    if weights.is_adapter:
        evidence = "an adapter; it does not show the precision of its base"
        return Claim("quantisation", stated, measured, UNKNOWN, None, evidence)
    if measured is None:
        return Claim("quantisation", stated, None, UNKNOWN, None, "the dtype of its weights is not known")
    evidence = f"most weights are stored as {measured}"
    is_full = measured in _FULL_PRECISION
    if stated is None:
        return Claim("quantisation", None, measured, AGREES if is_full else UNKNOWN, None, evidence)
    if any(sign in f"{measured} {' '.join(weights.formats)}" for tag in tags for sign in _QUANTISED_TAGS.get(tag, ())):
        return Claim("quantisation", stated, measured, AGREES, None, evidence)
    return Claim("quantisation", stated, measured, CONTRADICTED if is_full else UNKNOWN, None, evidence)


def _size(_: AtlasReader, subject: Subject) -> Claim:
    stated, measured = subject.card.parameters, subject.weights.parameters
    words = [None if number is None else _parameters(number) for number in (stated, measured)]
    if measured is None:
        evidence = "parameters of adapters and of codes are not counted"
        return Claim("size", words[0], None, UNKNOWN, None, evidence)
    evidence = "bytes of its weight files over bytes of a number"
    if stated is None:
        return Claim("size", None, words[1], UNKNOWN, None, f"{evidence}; its name states none")
    verdict = AGREES if _LEAST_SIZE <= measured / stated <= _MOST_SIZE else CONTRADICTED
    return Claim("size", words[0], words[1], verdict, None, evidence)


def _library(_: AtlasReader, subject: Subject) -> Claim:
    stated, weights = subject.card.library or None, subject.weights
    measured = "peft or another library of adapters" if weights.is_adapter else ", ".join(sorted(weights.formats))
    evidence = "by the names and headers of its files"
    if stated is None:
        return Claim("library", None, measured or None, UNKNOWN, None, f"{evidence}; its card names none")
    name = stated.lower()
    if name in _OF_ADAPTERS:
        return Claim("library", stated, measured, AGREES if weights.is_adapter else CONTRADICTED, None, evidence)
    if name in ("gguf", "mlx", "onnx"):
        agrees = any(name in sign for sign in (*weights.formats, weights.dtype))
        return Claim("library", stated, measured, AGREES if agrees else UNKNOWN, None, evidence)
    if name in ("transformers", "sentence-transformers") and not weights.is_adapter:
        return Claim("library", stated, measured, AGREES, None, evidence)
    return Claim("library", stated, measured, UNKNOWN, None, evidence)


_JUDGES: tuple[Callable[[AtlasReader, Subject], Claim], ...] = (
    _base, _parent, _relation, _change, _dataset, _licence, _quantisation, _size, _library
)  # fmt: skip
CLAIMS = tuple(judge.__name__.removeprefix("_") for judge in _JUDGES)


def _probability(edges: tuple[Edge, ...] | list[Edge]) -> float | None:
    probabilities = [edge.probability for edge in edges if edge.probability is not None]
    return min(probabilities) if probabilities else None


def _licence_in_words(material: Material) -> str | None:
    return ", ".join(stated.name for stated in material.licences) or None


def _terms(atlas: AtlasReader, material: Material) -> frozenset[str] | None:
    """The terms of its licences; None if none of them is judged. A name of the card's own is never permissive."""
    terms: list[str] = []
    is_judged = False
    for stated in material.licences:
        name = stated.name.lower().replace(" ", "-") if stated.is_own_name else stated.name.lower()
        for row in atlas.rows("SELECT terms FROM licence_terms WHERE ? GLOB pattern", [name]):
            if row["terms"] or not stated.is_own_name:
                is_judged = True
                terms += row["terms"]
    return frozenset(terms) if is_judged else None


def _parameters(number: float) -> str:
    return f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.0f}M" if number >= 1e6 else f"{number:,.0f}"
