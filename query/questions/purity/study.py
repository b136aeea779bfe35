"""Purity: how many of a model's nearest neighbours were tuned on the same datasets.

The candidates C_f of a model f are the other models with a dataset that are neither copies nor unrelated, one per
duplicate group; m_f of them share a dataset with f; purity_f is the share of matches among the m_f nearest. A model
with m_f = 0 is not scored, but remains a candidate for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.errors import BadArgument
from query.models.population import START, Population, components, representatives
from query.questions.purity.labels import Floats, LabelledOrder, OwnPlaces, confused_pairs
from query.questions.purity.result import ModelPurity, PurityResult, PurityScore, WithinScore
from query.shared.statistics.authors import FEWEST_AUTHORS, MOST_UNITS, TOO_FEW_AUTHORS, Ends, uncertainty, units_of
from query.shared.statistics.neighbours import Integers, by_width, codes_of, leave_out, map_parts, neighbour_order

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

_MANY = 2_000  # with this many models a draw takes longer than passing it to a thread
_BLOCK = 1 << 19  # entries of the table of neighbours in memory at a time
# The names that ``within`` accepts, each with its SQL expression. Models without a value form one stratum.
_STRATA = {
    "head": "concat(head_class, ' ', label_count)",
    "language": "array_to_string(list_sort(languages), ' ')",
    "author": "author",
    "length": "position_rows",
    "norm": "round(log2(nullif(delta_norm, 0)))",  # to a factor of two: rates and steps show in it
    "seed": START,
    # A model that names no dataset is a stratum of its own: it may have been tuned on anything.
    "dataset": "coalesce((SELECT string_agg(DISTINCT dataset, ' ' ORDER BY dataset) FROM model_datasets AS named "
    "WHERE named.model_id = fine_tunes.model_id), concat('model ', fine_tunes.model_id))",
}
HABITS = ("head", "language", "length", "norm", "seed")  # purity across authors is about authors
_CHANCE_DRAWS = 200  # for the chance level within strata, and for the effect in large populations
_DRAWS = 1000
_HABIT_DRAWS = 20
_FEW_WAYS = 20  # permutations below which p cannot be small
_MOST_COUNTED = 20_000  # up to this many arrangements all are tried; of more, a sample is drawn, which is faster
# If fewer permutations than this reach the observed value, ten times as many are drawn. The limits are _MOST_DRAWS
# permutations, and _LOOKS neighbours to look at, which takes a second or two.
ENOUGH = 10
_MOST_DRAWS = 100_000
_LOOKS = 1e8
_AT_ONCE = 1 << 21  # neighbours looked at in one step
_TIE = 1e-12  # smaller differences of means come from another order of summation


def purity(
    population: Population,
    *,
    k: int | None = None,
    draws: int | None = None,
    seed: int = 0,
    trees: Integers | None = None,
    confusions: bool = False,
    within: Mapping[str, Sequence[Hashable]] = MappingProxyType({}),
    by: str = "dataset",
) -> PurityResult:
    """Purity of ``population``, plain and cross-author, with intervals over authors and permutation p-values.

    Args:
        population: the models with their vectors, authors and datasets.
        k: use the k nearest instead of the m_f nearest (all candidates if there are fewer).
        draws: the number of permutations; None for as many as p needs (``null_distribution``).
        seed: of the permutations.
        trees: the family tree of every model of the population. Models of one tree are then not candidates for each
            other, and their label sets are permuted as those of one author.
        confusions: also list confused datasets.
        within: by name, a value for every model of the population. Each adds the chance level and p if labels are
            permuted only among models of equal value (Good, 2005, "Permutation, Parametric, and Bootstrap Tests", 3.4).
        by: the name of the labels in the answer: ``dataset``, or ``task`` if the ``datasets`` of the population are
            tasks.

    Raises:
        ValueError: vectors that are not finite, repeated ids, columns of different lengths, k < 1 or draws < 1.

    Similarities are computed in float64 and compared in steps of 2^-32 (2.3e-10). That is far finer than float32, and
    far coarser than the effect of the order of summation, so equal similarities stay equal whatever the block size;
    ties go to the lower id (``query.shared.statistics.neighbours``).

    The 95 % interval comes from how purity changes when each author in turn is left out (``interval``). It is None if
    the scored models are by fewer than five authors.

    The permutations behind p move whole sweeps (``AuthorRuns.permuted``), in both forms: the models of one author with
    one label set are one decision, never independent. The test is exact for the hypothesis that an author's labels are
    unrelated to the vectors of the sweeps, whatever the sizes of the sweeps and however similar the vectors of one
    author. The cross-author statistic is purity minus chance, because a popular dataset assigned to a large sweep
    raises both. The plain statistic is the same among the models of others: an author's own models match whatever is
    permuted, so they count neither for nor against (``LabelledOrder.excess``). If no author has two models, it is
    purity minus chance, too; if nobody else shares a dataset, p is 1.
    """
    if (k is not None and k < 1) or (draws is not None and draws < 1):
        raise ValueError("k and draws must be at least 1")
    rows, datasets = representatives(population)
    labels = [names for names in datasets if names]
    rows = rows[[bool(names) for names in datasets]]
    if len(rows):
        authors = codes_of([population.authors[row] for row in rows])
        names = [population.models[row] for row in rows]
        # Leaving out a model's author also leaves out the model, so both forms use one table, one after the other.
        kin = np.arange(len(rows), dtype=np.intp) if trees is None else codes_of(trees[rows].tolist())
        families = authors
        if trees is not None:  # models joined by an author or a family tree, directly or through others
            pairs = [(row, -1 - author) for row, author in enumerate(authors.tolist())]
            pairs += [(row, len(rows) + tree) for row, tree in enumerate(kin.tolist())]
            families = components(range(len(rows)), pairs)
        # An upper limit on the length of each list that the observed labels use: the number of matches, plus the size
        # of the model's family and of the largest group of authors left out.
        holders = Counter(name for names in labels for name in names)
        looked_at = np.array([sum(holders[name] for name in names) for names in labels]) if k is None else k
        largest_unit = np.bincount(units_of(authors.tolist(), MOST_UNITS)).max()
        reach: Integers = looked_at + np.bincount(families)[families] + largest_unit
        order = neighbour_order(population.table.take(rows), reach)
        strata = {name: codes_of([values[row] for row in rows]) for name, values in within.items()}

        def score(excluded: Integers) -> PurityScore:
            """The score of the present lists, with the chance levels within strata, without p."""
            trial = LabelledOrder(order, excluded, labels, k, owners=families)
            plain_score = _score(trial, authors, names)
            if not plain_score.models:
                return plain_score
            levels = tuple(
                _within(name, LabelledOrder(order, excluded, labels, k, codes, by == "task", owners=families), seed)
                for name, codes in strata.items()
            )
            return replace(plain_score, confusions=confused_pairs(trial) if confusions else (), within=levels)

        leave_out(order, kin)
        score_among_all = score(kin)
        places_of_own = OwnPlaces(order, kin, families)
        leave_out(order, families)
        scores = [
            _with_p(
                form_score,
                partial(LabelledOrder, order, families, labels, k, own_places=own_places),
                strata,
                by == "task",
                draws,
                [seed, form],
            )
            for form, (form_score, own_places) in enumerate(((score_among_all, places_of_own), (score(families), None)))
        ]
    else:
        scores = [PurityScore(0, 0, 0, note="No model has both a vector and a known dataset.")] * 2
    scores = [replace(score, note=score.note.replace("dataset", by)) for score in scores]
    return PurityResult(
        **vars(scores[0]),
        base=population.base,
        representation=population.representation,
        k=k,
        by=by,
        cross_author=scores[1],
    )


def strata_of(atlas: AtlasReader, population: Population, names: Sequence[str]) -> dict[str, list[Hashable]]:
    """The value of every model by name, for ``names`` of _STRATA. Raises BadArgument for another name."""
    values_by_name: dict[str, list[Hashable]] = {}
    for name in dict.fromkeys(names):
        if name not in _STRATA:
            raise BadArgument(f"Labels cannot be exchanged within {name!r}.", f"Choose {', '.join(_STRATA)}.")
        rows = atlas.rows(
            f"SELECT model_id, {_STRATA[name]} AS value FROM fine_tunes JOIN records USING (model_id) WHERE base = ?",
            [population.base],
        )
        values = {row["model_id"]: row["value"] for row in rows}
        values_by_name[name] = [values.get(int(model_id)) for model_id in population.ids]
    return values_by_name


def habits_with_labels(population: Population, strata: Mapping[str, Sequence[Hashable]]) -> tuple[str, ...]:
    """A note on each habit (a name of ``strata``) that is confounded with the labels, so that purity may be due to it.

    It is confounded if fewer than half as many models as by chance share its value with a model of another label.
    """
    rows, datasets = representatives(population)
    holders = Counter(datasets)
    indices = [index for index, names in enumerate(datasets) if names and holders[names] > 1]
    labels, rng = codes_of([datasets[index] for index in indices]), np.random.default_rng(0)
    notes = []
    for name, values in strata.items():
        codes = codes_of([values[rows[index]] for index in indices])

        def mixed(labels: Integers, codes: Integers = codes) -> int:
            """How many models are in a stratum with several labels."""
            pairs = np.unique(np.stack([codes, labels]), axis=1)
            several = np.bincount(pairs[0]) > 1
            return int(several[codes].sum())

        expected = float(np.mean([mixed(rng.permutation(labels)) for _ in range(_HABIT_DRAWS)])) if indices else 0.0
        if mixed(labels) < expected / 2:
            notes.append(
                f"Labels and {name} are confounded: only {mixed(labels)} of {len(indices)} models share the {name} "
                f"with a model of another label ({expected:.0f} expected), "
                f"so purity may be due to it (--within {name})."
            )
    return tuple(notes)


def null_distribution(trial: LabelledOrder, draws: int | None, rng: np.random.Generator) -> dict[str, Any]:
    """Compare ``LabelledOrder.excess`` of the observed labels with that of permutations of the sweeps' labels.

    If there are few arrangements of the labels (20,000, or ``draws``), each is tried, and p is the share that reaches
    the observed value, itself included. Otherwise p is (1 + reached)/(1 + permutations) of random permutations. Their
    number is ``draws``; if that is None, 1,000, then ten times as many (the earlier ones included) as long as fewer
    than ENOUGH reach the value. This early stopping does not make p too small (Besag & Clifford, 1991, "Sequential
    Monte Carlo p-values"): a p that stops at n permutations is at least (1 + ENOUGH)/(1 + n), and equals the p of n
    permutations.

    Returns:
        These fields of ``PurityScore``: ``p_value``; ``permutations``: their number; ``reached``: how many reach the
        observed value; ``is_exact``: whether every arrangement was tried once; ``effect``: how many standard deviations
        of the permutations the observed value is above their mean, None if all of them are equal.
    """
    carried, sweeps = trial.sweep_kinds, trial.sweeps
    observed = trial.excess(carried) - _TIE
    looks = max(1, len(trial.order) * int(trial.neighbour_counts(carried)[2].max(initial=1)))
    most = min(_MOST_DRAWS, max(_DRAWS, int(_LOOKS / looks))) if draws is None else draws
    is_small, is_exact = looks * _DRAWS <= _LOOKS, False
    step = max(1, _AT_ONCE // looks)
    reached, draw_count, values = 0, 0, np.zeros(0)
    if is_small and (outcomes := sweeps.outcomes(carried)) <= min(most, _MOST_COUNTED):
        arrangements = sweeps.every(carried)
        batches = iter(lambda: list(islice(arrangements, step)), [])
        values = np.concatenate([trial.excesses(np.array(batch)) for batch in batches])
        reached, draw_count, is_exact = int((values >= observed).sum()), outcomes, True
    elif is_small:
        target = _DRAWS if draws is None else draws
        while True:
            counts = [min(step, target - start) for start in range(draw_count, target, step)]
            new_values = [trial.excesses(sweeps.permuted(carried, rng, count)) for count in counts]
            values = np.concatenate([values, *new_values])
            draw_count, reached = target, int((values >= observed).sum())
            if draws is not None or reached >= ENOUGH or 10 * draw_count > most:
                break
            target = 10 * draw_count
    else:
        draw_count = _DRAWS if draws is None else draws
        is_long = len(trial.order) >= _MANY
        moves = (sweeps.permuted(carried, rng) for _ in range(draw_count))
        first_moves = list(islice(moves, _CHANCE_DRAWS))
        values = np.array(map_parts(trial.excess, first_moves, is_long=is_long))
        are_reached = map_parts(lambda kinds: trial.reaches(kinds, observed), moves, is_long=is_long)
        reached = int((values >= observed).sum()) + sum(are_reached)
    spread = float(values.std())
    return {
        "p_value": reached / draw_count if is_exact else (1 + reached) / (1 + draw_count),
        "permutations": draw_count,
        "reached": reached,
        "is_exact": is_exact,
        "effect": (observed - float(values.mean())) / spread if spread > _TIE else None,
    }


def _score(trial: LabelledOrder, authors: Integers, names: Sequence[str]) -> PurityScore:
    """The score of the observed labels, without p."""
    scored, neighbours, purity, chance = trial.evaluate(trial.sweep_kinds)
    if not len(scored):
        if len(authors) == 1:
            note = "Only one model has both a vector and a known dataset."
        elif len(set(trial.excluded.tolist())) == len(authors):
            note = "No two models share a dataset."
        elif len(set(authors.tolist())) == 1:
            note = "All models with a known dataset are by one author."
        else:
            note = "No dataset has models by two authors."
        return PurityScore(0, len(names), 0, note=note)
    note = ""
    if chance.min() == 1.0:
        note = "Every candidate of every scored model matches it, so purity is 1 whatever the vectors are."
    by_dataset = sorted(trial.dataset_scores(), key=lambda row: (-row.models, row.dataset))
    bounds = interval(trial, authors, scored, purity)
    return PurityScore(
        models=len(scored),
        candidates=len(names),
        datasets=len(by_dataset),
        purity=float(purity.mean()),
        purity_by_dataset_mean=float(np.mean([row.purity for row in by_dataset])),
        chance=float(chance.mean()),
        ci_low=bounds[0] if bounds else None,
        ci_high=bounds[1] if bounds else None,
        ci_reason=None if bounds else TOO_FEW_AUTHORS,
        authors=len(np.unique(authors[scored])),
        by_dataset=tuple(by_dataset),
        note=note,
        by_model=tuple(
            ModelPurity(names[f], tuple(sorted(trial.labels[f])), int(looked), float(p), float(c))
            for f, looked, p, c in zip(scored, neighbours, purity, chance, strict=True)
        ),
    )


def _within(name: str, trial: LabelledOrder, seed: int) -> WithinScore:
    """The chance level if sweeps exchange labels only within the strata of ``trial``, without p."""
    codes, movable = trial.sweeps.stratum, len(trial.sweeps.movable(trial.sweep_kinds))
    level = WithinScore(name, len(np.unique(codes)), movable)
    if not movable:
        return level
    rng = np.random.default_rng([seed, len(name), 1])

    def mean_purity(kinds: Integers) -> float:
        return float(trial.evaluate(kinds)[2].mean())

    moves = (trial.sweeps.permuted(trial.sweep_kinds, rng) for _ in range(_CHANCE_DRAWS))
    chance = map_parts(mean_purity, moves, is_long=len(trial.order) >= _MANY)
    return replace(level, chance=float(np.mean(chance)))


def _with_p(
    score: PurityScore,
    trial_of: Callable[..., LabelledOrder],
    strata: Mapping[str, Integers],
    is_split: bool,
    draws: int | None,
    seeds: Sequence[int],
) -> PurityScore:
    """The score with its p, and that within each of ``strata``.

    ``trial_of(codes, is_split)``: makes the order of the lists without the models of a model's own author.
    """
    if not score.models:
        return score
    trial, note = trial_of(), score.note
    if not note and not trial.matching(trial.sweep_kinds).any():
        note = "No dataset has models by two authors, so p, which compares an author's models with others', is 1."
    elif not note and (ways := trial.sweeps.outcomes(trial.sweep_kinds)) < _FEW_WAYS:
        note = f"The labels can be permuted in only {ways} ways, so p is at least {1 / ways:.2g}."
    within = []
    for level in score.within:
        if level.movable:
            split_trial = trial_of(strata[level.within], is_split)
            level = replace(
                level, **null_distribution(split_trial, draws, np.random.default_rng([seeds[0], len(level.within)]))
            )
        within.append(level)
    null = null_distribution(trial, draws, np.random.default_rng(seeds))
    return replace(score, note=note, within=tuple(within), **null)


# ---- intervals: purity without one author at a time


def interval(trial: LabelledOrder, authors: Integers, scored: Integers, purity: Floats) -> Ends | None:
    """95 % interval of mean purity; None if fewer than five authors have a scored model.

    Authors are not independent: an author whose models are near others on the same data also raises their purity. An
    interval from the scores alone (as from a bootstrap) ignores this, and its standard error is half of what it should
    be. So purity is computed again without each author in turn (the jackknife; for such statistics see Arvesen, 1969).
    """
    if len(np.unique(authors[scored])) < FEWEST_AUTHORS:
        return None
    units = units_of(authors.tolist(), MOST_UNITS)
    means = means_without(trial, units)
    mean = float(purity.mean())
    changes = np.array([mean - without for without in means if without is not None])
    if len(changes) < len(means):
        return None
    weights = np.bincount(units[scored], minlength=len(means)) / len(scored)
    return uncertainty(weights, changes).of_share(mean, len(scored))


def means_without(trial: LabelledOrder, units: Integers) -> list[float | None]:
    """Mean purity without the models of each unit in turn; None if none of the others can be scored."""
    count, unit_numbers = int(units.max()) + 1, np.arange(len(units))
    limits = np.zeros((len(units), count + 1), dtype=np.intp)  # the last column is for no unit
    for unit in range(count):
        is_kept = units != unit
        matching = trial.matching(trial.sweep_kinds, is_kept)
        pool = is_kept.sum() - np.bincount(trial.excluded, weights=is_kept)[trial.excluded].astype(np.intp)
        looked_at = matching if trial.k is None else np.minimum(trial.k, pool)
        limits[:, unit] = np.where(is_kept & (matching > 0), looked_at, 0)
    reach = limits[:, :-1] + np.bincount(units)  # the part of the list that is needed
    widths = np.minimum(np.where(limits[:, :-1] > 0, reach, 0).max(axis=1), len(units))
    hits = np.zeros(limits.shape, dtype=np.intp)

    def count_hits(block: Integers) -> None:
        hits[block] = _hits_without(trial, units, block, limits[block], int(widths[block].max()))

    nonempty = np.flatnonzero(widths)
    map_parts(count_hits, (nonempty[block] for block in by_width(widths[nonempty], _BLOCK)))
    means: list[float | None] = []
    for unit in range(count):
        scored = unit_numbers[limits[:, unit] > 0]
        means.append(float((hits[scored, unit] / limits[scored, unit]).mean()) if len(scored) else None)
    return means


def _hits_without(trial: LabelledOrder, units: Integers, rows: Integers, limits: Integers, width: int) -> Integers:
    """(rows, units + 1): matches among the first ``limits`` neighbours outside the unit, in lists of ``width``.

    The i-th model of a unit in a list, at position p, lies before the limit if p - i, the number of other models before
    it, is less than the limit. The limit grows by the number of such models, and their matches are subtracted.
    """
    lists = trial.order[rows, :width]
    count = limits.shape[1]
    unit_of = np.append(units, count - 1).astype(np.uint8)
    matches = trial.matches(trial.kinds)(rows, lists)
    row_index = np.arange(len(rows))[:, None]
    turns = np.argsort(unit_of[lists], axis=1, kind="stable")  # of each unit's models, in order
    cells = row_index * count + unit_of[np.take_along_axis(lists, turns, axis=1)]
    sizes = np.bincount(cells.ravel(), minlength=len(rows) * count).reshape(-1, count)
    begins = np.cumsum(sizes, axis=1) - sizes
    earlier_in_unit = np.arange(width) - begins.ravel()[cells]
    is_passed = turns - earlier_in_unit < limits.ravel()[cells]
    passed = np.bincount(cells[is_passed], minlength=sizes.size).reshape(sizes.shape)
    is_passed &= np.take_along_axis(matches, turns, axis=1)
    unit_matches = np.bincount(cells[is_passed], minlength=sizes.size).reshape(sizes.shape)
    matches_before = np.zeros((len(rows), width + 1), dtype=np.int32)
    np.cumsum(matches, axis=1, out=matches_before[:, 1:])
    return matches_before[row_index, limits + passed] - unit_matches
