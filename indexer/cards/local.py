"""A checkpoint folder on this machine, described as the Hub would describe a repository."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from indexer.cards.local_names import place_of, without_paths
from indexer.cards.modelcard import ModelFacts, card_facts, read_row
from indexer.errors import AtlasError
from indexer.names import ModelRef, is_local_id
from indexer.untrusted import is_too_deep, load_json

# What the weights and the claims of a folder depend on.
_HASHED = (".safetensors", ".bin", ".json")
_LARGEST_TEXT = 4 << 20


def local_row(reference: ModelRef, name: str | None = None) -> dict[str, Any]:
    """A listing row for a folder: its card, its config, its files; its commit is a hash of their content.

    ``name``: its id; by default that of the reference, its path, which is not to be stored.

    Raises AtlasError where the folder holds no checkpoint.
    """
    folder = reference.folder
    assert folder is not None
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path, folder))
    names = [path.relative_to(folder).as_posix() for path in files]
    if not any(name.endswith((".safetensors", ".bin")) for name in names):
        raise AtlasError(
            f"{folder} holds no weights (no .safetensors or .bin file).",
            "Give the folder that save_pretrained wrote.",
        )
    card = card_facts(_text(folder / "README.md"))
    modified = max(path.stat().st_mtime for path in files)
    return {
        "id": name or reference.id,
        "folder": place_of(folder),
        "sha": _content_hash(folder, files),
        "lastModified": datetime.fromtimestamp(modified, UTC).isoformat(),
        "createdAt": datetime.fromtimestamp(modified, UTC).isoformat(),
        "tags": [],
        "cardData": without_paths(card),
        "config": without_paths(_config(folder)),
        "siblings": [{"rfilename": name} for name in names],
    }


def facts_of(row: Mapping[str, Any]) -> ModelFacts:
    """The facts of a listing row, of a repository or of a folder (whose path is no Hub id).

    Raises MalformedRow where the row names no model.
    """
    identifier = row.get("id")
    is_folder = isinstance(identifier, str) and (is_local_id(identifier) or Path(identifier).is_absolute())
    return read_row({**row, "id": "local/folder"} if is_folder else row)


def _content_hash(folder: Path, files: list[Path]) -> str:
    digest = hashlib.sha1(usedforsecurity=False)
    for path in files:
        if path.suffix in _HASHED:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _config(folder: Path) -> dict[str, Any]:
    """What the Hub passes on of config.json and adapter_config.json."""
    found, adapter = (_object(folder / name) for name in ("config.json", "adapter_config.json"))
    told = {key: found[key] for key in ("architectures", "model_type") if key in found}
    named = adapter.get("base_model_name_or_path")
    return told | ({"peft": {"base_model_name_or_path": named}} if named else {})


def _object(path: Path) -> dict[str, Any]:
    try:
        found = load_json(_text(path) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and not is_too_deep(found) else {}


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_TEXT).decode("utf-8", errors="replace")
    except OSError:
        return ""


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
