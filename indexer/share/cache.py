"""Atlases opened as hf://OWNER/NAME@TAG: fetched once into the Hub's cache.

The cache stores each file once and links to it, but an atlas consists of regular files. So every atlas that was opened
has a folder among the library's assets (which ``hf cache`` lists), with hard links to the same contents. Without a
network the version fetched last is used.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from huggingface_hub import cached_assets_path, constants, hf_hub_download

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.network.hub_errors import as_model_error
from indexer.network.session import current_session, our_progress_bars
from indexer.share.pull import Say, fetch
from indexer.share.repository import Address, resolve
from indexer.shared_state import usable_umask
from indexer.storage.atomic_files import link_or_copy, write_atomically

_LIBRARY = "vectors-in-the-wild"


def cached_atlas(text: str, say: Say) -> Path:
    """The folder of the atlas that ``text`` names, fetched if it is not in the cache yet.

    One request checks whether the branch or tag has moved. Raises AtlasError if there is no such atlas, or if the Hub
    cannot be reached and the atlas was not fetched before.
    """
    with usable_umask():
        return _cached_atlas(Address.parse(text), say)


def _cached_atlas(address: Address, say: Say) -> Path:
    home = cached_assets_path(_LIBRARY, namespace="atlases", subfolder=address.name.replace("/", "--"))
    note = home / "refs" / quote(address.revision or "main", safe="")
    known = note.read_text() if note.is_file() else None
    if constants.HF_HUB_OFFLINE:
        if known is None:
            raise AtlasError(
                f"{address} is not in the cache, and HF_HUB_OFFLINE forbids asking the Hub.",
                "Unset HF_HUB_OFFLINE and run it again.",
            )
        sha = known
    else:
        try:
            sha = resolve(address)
        except AtlasError as error:
            if known is None or not isinstance(error.__cause__, Exception):
                raise
            try:
                reason = as_model_error(error.__cause__).reason
            except Exception:
                raise error from error.__cause__
            if reason not in ("network", "timeout", "server_error", "rate_limited"):
                raise
            say(f"the Hub cannot be reached: {address} is taken from the cache, as it was when last fetched")
            sha = known
    folder = AtlasFolder(home / sha)
    if not folder.database.is_file():
        say(f"fetching {address} into the cache")
        fetch(folder, address, sha, _cached, say)
    if sha != known:
        write_atomically(note, sha.encode())
    return folder.root


def _cached(name: str, path: str, sha: str, target: Path) -> Path:
    """Fetch a file into the Hub's cache, and link its content below ``target``."""
    with our_progress_bars():
        blob = Path(hf_hub_download(name, path, repo_type="dataset", revision=sha, **current_session().hub)).resolve()
    link_or_copy(blob, target / path)
    return target / path
