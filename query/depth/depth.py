"""One model's layers against its base, an untrained twin, or another model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from indexer.errors import AtlasError, require
from indexer.names import ModelRef
from indexer.records.depth_measures import MEASURES
from query.depth.curves import LayerCurves
from query.depth.profiled import LayerRows, Profiled, read_profiled
from query.depth.sentence import sentence
from query.lookup import READERS, reference_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from query.reader import AtlasReader
    from query.results import ThemeName

AGAINST = {"base": "its base", "untrained": "an untrained twin"}


@dataclass(frozen=True, repr=False)
class Depth(LayerCurves):
    """A model's layers, drawn on request."""

    def figure(self, theme: ThemeName = "light", *, ax: Axes | None = None) -> Figure:
        """A small panel for each measure."""
        from query.depth.picture import depth_figure

        return depth_figure(self, theme, ax)


def depth(
    atlas: AtlasReader,
    model: str | Path,
    *,
    against: str = "base",
    base: str | None = None,
    recover: bool = False,
    exact: bool = False,
    layers: Sequence[int] | None = None,
    recipe: str = "default",
    seed: int = 0,
    device: str = "cpu",
) -> Depth:
    """What each layer of a model keeps of its input: its depth profile, compared with another one.

    ``model`` is an indexed id, a base, any other Hub id or a local folder. ``against``: base, untrained, or another
    profiled model. A model without a profile is measured now and not stored; the arguments after ``base`` are those of
    `index profile` and apply only then. Raises AtlasError if the model cannot be read, or ``against`` has no profile of
    the same probe.
    """
    model = str(model)
    found = _stored(atlas, model, base)
    if found is None:
        chosen = None if layers is None else tuple(layers)
        wishes = {"recover": recover, "exact": exact, "recipe": recipe, "seed": seed, "device": device}
        return _now(atlas, model, against, base, {**wishes, "layers": chosen})
    is_base = found.subject == "base"
    other = _other(atlas, found, against if not (is_base and against == "base") else "untrained")
    notes = _notes(found)
    if other is None:
        what = AGAINST.get(against, against)
        notes += (f"{what} has no profile of the same probe: index profile --base {found.base} --with-untrained",)
    twin = read_profiled(atlas, found.base, subject="untrained", probe=found.probe_sha256)
    return _depth(found, against, other, twin[0].layers if twin else (), notes)


def _stored(atlas: AtlasReader, model: str, base: str | None) -> Profiled | None:
    try:
        canonical = atlas.base_named(model)
    except AtlasError:
        reference = ModelRef.parse(model)
        known = atlas.find(reference, base) if reference.folder is None else None
        if known is None:
            return None
        found = read_profiled(atlas, known.base, subject="fine_tune", model=known.model)
    else:
        found = read_profiled(atlas, canonical, subject="base")
    return found[0] if found else None


def _other(atlas: AtlasReader, found: Profiled, against: str) -> Profiled | None:
    if against in AGAINST:
        rows = read_profiled(atlas, found.base, subject=against, probe=found.probe_sha256)
    else:
        named = _stored(atlas, against, found.base)
        if named is None:
            raise AtlasError(f"{against} has no profile in this atlas.", f"Make one: index profile {against}")
        rows = [named] if named.probe_sha256 == found.probe_sha256 else []
    return rows[0] if rows else None


def _depth(
    found: Profiled, against: str, other: Profiled | None, untrained: LayerRows, notes: tuple[str, ...]
) -> Depth:
    rows = other.layers if other else ()
    name = {"base": "its base", "untrained": "an untrained twin"}.get(other.subject, against) if other else ""
    if other is not None and against not in AGAINST:
        name = against
    return Depth(
        model=found.model if found.subject != "untrained" else f"{found.model} (untrained)",
        base=found.base,
        against=against,
        probe=found.probe,
        sequences=found.sequences,
        tokens=found.tokens,
        seed=found.seed,
        recipe=found.recipe,
        layers=found.layers,
        against_layers=rows,
        untrained_layers=untrained,
        sentence=sentence(found.layers, rows, name) if rows else "there is nothing to compare it with.",
        notes=notes,
    )


def _notes(found: Profiled) -> tuple[str, ...]:
    notes = []
    if any(row["verified"] is not None for row in found.layers):
        notes.append("verified is a certificate and no measure of depth: search finds the input nearly everywhere")
    if found.stack:
        notes.append(f"the layers of its {found.stack}")
    return tuple(notes)


def _now(atlas: AtlasReader, model: str, against: str, base: str | None, wishes: Mapping[str, Any]) -> Depth:
    """Measured for this question."""
    require("Running a model", *READERS)
    from indexer.profiles.single import Reference, profile_now

    if against not in AGAINST:
        raise AtlasError(f"{model} has no profile in this atlas.", f"Make one first: index profile {model}")
    reference = reference_of(atlas, model, base)
    assert isinstance(reference, Reference)
    profile, of_base, twin = profile_now(reference, untrained=against == "untrained", **wishes)
    other = of_base if against == "base" else twin
    mine = _of_file(profile, reference)
    shown = _depth(
        mine,
        against,
        None if other is None else _of_file(other, reference),
        _of_file(twin, reference).layers if twin else (),
        (*_notes(mine), *profile.notes, "measured now; nothing was stored: index profile keeps it"),
    )
    return shown


def _of_file(profile: Any, reference: Any) -> Profiled:
    rows = profile.rows()
    for row in rows:
        row |= {"own_delta": None, "delta": None}
    identity = profile.identity
    kept = ("layer", *(part for name in MEASURES for part in (name, f"{name}_error")),
            "spread", "is_constant", "own_delta", "delta")  # fmt: skip
    return Profiled(
        model=identity.model,
        base=reference.base or identity.model,
        subject=identity.subject,
        author=None,
        probe=identity.probe,
        probe_sha256=profile.probe_sha256,
        sequences=profile.sequences,
        tokens=profile.tokens,
        seed=identity.seed,
        recipe=identity.recipe,
        stack=profile.stack,
        layers=tuple({name: row[name] for name in kept} for row in rows),
    )
