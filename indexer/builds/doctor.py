"""Tries a Hub in about a dozen requests, and reports for each thing that a build needs whether it works.

`index doctor` is for the first minute on a new machine, network or mirror: it shows which part of the Hub's interface
does not answer as a build expects, and what to do about it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from huggingface_hub import constants, get_session
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status
from huggingface_hub.utils._headers import get_token_to_send

from indexer.arguments import plain_arguments
from indexer.errors import AtlasError, without_user
from indexer.hub_ids import is_hub_id, without_address
from indexer.network.hub import LARGEST_JSON, count_children, model_row
from indexer.network.hub_errors import as_user_error
from indexer.network.hub_requests import HubAnswer, fetch_small, get_json, is_own, parse_json
from indexer.network.rate_limit import date_in, listening, policy_in, quota_in, sent_requests
from indexer.network.remote_file import RemoteFile, expiry_of
from indexer.network.session import HttpLimits, current_session
from indexer.quantities import duration_in_words, size_in_words
from indexer.sources.claims import relation_to
from indexer.sources.crawl import parameters_of
from indexer.sources.questions import CrawlRequest, Question
from indexer.untrusted import Reader, load_json, printable

# A public model with fine-tunes on several pages, and one with a small safetensors file: both among the most used.
BASE = "google-bert/bert-base-uncased"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
WEIGHTS = "model.safetensors"

# A step has to answer soon, so that all of them together take less than a minute.
LIMITS = HttpLimits(
    connect_seconds=8, read_seconds=15, body_seconds=30, total_seconds=20, retries=1, retries_after_timeout=0,
    retries_without_connection=0, longest_wait=1.0, longest_rate_limit_wait=5.0, small_file_seconds=20,
)  # fmt: skip
_RANGE = 1024
_MOST_READ = 4 << 20
_MOST_SKEW = 60.0
# Fields that some row of a page must have, and fields that a crawl can do without.
_NEEDED, _USEFUL = ("tags", "sha", "siblings", "createdAt"), ("baseModels", "config", "safetensors", "cardData")


@dataclass(frozen=True)
class Step:
    """One thing that was tried. ``needed``: without it a build cannot work; ``advice``: what to do if it is not ok."""

    step: str
    ok: bool
    found: str
    advice: str = ""
    needed: bool = True


@dataclass(frozen=True)
class _Problem:
    """What a build needs, or can use, and was not found; ``needed``: see :class:`Step`."""

    found: str
    advice: str
    needed: bool = True


# The findings of a step, one after another.
_Findings = Iterator[str | _Problem]


@dataclass
class Diagnosis:
    """What works at an endpoint: the steps, how many requests they took, and how long."""

    endpoint: str
    steps: list[Step] = field(default_factory=list)
    requests: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether a build can work."""
        return all(step.ok or not step.needed for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"ok": self.ok, **asdict(self)}


@plain_arguments
def doctor(base: str | None = None, model: str | None = None) -> Diagnosis:
    """Test the Hub at HF_ENDPOINT, with the access token in use if there is one: what `index doctor` does.

    ``base``: a model with fine-tunes; ``model``: one with a small safetensors file; both are well-known public models
    by default. Never raises for what a server does; raises AtlasError for a name that is not one.
    """
    names = [without_address(name).partition("@")[0] for name in (base or BASE, model or MODEL)]
    for name in names:
        if not is_hub_id(name):
            raise AtlasError(f"{printable(name, 100)!r} is not a Hub id.", "Give owner/name.")
    return _Doctor(*names).run()


class _Doctor:
    def __init__(self, base: str, model: str) -> None:
        self.base, self.model = base, model
        self.endpoint = current_session().endpoint
        self.found = Diagnosis(without_user(self.endpoint))
        self.said: list[str] = []
        self.row: dict[str, Any] = {}
        self.has_weights = False
        self.file: RemoteFile | None = None
        self.headers: dict[str, Any] = {}

    def run(self) -> Diagnosis:
        """Every step, until one fails without which the others cannot be tried."""
        if constants.HF_HUB_OFFLINE:
            advice = "Unset it to use the Hub."
            self.found.steps.append(Step("network", False, "HF_HUB_OFFLINE is set, so the Hub is not asked", advice))
            return self.found
        began, sent = time.monotonic(), sent_requests()
        with current_session().with_limits(LIMITS).used(), listening(self.said.append):
            self._ask()
        self.found.requests = sent_requests() - sent
        self.found.seconds = round(time.monotonic() - began, 1)
        return self.found

    def _ask(self) -> None:
        if self._try("endpoint", self._endpoint):
            self._try("token", self._token)
            self._try("listing", self._listing)
            self._try("model", self._model)
            if self.has_weights and self._try("weights", self._weights):
                self._try("throughput", self._throughput, needed=False)

    def _try(self, name: str, action: Callable[[], _Findings], needed: bool = True) -> bool:
        """Add a step with what ``action`` finds; whether what is needed of it is there.

        ``needed``: whether an error of the Hub or the network is a problem for a build.
        """
        before, findings, problems = len(self.said), list[str](), list[_Problem]()
        try:
            for finding in action():
                if isinstance(finding, _Problem):
                    problems.append(finding)
                    finding = finding.found
                findings.append(finding)
        except Exception as error:
            shown = as_user_error(error, f"the {name}" if name != "endpoint" else "an answer")
            problems.append(_Problem(shown.message.rstrip("."), shown.hint, needed))
            findings.append(problems[-1].found)
        # Remarks of the session during this step, for example on a rate limit or a refused token.
        remarks = [sentence for sentence in dict.fromkeys(self.said[before:]) if sentence not in self.said[:before]]
        advice = " ".join(dict.fromkeys(problem.advice for problem in problems if problem.advice))
        is_needed = any(problem.needed for problem in problems) if problems else needed
        self.found.steps.append(Step(name, not problems, "; ".join([*findings, *remarks]), advice, is_needed))
        return not any(problem.needed for problem in problems)

    def _endpoint(self) -> _Findings:
        """Whether it answers, the date of its answer, and the quota that it sends."""
        parameters = urlencode([("limit", "1"), ("sort", "downloads"), ("expand", "downloads")])
        began = time.monotonic()
        response = get_session().get(f"{self.endpoint}/api/models?{parameters}", headers=build_hf_headers(token=False))
        seconds = time.monotonic() - began
        hf_raise_for_status(response)
        try:
            is_list = isinstance(load_json(response.read()), list)
        except ValueError:
            is_list = False
        if not is_list:
            advice = "Check HF_ENDPOINT: a login page or a proxy may answer instead of the Hub."
            yield _Problem("it answers, but not like a Hub", advice)
            return
        self.headers = dict(response.headers)
        yield f"{self.found.endpoint} answers in {seconds * 1000:.0f} ms"
        if (now := date_in(self.headers)) is None:
            yield "it does not send the time"
        elif abs(skew := (datetime.now(UTC) - now).total_seconds()) > _MOST_SKEW:
            where = "ahead of" if skew > 0 else "behind"
            clock = f"the clock of this machine is {duration_in_words(abs(skew))} {where} the Hub's"
            yield _Problem(clock, "Set the clock of this machine.", needed=False)
        else:
            yield f"the clock agrees with the Hub's to {max(1.0, abs(skew)):.0f} s"
        quota, policy = quota_in(self.headers), policy_in(self.headers)
        if quota is None:
            yield "it sends no rate limits, so builds wait only when it asks them to"
            return
        allowed = f" of {policy[0]:,} in {duration_in_words(policy[1])}" if policy else ""
        words = f"{quota[0]:,}{allowed} API requests left without a token, for {quota[1]} s"
        advice = "Wait, or log in with `hf auth login`: an account has its own limit."
        yield words if quota[0] else _Problem(words, advice, needed=False)

    def _token(self) -> _Findings:
        """Its owner and scope, and whether it can read public models."""
        token = current_session().token
        if get_token_to_send(token) is None:
            yield "none, so public models only; `hf auth login` or HF_TOKEN gives higher limits"
            return
        response = get_session().get(f"{self.endpoint}/api/whoami-v2", headers=build_hf_headers(token=token))
        if response.status_code in (401, 403):
            advice = "Log in again with `hf auth login`, or correct or unset HF_TOKEN."
            yield _Problem(f"the Hub does not accept it (HTTP {response.status_code})", advice)
            return
        hf_raise_for_status(response)
        try:
            answer = load_json(response.read())
            name, access = str(answer["name"]), answer.get("auth", {}).get("accessToken", {})
            role = str(access.get("role", "unknown"))
        except (ValueError, KeyError, TypeError, AttributeError):
            yield "accepted; the Hub does not say whose it is"
            return
        # Can the token read public models? If not, the session repeats the request without it and reports that.
        before = len(self.said)
        get_json(f"/api/models/{self.model}", [("expand", "sha")])
        account = f"{printable(name, 60)}, scope {printable(role, 40)}"
        if any("without it" in sentence for sentence in self.said[before:]):
            advice = "Let it read public repositories (huggingface.co/settings/tokens), or unset HF_TOKEN."
            del self.said[before:]
            yield _Problem(f"{account}, but refused for public models; builds read those without it", advice)
            return
        yield account

    def _listing(self) -> _Findings:
        """The Hub's count of what was made from the base, a page of its fine-tunes with all fields, and the next."""
        if counts := count_children(self.base):
            yield f"{', '.join(f'{count:,} {name}' for name, count in counts.items())} of {self.base}"
        else:
            advice = "Builds work without it, but cannot say how much there is to list."
            yield _Problem(f"no count for {self.base}", advice, needed=False)
        parameters = parameters_of(Question("tag", self.base, "finetune"), CrawlRequest((self.base,)))
        began, without = time.monotonic(), ""
        try:
            page = get_json("/api/models", parameters)
        except Exception as error:
            as_user_error(error, "a listing")  # raises a bug again
            if "expand" not in str(error).lower():
                raise
            page = get_json("/api/models", [pair for pair in parameters if pair != ("expand", "baseModels")])
            without = "; baseModels is refused, so tags are used"
        seconds = time.monotonic() - began
        rows = page.rows
        missing = [name for name in _NEEDED if not any(name in row for row in rows)]
        if not rows:
            yield _Problem(f"no fine-tune of {self.base} is listed", "Name another base, or ask the mirror's owner.")
        elif missing:
            yield _Problem(f"rows lack {', '.join(missing)}", "This is not the Hub's listing; check HF_ENDPOINT.")
        elif not any(relation_to(row, (self.base,), ("finetune",)) for row in rows):
            yield _Problem(f"no row names {self.base}: filters are ignored", "Unset HF_ENDPOINT to use the Hub itself.")
        else:
            lacking = [name for name in _USEFUL if not without and not any(name in row for row in rows)]
            yield f"{len(rows)} rows in {seconds:.1f} s{without}" + "".join(f"; no {name}" for name in lacking)
            yield self._next_page(page)

    def _next_page(self, page: HubAnswer) -> str | _Problem:
        link, rows = page.next_link, page.rows
        if link is None:
            return "all rows are on one page, so there is no next one to try"
        if not is_own(link, self.endpoint) or urlsplit(link).path != f"{urlsplit(self.endpoint).path}/api/models":
            return _Problem(f"the next page is elsewhere ({printable(link, 80)})", "Check HF_ENDPOINT.")
        after = get_json(link).rows
        if not after or {row.get("id") for row in after} <= {row.get("id") for row in rows}:
            advice = "Crawls would stop; try again, or use the Hub itself."
            return _Problem("the next page repeats the first", advice)
        last, first = (Reader().moment(row.get("createdAt"), "createdAt") for row in (rows[-1], after[0]))
        if last is not None and first is not None and first > last:
            return _Problem("pages are not ordered by creation", "--since cannot be used; the rest works.")
        return f"{len(after)} further rows on the next page"

    def _model(self) -> _Findings:
        """The row of a model, and a small file of it."""
        self.row = model_row(self.model)
        names = [sibling.get("rfilename") for sibling in self.row.get("siblings") or () if isinstance(sibling, dict)]
        self.has_weights = WEIGHTS in names
        if not self.has_weights:
            yield _Problem(f"{self.row['id']} has no {WEIGHTS}", "Name another with --model.")
            return
        yield f"{self.row['id']} at {str(self.row['sha'])[:7]}, {len(names)} files"
        body = fetch_small(self.row["id"], "config.json", self.row["sha"], LARGEST_JSON)
        try:
            config = parse_json(body)
        except ValueError:
            yield _Problem("config.json is not JSON", "A cache or proxy on the way changes files.")
            return
        kind = config.get("model_type") if isinstance(config, dict) else None
        yield f"config.json is served (model_type {printable(str(kind), 40)})"

    def _weights(self) -> _Findings:
        """The signed address of a file of weights, and 1 kB of it."""
        self.file = RemoteFile(self.row["id"], WEIGHTS, self.row["sha"])
        location, size = self.file.location, size_in_words(self.file.size)
        if is_own(location, self.endpoint):
            yield f"{size}, served by the endpoint itself"
        else:
            expires, now = expiry_of(location), date_in(self.headers) or datetime.now(UTC)
            left = f", for {duration_in_words((expires - now).total_seconds())}" if expires and expires > now else ""
            yield f"{size}, signed address at {printable(urlsplit(location).hostname or '', 80)}{left}"
        stop = min(_RANGE, self.file.size)
        head = self.file.read(0, stop)
        if stop < 8 or int.from_bytes(head[:8], "little") > self.file.size:
            yield _Problem(f"the bytes are not those of {WEIGHTS}", "A cache or proxy on the way changes files.")
            return
        yield f"{stop:,} bytes, exactly as requested"

    def _throughput(self) -> _Findings:
        """4 MB over one connection."""
        assert self.file is not None
        size = min(_MOST_READ, self.file.size)
        began = time.monotonic()
        self.file.read(0, size)
        seconds = max(time.monotonic() - began, 1e-6)
        self.file.close()
        yield f"{size_in_words(size / seconds)}/s on one connection ({size_in_words(size)} in {seconds:.1f} s)"
