"""Other methods compared with this project's vectors, on the same models, with the same folds and the same vote."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

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
    labelled, records, count = subjects.labelled, subjects.records, len(subjects.records)
    at_rank = [cut(record, RANK) for record in records]
    sample = subjects.sample_seconds
    sample_bytes = float(np.mean([record.bytes_read for record in subjects.sampled]))
    read = reading_seconds(subjects)
    decomposed = subjects.seconds
    block_bytes = float(np.mean([record.block_bytes for record in records]))

    def ours(vectors: np.ndarray, blocks: int) -> Reals:
        whole = vectors.astype(np.float64)
        table: Reals = similarities(whole, whole, blocks).astype(np.float64)
        missing = ~whole.any(axis=1)
        table[missing], table[:, missing] = np.nan, np.nan
        return table

    yield OURS, Table(ours(labelled.vectors, labelled.blocks), sample, sample_bytes)
    vectors, seconds = rivals.timed(lambda: _stacked("input_v1", at_rank), count)
    yield "`input` version 1", Table(cosines(vectors), decomposed + seconds, block_bytes)
    if labelled.vocabulary is not None:
        yield "`vocabulary`", Table(_by_halves(ours(labelled.vocabulary, 2), labelled.vocabulary), sample, sample_bytes)
    for name, words in (("seed", "the original U_r"), ("seed_scaled", "the original U_r Σ_r")):
        vectors, seconds = rivals.timed(lambda name=name: _stacked(name, at_rank), count)  # type: ignore[misc]
        yield words, Table(cosines(vectors), decomposed + seconds, block_bytes)

    gram, seconds = rivals.timed(lambda: rivals.flattened(records), count)
    flat = rivals.cosine_of_gram(gram)
    yield "δW flattened, cosine", Table(flat, read + seconds, block_bytes)
    components = rivals.principal_components(flat)
    yield f"δW flattened, PCA to {rivals.COMPONENTS}", Table(cosines(components), read + seconds, block_bytes)
    statistics, seconds = rivals.timed(lambda: rivals.spectral_statistics(records), count)
    yield "spectral statistics", Table(rivals.minus_distances(statistics), decomposed + seconds, block_bytes)
    for words, by_matrix in (("Arrow", rivals.arrow), ("SpectR", rivals.spectral_routing)):
        shared, seconds = rivals.timed(
            lambda by=by_matrix: rivals.mean_over_shared(by(records), subjects.changed), count  # type: ignore[misc]
        )  # fmt: skip
        yield words, Table(shared, decomposed + seconds, block_bytes)
    tokens, seconds = rivals.timed(lambda: rivals.pooled_tokens(records), count)
    yield "tokens of W2T's form, pooled", Table(cosines(tokens), decomposed + seconds, block_bytes)

    weights = float(np.mean([_size(folder, ("*.safetensors", "*.bin")) for folder in subjects.folders]))
    for pooled, words in ((False, "Delta Activations"), (True, "Delta Activations, mean of tokens")):
        states, seconds = rivals.timed(lambda pooled=pooled: rivals.activations(subjects, pooled=pooled), count)  # type: ignore[misc]
        yield words, Table(cosines(states), seconds, weights)

    card_bytes = float(np.mean([_size(folder, ("README.md",)) for folder in subjects.folders]))
    for is_hidden, words in ((False, "card, tf-idf"), (True, "card, tf-idf, names of data sets removed")):
        names = {name for found in labelled.datasets for name in found} | set(labelled.models)
        texts = [rivals.card(folder, names, hidden=is_hidden) for folder in subjects.folders]
        found, seconds = rivals.timed(lambda texts=texts: rivals.card_similarities(texts), count)  # type: ignore[misc]
        yield words, Table(found, seconds, card_bytes)
    head_bytes = float(np.mean([_size(folder, ("config.json",)) for folder in subjects.folders]))
    yield (
        "label names of the head",
        Table(rivals.label_names([one.names if one.kind else None for one in labelled.heads]), 0.0, head_bytes),
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


def _stacked(name: str, records: Any) -> Reals:
    representation = representation_named(name)
    return np.stack([representation.of(record) for record in records]).astype(np.float64)


def _by_halves(table: Reals, vocabulary: np.ndarray) -> Reals:
    """Sizes and shares of changes are not compared with each other."""
    halves = vocabulary.reshape(len(vocabulary), 2, -1).any(axis=2).astype(float)
    return np.where(halves @ halves.T > 0, table, np.nan)


def _size(folder: Path, patterns: tuple[str, ...]) -> int:
    return sum(path.stat().st_size for pattern in patterns for path in folder.glob(pattern))


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
