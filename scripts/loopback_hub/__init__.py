"""A small Hugging Face Hub on loopback, for tests, measures and the demo: see ``LoopbackHub``.

>>> with LoopbackHub("store") as hub:  # doctest: +SKIP
...     print(hub.endpoint, hub.body_bytes("owner/name", "model.safetensors"))
"""

from scripts.loopback_hub.faults import Effects, Fault, Faults
from scripts.loopback_hub.hub import LoopbackHub
from scripts.loopback_hub.ledger import RequestRecord
from scripts.loopback_hub.store import StoreError

__all__ = ["Effects", "Fault", "Faults", "LoopbackHub", "RequestRecord", "StoreError"]
