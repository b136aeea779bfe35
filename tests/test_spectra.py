"""Whole spectra in the records: against NumPy's SVD of the files, for every way to store a matrix; and what a build
with --spectra reads, keeps and says."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from indexer.atlas import AtlasFolder
from indexer.base import BaseMatrices, store_base
from indexer.crawling.listing import ListedModel
from indexer.delta import LoraDelta, dense_deltas, layout_against
from indexer.errors import Failed, Skipped
from indexer.identity import SPECTRA_FORM, Spec
from indexer.maintenance import rebuild, status
from indexer.plan import Planned, plan
from indexer.publishing.rows import delta_rows, record_row, whole_rows
from indexer.record import Record, _checksum, read_record, write_record
from indexer.records import RecordStore
from indexer.spectra import Spectra
from indexer.svd import SVD_METHOD
from indexer.unit import Unit, vectorise
from indexer.weights import open_checkpoint
from indexer.words import DeltaKey, ModelRef
from scripts.loopback_hub import LoopbackHub
from tests import rank_world as world
from tests.conftest import Shell
from tests.rank_world import Kind

THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)
KINDS: dict[str, Kind] = {
    "roberta": world.roberta(2, 24, 60),
    "gpt2": world.gpt2(2, 24),
    "t5": world.t5(2, 3, 20, 50),
    "phi3": world.phi3(2, heads=4, kv_heads=2, head=6, inner=40),
}


def base_in(folder: Path, kind: Kind) -> tuple[BaseMatrices, dict]:
    weights = kind.random(seed=1)
    checkpoint = open_checkpoint(ModelRef("base", folder=world.save(folder / "base", kind, weights)))
    return store_base(checkpoint, "org/base", "b" * 40, folder / "base.safetensors"), weights


def record_of(folder: Path, base: BaseMatrices, relation: str = "finetune", spectra: bool = True) -> Record:
    unit = Unit(
        model=ModelRef(str(folder), folder=folder), commit="c" * 40, base="org/base", base_commit="b" * 40,
        relation=relation, spec=Spec(spectra=SPECTRA_FORM if spectra else False, svd=SVD_METHOD), representations=(),
    )  # fmt: skip
    return vectorise(unit, base)


def noise(scale: float = 1e-3) -> Callable:
    def delta(name, shape):
        rng = np.random.default_rng([ord(name[2][0]), name[1], *shape])
        return scale * rng.normal(size=shape) + world.low_rank(rng, shape, [30 * scale, 20 * scale])

    return delta


def check_values(found: np.ndarray, matrix: np.ndarray) -> None:
    exact = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=3e-6 * exact[0])


def check_record(record: Record, kind: Kind, base: dict, tuned: dict) -> None:
    """Every spectrum and every rank, of δW and of W, split and whole."""
    assert record.has_spectra
    changes = {name: tuned[name].astype(np.float64) - base[name] for name in base}
    assert len(record.deltas) == len(kind.places)
    for delta in record.deltas:
        place = kind.places[delta.key.stack, delta.key.layer, delta.key.family]
        check_values(delta.spectrum, place.get(changes))
        check_values(delta.weights, place.get(tuned))
        for threshold in THRESHOLDS:
            assert delta.change_ranks([threshold])[0] == world.rank_of(place.get(changes), threshold)
            assert delta.weight_ranks([threshold])[0] == world.rank_of(place.get(tuned), threshold)
    expected = {(stack, layer, name) for stack, layer, _ in kind.places for name in kind.wholes}
    assert {(one.parts[0].stack, one.parts[0].layer, one.family) for one in record.wholes} == expected
    for whole in record.wholes:
        where = whole.parts[0].stack, whole.parts[0].layer, whole.family
        assert tuple(part.family for part in whole.parts) == kind.wholes[whole.family]
        assert whole.shape == kind.whole(tuned, *where).shape
        check_values(whole.spectrum, kind.whole(changes, *where))
        check_values(whole.weights, kind.whole(tuned, *where))
        for threshold in THRESHOLDS:
            assert whole.change_ranks([threshold])[0] == world.rank_of(kind.whole(changes, *where), threshold)
            assert whole.weight_ranks([threshold])[0] == world.rank_of(kind.whole(tuned, *where), threshold)


@pytest.mark.parametrize("name", KINDS)
def test_a_full_fine_tune_against_numpy(name, tmp_path):
    kind = KINDS[name]
    base, weights = base_in(tmp_path, kind)
    tuned = kind.changed(weights, noise())
    check_record(record_of(world.save(tmp_path / "tuned", kind, tuned), base), kind, weights, tuned)


def lora(kind: Kind, weights: dict, modules: dict[str, str], rank: int = 3) -> tuple[dict, dict]:
    """Factors for these modules (name → tensor), and the weights with the adapter merged in, α = 2r."""
    rng = np.random.default_rng(5)
    factors, merged = {}, {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    for module, tensor in modules.items():
        place = next(place for place in kind.places.values() if place.tensor == tensor)
        rows, columns = merged[tensor].T.shape if place.transposed else merged[tensor].shape
        a, b = (0.05 * rng.normal(size=shape).astype(np.float32) for shape in ((rank, columns), (rows, rank)))
        factors[module] = (a, b)
        change = 2.0 * b.astype(np.float64) @ a
        merged[tensor] += change.T if place.transposed else change
    return factors, merged


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("roberta", {f"roberta.encoder.layer.{i}.attention.self.{part}": f"encoder.layer.{i}.attention.self.{part}.weight"
                     for i in range(2) for part in ("query", "value")}),
        ("gpt2", {f"transformer.h.{i}.attn.c_attn": f"h.{i}.attn.c_attn.weight" for i in range(2)}),
        ("gpt2", {"transformer.h.1.mlp.c_fc": "h.1.mlp.c_fc.weight"}),
        ("phi3", {"model.layers.1.self_attn.qkv_proj": "model.layers.1.self_attn.qkv_proj.weight",
                  "model.layers.0.mlp.down_proj": "model.layers.0.mlp.down_proj.weight"}),
    ],
    ids=["roberta", "fused", "beside-fused", "grouped"],
)  # fmt: skip
def test_an_adapter_against_numpy(name, modules, tmp_path):
    """Ranks of δW are those of the factors exactly, at 100 % too; W is the base's plus the product, or the base's."""
    kind = KINDS[name]
    base, weights = base_in(tmp_path, kind)
    factors, merged = lora(kind, weights, modules)
    changes = {tensor: merged[tensor] - weights[tensor] for tensor in weights}
    record = record_of(world.save_lora(tmp_path / "lora", "org/base", factors, alpha=6), base, relation="adapter")
    assert record.has_spectra
    for delta in record.deltas:
        place = kind.places[delta.key.stack, delta.key.layer, delta.key.family]
        is_touched = place.tensor in modules.values()
        assert (delta.spectrum is not None) == is_touched
        assert delta.change_ranks([1.0])[0] == (3 if is_touched else 0)
        check_values(delta.weights, place.get(merged))
        if is_touched:
            assert delta.spectrum.shape == (min(delta.shape),)
            check_values(delta.spectrum, place.get(changes))
    for whole in record.wholes:
        where = whole.parts[0].stack, whole.parts[0].layer, whole.family
        is_touched = kind.places[where[0], where[1], kind.wholes[whole.family][0]].tensor in modules.values()
        assert whole.change_ranks([1.0])[0] == (3 if is_touched else 0)
        check_values(whole.weights, kind.whole(merged, *where))
        if is_touched:
            check_values(whole.spectrum, kind.whole(changes, *where))


def test_a_fused_matrix_of_which_an_adapter_changes_a_part(tmp_path):
    """An adapter of a model whose modules are split in memory, while the base's file has them fused."""
    kind = KINDS["gpt2"]
    base, weights = base_in(tmp_path, kind)
    rng = np.random.default_rng(2)
    spectra, changed = Spectra(base, "cpu"), np.zeros((72, 24))
    for place, (family, rank) in {0: ("query", 2), 2: ("value", 4)}.items():
        a, b = (0.1 * rng.normal(size=shape).astype(np.float32) for shape in ((rank, 24), (24, rank)))
        changed[24 * place : 24 * place + 24] = 0.5 * b.astype(np.float64) @ a
        delta = LoraDelta(DeltaKey("", 1, family), torch.tensor(a), torch.tensor(b), 0.5, True)
        values, _ = spectra.of(delta)
        assert np.count_nonzero(values) == rank
    untouched, whole = spectra.wholes()
    assert untouched.spectrum is None
    assert np.count_nonzero(whole.spectrum) == 6
    check_values(whole.spectrum, changed)
    check_values(whole.weights, kind.whole(weights, "", 1, "query_key_value") + changed)


def test_parts_that_come_apart_and_in_another_order_make_the_same_whole(tmp_path):
    """A fine-tune may store split what the base stores fused. Only what waits for the rest of a whole is held."""
    kind = world.gpt2(2, 160)  # wide enough for single precision: another order of rows would show
    base, weights = base_in(tmp_path, kind)
    folder = world.save(tmp_path / "tuned", kind, kind.changed(weights, noise()))
    record = record_of(folder, base)
    checkpoint = open_checkpoint(ModelRef("tuned", folder=folder))
    deltas = list(dense_deltas(checkpoint, layout_against(checkpoint, base), base, with_weights=True))
    spectra, waiting = Spectra(base, "cpu"), []
    for delta in sorted(deltas, key=lambda delta: (delta.key.family, -delta.key.layer)):
        spectra.of(delta)
        waiting.append(sum(map(len, spectra._waiting.values())))
    assert waiting == [0, 0, 0, 0, 1, 2, 2, 2, 3, 4, 2, 0]  # two layers of key, then query, then value
    for one, other in zip(spectra.wholes(), record.wholes, strict=True):
        np.testing.assert_array_equal(one.spectrum, other.spectrum)
        np.testing.assert_array_equal(one.weights, other.weights)


def test_untouched_and_unchanged_matrices_have_weights_and_no_change(tmp_path):
    """A copy: W is there, δW is zero and has no spectrum; all is complete."""
    kind = KINDS["gpt2"]
    base, weights = base_in(tmp_path, kind)
    record = record_of(world.save(tmp_path / "copy", kind, weights), base)
    assert record.is_copy
    assert record.has_spectra
    assert {delta.spectrum for delta in record.deltas} == {whole.spectrum for whole in record.wholes} == {None}
    assert {delta.change_ranks([0.5])[0] for delta in record.deltas} == {0}
    for delta in record.deltas:
        check_values(delta.weights, kind.places[delta.key.stack, delta.key.layer, delta.key.family].get(weights))


def test_a_half_precision_upload_has_the_weights_it_stores(tmp_path):
    kind = KINDS["roberta"]
    base, weights = base_in(tmp_path, kind)
    tuned = {name: tensor.astype(np.float16) for name, tensor in kind.changed(weights, noise(1e-2)).items()}
    record = record_of(world.save(tmp_path / "half", kind, tuned), base)
    for delta in record.deltas:
        place = kind.places[delta.key.stack, delta.key.layer, delta.key.family]
        check_values(delta.weights, place.get(tuned))
        rounded = place.get(weights).astype(np.float16).astype(np.float64)
        check_values(delta.spectrum, place.get(tuned).astype(np.float64) - rounded)


def test_an_adapter_whose_weights_overflow_is_skipped(tmp_path):
    kind = KINDS["roberta"]
    base, weights = base_in(tmp_path, kind)
    module = "roberta.encoder.layer.0.attention.self.query"
    factors, _ = lora(kind, weights, {module: "encoder.layer.0.attention.self.query.weight"})
    huge = {module: tuple(np.full_like(factor, 1e19) for factor in factors[module])}
    folder = world.save_lora(tmp_path / "huge", "org/base", huge, alpha=3000)
    with pytest.raises(Skipped, match="overflow"):
        record_of(folder, base, relation="adapter")


# ---- on disk and in the database


def test_spectra_and_wholes_survive_the_disk_and_older_records_still_read(tmp_path):
    kind = KINDS["phi3"]
    base, weights = base_in(tmp_path, kind)
    folder = world.save(tmp_path / "tuned", kind, kind.changed(weights, noise()))
    record = record_of(folder, base)
    write_record(record, tmp_path / "r.safetensors")
    back = read_record(tmp_path / "r.safetensors")
    for one, other in zip([*record.deltas, *record.wholes], [*back.deltas, *back.wholes], strict=True):
        np.testing.assert_array_equal(one.spectrum, other.spectrum)
        np.testing.assert_array_equal(one.weights, other.weights)
    assert [(one.parts, one.shape, one.name) for one in back.wholes] == [
        (one.parts, one.shape, one.name) for one in record.wholes
    ]
    plain = record_of(folder, base, spectra=False)
    assert plain.wholes == ()
    assert not plain.has_spectra
    assert {delta.weights is None and delta.spectrum is None for delta in plain.deltas} == {True}


def test_a_file_of_the_first_form_reads_and_lacks_the_weights(tmp_path):
    """Its header has no wholes and its arrays no weights."""
    kind = KINDS["gpt2"]
    base, weights = base_in(tmp_path, kind)
    record = record_of(world.save(tmp_path / "tuned", kind, kind.changed(weights, noise())), base)
    path = tmp_path / "r.safetensors"
    write_record(record, path)
    payload = path.read_bytes()
    text = json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])["__metadata__"]["record"]
    header = json.loads(text)
    del header["wholes"]
    header["identity"]["spec"]["spectra"] = True
    arrays = {name: array for name, array in load(payload).items() if not name.endswith(".weights")}
    arrays = {name: array for name, array in arrays.items() if "query_key_value" not in name}
    text = json.dumps(header)
    path.write_bytes(save(arrays, metadata={"record": text, "checksum": _checksum(text, arrays)}))
    old = read_record(path)
    assert not old.has_spectra
    assert old.wholes == ()
    assert [row["rank_99"] for row in delta_rows(1, old)] == [row["rank_99"] for row in delta_rows(1, record)]
    assert {row["weight_rank_50"] for row in delta_rows(1, old)} == {None}


def test_rows_hold_every_rank(tmp_path):
    kind = KINDS["gpt2"]
    base, weights = base_in(tmp_path, kind)
    tuned = kind.changed(weights, noise())
    record = record_of(world.save(tmp_path / "tuned", kind, tuned), base)
    changes = {name: tuned[name].astype(np.float64) - weights[name] for name in weights}
    assert record_row(1, record, "k")["has_spectra"] is True
    for row in [*delta_rows(1, record), *whole_rows(1, record)]:
        where = row["stack"], row["layer"], row["family"]
        change, weight = (
            kind.whole(tensors, *where) if "families" in row else kind.places[where].get(tensors)
            for tensors in (changes, tuned)
        )
        assert row["norm"] == pytest.approx(np.linalg.norm(change), rel=1e-5)
        assert (row["out_features"], row["in_features"]) == change.shape
        for percent in (50, 80, 90, 95, 99):
            assert row[f"rank_{percent}"] == world.rank_of(change, percent / 100)
            assert row[f"weight_rank_{percent}"] == world.rank_of(weight, percent / 100)
    assert [row["families"] for row in whole_rows(1, record)] == [["query", "key", "value"]] * 2


# ---- which models a build reads for them


class Shelf:
    """A store with one listed model, and what a build would make of it."""

    def __init__(self, folder: Path) -> None:
        self.store = RecordStore(AtlasFolder(folder))
        self.row = {"id": "ann/tuned", "sha": "c" * 40, "siblings": [{"rfilename": "model.safetensors"}]}

    def unit(self, spectra: bool | str) -> Unit:
        return Unit(
            model=ModelRef("ann/tuned"), commit="c" * 40, base="org/base", base_commit="b" * 40,
            relation="finetune", spec=Spec(spectra=spectra, svd=SVD_METHOD),
        )  # fmt: skip

    def add_record(self, spectra: bool | str) -> str:
        self.store.write(Record(self.unit(spectra).identity, ()))
        return self.unit(spectra).identity.digest

    def add_outcome(self, spectra: bool | str, error: Exception) -> None:
        self.store.write_outcome(self.unit(spectra).identity, error)

    def plan(self, spectra: bool | str, is_selected: bool = True, retry_failed: bool = False) -> Planned:
        now = datetime.now(UTC)
        listed = ListedModel("ann/tuned", self.row, "finetune", "tag", "org/base", now, now, False)
        (planned,) = plan([listed], [listed] * is_selected, self.store, self.unit(spectra), retry_failed)
        return planned


@pytest.fixture
def shelf(tmp_path):
    return Shelf(tmp_path / "atlas")


@pytest.mark.parametrize("had", [False, True], ids=["none", "first-form"])
def test_a_record_without_spectra_is_read_again_when_they_are_asked_for_and_stays_until_then(shelf, had):
    key = shelf.add_record(had)
    planned = shelf.plan(SPECTRA_FORM)
    assert planned.unit is not None
    assert planned.unit.spec.spectra == SPECTRA_FORM
    assert planned.lacks_spectra
    assert (planned.entry.record_key, planned.entry.status) == (key, "indexed")


def test_outside_the_selection_it_is_left_as_it_is(shelf):
    key = shelf.add_record(False)
    planned = shelf.plan(SPECTRA_FORM, is_selected=False)
    assert (planned.unit, planned.entry.record_key, planned.lacks_spectra) == (None, key, True)


@pytest.mark.parametrize("others", [(), (False,), (True, False)])
@pytest.mark.parametrize("asked", [False, SPECTRA_FORM])
def test_a_record_with_spectra_answers_for_all_and_is_preferred(shelf, others, asked):
    for spectra in others:
        shelf.add_record(spectra)
    key = shelf.add_record(SPECTRA_FORM)
    planned = shelf.plan(asked)
    assert (planned.unit, planned.entry.record_key, planned.lacks_spectra) == (None, key, False)


@pytest.mark.parametrize("had", [False, True])
def test_without_the_flag_nothing_is_read_again(shelf, had):
    key = shelf.add_record(had)
    assert shelf.plan(False).is_unchanged
    assert shelf.plan(False).entry.record_key == key


@pytest.mark.parametrize(("known", "asked"), [(False, SPECTRA_FORM), (SPECTRA_FORM, False)])
def test_what_can_never_be_read_is_not_tried_for_spectra_either(shelf, known, asked):
    shelf.add_outcome(known, Skipped("corrupt_file", "torn"))
    planned = shelf.plan(asked)
    assert (planned.unit, planned.entry.status) == (None, "skipped")


def test_a_failure_to_read_spectra_leaves_the_record_and_is_tried_again(shelf):
    key = shelf.add_record(False)
    for _ in range(4):  # past patience: the next try waits
        shelf.add_outcome(SPECTRA_FORM, Failed("server_error", "away"))
    planned = shelf.plan(SPECTRA_FORM)
    assert (planned.unit, planned.entry.record_key, planned.entry.status) == (None, key, "indexed")
    assert shelf.plan(SPECTRA_FORM, retry_failed=True).unit is not None


# ---- over HTTP


def in_atlas(folder: Path) -> dict[str, bool]:
    from query import Atlas

    with Atlas(folder) as atlas:
        return {row["model"]: row["has_spectra"] for row in atlas.rows("SELECT model, has_spectra FROM models")}


def test_builds_with_and_without_the_flag(tmp_path):
    """Limit, failure, the rest, nothing, nothing without the flag; and a rebuild keeps what has spectra."""
    kind, store = KINDS["gpt2"], tmp_path / "store"
    weights = kind.random(seed=1)
    world.save(store / "org/base", kind, weights)
    world.describe(store, "org/base", tags=["transformers"])
    for place, name in enumerate(("ann/one", "bob/two", "cyd/three")):
        world.save(store / name, kind, kind.changed(weights, noise(1e-3 * (place + 1))))
        world.claim(store, name, "org/base", month=place + 1)
    with LoopbackHub(store) as hub:
        shell = Shell(hub.endpoint, tmp_path, {"HF_HOME": str(tmp_path / "hf")})

        def build(*words):
            ran = shell("index", "build", "--base", "org/base", "--workers", "1", "--json", *words)
            assert ran.code == 0, ran.err
            counts = {name: ran.json[name] for name in ("discovered", "indexed", "unchanged", "skipped", "failed")}
            return list(counts.values()), ran.err

        assert build()[0] == [3, 3, 0, 0, 0]
        counts, said = build("--spectra", "--limit", "1", "--sort", "created")
        assert counts == [1, 1, 0, 0, 0]
        assert "to be read again: 1" in said
        assert "still have no spectra, left to another `index build --spectra`: 2" in said
        assert in_atlas(tmp_path / "atlas") == {"ann/one": False, "bob/two": False, "cyd/three": True}
        assert status(AtlasFolder(tmp_path / "atlas"))["bases"][0]["without_spectra"] == 2
        fault = hub.faults.add(path=r"ann/one.*safetensors", status=404)
        counts, said = build("--spectra")
        assert counts == [3, 1, 1, 0, 1]
        assert "to be read again: 2" in said
        assert "left to another `index build --spectra`: 1" in said
        assert in_atlas(tmp_path / "atlas") == {"ann/one": False, "bob/two": True, "cyd/three": True}
        hub.faults.remove(fault)
        hub.reset_log()
        assert build()[0] == [3, 0, 3, 0, 0]
        assert not [request for request in hub.requests if "safetensors" in request.path]
    (tmp_path / "atlas" / "atlas.duckdb").unlink()
    rebuild(AtlasFolder(tmp_path / "atlas"))
    assert in_atlas(tmp_path / "atlas") == {"ann/one": False, "bob/two": True, "cyd/three": True}
