"""The kinds of change by name, and what each means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal[
    "trained", "adapter", "adapter merged", "merge", "unchanged", "fact edited", "abliterated", "pruned", "quantised",
    "noise added", "embedding rows reset", "embedding rows added", "layers moved", "rearranged", "untrained", "broken",
]  # fmt: skip
# The meaning of each kind, in the order in which they are listed.
MEANINGS: Mapping[Kind, str] = {
    "trained": "weights were trained on; no other change shows",
    "adapter": "an adapter, apart from the base's weights",
    "adapter merged": "each change has a low rank, as of a LoRA that was merged",
    "merge": "a weighted sum of other models (query lineage names them)",
    "unchanged": "the base's weights, at most in another dtype",
    "fact edited": "a change of low rank in the second feed-forward matrix of one or a few layers, as ROME and MEMIT",
    "abliterated": "one direction of the residual stream was removed from all matrices that write into it",
    "pruned": "numbers were set to zero",
    "quantised": "weights lie on a grid of few numbers, as after quantisation, whatever dtype they are stored in",
    "noise added": "independent numbers were added to all weights",
    "embedding rows reset": "rows of the token embedding were written anew",
    "embedding rows added": "rows were appended to the token embedding, and nothing else changed",
    "layers moved": "layers are copied, dropped, or in another order",
    "rearranged": "the base's weights in other places or with other scales",
    "untrained": "weights as a new network draws them, or an adapter that adds zero",
    "broken": "numbers that are not finite, constant matrices, or matrices of another model among the base's",
}
