"""A profile from a subject and a probe: what `index profile` stores and what a question computes on the fly."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import torch

from indexer.profiles.layers import States
from indexer.profiles.measure import Asked, LayerRow, measure
from indexer.profiles.probes import Probe
from indexer.profiles.store import Profile, ProfileIdentity, joined
from indexer.profiles.subject import Subject
from indexer.records.depth_measures import MEASURES


def make_profile(
    identity: ProfileIdentity,
    subject: Subject,
    probe: Probe,
    asked: Asked,
    *,
    base: States | None = None,
    earlier: Profile | None = None,
    progress: Callable[[str, int], None] = lambda what, layer: None,
    keep: Callable[[Profile], None] = lambda profile: None,
) -> tuple[Profile, States]:
    """Measure what ``earlier`` has not yet; also h_l of the probe, for its fine-tunes.

    ``keep`` is given all layers that are whole as soon as one more is: whatever ends the run, they stay. Raises Failed
    where activations overflow.
    """
    started = time.process_time()
    rows: list[LayerRow] = []
    done = [] if earlier is None else earlier.layers.tolist()

    def made(is_complete: bool) -> Profile:
        profile = _profile(identity, subject, probe, rows, time.process_time() - started, is_complete)
        return joined(profile, earlier)

    def whole(row: LayerRow) -> None:
        rows.append(row)
        keep(made(False))

    measured = measure(subject.layers, probe, asked, base=base, done=done, progress=progress, keep=whole)
    return made(True), measured.states


def _profile(
    identity: ProfileIdentity,
    subject: Subject,
    probe: Probe,
    rows: list[LayerRow],
    seconds: float,
    is_complete: bool,
) -> Profile:
    def column(part: str, name: str) -> np.ndarray:
        return np.array([getattr(row, part).get(name, np.nan) for row in rows], dtype=np.float32)

    found = {part: {name for row in rows for name in getattr(row, part)} for part in ("values", "errors")}
    values = {name: column("values", name) for name in MEASURES if name in found["values"]}
    values["spread"] = np.array([row.spread for row in rows], dtype=np.float32)
    return Profile(
        identity=identity,
        layers=np.array([row.layer for row in rows], dtype=np.int64),
        is_constant=np.array([row.is_constant for row in rows], dtype=bool),
        values=values,
        errors={name: column("errors", name) for name in MEASURES if name in found["errors"]},
        is_complete=is_complete,
        stack=subject.loaded.stack,
        probe_sha256=probe.sha256,
        sequences=probe.sequences,
        tokens=probe.tokens,
        device=str(subject.layers.device),
        threads=torch.get_num_threads(),
        cpu_seconds=seconds,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=subject.loaded.notes,
    )
