"""LoRA and its seed on bases, data sets and seeds that nothing was chosen on; one base is a real pretrained model."""

from __future__ import annotations

from pathlib import Path

from studies.adapters import __main__ as studied
from studies.adapters.study import load_study
from studies.arena.family import SKIPPED, prepare, pretrained_folder, pretrained_plan
from studies.arena.scores import Json

TINY, REAL = "llama", "minilm"
PLANS = {name: Path(__file__).with_name(f"adapters_{name}.toml") for name in (TINY, REAL)}


def run(out: Path) -> Json:
    """Figures of both bases; of the real one why there are none, where it is not installed."""
    found = {TINY: studied.figures_of(load_study(TINY, PLANS[TINY]), out / "adapters" / TINY)}
    source = pretrained_folder()
    if source is None:
        return found | {REAL: {"skipped": SKIPPED}}
    study = load_study(REAL, PLANS[REAL], pretrained_plan(source))
    folder = out / "adapters" / REAL
    prepare(folder / "family", study.plan, source)
    return found | {REAL: studied.figures_of(study, folder)}


def tables(figures: Json) -> str:
    """The tables of both bases."""
    parts = []
    for name, found in figures.items():
        skipped = found.get("skipped")
        parts.append(f"### {name}\n\nSkipped: {skipped}." if skipped else studied.tables(found))
    return "\n\n".join(parts)
