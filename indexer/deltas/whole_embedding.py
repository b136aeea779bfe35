"""All rows of the input embedding of one model, for a question about it; an atlas holds some of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from indexer.deltas.embeddings import is_head_tied
from indexer.deltas.rounding import narrowest_dtype
from indexer.names import ModelRef
from indexer.network.session import install_session
from indexer.quantities import size_in_words
from indexer.records.tokens import RowChanges, row_changes
from indexer.weights.checkpoint import open_checkpoint


def compare_embeddings(
    model: ModelRef, commit: str | None, relation: str, base: ModelRef, base_commit: str, say: Callable[[str], None]
) -> tuple[RowChanges, int, int] | None:
    """The changes of all rows that both have, and the numbers of rows of the model and of the base.

    ``say`` hears first how much is read. None if the embeddings cannot be compared. Raises ModelError if a file cannot
    be read.
    """
    install_session()
    with closing(open_checkpoint(model, commit=commit, relation=relation)) as mine:
        name = mine.token_embedding
        with closing(open_checkpoint(base, commit=base_commit)) as theirs:
            base_name = theirs.token_embedding
            if name is None or base_name is None:
                return None
            infos = mine.tensors[name], theirs.tensors[base_name]
            if infos[0].shape[1] != infos[1].shape[1]:
                return None
            sizes = [size_in_words(info.nbytes) for info in infos]
            say(f"reading all of two input embeddings: {sizes[0]} of the model's and {sizes[1]} of the base's")
            count = min(info.shape[0] for info in infos)
            ((_, rows),) = mine.stripes({name: [range(count)]})
            ((_, base_rows),) = theirs.stripes({base_name: [range(count)]})
            dtype = str(narrowest_dtype(rows)).removeprefix("torch.")
            found = row_changes(rows, base_rows, dtype, tied=is_head_tied(mine))
    return None if found is None else (found[0], infos[0].shape[0], infos[1].shape[0])
