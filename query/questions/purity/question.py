"""The question ``purity``: purity of a base's fine-tunes, with notes on habits that may explain it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from indexer.console.option import Option
from indexer.errors import BadArgument
from query.contract.options import Base, Representation
from query.contract.registry import Invocation, Tool, question
from query.models.population import family_trees, notes_on_sampled, read_population, tasks_of
from query.questions.purity import study
from query.questions.purity.result import PurityResult

if TYPE_CHECKING:
    from query.models.reader import AtlasReader


DEFAULT = "input"

# A limit of comparing words.
TWINS_NOTE = "Data sets of the same text with other labels move the same words, so they count as mistakes here."


def _command(
    call: Invocation,
    base: str | None,
    representation: str,
    by: Annotated[
        str,
        Option(
            "Rows to print. task: measure purity by task instead of dataset, also within datasets.",
            choices=("dataset", "model", "task"),
        ),
    ] = "dataset",
    *,
    k: int | None,
    kin: bool,
    within: Sequence[str],
    confusions: bool,
    across: bool,
    out: Annotated[str | None, Option("Also draw it, by dataset: .png, .svg or .pdf.", metavar="FILE")] = None,
) -> None:
    file = call.picture(out)
    with call.opened() as atlas:
        result = atlas.purity(
            base, representation=representation, k=k, kin=kin, within=within, confusions=confusions,
            by="task" if by == "task" else "dataset", across=across,
        )  # fmt: skip
        object_ = result.to_dict(by_model=by == "model", confusions=confusions)
        by = "confusion" if confusions else by
        table = result.table(details=call.details, by=by)
        call.show(result, drawn=file, rows=result.lines(by), whole=object_, table=table)


@question(
    example="purity --base roberta-base --by model",
    agents=Tool(
        "Measure whether models tuned on the same dataset are close to each other, also across authors.",
        ("base", "representation", "k"),
    ),
    command=_command,
)
def purity(
    atlas: AtlasReader,
    base: Base = None,
    *,
    representation: Representation = DEFAULT,
    k: Annotated[
        int | None,
        Option(
            "Number of nearest models to consider. Default: as many as share its dataset.",
            least=1,
            flag="-k --neighbours",
            agents="Number of neighbours. Default: as many as share a dataset with the model.",
        ),
    ] = None,
    kin: Annotated[bool, Option("Leave out models of the same family tree (after query lineage --all).")] = True,
    within: Annotated[
        Sequence[str],
        Option(
            "Also print chance if only models with the same head (language, …) exchange labels. May be given several "
            "times. norm: ‖δW‖ within a factor of two. seed: the seed of adapters' factors.",
            choices=("head", "language", "author", "length", "norm", "seed", "dataset"),
            is_repeated=True,
        ),
    ] = (),
    confusions: Annotated[bool, Option("Print which datasets are mistaken for which, compared with chance.")] = False,
    draws: int | None = None,
    seed: int = 0,
    by: Literal["dataset", "task"] = "dataset",
    across: Annotated[
        bool, Option("Only models of other bases count as neighbours, by the words that both moved.")
    ] = False,
) -> PurityResult:
    """Measure whether models tuned on the same dataset are close to each other.

    Purity is the share of a model's nearest neighbours that share a dataset with it, averaged over models.

    Note:
        ``k``: the number of neighbours; by default as many as share a dataset with the model.
        ``kin``: whether models of the same family tree count, which are close whatever their training data.
        ``within``: also compute the chance level if only models of the same head, language, author, length (of the
            longest input, see ``trace``), norm (of δW, to a factor of two), seed (of the factors of adapters) or
            dataset exchange labels; a note names the habits that are confounded with the labels.
        ``confusions``: also compute which datasets are mistaken for which.
        ``draws``: permutations for p; by default all, if they are few, else 1,000, and more if hardly any of them
            reaches the observed purity.
        ``by``: task to measure whether models of one task (``query.models.population.tasks_of``) are close; compare
            that with the chance level within dataset, which is due to their data.
        ``across``: models of all bases are compared with those of other bases
            (:func:`query.questions.purity.across.purity_across`); only ``k``, ``draws`` and ``seed`` go with it.

    Returns:
        Purity, chance and intervals are shares from 0 to 1; see :func:`query.questions.purity.study.purity`.

    Raises:
        AtlasError: the base or representation is unknown, or the atlas has no lineage for ``kin=False``.
        ValueError: k < 1 or draws < 1.
    """
    if across:
        if base is not None or within or confusions or not kin or by != "dataset" or representation != DEFAULT:
            raise BadArgument(
                "`across` takes all bases and compares words; only `k` goes with it.", "Leave the rest out."
            )
        from query.models.across import all_bases
        from query.questions.purity.across import purity_across

        result = purity_across(all_bases(atlas, documented=True), k=k, draws=draws, seed=seed)
        return replace(result, on_sampled=(TWINS_NOTE,))
    population = read_population(atlas, base, representation, documented=by == "dataset")
    if by == "task":
        within = (*within, "dataset")
        tasks = [frozenset(filter(None, [task])) for task in tasks_of(atlas, population)]
        population = replace(population, datasets=tasks)
    trees = None if kin else family_trees(atlas, population)
    strata = study.strata_of(atlas, population, within)
    result = study.purity(
        population, k=k, draws=draws, seed=seed, trees=trees, confusions=confusions, within=strata, by=by
    )
    habits = [name for name in study.HABITS if (name, by) != ("head", "task")]  # a head shows the task
    habits_in_words = study.habits_with_labels(population, study.strata_of(atlas, population, habits))
    return replace(result, on_sampled=notes_on_sampled(atlas, population), on_habits=habits_in_words)
