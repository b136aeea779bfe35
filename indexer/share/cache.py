"""Atlases opened as hf://OWNER/NAME@TAG: fetched once into the Hub's cache.

The cache stores each file once and links to it, but an atlas consists of regular files. So every atlas that was opened
has a folder among the library's assets (which ``hf cache`` lists), with hard links to the same contents, and the
database as it passed the gate. Without a network the version fetched last is used. Nothing is read that another user
owns or may write to: what was checked when it was fetched would not be what is read.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from urllib.parse import quote

from huggingface_hub import cached_assets_path, constants, hf_hub_download

from indexer.atlas import AtlasFolder
from indexer.errors import AtlasError
from indexer.network.hub_errors import as_model_error
from indexer.network.session import current_session
from indexer.publish.origin import read_origin
from indexer.share.pull import Say, fetch
from indexer.share.repository import Address, our_progress_bars, resolve
from indexer.shared_state import usable_umask
from indexer.storage.atomic_files import copy_file, link_or_copy
from indexer.storage.own_files import is_own, make_own, not_own, read_own, write_own

_LIBRARY = "vectors-in-the-wild"
_SHA = re.compile("[0-9a-f]{40}")
_OWN_CACHE = "Remove it, or let HF_HOME name a folder of your own."


def cached_atlas(text: str, say: Say) -> Path:
    """The folder of the atlas that ``text`` names, fetched if it is not in the cache yet.

    One request checks whether the branch or tag has moved. Raises AtlasError if there is no such atlas, or if the Hub
    cannot be reached and the atlas was not fetched before.
    """
    with usable_umask():
        return _cached_atlas(Address.parse(text), say)


def _cached_atlas(address: Address, say: Say) -> Path:
    home = _home(address)
    note = home / "refs" / quote(address.revision or "main", safe="")
    cached_sha = _noted(note)
    if constants.HF_HUB_OFFLINE:
        if cached_sha is None:
            raise AtlasError(
                f"{address} is not in the cache, and HF_HUB_OFFLINE forbids asking the Hub.",
                "Unset HF_HUB_OFFLINE and run it again.",
            )
        sha = cached_sha
    else:
        try:
            sha = resolve(address)
        except AtlasError as error:
            if cached_sha is None or not isinstance(error.__cause__, Exception):
                raise
            try:
                reason = as_model_error(error.__cause__).reason
            except Exception:
                raise error from error.__cause__
            if reason not in ("network", "timeout", "server_error", "rate_limited"):
                raise
            say(f"the Hub cannot be reached: {address} is taken from the cache, as it was when last fetched")
            sha = cached_sha
    folder = AtlasFolder(home / sha)
    _remove_foreign(folder, address, sha, say)
    if not folder.database.is_file():
        say(f"fetching {address} into the cache")
        fetch(folder, address, sha, _cached, say)
        make_own(folder.root, *folder.root.rglob("*"))
    if sha != cached_sha:
        write_own(note, sha.encode())
    return folder.root


def _home(address: Address) -> Path:
    """The folder of all commits of an atlas. Raises AtlasError if others may write to it."""
    try:
        home = cached_assets_path(
            _LIBRARY,
            namespace="atlases",
            subfolder=address.name.replace("/", "--"),
            assets_dir=constants.HF_ASSETS_CACHE,
        )
        make_own(home)
    except ValueError as error:  # a file is in the way
        raise AtlasError(f"{constants.HF_ASSETS_CACHE} cannot hold {address}: {error}", _OWN_CACHE) from error
    if not is_own(home):
        raise AtlasError(f"{home} is not used: another user owns it or may write there.", _OWN_CACHE)
    return home


def _noted(note: Path) -> str | None:
    """The commit that was fetched last; None if there is none, or others may have written it."""
    try:
        sha = read_own(note, 100).decode("ascii")
    except (OSError, ValueError):
        return None
    return sha if _SHA.fullmatch(sha) else None


def _remove_foreign(folder: AtlasFolder, address: Address, sha: str, say: Say) -> None:
    """Remove a folder with something that others own or may write to, or that holds another atlas.

    Raises AtlasError if it cannot be removed, or the Hub may not be asked for it again.
    """
    if not os.path.lexists(folder.root):
        return
    try:
        foreign = not_own(folder.root)
        if foreign is None:
            origin = read_origin(folder)
            if not folder.database.exists() or (origin and (origin.repository, origin.commit) == (address.name, sha)):
                return
        refusal = f"{foreign or folder.root} is not used: another user owns it or may write there"
        if foreign is None:
            refusal = f"{folder.root} is not used: it is not {address}"
        if constants.HF_HUB_OFFLINE:
            raise AtlasError(f"{refusal}.", "Unset HF_HUB_OFFLINE, so that it can be fetched again.")
        say(f"{refusal}; {address} is fetched again")
        if folder.root.is_dir() and not folder.root.is_symlink():
            shutil.rmtree(folder.root)
        else:
            folder.root.unlink()
    except OSError as error:
        raise AtlasError(
            f"{error.filename or folder.root} cannot be used: {error.strerror or error}.", _OWN_CACHE
        ) from error


def _cached(name: str, path: str, sha: str, target: Path) -> Path:
    """Fetch a file into the Hub's cache, and link its content below ``target``, or copy what others may write to."""
    with our_progress_bars():
        blob = Path(hf_hub_download(name, path, repo_type="dataset", revision=sha, **current_session().hub)).resolve()
    make_own(blob)
    if is_own(blob):
        link_or_copy(blob, target / path)
    else:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).unlink(missing_ok=True)
        copy_file(blob, target / path)
    return target / path
