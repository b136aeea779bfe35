"""How the Hub writes the ids of models: ``owner/name``, old ids without an owner, and addresses of their pages."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from indexer.errors import AtlasError, without_user

# The rule of huggingface_hub.utils.validate_repo_id, which takes a second to import.
_ID_PART = r"\w(?:[\w.\-]{0,94}\w)?"
_HUB_ID = re.compile(rf"(?:{_ID_PART}/)?{_ID_PART}", re.ASCII)
# Sites from which people copy addresses, besides the endpoint in use.
_SITES = ("https://huggingface.co", "https://hf.co")
_NO_MODELS = ("datasets", "spaces", "collections", "docs", "papers", "blog")
_ADDRESS = re.compile(
    r"(?<![\w.\-])(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^\s?#)\]<>\"']{1,300})", re.IGNORECASE
)

# Parts of an address behind a name that are pages.
_PAGES = {
    "viewer", "tree", "blob", "resolve", "raw", "discussions", "commits", "commit", "compare", "edit", "embed",
    "settings", "upload",
}  # fmt: skip
_NOT_OWNERS = {
    "datasets",
    "models",
    "spaces",
    "docs",
    "blog",
    "papers",
    "collections",
    "tasks",
    "learn",
    "api",
}


def is_hub_id(text: str) -> bool:
    """Whether ``text`` can be a Hub model id: ``name`` or ``owner/name``, never a path that climbs."""
    return bool(_HUB_ID.fullmatch(text)) and ".." not in text and "--" not in text and not text.endswith(".git")


def without_address(text: str) -> str:
    """The model of a page's address: ``owner/name``, or ``owner/name@revision`` for ``…/tree/…``.

    Knows pages of huggingface.co, hf.co and of the endpoint in use (HF_ENDPOINT), with or without https://; any other
    text is returned as it is. Raises AtlasError for the address of something other than a model.
    """
    path = _path_on_site(text)
    if path is None:
        return text
    parts = [unquote(part) for part in path.split("/") if part]
    if len(parts) < 2 or parts[0] in _NO_MODELS:
        raise AtlasError(
            f"{text[:200]!r} is not the address of a model.", "A model's page is huggingface.co/OWNER/NAME."
        )
    identifier, rest = "/".join(parts[:2]), parts[2:]
    if len(rest) < 2 or rest[0] not in ("tree", "blob", "resolve", "commit"):
        return identifier
    revision = "/".join(rest[1:4]) if rest[1] == "refs" else rest[1]
    return f"{identifier}@{revision}"


def _path_on_site(text: str) -> str | None:
    """The path of an address on a known site; None where ``text`` is not one."""
    for site in (*_SITES, without_user(os.environ.get("HF_ENDPOINT", "").rstrip("/"))):
        address = urlsplit(site)
        if not address.netloc:
            continue
        bare = f"{address.netloc}{address.path}/"
        for prefix in (f"https://{bare}", f"http://{bare}", f"https://www.{bare}", bare):
            if text.lower().startswith(prefix.lower()):
                return re.split(r"[?#]", text[len(prefix) :])[0]
    return None


def hub_address(text: str, kind: str) -> str | None:
    """The id in the first huggingface.co address in ``text``; ``kind`` is "models" or "datasets".

    None for an address that is no page of the Hub: tools put the path of a folder behind the Hub's name
    (``https://huggingface.co//data/models/X``).
    """
    match = _ADDRESS.search(text)
    if not match:
        return None
    parts = match[1].removesuffix("/").split("/")
    if kind == "datasets":
        if len(parts) < 2 or parts[0].lower() != "datasets":
            return None
        parts = parts[1:]
    elif parts[0].lower() in _NOT_OWNERS:
        return None
    count = 1 if len(parts) > 1 and parts[1] in _PAGES else 2
    name = "/".join(parts[:count])
    is_page = len(parts) <= count or parts[count] in _PAGES
    return name if is_page and is_hub_id(name) else None
