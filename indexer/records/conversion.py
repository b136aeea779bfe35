"""What is known of a conversion: of which model it is a copy, and whether it is one in every tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["exactly", "consistent with", "differs from what it claims", "unknown source"]
EXACTLY: Verdict = "exactly"
CONSISTENT: Verdict = "consistent with"
DIFFERS: Verdict = "differs from what it claims"
UNKNOWN: Verdict = "unknown source"

# The reason why a conversion has no record.
CONVERSION = "conversion"


@dataclass(frozen=True)
class ConversionSource:
    """What a conversion is a copy of.

    - ``format``, ``types``: GGUF, and how its matrices are stored (``Q4_K, Q6_K``).
    - ``base``: whose matrices it has; ``source``: the model that it is a copy of, maybe the base; None if unknown.
    - ``rows``, ``rows_equal``: rows compared, and those whose codes are the source's; ``codes_equal``: the share of
      equal codes. None if the quantiser depends on calibration data.
    - ``differing``: tensors that are not the source's.
    - ``residual``: ‖D − δ‖ / ‖D‖ of the source, ``error``: ‖F − C‖ / ‖C‖.
    - ``log_odds``: decimal logarithm of the odds against the next candidate, ``next``.
    - ``also``: candidates that cannot be told from the source by these rows.
    """

    format: str
    types: str
    base: str
    source: str | None
    verdict: Verdict
    rows: int
    rows_equal: int | None
    codes_equal: float | None
    differing: tuple[str, ...]
    residual: float | None
    error: float | None
    log_odds: float | None
    next: str | None
    also: tuple[str, ...]
    bytes_read: int
    claimed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fingerprint: str = ""
    file_bytes: int = 0

    @property
    def headline(self) -> str:
        """The verdict in a sentence, without the name of the file."""
        conversion = f"a {self.format} conversion ({self.types})"
        if self.source is None:
            return f"{conversion} of a model of {self.base}, but of none that was compared"
        if self.verdict == EXACTLY:
            return f"{conversion} of exactly {self.source}: all codes of {self.rows:,} rows are those of its weights"
        if self.verdict == CONSISTENT:
            odds = "" if self.log_odds is None else f", 10^{self.log_odds:.0f} times likelier than {self.next}"
            return f"{conversion} that is consistent with {self.source}{odds}"
        if self.differing:
            examples = ", ".join(self.differing[:3])
            return f"{conversion} of {self.source}, but for {len(self.differing)} tensors that differ ({examples})"
        other_sources = [name for name in self.claimed if name != self.base] or self.claimed
        return f"{conversion} of {self.source}, not of {' or '.join(other_sources)} as it claims"
