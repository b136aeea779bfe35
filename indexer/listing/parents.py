"""The model that each listed adapter was trained on: the base, a fine-tune of it, or another model.

``base_model_name_or_path`` is whatever a training script was given: an old or new id of the base, a fine-tune, another
adapter, a quantised copy, or a local folder. Whether that model comes from the base is decided later, by its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from indexer.errors import Failed, ModelError
from indexer.listing.listed_models import ListedModel
from indexer.names import with_dots
from indexer.network.rows import commit_of, listed_filenames
from indexer.records.identity import ModelVersion
from indexer.sources.claims import (
    NO,
    UNSURE,
    classify_path,
    hub_spelling,
    is_named_after,
    relation_to,
    stated_bases,
    untyped_relation,
)
from indexer.sources.registry import ModelRef, is_listed_id, source_of
from indexer.sources.rows import row_of

# Adapters on adapters on …: deeper chains are refused, and circular ones not followed.
DEEPEST = 4
# The most models per build for which the Hub is asked in addition to the listing.
MOST_ASKED = 1_000
_LONGEST_NAME = 500
_CANNOT_ASK = frozenset({"network", "rate_limited", "server_error"})

Row = Mapping[str, Any]


class _TooDeep(LookupError):
    """A chain of adapters that is too long."""


class _Circle(LookupError):
    """A chain of adapters that leads back into itself."""


class Parents:
    """Looks up the bases of adapters. ``ids``: every id of the base model.

    ``ask`` returns the Hub's row of a model, or None if no such model can be read; without ``ask`` only the listing is
    used. ``copies``: id in lower case → the model that has the same weights, in 16 or 4 bits. A model named after the
    base, whose files have the checksums ``hashes`` of the base's, is the base. ``unknown`` collects what could not be
    resolved: adapter → the name it gives. Among these, ``refused`` are chains that are too long, and ``circles`` lead
    back to the adapter: adapter → a sentence. ``of_themselves``: the adapters that give their own name.
    """

    def __init__(
        self,
        ids: Collection[str],
        listed: Iterable[ListedModel],
        ask: Callable[[str], Row | None] | None,
        copies: Mapping[str, str] | None = None,
        hashes: Collection[str | None] = (),
    ) -> None:
        self._ids = (*ids, *source_of(next(iter(ids))).mirrors(ids))
        self._copies = copies or {}
        self._hashes = set() if None in hashes else {str(sha256) for sha256 in hashes}
        self._rows: dict[str, Row | None] = {model.id.lower(): model.row for model in listed}
        self._ask = ask
        self._left = MOST_ASKED
        self._asked_again: set[str] = set()
        self.unknown: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.circles: dict[str, str] = {}
        self.of_themselves: list[str] = []

    def of(self, model: ListedModel) -> ModelVersion | None:
        """The model that an adapter was trained on; None for the base, for an unknown model, and for other models."""
        alias = model.claimed_by.partition(":")[2]
        return self.of_row(model.row, alias) if model.relation == "adapter" else None

    def of_row(self, row: Row, alias: str = "") -> ModelVersion | None:
        """The same for an adapter's row; ``alias``: the copy of the base through which it was found."""
        identifier = str(row.get("id")).lower()
        if names_itself(named_base(row), identifier):
            self.of_themselves.append(str(row.get("id")))
        try:
            return self._below(row, (identifier,), alias)
        except LookupError as problem:
            if isinstance(problem, _TooDeep):
                self.refused[identifier] = str(problem)
            elif isinstance(problem, _Circle):
                self.circles[identifier] = str(problem)
            self.unknown[identifier] = named_base(row) or ""
            return None

    def spelling(self, identifier: str) -> str:
        """An id in lower case as its row spells it."""
        row = self._rows.get(identifier)
        return identifier if row is None else str(row.get("id"))

    def _below(self, row: Row, above: tuple[str, ...], alias: str = "") -> ModelVersion | None:
        """The model below an adapter, None for the base; ``above``: the ids from the first adapter down to this one.

        Raises LookupError for an unknown model.
        """
        base_name = named_base(row)
        verdict = classify_path(base_name, above[-1], {*self._ids, alias} if alias else self._ids)
        # Old ids have no owner and look like the name of a folder, so an unclear name may be one too.
        if base_name is None or verdict not in (NO, UNSURE):
            return None
        name, row_found, identifier = with_dots(hub_spelling(base_name.strip())), None, ""
        for _ in range(DEEPEST):
            seen = {name.lower()}
            while (copied := self._copies.get(name.lower())) is not None and copied.lower() not in seen:
                name = copied
                seen.add(name.lower())
            if name.lower() in {identifier_of_base.lower() for identifier_of_base in self._ids}:
                return None
            row_found = self._row(name)
            identifier = str(row_found.get("id")) if row_found else ""
            if row_found is None:
                raise LookupError(name)
            chain = " > ".join((*above, identifier.lower()))
            if identifier.lower() in above:
                raise _Circle(f"its bases lead back to {identifier}: {chain}")
            if len(above) > DEEPEST:
                raise _TooDeep(f"it stands on more than {DEEPEST} models, one on the other: {chain} > …")
            if identifier.lower() in {identifier_of_base.lower() for identifier_of_base in self._ids} or relation_to(
                row_found, self._ids, ("quantized",)
            ):
                return None  # the base after all
            # An adapter of a quantised copy is one of the model that was quantised.
            quantised = [
                identifier_of_base
                for identifier_of_base, relations in stated_bases(row_found).items()
                if "quantized" in relations
            ]
            if len(quantised) != 1:
                break
            name = quantised[0]
        else:
            raise LookupError(name)
        if self._is_base(identifier, row_found):
            return None
        commit, relation = commit_of(row_found), untyped_relation(row_found)
        if commit is None:
            raise LookupError(name)
        below = self._below(row_found, (*above, identifier.lower())) if relation == "adapter" else None
        return ModelVersion(ModelRef(identifier), commit, relation, below, listed_filenames(row_found))

    def _row(self, name: str, *, again: bool = False) -> Row | None:
        """The listed row of a model, else the Hub's; ``again``: the Hub's, with the checksums of its files."""
        if not is_listed_id(name):
            return None
        if (again or name.lower() not in self._rows) and self._ask is not None and self._left:
            self._left -= 1
            self._rows[name.lower()] = self._ask(name)
        return self._rows.get(name.lower())

    def _is_base(self, identifier: str, row: Row) -> bool:
        """Whether a model has the base's weight files, by the checksums that the Hub gives."""
        if not self._hashes or not is_named_after(identifier, self._ids):
            return False
        hashes = _checksums(row)
        if not hashes and identifier not in self._asked_again:
            self._asked_again.add(identifier)
            hashes = _checksums(self._row(identifier, again=True) or {})
        return self._hashes <= hashes


def _checksums(row: Row) -> set[str]:
    """The LFS checksums of a row's files, if it lists them."""
    files = row.get("siblings")
    lfs = [entry.get("lfs") for entry in files if isinstance(entry, Mapping)] if isinstance(files, list) else []
    return {str(entry.get("sha256")) for entry in lfs if isinstance(entry, Mapping)}


def named_base(row: Row) -> str | None:
    """``base_model_name_or_path`` of adapter_config.json, as the Hub's row repeats it; None if it is missing."""
    config = row.get("config")
    peft = config.get("peft") if isinstance(config, Mapping) else None
    base_name = peft.get("base_model_name_or_path") if isinstance(peft, Mapping) else None
    return base_name if isinstance(base_name, str) and 0 < len(base_name.strip()) <= _LONGEST_NAME else None


def names_itself(base_name: str | None, identifier: str) -> bool:
    """Whether an adapter gives its own id as that of its base."""
    return base_name is not None and hub_spelling(base_name.strip().rstrip("/")).lower() == identifier.lower()


def names_another(row: Row, base: str) -> bool:
    """Whether an adapter's row names something that is not spelled like the base."""
    return classify_path(named_base(row), str(row.get("id")), (base,)) in (NO, UNSURE)


def ask_source(name: str) -> Row | None:
    """The row of a model as its source gives it; None if no such model can be read.

    Raises AtlasError if the source cannot be asked.
    """
    try:
        reference = ModelRef.of_atlas(name)
        return None if reference.source.offline else row_of(reference)
    except ModelError as error:
        if isinstance(error, Failed) and error.reason in _CANNOT_ASK:
            what = f"the model {name}, which an adapter names as its base"
            raise source_of(name).stopped(error, what) from error
        return None
