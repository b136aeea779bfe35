"""Adapters that strangers made, from a folder and its table, as repositories that a loopback Hub serves.

A folder of each adapter is called by its id; the table (tab-separated, with a head) has for each id at least its
``author`` and ``dataset``. The base needs no files: what a LoRA changed does not depend on the base's weights.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.errors import AtlasError
from indexer.sources.cards.datasets import canonical_dataset, canonical_datasets, is_known

SHAPES = Path(__file__).with_name("bases.toml")
CONFIG = "adapter_config.json"
COLUMNS = ("id", "author", "dataset")
_OWN = "own"  # begins the name of a data set that only its author has
_OWNER = "strangers"  # of a base without one
_FORM = 1  # of what ``write`` makes


@dataclass(frozen=True)
class Adapter:
    """``datasets``: canonical names of the public data sets that it was tuned on, none if that is not known."""

    folder: Path
    author: str
    datasets: tuple[str, ...]

    @property
    def model(self) -> str:
        """Its id on the Hub."""
        return f"{self.author}/{self.folder.name}"

    @property
    def config(self) -> Mapping[str, Any]:
        """What its adapter_config.json says; nothing without one, or if that is no object."""
        try:
            found = json.loads((self.folder / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Collection:
    """The adapters of one base.

    ``base``: its id; ``base_files``: a folder with its config.json and weights, None for random weights; ``absent``: rows
    of the table without a folder.
    """

    base: str
    adapters: tuple[Adapter, ...]
    absent: int = 0
    base_files: Path | None = None

    @property
    def fingerprint(self) -> str:
        """A digest (16 hex digits) of what ``write`` would make."""
        parts = [f"{_FORM} {self.base} {self.base_files}"]
        for one in self.adapters:
            files = sorted((path.relative_to(one.folder), path.stat()) for path in one.folder.rglob("*"))
            parts.append(
                f"{one.model} {one.datasets} {[(str(name), at.st_size, at.st_mtime_ns) for name, at in files]}"
            )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def read_collection(folder: Path, table: Path, base: str | None = None, base_files: Path | None = None) -> Collection:
    """The adapters in a folder, as its table describes them.

    ``base``: the id of their base, with or without its owner; None for the one that most of them name. Raises
    AtlasError if there is no adapter, if the table lacks a column, or if no base is named.
    """
    with table.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, delimiter="\t")
        if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
            raise AtlasError(
                f"{table} has no column {missing[0]!r}.", "It is tab-separated, and its first line names columns."
            )
        rows = list(reader)
    # An id names a folder here, and a repository: nothing else.
    usable = [row for row in rows if row["id"] and row["author"] and {row["id"], row["author"]}.isdisjoint(("..", "."))]
    adapters = [
        Adapter(folder / row["id"], row["author"], datasets_of(row["dataset"]))
        for row in usable
        if "/" not in row["id"] + row["author"] and (folder / row["id"]).is_dir()
    ]
    if not adapters:
        raise AtlasError(
            f"{folder} has no folder of an adapter that {table} names.", "Name others with --folder and --tsv."
        )
    if base is None:
        named = Counter(
            str(one.config["base_model_name_or_path"]) for one in adapters if one.config.get("base_model_name_or_path")
        )
        if not named:
            raise AtlasError(f"No adapter in {folder} names its base.", "Name it with --base.")
        base = named.most_common(1)[0][0]
    return Collection(full_id(base), tuple(adapters), len(rows) - len(adapters), base_files)


def datasets_of(text: str | None) -> tuple[str, ...]:
    """The canonical names of the public data sets in a cell: ids (``owner/name``), each with its configuration, if any.

    One of the author's own (``own: …``) names none: no other author can have it.
    """
    if not text or text.strip().startswith(_OWN):
        return ()
    text = text.strip()
    if found := canonical_datasets(text):
        return tuple(one.name for one in found)
    name, _, config = text.partition(" ")
    one = canonical_dataset(name, config=config.strip() or None) if "/" in name or is_known(name) else None
    return (one.name,) if one else ()


def full_id(base: str) -> str:
    """The id of a base with its owner."""
    if "/" in base:
        return base
    shape = _shapes().get(base)
    return f"{shape['owner'] if shape else _OWNER}/{base}"


def write(collection: Collection, out: Path) -> None:
    """Write the repositories below ``out``, in place of what is there.

    Raises AtlasError if neither files nor the shape of the base are known.
    """
    shutil.rmtree(out, ignore_errors=True)
    target = out / collection.base
    name = collection.base.rpartition("/")[2]
    if collection.base_files is not None:
        shutil.copytree(collection.base_files, target)
    elif shape := _shapes().get(name):
        target.mkdir(parents=True)
        _save_random(shape, target)
    else:
        raise AtlasError(
            f"The shape of {collection.base} is not known here.",
            f"Name its files with --base-files, or add it to {SHAPES.name}.",
        )
    _describe(out, collection.base, {"old_ids": [name]})
    for one in collection.adapters:
        shutil.copytree(one.folder, out / one.model)
        tags = [
            f"base_model:{collection.base}",
            f"base_model:adapter:{collection.base}",
            *(f"dataset:{name}" for name in one.datasets),
        ]
        card: dict[str, Any] = {"base_model": collection.base}
        if one.datasets:
            card["datasets"] = list(one.datasets)
        _describe(out, one.model, {"tags": tags, "card_data": card})


def _describe(out: Path, repository: str, said: Mapping[str, Any]) -> None:
    (out / f"{repository}.repo.json").write_text(json.dumps(said), encoding="utf-8")


def _shapes() -> dict[str, dict[str, Any]]:
    return tomllib.loads(SHAPES.read_text(encoding="utf-8"))


def _save_random(shape: Mapping[str, Any], target: Path) -> None:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(shape["type"], **shape.get("config", {}))
    transformers.AutoModel.from_config(config, dtype=torch.float16).save_pretrained(target)
