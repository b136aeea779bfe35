"""Indexed models of one base that are to be worked on again: named, or chosen by a condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from indexer.atlas import AtlasFolder
from indexer.builds.options import IndexedOptions
from indexer.builds.report import Watcher
from indexer.database.connection import Connection, base_named, indexed_models, published_bases
from indexer.errors import AtlasError, BadArgument
from indexer.listing.listing import ListedModel
from indexer.listing.trees import QUESTION
from indexer.sources.claims import BY_FOLDER
from indexer.vectors.published import PublishedBase


def check_choice(names: Sequence[str], base: str | None, options: IndexedOptions) -> None:
    """Raise BadArgument if nothing says which models, or two arguments do."""
    if not names and base is None:
        raise BadArgument("Name models, or a `base`.", "")
    if names and (options.where is not None or options.limit is not None):
        raise BadArgument("`where` and `limit` choose among the models of a `base`.", "Leave them out to name models.")


def choose_indexed(
    folder: AtlasFolder,
    connection: Connection,
    names: Sequence[str],
    base: str | None,
    condition: str,
    what: str,
    options: IndexedOptions,
) -> tuple[PublishedBase, dict[str, dict[str, Any]]]:
    """The models with these names, or those of ``base`` that fulfil ``condition``, most downloads first.

    Returns their base, and by name their rows, which have ``model`` and ``read``.

    ``condition`` is SQL on the view models, as ``options.where`` is; ``what`` is said of the models in an error. Raises
    AtlasError as ``indexed_models``, and if ``where`` holds for none.
    """
    where = options.where
    base_id = base_named(connection, base) if base is not None else None
    if names:
        rows = indexed_models(connection, names, base_id)
    else:
        narrowed = "" if where is None else f" AND (\n{where}\n)"
        rows = connection.rows(
            f'SELECT model, base, "read" FROM models WHERE base = $base AND {condition}{narrowed} '
            "ORDER BY downloads DESC NULLS LAST, model LIMIT coalesce($limit, 1000000000)",
            {"base": base_id, "limit": options.limit},
        )
    if not rows and where is not None:
        raise AtlasError(f"No {what} of {base_id} matches this condition.", "List them: `query models`")
    (published,) = published_bases(connection, str(rows[0]["base"] if rows else base_id))
    return PublishedBase.of(folder, published), {str(row["model"]): row for row in rows}


def refuse_folders(models: Sequence[ListedModel], is_named: bool, advice: str, again: str, watcher: Watcher) -> None:
    """Say that models from folders cannot be read again: their paths are not stored, or nothing is there any more.

    ``advice`` and ``again``: what to do about one, as a sentence and within one. Raises AtlasError if the models were
    named.
    """
    folders = sorted(model.id for model in models if model.claimed_by == BY_FOLDER)
    if not folders:
        return
    why = f"{folders[0]} is a folder, whose path is not stored"
    if any(model.claims.keys() and all(name.startswith(QUESTION) for name in model.claims) for model in models
           if model.id == folders[0]):  # fmt: skip
        why = f"{folders[0]} was found in a tree, and is not there as it was"
    if is_named:
        raise AtlasError(f"{why}.", advice)
    watcher.say(f"{why}: {again} ({len(folders)} of these)")
