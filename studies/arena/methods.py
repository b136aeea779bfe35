"""Other methods compared with this project's vectors, on the same models, with the same folds and the same vote."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open
from sklearn.metrics.pairwise import euclidean_distances

from indexer.records.record import Record
from indexer.records.representations.registry import representation_named
from query.shared.statistics.likeness import similarities
from scripts.tables import decimal
from studies.arena import rivals
from studies.arena.scores import Json, Reals, Table, cosines, scores
from studies.arena.subjects import RANK, Subjects, cut, families, read_subjects

OURS, U_PLAIN = "`input`", "U, nothing subtracted"
PREDICT = {
    "together": "`query predict`: vectors, vocabulary and head",
    "vectors": "`query predict`: vectors alone",
    "vocabulary": "`query predict`: vocabulary alone",
    "head": "`query predict`: head alone",
}
COLUMNS = ("models", "purity", "across authors", "`input` on them", "effect", "adapter → full", "retrieval", "accuracy",
           "kB read", "ms a model")  # fmt: skip


def run(out: Path) -> Json:
    """Compare all methods on every family."""
    return {"families": {family.name: measure(read_subjects(family)) for family in families(out)}}


def measure(subjects: Subjects) -> Json:
    """The scores of all methods on one family."""
    labelled = subjects.labelled
    print(f"{subjects.family.name}: {len(labelled.models)} labelled models", flush=True)
    return {
        "models": len(labelled.models),
        "authors": len(set(labelled.authors)),
        "datasets": len(set().union(*labelled.datasets)),
        "adapters": subjects.groups.count("adapter"),
        "methods": measure_methods(subjects),
        "predict": predicted(subjects),
    }


def measure_methods(subjects: Subjects, compared: Iterable[tuple[str, Table]] | None = None) -> dict[str, Json]:
    """By method, its scores, and the purity across authors of `input` on the models that the method has.

    ``compared``: the tables of ``method_tables``, where they were computed before.
    """
    labelled = subjects.labelled
    columns = labelled.datasets, labelled.authors, subjects.groups
    found: dict[str, Json] = {}
    ours: Table | None = None
    for name, table in method_tables(subjects) if compared is None else compared:
        ours = table if name == OURS else ours
        assert ours is not None  # the first
        found[name] = scores(table, *columns)
        same = np.where(np.outer(table.has, table.has), ours.similarity, np.nan)
        found[name]["ours"] = scores(Table(same), *columns, draws=0)["across purity"]
        print(f"  {name}: {decimal(found[name]['across purity'])}", flush=True)
    return found


def predicted(subjects: Subjects) -> dict[str, float]:
    """Accuracy of `query predict` by its evidence, which counts a sweep as one model."""
    return {one.evidence: one.accuracy for one in subjects.evaluation.scores}


def method_tables(subjects: Subjects) -> Iterator[tuple[str, Table]]:
    """Name and table of every method; `input`, as published, first."""
    labelled, records = subjects.labelled, subjects.records
    sample_bytes = float(np.mean([record.bytes_read for record in subjects.sampled]))
    block_bytes = float(np.mean([record.block_bytes for record in records]))
    weight_bytes, card_bytes, head_bytes = (
        float(
            np.mean(
                [
                    sum(path.stat().st_size for one in patterns for path in folder.glob(one))
                    for folder in subjects.folders
                ]
            )
        )
        for patterns in (("*.safetensors", "*.bin"), ("README.md",), ("config.json",))
    )
    names = {name for found in labelled.datasets for name in found} | set(labelled.models)
    plain, hidden = (
        [rivals.card(folder, names, hidden=is_hidden) for folder in subjects.folders] for is_hidden in (False, True)
    )

    def by_vocabulary(vectors: np.ndarray) -> Reals:
        # Sizes and shares of changes are not compared with each other.
        halves = vectors.reshape(len(vectors), 2, -1).any(axis=2).astype(float)
        whole = vectors.astype(np.float64)
        table = without_zeros(similarities(whole, whole, 2).astype(np.float64), whole)
        return np.where(halves @ halves.T > 0, table, np.nan)

    # Name; what is made of the models, and how it is compared; seconds a model before that, and bytes.
    sample = subjects.sample_seconds, sample_bytes
    read, decomposed = (reading_seconds(subjects), block_bytes), (subjects.seconds, block_bytes)
    run, card = (0.0, weight_bytes), (0.0, card_bytes)
    methods: list[tuple[str, Callable[[], Any], Callable[[Any], Reals], tuple[float, float]]] = [
        (OURS, lambda: labelled.table, lambda table: without_zeros(table.similarities(table, np.float64), table.inputs), sample),
        ("`vocabulary`", lambda: labelled.vocabulary, by_vocabulary, sample),
        *((one.name, partial(one.make, records), one.compare, decomposed if one.has_triplets else read) for one in OF_WEIGHTS),
        ("Delta Activations", lambda: rivals.activations(subjects, pooled=False), cosines, run),
        ("Delta Activations, mean of tokens", lambda: rivals.activations(subjects, pooled=True), cosines, run),
        ("card, tf-idf", lambda: rivals.card_similarities(plain), _as_it_is, card),
        ("card, tf-idf, names of data sets removed", lambda: rivals.card_similarities(hidden), _as_it_is, card),
        ("label names of the head", lambda: [one.names if one.kind else None for one in labelled.heads],
         rivals.label_names, (0.0, head_bytes)),
    ]  # fmt: skip
    for name, make, compare, (before, read_bytes) in methods:
        if name == "`vocabulary`" and labelled.vocabulary is None:
            continue
        started = time.process_time()
        made = make()
        seconds = before + (time.process_time() - started) / len(records)
        yield name, Table(compare(made), seconds, read_bytes)


def without_zeros(table: Reals, vectors: np.ndarray) -> Reals:
    """The table with nan for models whose vector is zero."""
    missing = ~vectors.any(axis=1)
    table[missing], table[:, missing] = np.nan, np.nan
    return table


class OfWeights(NamedTuple):
    """A method that needs nothing but the records with every singular triplet.

    ``make``: what it keeps of them; ``compare``: the table of similarities (n, n) of that. ``has_triplets``: it needs a
    singular value decomposition.
    """

    name: str
    make: Callable[[Sequence[Record]], Any]
    compare: Callable[[Any], Reals]
    has_triplets: bool = True


def _as_it_is(table: Reals) -> Reals:
    return table


def _stacked(name: str) -> Callable[[Sequence[Record]], Reals]:
    """The vectors of a representation, of records as they are by default."""

    def make(records: Sequence[Record]) -> Reals:
        return np.stack([representation_named(name).of(cut(record, RANK)) for record in records]).astype(np.float64)

    return make


def _shared(by_matrix: Callable[[Sequence[Record]], Iterator[Reals]]) -> Callable[[Sequence[Record]], Reals]:
    """The mean over the matrices that both models changed."""

    def make(records: Sequence[Record]) -> Reals:
        changed = np.array([[delta.norm > 0 for delta in record.deltas] for record in records])
        return rivals.mean_over_shared(by_matrix(records), changed)

    return make


def _by_components(gram: Reals) -> Reals:
    return cosines(rivals.principal_components(rivals.cosine_of_gram(gram)))


OF_WEIGHTS = (
    OfWeights("`input` version 1", _stacked("input_v1"), cosines),
    OfWeights("the original U_r", _stacked("seed"), cosines),
    OfWeights("the original U_r Σ_r", _stacked("seed_scaled"), cosines),
    OfWeights("V, nothing subtracted", _shared(partial(rivals.one_side, side="v", power=1)), _as_it_is),
    OfWeights(U_PLAIN, _shared(partial(rivals.one_side, side="u", power=1)), _as_it_is),
    OfWeights("δW flattened, cosine", rivals.flattened, rivals.cosine_of_gram, False),
    OfWeights(f"δW flattened, PCA to {rivals.COMPONENTS}", rivals.flattened, _by_components, False),
    OfWeights("spectral statistics", rivals.spectral_statistics, lambda found: -euclidean_distances(found)),
    OfWeights("Arrow", _shared(rivals.arrow), _as_it_is),
    OfWeights("SpectR", _shared(rivals.spectral_routing), _as_it_is),
    OfWeights("tokens of W2T's form, pooled", rivals.pooled_tokens, cosines),
)


def reading_seconds(subjects: Subjects) -> float:
    """Mean processor seconds to read the block matrices of a full fine-tune and subtract the base's, from files in memory."""
    family = subjects.family
    inside = family.plan.architecture.is_in_layers
    with safe_open(family.models / family.plan.base / "model.safetensors", "pt") as file:
        base = {name: file.get_tensor(name) for name in file.keys() if inside(name)}  # noqa: SIM118
    by_end = {name.partition(".")[2]: array for name, array in base.items()}
    found = []
    for folder in subjects.folders:
        path = folder / "model.safetensors"
        if not path.is_file():
            continue
        started = time.process_time()
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                reference = base.get(name, by_end.get(name.partition(".")[2]))
                if inside(name) and reference is not None:
                    (file.get_tensor(name).float() - reference).numpy()
        found.append(time.process_time() - started)
    return float(np.mean(found))


# ---- the page


def tables(figures: Json) -> str:
    """Markdown: means over the families, then purity and accuracy by family."""
    return "\n".join([*_means(figures["families"]), "", *_by_family(figures["families"])])


def _means(found: Mapping[str, Json]) -> Iterator[str]:
    yield "Means over the families; *models*: the share of the labelled models that the method can compare.\n"
    yield f"| method | {' | '.join(COLUMNS)} |\n|{'---|' * (1 + len(COLUMNS))}"

    def mean(name: str, key: str) -> float | None:
        values = [one["methods"][name][key] for one in found.values() if name in one["methods"]]
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else None

    def whole(value: float | None, scale: float) -> str:
        if value is None:
            return "–"
        return f"{value * scale:,.0f}" if value * scale >= 10 else f"{value * scale:.1f}"

    for name in next(iter(found.values()))["methods"]:
        share = np.mean(
            [one["methods"][name]["models"] / one["models"] for one in found.values() if name in one["methods"]]
        )
        keys = ("all purity", "across purity", "ours")
        more = ("to_full", "retrieval", "accuracy")
        cells = [
            f"{share:.2f}".replace("0.", ".", 1),
            *(decimal(mean(name, key)) for key in keys),
            whole(mean(name, "across effect"), 1),
            *(decimal(mean(name, key)) for key in more),
            whole(mean(name, "bytes"), 1e-3),
            whole(mean(name, "seconds"), 1e3),
        ]
        yield f"| {name} | {' | '.join(cells)} |"
    for evidence, words in PREDICT.items():
        values = [one["predict"][evidence] for one in found.values() if one["predict"].get(evidence) is not None]
        accuracy = decimal(float(np.mean(values))) if values else "–"
        yield f"| {words} | | | | | | | | {accuracy} | | |"
    chances = [decimal(float(np.mean([one["methods"][OURS][key] for one in found.values()])))
               for key in ("all chance", "across chance")]  # fmt: skip
    yield f"| chance | | {chances[0]} | {chances[1]} | | | | | | | |"


def _by_family(found: Mapping[str, Json]) -> Iterator[str]:
    yield "By family, purity across authors / accuracy of the vote:\n"
    heads = [f"{name} ({one['models']} models, {one['datasets']} data sets)" for name, one in found.items()]
    yield f"| method | {' | '.join(heads)} |\n|{'---|' * (1 + len(found))}"
    for name in next(iter(found.values()))["methods"]:
        cells = []
        for one in found.values():
            score = one["methods"].get(name)
            cells.append("–" if score is None else f"{decimal(score['across purity'])} / {decimal(score['accuracy'])}")
        yield f"| {name} | {' | '.join(cells)} |"
