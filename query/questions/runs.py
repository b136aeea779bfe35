"""Training runs whose checkpoints are indexed, and the path of one: its distance from the base and from its end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from indexer.console.option import Argument
from indexer.errors import AtlasError, Call, Text
from indexer.quantities import size_in_words
from indexer.sources.registry import ModelRef
from query.contract.columns import SIMILARITY, WEIGHT_BYTES, Author, BaseId, ModelId, Notes
from query.contract.options import Base
from query.contract.registry import Invocation, Tool, question
from query.contract.results import Detail, Doc, Format, Result, Rounded
from query.models.resolved import unknown_model
from query.models.sampled import SAMPLE
from query.shared.wording import counted, decimal

if TYPE_CHECKING:
    from query.models.reader import AtlasReader

RUN = Argument(
    "A checkpoint of the run, or the run's name.",
    completes="model",
    agents="A checkpoint of the run (owner/name), or the name of the run.",
)
_NUMBER = re.compile(
    r"[_\-.]?(?:(?:checkpoint|ckpt|global[_\-]?step|step|iter|epoch)[_\-]?\d+|0\d{5,}|final|last)(?:-\d+)?$",
    re.ASCII | re.IGNORECASE,
)
_CHECKPOINTS = """
SELECT model_id, run_group, run_place, base, model, author, run, coalesce(step, checkpoint_number) AS step, epoch,
    delta_norm, relative_norm, "read", train_loss, eval_loss,
    list_sum(list_transform(weight_files, lambda f: f.size))::BIGINT AS bytes
FROM models JOIN (SELECT model_id, checkpoint_number FROM fine_tunes) AS named USING (model_id)
WHERE run_group IS NOT NULL AND coalesce(base = ?, true) ORDER BY base, run_group, run_place
"""

_RUN_NAME = Doc("Name of the run: as its files give it, else what the names of its checkpoints have in common.")
_STEP = Doc("Steps done, as its files say; else the number in its name, which may be of epochs.")
_TRAIN_LOSS = Doc("Last training loss in its files.")
_EVAL_LOSS = Doc("Last validation loss in its files.")
_DISTANCE = Doc("Distance from the base: norm of the weight change over the norm of the base's weights.")


@dataclass(frozen=True)
class Run:
    """A training run of which several checkpoints are indexed."""

    base: BaseId
    run: Annotated[str, _RUN_NAME]
    checkpoints: Annotated[int, Doc("Number of its checkpoints that are indexed.")]
    last: Annotated[str, Doc("Its last checkpoint, which counts for the run in statistics.")]
    first_step: Annotated[int | None, Doc("Step of its first checkpoint."), Detail()]
    last_step: Annotated[int | None, Doc("Step of its last checkpoint.")]
    distance: Annotated[float | None, _DISTANCE, Rounded(4)]
    train_loss: Annotated[float | None, _TRAIN_LOSS]
    eval_loss: Annotated[float | None, _EVAL_LOSS]
    bytes: Annotated[
        int, Doc("Bytes of the weight files of all its checkpoints."), Format(size_in_words, in_details=False)
    ]
    author: Annotated[Author, Detail()]


@dataclass(frozen=True, eq=False, repr=False)
class Runs(Result):
    """The training runs of an atlas."""

    SHOW_HEADLINE = True
    ROWS = "runs"
    OPTIONAL_COLUMNS = ("base", "bytes", "train_loss", "first_step")

    runs: Annotated[tuple[Run, ...], Doc("The runs, those with most checkpoints first.")]
    notes: Notes = ()

    @property
    def headline(self) -> str:
        """Their number."""
        if not self.runs:
            return "No two indexed models are checkpoints of one training run."
        return (
            f"{counted(len(self.runs), 'training run')} with {sum(run.checkpoints for run in self.runs):,} checkpoints."
        )


@dataclass(frozen=True)
class RunCheckpoint:
    """One checkpoint on the path of a run."""

    place: Annotated[int, Doc("Its place in the run, from 1.")]
    model: ModelId
    step: Annotated[int | None, _STEP]
    epoch: Annotated[float | None, Doc("Epochs done, as its files say."), Detail()]
    distance: Annotated[float | None, _DISTANCE, Rounded(4)]
    delta_norm: Annotated[float | None, Doc("Frobenius norm of the weight change."), Detail()]
    similarity: Annotated[float | None, Doc(f"With the last checkpoint. {SIMILARITY.text}"), Rounded(4)]
    train_loss: Annotated[float | None, _TRAIN_LOSS]
    eval_loss: Annotated[float | None, _EVAL_LOSS]
    bytes: Annotated[int, WEIGHT_BYTES, Format(size_in_words, in_details=False)]


@dataclass(frozen=True, eq=False, repr=False)
class RunPath(Result):
    """The checkpoints of one training run, from the first to the last."""

    SHOW_HEADLINE = True
    ROWS = "checkpoints"
    OPTIONAL_COLUMNS = ("bytes", "train_loss")

    run: Annotated[str, _RUN_NAME]
    base: BaseId
    checkpoints: Annotated[tuple[RunCheckpoint, ...], Doc("Its indexed checkpoints, in order.")]
    notes: Notes = ()

    @property
    def headline(self) -> str:
        """How far it went, and which checkpoint has the lowest validation loss."""
        last = self.checkpoints[-1]
        clauses = [f"{self.run}: {counted(len(self.checkpoints), 'checkpoint')} of {self.base}"]
        if last.distance is not None:
            clauses.append(f"the last one is {decimal(100 * last.distance, 2)} % of the base's norm away from it")
        with_loss = [checkpoint for checkpoint in self.checkpoints if checkpoint.eval_loss is not None]
        if len(with_loss) > 1:
            best = min(with_loss, key=lambda checkpoint: (checkpoint.eval_loss, checkpoint.place))
            clauses.append(f"{best.model} has the lowest validation loss ({best.eval_loss:.4g})")
        return f"{'; '.join(clauses)}."


def _command(call: Invocation, run: Annotated[str | None, RUN] = None, *, base: str | None) -> None:
    with call.opened() as atlas:
        call.show(atlas.runs(base=base) if run is None else atlas.run_path(run, base=base))


@question(
    example="runs me/lr3e-5-checkpoint-500",
    agents=Tool("List the training runs whose checkpoints are indexed: how far each went, and its losses."),
    command=_command,
)
def runs(atlas: AtlasReader, *, base: Base = None) -> Runs:
    """List training runs with several indexed checkpoints, or show the path of one: ``run``.

    Checkpoints belong together by the folder that they lie in, by their names, or by the start of their log.

    Raises:
        AtlasError: the base is unknown.
    """
    groups = _groups(atlas, None if base is None else atlas.base_named(base))
    listed = [
        Run(
            base=rows[-1]["base"],
            run=_name_of(rows),
            checkpoints=len(rows),
            last=rows[-1]["model"],
            first_step=rows[0]["step"],
            last_step=rows[-1]["step"],
            distance=rows[-1]["relative_norm"],
            train_loss=rows[-1]["train_loss"],
            eval_loss=rows[-1]["eval_loss"],
            bytes=sum(row["bytes"] or 0 for row in rows),
            author=rows[-1]["author"],
        )
        for rows in groups.values()
    ]
    notes = () if listed else ("A build reads the last checkpoint of a run, unless `--checkpoints all` is given.",)
    return Runs(tuple(sorted(listed, key=lambda run: (-run.checkpoints, run.base, run.run))), notes)


@question(agents=Tool("Show the path of a training run: per checkpoint its distance from the base and its losses."))
def run_path(atlas: AtlasReader, run: Annotated[str, RUN], *, base: Base = None) -> RunPath:
    """Show the checkpoints of a training run in order: steps, distance from the base, similarity to the end, losses.

    ``run`` is the name of a run, or any of its checkpoints.

    Raises:
        AtlasError: there is no such run, or several have that name.
    """
    groups = _groups(atlas, None if base is None else atlas.base_named(base))
    named_runs = [rows for rows in groups.values() if _name_of(rows).lower() == run.lower()]
    if len(named_runs) > 1:
        last_checkpoints = ", ".join(rows[-1]["model"] for rows in named_runs[:3])
        raise AtlasError(f"{len(named_runs)} runs are called {run}.", f"Name a checkpoint: {last_checkpoints}.")
    if named_runs:
        return path_of(atlas, named_runs[0])
    model = atlas.find(ModelRef.parse(run), base)
    if model is None:
        raise unknown_model(atlas, run, Text("The runs of this atlas: ", Call("runs")))
    rows = next((rows for rows in groups.values() if any(row["model_id"] == model.model_id for row in rows)), None)
    if rows is None:
        raise AtlasError(
            f"{model.model} is alone: no other checkpoint of its run is indexed.", Text("Runs: ", Call("runs"))
        )
    return path_of(atlas, rows)


def path_around(atlas: AtlasReader, model_id: int) -> list[dict[str, Any]]:
    """The checkpoints of the run of a model, as rows; [] if it is alone."""
    groups = _groups(atlas, None, "AND run_group = (SELECT run_group FROM records WHERE model_id = ?)", model_id)
    return [row for rows in groups.values() for row in path_of(atlas, rows).to_rows()]


def path_of(atlas: AtlasReader, rows: Sequence[Mapping[str, Any]]) -> RunPath:
    """The path of a run from the rows of its checkpoints, in order."""
    similarities = _similarities_to_last(atlas, rows)
    checkpoints = tuple(
        RunCheckpoint(
            place=row["run_place"],
            model=row["model"],
            step=row["step"],
            epoch=row["epoch"],
            distance=row["relative_norm"],
            delta_norm=row["delta_norm"],
            similarity=similarities.get(row["model_id"]),
            train_loss=row["train_loss"],
            eval_loss=row["eval_loss"],
            bytes=row["bytes"] or 0,
        )
        for row in rows
    )
    sampled = sum(row["read"] == SAMPLE for row in rows)
    notes = (f"The distances of {counted(sampled, 'checkpoint')} are estimates: a sample was read.",) if sampled else ()
    return RunPath(_name_of(rows), rows[-1]["base"], checkpoints, notes)


def _groups(
    atlas: AtlasReader, base: str | None, where: str = "", *values: Any
) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """The rows of all checkpoints, in order, by base and run."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    statement = _CHECKPOINTS.replace("ORDER BY", f"{where} ORDER BY")
    for row in atlas.rows(statement, [base, *values]):
        groups.setdefault((row["base"], row["run_group"]), []).append(row)
    return groups


def _name_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """The name that the files of the last checkpoint give the run, else the common part of the names of all."""
    if rows[-1]["run"]:
        return str(rows[-1]["run"])
    names = {_NUMBER.sub("", row["model"]) or row["model"] for row in rows}
    first, last = min(names), max(names)
    length = next((position for position, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    common_name = first[:length].rstrip("-_./")
    last = str(rows[-1]["model"])
    is_own = len(common_name) > len(last.partition("/")[0]) if "/" in last else common_name != "local:"
    return common_name if common_name and is_own else last


def _similarities_to_last(atlas: AtlasReader, rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """The similarity of each checkpoint with the last, by id; {} if that has no vector."""
    base = rows[-1]["base"]
    if not atlas.is_published(base, "input"):
        return {}
    index = atlas.index(base)
    last = int(rows[-1]["model_id"])
    ids = np.intersect1d([row["model_id"] for row in rows], index.ids)
    if last not in ids:
        return {}
    similarities = index.exact(index.table(np.array([last])), np.zeros(len(ids), np.int64), ids)
    return dict(zip(ids.tolist(), np.clip(similarities, -1.0, 1.0).tolist(), strict=True))
