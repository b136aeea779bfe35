"""Families of different architectures, tokenizers and vocabularies, tuned on the same data sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from scripts.family import family, tasks
from scripts.family.plan import Plan, load_plan
from scripts.family.store import RECORD, is_finished, read_json
from scripts.loopback_hub import LoopbackHub
from scripts.terminal import Terminal
from studies.arena.family import prepare, pretrained_plan
from studies.trace.texts import make_tokenizer

SIZE = "demo"


@dataclass(frozen=True)
class Tongue:
    """The tokenizer of a family: ``kind`` as in ``studies.trace.texts``, and the number of its tokens."""

    kind: str
    vocabulary: int


# By architecture. Vocabularies differ in size, so that no two bases have the same rows.
TONGUES: Mapping[str, Tongue] = {
    "roberta": Tongue("BPE", 4096),
    "bert": Tongue("WordPiece", 6000),
    "gpt2": Tongue("BPE", 3000),
    "t5": Tongue("Unigram", 5000),
}


def plan_of(architecture: str, size: str = SIZE) -> Plan:
    """The plan of ``scripts.family`` with another vocabulary."""
    plan, tongue = load_plan(size, architecture), TONGUES[architecture]
    digest = hashlib.sha256(f"{plan.fingerprint} {tongue.kind} {tongue.vocabulary}".encode()).hexdigest()
    return replace(plan, text=replace(plan.text, vocabulary=tongue.vocabulary), fingerprint=digest)


def make(folder: Path, architecture: str, size: str = SIZE) -> Plan:
    """Train the family below ``folder`` unless it is there. Raises AtlasError if the folder holds something else."""
    plan = plan_of(architecture, size)
    if is_finished(folder, plan.fingerprint):
        return plan
    family.claim_folder(folder, plan)
    work = folder / family.WORK
    work.mkdir(exist_ok=True)
    if not (work / family.TEXTS_ARE_READY).exists():
        tasks.prepare(plan, work, partial(make_tokenizer, TONGUES[architecture].kind))
        (work / family.TEXTS_ARE_READY).touch()
    family.build(folder, plan)
    return plan


def real_plan(source: Path) -> Plan:
    """The full fine-tunes of the plan on the real pretrained network in a folder, with fewer steps."""
    plan = pretrained_plan(source)
    runs = tuple(run for run in plan.runs if run.adapter is None and not run.scratch and run.parent is None)
    digest = hashlib.sha256(f"{plan.fingerprint} across bases".encode()).hexdigest()
    settings = replace(plan.settings, steps=0.5)
    return replace(plan, settings=settings, runs=runs, oddities=(), fingerprint=digest)


def make_real(folder: Path, source: Path) -> Plan:
    """Tune the real network in ``source`` on the same data sets, below ``folder``, unless it is there."""
    plan = real_plan(source)
    prepare(folder, plan, source)
    family.build(folder, plan)
    return plan


def atlas_of(folders: Mapping[str, Path], out: Path) -> Path:
    """The atlas below ``out`` of the families in these folders, by name, each indexed unless it is there.

    Raises CommandFailed if `index build` fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    with LoopbackHub(*folders.values()) as hub:
        terminal = Terminal.of_hub(out, hub.endpoint)
        for name, folder in folders.items():
            description = read_json(folder / RECORD)
            stamp = out / f"{name}-{description['fingerprint'][:16]}"
            if not stamp.exists():
                terminal(f"index build --base {description['base']} --discover names", progress=False)
                stamp.touch()
    return out / "atlas"
