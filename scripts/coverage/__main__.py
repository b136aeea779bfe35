"""What becomes of every kind of upload: ``python -m scripts.coverage [WORDS…]`` prints kind → outcome.

``--page`` writes the table into docs/coverage.md. WORDS choose the kinds whose names contain one of them. Each kind is written as a tiny base and an upload, a loopback
Hub serves them, and `index build --read full` runs on every base. An upload counts as indexed if its δW has the norm
that was planted, within one per cent; of codes of 8 bits, which add noise, its leading triplets, within 15.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.child import PROJECT, run_shown
from scripts.coverage.kinds import KINDS, Kind
from scripts.tables import markdown
from scripts.terminal import hub_environment

PAGE = PROJECT / "docs" / "coverage.md"
MARK = "<!-- written by python -m scripts.coverage --page -->"
TOLERANCE = 0.01
# Where the fine-tune is stored in codes, their noise adds to every singular value: only the first two, the rank that is
# planted, are compared.
NOISY_TOLERANCE = 0.15


@dataclass(frozen=True)
class Outcome:
    """What `index build` made of one upload. ``norm`` of its δW, and ``planted``; both 0 where there is none.

    ``leading``: the norm of the first two singular triplets of every matrix.
    """

    kind: str
    status: str
    reason: str
    detail: str
    norm: float
    planted: float
    leading: float = 0.0
    is_noisy: bool = False

    @property
    def is_right(self) -> bool:
        """Whether it is indexed with the δW that was planted."""
        found, tolerance = (self.leading, NOISY_TOLERANCE) if self.is_noisy else (self.norm, TOLERANCE)
        return self.status == "indexed" and abs(found - self.planted) <= tolerance * self.planted


def outcomes(kinds: Iterable[Kind], folder: Path) -> list[Outcome]:
    """Make the kinds in ``folder``, serve them, build, and read the atlases."""
    from scripts.loopback_hub import LoopbackHub

    store, plan = folder / "store", []
    for number, kind in enumerate(kinds):
        base, upload = f"base/kind-{number}", f"uploads/kind-{number}"
        plan.append({"base": base, "upload": upload, "kind": kind.name, "options": kind.options,
                     "is_noisy": kind.is_noisy, "planted": kind.make(store, base, upload)})  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(plan))
    with LoopbackHub(store) as hub:
        environment = hub_environment(hub.endpoint, folder / "hf") | {"HF_TOKEN": ""}
        run_shown("scripts.coverage", "--builds", str(folder), **environment)
    return [Outcome(**row) for row in json.loads((folder / "outcomes.json").read_text())]


def run_builds(folder: Path) -> None:
    """In a process whose endpoint is the loopback Hub: one atlas for each base, then what became of each upload."""
    import duckdb

    import indexer
    from indexer.console.messages import verbosity
    from indexer.errors import AtlasError

    verbosity.quiet = True
    found = []
    for number, row in enumerate(json.loads((folder / "plan.json").read_text())):
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
        outcome = Outcome(row["kind"], status, reason or "", detail or "", norm or 0.0, row["planted"],
                          leading or 0.0, row["is_noisy"])  # fmt: skip
        found.append(asdict(outcome))
    (folder / "outcomes.json").write_text(json.dumps(found))


def table(kinds: Iterable[Kind], found: Iterable[Outcome]) -> str:
    """Kind → outcome, and how many of the sample's uploads are indexed."""
    rows = [["kind", "share", "of 72", "outcome"]]
    total = trained = indexed = good = 0
    for kind, outcome in zip(kinds, found, strict=True):
        if outcome.is_right:
            said = f"indexed, ‖δW‖ {outcome.norm:.4g} (planted {outcome.planted:.4g})"
            said += f", its first two triplets {outcome.leading:.4g}" if outcome.is_noisy else ""
        elif outcome.status == "indexed":
            said = f"indexed WRONG: ‖δW‖ {outcome.norm:.4g}, planted {outcome.planted:.4g}"
        else:
            said = " ".join(f"{outcome.status} {outcome.reason}: {outcome.detail}".split())[:170]
        rows.append([kind.name, kind.share, str(kind.sample or ""), said.replace("|", "/")])
        total += kind.sample
        indexed += kind.sample * outcome.is_right
        trained += kind.sample * kind.is_trained
        good += kind.sample * (outcome.is_right and kind.is_trained)
    share = f"{100 * good / trained:.0f} %" if trained else "none"
    return (
        f"{markdown(rows)}\n\nOf {total} uploads of the sample {indexed} are indexed; of the {trained} that were trained "
        f"{good} ({share})."
    )


def main() -> None:
    """The command."""
    words = sys.argv[1:]
    if words[:1] == ["--builds"]:
        run_builds(Path(words[1]))
        return
    is_page = "--page" in words
    words = [word for word in words if word != "--page"]
    chosen = [kind for kind in KINDS if not words or any(word in kind.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="coverage-") as folder:
        text = table(chosen, outcomes(chosen, Path(folder)))
    print(text)
    if is_page:
        before, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
        PAGE.write_text(f"{before}{mark}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
