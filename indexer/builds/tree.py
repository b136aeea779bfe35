"""The family of a base as a dry run shows it: how many models by relation and distance, and what the crawl asked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from indexer.listing.listing_state import ListedModel
from indexer.names import RELATIONS

# Requests to the API that the Hub answers in five minutes, without a token and with one of a free account.
QUOTAS = {"without a token": 500, "with the token of a free account": 1_000}
_MINUTES = 5


@dataclass(frozen=True)
class Tree:
    """``models``: how many, by (steps from the base, relation). ``calls``: requests to the API that the crawl made."""

    models: Counter[tuple[int, str]]
    calls: int

    @classmethod
    def of(cls, listed: Iterable[ListedModel], calls: int) -> Tree:
        """Count what is listed."""
        return cls(Counter((max(1, len(one.path)), one.relation) for one in listed), calls)

    def sentences(self) -> list[str]:
        """As in: 1 step from the base: 20 finetune, 4 adapter."""
        found = []
        for depth in sorted({depth for depth, _ in self.models}):
            counts = [f"{self.models[depth, one]:,} {one}" for one in RELATIONS if self.models[depth, one]]
            found.append(f"{depth} step{'' if depth == 1 else 's'} from the base: {', '.join(counts)}")
        if self.calls:
            windows = [
                f"{_MINUTES * math.ceil(self.calls / quota - 1):,} min {whose}"
                for whose, quota in QUOTAS.items()
                if self.calls > quota
            ]
            pace = f"; the Hub's limits stretch that to {' or '.join(windows)}" if windows else ""
            limits = " or ".join(f"{quota:,} {whose}" for whose, quota in QUOTAS.items())
            found.append(f"the crawl made {self.calls:,} requests to the API, of {limits} in {_MINUTES} minutes{pace}")
        return found

    def as_row(self) -> dict[str, Any]:
        """JSON-ready."""
        rows = [
            {"steps": depth, "relation": relation, "models": count}
            for (depth, relation), count in sorted(self.models.items())
        ]
        return {"tree": rows, "api_calls": self.calls}
