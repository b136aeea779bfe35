"""The state that the lines of a listing file add up to. Nothing here reads a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from indexer.cards.readme import SENTENCE
from indexer.listing.listed_models import Line, ListedModel
from indexer.names import RELATIONS
from indexer.sources.claims import Claim
from indexer.sources.questions import COPY, WALKED, BadRow, CrawlProgress, RawRow, Step
from indexer.sources.registry import is_addable, is_listed_id
from indexer.untrusted import is_too_deep

# Fields that belong to one commit, and are not carried over to the next.
_OF_COMMIT = ("siblings", "safetensors", SENTENCE)
# In place of a question, for a model that was restored to the listing from another source.
RESTORED = "restored"
# Sources of claims that cost requests to read.
_EXAMINED = ("adapter_config", "config", "card", "name")
# Steps of a path that are kept; longer ones are circles.
_MOST_STEPS = 20


@dataclass
class CrawlState:
    """How far a crawl came. ``cut``: questions whose answers were not all examined."""

    id: str
    started: datetime
    parameters: dict[str, Any]
    finished: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    current: str | None = None
    link: str | None = None
    oldest: str | None = None
    is_over: bool = False


@dataclass(frozen=True)
class Removal:
    """What is to be removed with a model: its rows under ``bases``, and its records if ``with_records``."""

    model: str
    bases: tuple[str, ...]
    with_records: bool


class State:
    """What the lines so far add up to; ``apply`` adds one."""

    def __init__(self) -> None:
        self.models: dict[str, ListedModel] = {}
        self.bad: dict[str, tuple[BadRow, str]] = {}
        # By kind of line and model: the commit that was examined, and why the model is not a fine-tune of the base.
        self.rejected: dict[str, dict[str, tuple[str, str]]] = {"rejected": {}, "unrelated": {}}
        self.renamed: dict[str, str] = {}
        self.removed: dict[str, str] = {}
        self.removals: dict[str, Removal] = {}  # those that are not finished, by model
        self.steps: dict[str, tuple[Step, str]] = {}  # of models that are not listed, and the last crawl to show them
        self.ids: tuple[str, ...] = ()
        self.licence: str | None = None  # of the base
        self.crawl: CrawlState | None = None
        self.lines = 0

    def apply(self, line: Any) -> None:
        """Take one line into account. Raises ValueError, without a change, if it is not valid."""
        try:
            # Each case reads the whole line before it changes anything.
            match line["kind"]:
                case "model":
                    self._apply_model(line)
                case "gone":
                    model, questions = self.models[line["id"]], {str(key) for key in line["questions"]}
                    left = {key: claim for key, claim in model.claims.items() if key not in questions}
                    self.models[model.id] = model.with_claims(left)
                case "bad":
                    bad = BadRow(str(line["why"]), str(line["raw"]), str(line["key"]), _moment(line["seen"]))
                    self.bad[bad.key] = (bad, str(line.get("crawl", "")))
                case "rejected" | "unrelated" as kind:
                    self.rejected[kind][str(line["id"])] = (str(line["sha"]), str(line["why"]))
                case "renamed":
                    old, new = line["id"], line["to"]
                    if not (isinstance(old, str) and isinstance(new, str) and is_listed_id(new)) or old == new:
                        raise ValueError("invalid new name")
                    self.renamed.pop(new, None)
                    self.renamed[old] = new
                    before, after = self.models.pop(old, None), self.models.get(new)
                    if before is not None and after is not None:
                        self.models[new] = replace(after, first_seen=min(after.first_seen, before.first_seen))
                case "removed":
                    identifier, seen, pending = line["id"], line["seen"], line.get("pending")
                    if not isinstance(identifier, str) or not isinstance(seen, str):
                        raise ValueError("a removed model without an id")
                    removal = None if pending is None else _read_removal(identifier, pending)
                    self.models.pop(identifier, None)
                    self.removed[identifier] = seen
                    self.removals.pop(identifier, None)
                    if removal is not None:
                        self.removals[identifier] = removal
                case "step":
                    identifier, crawl_id = line["id"], str(line.get("crawl", ""))
                    step = Step(line["of"], line["relation"], int(line["downloads"]))
                    is_known = step.relation in (*RELATIONS, COPY)
                    if not (is_listed_id(identifier) and is_listed_id(step.of) and is_known and step.downloads >= 0):
                        raise ValueError("a step between models that is not valid")
                    self.steps[identifier] = (step, crawl_id)
                case "base":
                    ids, licence = line["ids"], line.get("licence")
                    if not isinstance(ids, list) or not all(isinstance(one, str) and is_listed_id(one) for one in ids):
                        raise ValueError("a base without ids")
                    if licence is not None and not isinstance(licence, str):
                        raise ValueError("a licence that is not text")
                    self.ids = tuple(dict.fromkeys([*ids[:1], *self.ids, *ids]))
                    self.licence = licence or self.licence
                case "start":
                    self.crawl = CrawlState(str(line["crawl"]), _moment(line["seen"]), dict(line["parameters"]))
                case "page" | "finish" as kind:
                    crawl = self.crawl
                    if crawl is None or crawl.id != line["crawl"]:
                        raise ValueError("a line of an unknown crawl")
                    if kind == "page":
                        question, link, is_last = str(line["question"]), line["next"], line["last"]
                        if is_last:
                            crawl.finished.add(question)
                        if line.get("cut"):
                            crawl.cut.add(question)
                        crawl.current, crawl.link = (question, str(link)) if link else (None, None)
                        oldest = line.get("oldest")
                        crawl.oldest = oldest if link and isinstance(oldest, str) else None
                    else:
                        is_complete = line["complete"]
                        crawl.is_over = True
                        if is_complete:
                            self.bad = {key: pair for key, pair in self.bad.items() if pair[1] == crawl.id}
                case _:
                    raise ValueError("a line of an unknown kind")
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not a line of a listing ({type(error).__name__}: {error})") from error
        self.lines += 1

    def name_of(self, identifier: str, row: RawRow | None) -> str:
        """The name under which a row's model is listed: the new one, if the row has an old one.

        A row of another commit than the renamed model's belongs to another model that has taken the old name.
        """
        renamed = self.models.get(self.renamed.get(identifier, ""))
        is_same = renamed is not None and (row is None or row.get("sha") in (None, renamed.row.get("sha")))
        return renamed.id if renamed is not None and is_same else identifier

    def merged(self, identifier: str, row: RawRow) -> RawRow:
        """The row, completed by what was known before.

        A field that is missing or null does not erase an earlier value; the files of another commit are dropped.
        """
        known = self.models.get(identifier)
        before = dict(known.row) if known else {}
        if row.get("sha") not in (None, before.get("sha")):
            for name in _OF_COMMIT:
                before.pop(name, None)
        return {
            **before,
            **{name: value for name, value in row.items() if value is not None or name not in before},
        }

    def progress(self, crawl: CrawlState) -> CrawlProgress:
        """Where ``crawl`` can be resumed, and what every crawl may know from earlier ones."""
        # A narrowed crawl does not see other authors' models, so it asks about those that are known.
        narrows = any(crawl.parameters.get(name) for name in ("since", "author"))
        family = {
            name: step
            for name, (step, seen) in self.steps.items()
            if step.relation in WALKED and (narrows or seen == crawl.id)
        }
        known: dict[str, tuple[str, Claim | None]] = {
            identifier: (commit, None) for identifier, (commit, _) in self.rejected["rejected"].items()
        }
        for model in self.models.values():
            claims = [claim for claim, seen in model.claims.values() if narrows or seen == crawl.id]
            claims = [one for one in claims if one.relation in WALKED and one.claimed_by.startswith(("tag", "alias"))]
            if claims:
                claim = min(claims, key=lambda one: one.rank)
                family[model.id] = Step(claim.parent, claim.relation, model.count("downloads"))
            if model.claimed_by in _EXAMINED:
                examined = Claim(model.relation, model.claimed_by, model.parent)
                known[model.id] = (str(model.row.get("sha") or ""), examined)
        compared: dict[str, tuple[str, Claim | None]] = {
            identifier: (commit, None) for identifier, (commit, _) in self.rejected["unrelated"].items()
        }
        for model in self.models.values():
            for claim, _ in model.claims.values():
                if claim.claimed_by == "weights":
                    compared[model.id] = (str(model.row.get("sha") or ""), claim)
        return CrawlProgress(set(crawl.finished), crawl.current, crawl.link, crawl.oldest, family, known, compared)

    def path_of(self, identifier: str) -> tuple[tuple[str, str], ...]:
        """The (relation, model) pairs from the base to a listed model, as far as the claims lead."""
        found: list[tuple[str, str]] = []
        bases, name = {one.lower() for one in self.ids}, identifier
        while len(found) < _MOST_STEPS and name.lower() not in bases and name not in {one for _, one in found}:
            model, step = self.models.get(name), self.steps.get(name)
            if model is not None:
                relation, parent = model.relation, model.parent
                mirror = parent if model.claimed_by == f"alias:{parent}" else ""
            elif step is not None:
                relation, parent, mirror = step[0].relation, step[0].of, ""
            else:
                break
            found.append((relation, name))
            if mirror and mirror not in self.models and mirror not in self.steps:
                found.append((COPY, mirror))
                break
            name = parent
        return tuple(reversed(found))

    def no_longer_shown(self) -> dict[str, list[str]]:
        """For each model the questions that showed it before, and did not in this finished, complete crawl.

        Every complete crawl counts as an answer to ``RESTORED``.
        """
        assert self.crawl is not None
        answered = (self.crawl.finished - self.crawl.cut) | {RESTORED}
        relations = self.crawl.parameters.get("relations", ())
        unreadable = {key for key, (_, crawl) in self.bad.items() if crawl == self.crawl.id}
        stale = {
            model.id: [
                key
                for key, (claim, crawl) in model.claims.items()
                if key in answered and claim.relation in relations and crawl != self.crawl.id
            ]
            for model in self.models.values()
            if BadRow.of({"id": model.id}, "").key not in unreadable
        }
        return {identifier: keys for identifier, keys in stale.items() if keys}

    def as_lines(self) -> list[Line]:
        """The shortest list of lines that adds up to this state."""
        lines: list[Line] = [base_line(self.ids, self.licence)] if self.ids else []
        lines += [model.as_line() for model in self.models.values()]
        lines += [bad_line(bad, crawl) for bad, crawl in self.bad.values()]
        lines += [
            {"kind": kind, "id": identifier, "sha": commit, "why": why}
            for kind, examined in self.rejected.items()
            for identifier, (commit, why) in examined.items()
        ]
        lines += [step_line(identifier, step, crawl) for identifier, (step, crawl) in self.steps.items()]
        lines += [{"kind": "renamed", "id": old, "to": new} for old, new in self.renamed.items()]
        lines += [removed_line(model, when, self.removals.get(model)) for model, when in self.removed.items()]
        return lines

    def _apply_model(self, line: Line) -> None:
        identifier, seen, crawl = line["id"], _moment(line["seen"]), str(line.get("crawl", ""))
        claims = {
            str(key): (_read_claim(found), str(found.get("crawl", crawl))) for key, found in line["claims"].items()
        }
        was = _read_claim(line["was"]) if "was" in line else None
        row = line.get("row")
        is_text = isinstance(identifier, str)
        if not is_text or not (is_addable if "user" in claims else is_listed_id)(identifier):
            raise ValueError("a model without an id")
        if not claims and was is None:
            raise ValueError(f"{identifier} has no claim")
        name = self.name_of(identifier, row)
        if name != identifier:
            identifier, row = name, None  # the row under the new name counts
        if identifier in self.removed and "user" not in claims:
            return
        known = self.models.get(identifier)
        if not isinstance(row, dict) and (row is not None or known is None):
            raise ValueError(f"{identifier} has no row")
        if is_too_deep(row):
            raise ValueError(f"the row of {identifier} is nested too deeply")
        if known is None:
            known = ListedModel(identifier, {}, "", "", "", _moment(line.get("first_seen", line["seen"])), seen)
        merged = known.row if row is None else self.merged(identifier, row)
        known = replace(known, row=merged, last_seen=max(known.last_seen, seen))
        self.models[identifier] = known.with_claims({**known.claims, **claims}, was)
        for examined in self.rejected.values():
            examined.pop(identifier, None)
        self.renamed.pop(identifier, None)
        self.removed.pop(identifier, None)
        self.removals.pop(identifier, None)


def _moment(text: Any) -> datetime:
    """A time that was written here, in UTC. Raises ValueError."""
    found = datetime.fromisoformat(text)
    try:
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("a time outside the calendar") from error


def model_line(identifier: str, claims: dict[str, Claim], row: RawRow | None, crawl: str, seen: datetime) -> Line:
    """A model as it was seen; ``row`` is None if nothing in it has changed."""
    found = {key: asdict(claim) | {"crawl": crawl} for key, claim in claims.items()}
    line = {"kind": "model", "id": identifier, "crawl": crawl, "seen": seen.isoformat(), "claims": found}
    return line if row is None else {**line, "row": row}


def base_line(ids: Sequence[str], licence: str | None) -> Line:
    """The base's ids, the canonical one first, and the licence that its card gives."""
    return {"kind": "base", "ids": list(ids)} | ({"licence": licence} if licence else {})


def step_line(identifier: str, step: Step, crawl: str) -> Line:
    """How a model that is not listed belongs to the family."""
    return {"kind": "step", "id": identifier, "crawl": crawl, **asdict(step)}


def removed_line(identifier: str, seen: str, pending: Removal | None = None) -> Line:
    """A model that the user took out; ``pending`` as long as it has not been removed everywhere."""
    line: Line = {"kind": "removed", "id": identifier, "seen": seen}
    if pending is not None:
        line["pending"] = {"bases": list(pending.bases), "records": pending.with_records}
    return line


def _read_removal(identifier: str, pending: Line) -> Removal:
    bases, with_records = pending["bases"], pending["records"]
    if not isinstance(with_records, bool) or not isinstance(bases, list) or not all(map(is_listed_id, bases)):
        raise ValueError("a removal that is not valid")
    return Removal(identifier, tuple(bases), with_records)


def bad_line(bad: BadRow, crawl: str) -> Line:
    """A row that could not be used."""
    seen = (bad.seen or datetime.now(UTC)).isoformat()
    return {"kind": "bad", "crawl": crawl, "seen": seen, "key": bad.key, "why": bad.why, "raw": bad.raw}


def _read_claim(line: Line) -> Claim:
    claim = Claim(line["relation"], line["claimed_by"], line["parent"])
    if not all(isinstance(value, str) for value in (claim.relation, claim.claimed_by, claim.parent)):
        raise ValueError("a claim that is not text")
    return claim
