"""What a build with --spectra reads, keeps and says."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from indexer.atlas import AtlasFolder
from indexer.builds.plan import plan
from indexer.errors import Failed, Skipped
from indexer.listing.listing import ListedModel
from indexer.publish.rows import Entry
from indexer.records.identity import Spec, Unit
from indexer.records.record import Record
from indexer.records.store import RecordStore
from indexer.sources.registry import ModelRef
from indexer.upkeep.maintenance import rebuild, status
from tests import checkpoints
from tests.spectra.recorded import KINDS, noise
from tests.tiny_hub import served_shell

pytestmark = pytest.mark.slow


class Shelf:
    """A store with one listed model, and what a build would make of it."""

    def __init__(self, folder: Path) -> None:
        self.store = RecordStore(AtlasFolder(folder))
        self.row = {"id": "ann/tuned", "sha": "c" * 40, "siblings": [{"rfilename": "model.safetensors"}]}

    def unit(self, spectra: bool) -> Unit:
        return Unit(
            model=ModelRef("ann/tuned"), commit="c" * 40, base="org/base", base_commit="b" * 40,
            relation="finetune", spec=Spec(spectra=spectra),
        )  # fmt: skip

    def add_record(self, spectra: bool) -> str:
        self.store.write(Record(self.unit(spectra).identity, ()))
        return self.unit(spectra).identity.digest

    def add_outcome(self, spectra: bool, error: Exception) -> None:
        self.store.write_failure(self.unit(spectra).identity, error)

    def plan(self, spectra: bool, is_selected: bool = True, retry_failed: bool = False) -> Entry:
        now = datetime.now(UTC)
        listed = ListedModel("ann/tuned", self.row, "finetune", "tag", "org/base", now, now, False)
        (planned,) = plan([listed], [listed] * is_selected, self.store, self.unit(spectra), retry_failed)
        return planned


@pytest.fixture
def shelf(tmp_path):
    return Shelf(tmp_path / "atlas")


def test_a_record_without_spectra_is_read_again_when_they_are_asked_for_and_stays_until_then(shelf):
    key = shelf.add_record(False)
    planned = shelf.plan(True)
    assert planned.unit is not None
    assert planned.unit.spec.spectra
    assert planned.lacks == "spectra"
    assert (planned.record_key, planned.status) == (key, "indexed")


def test_outside_the_selection_it_is_left_as_it_is(shelf):
    key = shelf.add_record(False)
    planned = shelf.plan(True, is_selected=False)
    assert (planned.unit, planned.record_key, planned.lacks) == (None, key, "spectra")


@pytest.mark.parametrize("others", [(), (False,)])
@pytest.mark.parametrize("spectra_wanted", [False, True])
def test_a_record_with_spectra_answers_for_all_and_is_preferred(shelf, others, spectra_wanted):
    for spectra in others:
        shelf.add_record(spectra)
    key = shelf.add_record(True)
    planned = shelf.plan(spectra_wanted)
    assert (planned.unit, planned.record_key, planned.lacks) == (None, key, "")


@pytest.mark.parametrize("had", [False, True])
def test_without_the_flag_nothing_is_read_again(shelf, had):
    key = shelf.add_record(had)
    assert shelf.plan(False).is_unchanged
    assert shelf.plan(False).record_key == key


@pytest.mark.parametrize(("known", "spectra_wanted"), [(False, True), (True, False)])
def test_what_can_never_be_read_is_not_tried_for_spectra_either(shelf, known, spectra_wanted):
    shelf.add_outcome(known, Skipped("corrupt_file", "torn"))
    planned = shelf.plan(spectra_wanted)
    assert (planned.unit, planned.status) == (None, "skipped")


def test_a_failure_to_read_spectra_leaves_the_record_and_is_tried_again(shelf):
    key = shelf.add_record(False)
    for _ in range(4):  # past patience: the next try waits
        shelf.add_outcome(True, Failed("server_error", "away"))
    planned = shelf.plan(True)
    assert (planned.unit, planned.record_key, planned.status) == (None, key, "indexed")
    assert shelf.plan(True, retry_failed=True).unit is not None


# ---- over HTTP


def in_atlas(folder: Path) -> dict[str, bool]:
    from query import Atlas

    with Atlas(folder) as atlas:
        return {row["model"]: row["has_spectra"] for row in atlas.rows("SELECT model, has_spectra FROM models")}


def test_builds_with_and_without_the_flag(tmp_path):
    """Limit, failure, the rest, nothing, nothing without the flag; and a rebuild keeps what has spectra."""
    kind, store = KINDS["gpt2"], tmp_path / "store"
    weights = kind.random(seed=1)
    checkpoints.save(store / "org/base", kind, weights)
    checkpoints.describe(store, "org/base", tags=["transformers"])
    for number, name in enumerate(("ann/one", "bob/two", "cyd/three")):
        checkpoints.save(store / name, kind, kind.changed(weights, noise(1e-3 * (number + 1))))
        checkpoints.claim(store, name, "org/base", month=number + 1)
    with served_shell(store) as shell:
        hub = shell.hub

        def build(*words):
            command = shell("index", "build", "--base", "org/base", "--workers", "1", "--json", *words)
            assert command.code == 0, command.err
            counts = {name: command.json[name] for name in ("discovered", "indexed", "unchanged", "skipped", "failed")}
            return list(counts.values()), command.err

        assert build()[0] == [3, 3, 0, 0, 0]
        counts, said = build("--spectra", "--limit", "1", "--sort", "created")
        assert counts == [1, 1, 0, 0, 0]
        assert "to be read again: 1" in said
        assert "still have no spectra, until the next `index build --spectra`: 2" in said
        assert in_atlas(tmp_path / "atlas") == {"ann/one": False, "bob/two": False, "cyd/three": True}
        assert status(AtlasFolder(tmp_path / "atlas"))["bases"][0]["without_spectra"] == 2
        fault = hub.faults.add(path=r"ann/one/.*safetensors", status=404)
        counts, said = build("--spectra")
        assert counts == [3, 1, 1, 0, 1]
        assert "to be read again: 2" in said
        assert "until the next `index build --spectra`: 1" in said
        assert in_atlas(tmp_path / "atlas") == {"ann/one": False, "bob/two": True, "cyd/three": True}
        hub.faults.remove(fault)
        hub.reset_log()
        assert build()[0] == [3, 0, 3, 0, 0]
        assert not [request for request in hub.requests if "safetensors" in request.path]
    (tmp_path / "atlas" / "atlas.duckdb").unlink()
    rebuild(AtlasFolder(tmp_path / "atlas"))
    assert in_atlas(tmp_path / "atlas") == {"ann/one": False, "bob/two": True, "cyd/three": True}
