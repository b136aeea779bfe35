"""Atlases of sampled models: what the tables say, what is read again and what is not, and `index deepen`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import indexer
from indexer.atlas import AtlasFolder
from indexer.database.reading import Reading
from indexer.errors import AtlasError, BadArgument
from indexer.records.store import RecordStore
from scripts.loopback_hub import LoopbackHub
from tests.checkpoints import claim, roberta, save_lora
from tests.hubs import cleared, served
from tests.sampling import made

KIND = roberta(1, 256, 1024)
FULL = ("ann/a", "bob/b", "cyd/c", "dan/copied", "dan/resaved", "eve/half", "eve/twin", "fay/stranger", "gil/frozen")
ADAPTERS = ("hal/lora", "ivy/stacked")
SAMPLED = {*FULL, "ivy/stacked"}


def factors(seed: int) -> dict[str, tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {
        place.tensor.removesuffix(".weight"): (
            3e-3 * rng.normal(size=(4, place.stored[1])),
            rng.normal(size=(place.stored[0], 4)),
        )
        for place in KIND.places.values()
    }


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[LoopbackHub]:
    root = tmp_path_factory.mktemp("store")
    base = made.base_weights(KIND)
    tuned = made.tuned_of(KIND, base, seed=2)
    frozen = {name: base[name] if "attention" in name else one for name, one in tuned.items()}
    weights = {
        made.BASE: base,
        "ann/a": tuned,
        "bob/b": made.tuned_of(KIND, base, seed=3),
        "cyd/c": made.tuned_of(KIND, base, seed=4),
        "dan/copied": base,
        "dan/resaved": {**base, "pooler.dense.weight": torch.zeros(4, 4)},
        "eve/half": made.cast(tuned, torch.float16),
        "eve/twin": {**tuned, "classifier.weight": torch.zeros(2, 256)},
        "fay/stranger": made.base_weights(KIND, seed=9),
        "gil/frozen": frozen,
    }
    for month, (model, tensors) in enumerate(weights.items(), start=1):
        made.save(root / model, KIND, tensors)
        claim(root, model, made.BASE, month=month)
    save_lora(root / "hal" / "lora", made.BASE, factors(5), alpha=4)
    claim(root, "hal/lora", made.BASE, "adapter", month=11)
    save_lora(root / "ivy" / "stacked", "ann/a", factors(6), alpha=4)
    claim(root, "ivy/stacked", made.BASE, "adapter", month=12)  # its file names another base
    with pytest.MonkeyPatch.context() as patch, served(root, patch) as running:
        yield running


@pytest.fixture(autouse=True)
def undisturbed(hub: LoopbackHub) -> Iterator[None]:
    with cleared(hub):
        yield


def build(folder: Path, **options: Any) -> Any:
    return indexer.build(made.BASE, atlas=folder, workers=1, **options)


def rows(folder: Path, statement: str) -> list[dict[str, Any]]:
    with Reading(AtlasFolder(folder).database) as connection:
        return connection.rows(statement)


def reads(folder: Path) -> dict[str, str]:
    return {row["model"]: row["read"] for row in rows(folder, 'SELECT model, "read" FROM models')}


def keys(folder: Path) -> dict[str, str]:
    return {row["model"]: row["record_key"] for row in rows(folder, "SELECT model, record_key FROM models")}


def on_disk(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "records").glob("??/*.safetensors")}


def sent(hub: LoopbackHub) -> int:
    return sum(one.body_bytes for one in hub.requests if one.role == "cdn")


@pytest.fixture(scope="module")
def at_once(hub, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sampled") / "atlas"
    report = build(folder)
    assert report.indexed == len(FULL) + len(ADAPTERS), report
    return folder


@pytest.fixture(scope="module")
def in_full(hub, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("full") / "atlas"
    assert build(folder, read="full").indexed == len(FULL) + len(ADAPTERS)
    return folder


@pytest.fixture
def sampled(at_once, tmp_path) -> Path:
    return Path(shutil.copytree(at_once, tmp_path / "atlas"))


@pytest.fixture
def full(in_full, tmp_path) -> Path:
    return Path(shutil.copytree(in_full, tmp_path / "full"))


# ---- what the tables say


def test_a_build_reads_a_sample_unless_it_is_told_otherwise(at_once, in_full):
    assert {model for model, read in reads(at_once).items() if read == "sample"} == SAMPLED
    assert set(reads(in_full).values()) == {"full"}
    # Factors are read whole: the record is the same file either way.
    assert keys(at_once)["hal/lora"] == keys(in_full)["hal/lora"]
    assert not {keys(at_once)[model] for model in SAMPLED} & set(keys(in_full).values())
    assert not indexer.verify(at_once)
    assert not indexer.verify(in_full)


def test_what_a_sample_tells_is_what_a_full_read_tells(at_once, in_full):
    columns = "model, verified, is_copy, is_unrelated, is_partly_frozen, vector_group, duplicate_of, duplicate_group"
    statement = f"SELECT {columns} FROM models ORDER BY model"
    assert rows(at_once, statement) == rows(in_full, statement)
    groups = {row["model"]: row["duplicate_group"] for row in rows(at_once, statement)}
    assert groups["ann/a"] == groups["eve/half"] == groups["eve/twin"] is not None
    flags = {row["model"]: row for row in rows(at_once, statement)}
    assert [model for model, row in flags.items() if row["is_copy"]] == ["dan/copied", "dan/resaved"]
    assert [model for model, row in flags.items() if row["is_unrelated"]] == ["fay/stranger"]
    assert [model for model, row in flags.items() if row["is_partly_frozen"]] == ["gil/frozen"]


def test_norms_are_within_a_few_of_their_errors(at_once, in_full):
    statement = "SELECT model, delta_norm, delta_norm_error FROM models ORDER BY model"
    for one, exact in zip(rows(at_once, statement), rows(in_full, statement), strict=True):
        assert exact["delta_norm_error"] == 0
        assert (one["delta_norm_error"] > 0) == (one["model"] in SAMPLED and not one["model"].startswith("dan/"))
        assert abs(one["delta_norm"] - exact["delta_norm"]) <= 4 * one["delta_norm_error"] + 1e-6
    deltas = rows(at_once, "SELECT model, family, rows_read, norm_error FROM deltas JOIN models USING (model_id)")
    assert {row["rows_read"] for row in deltas if row["model"] == "ann/a"} == {64, 16}
    assert {row["rows_read"] for row in deltas if row["model"] == "hal/lora"} == {None}


def test_a_copy_says_what_shows_it(at_once, in_full):
    statement = "SELECT model, copy_evidence FROM models WHERE copy_evidence IS NOT NULL ORDER BY model"
    found = {row["model"]: row["copy_evidence"] for row in rows(at_once, statement)}
    assert found == {"dan/copied": "checksum", "dan/resaved": "sample"}
    found = {row["model"]: row["copy_evidence"] for row in rows(in_full, statement)}
    assert found == {"dan/copied": "checksum", "dan/resaved": "weights"}


# ---- what is read again, and what is not


def test_a_full_atlas_is_not_read_again_for_a_sample(full, hub):
    before = keys(full)
    hub.reset_log()
    report = build(full)
    assert (report.indexed, report.unchanged) == (0, len(FULL) + len(ADAPTERS))
    assert sent(hub) == 0
    assert keys(full) == before
    assert set(reads(full).values()) == {"full"}


@pytest.mark.slow
def test_a_sampled_atlas_is_completed_by_a_full_build(sampled, in_full, hub):
    old = keys(sampled)
    assert build(sampled).indexed == 0
    report = build(sampled, read="full")
    assert (report.indexed, report.unchanged) == (len(SAMPLED), 1)
    assert set(reads(sampled).values()) == {"full"}
    assert keys(sampled) == keys(in_full)
    assert on_disk(sampled) == {*keys(sampled).values(), *old.values()}  # readers may still ask for the samples
    indexer.publish_records(atlas=sampled)
    assert on_disk(sampled) == set(keys(sampled).values())  # the samples are gone
    assert not on_disk(sampled) & {old[model] for model in SAMPLED}
    statement = "SELECT model, delta_norm, base_cosine, duplicate_of, copy_evidence FROM models ORDER BY model"
    assert rows(sampled, statement) == rows(in_full, statement)
    assert not indexer.verify(sampled, strict=True)


@pytest.mark.slow
def test_adding_one_model_in_full_completes_it_alone(sampled):
    indexer.add("bob/b", made.BASE, atlas=sampled)
    assert reads(sampled)["bob/b"] == "sample"
    report = indexer.add("bob/b", made.BASE, atlas=sampled, read="full")
    assert report.indexed == 1
    assert {model for model, read in reads(sampled).items() if read == "sample"} == SAMPLED - {"bob/b"}


@pytest.mark.slow
def test_one_after_the_other_is_all_at_once(at_once, tmp_path):
    folder = tmp_path / "atlas"
    for limit in (3, None):
        build(folder, limit=limit)
    statement = "SELECT model, delta_norm, duplicate_of, duplicate_group, copy_evidence, record_key FROM models"
    named = "SELECT m.model, o.model AS other FROM models m LEFT JOIN models o ON o.model_id = m.duplicate_of"
    ordered = f"{statement.replace('duplicate_of, duplicate_group, ', '')} ORDER BY model"
    assert rows(folder, ordered) == rows(at_once, ordered)
    assert rows(folder, f"{named} ORDER BY m.model") == rows(at_once, f"{named} ORDER BY m.model")
    assert not indexer.verify(folder, strict=True)


# ---- index deepen


@pytest.mark.slow
def test_deepened_models_are_as_if_read_in_full(sampled, in_full, hub):
    old = keys(sampled)
    report = indexer.deepen(["ann/a", "ivy/stacked"], atlas=sampled, workers=1)
    assert (report.indexed, report.unchanged) == (2, 0)
    new = keys(sampled)
    for model in FULL + ADAPTERS:
        assert (new[model] != old[model]) == (model in {"ann/a", "ivy/stacked"})
        assert (new[model] == keys(in_full)[model]) == (reads(sampled)[model] == "full")
    assert on_disk(sampled) == {*new.values(), *old.values()}
    indexer.publish_records(atlas=sampled)
    assert on_disk(sampled) == set(new.values())
    groups = {row["model"]: row["duplicate_group"] for row in rows(sampled, "SELECT * FROM models")}
    assert groups["ann/a"] == groups["eve/twin"] == groups["eve/half"] is not None  # a full record and samples
    assert not indexer.verify(sampled, strict=True)
    # Again: nothing is left to read.
    hub.reset_log()
    again = indexer.deepen(["ann/a", "ivy/stacked"], atlas=sampled, workers=1)
    assert (again.indexed, again.unchanged) == (0, 2)
    assert sent(hub) == 0


@pytest.mark.slow
def test_a_base_is_deepened_by_condition_and_number(sampled, hub):
    said = indexer.deepen(base=made.BASE, atlas=sampled, where="model LIKE 'eve/%' OR model = 'hal/lora'", dry_run=True)
    size = KIND_BYTES = 4 * sum(int(np.prod(place.stored)) for place in KIND.places.values())
    assert said.dry_run["models"] == 2
    assert said.dry_run["bytes"] == said.dry_run["full_bytes"] == size + KIND_BYTES // 2
    assert set(reads(sampled).values()) == {"full", "sample"}
    assert sum(read == "sample" for read in reads(sampled).values()) == len(SAMPLED)
    report = indexer.deepen(base=made.BASE, atlas=sampled, where="author = 'eve'", limit=1, workers=1)
    assert report.indexed == 1
    assert sum(read == "sample" for read in reads(sampled).values()) == len(SAMPLED) - 1
    assert indexer.deepen(base=made.BASE, atlas=sampled, workers=1).indexed == len(SAMPLED) - 1
    assert set(reads(sampled).values()) == {"full"}
    assert indexer.deepen(base=made.BASE, atlas=sampled, workers=1).indexed == 0


def test_deepening_can_be_declined(sampled):
    with pytest.raises(AtlasError, match="Nothing was read"):
        indexer.deepen("ann/a", atlas=sampled, workers=1, confirm=lambda estimate: False)
    assert reads(sampled)["ann/a"] == "sample"


@pytest.mark.slow
def test_spectra_can_be_read_with_the_rest(sampled):
    assert indexer.deepen("ann/a", atlas=sampled, spectra=True, workers=1).indexed == 1
    found = {row["model"]: row["has_spectra"] for row in rows(sampled, "SELECT model, has_spectra FROM models")}
    assert [model for model, has in found.items() if has] == ["ann/a"]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"models": "ann/b"}, AtlasError, "ann/b is not indexed"),
        ({"models": "ann/a", "base": "nosuch/base"}, AtlasError, "nosuch/base"),
        ({}, BadArgument, "Name models"),
        ({"models": "ann/a", "where": "true"}, BadArgument, "choose among"),
        ({"models": "ann/a", "limit": 2}, BadArgument, "choose among"),
        ({"base": made.BASE, "where": "model = 'nosuch'"}, AtlasError, "matches this condition"),
        ({"base": made.BASE, "where": "nosuch = 3"}, AtlasError, "nosuch"),
        ({"base": made.BASE, "where": "true); DROP TABLE models; --"}, AtlasError, "."),
    ],
)
def test_a_wrong_choice_has_one_line(sampled, arguments, error, said):
    with pytest.raises(error, match=said):
        indexer.deepen(**arguments, atlas=sampled, workers=1)
    assert len(reads(sampled)) == len(FULL) + len(ADAPTERS)


@pytest.mark.slow
def test_a_local_folder_is_named_again(sampled, tmp_path):
    weights = made.tuned_of(KIND, made.base_weights(KIND), seed=7)
    folder = made.save(tmp_path / "mine", KIND, weights)
    assert indexer.add(folder, made.BASE, atlas=sampled, name="local/mine").indexed == 1
    assert reads(sampled)["local/mine"] == "sample"
    with pytest.raises(AtlasError, match="local/mine is a folder") as refused:
        indexer.deepen("local/mine", atlas=sampled, workers=1)
    assert "read='full'" in str(refused.value.hint)
    assert indexer.add(folder, made.BASE, atlas=sampled, name="local/mine", read="full").indexed == 1
    assert reads(sampled)["local/mine"] == "full"


@pytest.mark.slow
def test_the_rank_is_that_of_the_atlas(hub, tmp_path):
    folder = tmp_path / "atlas"
    build(folder, rank=4, limit=3)
    report = indexer.deepen(base=made.BASE, atlas=folder, workers=1)
    assert report.indexed == sum(model in SAMPLED for model in reads(folder))
    store = RecordStore(AtlasFolder(folder))
    assert {len(store.read(key).deltas[0].s) for key in keys(folder).values()} == {4}
    assert set(reads(folder).values()) == {"full"}


@pytest.mark.slow
def test_what_fails_stays_sampled_and_is_read_the_next_time(sampled, hub):
    hub.faults.add("bob/b[^&]*/.*safetensors", status=404)
    report = indexer.deepen(["ann/a", "bob/b"], atlas=sampled, workers=1)
    assert report.indexed == 1
    assert report.problem
    assert reads(sampled)["bob/b"] == "sample"
    assert not indexer.verify(sampled)
    hub.faults.clear()
    assert indexer.deepen("bob/b", atlas=sampled, workers=1).indexed == 1
    assert reads(sampled)["bob/b"] == "full"


@pytest.mark.slow
def test_an_interrupted_deepening_keeps_what_was_read(sampled, hub):
    """Ctrl-C as the second model begins."""

    def progress(event: Any) -> None:
        if event.kind == "model" and event.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        indexer.deepen(base=made.BASE, atlas=sampled, workers=1, progress=progress)
    left = sum(read == "sample" for read in reads(sampled).values())
    assert left == len(SAMPLED) - 2
    assert not indexer.verify(sampled)
    assert indexer.deepen(base=made.BASE, atlas=sampled, workers=1).indexed == left
    assert set(reads(sampled).values()) == {"full"}


@pytest.mark.slow
def test_a_parent_that_left_the_hub_does_not_cost_what_is_known(sampled, hub, monkeypatch):
    """The sum of a sample and an adapter stays where its parent can no longer be found: it cannot be read again."""
    store, before = RecordStore(AtlasFolder(sampled)), keys(sampled)["ivy/stacked"]
    assert store.read(before).identity.parent.startswith("ann/a@")
    for read in ("sample", "full"):
        with monkeypatch.context() as patch:
            patch.setattr("indexer.builds.build.ask_source", lambda name: None)
            patch.setattr("indexer.listing.parents.Parents.of", nobody)
            build(sampled, read=read)
        assert keys(sampled)["ivy/stacked"] == before, read
        assert (sampled / "records" / before[:2] / f"{before}.safetensors").is_file()


def nobody(parents: Any, listed: Any) -> None:
    """As if nothing were known of what an adapter names."""
    if listed.relation == "adapter":
        parents.unknown[listed.id.lower()] = "ann/a"


# ---- kept and carried


@pytest.mark.slow
def test_records_alone_give_the_same_atlas(sampled, at_once):
    indexer.rebuild(sampled)
    statement = (
        'SELECT model, "read", delta_norm, delta_norm_error, copy_evidence, record_key FROM models ORDER BY model'
    )
    assert rows(sampled, statement) == rows(at_once, statement)
    assert not indexer.verify(sampled, strict=True)


@pytest.mark.slow
def test_a_full_record_wins_where_atlases_are_merged(sampled, in_full, tmp_path):
    for name, order in (("one", (sampled, in_full)), ("other", (in_full, sampled))):
        indexer.merge(list(order), tmp_path / name)
        assert set(reads(tmp_path / name).values()) == {"full"}, name
        assert not indexer.verify(tmp_path / name, strict=True)


def test_altered_lines_of_a_record_are_noticed(sampled):
    key = keys(sampled)["ann/a"]
    path = next((sampled / "records").glob(f"??/{key}.safetensors"))
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'\\"lines\\":64', b'\\"lines\\":63', 1))
    assert path.read_bytes() != raw
    assert indexer.verify(sampled)


@pytest.mark.slow
def test_spectra_are_read_in_full_and_never_of_a_sample(hub, tmp_path):
    folder = tmp_path / "atlas"
    build(folder, spectra=True, limit=2)
    assert set(reads(folder).values()) == {"full"}
    with pytest.raises(BadArgument, match="needs all rows of every matrix"):
        build(folder, spectra=True, read="sample")
    with pytest.raises(BadArgument, match="read"):
        build(folder, read="half")


@pytest.mark.slow
def test_a_sampled_atlas_is_read_again_for_spectra(sampled):
    report = build(sampled, spectra=True)
    assert report.indexed == len(FULL) + len(ADAPTERS)
    assert set(reads(sampled).values()) == {"full"}
    indexer.publish_records(atlas=sampled)
    assert on_disk(sampled) == set(keys(sampled).values())


def test_the_build_says_what_it_read(at_once):
    (row,) = rows(at_once, "SELECT spec FROM builds")
    assert json.loads(row["spec"])["sample"] is True


# ---- representations, and atlases that travel


@pytest.mark.slow
def test_a_representation_that_needs_u_has_the_models_that_were_read_in_full(sampled):
    from query import Atlas

    published = indexer.represent("output", atlas=sampled)["published"]
    assert [one["vectors"] for one in published] == [1]  # the LoRA's
    assert not indexer.verify(sampled, strict=True)
    indexer.deepen(["ann/a", "bob/b", "eve/twin"], atlas=sampled, workers=1)
    with Atlas(sampled) as atlas:
        found = atlas.similar("ann/a", representation="output").neighbours
    assert found[0].model == "eve/twin"
    assert {one.model for one in found} == {"eve/twin", "bob/b", "hal/lora"}
    assert not indexer.verify(sampled, strict=True)


@pytest.mark.slow
def test_a_model_that_is_not_indexed_is_read_as_far_as_the_question_needs(full, tmp_path, hub):
    from query import Atlas

    indexer.represent("output", atlas=full)
    weights = made.tuned_of(KIND, made.base_weights(KIND), seed=2)
    folder = made.save(tmp_path / "mine", KIND, weights)
    with Atlas(full) as atlas:
        for representation in ("input", "output"):
            found = atlas.similar(folder, representation=representation)
            assert {one.model for one in found[:3]} == {"ann/a", "eve/twin", "eve/half"}, representation


@pytest.mark.slow
def test_samples_are_pushed_and_pulled(sampled, tmp_path, monkeypatch):
    from tests.share.conftest import NAME, person

    before = rows(sampled, "SELECT * FROM models ORDER BY model")
    with person(tmp_path, monkeypatch) as ann:
        ann.push(AtlasFolder(sampled), with_records=True)
        indexer.pull(NAME, tmp_path / "pulled", with_records=True)
    assert rows(tmp_path / "pulled", "SELECT * FROM models ORDER BY model") == before
    assert not indexer.verify(tmp_path / "pulled")
