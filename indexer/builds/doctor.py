"""Tries a Hub in about a dozen requests, and reports for each thing that a build needs whether it works.

`index doctor` is for the first minute on a new machine, network or mirror: it shows which part of the Hub's interface
does not answer as a build expects, and what to do about it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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


class _NotOkError(Exception):
    """A step did not find what a build needs. Arguments: what it found, and what to do."""


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
        self.page = HubAnswer([])
        self.row: dict[str, Any] = {}
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
            self._try("clock", self._clock, needed=False)
            self._try("token", self._token, needed=get_token_to_send(current_session().token) is not None)
            self._try("rate limits", self._rate_limits, needed=False)
            self._try("children", self._children, needed=False)
            if self._try("listing", self._listing):
                self._try("cursor", self._cursor)
            if self._try("model", self._model):
                self._try("small file", self._small_file)
                if self._try("resolve", self._resolve):
                    self._try("range", self._range)
                    self._try("throughput", self._throughput, needed=False)

    def _try(self, name: str, action: Callable[[], str], needed: bool = True) -> bool:
        before = len(self.said)
        try:
            step = Step(name, True, action(), needed=needed)
        except _NotOkError as problem:
            found, advice = problem.args
            step = Step(name, False, found, advice, needed)
        except Exception as error:
            shown = as_user_error(error, f"the {name}" if name != "endpoint" else "an answer")
            step = Step(name, False, shown.message.rstrip("."), shown.hint, needed)
        # Remarks of the session during this step, for example on a rate limit or a refused token.
        remarks = [sentence for sentence in dict.fromkeys(self.said[before:]) if sentence not in self.said[:before]]
        if remarks:
            step = Step(name, step.ok, "; ".join((step.found, *remarks)), step.advice, needed)
        self.found.steps.append(step)
        return step.ok

    def _endpoint(self) -> str:
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
            raise _NotOkError("it answers, but not like a Hub", advice)
        self.headers = dict(response.headers)
        return f"{self.found.endpoint} answers in {seconds * 1000:.0f} ms"

    def _clock(self) -> str:
        now = date_in(self.headers)
        if now is None:
            return "the Hub does not send the time"
        skew = (datetime.now(UTC) - now).total_seconds()
        if abs(skew) > _MOST_SKEW:
            where = "ahead of" if skew > 0 else "behind"
            raise _NotOkError(f"{duration_in_words(abs(skew))} {where} the Hub's", "Set the clock of this machine.")
        return f"agrees with the Hub's to {max(1.0, abs(skew)):.0f} s"

    def _token(self) -> str:
        token = current_session().token
        if get_token_to_send(token) is None:
            return "none, so public models only; `hf auth login` or HF_TOKEN gives higher limits"
        advice = "Log in again with `hf auth login`, or correct or unset HF_TOKEN."
        response = get_session().get(f"{self.endpoint}/api/whoami-v2", headers=build_hf_headers(token=token))
        if response.status_code in (401, 403):
            raise _NotOkError(f"the Hub does not accept it (HTTP {response.status_code})", advice)
        hf_raise_for_status(response)
        try:
            found = load_json(response.read())
            name, access = str(found["name"]), found.get("auth", {}).get("accessToken", {})
            role = str(access.get("role", "unknown"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return "accepted; the Hub does not say whose it is"
        # Can it read what is public? If not, the session asks once more without it, and says so.
        before = len(self.said)
        get_json(f"/api/models/{self.model}", [("expand", "sha")])
        who = f"{printable(name, 60)}, scope {printable(role, 40)}"
        if any("without it" in sentence for sentence in self.said[before:]):
            advice = "Let it read public repositories (huggingface.co/settings/tokens), or unset HF_TOKEN."
            del self.said[before:]
            raise _NotOkError(f"{who}, but refused for public models; builds read those without it", advice)
        return who

    def _rate_limits(self) -> str:
        left, policy = quota_in(self.headers), policy_in(self.headers)
        if left is None:
            return "not sent; builds wait only when the Hub asks them to"
        allowed = f" of {policy[0]:,} in {duration_in_words(policy[1])}" if policy else ""
        words = f"{left[0]:,}{allowed} API requests left without a token, for {left[1]} s"
        if left[0] == 0:
            raise _NotOkError(words, "Wait, or log in with `hf auth login`: an account has its own limit.")
        return words

    def _children(self) -> str:
        counts = count_children(self.base)
        if not counts:
            raise _NotOkError(
                f"no count for {self.base}", "Builds work without it, but cannot say how much there is to list."
            )
        return f"{self.base}: {', '.join(f'{count:,} {name}' for name, count in counts.items())}"

    def _listing(self) -> str:
        request = CrawlRequest((self.base,))
        parameters = parameters_of(Question("tag", self.base, "finetune"), request)
        began, without = time.monotonic(), ""
        try:
            self.page = get_json("/api/models", parameters)
        except Exception as error:
            as_user_error(error, "a listing")  # raises a bug again
            if "expand" not in str(error).lower():
                raise
            self.page = get_json("/api/models", [pair for pair in parameters if pair != ("expand", "baseModels")])
            without = "; baseModels is refused, so tags are used"
        seconds = time.monotonic() - began
        rows = self.page.rows
        if not rows:
            raise _NotOkError(f"no fine-tune of {self.base} is listed", "Name another base, or ask the mirror's owner.")
        missing = [name for name in _NEEDED if not any(name in row for row in rows)]
        if missing:
            raise _NotOkError(f"rows lack {', '.join(missing)}", "This is not the Hub's listing; check HF_ENDPOINT.")
        if not any(relation_to(row, (self.base,), ("finetune",)) for row in rows):
            raise _NotOkError(
                f"no row names {self.base}: filters are ignored", "Unset HF_ENDPOINT to use the Hub itself."
            )
        without += "".join(f"; no {name}" for name in _USEFUL if not without and not any(name in row for row in rows))
        return f"{len(rows)} rows in {seconds:.1f} s{without}"

    def _cursor(self) -> str:
        link, rows = self.page.next_link, self.page.rows
        if link is None:
            return "all rows are on one page, so there is no next one to try"
        if not is_own(link, self.endpoint) or urlsplit(link).path != f"{urlsplit(self.endpoint).path}/api/models":
            raise _NotOkError(f"the next page is elsewhere ({printable(link, 80)})", "Check HF_ENDPOINT.")
        after = get_json(link).rows
        if not after or {row.get("id") for row in after} <= {row.get("id") for row in rows}:
            raise _NotOkError("the next page repeats the first", "Crawls would stop; try again, or use the Hub itself.")
        last, first = (Reader().moment(row.get("createdAt"), "createdAt") for row in (rows[-1], after[0]))
        if last is not None and first is not None and first > last:
            raise _NotOkError("pages are not ordered by creation", "--since cannot be used; the rest works.")
        return f"{len(after)} further rows"

    def _model(self) -> str:
        self.row = model_row(self.model)
        names = [one.get("rfilename") for one in self.row.get("siblings") or () if isinstance(one, dict)]
        if WEIGHTS not in names:
            raise _NotOkError(f"{self.row['id']} has no {WEIGHTS}", "Name another with --model.")
        return f"{self.row['id']} at {str(self.row['sha'])[:7]}, {len(names)} files"

    def _small_file(self) -> str:
        body = fetch_small(self.row["id"], "config.json", self.row["sha"], LARGEST_JSON)
        try:
            found = parse_json(body)
        except ValueError as error:
            raise _NotOkError("config.json is not JSON", "A cache or proxy on the way changes files.") from error
        kind = found.get("model_type") if isinstance(found, dict) else None
        return f"config.json is served (model_type {printable(str(kind), 40)})"

    def _resolve(self) -> str:
        self.file = RemoteFile(self.row["id"], WEIGHTS, self.row["sha"])
        location = self.file.location
        size = f"{size_in_words(self.file.size)}"
        if is_own(location, self.endpoint):
            return f"{size}, served by the endpoint itself"
        expires = expiry_of(location)
        now = date_in(self.headers) or datetime.now(UTC)
        left = f", for {duration_in_words((expires - now).total_seconds())}" if expires and expires > now else ""
        return f"{size}, signed address at {printable(urlsplit(location).hostname or '', 80)}{left}"

    def _range(self) -> str:
        assert self.file is not None
        stop = min(_RANGE, self.file.size)
        head = self.file.read(0, stop)
        if stop < 8 or int.from_bytes(head[:8], "little") > self.file.size:
            raise _NotOkError(f"the bytes are not those of {WEIGHTS}", "A cache or proxy on the way changes files.")
        return f"{stop:,} bytes, exactly as requested"

    def _throughput(self) -> str:
        assert self.file is not None
        size = min(_MOST_READ, self.file.size)
        began = time.monotonic()
        self.file.read(0, size)
        seconds = max(time.monotonic() - began, 1e-6)
        self.file.close()
        return f"{size_in_words(size / seconds)}/s on one connection ({size_in_words(size)} in {seconds:.1f} s)"
