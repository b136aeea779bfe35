"""A small forest of trained models, made once in .demo/ and indexed once per run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell
from tests.once import made_once
from tests.training import small_forest


@dataclass
class Forest:
    """The store of a forest, the plan it was made from, and an atlas of it."""

    store: Path
    atlas: Path
    nodes: dict[str, dict[str, Any]]
    base: str

    def first_of(self, group: str) -> str:
        """The first model of a group."""
        return next(name for name, node in self.nodes.items() if node["group"] == group)

    def parents(self, name: str) -> set[str]:
        return {parent for parent in self.nodes[name]["parents"] if not self.nodes[parent]["hidden"]}


@pytest.fixture(scope="session")
def store() -> Path:
    return small_forest()


@pytest.fixture(scope="session")
def trees(store):
    """The forest, served to all tests of a process."""
    from scripts.loopback_hub import LoopbackHub

    with LoopbackHub(store) as running:
        yield running


@pytest.fixture(scope="session")
def forest(store, trees, tmp_path_factory) -> Forest:
    truth = json.loads((store / "truth.json").read_text())

    def make(folder: Path) -> None:
        shell = Shell(trees.endpoint, folder)
        result = shell("index", "build", "--base", truth["base"], "--workers", "1")
        assert result.code == 0, result.err
        result = shell("query", "lineage", "--all", "--json")
        assert result.code == 0, result.err
        (folder / "answers.json").write_text(result.out)

    folder = made_once(tmp_path_factory, "forest", make)
    return Forest(store, folder / "atlas", {node["name"]: node for node in truth["nodes"]}, truth["base"])


@pytest.fixture(scope="session")
def answers(forest) -> dict[str, list[dict[str, Any]]]:
    """The rows of `query lineage --all`, by model."""
    rows_of: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads((forest.atlas.parent / "answers.json").read_text()):
        rows_of.setdefault(row["model"], []).append(row)
    return rows_of
