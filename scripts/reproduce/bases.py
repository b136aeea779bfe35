"""The bases that the seed names, what stands for them offline, and what is asked of each."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

REPRESENTATIONS = ("seed", "seed_scaled", "input", "output", "delta", "spectrum")
SIDE_BY_SIDE = ("seed", "input")  # the original method, and ours


@dataclass(frozen=True)
class StudiedBase:
    """One of the seed's bases.

    ``architecture``: the family that stands for it offline, a table of ``scripts/family/plan.toml``.
    ``is_fused``: its checkpoints hold query, key and value as one matrix.
    """

    id: str
    architecture: str
    is_fused: bool = False

    @property
    def family_base(self) -> str:
        """The base model of the family."""
        return f"atlas-demo/tiny-{self.architecture}"


BASES = (
    StudiedBase("bert-base-uncased", "bert"),
    StudiedBase("roberta-base", "roberta"),
    StudiedBase("t5-base", "t5"),
    StudiedBase("gpt2-medium", "gpt2", is_fused=True),
)


@dataclass(frozen=True)
class Question:
    """A command that is asked of one base; ``file`` is what it writes, relative to the study's folder."""

    name: str
    command: str
    file: str | None = None


def questions(studied: StudiedBase, base: str, suffix: str) -> tuple[Question, ...]:
    """Everything that is asked of ``base`` once its vectors are published.

    ``base``: its canonical id. ``suffix``: of the figures, as ``.png``.
    """
    named, stem = f"--base {shlex.quote(base)}", file_stem(base)
    asked = [Question(f"purity-{name}", f"query purity {named} --representation {name}") for name in REPRESENTATIONS]
    asked += [Question(f"clusters-{name}", f"query clusters {named} --representation {name}") for name in SIDE_BY_SIDE]
    asked += [
        _drawn(f"map-{name}", f"query map {named} --representation {name}", f"figures/map-{stem}-{name}{suffix}")
        for name in SIDE_BY_SIDE
    ]
    for of in ("weights", "delta"):
        asked.append(_drawn(f"rank-{of}", f"query rank {named} --of {of}", f"figures/rank-{stem}-{of}{suffix}"))
        if studied.is_fused:
            whole = f"figures/rank-{stem}-{of}-whole{suffix}"
            asked.append(_drawn(f"rank-{of}-whole", f"query rank {named} --of {of} --whole", whole))
    asked.append(_drawn("report", f"query report {named}", f"reports/{stem}.html"))
    return tuple(asked)


def _drawn(name: str, command: str, file: str) -> Question:
    return Question(name, f"{command} --out {shlex.quote(file)}", file)


def file_stem(base: str) -> str:
    """A base's id as part of a file's name."""
    return base.replace("/", "--")
