"""A Hub of thousands of fine-tunes that are on no disk: ``python -m scripts.scale.virtual_hub --models 10000``.

The weights are those of ``virtual_weights``, made when a range of them is asked for. Everything else is the loopback Hub.
``GET /stats`` counts requests and bytes by kind; ``/stats?phase=NAME`` begins a phase, ``/stats?reset=1`` forgets all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qsl

from scripts.child import PROJECT, peak_bytes
from scripts.loopback_hub import LoopbackHub, RequestRecord, StoreError
from scripts.loopback_hub.__main__ import _count, _port, _rate
from scripts.loopback_hub.access import Access
from scripts.loopback_hub.answers import Answer, Request, json_answer
from scripts.loopback_hub.api import Api, Rank
from scripts.loopback_hub.files import Files
from scripts.loopback_hub.joined import JoinedStore
from scripts.loopback_hub.ledger import Ledger
from scripts.loopback_hub.limits import DEFAULT_QUOTAS, DEFAULT_WINDOW, Quota
from scripts.loopback_hub.store import MAIN, Repository, Revision, Store, StoredFile, is_in_lfs
from scripts.scale.facts import FILES, LANGUAGES, LICENCES, LOG_DOWNLOADS
from scripts.scale.virtual_weights import BASE, SHAPES, Family, Plan

_FIRST_DAY = datetime(2022, 3, 3, tzinfo=UTC)
_REVISIONS_KEPT = 512
_LISTINGS_KEPT = 32

# By family of architectures: model type, class of the base, class of a fine-tune, task.
_CLASSES = {
    "roberta": ("roberta", "RobertaForMaskedLM", "RobertaForSequenceClassification", "text-classification"),
    "gpt2": ("gpt2", "GPT2LMHeadModel", "GPT2ForSequenceClassification", "text-classification"),
    "llama": ("llama", "LlamaForCausalLM", "LlamaForCausalLM", "text-generation"),
}


def base_id(plan: Plan) -> str:
    """The base's id on the Hub."""
    return f"virtual/{plan.shape}"


def model_id(family: Family, model: int) -> str:
    """A model's id on the Hub; the base's for ``BASE``."""
    if model == BASE:
        return base_id(family.plan)
    return f"author-{family.authors[model]}/{family.plan.shape}-finetuned-d{family.datasets[model]}-{model}"


def dataset_id(dataset: int) -> str:
    """A data set's id on the Hub."""
    return f"collection-{dataset % 211}/texts-{dataset}"


def config_of(family: Family, model: int) -> dict[str, Any]:
    """config.json, with the labels of a classifier."""
    shape, labels = family.shape, family.labels(model)
    kind, of_base, of_tuned, _ = _CLASSES[shape.family]
    is_base = model == BASE or family.kinds[model] == "copy"
    dtype = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[family.dtype(model)]
    result: dict[str, Any] = {
        "architectures": [of_base if is_base else of_tuned],
        "model_type": kind,
        "torch_dtype": dtype,
        "vocab_size": shape.vocabulary,
    }
    if shape.family == "gpt2":
        result |= {"n_embd": shape.width, "n_head": shape.heads, "n_inner": shape.inner, "n_layer": shape.layers}
        result |= {"n_positions": shape.positions, "n_ctx": shape.positions}
    else:
        result |= {"hidden_size": shape.width, "num_hidden_layers": shape.layers, "intermediate_size": shape.inner}
        result |= {"num_attention_heads": shape.heads, "max_position_embeddings": shape.positions}
    if shape.family == "llama":
        heads = shape.heads * shape.key_value // shape.width
        result |= {"num_key_value_heads": heads, "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
    if shape.family == "roberta":
        result |= {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
    if labels is not None:
        result["id2label"] = {str(number): f"LABEL_{number}" for number in range(labels)}
        result["label2id"] = {f"LABEL_{number}": number for number in range(labels)}
        result["problem_type"] = "single_label_classification"
    return result


def settings_of(family: Family, model: int) -> dict[str, Any]:
    """What the Hub says of a repository, as ``.repo.json`` would."""
    plan = family.plan
    kind, _, _, task = _CLASSES[family.shape.family]
    sha = hashlib.sha1(f"{plan}|{model}".encode(), usedforsecurity=False).hexdigest()
    draw = random.Random(f"{plan.seed}|{model}")
    tags: list[str] = ["transformers", "safetensors", kind]
    if model == BASE:
        return {
            "sha": sha, "created_at": _spell(_FIRST_DAY), "last_modified": _spell(_FIRST_DAY), "downloads": 10_000_000,
            "likes": 500, "tags": tags, "card_data": {"license": "mit"}, "library_name": "transformers",
            "pipeline_tag": task if family.shape.family == "llama" else "fill-mask",
        }  # fmt: skip
    base = base_id(plan)
    card: dict[str, Any] = {"tags": ["generated_from_trainer"], "base_model": base, "library_name": "transformers"}
    tags += ["generated_from_trainer", task, f"base_model:{base}", f"base_model:finetune:{base}"]
    licence, language = (
        draw.choices([value for _, value in shares], [share for share, _ in shares])[0]
        for shares in (LICENCES, LANGUAGES)
    )
    if licence:
        card["license"] = licence
        tags.append(f"license:{licence}")
    if language:
        card["language"] = [language]
        tags.append(language)
    if family.named[model]:
        card["datasets"] = [dataset_id(int(family.datasets[model]))]
        tags.append(f"dataset:{card['datasets'][0]}")
    created = _FIRST_DAY + timedelta(minutes=draw.randrange(4 * 365 * 24 * 60))
    return {
        "sha": sha,
        "created_at": _spell(created),
        "last_modified": _spell(created + timedelta(minutes=draw.randrange(1, 50_000))),
        "downloads": max(0, round(math.exp(draw.gauss(*LOG_DOWNLOADS)) - 1)),
        "likes": int(draw.paretovariate(1.2)) - 1,
        "tags": tags,
        "card_data": card,
        "library_name": "transformers",
        "pipeline_tag": task,
    }


def _spell(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class _Made:
    """Stands for the path of a stored file: ``make(start, stop)`` are its bytes."""

    size: int
    make: Callable[[int, int], bytes]

    def open(self, mode: str = "rb") -> BinaryIO:
        return cast(BinaryIO, _Stream(self))

    def read_bytes(self) -> bytes:
        return self.make(0, self.size)


class _Stream:
    """As much of a file object as the server uses."""

    def __init__(self, made: _Made) -> None:
        self._made = made
        self._at = 0

    def seek(self, at: int) -> int:
        self._at = at
        return at

    def read(self, count: int = -1) -> bytes:
        stop = self._made.size if count < 0 else min(self._made.size, self._at + count)
        data = self._made.make(self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data

    def __enter__(self) -> _Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@dataclass(frozen=True)
class VirtualRepository(Repository):
    """A repository by its model's number."""

    model: int = BASE

    def revision(self, name: str = MAIN) -> Revision | None:
        """There is only ``main``."""
        if name not in (MAIN, "refs/heads/main", self.settings["sha"]):
            return None
        return cast(VirtualStore, self.store).main(self)


class VirtualStore(JoinedStore):
    """The repositories of a family: their descriptions are made once, their files when they are asked for."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.stores = []
        numbers = sorted(range(BASE, family.plan.models), key=lambda model: model_id(family, model).split("/"))
        here = cast(Store, self)
        self._repositories = {
            (name := model_id(family, model)): VirtualRepository(
                name, settings_of(family, model), Path(name), here, model
            )
            for model in numbers
        }
        self._revisions: OrderedDict[int, Revision] = OrderedDict()
        self._lock = threading.Lock()

    def repository(self, repo_id: str) -> Repository | None:
        """The repository with exactly this id, or None."""
        return self._repositories.get(repo_id)

    def renamed(self, old_id: str) -> Repository | None:
        """None: no repository was renamed."""
        return None

    def repositories(self) -> Iterator[Repository]:
        """Every repository, by id."""
        return iter(self._repositories.values())

    def main(self, repository: VirtualRepository) -> Revision:
        """Its files; those of the last repositories are remembered."""
        with self._lock:
            known = self._revisions.get(repository.model)
            if known is not None:
                self._revisions.move_to_end(repository.model)
                return known
        files = sorted(self._files(repository), key=lambda file: os.fsencode(file.path))
        result = Revision(MAIN, repository.settings["sha"], {file.path: file for file in files})
        with self._lock:
            self._revisions[repository.model] = result
            while len(self._revisions) > _REVISIONS_KEPT:
                self._revisions.popitem(last=False)
        return result

    def _files(self, repository: VirtualRepository) -> Iterator[StoredFile]:
        family, model = self.family, repository.model
        layouts = family.files(model)
        small = dict.fromkeys(FILES, b"{}\n")
        small["config.json"] = json.dumps(config_of(family, model), indent=2).encode() + b"\n"
        # JSON is YAML.
        front = json.dumps(repository.settings["card_data"])
        small["README.md"] = f"---\n{front}\n---\n\n# {repository.id}\n".encode()
        if len(layouts) > 1:
            index = {
                "metadata": {"total_size": sum(layout.size - len(layout.header) for layout in layouts)},
                "weight_map": {tensor.name: layout.path for layout in layouts for tensor in layout.tensors},
            }
            small["model.safetensors.index.json"] = json.dumps(index, indent=2).encode()
        for path, data in small.items():
            made = _Made(len(data), lambda start, stop, data=data: data[start:stop])
            digest = hashlib.sha256(data).hexdigest() if is_in_lfs(path) else None
            yield _described(path, made, digest, data)
        for layout in layouts:
            made = _Made(layout.size, partial(family.read, model, layout))
            yield _described(layout.path, made, family.digest(model, layout.path))


def _described(path: str, made: _Made, digest: str | None, data: bytes = b"") -> StoredFile:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {made.size}\n".encode()
    content = data if digest is None else pointer
    blob = hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
    return StoredFile(path, cast(Path, made), made.size, 0, blob, digest, 0 if digest is None else len(pointer))


@dataclass
class VirtualApi(Api):
    """Remembers the order of a listing, so that its next page costs no more than the rows on it."""

    _orders: OrderedDict[Any, list[tuple[Rank, Repository]]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ordered(
        self, request: Request, sort: Callable[[Repository], Any], *, descending: bool
    ) -> list[tuple[Rank, Repository]]:
        """As ``Api.ordered``, from memory where the same was asked before."""
        about = parse_qsl(request.query, keep_blank_values=True)
        shown = ("cursor", "limit", "expand", "expand[]", "full", "config", "cardData")
        key = tuple(sorted(pair for pair in about if pair[0] not in shown))
        with self._lock:  # held while it is made: whoever asks meanwhile would only make it again
            if key not in self._orders:
                self._orders[key] = super().ordered(request, sort, descending=descending)
                while len(self._orders) > _LISTINGS_KEPT:
                    self._orders.popitem(last=False)
            return self._orders[key]


@dataclass
class _Counted(RequestRecord):
    """A request that is only counted: among ``kind`` of ``phase``."""

    kind: str = ""
    phase: dict[str, Any] = field(default_factory=dict)


class Counters(Ledger):
    """Requests, statuses and body bytes by phase and kind, in place of a list of all requests."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def begin(self, phase: str) -> None:
        """Count what begins from now on in this phase."""
        with self._lock:
            self._phase = phase
            self._phases.setdefault(phase, {})

    def open(self, role: str, method: str, path: str, query: str, headers: Mapping[str, str]) -> RequestRecord:
        """A record that nobody keeps."""
        kind = _kind(role, method, path, "range" in headers)
        with self._lock:
            phase = self._phases[self._phase]
        # Without its headers: they are not looked at.
        return _Counted(next(self._numbers), role, method, path, query, {}, kind=kind, phase=phase)

    def set_status(self, record: RequestRecord, status: int) -> None:
        """Count the request."""
        with self._lock:
            record.status = status
            counts = self._counts(record)
            counts["requests"] += 1
            counts["statuses"][str(status)] = counts["statuses"].get(str(status), 0) + 1

    def add_body(self, record: RequestRecord, count: int) -> None:
        """Count body bytes."""
        with self._lock:
            record.body_bytes += count
            self._counts(record)["body_bytes"] += count

    def clear(self) -> None:
        """Forget every phase."""
        with self._lock:
            self._phase = "start"
            self._phases: dict[str, dict[str, Any]] = {"start": {}}

    def totals(self) -> dict[str, Any]:
        """Phase → kind → requests, body bytes and statuses."""
        with self._lock:
            return {"phase": self._phase, "phases": json.loads(json.dumps(self._phases))}

    @staticmethod
    def _counts(record: RequestRecord) -> dict[str, Any]:
        assert isinstance(record, _Counted)
        return record.phase.setdefault(record.kind, {"requests": 0, "body_bytes": 0, "statuses": {}})


def _kind(role: str, method: str, path: str, is_range: bool) -> str:
    if role == "cdn":
        return "range" if is_range else "head" if method == "HEAD" else "whole"
    if path.startswith("/api/models"):
        verb = re.search(r"/(tree|refs|paths-info|discussions|commits)(?:/|$)", path)
        return "listing" if path.rstrip("/") == "/api/models" else verb[1] if verb else "info"
    if "/resolve/" in path:
        weights = ".safetensors" in path and not path.endswith(".json")
        return f"resolve {'weights' if weights else 'small'} {method}"
    return "stats" if path == "/stats" else "other"


class VirtualHub(LoopbackHub):
    """The family of a plan on 127.0.0.1, in this process; ``settings`` as of ``LoopbackHub``, without datasets."""

    def __init__(self, plan: Plan, *, page_size: int = 100, url_lifetime: float = 3600.0, **settings: Any) -> None:
        self.family = Family(plan)
        layout = self.family.files(0)[-1]
        self.family.read(0, layout, layout.size - 4, layout.size)  # makes the tables
        super().__init__(page_size=page_size, url_lifetime=url_lifetime, **settings)
        self.counters = Counters()
        self.store = VirtualStore(self.family)
        self._ledger = self._hub.desk.ledger = self._cdn.desk.ledger = self.counters
        access = Access(self.store, {})
        self._api = VirtualApi(self.store, access, self.endpoint, page_size, 1000)
        self._files = Files(self.store, access, self.cdn_endpoint, url_lifetime)

    @property
    def base(self) -> str:
        """The base's id."""
        return base_id(self.family.plan)

    def prepare(self) -> int:
        """How many repositories there are; nothing needs to be hashed."""
        return self.family.plan.models + 1

    def stats(self) -> dict[str, Any]:
        """What was asked and sent so far; CPU seconds and memory of this process."""
        status = Path("/proc/self/status")
        memory: dict[str, int] = {}
        if status.exists():
            resident = re.search(r"VmRSS:\s+(\d+)", status.read_text())
            memory = {"resident_bytes": 1024 * int(resident[1]) if resident else 0, "peak_bytes": peak_bytes()}
        return self.counters.totals() | {"cpu_seconds": time.process_time(), **memory}

    def _hub_route(self, request: Request) -> Answer:
        if request.path != "/stats":
            return super()._hub_route(request)
        answer = json_answer(self.stats())
        if request.is_set("reset"):
            self.counters.clear()
        if phase := request.one("phase"):
            self.counters.begin(phase[:100])
        return answer


@dataclass(frozen=True)
class Running:
    """A virtual Hub in a process of its own."""

    endpoint: str
    pid: int

    def stats(self, **what: str) -> dict[str, Any]:
        """``/stats``; with ``phase="…"`` or ``reset="1"`` as it was before."""
        query = "&".join(f"{name}={value}" for name, value in what.items())
        with urllib.request.urlopen(f"{self.endpoint}/stats?{query}", timeout=60) as answer:
            result: dict[str, Any] = json.load(answer)
        return result


@contextmanager
def running(*arguments: str) -> Iterator[Running]:
    """A virtual Hub with these arguments of the command, until the block is left. RuntimeError if it does not start."""
    # One thread of computation: the CPU that it takes is then that of serving.
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scripts.scale.virtual_hub", *arguments]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = (line.removeprefix("export HF_ENDPOINT=").strip() for line in process.stdout if "HF_ENDPOINT=" in line)
        endpoint = next(lines, None)
        if endpoint is None:
            raise RuntimeError(f"the virtual Hub ended with exit code {process.wait()}")
        yield Running(endpoint, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _quota(text: str) -> tuple[str, Quota]:
    match = re.fullmatch(r"(\w+)=(\d{1,9})(?:/(\d{1,6}(?:\.\d+)?))?", text, re.ASCII)
    if match is None or match[1] not in DEFAULT_QUOTAS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no quota: give KIND=REQUESTS[/SECONDS], KIND one of {', '.join(DEFAULT_QUOTAS)}"
        )
    return match[1], (int(match[2]), float(match[3] or DEFAULT_WINDOW))


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.scale.virtual_hub",
        description="A Hub of fine-tunes whose weights are made when they are asked for.",
    )
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="roberta-base", help="the architecture (default: %(default)s)")
    add("--models", type=_count, default=100, help="how many fine-tunes (default: %(default)s)")
    add("--seed", type=int, default=0, help="of everything that is drawn (default: %(default)s)")
    add("--datasets", type=_count, help="that many data sets of equal size (default: sizes as on the Hub)")
    for name, text in (
        ("named", "share of models that name their data set (default: as on the Hub)"),
        ("half", "share of models in F16"),
        ("bfloat", "share of models in BF16"),
        ("copies", "share of copies of the base"),
        ("duplicates", "share of repeated uploads"),
        ("unrelated", "share of models with another base"),
    ):
        add(f"--{name}", type=float, default=getattr(Plan, name), metavar="SHARE", help=text)
    add("--latency", type=float, default=0.0, metavar="SECONDS", help="before every answer (default: none)")
    add("--bandwidth", type=_rate, help="bytes per second in all, as 20M (default: no limit)")
    add("--quota", type=_quota, action="append", default=[], metavar="KIND=N[/S]",
        help="enforce a quota, as resolvers=3000 (in 300 s); may be repeated")  # fmt: skip
    add("--port", type=_port, default=0, help="the Hub's port (default: any free one)")
    add("--cdn-port", type=_port, default=0, help="the port of the files (default: any free one)")
    add("--page-size", type=_count, default=100, help="rows on a page of a listing (default: %(default)s)")
    options = parser.parse_args(arguments)
    drawn = ("shape", "models", "seed", "datasets", "named", "half", "bfloat", "copies", "duplicates", "unrelated")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        hub = VirtualHub(
            Plan(**{name: getattr(options, name) for name in drawn}),
            page_size=options.page_size,
            bandwidth=options.bandwidth,
            latency=options.latency,
            quotas=dict(options.quota),
            port=options.port,
            cdn_port=options.cdn_port,
        )
        with hub:
            print(f"{hub.prepare()} repositories at {hub.endpoint}, of them the base {hub.base}")
            print(f"export HF_ENDPOINT={hub.endpoint}", flush=True)
            ended.wait()
    except KeyboardInterrupt:
        return 130
    except (StoreError, OSError, ValueError) as problem:
        print(f"virtual_hub: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
