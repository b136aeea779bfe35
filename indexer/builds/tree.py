"""The family of a base as a dry run shows it: how many models by relation and distance, and what the crawl asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from indexer.listing.listed_models import ListedModel
from indexer.names import RELATIONS
from indexer.network.rate_limit import QUOTAS, WINDOW_SECONDS
from indexer.quantities import duration_in_words


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
            # Both limits, whatever the account: a crawl is run again, and by others.
            times = []
            for has_token, whose in ((False, "without a token"), (True, "with one of a free account")):
                quota = QUOTAS[has_token]["api"]
                least = duration_in_words(self.calls / quota * WINDOW_SECONDS)
                times.append(f"{quota:,} {whose}" + (f" (so at least {least})" if self.calls > quota else ""))
            window = duration_in_words(WINDOW_SECONDS)
            found.append(
                f"the crawl made {self.calls:,} API request{'' if self.calls == 1 else 's'}; "
                f"in {window} the Hub allows {' and '.join(times)}"
            )
        return found

    def as_row(self) -> dict[str, Any]:
        """JSON-ready."""
        rows = [
            {"steps": depth, "relation": relation, "models": count}
            for (depth, relation), count in sorted(self.models.items())
        ]
        return {"tree": rows, "api_calls": self.calls}
