"""What must be known of a base before anything is compared with it, for every source."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from indexer.errors import AtlasError, ModelError
from indexer.network.rows import filenames_in
from indexer.sources.registry import ModelRef
from indexer.sources.rows import errors_of, row_of
from indexer.sources.source import BaseFacts, Source
from indexer.untrusted import load_json, printable

LARGEST_CONFIG = 8 << 20
# Reasons for which a config.json cannot be read, now or later.
NO_CONFIG = ("not_found", "malformed", "malformed_row")

# The folders that hold the denoising model in a repository of diffusers.
_COMPONENTS = ("transformer", "unet")
# Files that say what a repository without config.json is, and what to do.
_INSTEAD_OF_CONFIG = (
    ("adapter_config.json", "it is an adapter", "Name the base that it was trained on."),
    ("model_index.json", "it is a pipeline without a separate folder for its denoising model", "Choose another base."),
    ("params.json", "its weights are in Mistral's own format", "Choose the transformers version, often named …-hf."),
)


def base_of(source: Source, name: str) -> BaseFacts:
    """A base of this source. Raises AtlasError as ``Source.base``."""
    if (facts := source.base(name)) is not None:
        return facts
    if (reference := source.parse(name)) is None:
        raise AtlasError(f"{printable(name, 100)!r} is not the name of a model on {source.title}.", "")
    if reason := source.offline:
        raise AtlasError(f"The base {reference.id} cannot be read: {reason}.", "")
    try:
        row = row_of(reference)
    except ModelError as error:
        raise source.explain(error, reference) from error
    component = component_of(filenames_in(row))
    path = f"{component}/config.json" if component else "config.json"
    config = None
    try:
        with errors_of(source):
            content = source.read_small(ModelRef(str(row["id"])), path, str(row["sha"]), LARGEST_CONFIG)
        config = load_json(content)
    except ModelError as error:
        if error.reason not in NO_CONFIG:
            raise source.explain(error, reference) from error
    except ValueError:
        pass
    aliases = [reference.id] if reference.id != row["id"] else []
    return facts_from(row, aliases, config, component)


def facts_from(row: dict[str, Any], aliases: Collection[str], config: Any, component: str) -> BaseFacts:
    """The facts of a base with this row and this config.json. Raises AtlasError if that cannot be the one of a base."""
    identifier = str(row["id"])
    if not isinstance(config, dict):
        raise _without_config(identifier, filenames_in(row))
    if component and isinstance(config.get("_class_name"), str):
        config["model_type"] = config["_class_name"]
    return BaseFacts(identifier, str(row["sha"]), tuple(dict.fromkeys(aliases)), config, row, component)


def component_of(filenames: Collection[str]) -> str:
    """The folder of the denoising model in a repository of diffusers; "" for any other repository."""
    if "model_index.json" not in filenames or "config.json" in filenames:
        return ""
    return next((name for name in _COMPONENTS if f"{name}/config.json" in filenames), "")


def _without_config(identifier: str, filenames: tuple[str, ...]) -> AtlasError:
    for name, what, hint in _INSTEAD_OF_CONFIG:
        if name in filenames and "config.json" not in filenames:
            return AtlasError(f"{identifier} has no config.json: {what} ({name}).", hint)
    return AtlasError(
        f"{identifier} has no readable config.json, so the architecture of its weights is unknown.",
        "Choose a base that transformers or diffusers can load.",
    )
