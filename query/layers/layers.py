"""Where a model changed: the norm, relative norm, rank and energy of every delta."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.names import DeltaKey
from query.layers.parts import Change, Part
from query.lookup import ResolvedModel, resolve_model, unrelated_notes
from query.results import Drawn, ThemeName

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from indexer.records.record import Record
    from query.reader import AtlasReader


@dataclass(frozen=True, eq=False, repr=False)
class Layers(Drawn):
    """Where one model changed; ``norm`` is that of all deltas together. ``deltas`` in the order of the base's."""

    COLUMNS = tuple(Change.__dataclass_fields__)
    SHOW_HEADLINE = True

    model: str
    base: str
    norm: float
    deltas: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> list[Part]:
        """By layer: ``3``, or ``encoder.3`` where there are two stacks."""
        return _parts(self.deltas, lambda one: f"{one.stack}.{one.layer}" if one.stack else str(one.layer))

    @property
    def families(self) -> list[Part]:
        """By family: ``query``, or ``encoder.query``."""
        return _parts(self.deltas, lambda one: one.family_key)

    @property
    def headline(self) -> str:
        """In which layer and family most of the change lies."""
        if not self.norm:
            return f"{self.model} is a copy of {self.base}: nothing changed."
        layer, family = (max(parts, key=lambda part: part.share) for parts in (self.layers, self.families))
        untouched = sum(one.norm == 0 for one in self.deltas)
        told = (
            f"Most of the change (its squared norm) lies in layer {layer.name} ({layer.share:.0%} of it) and in "
            f"{family.name} ({family.share:.0%})"
        )
        return f"{told}; {untouched} of {len(self.deltas)} matrices are untouched." if untouched else f"{told}."

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "model": self.model,
            "base": self.base,
            "norm": self.norm,
            "layers": [asdict(part) for part in self.layers],
            "families": [asdict(part) for part in self.families],
            "deltas": self.to_rows(),
            "notes": list(self.notes),
        }

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each delta."""
        return [asdict(one) for one in self.deltas]

    def table(self, *, details: bool = False, of: str = "relative_norm") -> list[dict[str, Any]]:
        """A row for each layer, a column for each family: one of parts.MEASURES."""
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for one in self.deltas:
            start: dict[str, Any] = {"stack": one.stack, "layer": one.layer} if one.stack else {"layer": one.layer}
            rows.setdefault((one.stack, one.layer), start)[one.family] = getattr(one, of)
        return list(rows.values())

    def figure(self, theme: ThemeName = "light", of: str = "relative_norm", *, ax: Axes | None = None) -> Figure:
        """One of ``parts.MEASURES`` by layer and family. Raises AtlasError where matplotlib is not installed."""
        from query.layers.picture import layers_figure

        return layers_figure(self.model, self.base, self.deltas, of, theme, ax)

    def write(self, path: str | Path, theme: ThemeName = "light", of: str = "relative_norm") -> None:
        """Write the picture as .png, .svg or .pdf. Raises AtlasError: another suffix, or it cannot be written."""
        from query.figures import checked_output, draw, write_output

        file = checked_output(path)
        write_output(file, draw(self.figure(theme, of), file.suffix.lower()))


def layers(atlas: AtlasReader, model: str | Path, base: str | None = None) -> Layers:
    """Where ``model`` changed: the size and rank of the change of every matrix, layer and family.

    ``model`` is an indexed id, any other Hub id, or a local folder. Raises AtlasError if it is unknown, has no record,
    or cannot be read.
    """
    return layers_of(atlas, resolve_model(atlas, str(model), base, "input"))


def layers_of(atlas: AtlasReader, asked: ResolvedModel) -> Layers:
    """The same of a model that was looked up, or read, before."""
    found = _stored(atlas, asked.model_id) if asked.record is None else _measured(asked.record)
    return replace(layers_from(asked.name, asked.base, found), notes=unrelated_notes(asked))


def stored_layers(atlas: AtlasReader, model_id: int, model: str, base: str) -> Layers:
    """The same of an indexed model that is known by its id."""
    return layers_from(model, base, _stored(atlas, model_id))


def layers_from(model: str, base: str, found: Sequence[Mapping[str, Any]]) -> Layers:
    """From rows with the numbers of each delta."""
    total = math.fsum(one["norm"] ** 2 for one in found)
    order = sorted(found, key=lambda one: DeltaKey(one["stack"], one["layer"], one["family"]).sort_key)
    changes = tuple(Change(**one, share=one["norm"] ** 2 / total if total else 0.0) for one in order)
    return Layers(model, base, math.sqrt(total), changes)


def _stored(atlas: AtlasReader, model_id: int | None) -> list[dict[str, Any]]:
    return atlas.rows(
        "SELECT stack, layer, family, norm, relative_norm, energy, rank_50, rank_90 FROM deltas WHERE model_id = ?",
        [model_id],
    )


def _measured(record: Record) -> list[dict[str, Any]]:
    """The same of a model that was read just now."""
    rows = []
    for delta in record.deltas:
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
            }
        )
    return rows


def _parts(deltas: Iterable[Change], name: Callable[[Change], str]) -> list[Part]:
    groups: dict[str, list[Change]] = {}
    for one in deltas:
        groups.setdefault(name(one), []).append(one)
    return [_part(called, members) for called, members in groups.items()]


def _part(name: str, members: Sequence[Change]) -> Part:
    return Part(
        name=name,
        norm=math.hypot(*(one.norm for one in members)),
        relative_norm=math.hypot(*(one.relative_norm for one in members)) / math.sqrt(len(members)),
        share=math.fsum(one.share for one in members),
    )
