"""Models of different bases, compared by the words that both moved.

A vector of the representation ``words`` has a number for each word of its base: how much farther it moved than in other
models of this base. Two models are compared by the cosine over the words that both bases have. Words that neither model
moved are weak evidence: two texts in other languages than these words do not move them either. So a model counts only
if it moved some of the common words farther than others did.

How similar strangers are depends on the two bases: on how many words they have in common, and which. So similarities of
different pairs of bases are compared after subtracting the median of that pair, in units of the spread below it.
Matches lie above the median and change neither. No labels are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from indexer.errors import AtlasError, Call, Text
from indexer.records.representations.words import WORDS, different_words
from indexer.shared_state import one_blas_thread
from indexer.vectors.background import Background, are_unrelated, author_groups
from indexer.vectors.centre import unit_norm
from indexer.vectors.stored import Vectors, positions
from indexer.vectors.table import VectorTable
from indexer.vectors.ties import pair_products
from query.models.population import LeftOut, Population, distinct, read_population
from query.shared.wording import counted

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

Floats = NDArray[np.float32]
Integers = NDArray[np.intp]

# Two bases with fewer words in common among the rows that are read are not compared. With 50 words about three in four
# neighbours share a data set, with 100 nine in ten (docs/evidence/across-bases.md).
FEWEST_WORDS, FEW_WORDS = 50, 100
# A model that moved fewer of the common words farther than others is not compared: it is no evidence about them.
FEWEST_MOVED = 5
# Models of a base whose similarities give the background of a pair of bases and, on a map, its median and its spread; a
# search takes these two from fewer.
MOST_SAMPLED, _SCALED = 512, 64
_LOWER = 0.1587  # a standard deviation below the median of a normal distribution
_LEAST_SPREAD = 1e-3
# Similarities as points of a map need a scale with most of them below 1.
_DEVIATIONS = 8.0


@dataclass(frozen=True)
class CommonWords:
    """The words that two bases have in common, and their columns in the vectors of either."""

    words: tuple[str, ...]
    columns: Integers
    other_columns: Integers

    @classmethod
    def of(cls, words: Sequence[str], other_words: Sequence[str]) -> CommonWords:
        """From the different words of two bases, both in alphabetical order."""
        numbers, other_numbers = (
            {word: column for column, word in enumerate(vocabulary)} for vocabulary in (words, other_words)
        )
        common_words = tuple(word for word in words if word in other_numbers)
        return cls(
            common_words,
            np.array([numbers[word] for word in common_words], dtype=np.intp),
            np.array([other_numbers[word] for word in common_words], dtype=np.intp),
        )

    def __len__(self) -> int:
        return len(self.words)


def common_parts(vectors: NDArray[np.floating[Any]], columns: Integers, dtype: Any = np.float32) -> NDArray[Any]:
    """(n, words) the parts of (n, d) vectors at ``columns``, of unit norm.

    Zeros for a model that moved fewer than FEWEST_MOVED of these words farther than others of its base.
    """
    chosen_columns = vectors[:, columns].astype(dtype)
    chosen_columns[np.count_nonzero(chosen_columns > 0, axis=1) < FEWEST_MOVED] = 0
    return unit_norm(chosen_columns)


@dataclass(frozen=True)
class PairScale:
    """The median of the similarities of models of two bases, and their spread below it."""

    centre: float = 0.0
    spread: float = 1.0

    @classmethod
    def of(cls, similarities: NDArray[np.floating[Any]]) -> PairScale:
        """From the similarities of some pairs; those that are zero, of models that cannot be compared, do not count."""
        comparable = np.sort(similarities[similarities != 0])
        if len(comparable) < 2:
            return cls()
        median, low = (float(comparable[int(share * (len(comparable) - 1))]) for share in (0.5, _LOWER))
        return cls(median, max(median - low, _LEAST_SPREAD))

    def score(self, similarities: NDArray[Any]) -> NDArray[Any]:
        """Similarities in spreads above the median."""
        scores: NDArray[Any] = (similarities - self.centre) / self.spread
        return scores


@dataclass(frozen=True, eq=False)
class WordSpace:
    """The bases of an atlas that are compared: ``words``, the different words of each; ``scales`` of pairs of them.

    ``is_across_only``: models of one base are not compared with each other.
    """

    bases: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    is_across_only: bool = False
    scales: dict[tuple[int, int], PairScale] = field(default_factory=dict)
    _common: dict[tuple[int, int], CommonWords] = field(default_factory=dict)

    def common(self, base: int, other_base: int) -> CommonWords:
        """The words that two bases have in common, by their numbers."""
        if (base, other_base) not in self._common:
            self._common[base, other_base] = CommonWords.of(self.words[base], self.words[other_base])
        return self._common[base, other_base]

    def are_comparable(self, base: int, other_base: int) -> bool:
        """Whether two bases have enough words in common."""
        if self.is_across_only and base == other_base:
            return False
        return len(self.common(base, other_base)) >= FEWEST_WORDS

    def scale(self, base: int, other_base: int) -> PairScale:
        """The scale of a pair of bases, in either order."""
        return self.scales.get((min(base, other_base), max(base, other_base)), PairScale())

    def similarities(
        self, base: int, vectors: NDArray[Any], other_base: int, other_vectors: NDArray[Any], dtype: Any = np.float32
    ) -> NDArray[Any]:
        """(n, m) similarities of models of two bases, from -1 to 1; 0 if they cannot be compared."""
        if not self.are_comparable(base, other_base):
            return np.zeros((len(vectors), len(other_vectors)), dtype)
        common = self.common(base, other_base)
        moved = common_parts(vectors, common.columns, dtype), common_parts(other_vectors, common.other_columns, dtype)
        products: NDArray[Any] = moved[0] @ moved[1].T
        return np.clip(products, -1, 1)


def word_space(atlas: AtlasReader) -> WordSpace:
    """The bases of the atlas whose models can be compared with those of others. Raises AtlasError if there is none."""
    rows = atlas.rows(
        "SELECT base, words FROM bases JOIN representations USING (base) WHERE representation = ? "
        "AND words IS NOT NULL ORDER BY base",
        [WORDS.name],
    )
    if not rows:
        raise AtlasError(
            "This atlas has no vectors by which models of different bases are compared.",
            Text("Build it again, which reads rows of words: ", Call("build", "ID")),
        )
    return WordSpace(tuple(row["base"] for row in rows), tuple(different_words(tuple(row["words"])) for row in rows))


def too_few_words(space: WordSpace, base: int, other_base: int) -> str:
    """A clause on why two bases are not compared."""
    count = counted(len(space.common(base, other_base)), "word")
    return f"{space.bases[base]} and {space.bases[other_base]} have {count} in common among the rows that are read"


@dataclass(frozen=True, eq=False)
class Sample:
    """Some models of a base that name a dataset: their vectors, and the author and the datasets of each."""

    vectors: Floats
    facts: list[tuple[str, set[str]]]


def samples_of(atlas: AtlasReader, bases: Sequence[str]) -> dict[str, Sample]:
    """For each base at most MOST_SAMPLED models (fewer if there are many bases) that name a dataset and have a vector.

    Copies, unrelated models and repeats are left out.
    """
    columns = atlas.connection.execute(
        "SELECT base, model_id FROM fine_tunes JOIN records USING (model_id) "
        "WHERE base IN (SELECT unnest($1::VARCHAR[])) AND status = 'indexed' AND NOT is_copy AND NOT is_unrelated "
        "AND duplicate_of IS NULL AND NOT is_earlier_checkpoint AND model_id IN "
        "(SELECT model_id FROM model_datasets WHERE dataset IS NOT NULL) ORDER BY model_id",
        [list(bases)],
    ).fetchnumpy()
    chosen, most = {}, int(MOST_SAMPLED / len(bases) ** 0.5)
    for base in bases:
        index = atlas.index(base, WORDS.name)
        ids = np.asarray(columns["model_id"], dtype=np.int64)[np.asarray(columns["base"]) == base]
        chosen[base] = _some(ids[positions(ids, index.ids)], most)
    rows = atlas.rows(
        "SELECT model_id, any_value(author) AS author, list(DISTINCT dataset) AS datasets FROM fine_tunes "
        "JOIN model_datasets USING (model_id) WHERE dataset IS NOT NULL "
        "AND model_id IN (SELECT unnest($1::INTEGER[])) GROUP BY model_id",
        [[model_id for ids in chosen.values() for model_id in ids.tolist()]],
    )
    facts = {row["model_id"]: (row["author"], set(row["datasets"])) for row in rows}
    return {
        base: Sample(atlas.index(base, WORDS.name).rows(ids).matrix, [facts[model_id] for model_id in ids.tolist()])
        for base, ids in chosen.items()
    }


def _some(rows: NDArray[Any], most: int = MOST_SAMPLED) -> NDArray[Any]:
    """At most ``most`` of these rows, drawn with a fixed seed, in order."""
    if len(rows) <= most:
        return rows
    return rows[np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))]


def background_of(
    similarities: NDArray[np.floating[Any]], sample: Sample, other_sample: Sample, *, is_own: bool
) -> Background | None:
    """The background of a pair of bases, from the similarities of two samples; None if too few are strangers.

    ``is_own``: both are the same models, so that each pair counts once.
    """
    strangers = are_unrelated(sample.facts, other_sample.facts)
    if is_own:
        strangers = np.triu(strangers, 1)
    rows, columns = np.nonzero(strangers)
    groups = author_groups([author for author, _ in (*sample.facts, *other_sample.facts)])
    return Background.of(similarities[rows, columns], (groups[rows], groups[len(sample.facts) + columns]))


# ---- all models of all bases side by side


@dataclass(frozen=True, eq=False)
class WordTable(VectorTable):
    """Models of several bases: ``base`` (n,) is the number of each model's base in ``space``.

    ``inputs`` (n, d): vectors of ``words``, zeros behind the words of a base with fewer of them. Similarities are
    scores of their pair of bases in units of _DEVIATIONS, from -1 to 1.
    """

    base: Integers = field(default_factory=lambda: np.zeros(0, np.intp))
    space: WordSpace = field(default_factory=lambda: WordSpace((), ()))

    @property
    def is_plain(self) -> bool:
        """Always False, because inner products of whole vectors are no similarities here."""
        return False

    def take(self, rows: Any) -> WordTable:
        """The models at these rows."""
        return replace(self, inputs=self.inputs[rows], base=self.base[rows])

    def with_last(self, other: VectorTable) -> WordTable:
        """These models, followed by those of another table of the same space."""
        assert isinstance(other, WordTable)
        inputs = np.concatenate([self.inputs, other.inputs])
        return replace(self, inputs=inputs, base=np.concatenate([self.base, other.base]))

    def similarities(self, other: VectorTable, dtype: Any = np.float32) -> NDArray[np.floating[Any]]:
        """(n, m) with the models of another table."""
        assert isinstance(other, WordTable)
        scores = np.zeros((len(self), len(other)), dtype)
        for base in np.unique(self.base).tolist():
            rows = np.flatnonzero(self.base == base)
            for other_base in np.unique(other.base).tolist():
                columns = np.flatnonzero(other.base == other_base)
                similarities = self.space.similarities(
                    base, self.inputs[rows], other_base, other.inputs[columns], dtype
                )
                scores[np.ix_(rows, columns)] = self._scored(similarities, base, other_base)
        return scores

    def pairs(self, rows: NDArray[np.int64], other: VectorTable, columns: NDArray[np.int64]) -> NDArray[np.float64]:
        """(p,) similarities in double precision of models at ``rows`` with those of another table at ``columns``."""
        assert isinstance(other, WordTable)
        scores = np.zeros(len(rows))
        codes = self.base[rows] * len(self.space.bases) + other.base[columns]
        for code in np.unique(codes).tolist():
            base, other_base = divmod(code, len(self.space.bases))
            chosen = np.flatnonzero(codes == code)
            similarities = np.zeros(len(chosen))
            if self.space.are_comparable(base, other_base):
                common = self.space.common(base, other_base)
                rows_needed, near_rows = np.unique(rows[chosen], return_inverse=True)
                columns_needed, far_rows = np.unique(columns[chosen], return_inverse=True)
                moved = common_parts(self.inputs[rows_needed], common.columns, np.float64)
                other_moved = common_parts(other.inputs[columns_needed], common.other_columns, np.float64)
                similarities = np.clip(pair_products(moved, near_rows, other_moved, far_rows), -1, 1)
            scores[chosen] = self._scored(similarities, base, other_base)
        return scores

    def unscaled(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
        """(p,) the similarities of pairs of these models, from -1 to 1, without the scales of pairs of bases."""
        space = replace(self.space, scales={})
        scores = replace(self, space=space).pairs(rows, replace(self, space=space), columns)
        return scores * _DEVIATIONS

    def _scored(self, similarities: NDArray[Any], base: int, other_base: int) -> NDArray[Any]:
        scores = self.space.scale(base, other_base).score(similarities) / _DEVIATIONS
        # A model that cannot be compared is as near as a stranger.
        return np.where(similarities != 0, np.clip(scores, -1, 1), 0)


@dataclass(frozen=True)
class WordPopulation(Population):
    """The distinct models of several bases; ``base`` names these, and ``words`` is the table of their models."""

    words: WordTable = field(default_factory=lambda: WordTable(np.zeros((0, 0), np.float32)))

    @property
    def table(self) -> WordTable:
        """The vectors, to be compared."""
        return self.words

    def across_only(self) -> WordTable:
        """The table, in which models of one base are not compared with each other."""
        return replace(self.words, space=replace(self.words.space, is_across_only=True))


def all_bases(atlas: AtlasReader, *, documented: bool = False) -> WordPopulation:
    """The distinct models of all bases that have a vector of words, by id.

    ``documented``: only those that name a dataset; the scales are those of all. Raises AtlasError if the models that
    have a vector are of fewer than two bases.
    """
    space = word_space(atlas)
    populations = [distinct(read_population(atlas, base, WORDS.name)) for base in space.bases]
    holding = [number for number, population in enumerate(populations) if len(population.ids)]
    if len(holding) < 2:
        raise AtlasError(
            f"Models of {counted(len(holding), 'base')} of this atlas have vectors of words; comparing needs two.",
            Text("Index models of another base: ", Call("build", "ID")),
        )
    for index, number in enumerate(holding):
        for other_number in holding[index:]:
            if space.are_comparable(number, other_number):
                first, second = _some(populations[number].vectors), _some(populations[other_number].vectors)
                similarities = space.similarities(number, first, other_number, second)
                is_own = number == other_number
                space.scales[number, other_number] = PairScale.of(
                    similarities[np.triu_indices(len(first), 1)] if is_own else similarities.ravel()
                )
    width = max(len(words) for words in space.words)
    base = np.repeat(np.arange(len(populations)), [len(population.ids) for population in populations])
    ids = np.concatenate([population.ids for population in populations])
    order = np.argsort(ids, kind="stable")
    inputs = np.zeros((len(ids), width), np.float32)
    for number in holding:
        vectors = populations[number].vectors
        inputs[base == number, : vectors.shape[1]] = vectors
    names = [space.bases[number] for number in holding]
    every = [(population, row) for population in populations for row in range(len(population.ids))]
    if documented:
        order = np.array([index for index in order if every[index][0].datasets[every[index][1]]], dtype=np.intp)
    rows = [every[index] for index in order.tolist()]
    counts = {name: sum(getattr(population.left_out, name) for population in populations) for name in vars(LeftOut())}
    return WordPopulation(
        base=" and ".join(names) if len(names) == 2 else f"{len(names)} bases",
        representation=WORDS.name,
        vectors=inputs[order],
        ids=ids[order],
        models=[population.models[row] for population, row in rows],
        authors=[population.authors[row] for population, row in rows],
        datasets=[population.datasets[row] for population, row in rows],
        relations=[population.relations[row] for population, row in rows],
        is_copy=np.zeros(len(rows), dtype=bool),
        is_unrelated=np.zeros(len(rows), dtype=bool),
        group=[None] * len(rows),
        representative=np.ones(len(rows), dtype=bool),
        left_out=LeftOut(**counts),
        words=WordTable(inputs[order], base=base[order], space=space),
    )


# ---- the models of all bases nearest to one


@dataclass(frozen=True)
class WordNeighbour:
    """A model that moved the same words as another.

    ``similarity``: from -1 to 1; ``score``: in spreads above the median of the two bases. ``background``, its upper
    end, and the number of ``pairs``: as for models of one base. ``searched``: the models of its base that were
    compared. ``words``: those that add most to the similarity, the first most.
    """

    model_id: int
    base: str
    similarity: float
    score: float
    background: float | None
    background_high: float | None
    pairs: int | None
    searched: int
    words: tuple[str, ...]


_WORDS_NAMED = 8


def nearest_by_words(
    atlas: AtlasReader,
    base: str,
    vector: Floats,
    k: int,
    allowed: NDArray[np.int64],
    among: str | None = None,
) -> tuple[list[WordNeighbour], list[str]]:
    """The ``k`` models of all bases, or of the base ``among``, that are most like a vector (d,) of ``base``; and notes.

    Nearest first by score, ties by id. ``allowed``: the ids of models that count, ascending. Raises AtlasError if there
    is no base to compare with, because too few words are common.
    """
    space = word_space(atlas)
    if base not in space.bases or (among is not None and among not in space.bases):
        raise AtlasError(
            f"Models of {base if base not in space.bases else among} have no vectors of words.",
            "Its tokenizer is not known, or it has no full fine-tunes.",
        )
    base_number = space.bases.index(base)
    candidate_bases = [number for number in range(len(space.bases)) if among in (None, space.bases[number])]
    numbers = [number for number in candidate_bases if space.are_comparable(base_number, number)]
    apart = [too_few_words(space, base_number, number) for number in candidate_bases if number not in numbers]
    if not numbers or (numbers == [base_number] and among != base):
        why = apart[0] if apart else f"this atlas has no other base whose models have vectors of words than {base}"
        raise AtlasError(f"Nothing can be compared: {why}.", "Index models of another base.")
    notes = [f"not compared: {why}" for why in apart]
    few_in_common = [space.bases[number] for number in numbers if len(space.common(base_number, number)) < FEW_WORDS]
    if few_in_common:
        notes.append(
            f"fewer than {FEW_WORDS} words in common with {', '.join(few_in_common)}: similarities to these are weak"
        )
    candidates: list[tuple[float, int, int, float, tuple[str, ...]]] = []
    searched: dict[int, int] = {}
    is_silent = True
    with one_blas_thread():  # many small products
        sample = _some(atlas.index(base, WORDS.name).opened.vectors.stored, _SCALED)
        for number in numbers:
            index, common = atlas.index(space.bases[number], WORDS.name), space.common(base_number, number)
            moved = common_parts(vector[None, :], common.columns)[0]
            rows = index.opened.rows(allowed[positions(allowed, index.ids)])
            searched[number] = len(rows)
            if not len(rows) or not moved.any():
                continue
            is_silent = False
            candidate_vectors = common_parts(_stored(rows)[:, common.other_columns], np.arange(len(common)))
            similarities = np.clip(candidate_vectors @ moved, -1, 1)
            between = space.similarities(base_number, sample, number, _some(index.opened.vectors.stored, _SCALED))
            is_own = number == base_number
            scale = PairScale.of(between[np.triu_indices(len(between), 1)] if is_own else between.ravel())
            scores = scale.score(similarities)
            for row in np.lexsort((rows.ids, -scores))[:k].tolist():
                contributions = candidate_vectors[row] * np.maximum(moved, 0)  # not the words that neither moved
                first = np.argsort(-contributions, kind="stable")[:_WORDS_NAMED].tolist()
                telling = tuple(common.words[column] for column in first if contributions[column] > 0)
                candidates.append((float(scores[row]), int(rows.ids[row]), number, float(similarities[row]), telling))
    if is_silent:
        raise AtlasError(
            "The model moved fewer than "
            f"{FEWEST_MOVED} of the common words farther than others of {base} do, so it cannot be compared.",
            "Its text may be in another language than these words.",
        )
    candidates = sorted(candidates, key=lambda near: (-near[0], near[1]))[:k]
    backgrounds = _backgrounds(atlas, space, base_number, sorted({near[2] for near in candidates}))
    neighbours = []
    for score, model_id, number, similarity, words in candidates:
        background = backgrounds[number]
        neighbours.append(
            WordNeighbour(
                model_id, space.bases[number], similarity, score,
                None if background is None else float(background.share(similarity)),
                None if background is None else background.high(similarity),
                None if background is None else background.pairs, searched[number], words,
            )
        )  # fmt: skip
    return neighbours, notes


def _stored(rows: Vectors) -> NDArray[Any]:
    """The stored vectors of these models, without a copy if they are all."""
    return rows.stored if rows.places is None or len(rows) == len(rows.stored) else rows.stored[rows.places]


def _backgrounds(
    atlas: AtlasReader, space: WordSpace, base_number: int, numbers: Sequence[int]
) -> dict[int, Background | None]:
    """The backgrounds of the pairs of a base with each of these, by number."""
    samples = samples_of(atlas, list(dict.fromkeys(space.bases[number] for number in (base_number, *numbers))))
    sample, backgrounds = samples[space.bases[base_number]], {}
    with one_blas_thread():
        for number in numbers:
            other_sample = samples[space.bases[number]]
            between = space.similarities(base_number, sample.vectors, number, other_sample.vectors)
            backgrounds[number] = background_of(between, sample, other_sample, is_own=number == base_number)
    return backgrounds
