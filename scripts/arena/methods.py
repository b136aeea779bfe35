"""Other methods compared with this project's vectors, on the same models, with the same folds and the same vote."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from sklearn.metrics.pairwise import euclidean_distances

from indexer.records.record import Record
from indexer.records.representation import representation_named
from query.statistics.likeness import similarities
from scripts.arena import rivals
from scripts.arena.scores import Json, Reals, Table, cosines, scores
from scripts.arena.subjects import Subjects, cut, families, read_subjects
from scripts.tables import decimal

RANK = 8  # of records by default
OURS = "`input`"
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
    at_rank = [cut(record, RANK) for record in records]
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

    def ours(vectors: np.ndarray, blocks: int) -> Reals:
        whole = vectors.astype(np.float64)
        table: Reals = similarities(whole, whole, blocks).astype(np.float64)
        missing = ~whole.any(axis=1)
        table[missing], table[:, missing] = np.nan, np.nan
        return table

    def by_vocabulary(vectors: np.ndarray) -> Reals:
        # Sizes and shares of changes are not compared with each other.
        halves = vectors.reshape(len(vectors), 2, -1).any(axis=2).astype(float)
        return np.where(halves @ halves.T > 0, ours(vectors, 2), np.nan)

    def by_components(gram: Reals) -> Reals:
        return cosines(rivals.principal_components(rivals.cosine_of_gram(gram)))

    def as_it_is(table: Reals) -> Reals:
        return table

    def stacked(name: str) -> Reals:
        return np.stack([representation_named(name).of(record) for record in at_rank]).astype(np.float64)

    def shared(by_matrix: Callable[[Sequence[Record]], Iterator[Reals]]) -> Reals:
        return rivals.mean_over_shared(by_matrix(records), subjects.changed)

    # Name; what is made of the models, and how it is compared; seconds a model before that, and bytes.
    sample = subjects.sample_seconds, sample_bytes
    read, decomposed = (reading_seconds(subjects), block_bytes), (subjects.seconds, block_bytes)
    run, card = (0.0, weight_bytes), (0.0, card_bytes)
    methods: list[tuple[str, Callable[[], Any], Callable[[Any], Reals], tuple[float, float]]] = [
        (OURS, lambda: labelled.vectors, lambda vectors: ours(vectors, labelled.blocks), sample),
        ("`input` version 1", lambda: stacked("input_v1"), cosines, decomposed),
        ("`vocabulary`", lambda: labelled.vocabulary, by_vocabulary, sample),
        ("the original U_r", lambda: stacked("seed"), cosines, decomposed),
        ("the original U_r Σ_r", lambda: stacked("seed_scaled"), cosines, decomposed),
        ("δW flattened, cosine", lambda: rivals.flattened(records), rivals.cosine_of_gram, read),
        (f"δW flattened, PCA to {rivals.COMPONENTS}", lambda: rivals.flattened(records), by_components, read),
        ("spectral statistics", lambda: rivals.spectral_statistics(records), lambda one: -euclidean_distances(one), decomposed),
        ("Arrow", lambda: shared(rivals.arrow), as_it_is, decomposed),
        ("SpectR", lambda: shared(rivals.spectral_routing), as_it_is, decomposed),
        ("tokens of W2T's form, pooled", lambda: rivals.pooled_tokens(records), cosines, decomposed),
        ("Delta Activations", lambda: rivals.activations(subjects, pooled=False), cosines, run),
        ("Delta Activations, mean of tokens", lambda: rivals.activations(subjects, pooled=True), cosines, run),
        ("card, tf-idf", lambda: rivals.card_similarities(plain), as_it_is, card),
        ("card, tf-idf, names of data sets removed", lambda: rivals.card_similarities(hidden), as_it_is, card),
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
