"""Atlases on the Hub: datasets that carry the tag, as their cards describe them."""

from __future__ import annotations

from typing import Any

from indexer.errors import WRONG_KINDS
from indexer.network.hub_requests import ask
from indexer.network.session import install_session
from indexer.share.card import TAG
from indexer.share.repository import LIMITS, failures_told
from indexer.untrusted import printable

MOST = 1000
_SIZE = "size_categories:"
_BASE = "base_model:"


def atlases_on_hub(base: str | None = None) -> list[dict[str, Any]]:
    """Every atlas that the Hub lists, the newest first; of one ``base`` where that is told. Raises AtlasError."""
    install_session(LIMITS)
    filters = [TAG, *([f"{_BASE}{base}"] if base else [])]
    parameters = [
        *(("filter", one) for one in filters),
        ("sort", "lastModified"),
        ("direction", "-1"),
        ("limit", "100"),
    ]
    expand = ("cardData", "tags", "lastModified", "private", "downloads", "likes", "sha")
    parameters += [("expand", one) for one in expand]
    rows: list[dict[str, Any]] = []
    with failures_told("list of atlases", "read"):
        answer = ask("/api/datasets", parameters)
        for _ in range(MOST // 20):  # a page of the Hub has a hundred, of some mirrors fewer
            rows += [_row(one) for one in answer.value if isinstance(one, dict)]
            if answer.next_link is None or len(rows) >= MOST:
                break
            answer = ask(answer.next_link)
    return rows


def _row(told: dict[str, Any]) -> dict[str, Any]:
    """What a stranger's row says; what is malformed is left out."""
    tags = [str(one) for one in told.get("tags") or () if isinstance(one, str)]
    atlas: Any = (told.get("cardData") or {}).get("atlas") if isinstance(told.get("cardData"), dict) else None
    bases = [printable(one.removeprefix(_BASE), 120) for one in tags if one.startswith(_BASE)]
    models: int | str | None = next(
        (printable(one.removeprefix(_SIZE), 20) for one in tags if one.startswith(_SIZE)), None
    )
    generation = None
    try:
        models = int(atlas["models"])
        generation = int(atlas["generation"])
        bases = [printable(str(one["base"]), 120) for one in atlas["bases"]]
    except WRONG_KINDS:
        pass
    return {
        "atlas": printable(str(told.get("id")), 120),
        "bases": bases,
        "models": models,
        "generation": generation,
        "modified": printable(str(told.get("lastModified") or ""), 30)[:10],
        "private": told.get("private") is True,
        "downloads": told.get("downloads") if isinstance(told.get("downloads"), int) else None,
    }
