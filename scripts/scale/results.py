"""The outcome of a run: likeness, figures by size, and the machine they hold for; as JSON and as tables."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from indexer.machine import processors
from scripts.scale.figures import Figures, aligned, table
from scripts.scale.likeness import FIGURES, LABEL_FIGURES, Compared


@dataclass
class Results:
    """``atlases`` by their number of models, ``vectors`` by that of their vectors."""

    likeness: list[Compared] = field(default_factory=list)
    atlases: dict[int, Figures] = field(default_factory=dict)
    vectors: dict[int, Figures] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)

    def columns(self) -> dict[str, Figures]:
        """What is measured, by the name of its column."""
        named = {f"{count:,} models": figures for count, figures in self.atlases.items()}
        return named | {f"{count:,} vectors": figures for count, figures in self.vectors.items()}

    def text(self) -> str:
        """Tables for people."""
        parts = []
        if self.likeness:
            parts.append(
                "Real and synthetic: labels, and vectors with the same labels\n"
                + aligned(likeness_table(self.likeness))
            )
        if self.atlases or self.vectors:
            parts.append("What an atlas costs\n" + aligned(table(self.columns())))
        return "\n\n".join(parts)

    def write(self, path: Path) -> None:
        """Keep everything as JSON."""
        content = {
            "machine": self.machine,
            "likeness": [asdict(one) | {"is_like": one.is_like} for one in self.likeness],
            "atlases": [{"models": count, "figures": one.values} for count, one in self.atlases.items()],
            "vectors": [{"vectors": count, "figures": one.values} for count, one in self.vectors.items()],
        }
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_results(path: Path) -> Results:
    """What ``write`` kept. Raises OSError, ValueError or KeyError where the file is no such thing."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    likeness = [Compared(**{name: row[name] for name in Compared.__dataclass_fields__}) for row in content["likeness"]]
    atlases = {row["models"]: _figures(row["figures"]) for row in content["atlases"]}
    vectors = {row["vectors"]: _figures(row["figures"]) for row in content["vectors"]}
    return Results(likeness, atlases, vectors, content["machine"])


def _figures(values: dict[str, Any]) -> Figures:
    figures = Figures()
    for name, value in values.items():
        figures.put(name, value)
    return figures


def likeness_table(rows: list[Compared]) -> list[list[str]]:
    """Real beside synthetic, with the deviation of draws and what may differ."""
    body = [
        [
            (FIGURES | LABEL_FIGURES)[row.name][0],
            f"{row.low:.3f}" if row.low == row.high else f"{row.low:.3f}–{row.high:.3f}",
            f"{row.synthetic:.3f} ± {row.deviation:.3f}",
            f"± {row.bound:.2f}",
            "yes" if row.is_like else "NO",
        ]
        for row in rows
    ]
    return [["", "real", "synthetic (deviation of draws)", "bound", "alike"], *body]


def this_machine() -> dict[str, str]:
    """What the figures hold for."""
    from importlib.metadata import version

    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "processors": str(processors()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "faiss-cpu": version("faiss-cpu"),
        "duckdb": version("duckdb"),
        "numpy": version("numpy"),
    }
