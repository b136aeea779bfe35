"""The models of one base that have a vector, as columns: the input of purity, clusters, maps and votes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from indexer.database.deepening import without_a_full_model
from indexer.errors import AtlasError, Call, Text
from indexer.names import UNMEASURABLE, UNTRAINED
from indexer.records.representations.registry import representation_named
from indexer.vectors.table import VectorTable
from query.contract.results import Doc
from query.models.sampled import SAMPLE, note_on_sampled, sample_gives
from query.shared.wording import counted

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

Integers = NDArray[np.intp]

_GENERIC_NAME = re.compile(r"(?:label|class|category)?\d*")
_BETWEEN_WORDS = re.compile(r"[\W_]+")
_LABELLED = re.compile("Classification|Detection|Segmentation")  # heads whose labels are part of the task
# Heads without labels, and the Hub's name of their task.
_UNLABELLED = {
    "MaskedLM": "fill-mask",
    "CausalLM": "text-generation",
    "ConditionalGeneration": "text2text-generation",
    "QuestionAnswering": "question-answering",
}
_LONGEST_TASK = 60
# Condition on the table lineage: the step is at least as probable as not.
_PROBABLE = "probability >= 0.5"


# Where an adapter began, as an expression of SQL on ``records``: the place in the random numbers of PyTorch or, if that
# is not known, the models that began alike. Null for other models.
START = (
    "coalesce(CASE WHEN start.seed IS NOT NULL THEN concat_ws(' ', start.generator, start.seed, start.\"offset\") END, "
    "'as ' || initialisation)"
)


# A note on predictions from models that are all by one author.
BY_RUN = "All of these models are by one author, so each run counts as an author: runs of one person are more alike."


@dataclass(frozen=True)
class LeftOut:
    """How many indexed models a study leaves out, and why."""

    copies: Annotated[int, Doc("Copies of the base.")] = 0
    untrained: Annotated[int, Doc("Adapters that changed nothing, or nothing measurable.")] = (
        0  # adapters that changed nothing, or nothing measurable
    )
    unrelated: Annotated[int, Doc("Models whose weights contradict the base.")] = 0
    duplicates: Annotated[int, Doc("Models with the weights of an earlier upload.")] = 0
    checkpoints: Annotated[int, Doc("Earlier checkpoints of a training run, whose last one counts.")] = 0
    sampled: Annotated[int, Doc("Models of which only a sample of rows was read.")] = (
        0  # without the vector, or the ranks, that a sample of rows does not give
    )
    without: Annotated[int, Doc("Models without such a vector.")] = 0

    def words(self) -> list[str]:
        """For example "2 copies of the base", "1 duplicate"; empty if no model was left out."""
        words = (
            self.copies and counted(self.copies, "copy of the base", "copies of the base"),
            self.untrained and f"{counted(self.untrained, 'adapter')} that changed nothing measurable",
            self.unrelated and f"{self.unrelated:,} unrelated to the base",
            self.duplicates and counted(self.duplicates, "duplicate"),
            self.checkpoints and counted(self.checkpoints, "earlier checkpoint"),
            self.sampled and counted(self.sampled, "sampled model"),
            self.without and f"{self.without:,} without such a vector",
        )
        return [clause for clause in words if clause]


@dataclass(frozen=True)
class Population:
    """Entry i of every column is the same model; ids ascend and are unique.

    ``vectors``: (n, d) float32 of unit norm, or of ``blocks`` blocks of unit norm that are compared one by one (zero if
    a model did not change that matrix). ``datasets``: canonical names of the datasets each model is known to be tuned
    on. ``group``: the duplicate group of a model, or None, in one with the checkpoints of its run; ``representative``:
    whether it represents its group (the earliest upload, or the last checkpoint). ``is_earlier``: whether it is an
    earlier checkpoint. ``left_out`` counts the models of the base that are not included. ``outputs`` and ``groups``:
    see ``indexer.vectors.table``.
    """

    base: str
    representation: str
    vectors: NDArray[np.float32]
    ids: NDArray[np.int64]
    models: list[str]
    authors: list[str]
    datasets: list[frozenset[str]]
    relations: list[str]
    is_copy: NDArray[np.bool_]
    is_unrelated: NDArray[np.bool_]
    group: list[int | None]
    representative: NDArray[np.bool_]
    left_out: LeftOut = field(default_factory=LeftOut)
    blocks: int = 0
    outputs: NDArray[np.float32] | None = None
    groups: NDArray[np.uint8] | None = None
    is_earlier: NDArray[np.bool_] | None = None

    @property
    def table(self) -> VectorTable:
        """The vectors, to be compared."""
        return VectorTable(self.vectors, self.blocks, self.outputs, self.groups)


@dataclass(frozen=True)
class Head:
    """The head of a model. ``kind`` is None if the head is not known; ``names`` is None if the names are generic."""

    kind: str | None = None
    labels: int | None = None
    names: frozenset[str] | None = None

    def task(self, pipeline_tag: str | None) -> str | None:
        """The task of a model, independent of its text: the kind of its head and its label names, or their number.

        For heads without labels, and for models without a head (adapters), it is the Hub's name of the task, if that
        task has no labels. None if the labels of a classifier are not known.
        """
        kind = (self.kind or "no head").removeprefix("For")
        if kind == "no head":
            return pipeline_tag if pipeline_tag in _UNLABELLED.values() else None
        if not _LABELLED.search(kind):
            return _UNLABELLED.get(kind, kind)
        # transformers does not write the labels of a config that has the default two.
        task = f"{kind}: {', '.join(sorted(self.names))}" if self.names else f"{kind}, {self.labels or 2} labels"
        if len(task) <= _LONGEST_TASK:
            return task
        return f"{task[:_LONGEST_TASK]}… ({hashlib.sha256(task.encode()).hexdigest()[:8]})"


def head_of(
    head_class: str | None, label_count: int | None, label_names: Sequence[str] | None, problem_type: str | None
) -> Head:
    """The head that columns of the models view (or a record's head) describe.

    The kind is the class without its architecture, such as ``ForTokenClassification``, with the problem type if that
    is not the usual one.
    """
    if not head_class:
        return Head()
    kind = head_class[head_class.find("For") :] if "For" in head_class else "no head"
    if problem_type in ("regression", "multi_label_classification"):
        kind += f" {problem_type}"
    names = frozenset(_BETWEEN_WORDS.sub("", name.casefold()) for name in label_names or ())
    return Head(kind, label_count, names if any(not _GENERIC_NAME.fullmatch(name) for name in names) else None)


def tasks_of(atlas: AtlasReader, population: Population) -> list[str | None]:
    """The task of every model of the population (``Head.task``); None where config and card do not say."""
    tasks: dict[int, str | None] = {}
    for row in atlas.rows(
        "SELECT model_id, pipeline_tag, head_class, label_count, label_names, problem_type FROM models WHERE base = ?",
        [population.base],
    ):
        model_id, pipeline_tag, *head = row.values()
        tasks[model_id] = head_of(*head).task(pipeline_tag)
    return [tasks.get(int(model_id)) for model_id in population.ids]


def read_population(
    atlas: AtlasReader, base: str | None, representation: str = "input", *, documented: bool = False
) -> Population:
    """All models of one base that have a vector, each read once.

    ``documented``: only those with a dataset, and their duplicates; most models have no dataset. Raises AtlasError if
    the representation is not published, or if it needs whole matrices and all models were sampled.
    """
    canonical = atlas.base_named(base)
    index = atlas.index(canonical, representation)
    names_dataset = "base = $1 AND len(datasets) > 0"
    repeats_such = (
        f"duplicate_group IN (SELECT duplicate_group FROM models WHERE {names_dataset}) "
        f"OR run_group IN (SELECT run_group FROM models WHERE {names_dataset})"
    )
    rows = {
        row["model_id"]: row
        for row in atlas.rows(
            'SELECT model_id, model, author, relation, datasets, "read", is_copy, copy_evidence, is_unrelated, '
            "duplicate_group, duplicate_of, run_group, is_earlier_checkpoint FROM models "
            f"WHERE base = $1{f' AND ({names_dataset} OR {repeats_such})' if documented else ''}",
            [canonical],
        )
    }
    vectors = index.rows(sorted(rows))
    table = index.table(vectors.ids)
    with_vector = [rows.pop(model_id) for model_id in vectors.ids.tolist()]
    lacking = sum(not row["is_copy"] for row in rows.values())
    sampled = 0
    if not sample_gives(representation):
        sampled = sum(row["read"] == SAMPLE and not row["is_copy"] for row in rows.values())
    without = lacking - sampled
    untrained = sum(row["copy_evidence"] in (UNTRAINED, UNMEASURABLE) for row in rows.values())
    if sampled and not with_vector:
        raise without_a_full_model(atlas, canonical, sampled, f"{representation!r} vectors")
    return Population(
        base=canonical,
        representation=representation,
        vectors=vectors.matrix,
        ids=vectors.ids,
        models=[row["model"] for row in with_vector],
        authors=[row["author"] for row in with_vector],
        datasets=[frozenset(row["datasets"]) for row in with_vector],
        relations=[row["relation"] for row in with_vector],
        is_copy=np.array([row["is_copy"] for row in with_vector], dtype=bool),
        is_unrelated=np.array([row["is_unrelated"] for row in with_vector], dtype=bool),
        group=_groups(with_vector),
        representative=np.array(
            [row["duplicate_of"] is None and not row["is_earlier_checkpoint"] for row in with_vector], dtype=bool
        ),
        is_earlier=np.array([row["is_earlier_checkpoint"] for row in with_vector], dtype=bool),
        # The vectors of copies are zero, and zero vectors are not published.
        left_out=LeftOut(
            copies=len(rows) - sampled - without - untrained, untrained=untrained, sampled=sampled, without=without
        ),
        blocks=vectors.blocks,
        outputs=table.outputs,
        groups=table.groups,
    )


def _groups(rows: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """The group of each model. Groups of duplicates and of checkpoints of a run are joined if they share a model."""
    if not any(row["run_group"] is not None for row in rows):
        return [row["duplicate_group"] for row in rows]
    groups = [[(kind, row[kind]) for kind in ("duplicate_group", "run_group") if row[kind] is not None] for row in rows]
    names = {name: number for number, name in enumerate(dict.fromkeys(key for keys in groups for key in keys))}
    joined = components(list(names.values()), [(names[keys[0]], names[keys[1]]) for keys in groups if len(keys) == 2])
    return [int(joined[names[keys[0]]]) if keys else None for keys in groups]


def notes_on_sampled(atlas: AtlasReader, population: Population) -> tuple[str, ...]:
    """Notes on the models without a vector of this representation; for sampled ones, the cost of reading the rest."""
    vectors = f"{population.representation!r} vectors"
    notes = note_on_sampled(atlas, population.base, population.left_out.sampled, vectors)
    if population.left_out.untrained:
        notes += (f"left out: {', '.join(LeftOut(untrained=population.left_out.untrained).words())}",)
    if count := population.left_out.without:
        verb = "has" if count == 1 else "have"
        why = representation_named(population.representation).lacking
        notes += (f"{counted(count, 'model')} {verb} no {population.representation} vector: {why}.",)
    return notes


def representatives(population: Population) -> tuple[Integers, list[frozenset[str]]]:
    """Rows of the models to compare, in order of id, and their datasets, with those of a duplicate group united.

    Copies, unrelated models and zero vectors are left out. Only the representative of a duplicate group is kept, or
    the lowest id if that one is left out. Raises ValueError on columns of different lengths or repeated ids.
    """
    ids = [int(identity) for identity in population.ids]
    columns = ("vectors", "models", "authors", "datasets", "is_copy", "is_unrelated", "group", "representative")
    if any(len(getattr(population, column)) != len(ids) for column in columns) or len(set(ids)) != len(ids):
        raise ValueError("every model needs one entry in every column, and an id of its own")
    leaders: dict[int, int] = {}
    united: dict[int, set[str]] = {}
    for row in sorted(range(len(ids)), key=lambda row: (not population.representative[row], ids[row])):
        if population.is_copy[row] or population.is_unrelated[row] or not np.any(population.vectors[row]):
            continue
        group = population.group[row]
        leader = row if group is None else leaders.setdefault(group, row)
        united.setdefault(leader, set()).update(population.datasets[row])
    rows = sorted(united, key=ids.__getitem__)
    return np.array(rows, dtype=np.intp), [frozenset(united[row]) for row in rows]


def distinct(population: Population) -> Population:
    """The population without copies, unrelated models and repeats (see ``representatives``), these counted."""
    rows, datasets = representatives(population)
    copies = population.is_copy | ~population.vectors.any(axis=1)
    unrelated = population.is_unrelated & ~copies
    repeats = ~copies & ~unrelated
    repeats[rows] = False
    earlier = 0 if population.is_earlier is None else int((repeats & population.is_earlier).sum())
    left_out = replace(
        population.left_out,
        copies=population.left_out.copies + int(copies.sum()),
        unrelated=int(unrelated.sum()),
        duplicates=int(repeats.sum()) - earlier,
        checkpoints=earlier,
    )
    return replace(
        population,
        vectors=population.vectors[rows],
        ids=population.ids[rows],
        models=[population.models[row] for row in rows],
        authors=[population.authors[row] for row in rows],
        datasets=datasets,
        relations=[population.relations[row] for row in rows],
        is_copy=population.is_copy[rows],
        is_unrelated=population.is_unrelated[rows],
        group=[population.group[row] for row in rows],
        representative=np.ones(len(rows), dtype=bool),
        left_out=left_out,
        outputs=None if population.outputs is None else population.outputs[rows],
        groups=None if population.groups is None else population.groups[rows],
        is_earlier=None if population.is_earlier is None else population.is_earlier[rows],
    )


def own_datasets(names: frozenset[str]) -> tuple[str, ...]:
    """A model's datasets, sorted, without a collection (``glue``) if one of its tasks (``glue/mrpc``) is named too."""
    return tuple(sorted(name for name in names if not any(task.startswith(f"{name}/") for task in names)))


def leading_datasets(datasets: list[frozenset[str]]) -> list[str | None]:
    """One dataset for each model: among its ``own_datasets``, the one that most models name; ties by name.

    None for a model that names no dataset.
    """
    datasets_of_models = [own_datasets(names) for names in datasets]
    counts: dict[str, int] = {}
    for names in datasets_of_models:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    return [min(names, key=lambda name: (-counts[name], name), default=None) for names in datasets_of_models]


def relatives(atlas: AtlasReader, model_id: int) -> set[int]:
    """The parents and the children of a model in the stored lineage, and the other checkpoints of its run.

    Steps with a probability below one half are ignored: a run with the same data and seed explains them as well.
    """
    rows = atlas.rows(
        f"SELECT parent_id AS other FROM lineage WHERE model_id = $1 AND parent_id IS NOT NULL AND {_PROBABLE} "
        f"UNION SELECT model_id FROM lineage WHERE parent_id = $1 AND {_PROBABLE} "
        "UNION SELECT model_id FROM records WHERE model_id != $1 "
        "AND run_group = (SELECT run_group FROM records WHERE model_id = $1)",
        [model_id],
    )
    return {row["other"] for row in rows}


def family_trees(atlas: AtlasReader, population: Population) -> Integers:
    """The number of each model's family tree, which is the same for models that lineage joins, directly or not.

    Raises AtlasError if the atlas has no stored lineage of the base.
    """
    edges = atlas.rows(
        f"SELECT model_id, CASE WHEN {_PROBABLE} THEN parent_id END AS parent_id "
        "FROM lineage JOIN fine_tunes USING (model_id) WHERE base = ?",
        [population.base],
    )
    if not edges:
        raise AtlasError(
            f"This atlas has no stored lineage of {population.base}.",
            Text("Compute it once: ", Call("lineages", population.base, store=True)),
        )
    joined = [(edge["model_id"], edge["parent_id"]) for edge in edges if edge["parent_id"] is not None]
    return components([int(identity) for identity in population.ids], joined)


def components(members: Sequence[int], pairs: Iterable[tuple[int, int]]) -> Integers:
    """Numbers of the groups that ``pairs`` join ``members`` into, from 0 in order of first appearance."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = list(pairs)
    nodes = dict.fromkeys([*members, *(member for pair in edges for member in pair)])
    index = {member: number for number, member in enumerate(nodes)}
    node_pairs = np.array([(index[first], index[second]) for first, second in edges], dtype=np.intp).reshape(-1, 2)
    graph = coo_array((np.ones(len(node_pairs)), (node_pairs[:, 0], node_pairs[:, 1])), (len(nodes), len(nodes)))
    _, numbers = connected_components(graph, directed=False)
    return np.asarray(numbers[[index[member] for member in members]], dtype=np.intp)
