"""How many requests to the Hub a build needs, and how long they take at the least under the Hub's rate limits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from huggingface_hub import get_token

from indexer.errors import Skipped
from indexer.network.rate_limit import QUOTAS, quota_of
from indexer.quantities import duration_in_words
from indexer.records.identity import Parent, Unit
from indexer.weights.checkpoint_files import choose

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

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.api + other.api, self.files + other.files)

    @property
    def seconds(self) -> float:
        """How long they take at least at this account's limits; 0 if they fit into one window."""
        return self._seconds(get_token() is not None)

    def _seconds(self, has_token: bool) -> float:
        longest = 0.0
        for kind, count in (("api", self.api), ("resolve", self.files)):
            quota, window = quota_of(kind, has_token)
            if count > quota:
                longest = max(longest, count / quota * window)
        return longest

    def sentences(self) -> list[str]:
        """As in: ≈ 40 API and 9,000 file requests: 15 min at least, as the Hub allows 500 and 3,000 in 5 min."""
        has_token = get_token() is not None
        found = f"≈ {self.api:,} API and {self.files:,} file requests"
        if not (seconds := self._seconds(has_token)):
            return [found]
        (api, window), (files, _) = quota_of("api", has_token), quota_of("resolve", has_token)
        allowed = f"the Hub allows {api:,} and {files:,} in {duration_in_words(window)}"
        found += f": {duration_in_words(seconds)} at least, as {allowed}"
        if has_token:
            return [found]
        with_token = QUOTAS[True]
        return [
            f"{found} without a token",
            f"with a token it allows {with_token['api']:,} and {with_token['resolve']:,}: "
            "log in with `hf auth login`, or set HF_TOKEN",
        ]


def requests_of(units: Sequence[Unit]) -> Requests:
    """What reading these models takes, by the files that their rows list."""
    total = Requests()
    for unit in units:
        if unit.model.folder is None:
            total += _requests_of_model(unit.filenames, unit.relation)
        parent: Parent | None = unit.parent
        while parent is not None:
            total += _requests_of_model(parent.filenames, parent.relation)
            parent = parent.parent
    return total


def _requests_of_model(filenames: Collection[str] | None, relation: str) -> Requests:
    if filenames is None:  # the row does not list them
        return Requests(1, 2)
    try:
        choice = choose(filenames, relation)
    except Skipped:
        return Requests()
    files = 1
    if choice.is_index:
        ending = choice.name.removesuffix(".index.json").rpartition(".")[2]
        shards = [
            name
            for name in filenames
            if name.startswith(choice.folder) and "-of-" in name and name.endswith(f".{ending}")
        ]
        files += len(shards)
    files += choice.kind == "adapter"  # adapter_config.json
    files += f"{choice.folder}config.json" in filenames or "config.json" in filenames
    return Requests(_API_OF_PICKLE if choice.is_pickle else 0, files)


def children_sentence(base: str, counts: Mapping[str, int], relations: Collection[str], page_size: int) -> str:
    """What the Hub counts as made from a base, and what listing it takes: "6,837 fine-tunes and 134 adapters …"."""
    words = [f"{counts[name]:,} {_CHILDREN[name][counts[name] != 1]}" for name in _CHILDREN if counts.get(name)]
    counted = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    # Each relation is a question, and one question is about models of any.
    asked = [counts.get(name, 0) for name in relations] + [sum(counts.values())]
    pages = sum(max(1, math.ceil(count / page_size)) for count in asked)
    return f"the Hub counts {counted} of {base}; listing them takes about {pages:,} API requests"
