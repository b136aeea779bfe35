"""What the words say across bases: every pair of bases, and what each step of the method is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexer.records.representations.words import WORDS
from indexer.records.store import RecordStore
from indexer.vectors.centre import unit_norm
from query.models.across import WordPopulation, all_bases
from query.models.reader import AtlasReader
from query.questions.purity.across import purity_across
from scripts.tables import decimal, markdown

Json = dict[str, Any]
Floats = NDArray[np.floating[Any]]

# Data sets of the same texts with other labels, which words cannot tell apart, count as one.
SAME_TEXT = {"docs/numeric-kinds": "docs/numeric-docstrings", "errors/raised-by": "errors/exception-types"}
LENGTHS = (1_024, 2_048, 4_096)  # of hashed vectors
FEWER = (25, 50, 100)  # common words


def labels_of(population: WordPopulation, *, by_text: bool) -> NDArray[np.str_]:
    """The first data set of each model; ``by_text``: those of the same text as one."""
    names = [min(names) for names in population.datasets]
    return np.array([SAME_TEXT.get(name, name) if by_text else name for name in names])


def matches(similarities: Floats, labels: NDArray[np.str_], others: NDArray[np.str_]) -> tuple[float, float, float]:
    """Of models with m others of their label: how often the nearest has it, the share among m, and among all."""
    found = []
    for row, label in zip(similarities, labels.tolist(), strict=True):
        is_match = (others == label)[np.argsort(-row, kind="stable")]
        if is_match.any():
            found.append((is_match[0], is_match[: is_match.sum()].mean(), is_match.mean()))
    nearest, purity, chance = np.mean(found, axis=0).tolist()
    return nearest, purity, chance


def pairs(population: WordPopulation) -> Iterator[tuple[int, int, NDArray[np.intp], NDArray[np.intp]]]:
    """The ordered pairs of different bases that can be compared, with the rows of their models."""
    table = population.table
    for base in np.unique(table.base).tolist():
        for other in np.unique(table.base).tolist():
            if base != other and table.space.are_comparable(base, other):
                yield base, other, np.flatnonzero(table.base == base), np.flatnonzero(table.base == other)


def measure(folder: Path) -> Json:
    """All figures of the page, from the atlas in ``folder``."""
    with AtlasReader(folder) as atlas:
        population = all_bases(atlas, documented=True)
        table = population.table
        by_text, as_named = (labels_of(population, by_text=flag) for flag in (True, False))
        scores = table.similarities(table, np.float64)
        rows = []
        for base, other, own, others in pairs(population):
            between = scores[np.ix_(own, others)]
            nearest, purity, chance = matches(between, by_text[own], by_text[others])
            plain = matches(between, as_named[own], as_named[others])
            rows.append(
                {
                    "base": table.space.bases[base], "other": table.space.bases[other], "models": len(own),
                    "words": len(table.space.common(base, other)), "nearest": nearest, "purity": purity,
                    "chance": chance, "nearest_named": plain[0], "purity_named": plain[1],
                }
            )  # fmt: skip
        together = purity_across(population)
        return {
            "pairs": rows,
            "purity": {"purity": together.purity, "chance": together.chance, "p_value": together.p_value,
                       "across_authors": together.cross_author.purity},
            "variants": variants(atlas, population, by_text),
            "strangers": strangers(population, by_text),
        }  # fmt: skip


def strangers(population: WordPopulation, labels: NDArray[np.str_]) -> dict[str, float]:
    """How often the nearest of models on other texts, of another base, is rarer than a chance of .05, .1 or .5.

    The chance of the nearest of n is 1 − (1 − share)ⁿ, where share is that of all other pairs of strangers.
    """
    table, found = population.table, []
    for base, other, own, others in pairs(population):
        similarities = table.space.similarities(base, table.inputs[own], other, table.inputs[others])
        are_strangers = labels[own][:, None] != labels[others][None, :]
        for row in range(len(own)):
            rest = np.delete(np.arange(len(own)), row)
            null = np.sort(similarities[rest][are_strangers[rest]])
            best = similarities[row][are_strangers[row]].max()
            share = (1 + len(null) - np.searchsorted(null, best)) / (1 + len(null))
            found.append(1 - (1 - share) ** int(are_strangers[row].sum()))
    return {str(level): float(np.mean(np.array(found) <= level)) for level in (0.05, 0.1, 0.5)}


def variants(atlas: AtlasReader, population: WordPopulation, labels: NDArray[np.str_]) -> Json:
    """The mean over all pairs of bases of how often the nearest matches, and of purity, in other ways."""
    table = population.table
    space, count = table.space, len(population.ids)
    keys = {row["model_id"]: row["record_key"] for row in atlas.rows("SELECT model_id, record_key FROM fine_tunes")}
    store, raw = RecordStore(atlas.folder), np.zeros((count, table.inputs.shape[1]))
    for row in range(count):
        base = space.bases[int(table.base[row])]
        words = tuple(atlas.base_row(base)["words"])
        vector = WORDS.with_words(words).vector(store.read(keys[int(population.ids[row])]))
        raw[row, : len(vector)] = vector

    def mean_of(compare: Callable[[int, int, NDArray[np.intp], NDArray[np.intp]], Floats]) -> tuple[float, float]:
        each = [matches(compare(*pair), labels[pair[2]], labels[pair[3]])[:2] for pair in pairs(population)]
        nearest, purity = np.mean(each, axis=0).tolist()
        return nearest, purity

    def common_parts(vectors: Floats, part: Callable[[Floats], Floats], most: int | None = None) -> Any:
        def compare(base: int, other: int, own: NDArray[np.intp], others: NDArray[np.intp]) -> Floats:
            common = space.common(base, other)
            chosen = np.arange(len(common))
            if most is not None:  # the same words in both directions
                chosen = np.random.default_rng(most).permutation(len(common))[:most]
            sides = vectors[own][:, common.columns[chosen]], vectors[others][:, common.other_columns[chosen]]
            products: Floats = unit_norm(part(sides[0])) @ unit_norm(part(sides[1])).T
            return products

        return compare

    def hashed(length: int) -> Any:
        def compare(base: int, other: int, own: NDArray[np.intp], others: NDArray[np.intp]) -> Floats:
            sides = []
            for number, rows in ((base, own), (other, others)):
                vectors = table.inputs[rows][:, : len(space.words[number])].astype(np.float64)
                sides.append(unit_norm(vectors @ _hashes(space.words[number], length)))
            products: Floats = sides[0] @ sides[1].T
            return products

        return compare

    def above(values: Floats) -> Floats:
        return np.maximum(values, 0)

    def whole(values: Floats) -> Floats:
        return values

    found = {
        "words in common (published)": mean_of(common_parts(table.inputs, whole)),
        "words in common, only the parts above zero": mean_of(common_parts(table.inputs, above)),
        "the same, no centre subtracted": mean_of(common_parts(raw, whole)),
    }
    for length in LENGTHS:
        found[f"all words, hashed to {length:,} numbers"] = mean_of(hashed(length))
    for most in FEWER:
        found[f"{most} of the words in common"] = mean_of(common_parts(table.inputs, whole, most))
    return {name: {"nearest": nearest, "purity": purity} for name, (nearest, purity) in found.items()}


def _hashes(words: Sequence[str], length: int) -> NDArray[np.float64]:
    """(words, length): one entry of 1 or -1 for each word (Weinberger et al., 2009)."""
    matrix = np.zeros((len(words), length))
    for row, word in enumerate(words):
        digest = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")
        matrix[row, (digest >> 1) % length] = 1 if digest & 1 else -1
    return matrix


def tables(figures: Json) -> dict[str, str]:
    """The tables of the page, by the name of their place on it."""
    rows = [
        [row["base"], row["other"], str(row["words"]), decimal(row["nearest"]), decimal(row["purity"]),
         decimal(row["chance"]), decimal(row["nearest_named"]), decimal(row["purity_named"])]
        for row in figures["pairs"]
    ]  # fmt: skip
    heads = ["models of", "nearest models of", "words in common", "nearest", "purity", "chance", "nearest, as named",
             "purity, as named"]  # fmt: skip
    ways = [[name, decimal(row["nearest"]), decimal(row["purity"])] for name, row in figures["variants"].items()]
    return {
        "across:pairs": markdown([heads, *rows]),
        "across:variants": markdown([["compared by", "nearest", "purity"], *ways]),
    }
