"""An estimate of a build: how many models, bytes and requests, how long that takes, and the family tree."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from huggingface_hub import get_token

from indexer.checkpoints.checkpoint_files import choose
from indexer.checkpoints.training import remote_files
from indexer.deltas.stored_base import BaseShape
from indexer.errors import Skipped
from indexer.listing.listed_models import ListedModel
from indexer.names import RELATIONS
from indexer.network.rate_limit import QUOTAS, WINDOW_SECONDS, quota_of
from indexer.publish.rows import Entry
from indexer.quantities import duration_in_words, size_in_words
from indexer.records.identity import ModelVersion, Unit

# Requests to the API for a model whose weights are pickles: pull requests, the commits of one, `main`, its files.
_API_OF_PICKLE = 4

_CHILDREN = {
    "finetune": ("fine-tune", "fine-tunes"),
    "adapter": ("adapter", "adapters"),
    "merge": ("merge", "merges"),
    "quantized": ("quantised copy", "quantised copies"),
}


@dataclass(frozen=True)
class Requests:
    """Requests to the Hub's API, and for files (``/resolve``); ranges from signed addresses count against no limit."""

    api: int = 0
    files: int = 0

    @property
    def seconds(self) -> float:
        """How long they take at least at this account's limits; 0 if they fit into one window."""
        has_token, longest = get_token() is not None, 0.0
        for kind, count in (("api", self.api), ("resolve", self.files)):
            quota, window = quota_of(kind, has_token)
            if count > quota:
                longest = max(longest, count / quota * window)
        return longest

    def sentences(self) -> list[str]:
        """For example: ≈ 40 API and 9,000 file requests: 15 min at least, as the Hub allows 500 and 3,000 in 5 min."""
        has_token, seconds = get_token() is not None, self.seconds
        sentence = f"≈ {self.api:,} API and {self.files:,} file requests"
        if not seconds:
            return [sentence]
        (api, window), (files, _) = quota_of("api", has_token), quota_of("resolve", has_token)
        allowed = f"the Hub allows {api:,} and {files:,} in {duration_in_words(window)}"
        sentence += f": {duration_in_words(seconds)} at least, as {allowed}"
        if has_token:
            return [sentence]
        with_token = QUOTAS[True]
        return [
            f"{sentence} without a token",
            f"with a token it allows {with_token['api']:,} and {with_token['resolve']:,}: "
            "log in with `hf auth login`, or set HF_TOKEN",
        ]


def requests_of(units: Sequence[Unit]) -> Requests:
    """The requests needed to read these models, from the files that their rows list."""
    # Files and relation of each model, and of those below, with whether it is one of these.
    models: list[tuple[Collection[str] | None, str, bool]] = []
    for unit in units:
        if unit.model.source.is_remote:
            models.append((unit.filenames, unit.relation, False))
        parent: ModelVersion | None = unit.parent
        while parent is not None:
            models.append((parent.filenames, parent.relation, True))
            parent = parent.parent
    api = files = 0
    for filenames, relation, is_below in models:
        if filenames is None:  # the row does not list them
            api, files = api + 1, files + 2
            continue
        try:
            choice = choose(filenames, relation)
        except Skipped:
            continue
        files += 1
        if choice.is_index:
            ending = choice.name.removesuffix(".index.json").rpartition(".")[2]
            shards = (name for name in filenames if name.startswith(choice.folder) and name.endswith(f".{ending}"))
            files += sum("-of-" in name for name in shards)
        files += choice.kind == "adapter"  # adapter_config.json
        files += f"{choice.folder}config.json" in filenames or "config.json" in filenames
        files += 0 if is_below else remote_files(filenames, choice.folder)
        api += _API_OF_PICKLE if choice.is_pickle else 0
    return Requests(api, files)


@dataclass(frozen=True)
class Estimate:
    """What a build would read, ``read``: sample or full.

    ``sample_bytes`` and ``full_bytes``: of the full models, read either way; those of an adapter are known once it is
    opened. ``bytes_per_second``: the rate of this atlas's builds so far, None if there are none. ``requests``: to the
    Hub.
    """

    models: int
    adapters: int
    read: str
    sample_bytes: int
    full_bytes: int
    bytes_per_second: float | None = None
    requests: Requests = field(default_factory=Requests)

    @property
    def bytes(self) -> int:
        """What this build reads of the full models."""
        return self.sample_bytes if self.read == "sample" else self.full_bytes

    @property
    def seconds(self) -> float | None:
        """How long it takes at that rate."""
        return self.bytes / self.bytes_per_second if self.bytes_per_second else None

    @property
    def sentence(self) -> str:
        """For example: 50 models, ≈ 460 MB (≈ 17 GB with --read full), ≈ 14 min at 20 MB/s (measured so far)."""
        words = [f"{self.models:,} model{'' if self.models == 1 else 's'}"]
        size = f"{'at least' if self.adapters else '≈'} {size_in_words(self.bytes)}"
        other = ("full", self.full_bytes) if self.read == "sample" else ("sample", self.sample_bytes)
        if self.sample_bytes != self.full_bytes:
            size += f" (≈ {size_in_words(other[1])} with --read {other[0]})"
        words.append(size)
        if self.seconds is not None and self.bytes_per_second is not None:
            rate = size_in_words(self.bytes_per_second)
            words.append(f"≈ {duration_in_words(self.seconds)} at {rate}/s (measured so far)")
        return ", ".join(words)

    def as_row(self) -> dict[str, Any]:
        """JSON-ready: also what it takes the other way."""
        rate = self.bytes_per_second
        return asdict(self) | {
            "requests": asdict(self.requests) | {"seconds": self.requests.seconds},
            "bytes": self.bytes,
            "seconds": self.seconds,
            "sample_seconds": self.sample_bytes / rate if rate else None,
            "full_seconds": self.full_bytes / rate if rate else None,
        }


def estimate_of(planned: Sequence[Entry], base: BaseShape, read: str, rate: float | None, readmes: int = 0) -> Estimate:
    """What is to be read, and how long that takes at the ``rate`` of the atlas's builds so far, in bytes a second.

    ``readmes``: how many are to be read, a request each.

    Bytes are those of the full models' block matrices, or of a sample of their rows; a model whose row names no dtypes
    is assumed to be stored like the base.
    """
    units = [entry.unit for entry in planned if entry.unit is not None]
    full = [entry.listed.row for entry in planned if entry.unit is not None and entry.listed.relation != "adapter"]
    sizes = [_item_bytes(row, base.item_bytes) for row in full]
    whole = sum(base.block_bytes * size // base.item_bytes for size in sizes)
    sample = sum(map(base.sample_bytes, sizes))
    requests = requests_of(units)
    requests = replace(requests, files=requests.files + readmes)
    return Estimate(len(units), len(units) - len(full), read, sample, whole, rate, requests)


def _item_bytes(row: dict[str, Any], otherwise: int) -> int:
    """The bytes of one number in a model's files, by the dtypes that its row names (``safetensors.parameters``)."""
    stored = row.get("safetensors")
    parameters = stored.get("parameters") if isinstance(stored, dict) else None
    sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
    counts = {
        name: count
        for name, count in (parameters.items() if isinstance(parameters, dict) else ())
        if isinstance(count, int) and name in sizes
    }
    return sizes[max(counts, key=lambda name: counts[name])] if counts else otherwise


def children_sentence(base: str, counts: Mapping[str, int], relations: Collection[str], page_size: int) -> str:
    """What the Hub counts as made from a base, and what listing it takes: "6,837 fine-tunes and 134 adapters …"."""
    words = [f"{counts[name]:,} {_CHILDREN[name][counts[name] != 1]}" for name in _CHILDREN if counts.get(name)]
    counted = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    # Each relation is a question, and one question is about models of any.
    models_by_question = [counts.get(name, 0) for name in relations] + [sum(counts.values())]
    pages = sum(max(1, math.ceil(count / page_size)) for count in models_by_question)
    return f"the Hub counts {counted} of {base}; listing them takes about {pages:,} API requests"


def family_tree(listed: Iterable[ListedModel], calls: int) -> tuple[list[dict[str, Any]], list[str]]:
    """How many models there are by steps from the base and by relation: as JSON-ready rows, and as sentences.

    For example: 1 step from the base: 20 finetune, 4 adapter. ``calls``: requests to the API that the crawl made.
    """
    tree = Counter((max(1, len(model.path)), model.relation) for model in listed)
    rows = [{"steps": depth, "relation": name, "models": count} for (depth, name), count in sorted(tree.items())]
    lines = []
    for depth in sorted({depth for depth, _ in tree}):
        counts = [f"{tree[depth, relation]:,} {relation}" for relation in RELATIONS if tree[depth, relation]]
        lines.append(f"{depth} step{'' if depth == 1 else 's'} from the base: {', '.join(counts)}")
    if calls:
        # Both limits, whatever the account: a crawl is run again, and by others.
        times = []
        for has_token, whose in ((False, "without a token"), (True, "with one of a free account")):
            quota = QUOTAS[has_token]["api"]
            least = duration_in_words(calls / quota * WINDOW_SECONDS)
            times.append(f"{quota:,} {whose}" + (f" (so at least {least})" if calls > quota else ""))
        lines.append(
            f"the crawl made {calls:,} API request{'' if calls == 1 else 's'}; "
            f"in {duration_in_words(WINDOW_SECONDS)} the Hub allows {' and '.join(times)}"
        )
    return rows, lines
