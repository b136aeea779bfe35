"""The models most similar to one: from the table of stored neighbours if possible, else by exact search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from indexer.atlas import NEIGHBOURS, fewest_shared
from indexer.console.option import Option
from indexer.console.stdin import STDIN
from indexer.errors import AtlasError, Call, Text
from indexer.sources.registry import ModelRef
from query.contract.columns import (
    BACKGROUND,
    BACKGROUND_FLOOR,
    BACKGROUND_PAIRS,
    EXPECTED_BY_CHANCE,
    MATRICES,
    OF_A_BATCH,
    SIMILARITY,
    SIMILARITY_ERROR,
    AskedModel,
    Author,
    BaseId,
    DatasetList,
    ModelId,
    Notes,
    Relation,
    Vectors,
)
from query.contract.options import Base, Model, Read, Representation, Where
from query.contract.registry import Invocation, Tool, question
from query.contract.results import After, Data, Detail, Doc, Format, Hidden, If, Rows, Shown, Spread
from query.models.lookup import resolve_model
from query.models.resolved import (
    ResolvedModel,
    are_same,
    start_of,
    table_of,
    unrelated_notes,
    vector_notes,
    vector_of,
)
from query.models.sampled import SAMPLE, needs_all, note_on_sampled, sample_gives
from query.shared.wording import counted, rarity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from indexer.vectors.table import VectorTable
    from query.models.reader import AtlasReader
    from query.questions.sql import Condition

_MUCH_MOVED = 0.3  # five votes or fewer
_REASONS_SHOWN = 3  # families, and layers, of each model in a table


@dataclass(frozen=True)
class Neighbour:
    """One model near another.

    The similarity is a cosine of whole vectors for a representation without blocks. docs/guide/similarity.md says how
    far it may move. ``expected_by_chance`` is its E-value. ``is_shrunk``: they share so few matrices that it was shrunk
    towards zero. ``because``, ``compared_by`` and ``same_start``: only if asked for.
    """

    rank: Annotated[int, Doc("Place in the list; 1 is the nearest.")]
    model: ModelId
    similarity: Annotated[float, SIMILARITY]
    author: Author
    relation: Relation
    datasets: DatasetList
    base: Annotated[str | None, Doc("Base of the model (--across)."), If(), After("model")] = None
    score: Annotated[
        float | None,
        Doc(
            "How far the similarity lies above the median of the models of the two bases, in units of the spread below "
            "it: by this, models of different bases are in one order (--across)."
        ),
        If(),
        After("similarity"),
    ] = None
    similarity_error: Annotated[
        float,
        SIMILARITY_ERROR,
        Detail(),
        After("similarity"),
    ] = 0.0
    background: Annotated[
        float | None,
        BACKGROUND,
        Format(rarity, "background_pairs"),
        After("similarity_error"),
    ] = None
    background_high: Annotated[
        float | None,
        Doc(
            "Upper end of the 95 % interval of background, by leaving out authors. Empty if there are fewer than five."
        ),
        Data(),
        After("background"),
    ] = None
    background_pairs: Annotated[int | None, BACKGROUND_PAIRS, Data(), After("background_high")] = None
    expected_by_chance: Annotated[
        float | None,
        EXPECTED_BY_CHANCE,
        Detail(),
        After("background_pairs"),
    ] = None
    matrices: Annotated[int | None, MATRICES, If("is_shrunk", in_tables=True)] = None
    words: Annotated[
        tuple[str, ...] | None,
        Doc("Words that both models moved farther than others of their base, the most telling first (--across)."),
        If(),
    ] = None
    is_shrunk: Annotated[bool, Hidden()] = False
    because: Annotated[
        dict[str, dict[str, float]] | None,
        Doc("Contributions of families and of layers of matrices to the similarity; each of the two sums to it."),
        If(),
        Data(),
    ] = field(default=None, compare=False)
    compared_by: Annotated[
        str | None,
        Doc("The side of the matrices that was compared (--explain): input or output."),
        If("because"),
    ] = field(default=None, compare=False)
    same_start: Annotated[
        bool | None,
        Doc(
            "Whether both adapters began at the same random numbers (--explain); empty if the start of one is not "
            "known."
        ),
        If("because"),
    ] = field(default=None, compare=False)

    # A table has no room for objects.

    @property
    def main_reasons(self) -> Annotated[dict[str, list[str]], Shown(in_details=False), Spread()]:
        """The three largest contributions of families and of layers."""
        return {name: texts[:_REASONS_SHOWN] for name, texts in self.reasons.items()}

    @property
    def reasons(self) -> Annotated[dict[str, list[str]], Shown(), Detail(), Spread()]:
        """All contributions of families and of layers."""
        contributions = self.because or {}
        return {
            name: [f"{key} {contribution:.2f}" for key, contribution in by_key.items()]
            for name, by_key in contributions.items()
        }

    @property
    def background_floor(
        self,
    ) -> Annotated[
        float | None,
        BACKGROUND_FLOOR,
        Data(),
        After("background_pairs"),
    ]:
        """The smallest possible ``background``: 1/(1 + pairs)."""
        return None if self.background_pairs is None else 1 / (1 + self.background_pairs)

    @property
    def is_like_unrelated(
        self,
    ) -> Annotated[
        bool,
        Doc(
            "Whether it is no more similar than unrelated models are: at least one of those searched would be as "
            "similar by chance; where too few unrelated pairs are known, whether the similarity is not above 0."
        ),
        Detail(),
        After("expected_by_chance"),
    ]:
        """Whether unrelated models are as similar: by chance one would be, or the similarity is not above 0."""
        by_chance = self.expected_by_chance
        return self.similarity <= 0 if by_chance is None else by_chance >= 1


@dataclass(frozen=True, eq=False, repr=False)
class SimilarModels(Rows[Neighbour]):
    """The models most similar to ``model``, nearest first: a list of :class:`Neighbour` that can also be displayed."""

    ROWS = "neighbours"
    TABLE_COLUMNS: ClassVar[Mapping[str, str]] = {
        "families": "Families of matrices that add most to the similarity, and how much (--explain).",
        "layers": "Layers that add most to the similarity, and how much (--explain).",
    } | OF_A_BATCH
    OPTIONAL_COLUMNS = (
        "same_start", "compared_by", "similarity_error", "is_like_unrelated", "expected_by_chance", "author",
        "relation", "layers", "families", "rank", "datasets",
    )  # fmt: skip
    SHOW_HEADLINE = True

    model: AskedModel
    base: BaseId
    representation: Vectors
    neighbours: Annotated[tuple[Neighbour, ...], Doc("The models found, nearest first.")]
    notes: Notes = ()
    searched: Annotated[
        str | None, Doc("The base, or the bases, whose models were compared with the model (--across)."), If()
    ] = None

    @property
    def headline(self) -> str:
        """The nearest model, and the most frequent dataset."""
        searched = self.searched or self.base
        if not self.neighbours:
            return f"There is no other model of {searched} to compare {self.model} with, or none meets the conditions."
        nearest = next((neighbour for neighbour in self.neighbours if not neighbour.is_like_unrelated), None)
        if nearest is None:
            return (
                f"{nothing_like(self.model, searched)}: unrelated models are as similar to it as the nearest, "
                f"{self.neighbours[0].model} ({self.neighbours[0].similarity:.2f})."
            )
        commonest = Counter(dataset for neighbour in self.neighbours for dataset in neighbour.datasets).most_common(1)
        most = ""
        if commonest:
            dataset, number = commonest[0]
            subject = (
                f"{number} of these {len(self.neighbours):,} name"
                if number < len(self.neighbours)
                else "Each of these names"
            )
            most = f" {subject} the dataset {dataset}."
        statement = (
            f"The model most like {self.model} is {nearest.model}, with a similarity of {nearest.similarity:.2f}"
        )
        caveat = "; others are no nearer than unrelated ones of their kind" if nearest.rank > 1 else ""
        return f"{statement}{caveat}.{most}"


def _command(call: Invocation, model: str, **options: Any) -> None:
    """If ``model`` is "-", models are read from stdin, one per line."""
    if options["where"] is not None:
        from query.questions.sql import prepare

        prepare()

    def rows(_name: str, answer: SimilarModels) -> list[dict[str, Any]]:
        return answer.table(details=call.details) if call.output == "table" else answer.to_rows()

    names = call.names_on_stdin() if model == STDIN else None
    with call.opened() as atlas:
        if names is None:
            call.show(atlas.similar(model, **options))
        else:
            call.show_many(atlas.similar_many(names, **options), len(names), rows)


@question(
    example="similar textattack/roberta-base-MNLI -k 5 --other-authors",
    agents=Tool(
        "Find the fine-tuned models whose weights changed most like those of a model, nearest first.",
        ("model", "k", "where", "other_authors", "representation", "explain", "base", "across"),
    ),
    command=_command,
)
def similar(
    atlas: AtlasReader,
    model: Model,
    k: Annotated[
        int,
        Option(
            "Number of nearest models to show.",
            least=1,
            flag="-k --neighbours --limit",
            agents="Number of neighbours to list.",
        ),
    ] = 10,
    *,
    where: Where = None,
    other_authors: Annotated[
        bool, Option("Leave out the model's own author.", agents="Leave out models of the same author.")
    ] = False,
    representation: Representation = "input",
    base: Base = None,
    explain: Annotated[
        bool,
        Option(
            "Show how much each layer and family contributes.",
            agents="Add how much each family and layer contributes (`because`).",
        ),
    ] = False,
    read: Read = None,
    across: Annotated[
        bool,
        Option(
            "Compare with the models of all bases, by the words that they moved; with --base, of that other base.",
            agents="Compare with the models of all bases, by the words that they moved.",
        ),
    ] = False,
) -> SimilarModels:
    """Find the models most similar to ``model``: an indexed id, any other Hub id, or a local checkpoint folder.

    Returns:
        The nearest first, ties by id; never the model itself. The similarity is a cosine, from -1 to 1. A model that is
        not indexed is read on the fly and not stored. Conditions apply before the search, so that k models are found if
        there are k. With ``across``, or if ``base`` is another base than the model's, models of different bases are
        compared by the words that both moved (:mod:`query.models.across`), and ``representation`` does not count.

    Raises:
        AtlasError: the model is unknown, unreadable or a copy of its base, the condition is wrong, the representation
            is not published, or the bases have too few words in common.
    """
    if k < 1:
        raise AtlasError(f"`k` is {k}; it must be at least 1.", "")
    other_base = _other_base(atlas, model, base)
    if across or other_base is not None:
        own_base = base if other_base is None else None
        return _across(atlas, str(model), k, where, other_authors, own_base, other_base, explain, read)
    condition = None
    if where is not None:
        from query.questions.sql import asked_condition  # rarely needed, so not at the top

        # A process of its own evaluates the condition; meanwhile this one opens the vectors.
        condition = asked_condition(atlas.connection, where)
    try:
        resolved = resolve_model(atlas, str(model), base, representation, read)
        if resolved.is_copy:
            raise AtlasError(f"{resolved.name} is {resolved.as_copy}: without a change, no similarity is defined.", "")
        neighbours: list[Neighbour] = []
        is_stored = resolved.model_id is not None and resolved.vector is None and k <= NEIGHBOURS
        if is_stored and condition is None and not other_authors and not explain:
            neighbours = stored_neighbours(atlas, resolved, k, representation)
        if not neighbours:  # also where there are no lists, or the model has no vector, which is an error
            neighbours = _search(atlas, resolved, k, condition, other_authors, representation, explain)
    finally:
        if condition is not None:
            condition.abandon()
    notes = []
    if any(neighbour.is_shrunk for neighbour in neighbours):
        notes.append(
            "similarity is shrunk towards 0 where two models changed few of the same matrices (column matrices)"
        )
    if (
        neighbours
        and neighbours[0].matrices is not None
        and all(neighbour.background is None for neighbour in neighbours)
    ):
        notes.append("background: too few pairs of unrelated models (other author, no dataset in common) are known")
    # These counts do not make the view of models, which takes ten times as long.
    if not sample_gives(representation):
        (row,) = atlas.rows(
            "SELECT count(*) AS models FROM records JOIN fine_tunes USING (model_id) "
            "WHERE base = ? AND \"read\" = 'sample' AND NOT is_copy",
            [resolved.base],
        )
        notes += note_on_sampled(atlas, resolved.base, row["models"], f"{representation!r} vectors")
    (row,) = atlas.rows(
        "SELECT count(*) AS untrained FROM records JOIN fine_tunes USING (model_id) "
        "WHERE base = ? AND copy_evidence IN ('untrained', 'unmeasurable')",
        [resolved.base],
    )
    if row["untrained"]:
        notes.append(f"left out: {counted(row['untrained'], 'adapter')} that changed nothing measurable")
    notes += moving_notes(max((neighbour.similarity_error for neighbour in neighbours), default=0.0))
    notes += [*vector_notes(atlas, resolved), *unrelated_notes(resolved)]
    return SimilarModels(resolved.name, resolved.base, representation, tuple(neighbours), tuple(notes))


def _other_base(atlas: AtlasReader, model: str | Path, base: str | None) -> str | None:
    """``base`` by its canonical id, if the model is indexed under another base; else None."""
    reference = ModelRef.parse(str(model))
    if base is None or not reference.is_name:
        return None
    canonical = atlas.base_named(base)
    with suppress(AtlasError):  # of several bases, so that ``base`` says which is meant
        indexed = atlas.find(reference)
        return canonical if indexed is not None and indexed.base != canonical else None
    return None


def _across(
    atlas: AtlasReader,
    model: str,
    k: int,
    where: str | None,
    other_authors: bool,
    base: str | None,
    other_base: str | None,
    explain: bool,
    read: str | None,
) -> SimilarModels:
    """The models of all bases, or of ``other_base``, that moved the same words."""
    import numpy as np

    from indexer.records.representations.words import WORDS
    from query.models.across import nearest_by_words

    resolved = resolve_model(atlas, model, base, WORDS.name, read)
    if resolved.is_copy:
        raise AtlasError(f"{resolved.name} is {resolved.as_copy}: it moved no word.", "")
    vector = vector_of(atlas, resolved, WORDS.name)
    allowed_ids = _allowed(atlas, resolved, other_authors, None)
    if where is not None:
        from query.questions.sql import asked_condition

        condition = asked_condition(atlas.connection, where)
        allowed_ids = np.intersect1d(allowed_ids, np.asarray(condition.model_ids(), dtype=np.int64))
    nearest, notes = nearest_by_words(atlas, resolved.base, vector, k, allowed_ids, other_base)
    facts = _facts_of(atlas, [neighbour.model_id for neighbour in nearest])
    neighbours = tuple(
        Neighbour(
            rank=rank,
            similarity=neighbour.similarity,
            base=neighbour.base,
            score=neighbour.score,
            background=neighbour.background,
            background_high=neighbour.background_high,
            background_pairs=neighbour.pairs,
            expected_by_chance=None if neighbour.background is None else neighbour.background * neighbour.searched,
            words=neighbour.words if explain else None,
            **facts[neighbour.model_id],
        )
        for rank, neighbour in enumerate(nearest, start=1)
    )
    if neighbours and all(neighbour.background is None for neighbour in neighbours):
        notes.append("background: too few pairs of unrelated models (other author, no dataset in common) are known")
    notes += unrelated_notes(resolved)
    return SimilarModels(resolved.name, resolved.base, WORDS.name, neighbours, tuple(notes), other_base or "any base")


def _facts_of(atlas: AtlasReader, ids: list[int]) -> dict[int, dict[str, Any]]:
    """Model, author, relation and datasets of models, by id."""
    rows = atlas.rows(
        "SELECT model_id, model, author, relation, coalesce((SELECT list_sort(list(DISTINCT dataset)) "
        "FROM model_datasets AS named WHERE named.model_id = fine_tunes.model_id AND dataset IS NOT NULL), []) "
        "AS datasets FROM fine_tunes WHERE model_id IN (SELECT unnest($1::INTEGER[]))",
        [ids],
    )
    return {row.pop("model_id"): row for row in rows}


def _allowed(atlas: AtlasReader, model: ResolvedModel, other_authors: bool, base: str | None) -> NDArray[np.int64]:
    """The ids of the indexed models of ``base``, or of all bases, that may be found, ascending."""
    statement = (
        "SELECT model_id FROM fine_tunes WHERE coalesce(base = $1, true) AND status = 'indexed' "
        "AND model_id IS DISTINCT FROM $2 AND NOT ($3 AND author IS NOT DISTINCT FROM $4) ORDER BY model_id"
    )
    # As an array: making rows of a large atlas would take longer than the search.
    rows = atlas.connection.execute(statement, [base, model.model_id, other_authors, model.author]).fetchnumpy()
    allowed_ids: NDArray[np.int64] = rows["model_id"].astype("int64")
    return allowed_ids


def nothing_like(model: str, base: str) -> str:
    """A sentence on a model whose nearest models are no nearer than unrelated ones, without its full stop."""
    return f"No model of {base} is like {model}"


def moving_notes(error: float) -> tuple[str, ...]:
    """A note that similarities may still move by this much, if it is much."""
    if error < _MUCH_MOVED:
        return ()
    return (
        f"The similarity of full fine-tunes may move by up to {error:.2f} as models are added: their common part "
        "is subtracted, and is the mean of few authors or data sets.",
    )


def stored_neighbours(atlas: AtlasReader, model: ResolvedModel, k: int, representation: str) -> list[Neighbour]:
    """The ``k`` ≤ 50 nearest, from the database alone: neither FAISS nor the vectors are opened."""
    published = atlas.rows(
        "SELECT blocks, per_delta, vectors FROM representations WHERE base = ? AND representation = ?",
        [model.base, representation],
    )
    if not published:
        atlas.published(model.base, representation)  # raises an error that names those that are
    if model.read == SAMPLE and not model.is_copy and not sample_gives(representation):
        raise needs_all(atlas, model.base, [model.name], f"{representation!r} vector")
    blocks: int = published[0]["blocks"]
    has_matrices = blocks > 0 and bool(published[0]["per_delta"])
    rows = atlas.rows(
        "SELECT rank, neighbour_id, similarity FROM neighbours "
        "WHERE model_id = ? AND representation = ? AND rank <= ? ORDER BY rank",
        [model.model_id, representation, k],
    )
    masks = {
        row["model_id"]: row["changed"]
        for row in atlas.rows(
            "SELECT changed, model_id FROM (SELECT changed, unnest(model_ids) AS model_id FROM internal.vector_masks "
            "WHERE base = $1 AND representation = $2) WHERE list_contains($3::INTEGER[], model_id)",
            [model.base, representation, [model.model_id, *(row["neighbour_id"] for row in rows)]],
        )
    }
    every = "1" * blocks  # the masks list only vectors that left a block unchanged
    mask = masks.get(model.model_id, every)
    ids_and_similarities = [(row["neighbour_id"], row["similarity"]) for row in rows]
    facts = _facts_of_neighbours(atlas, model, ids_and_similarities, representation, published[0]["vectors"] - 1)
    neighbours = []
    for row in rows:
        model_id = row.pop("neighbour_id")
        if model_id in facts:  # an atlas from elsewhere may name models that it does not hold
            shared = sum(pair == ("1", "1") for pair in zip(mask, masks.get(model_id, every), strict=True))
            neighbours.append(
                Neighbour(
                    **row, **facts[model_id], matrices=shared if has_matrices else None,
                    is_shrunk=has_matrices and shared < fewest_shared(blocks),
                )
            )  # fmt: skip
    return neighbours


def _search(
    atlas: AtlasReader,
    model: ResolvedModel,
    k: int,
    condition: Condition | None,
    other_authors: bool,
    representation: str,
    explain: bool,
) -> list[Neighbour]:
    """The ``k`` nearest by exact search among the models that the conditions allow."""
    import numpy as np  # not at the top: stored neighbours need no numpy, whose import takes a fifth of their time

    vector = table_of(atlas, model, representation)
    index = atlas.index(model.base, representation)
    allowed_ids = _allowed(atlas, model, other_authors, model.base)
    if condition is not None:
        allowed_ids = np.intersect1d(allowed_ids, np.asarray(condition.model_ids(), dtype=np.int64))
    nearest = index.search(vector, k, allowed_ids)
    ids = [model_id for model_id, _ in nearest]
    shared = index.shared(vector, ids) if atlas.published(model.base, representation).per_delta else None
    fewest = fewest_shared(index.masks.blocks)
    reasons = _contributions(atlas, model.base, vector, ids, representation) if explain else {}
    sides = _sides(atlas, model, vector, ids, representation) if explain else {}
    compared_count = len(np.intersect1d(index.ids, allowed_ids, assume_unique=True))  # copies have no vector
    facts = _facts_of_neighbours(atlas, model, nearest, representation, compared_count)
    return [
        Neighbour(
            rank=rank,
            similarity=similarity,
            matrices=None if shared is None else int(shared[rank - 1]),
            is_shrunk=shared is not None and int(shared[rank - 1]) < fewest,
            because=reasons.get(model_id),
            **sides.get(model_id, {}),
            **facts[model_id],
        )
        for rank, (model_id, similarity) in enumerate(nearest, start=1)
    ]


def _facts_of_neighbours(
    atlas: AtlasReader,
    model: ResolvedModel,
    ids_and_similarities: list[tuple[int, float]],
    representation: str,
    compared_count: int,
) -> dict[int, dict[str, Any]]:
    """Facts from the database on the nearest models and on their similarity to ``model``, by id.

    ``compared_count``: how many models were compared with it.
    """
    # Not from the view ``models``, which would gather the datasets of all models: at 100,000 that takes twice as long.
    rows = atlas.rows(
        "SELECT model_id, model, author, relation, coalesce(datasets, []) AS datasets, "
        "(SELECT {'share': share, 'high': share_high} FROM "
        "background(fine_tunes.base, $1, vector_group, $2, found.similarity)) AS unrelated, "
        "(SELECT any_value(pairs) FROM null_similarity WHERE base = fine_tunes.base AND representation = $1 "
        "AND one_group = least(vector_group, $2) AND other_group = greatest(vector_group, $2)) AS background_pairs, "
        "(SELECT error FROM similarity_error(fine_tunes.base, $1, vector_group, $2)) AS similarity_error "
        "FROM (SELECT unnest($3::INTEGER[]) AS model_id, unnest($4::FLOAT[]) AS similarity) AS found "
        "JOIN fine_tunes USING (model_id) JOIN records USING (model_id) LEFT JOIN ("
        "SELECT model_id, list_sort(list(DISTINCT dataset)) AS datasets FROM model_datasets "
        "WHERE dataset IS NOT NULL AND model_id IN (SELECT unnest($3::INTEGER[])) GROUP BY model_id"
        ") AS named USING (model_id) WHERE status = 'indexed'",
        [
            representation,
            model.group,
            [model_id for model_id, _ in ids_and_similarities],
            [similarity for _, similarity in ids_and_similarities],
        ],
    )
    for row in rows:
        share, high = row.pop("unrelated").values()
        row |= {"background": share, "background_high": high}
        row["expected_by_chance"] = None if share is None else share * compared_count
    return {row.pop("model_id"): row for row in rows}


def _contributions(
    atlas: AtlasReader, base: str, vector: VectorTable, ids: list[int], representation: str
) -> dict[int, dict[str, dict[str, float]]]:
    """The contributions of families and layers to each similarity, over the blocks that both models have."""
    import numpy as np

    from indexer.vectors.table import VectorTable

    if not atlas.published(base, representation).per_delta:
        raise AtlasError(
            f"{representation!r} has no part for each matrix, so a similarity cannot be split by layer and family.",
            Text("Use ", Call(representation="input"), "."),
        )
    keys = atlas.delta_keys(base, representation)
    index = atlas.index(base, representation)
    sorted_ids = np.array(sorted(ids), dtype=np.int64)
    if index.masks.blocks:
        block_products = vector.parts(index.table(sorted_ids))
    else:  # of unit norm as a whole
        blocks = VectorTable(vector.inputs, len(keys)), VectorTable(index.table(sorted_ids).inputs, len(keys))
        block_products = blocks[0].products(blocks[1])
    reasons: dict[int, dict[str, dict[str, float]]] = {}
    for model_id, products in zip(sorted_ids.tolist(), block_products.tolist(), strict=True):
        families: Counter[str] = Counter()
        layers: Counter[str] = Counter()
        for key, contribution in zip(keys, products, strict=True):
            families[key.family_key] += contribution
            layers[key.layer_key] += contribution
        reasons[model_id] = {"families": dict(families.most_common()), "layers": dict(layers.most_common())}
    return reasons


def _sides(
    atlas: AtlasReader, model: ResolvedModel, table: VectorTable, ids: list[int], representation: str
) -> dict[int, dict[str, Any]]:
    """The side by which each of these models was compared, and whether it began at the same random numbers."""
    import numpy as np

    from indexer.vectors.table import by_output

    start = start_of(atlas, model)
    starts = {
        row["model_id"]: row["start"]
        for row in atlas.rows("SELECT model_id, start FROM records WHERE list_contains($1::INTEGER[], model_id)", [ids])
    }
    index = atlas.index(model.base, representation)
    is_output = np.zeros(len(ids), bool)
    if table.groups is not None:
        is_output = by_output(table.groups, index.adapters.codes(np.array(ids, dtype=np.int64)))
    return {
        model_id: {"compared_by": "output" if output else "input", "same_start": are_same(start, starts[model_id])}
        for model_id, output in zip(ids, is_output.tolist(), strict=True)
    }


def similarity_of(
    atlas: AtlasReader, first: ResolvedModel, second: ResolvedModel, representation: str = "input"
) -> tuple[float, float | None, int | None, int | None]:
    """The similarity of two models of one base, its background, the pairs behind that, and the matrices both changed.

    The last three are as in :class:`Neighbour`. Raises AtlasError if one of them has no vector.
    """
    first_vector, second_vector = (table_of(atlas, model, representation) for model in (first, second))
    # Vectors are kept in 16 bits, so that their blocks have nearly unit norm.
    similarity = min(1.0, max(-1.0, float(first_vector.similarities(second_vector, "float64")[0, 0])))
    shared = None
    if first_vector.blocks and atlas.published(first.base, representation).per_delta:
        shared = int(first_vector.shared(second_vector)[0])
    (unrelated,) = atlas.rows(
        "SELECT any_value(pairs) AS pairs FROM null_similarity WHERE base = ? AND representation = ? "
        "AND one_group = ? AND other_group = ?",
        [first.base, representation, *sorted((first.group, second.group))],
    )
    background = atlas.background(first.base, (first.group, second.group), similarity, representation)
    return similarity, background, unrelated["pairs"], shared
