"""Where a model changed: the norm, relative norm, rank and energy of every delta."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from indexer.console.option import Option
from indexer.database.deepening import deepening
from indexer.errors import AtlasError, Call, Text
from indexer.names import UNTRAINED, DeltaKey, family_key, family_order
from indexer.records.store import RecordStore
from indexer.records.tokens import UNSURE, sizes_of, spread_stripes
from query.contract.columns import FAMILY, LAYER, LAYER_OR_FAMILY, READ, STACK, BaseId, ModelId, Notes
from query.contract.figures import Panels, add_title, label, model_label
from query.contract.options import Base, Model, Read
from query.contract.registry import Invocation, Tool, question
from query.contract.results import After, Doc, Drawn, Hidden, ThemeName
from query.models.lookup import resolve_model
from query.models.resolved import ResolvedModel, unrelated_notes
from query.models.sampled import CHECKSUM, LIKE_THE_BASE, SAMPLE, rows_in_words
from query.questions.heads import HeadChange, changes_by_head, uneven_heads
from query.questions.trace.evidence import TokenEvidence, token_evidence
from query.shared.wording import MEASURES, counted, decimal, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.models.reader import AtlasReader

# What several fields mean.
_NORM = Doc("Frobenius norm of the weight change δW.")
_RELATIVE_NORM = Doc("Norm of the weight change over the norm of the base's weights: 0.05 is a change of 5 %.")
_SHARE = Doc("Share of the squared norm of the model's whole change, from 0 to 1.")
_NORM_ERROR = Doc("Standard error of norm; 0 if all rows were read.")

CELL = (0.62, 0.24)  # inches
_IN_PERCENT = ("relative_norm", "share", "energy")  # measures whose cells are in per cent
_DARK_CELL = 0.4  # luminance of a colour, from 0 to 1, below which the number in it is white


@dataclass(frozen=True)
class Change:
    """One delta. The ranks are 0 for a zero delta, and None if the kept singular values do not suffice.

    If only a sample was read, the norms and the share are estimates, and energy and ranks are None, because they need
    all rows.
    """

    stack: Annotated[str, STACK]
    layer: Annotated[int, LAYER]
    family: Annotated[str, FAMILY]
    norm: Annotated[float, _NORM]
    relative_norm: Annotated[float, _RELATIVE_NORM]
    share: Annotated[float, _SHARE]
    energy: Annotated[
        float | None,
        Doc(
            "Share of the squared norm that the kept singular values hold, from 0 to 1; empty if only a sample "
            "was read."
        ),
    ]
    rank_50: Annotated[
        int | None,
        Doc(
            "Directions that hold 50 % of the energy Σσ²; 0 if nothing changed, empty if the kept singular values "
            "hold less."
        ),
    ]
    rank_90: Annotated[
        int | None,
        Doc(
            "Directions that hold 90 % of the energy Σσ²; 0 if nothing changed, empty if the kept singular values "
            "hold less."
        ),
    ]
    norm_error: Annotated[float, _NORM_ERROR] = 0.0
    rows_read: Annotated[int | None, Doc("How many rows of a matrix were read; empty if all were.")] = None


@dataclass(frozen=True)
class Part:
    """The deltas of one layer, or of one family. ``relative_norm``: the root mean square over these deltas."""

    name: Annotated[str, LAYER_OR_FAMILY]
    norm: Annotated[float, _NORM]
    relative_norm: Annotated[float, _RELATIVE_NORM]
    share: Annotated[float, _SHARE]
    norm_error: Annotated[float, _NORM_ERROR] = 0.0


@dataclass(frozen=True)
class Embedding:
    """The change of the input embedding, from the rows that were read.

    For a row e that changed by δ beyond weight decay, ‖δ‖/‖e‖ is known within 5 %. The standard error is computed over
    the stripes that contain the rows. There is no rank: the sum of the largest row sizes is a bound far above it.
    """

    kind: Annotated[str, Doc("What the rows can show; see class in `query trace`.")]
    rows: Annotated[int, Doc("Number of rows that were read.")]
    share_moved: Annotated[float, Doc("Share of these rows that moved, from 0 to 1.")]
    change: Annotated[float, Doc("Root mean square of ‖δrow‖/‖row‖ over the rows that were read, without decay.")]
    change_error: Annotated[float, Doc("Standard error of change.")]
    decay: Annotated[float, Doc("The factor by which weight decay multiplied every row.")]


@dataclass(frozen=True, eq=False, repr=False)
class Layers(Drawn):
    """Where one model changed. ``norm``: of all deltas together; ``deltas``: in the order of the base."""

    ROWS = "deltas"
    TABLE = "cells"
    TABLE_COLUMNS: ClassVar[Mapping[str, str]] = {
        "heads": (
            "How the change of each attention matrix is spread over its heads (--heads); in a table, their "
            "number. norms: of each head's part."
        ),
        "largest": "The head with the largest part of the change, from 0; norm is of this part.",
    }
    SHOW_HEADLINE = True

    model: ModelId
    base: BaseId
    norm: Annotated[float, Doc("Frobenius norm of the weight change δW of all matrices together.")]
    deltas: Annotated[tuple[Change, ...], Doc("The change of each matrix.")]
    notes: Notes = ()
    copy_evidence: Annotated[str | None, Hidden()] = None  # why it is a copy of the base, as in the database
    embedding: Annotated[
        Embedding | None,
        Doc(
            "Of the rows of the input embedding that were read: rows, share_moved, change (root mean square of "
            "‖δrow‖/‖row‖, without decay) ± change_error, and decay; empty where rows cannot be compared."
        ),
    ] = None
    heads: Annotated[
        tuple[HeadChange, ...],
        Doc(
            "How the change of each attention matrix is spread over its heads (--heads); in a table, their "
            "number. norms: of each head's part."
        ),
    ] = ()
    of: Annotated[str, Hidden()] = "relative_norm"  # the measure that a table shows

    @property
    def read(
        self,
    ) -> Annotated[str, READ, After("base")]:
        """Whether a sample of the model was read, or all of it: sample or full."""
        return "full" if all(delta.rows_read is None for delta in self.deltas) else SAMPLE

    @property
    def norm_error(self) -> Annotated[float, _NORM_ERROR, After("norm")]:
        """The standard error of ``norm``; 0 if all rows were read."""
        return _norm_error(self.deltas)

    @property
    def estimates(self) -> tuple[str, ...]:
        """A note on the estimates of a sample; none if all rows were read."""
        if self.read != SAMPLE or self.copy_evidence == CHECKSUM:
            return ()
        rows, error = rows_in_words(delta.rows_read for delta in self.deltas), ""
        if self.norm:
            error = f"; the standard error of the norm of its whole change is {100 * self.norm_error / self.norm:.2g} %"
        return (f"The norms of {self.model} are estimated from {rows}{error}.",)

    @property
    def layers(self) -> Annotated[list[Part], Doc("The change of each layer."), After("norm_error")]:
        """By layer: ``3``, or ``encoder.3`` if there are two stacks."""
        return _parts(self.deltas, lambda delta: f"{delta.stack}.{delta.layer}" if delta.stack else str(delta.layer))

    @property
    def families(self) -> Annotated[list[Part], Doc("The change of each family of matrices."), After("layers")]:
        """By family: ``query``, or ``encoder.query``."""
        # Layers may have different families, so the order of the deltas does not give that of families.
        ordered = sorted(self.deltas, key=lambda delta: family_order(delta.stack, delta.family))
        return _parts(ordered, lambda delta: family_key(delta.stack, delta.family))

    def _families_of(self, stack: str) -> list[str]:
        return sorted(
            {delta.family for delta in self.deltas if delta.stack == stack},
            key=lambda family: family_order(stack, family),
        )

    @property
    def headline(self) -> str:
        """The layer and the family with most of the change."""
        if not self.norm:
            if self.copy_evidence == SAMPLE:
                return f"{self.model} is {LIKE_THE_BASE}: nothing changed there."
            if self.copy_evidence == UNTRAINED:
                return f"{self.model} is an untrained adapter of {self.base}: it changes nothing."
            return f"{self.model} is a copy of {self.base}: nothing changed."
        layer, family = (max(parts, key=lambda part: part.share) for parts in (self.layers, self.families))
        untouched = sum(delta.norm == 0 for delta in self.deltas)
        how = ", estimated" if self.read == SAMPLE else ""
        most = (
            f"Most of the change (its squared norm{how}) lies in layer {layer.name} ({percent(layer.share)} of it) and "
            f"in {family.name} ({percent(family.share)})"
        )
        if untouched:
            most += f"; {untouched} of {len(self.deltas)} matrices are untouched"
        if self.heads:
            matrices = counted(len(self.heads), "attention matrix", "attention matrices")
            uneven, by_chance = uneven_heads(self.heads)
            most += (
                f". In {uneven} of {matrices} the change is concentrated in a few heads (p ≤ .05; "
                f"{decimal(by_chance, 1)} expected by chance)"
            )
        if (rows := self.embedding) is not None:
            most += (
                f". Of {rows.rows:,} rows of the input embedding {percent(rows.share_moved)} moved; their change is "
                f"{rows.change:.2g} of a row (root mean square over all of them)"
            )
        return f"{most}."

    @property
    def cells(self) -> list[dict[str, Any]]:
        """A row for each layer, with the measure ``of`` for each family; with heads, a row for each matrix."""
        if self.heads:
            numbers = ("effective", "chance", "p_value")
            return [
                ({"stack": head_change.stack} if head_change.stack else {})
                | {"layer": head_change.layer, "family": head_change.family, "heads": len(head_change.norms)}
                | {"largest": int(np.argmax(head_change.norms)), "norm": max(head_change.norms)}
                | {name: getattr(head_change, name) for name in numbers}
                for head_change in self.heads
            ]
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        columns = {stack: self._families_of(stack) for stack in {delta.stack for delta in self.deltas}}
        for delta in self.deltas:
            start: dict[str, Any] = (
                {"stack": delta.stack, "layer": delta.layer} if delta.stack else {"layer": delta.layer}
            )
            start |= dict.fromkeys(columns[delta.stack])
            rows.setdefault((delta.stack, delta.layer), start)[delta.family] = getattr(delta, self.of)
        return list(rows.values())

    def figure(self, theme: ThemeName = "light", of: str = "relative_norm", *, ax: Axes | None = None) -> Figure:
        """A heat map by layer and family with a number in each cell: a panel for each stack, with one scale for all.

        The scale goes from the smallest to the largest number. ``of``: the measure, one of MEASURES. ``theme`` and
        ``ax``: as in ``Drawn.figure``.
        """
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LinearSegmentedColormap, Normalize

        stacks = list(dict.fromkeys(delta.stack for delta in self.deltas))
        widest = max(len(self._families_of(stack)) for stack in stacks)
        deepest = max(delta.layer for delta in self.deltas) + 1
        size = max(CELL[0] * widest, 3.0), max(CELL[1] * deepest, 0.8)
        panels = Panels([len(stacks)], size, theme, ax, margin=(1.2, 1.3))
        figure, colours = panels.figure, panels.colours
        # Cells without a value, and untouched matrices, stay empty.
        unit = 100.0 if of in _IN_PERCENT else 1.0
        values = [
            math.nan if delta.norm == 0 or getattr(delta, of) is None else unit * getattr(delta, of)
            for delta in self.deltas
        ]
        known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        # One number alone, or the same in every cell, is in the middle of the scale.
        scale = Normalize(min(known), max(known)) if max(known) > min(known) else Normalize(0, 2 * max(known))
        shades = LinearSegmentedColormap.from_list("scale", colours.scale)
        for stack, panel in zip(stacks, panels, strict=True):
            deltas = [(delta, value) for delta, value in zip(self.deltas, values, strict=True) if delta.stack == stack]
            families = self._families_of(stack)
            cells = np.full((max(delta.layer for delta, _ in deltas) + 1, len(families)), np.nan)
            for delta, value in deltas:
                cells[delta.layer, families.index(delta.family)] = value
            panel.imshow(cells, origin="lower", aspect="auto", cmap=shades, norm=scale, interpolation="nearest")
            for (row, column), value in np.ndenumerate(cells):
                if math.isfinite(value):
                    red, green, blue, _ = shades(scale(value))
                    is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < _DARK_CELL
                    panel.text(
                        column,
                        row,
                        in_cell(value),
                        ha="center",
                        va="center",
                        fontsize=5.5,
                        color="white" if is_dark else "black",
                    )
            panel.set_xticks(range(len(families)), families, rotation=30, ha="right", fontsize=7)
            panel.set_yticks(range(0, len(cells), -(-len(cells) // 12)))
            panel.tick_params(length=2)
            panel.set_ylabel("layer", fontsize=8)
            if stack:
                panels.title(panel, stack)
        bar = figure.colorbar(ScalarMappable(scale, shades), ax=list(panels), shrink=0.9, pad=0.02)
        bar.ax.tick_params(colors=colours.ink, labelsize=7)
        bar.outline.set_edgecolor(colours.faint)
        empty = "untouched or not known" if of.startswith("rank") else "untouched"
        title = (
            f"Where {model_label(self.model, 48)} changed\n"
            f"{MEASURES[of]}{' in %' if unit > 1 else ''}, by layer and family; empty: {empty}\n"
            f"a fine-tune of {label(self.base)}"
        )
        add_title(figure, title, colours, 8)
        return figure

    def write(self, path: str | Path, theme: ThemeName = "light", of: str = "relative_norm") -> None:
        """Write the picture as .png, .svg or .pdf. Raises AtlasError for another suffix, or if it cannot be written."""
        from query.contract.figures import checked_output, draw, write_output

        file = checked_output(path)
        write_output(file, draw(self.figure(theme, of), file.suffix.lower()))


def in_cell(value: float) -> str:
    """A number for a narrow cell: two significant digits, without an exponent unless it is tiny or huge."""
    if value == int(value) and abs(value) < 1e4:
        return str(int(value))
    if not 1e-4 <= abs(value) < 1e4:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.{max(0, 1 - math.floor(math.log10(abs(value))))}f}"


def _parts(deltas: Iterable[Change], name: Callable[[Change], str]) -> list[Part]:
    groups: dict[str, list[Change]] = {}
    for delta in deltas:
        groups.setdefault(name(delta), []).append(delta)
    return [
        Part(
            name=group,
            norm=math.hypot(*(delta.norm for delta in members)),
            relative_norm=math.hypot(*(delta.relative_norm for delta in members)) / math.sqrt(len(members)),
            share=math.fsum(delta.share for delta in members),
            norm_error=_norm_error(members),
        )
        for group, members in groups.items()
    ]


def _norm_error(deltas: Iterable[Change]) -> float:
    """The standard error of the norm of these deltas together; the errors of matrices are independent."""
    parts = [(delta.norm, delta.norm * delta.norm_error) for delta in deltas]
    norm = math.hypot(*(norm for norm, _ in parts))
    return math.hypot(*(error for _, error in parts)) / norm if norm else 0.0


def _command(
    call: Invocation,
    model: str,
    base: str | None,
    of: Annotated[str, Option("Measure to show.", choices=tuple(MEASURES))] = "relative_norm",
    **options: Any,
) -> None:
    with call.opened() as atlas:
        answer = atlas.layers(model, base, **options)
        if call.file is not None:
            answer.write(call.file, call.theme or "light", of)
        call.show(replace(answer, of=of), file=call.file)


@question(
    example="layers ./my-fine-tune --out layers.png",
    agents=Tool(
        "Show where a model changed: the size of the change of each layer and each family of matrices.",
        ("model", "base"),
    ),
    command=_command,
)
def layers(
    atlas: AtlasReader,
    model: Model,
    base: Base = None,
    *,
    heads: Annotated[bool, Option("Show how the change of each attention matrix is spread over its heads.")] = False,
    read: Read = None,
) -> Layers:
    """Show where ``model`` changed, by layer and family: an indexed id, any other Hub id, or a local folder.

    Returns:
        The size and rank of the change of every matrix, layer and family, and of the embedding. Norms of a sample are
        estimates. ``heads``: also by attention head (``query.questions.heads.changes_by_head``), which needs the
        record's factors.

    Raises:
        AtlasError: the model is unknown, has no record, or cannot be read, or none of its matrices can be split into
            heads.
    """
    resolved = resolve_model(atlas, str(model), base, "input", read)
    answer = layers_of(atlas, resolved)
    if heads:
        answer = replace(answer, heads=_by_head(atlas, resolved))
    return replace(answer, embedding=embedding_of(token_evidence(atlas, resolved)[1]))


def _by_head(atlas: AtlasReader, model: ResolvedModel) -> tuple[HeadChange, ...]:
    """The changes by head. Raises AtlasError if there are none."""
    record = model.record
    if record is None:
        (row,) = atlas.rows("SELECT record_key FROM fine_tunes WHERE model_id = ?", [model.model_id])
        record = RecordStore(atlas.folder).read(row["record_key"])
    head_changes = changes_by_head(record, json.loads(atlas.base_row(model.base)["config"] or "{}"))
    if not head_changes:
        reason = "a sample holds a few heads of each matrix" if record.is_sampled else "no attention matrix changed"
        hint = deepening(atlas, model.base, [model.name]) if record.is_sampled else "Leave `heads` out."
        raise AtlasError(f"{model.name} cannot be split by head: {reason}, or its factors are not kept.", hint)
    return head_changes


def embedding_of(evidence: TokenEvidence | None) -> Embedding | None:
    """The change of the input embedding.

    None if rows cannot be compared with the base's, or if a tied head moved all of them, as sizes are then not known.
    """
    if evidence is None or evidence.is_share:
        return None
    squares = np.square(np.nan_to_num(sizes_of(evidence.codes)))
    is_moved = (evidence.codes > 0) & (evidence.codes < UNSURE)
    # A stratified sample: some rows stand for themselves, the others for all that were not read. Of these whole stripes
    # were sampled: rows of one stripe are tokens of one kind.
    vocabulary = evidence.base_vocabulary
    stripes = spread_stripes(vocabulary)
    is_spread = stripes >= 0
    rest, sampled = vocabulary - int((~is_spread).sum()), int(is_spread.sum())
    weights = np.where(is_spread, rest / max(sampled, 1), 1.0)
    change, error = math.sqrt(float(weights @ squares) / vocabulary), 0.0
    if sampled and change:
        sizes = np.bincount(stripes[is_spread])
        sums = np.bincount(stripes[is_spread], squares[is_spread])[sizes > 0]
        sizes = sizes[sizes > 0]
        mean = sums.sum() / sampled
        spread = float(np.square(sums - mean * sizes).sum()) * len(sizes) / max(len(sizes) - 1, 1)
        error = rest / sampled * math.sqrt(spread) / vocabulary / (2 * change)
    return Embedding(
        kind=evidence.kind,
        rows=len(squares),
        share_moved=float(weights @ is_moved) / vocabulary,
        change=change,
        change_error=error,
        decay=evidence.scale,
    )


def layers_of(atlas: AtlasReader, model: ResolvedModel) -> Layers:
    """The answer of ``layers`` for a resolved model, without heads and embedding."""
    if model.record is None:
        assert model.model_id is not None
        answer = stored_layers(atlas, model.model_id, model.name, model.base)
        return replace(answer, notes=(*answer.notes, *unrelated_notes(model)))
    rows = []
    for delta in model.record.deltas:
        half, most = delta.change_ranks((0.5, 0.9))
        rows.append(
            {
                "stack": delta.key.stack,
                "layer": delta.key.layer,
                "family": delta.key.family,
                "norm": float(delta.norm),
                "relative_norm": float(delta.relative_norm),
                "energy": delta.energy,
                "rank_50": half,
                "rank_90": most,
                "norm_error": delta.norm_error,
                "rows_read": delta.lines,
            }
        )
    answer = _layers(model.name, model.base, rows, model.copy_evidence)
    notes = [Text(note, " Exact: ", Call(read="full")) for note in answer.estimates]
    return replace(answer, notes=(*notes, *unrelated_notes(model)))


def stored_layers(atlas: AtlasReader, model_id: int, model: str, base: str) -> Layers:
    """The answer of ``layers`` for an indexed model, by its id; its notes are only about estimates."""
    rows = atlas.rows(
        "SELECT stack, layer, family, norm, relative_norm, energy, rank_50, rank_90, norm_error, rows_read "
        "FROM deltas WHERE model_id = ?",
        [model_id],
    )
    evidence = atlas.rows("SELECT copy_evidence FROM records WHERE model_id = ?", [model_id])
    answer = _layers(model, base, rows, evidence[0]["copy_evidence"] if evidence else None)
    return replace(answer, notes=tuple(Text(note, " ", deepening(atlas, base, [model])) for note in answer.estimates))


def _layers(model: str, base: str, rows: Sequence[Mapping[str, Any]], copy_evidence: str | None) -> Layers:
    """The answer from a row for each delta."""
    total = math.fsum(row["norm"] ** 2 for row in rows)
    order = sorted(rows, key=lambda row: DeltaKey(row["stack"], row["layer"], row["family"]).sort_key)
    changes = []
    for row in order:
        change = Change(**row, share=row["norm"] ** 2 / total if total else 0.0)
        # The kept singular values explain a larger share of the rows that were read than of δW.
        changes.append(change if change.rows_read is None else replace(change, energy=None))
    return Layers(model, base, math.sqrt(total), tuple(changes), copy_evidence=copy_evidence)
