"""An open generation of an atlas: its database and, if a question needs them, its vectors."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from indexer.atlas import DEMO_FOLDER, AtlasFolder, demo_note, is_on_hub
from indexer.database.connection import base_named, model_ending_in, published_bases
from indexer.database.reading import Reading
from indexer.errors import WRONG_KINDS, AtlasError, Call, Text
from indexer.names import DeltaKey, with_dots
from indexer.sources.registry import ModelRef, page_of
from query.shared.sandbox.locked import SETTINGS

if TYPE_CHECKING:
    from indexer.vectors.centre import Centre
    from indexer.vectors.published import Published, PublishedBase
    from indexer.vectors.search import VectorIndex

PUBLIC_HUB = "https://huggingface.co"
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]{1,200}(/[A-Za-z0-9._/-]{0,200})?")


@dataclass(frozen=True)
class IndexedModel:
    """One (model, base) of the atlas."""

    model_id: int
    model: str
    base: str
    author: str
    commit: str | None
    status: str
    reason: str | None
    detail: str | None
    read: str
    is_copy: bool
    copy_evidence: str | None
    is_unrelated: bool
    base_cosine: float | None
    vector_group: str | None
    initialisation: int | None


@dataclass(frozen=True)
class CrawlSource:
    """The source of the list of a base's fine-tunes.

    Attributes:
        endpoint: the address of the Hub, without a final slash.
        options: the options of the crawl; None if the atlas does not store them.
        has_pages: False if no model has a page, as those of the demo.
    """

    endpoint: str = PUBLIC_HUB
    options: tuple[str, ...] | None = None
    has_pages: bool = True

    @classmethod
    def of(cls, specs: Sequence[Any]) -> CrawlSource:
        """From the specs of a base's builds, the latest first; malformed specs are skipped."""
        for spec in specs:
            if not isinstance(spec, dict) or "options" not in spec:
                continue
            endpoint, options = str(spec.get("endpoint", PUBLIC_HUB)).rstrip("/"), spec["options"]
            if _ADDRESS.fullmatch(endpoint) and isinstance(options, list):
                return cls(endpoint, tuple(map(str, options)))
        return cls()

    def page_of(self, model: str) -> str | None:
        """The address of a model's page; None for a model that is not on the Hub."""
        return page_of(model, self.endpoint) if self.has_pages else None


class AtlasReader:
    """One generation of a published atlas, opened read-only, for any number of threads; a build may be running.

    :class:`query.Atlas` answers from the latest generation. If another program has opened the database for writing, a
    private copy is read instead, with a remark in ``notes``.

    Args:
        path: the atlas's folder, its address on the Hub (hf://owner/name@tag), from which it is fetched once into the
            Hub's cache, or "demo" for the one that comes with the program.
        remarks: sentences that ``notes`` begins with.

    Raises:
        AtlasError: there is no atlas, it has another schema, or it contains objects that schema.sql does not define.
            Later failures, for example if the atlas is closed, are AtlasErrors, too.

    Attributes:
        is_overtaken: vectors that a question needed are gone, because of later publishes.
        has_stored_answers: a question has published its answers, which only a later generation contains.
    """

    def __init__(self, path: str | Path = "atlas", remarks: Sequence[str] = ()) -> None:
        self._remarks = [*remarks, *filter(None, [demo_note(path)])]
        if is_on_hub(path):
            from indexer.share.cache import cached_atlas

            path = cached_atlas(str(path), self._remarks.append)
        self.folder = AtlasFolder(path).require()
        self.is_overtaken = self.has_stored_answers = False
        self._file_then = self._file_now()
        self.connection = Reading(self.folder.database, settings=SETTINGS, copies_held=True)
        self._indexes: dict[tuple[str, str], VectorIndex] = {}
        self._opening = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and the vectors. No other thread may be using them."""
        self.connection.close()
        self._indexes.clear()

    def latest(self) -> AtlasReader:
        """A reader of the latest published generation."""
        return AtlasReader(self.folder.root, self._remarks)

    @property
    def is_outdated(self) -> bool:
        """Whether another generation was published after this one was opened."""
        return self._file_now() != self._file_then

    @property
    def state(self) -> str | None:
        """A key of this publish of the atlas, for caches of results computed from it; None for a copy."""
        if self._file_then is None or self.connection.is_copy:
            return None
        return " ".join(map(str, (*self._file_then, self.generation)))

    def _file_now(self) -> tuple[int, int] | None:
        try:
            status = self.folder.database.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    @property
    def is_demo(self) -> bool:
        """Whether this is the atlas that comes with the program, whose models are on no Hub."""
        return self.folder.root == DEMO_FOLDER

    @property
    def notes(self) -> list[str]:
        """Remarks on how the atlas was opened."""
        return [*self._remarks, *self.connection.notes]

    @property
    def generation(self) -> int:
        """The number of publishes."""
        rows = self.rows("SELECT generation FROM atlas_info")
        return int(rows[0]["generation"]) if rows else 0

    @property
    def database(self) -> Path:
        """The database file: the atlas's own, or a private copy if that cannot be read."""
        return self.connection.file

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The rows of a trusted statement, as dicts."""
        return self.connection.rows(statement, list(parameters))

    def bases(self) -> list[str]:
        """Canonical ids of all bases, sorted."""
        return [row["base"] for row in self.rows("SELECT base FROM bases ORDER BY base")]

    def base_named(self, name: str | None) -> str:
        """The canonical id of a base, by any of its names, its address, or an unambiguous end of its id.

        Without ``name``, the only base of the atlas. Raises AtlasError if there is none, or there are several.
        """
        if name is not None:
            return base_named(self.connection, name)
        bases = self.bases()
        if len(bases) == 1:
            return bases[0]
        raise AtlasError(
            f"This atlas holds {len(bases)} bases ({', '.join(bases) or 'none'}).",
            Text("Say which with ", Call(base="ID"), "."),
        )

    def base_row(self, base: str) -> dict[str, Any]:
        """The row of a base in the table ``bases``, by its canonical id. Raises AtlasError if there is none."""
        rows = self.rows("SELECT * FROM bases WHERE base = ?", [base])
        if not rows:
            raise AtlasError(f"The atlas names a base {base} that it does not contain.", "Run `index verify`.")
        return rows[0]

    def delta_keys(self, base: str, representation: str | None = None) -> list[DeltaKey]:
        """The deltas of a base, in the order of the blocks of its vectors.

        ``representation``: its vectors must have a block for each delta. Raises AtlasError if they have not, or if the
        atlas, which may be from a stranger, does not name the deltas.
        """
        names = self.base_row(base)["deltas"] or ()
        try:
            keys = [DeltaKey.parse(name) for name in names]
        except WRONG_KINDS:
            keys = []
        if not keys:
            raise AtlasError(f"The atlas does not say which matrices {base} has.", "Run `index rebuild`.")
        if representation is not None:
            published = self.published(base, representation)
            blocks = published.masks.blocks
            if published.count and (blocks not in (0, len(keys)) or published.length % len(keys)):
                raise AtlasError(
                    f"Vectors of {base}, {representation}, do not have a block for each of its {len(keys)} matrices.",
                    "Run `index rebuild`.",
                )
        return keys

    def crawl_of(self, base: str) -> CrawlSource:
        """The Hub and the options of the latest crawl of ``base``; the public Hub if the atlas does not store them."""
        rows = self.rows("SELECT spec FROM builds WHERE base = ? ORDER BY build_id DESC", [base])
        crawled = CrawlSource.of([json.loads(row["spec"] or "{}") for row in rows])
        return replace(crawled, has_pages=not self.is_demo)

    def from_folders(self, base: str) -> frozenset[str]:
        """The models of ``base`` that were added from folders: a name like one on the Hub has no page there.

        All models of the demo are such.
        """
        condition = "true" if self.is_demo else "claimed_by = 'folder'"
        rows = self.rows(f"SELECT model FROM fine_tunes WHERE base = ? AND {condition}", [base])
        return frozenset(row["model"] for row in rows)

    def find(self, reference: ModelRef, base: str | None = None) -> IndexedModel | None:
        """The listed model with this id, or with an id that ends with it; None if there is none.

        Raises AtlasError if it has several bases and ``base`` is None, if ``base`` is not one of them, and if several
        ids end with it.
        """
        rows = self._listed("model = ?", reference.id) or self._listed("lower(model) = lower(?)", reference.id)
        if not rows and (full_id := model_ending_in(self.connection, reference.id)) is not None:
            return self.find(replace(reference, id=full_id), base)
        if not rows and (dotted := with_dots(reference.id)) != reference.id:
            return self.find(replace(reference, id=dotted), base)
        rows = [row for row in rows if row["model"] == rows[0]["model"]]
        if reference.revision is not None:
            rows = [row for row in rows if (row["commit"] or "").startswith(reference.revision)]
        canonical = self.base_named(base) if base is not None else None
        if rows and canonical is not None:
            matching = [row for row in rows if row["base"] == canonical]
            if not matching:
                other_bases = ", ".join(row["base"] for row in rows)
                raise AtlasError(
                    f"{rows[0]['model']} is a fine-tune of {other_bases}, not of {canonical}: "
                    "models of different bases cannot be compared.",
                    "Leave `base` out.",
                )
            rows = matching
        if len(rows) > 1:
            bases = ", ".join(row["base"] for row in rows)
            raise AtlasError(
                f"{rows[0]['model']} has records for several bases ({bases}).",
                Text("Say which with ", Call(base="ID"), "."),
            )
        return IndexedModel(**rows[0]) if rows else None

    def model(self, model_id: int) -> IndexedModel | None:
        """The model with this id; None if there is none."""
        rows = self._listed("model_id = ?", model_id)
        return IndexedModel(**rows[0]) if rows else None

    def _listed(self, condition: str, value: str | int) -> list[dict[str, Any]]:
        """Rows of the models that satisfy a condition on one column: reading columns takes most of the time."""
        return self.rows(
            'SELECT model_id, model, base, author, "commit", status, reason, detail, '
            'coalesce("read", \'full\') AS "read", coalesce(is_copy, false) AS is_copy, copy_evidence, '
            "coalesce(is_unrelated, false) AS is_unrelated, base_cosine, "
            "vector_group, initialisation FROM fine_tunes LEFT JOIN records USING (model_id) "
            f"WHERE model_id IN (SELECT model_id FROM fine_tunes WHERE {condition}) ORDER BY base, model",
            [value],
        )

    def published_base(self, base: str | None, claimed: Sequence[str] = ()) -> PublishedBase:
        """``base``, else the only base of the atlas, else the first of ``claimed`` that the atlas contains.

        Raises AtlasError if there is none, or nothing is published for it.
        """
        if base is None and len(bases := self.bases()) > 1:
            for name in claimed:
                with suppress(AtlasError):
                    base = self.base_named(name)
                    break
            else:
                claims = f"claims {', '.join(claimed)}" if claimed else "claims no base"
                raise AtlasError(
                    f"The model {claims}; the bases of this atlas are {', '.join(bases)}.",
                    Text("Say which with ", Call(base="ID"), "."),
                )
        canonical = self.base_named(base)
        rows = published_bases(self.connection, canonical)
        if not rows:
            raise AtlasError(f"Nothing is published for {canonical}.", Text("Run: ", Call("build", canonical)))
        from indexer.vectors.published import PublishedBase

        return PublishedBase.of(self.folder, rows[0])

    def require_writable(self) -> None:
        """Raises AtlasError if answers cannot be stored, because this atlas comes with the program."""
        self.folder.require_writable()

    def require_base_elsewhere(self) -> None:
        """Raises AtlasError if the bases of this atlas can be fetched from nowhere: those of the demo are on no Hub."""
        if self.is_demo:
            raise AtlasError("The base of the atlas demo is on no Hub.", "With an atlas of your own it works.")

    def is_published(self, base: str, representation: str) -> bool:
        """Whether a base has vectors of this representation; loads nothing."""
        statement = "SELECT 1 FROM representations WHERE base = ? AND representation = ?"
        return bool(self.rows(statement, [base, representation]))

    def published(self, base: str, representation: str) -> Published:
        """The facts about a published representation.

        Raises AtlasError if it is not published, with a list of the published ones, or if its name is unknown.
        """
        from indexer.vectors.published import read_published

        published = read_published(self.connection, base, representation)
        if published is None:
            from indexer.records.representations.registry import representation_named

            representation_named(representation)
            rows = self.rows("SELECT representation FROM representations WHERE base = ? ORDER BY ALL", [base])
            names = ", ".join(row["representation"] for row in rows) or "none"
            raise AtlasError(
                f"The representation {representation!r} is not published for {base} (published: {names}).",
                f"Publish it: index represent {representation}",
            )
        return published

    def centre(self, base: str, representation: str = "input") -> Centre | None:
        """The mean that was subtracted from the vectors of each group before publishing; None if they are uncentred."""
        from indexer.vectors.published import read_centre

        return read_centre(self.connection, base, representation)

    def background(
        self, base: str, groups: tuple[str, str], similarity: float, representation: str = "input"
    ) -> float | None:
        """The share of pairs of unrelated models in ``groups`` that are at least as similar; None for too few pairs."""
        rows = self.rows("SELECT share FROM background(?, ?, ?, ?, ?)", [base, representation, *groups, similarity])
        return rows[0]["share"]

    def similarity_error(self, base: str, groups: tuple[str, str], representation: str = "input") -> float:
        """How far the similarity of two models of these ``groups`` may move as models are added."""
        rows = self.rows("SELECT error FROM similarity_error(?, ?, ?, ?)", [base, representation, *groups])
        return float(rows[0]["error"])

    def index(self, base: str, representation: str = "input") -> VectorIndex:
        """A search index over the memory-mapped vectors of a base; it stays open.

        Raises AtlasError if a file is damaged, or was deleted by a publish after this generation was opened.
        """
        key = (base, representation)
        with self._opening:
            if key not in self._indexes:
                published = self.published(base, representation)
                try:
                    from indexer.records.representations.comparison import as_compared

                    root = self.folder.root
                    opened = published.opened(root)
                    self._indexes[key] = as_compared(opened, self.connection, base, representation, root)
                except AtlasError:
                    if not (self.folder.root / published.file.name).exists():
                        self.is_overtaken = self.is_outdated
                    raise
            return self._indexes[key]
