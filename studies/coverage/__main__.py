"""What becomes of every kind of upload: ``python -m studies.coverage [WORDS…]`` prints kind → outcome.

``--page`` writes the tables into docs/evidence/coverage.md. WORDS choose the kinds whose names contain one of them. Each kind is
written as a tiny base and an upload, a loopback Hub serves them, and `index build --read full` runs on every base. An
upload counts as indexed if its δW has the norm that was planted, within one per cent, and its leading directions; of
codes of 8 bits, which add noise, if the norm of its leading triplets is the planted one within 15.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.child import PROJECT, call
from scripts.tables import fill, markdown
from scripts.terminal import hub_environment
from studies.coverage.kinds import KINDS, Kind
from studies.coverage.making import Changes, norm_of

if TYPE_CHECKING:
    from indexer.records.record import Record

PAGE = PROJECT / "docs" / "evidence" / "coverage.md"
TOLERANCE = 0.01
DIRECTIONS = 0.98
# Where the fine-tune is stored in codes, their noise adds to every singular value: only the first two, the rank that is
# planted, are compared.
NOISY_TOLERANCE = 0.15


@dataclass(frozen=True)
class Outcome:
    """What `index build` made of one upload. ``norm`` of its δW, and ``planted``; both 0 where there is none.

    ``leading``: the norm of the first two singular triplets of every matrix. ``directions``: see ``directions_of``.
    """

    kind: str
    status: str
    reason: str
    detail: str
    norm: float
    planted: float
    leading: float = 0.0
    directions: float = 0.0
    is_noisy: bool = False

    @property
    def is_right(self) -> bool:
        """Whether it is indexed with the δW that was planted."""
        found, tolerance = (self.leading, NOISY_TOLERANCE) if self.is_noisy else (self.norm, TOLERANCE)
        is_near = self.planted > 0 and abs(found - self.planted) <= tolerance * self.planted
        return self.status == "indexed" and is_near and (self.is_noisy or self.directions >= DIRECTIONS)


def directions_of(record: Record, planted: Changes) -> float:
    """How much of the two leading right singular vectors of each changed matrix lies in those of a planted one.

    1 for all of it; the least over the matrices. It needs no names, and holds for parts of a fused matrix as well.
    """
    import torch

    expected = [torch.linalg.svd(change.double(), full_matrices=False).Vh[:2] for change in planted]
    shares = []
    for delta in record.deltas:
        if delta.norm > 0 and delta.v is not None:
            found = torch.tensor(delta.v[:, :2]).double()
            alike = [vectors for vectors in expected if vectors.shape[1] == len(found)]
            shares.append(max((float((one @ found).square().sum()) / 2 for one in alike), default=0.0))
    return min(shares, default=0.0)


def outcomes(kinds: Iterable[Kind], folder: Path) -> list[Outcome]:
    """Make the kinds in ``folder``, serve them, build, and read the atlases."""
    from safetensors.torch import save_file

    from scripts.loopback_hub import LoopbackHub

    store, plan = folder / "store", []
    for number, kind in enumerate(kinds):
        base, upload = f"base/kind-{number}", f"uploads/kind-{number}"
        changes = {str(place): change.contiguous() for place, change in enumerate(kind.make(store, base, upload))}
        save_file(changes, folder / f"planted-{number}.safetensors")
        plan.append({"base": base, "upload": upload, "kind": kind.name, "options": kind.options,
                     "is_noisy": kind.is_noisy})  # fmt: skip
    with LoopbackHub(store) as hub:
        environment = hub_environment(hub.endpoint, folder / "hf") | {"HF_TOKEN": ""}
        return [Outcome(**row) for row in call(built, folder, plan, environment=environment).output]


def built(work: str, plan: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In a process whose endpoint is the loopback Hub: one atlas for each base, then what became of each upload."""
    import duckdb
    from safetensors.torch import load_file

    import indexer
    from indexer.atlas import AtlasFolder
    from indexer.console.messages import verbosity
    from indexer.errors import AtlasError
    from indexer.records.store import RecordStore

    verbosity.quiet = True
    folder, found = Path(work), []
    for number, row in enumerate(plan):
        atlas = folder / f"atlas-{number}"
        status, reason, detail, norm, leading = "not listed", "", "no question of the crawl leads to it", 0.0, 0.0
        try:
            indexer.build(row["base"], atlas, read="full", workers=1, **row["options"])
        except AtlasError as error:
            status, reason, detail = "base refused", "", str(error)
        if (atlas / "atlas.duckdb").exists():
            with duckdb.connect(str(atlas / "atlas.duckdb"), read_only=True) as connection:
                row_found = connection.execute(
                    "SELECT status, reason, detail, delta_norm, (SELECT sqrt(sum(singular_values[1] ** 2 + "
                    "coalesce(singular_values[2], 0) ** 2)) FROM deltas WHERE model_id = fine_tunes.model_id) "
                    "FROM fine_tunes LEFT JOIN records USING (model_id) WHERE model = ?",
                    [row["upload"]],
                ).fetchone()
            if row_found:
                status, reason, detail, norm, leading = row_found
        planted = list(load_file(folder / f"planted-{number}.safetensors").values())
        directions = 0.0
        if status == "indexed":
            records = RecordStore(AtlasFolder(atlas))
            every = [records.read(digest) for digest in records.digests()]
            directions = max(directions_of(one, planted) for one in every if one.identity.model == row["upload"])
        outcome = Outcome(row["kind"], status, reason or "", detail or "", norm or 0.0, norm_of(planted), leading or 0.0,
                          directions, row["is_noisy"])  # fmt: skip
        found.append(asdict(outcome))
    return found


def table(kinds: Iterable[Kind], found: Iterable[Outcome]) -> str:
    """Kind → outcome before and now, how many of the sample's uploads are indexed, and what is still refused."""
    rows = [["kind", "share", "of 72", "before", "now"]]
    refused = [["kind", "share", "of 72", "what is said"]]
    total = trained = before = before_trained = indexed = good = 0
    for kind, outcome in zip(kinds, found, strict=True):
        said = f"{outcome.status} {outcome.reason}".strip()
        if outcome.is_right:
            said = f"indexed, ‖δW‖ {outcome.norm:.4g} (planted {outcome.planted:.4g})"
            said += f", its first two triplets {outcome.leading:.4g}" if outcome.is_noisy else ""
        elif outcome.status == "indexed":
            said = f"indexed WRONG: ‖δW‖ {outcome.norm:.4g}, planted {outcome.planted:.4g}, "
            said += f"directions {outcome.directions:.3f}"
        else:
            refused.append([kind.name, kind.share, str(kind.sample or ""), outcome.detail])
        rows.append([kind.name, kind.share, str(kind.sample or ""), kind.before, said])
        total += kind.sample
        trained += kind.sample * kind.is_trained
        before += kind.sample * kind.before.startswith("indexed")
        before_trained += kind.sample * kind.before.startswith("indexed") * kind.is_trained
        indexed += kind.sample * outcome.is_right
        good += kind.sample * (outcome.is_right and kind.is_trained)
    lines = [markdown(rows)]
    if trained:
        lines += [
            "",
            f"Of {total} uploads of the sample {indexed} are indexed, before {before}; of the {trained} that were "
            f"trained {good} ({100 * good / trained:.0f} %), before {before_trained} "
            f"({100 * before_trained / trained:.0f} %).",
        ]
    return "\n".join([*lines, "", "### Still refused", "", markdown(refused)])


def main() -> None:
    """The command."""
    words = sys.argv[1:]
    is_page = "--page" in words
    words = [word for word in words if word != "--page"]
    chosen = [kind for kind in KINDS if not words or any(word in kind.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="coverage-") as folder:
        text = table(chosen, outcomes(chosen, Path(folder)))
    print(text)
    if is_page:
        fill(PAGE, {"outcomes": text})


if __name__ == "__main__":
    main()
