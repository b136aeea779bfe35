"""The rows of one listing during one transaction: what a page of the Hub or an exported line changes in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from indexer.errors import WRONG_KINDS
from indexer.listing.base_database import plain
from indexer.listing.listed_models import Line, ListedModel
from indexer.names import RELATIONS
from indexer.sources.cards.modelcard import Licence
from indexer.sources.cards.readme import SENTENCE
from indexer.sources.claims import Claim
from indexer.sources.questions import COPY, WALKED, BadRow, CrawlProgress, RawRow, Step
from indexer.sources.registry import is_addable, is_listed_id
from indexer.storage.small_database import SmallTables, checked
from indexer.untrusted import Reader, is_too_deep, load_json

# Fields that belong to one commit, and are not carried over to the next.
_OF_COMMIT = ("siblings", "safetensors", SENTENCE)
# In place of a question, for a model that was restored to the listing from another source.
RESTORED = "restored"
# Sources of claims that cost requests to read.
_EXAMINED = ("adapter_config", "config", "card", "name")
# Steps of a path that are kept; longer ones are circles.
_MOST_STEPS = 20

Claims = Mapping[str, tuple[Claim, str]]
# (position, id, first seen, last seen, claim) of a model.
_Member = tuple[int, str, str, str, Claim]


@dataclass(frozen=True)
class CrawlState:
    """How far a crawl came. ``finished``: questions that are answered; ``cut``: those with answers left out."""

    id: str
    started: datetime
    parameters: dict[str, Any]
    current: str | None = None
    link: str | None = None
    oldest: str | None = None
    is_over: bool = False
    finished: frozenset[str] = field(default_factory=frozenset)
    cut: frozenset[str] = field(default_factory=frozenset)

    @property
    def is_narrowed(self) -> bool:
        """Whether it does not see the models of other authors, or older ones."""
        return any(self.parameters.get(name) for name in ("since", "author"))


@dataclass(frozen=True)
class Removal:
    """What is to be removed with a model: its rows under ``bases``, and its records if ``with_records``."""

    model: str
    bases: tuple[str, ...]
    with_records: bool


class ListingTables:
    """Reads and changes a listing. Methods that read leave out rows that are damaged."""

    def __init__(self, tables: SmallTables) -> None:
        self.tables = tables

    # What is listed.

    def ids(self) -> tuple[str, ...]:
        """The base's ids, the canonical one first."""
        return tuple(name for (name,) in self.tables.all("ids"))

    def licence(self) -> Licence | None:
        """The licence of the base, by its card."""
        return Licence.of_row(dict(self.tables.all("facts")))

    def note_base(self, ids: Iterable[str], licence: Licence | None) -> None:
        """Remember the base's ids, the canonical one first, and its licence, unless that is not known."""
        ids = list(ids)
        ids_before = self.ids()
        ordered = tuple(dict.fromkeys([*ids[:1], *ids_before, *ids]))
        if ordered != ids_before:
            self.tables.execute("DELETE FROM ids")
            self.tables.put_all("ids", ((name,) for name in ordered))
        if licence and licence != self.licence():
            self.tables.execute("DELETE FROM facts")
            self.tables.put_all("facts", ((name, plain(text)) for name, text in asdict(licence).items() if text))

    def steps(self) -> dict[str, tuple[Step, str]]:
        """Models that are not listed, with their step and the last crawl to show them."""
        rows = self.tables.all("steps")
        return {name: (Step(of, relation, downloads), crawl) for name, of, relation, downloads, crawl in rows}

    def note_step(self, identifier: str, step: Step, crawl: str) -> None:
        """Remember how a model that is not listed belongs to the family."""
        self.tables.put("steps", identifier, step.of, step.relation, step.downloads, crawl)

    def renamed(self) -> dict[str, str]:
        """Old name → new name."""
        return dict(self.tables.all("renamed"))

    def removed(self) -> dict[str, tuple[str, Removal | None]]:
        """Models that were taken out: when, and what is still to be done."""
        removals: dict[str, tuple[str, Removal | None]] = {}
        for name, seen, bases, with_records in self.tables.all("removed"):
            removal = None if bases is None else Removal(name, tuple(json.loads(bases)), bool(with_records))
            removals[name] = (seen, removal)
        return removals

    def bad_rows(self) -> list[tuple[BadRow, str]]:
        """Rows that could not be used, each with its crawl."""
        rows = self.tables.all("bad_rows")
        return [(BadRow(why, raw, key, _moment(seen)), crawl) for key, why, raw, seen, crawl in rows]

    def note_bad(self, bad: BadRow, crawl: str) -> None:
        """Remember a row that could not be used."""
        seen = (bad.seen or datetime.now(UTC)).isoformat()
        self.tables.put("bad_rows", plain(bad.key), plain(bad.why), plain(bad.raw), seen, crawl)

    def examined(self) -> list[tuple[str, str, str, str]]:
        """Untagged models that are no fine-tunes of the base: kind, id, commit, why."""
        return [(kind, name, sha, why) for kind, name, sha, why in self.tables.all("examined")]

    def note_examined(self, kind: str, identifier: str, commit: str, why: str) -> None:
        """Remember an untagged model that was examined and is not a fine-tune of the base."""
        self.tables.put("examined", kind, plain(identifier), plain(commit), plain(why))

    def models(self) -> list[ListedModel]:
        """Every model that was ever listed, in the order of their first appearance, with its path."""
        claims = self._all_claims()
        rows = self.tables.all("hub_rows")
        listed: list[ListedModel] = []
        number, text = -1, ""
        for member, identifier, first, last, claim in self._members():
            while number < member and (row := next(rows, None)) is not None:
                number, text = row
            if number != member:
                continue  # its row is damaged
            try:
                listed.append(
                    ListedModel(
                        identifier,
                        _row(text),
                        claim.relation,
                        claim.claimed_by,
                        claim.parent,
                        _moment(first),
                        _moment(last),
                        member not in claims,
                        claims.get(member, {}),
                    )
                )
            except WRONG_KINDS:
                continue
        paths = _Paths(self.ids(), listed, self.steps())
        return [replace(model, path=paths.of(model.id)) for model in listed]

    def gone(self) -> frozenset[str]:
        """Models that no question shows any more."""
        statement = "SELECT id FROM models WHERE number NOT IN (SELECT number FROM claims)"
        return frozenset(name for (name,) in self.tables.execute(statement))

    def model(self, identifier: str) -> ListedModel | None:
        """A listed model, without its path; None if it is not listed."""
        member = self._member(identifier)
        if member is None:
            return None
        number, name, first, last, claim = member
        claims = self._all_claims("WHERE number = ?", (number,)).get(number, {})
        seen = (_moment(first), _moment(last))
        return ListedModel(name, self._row_of(number), *claim.parts, *seen, not claims, claims)

    def row(self, identifier: str) -> RawRow | None:
        """The row of a listed model; None if it is not listed."""
        number = self._number(identifier)
        return None if number is None else self._row_of(number)

    def _members(self, where: str = "", values: tuple[Any, ...] = ()) -> Iterator[_Member]:
        for number, identifier, first, last, *claim in self.tables.all("models", where, values):
            yield number, identifier, first, last, Claim(*claim)

    def _all_claims(self, where: str = "", values: tuple[Any, ...] = ()) -> dict[int, dict[str, tuple[Claim, str]]]:
        claims_by_number: dict[int, dict[str, tuple[Claim, str]]] = {}
        shared_claims: dict[tuple[str, ...], Claim] = {}  # few claims differ
        crawls: dict[str, str] = {}
        for number, question, relation, claimed_by, parent, crawl in self.tables.all("claims", where, values):
            key = (relation, claimed_by, parent)
            claim = shared_claims.get(key) or shared_claims.setdefault(key, Claim(*key))
            question = crawls.setdefault(question, question)
            claims_by_number.setdefault(number, {})[question] = (claim, crawls.setdefault(crawl, crawl))
        return claims_by_number

    def _member(self, identifier: str) -> _Member | None:
        """A listed model; None if it is not listed, or its row is damaged, which is removed then."""
        rows = self.tables.execute("SELECT * FROM models WHERE id = ?", (plain(identifier),))
        if not rows:
            return None
        if (values := checked(rows[0])) is None:
            self._drop(identifier)
            return None
        number, name, first, last, *claim = values
        return number, name, first, last, Claim(*claim)

    def _number(self, identifier: str) -> int | None:
        rows = self.tables.execute("SELECT number FROM models WHERE id = ?", (plain(identifier),))
        return rows[0][0] if rows else None

    def _row_of(self, number: int) -> RawRow:
        stored = self.tables.get("hub_rows", number)
        return {} if stored is None else _row(stored[1])

    # What changes it.

    def see(
        self,
        identifier: str,
        claims: Claims,
        row: RawRow | None,
        seen: datetime,
        *,
        first_seen: datetime | None = None,
        was: Claim | None = None,
        names: Names | None = None,
    ) -> bool:
        """Note a model with these claims; returns whether it is new.

        Fields that ``row`` lacks keep their values, but for those of another commit; None: the row is as before.
        ``was``: its claim if it has none any more. Without ``names`` the names are looked up. Raises ValueError.
        """
        names = names or Names(self)
        identifier = plain(identifier)
        name = names.name_of(identifier, row)
        if name != identifier:
            identifier, row = name, None  # the row under the new name counts
        if "user" not in claims and names.is_removed(identifier):
            return False
        member = self._member(identifier)
        if member is not None:
            number, _, first, last, effective = member
            self._note_row(number, row)
            first = min(first, first_seen.isoformat()) if first_seen else first
            last = max(last, seen.isoformat())
            claim = self._note_claims(number, claims, effective, was)
        else:
            if not isinstance(row, dict):
                raise ValueError(f"{identifier} has no row")
            first, last = (first_seen or seen).isoformat(), seen.isoformat()
            (number,) = self.tables.execute("SELECT coalesce(max(number), 0) + 1 FROM models")[0]
            self.tables.put("hub_rows", number, _text(row))
            claim = self._note_claims(number, claims, None, was)
        self.tables.put("models", number, identifier, first, last, *claim.parts)
        names.listed(identifier)
        return member is None

    def complete(self, identifier: str, row: RawRow) -> None:
        """Complete the row of a listed model. Raises KeyError if it is not listed."""
        number = self._number(identifier)
        if number is None:
            raise KeyError(identifier)
        self._note_row(number, row)

    def _note_row(self, number: int, row: RawRow | None) -> None:
        """Complete the row of a known model; nothing is written if it says nothing new."""
        if row is None:
            return
        stored = self.tables.get("hub_rows", number)
        if stored is not None:
            if stored[1] == _encoded(row):
                return
            before = _row(stored[1])
            if row.get("sha") not in (None, before.get("sha")):
                before = {name: value for name, value in before.items() if name not in _OF_COMMIT}
            row = before | {name: value for name, value in row.items() if value is not None or name not in before}
        text = _text(row)
        if stored is None or stored[1] != text:
            self.tables.put("hub_rows", number, text)

    def _note_claims(self, number: int, claims: Claims, effective: Claim | None, was: Claim | None) -> Claim:
        """Store claims; returns the model's most trusted one. ``effective``: the one it had; None: it is new."""
        is_same = effective is not None and bool(claims)
        for question, (claim, crawl) in claims.items():
            values = (claim.relation, claim.claimed_by, plain(claim.parent))
            if is_same:
                stored = self.tables.get("claims", number, question)
                before = stored[2:5] if stored is not None else effective.parts if effective else ()
                is_same = before == values
            self.tables.put("claims", number, question, *values, crawl)
        if is_same and effective is not None:
            return effective
        others = {} if effective is None else self._all_claims("WHERE number = ?", (number,)).get(number, {})
        claims_now = [claim for claim, _ in (others or claims).values()]
        most_trusted = min(claims_now, key=lambda claim: claim.rank, default=was or effective)
        if most_trusted is None:
            raise ValueError("a model without a claim")
        return Claim(most_trusted.relation, most_trusted.claimed_by, plain(most_trusted.parent))

    def lose(self, identifier: str, questions: Iterable[str]) -> bool:
        """Take claims of a model away; returns whether it has none left. Its last claim is kept beside it."""
        member = self._member(identifier)
        if member is None:
            return False
        number, name, first, last, effective = member
        for question in questions:
            self.tables.execute("DELETE FROM claims WHERE number = ? AND question = ?", (number, question))
        claim = self._note_claims(number, {}, effective, None)
        self.tables.put("models", number, name, first, last, *claim.parts)
        return not self.tables.execute("SELECT 1 FROM claims WHERE number = ? LIMIT 1", (number,))

    def rename(self, old: str, new: str) -> None:
        """Note that the model ``old`` is called ``new`` now, and take the old name out. Raises ValueError."""
        if not is_listed_id(new) or old == new:
            raise ValueError("invalid new name")
        self.tables.execute("DELETE FROM renamed WHERE id = ?", (new,))
        self.tables.put("renamed", plain(old), new)
        before, after = self._member(old), self._member(new)
        if before is not None and after is not None:
            number, name, first, last, claim = after
            self.tables.put("models", number, name, min(first, before[2]), last, *claim.parts)
        self._drop(old)

    def remove(self, identifier: str, seen: str, pending: Removal | None = None) -> None:
        """Take a model out; ``pending`` as long as it has not been removed everywhere."""
        self._drop(identifier)
        bases = None if pending is None else json.dumps(pending.bases)
        with_records = None if pending is None else int(pending.with_records)
        self.tables.put("removed", plain(identifier), seen, bases, with_records)

    def _drop(self, identifier: str) -> None:
        number = self._number(identifier)
        if number is not None:
            for table in ("claims", "hub_rows", "models"):
                self.tables.execute(f"DELETE FROM {table} WHERE number = ?", (number,))

    # Crawls.

    def crawl(self) -> CrawlState | None:
        """The last crawl."""
        for name, started, parameters, current, link, oldest, is_over in self.tables.all("crawls"):
            answered = list(self.tables.all("answered"))
            return CrawlState(
                name,
                _moment(started),
                load_json(parameters),
                current,
                link,
                oldest,
                bool(is_over),
                frozenset(question for question, is_last, _ in answered if is_last),
                frozenset(question for question, _, is_cut in answered if is_cut),
            )
        return None

    def begin(self, crawl: CrawlState) -> None:
        """Begin a crawl; the one before is forgotten."""
        self.tables.execute("DELETE FROM crawls")
        self.tables.execute("DELETE FROM answered")
        self.store_crawl(crawl)

    def store_crawl(self, crawl: CrawlState) -> None:
        """Write how far a crawl came, except for its answered questions."""
        parameters, started = json.dumps(crawl.parameters), crawl.started.isoformat()
        current = None if crawl.current is None else plain(crawl.current)
        link = None if crawl.link is None else plain(crawl.link)
        self.tables.put("crawls", crawl.id, started, parameters, current, link, crawl.oldest, int(crawl.is_over))

    def note_answered(self, question: str, *, is_last: bool, is_cut: bool) -> None:
        """Note that a page of a question was read, the last one, or one with answers left out."""
        stored = self.tables.get("answered", plain(question)) or (question, 0, 0)
        answered = (int(is_last or stored[1]), int(is_cut or stored[2]))
        self.tables.put("answered", plain(question), *answered)

    def progress(self, crawl: CrawlState) -> CrawlProgress:
        """Where ``crawl`` can be resumed, and what every crawl may know from earlier ones."""
        # A narrowed crawl does not list other authors' models, so those of earlier crawls are asked about, too.
        narrows = crawl.is_narrowed
        family = {
            name: step
            for name, (step, seen) in self.steps().items()
            if step.relation in WALKED and (narrows or seen == crawl.id)
        }
        rejected: dict[str, tuple[str, Claim | None]] = {}
        compared: dict[str, tuple[str, Claim | None]] = {}
        for kind, identifier, commit, _ in self.examined():
            (rejected if kind == "rejected" else compared)[identifier] = (commit, None)
        where, values = ("", ()) if narrows else ("WHERE crawl = ? OR claimed_by = 'weights'", (crawl.id,))
        claims = self._all_claims(where, values)
        for number, identifier, _, _, effective in self._members():
            of_model = claims.get(number, {})
            walked = [
                claim
                for claim, seen in of_model.values()
                if (narrows or seen == crawl.id)
                and claim.relation in WALKED
                and claim.claimed_by.startswith(("tag", "alias"))
            ]
            by_weights = next((claim for claim, _ in of_model.values() if claim.claimed_by == "weights"), None)
            is_examined = effective.claimed_by in _EXAMINED
            if not (walked or by_weights or is_examined):
                continue
            row = self._row_of(number)
            commit = str(row.get("sha") or "")
            if walked:
                claim = min(walked, key=lambda claim: claim.rank)
                family[identifier] = Step(claim.parent, claim.relation, downloads_of(row))
            if is_examined:
                rejected[identifier] = (commit, effective)
            if by_weights:
                compared[identifier] = (commit, by_weights)
        return CrawlProgress(set(crawl.finished), crawl.current, crawl.link, crawl.oldest, family, rejected, compared)

    def no_longer_shown(self, crawl: CrawlState) -> dict[str, list[str]]:
        """For each model the questions that showed it before, and did not in this finished, complete crawl.

        Every complete crawl counts as an answer to ``RESTORED``.
        """
        answered = (crawl.finished - crawl.cut) | {RESTORED}
        relations = crawl.parameters.get("relations", ())
        unreadable = {bad.key for bad, seen in self.bad_rows() if seen == crawl.id}
        stale: dict[int, list[str]] = {
            number: questions
            for number, claims in self._all_claims("WHERE crawl <> ?", (crawl.id,)).items()
            if (
                questions := [
                    key for key, (claim, _) in claims.items() if key in answered and claim.relation in relations
                ]
            )
        }
        questions_by_model: dict[str, list[str]] = {}
        for number, questions in stale.items():
            for (identifier,) in self.tables.execute("SELECT id FROM models WHERE number = ?", (number,)):
                if BadRow.of({"id": identifier}, "").key not in unreadable:
                    questions_by_model[identifier] = questions
        return questions_by_model

    def end(self, crawl: CrawlState, *, is_complete: bool) -> int:
        """End a crawl; returns how many models have gone. ``is_complete``: nothing was narrowed or left out."""
        gone = 0
        if is_complete:
            for identifier, questions in self.no_longer_shown(crawl).items():
                gone += self.lose(identifier, questions)
            self.tables.execute("DELETE FROM bad_rows WHERE crawl <> ?", (crawl.id,))
        self.store_crawl(replace(crawl, is_over=True))
        return gone

    # Exported lines.

    def lines(self) -> Iterator[Line]:
        """Lines that add up to this listing, without its crawl."""
        ids = self.ids()
        if ids:
            licence = self.licence()
            texts = asdict(licence) if licence else {}
            yield {"kind": "base", "ids": list(ids)} | {name: text for name, text in texts.items() if text}
        for model in self.models():
            yield model.as_line()
        for bad, crawl in self.bad_rows():
            seen = bad.seen.isoformat() if bad.seen else ""
            yield {"kind": "bad", "crawl": crawl, "seen": seen, "key": bad.key, "why": bad.why, "raw": bad.raw}
        for kind, identifier, commit, why in self.examined():
            yield {"kind": kind, "id": identifier, "sha": commit, "why": why}
        for identifier, (step, crawl) in self.steps().items():
            yield {"kind": "step", "id": identifier, "crawl": crawl, **asdict(step)}
        for old, new in self.renamed().items():
            yield {"kind": "renamed", "id": old, "to": new}
        for identifier, (seen, removal) in self.removed().items():
            line: Line = {"kind": "removed", "id": identifier, "seen": seen}
            if removal is not None:
                line["pending"] = {"bases": list(removal.bases), "records": removal.with_records}
            yield line

    def apply(self, line: Line, names: Names) -> None:
        """Take one line into account. Raises ValueError, without a change, if it is not valid."""
        try:
            # Each case reads the whole line before it changes anything.
            match line["kind"]:
                case "model":
                    self._apply_model(line, names)
                case "bad":
                    bad = BadRow(str(line["why"]), str(line["raw"]), str(line["key"]), _moment(line["seen"]))
                    self.note_bad(bad, plain(str(line.get("crawl", ""))))
                case "rejected" | "unrelated" as kind:
                    self.note_examined(kind, str(line["id"]), str(line["sha"]), str(line["why"]))
                case "renamed":
                    if not isinstance(line["id"], str) or not isinstance(line["to"], str):
                        raise ValueError("invalid new name")
                    self.rename(line["id"], line["to"])
                    names.changed()
                case "removed":
                    self._apply_removed(line)
                    names.changed()
                case "step":
                    step = Step(line["of"], line["relation"], int(line["downloads"]))
                    is_known = step.relation in (*RELATIONS, COPY) and 0 <= step.downloads < 1 << 63
                    if not (is_listed_id(line["id"]) and is_listed_id(step.of) and is_known):
                        raise ValueError("a step between models that is not valid")
                    self.note_step(line["id"], step, plain(str(line.get("crawl", ""))))
                case "base":
                    ids, licence = line["ids"], Licence.of_row(line)
                    if not isinstance(ids, list) or not all(
                        isinstance(identifier, str) and is_listed_id(identifier) for identifier in ids
                    ):
                        raise ValueError("a base without ids")
                    self.note_base(ids, licence)
                case _:
                    raise ValueError("a line of an unknown kind")
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not a line of a listing ({type(error).__name__}: {error})") from error

    def _apply_model(self, line: Line, names: Names) -> None:
        identifier, seen, crawl = line["id"], _moment(line["seen"]), str(line.get("crawl", ""))
        claims = {
            plain(str(key)): (_read_claim(stored_claim), plain(str(stored_claim.get("crawl", crawl))))
            for key, stored_claim in line["claims"].items()
        }
        was = _read_claim(line["was"]) if "was" in line else None
        row = line.get("row")
        is_text = isinstance(identifier, str)
        if not is_text or not (is_addable if "user" in claims else is_listed_id)(identifier):
            raise ValueError("a model without an id")
        if not claims and was is None:
            raise ValueError(f"{identifier} has no claim")
        if not isinstance(row, dict):
            raise ValueError(f"{identifier} has no row")
        first_seen = _moment(line.get("first_seen", line["seen"]))
        self.see(identifier, claims, row, seen, first_seen=first_seen, was=was, names=names)

    def _apply_removed(self, line: Line) -> None:
        identifier, seen, pending = line["id"], line["seen"], line.get("pending")
        if not isinstance(identifier, str) or not isinstance(seen, str):
            raise ValueError("a removed model without an id")
        removal = None
        if pending is not None:
            bases, with_records = pending["bases"], pending["records"]
            if not isinstance(with_records, bool) or not isinstance(bases, list) or not all(map(is_listed_id, bases)):
                raise ValueError("a removal that is not valid")
            removal = Removal(identifier, tuple(bases), with_records)
        self.remove(identifier, plain(seen), removal)


class Names:
    """Under which name a model is listed, looked up for the models of a page or of a file of lines."""

    _TABLES = ("renamed", "removed", "examined")

    def __init__(self, listing: ListingTables) -> None:
        self._listing = listing
        self._filled: list[str] = []
        self.changed()

    def changed(self) -> None:
        """To be called after a change by other means than ``listed``."""
        execute = self._listing.tables.execute
        self._filled = [name for name in self._TABLES if execute(f"SELECT 1 FROM {name} LIMIT 1")]

    def is_removed(self, identifier: str) -> bool:
        """Whether the user took the model out."""
        statement = "SELECT 1 FROM removed WHERE id = ?"
        return "removed" in self._filled and bool(self._listing.tables.execute(statement, (plain(identifier),)))

    def name_of(self, identifier: str, row: RawRow | None) -> str:
        """The name under which a row's model is listed: the new one, if the row has an old one.

        A row of another commit than the renamed model's belongs to another model that has taken the old name.
        """
        renaming = self._listing.tables.get("renamed", plain(identifier)) if "renamed" in self._filled else None
        row_of_new_name = None if renaming is None else self._listing.row(renaming[1])
        is_same = row_of_new_name is not None and (row is None or row.get("sha") in (None, row_of_new_name.get("sha")))
        return renaming[1] if renaming is not None and is_same else identifier

    def listed(self, identifier: str) -> None:
        """A model is listed by this name, so it is not an old one, nor removed, nor no fine-tune."""
        for name in self._filled:
            kinds = "kind IN ('rejected', 'unrelated') AND " if name == "examined" else ""
            self._listing.tables.execute(f"DELETE FROM {name} WHERE {kinds}id = ?", (identifier,))


class _Paths:
    """The paths from the base to listed models, as far as the claims lead."""

    def __init__(
        self, ids: Iterable[str], models: Iterable[ListedModel], steps: Mapping[str, tuple[Step, str]]
    ) -> None:
        self._bases = {name.lower() for name in ids}
        self._models = {model.id: model for model in models}
        self._steps = steps

    def of(self, identifier: str) -> tuple[tuple[str, str], ...]:
        """The (relation, model) pairs from the base to a model."""
        steps_taken: list[tuple[str, str]] = []
        name = identifier
        while (
            len(steps_taken) < _MOST_STEPS
            and name.lower() not in self._bases
            and name not in {relation_taken for _, relation_taken in steps_taken}
        ):
            model, step = self._models.get(name), self._steps.get(name)
            if model is not None:
                relation, parent = model.relation, model.parent
                mirror = parent if model.claimed_by == f"alias:{parent}" else ""
            elif step is not None:
                relation, parent, mirror = step[0].relation, step[0].of, ""
            else:
                break
            steps_taken.append((relation, name))
            if mirror and mirror not in self._models and mirror not in self._steps:
                steps_taken.append((COPY, mirror))
                break
            name = parent
        return tuple(reversed(steps_taken))


def downloads_of(row: RawRow) -> int:
    """The downloads that a row gives; 0 if it gives none."""
    return Reader().count(row.get("downloads"), "downloads") or 0


_encoded = json.JSONEncoder(separators=(",", ":")).encode


def _text(row: RawRow) -> str:
    """A row as it is stored. Raises ValueError if it is nested too deeply."""
    if is_too_deep(row):
        raise ValueError(f"the row of {row.get('id')} is nested too deeply")
    # ASCII, so that any text from the Hub can be stored, lone surrogates included.
    return _encoded(row)


def _row(text: str) -> RawRow:
    """A stored row. Raises ValueError."""
    row = load_json(text)
    if not isinstance(row, dict) or is_too_deep(row):
        raise ValueError("not a row of the Hub")
    return row


def _moment(text: Any) -> datetime:
    """A time that was written here, in UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("a time outside the calendar") from error


def _read_claim(line: Line) -> Claim:
    claim = Claim(line["relation"], line["claimed_by"], line["parent"])
    if not all(isinstance(value, str) for value in (claim.relation, claim.claimed_by, claim.parent)):
        raise ValueError("a claim that is not text")
    return Claim(*map(plain, (claim.relation, claim.claimed_by, claim.parent)))
