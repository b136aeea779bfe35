"""The published vectors of a base as NumPy, a data frame, Parquet or .npz: models × numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from indexer.console.option import Option
from indexer.errors import AtlasError, require
from indexer.vectors.table import VectorTable
from query.contract.columns import Author, BaseId, DatasetList, ModelId, ModelNumber, Models, Relation
from query.contract.figures import checked_output, write_output
from query.contract.options import Base, Representation
from query.contract.registry import Invocation, question
from query.contract.results import Doc, Hidden, Key, Result
from query.contract.tables import parquet_of
from query.shared.wording import counted

if TYPE_CHECKING:
    import pandas

    from query.models.reader import AtlasReader

FORMATS = (".parquet", ".npz")
# A table of all similarities of more models does not fit the memory of most machines.
MOST_COMPARED = 20_000


@dataclass(frozen=True)
class VectorOf:
    """The model that a vector belongs to."""

    model_id: ModelNumber
    model: ModelId
    author: Author
    relation: Relation
    datasets: DatasetList


@dataclass(frozen=True, eq=False, repr=False)
class ModelVectors(Result):
    """The vectors of the models of a base; entry i of every column is the same model, in the order of ids.

    ``matrix`` (n, d) float32: of unit norm if ``blocks`` is 0. Otherwise a row consists of ``blocks`` blocks of equal
    length, each of unit norm, or zero if the model did not change that matrix. The similarity of two models is then the
    mean cosine of the blocks that both changed: use :meth:`similarity`, not the cosine of whole rows. ``outputs`` and
    ``groups``: what two adapters are compared by if the start of one is not known (``indexer.vectors.table``).
    """

    ROWS = "rows"

    base: BaseId
    representation: Annotated[str, Doc("Which vectors they are.")]
    ids: Annotated[NDArray[np.int64], Hidden()]
    models: Annotated[tuple[str, ...], Hidden()]
    authors: Annotated[tuple[str, ...], Hidden()]
    relations: Annotated[tuple[str, ...], Hidden()]
    datasets: Annotated[tuple[tuple[str, ...], ...], Hidden()]
    matrix: Annotated[NDArray[np.float32], Hidden()]
    blocks: Annotated[int, Doc("Number of blocks in a vector; 0 if it is one whole.")] = 0
    outputs: Annotated[NDArray[np.float32] | None, Hidden()] = None
    groups: Annotated[NDArray[np.uint8] | None, Hidden()] = None

    def __len__(self) -> int:
        return len(self.models)

    @property
    def headline(self) -> str:
        """The number of vectors, and their length."""
        of_blocks = f", in {self.blocks} blocks" if self.blocks else ""
        subject = f"{counted(len(self), 'vector')} of {self.base}, {self.representation}"
        return f"{subject}: {self.matrix.shape[1]:,} numbers each{of_blocks}"

    def similarity(self, models: Sequence[str] | None = None) -> NDArray[np.float32]:
        """The similarities (m, n), from -1 to 1, of ``models`` (default: all) to every model, as in ``query similar``.

        Raises AtlasError for an unknown name, and for a table of all models if these are too many.
        """
        if models is None and len(self) > MOST_COMPARED:
            raise AtlasError(f"A table of {len(self):,} × {len(self):,} similarities is too large.", "Name `models`.")
        index_of = {name: index for index, name in enumerate(self.models)}
        unknown = [name for name in models or () if name not in index_of]
        if unknown:
            raise AtlasError(f"{unknown[0]} has no {self.representation!r} vector.", "Names are in `models`.")
        table = VectorTable(self.matrix, self.blocks, self.outputs, self.groups)
        query_table = table if models is None else table.take([index_of[name] for name in models])
        return np.asarray(query_table.similarities(table), dtype=np.float32)

    @property
    def rows(self) -> list[VectorOf]:
        """A row for each model, without its vector."""
        columns = (self.ids.tolist(), self.models, self.authors, self.relations, map(list, self.datasets))
        return [VectorOf(*row) for row in zip(*columns, strict=True)]

    @property
    def numbers(self) -> Annotated[int, Doc("Length of a vector.")]:
        """Those of all blocks."""
        return int(self.matrix.shape[1])

    @property
    def count(self) -> Annotated[Models, Key("models")]:
        """In Python, ``models`` has their names."""
        return len(self)

    def to_df(self, by: str = "") -> pandas.DataFrame:
        """The matrix as a data frame: a row for each model, named by it, a column for each number.

        Raises AtlasError if pandas is not installed, ValueError if ``by`` is given: there is one kind of rows.
        """
        self._kind(by)
        require("A data frame", "pandas")
        import pandas

        return pandas.DataFrame(self.matrix, index=pandas.Index(self.models, name="model"))

    def write(self, path: str | Path) -> None:
        """Write .parquet (the columns of ``to_rows`` and ``vector``) or .npz (the same names, and ``matrix``).

        Both contain base, representation and blocks. Raises AtlasError for another suffix, or if the file cannot be
        written.
        """
        import io

        file = checked_output(path, FORMATS)
        target = io.BytesIO()
        facts = {name: str(value) for name, value in self.to_dict().items()}
        if file.suffix.lower() == ".npz":
            names = {"model": self.models, "author": self.authors, "relation": self.relations}
            name_columns = {name: np.array(values, dtype=str) for name, values in names.items()}
            first = np.array([";".join(model_datasets) for model_datasets in self.datasets], dtype=str)
            scalars = {name: np.array(value) for name, value in self.to_dict().items() if name != "models"}
            np.savez(target, model_id=self.ids, matrix=self.matrix, datasets=first, **name_columns, **scalars)  # type: ignore[arg-type]
        else:
            import pyarrow as pa

            table = pa.Table.from_pylist(self.to_rows(), pa.schema([
                ("model_id", pa.int64()), ("model", pa.string()), ("author", pa.string()), ("relation", pa.string()),
                ("datasets", pa.list_(pa.string())),
            ]))  # fmt: skip
            flat = pa.array(self.matrix.reshape(-1), pa.float32())
            vectors = pa.FixedSizeListArray.from_arrays(flat, int(self.matrix.shape[1]))
            target.write(parquet_of(table.append_column("vector", vectors).replace_schema_metadata(facts)))
        write_output(file, target.getvalue())


def _command(
    call: Invocation,
    base: str | None,
    out: Annotated[str, Option("The file to write: .parquet or .npz.", metavar="FILE")],
    **options: Any,
) -> None:
    file = checked_output(out, FORMATS)
    with call.opened() as atlas:
        vectors = atlas.vectors(base, **options)
        vectors.write(file)
        call.show(vectors, file=file, table=vectors.to_dict())


@question(example="export --base roberta-base --out vectors.parquet", command=_command)
def model_vectors(atlas: AtlasReader, base: Base = None, representation: Representation = "input") -> ModelVectors:
    """Write the vectors of the fine-tunes of a base, with ids, names and datasets.

    Returns:
        The published vectors: ids, names, datasets and ``matrix`` (models × numbers, float32). Copies of the base have
        no vector. ``similarity()`` of the result is the similarity that ``similar`` reports; the cosine of whole rows
        is not, if models changed different matrices. ``write("vectors.parquet")`` or ``.npz`` saves them.

    Raises:
        AtlasError: the base or the representation is not published.
    """
    canonical = atlas.base_named(base)
    index = atlas.index(canonical, representation)
    vectors = index.vectors()
    select = "SELECT model_id, model, author, relation, datasets FROM models WHERE base = ?"
    rows = {row["model_id"]: row for row in atlas.rows(select, [canonical])}
    model_rows = [row for model_id in vectors.ids.tolist() if (row := rows.get(model_id)) is not None]
    is_indexed = np.isin(vectors.ids, [row["model_id"] for row in model_rows])
    table = index.table(vectors.ids[is_indexed])
    return ModelVectors(
        base=canonical,
        representation=representation,
        ids=vectors.ids[is_indexed],
        models=tuple(row["model"] for row in model_rows),
        authors=tuple(row["author"] for row in model_rows),
        relations=tuple(row["relation"] for row in model_rows),
        datasets=tuple(tuple(row["datasets"]) for row in model_rows),
        matrix=vectors.matrix if is_indexed.all() else vectors.matrix[is_indexed],
        blocks=vectors.blocks,
        outputs=table.outputs,
        groups=table.groups,
    )
