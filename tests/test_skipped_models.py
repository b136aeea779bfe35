"""One odd model must not stop a publish: what does not fit is skipped, not published, by name and reason."""

from __future__ import annotations

import json
import math
import string
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import duckdb
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from indexer.atlas import AtlasFolder, schema_sql
from indexer.database.reading import Reading
from indexer.database.validation import MOST_CHARACTERS, MOST_ITEMS, InvalidValue, check_rows, plain_json, valid_rows
from indexer.deltas.stored_base import stored_bases
from indexer.listing.listing import ListedModel, Listing
from indexer.publish.publish import publish
from indexer.publish.rows import Entry, Publication, record_rows, valid_listing_rows
from indexer.publish.tables import Tables
from indexer.records.record import write_record
from indexer.records.representations.registry import REPRESENTATIONS
from indexer.records.store import FailureRecord, RecordStore
from indexer.sources.cards.modelcard import head_facts
from indexer.upkeep.maintenance import represent, status
from tests.halves import a_few
from tests.tiny_hub import BASE, DATASETS, describe, served_shell


def entries_of(folder: AtlasFolder) -> list[Entry]:
    listed = {one.id: one for one in Listing(folder.listing(BASE)).models()}
    with Reading(folder.database) as connection:
        rows = connection.rows('SELECT model, "commit", record_key FROM fine_tunes ORDER BY model')
    return [Entry(listed[row["model"]], BASE, row["commit"], row["record_key"]) for row in rows]


def publish_all(folder: AtlasFolder, entries: list[Entry], **options: Any) -> str:
    said: list[str] = []
    publish(folder, [Publication(stored_bases(folder)[0], (), entries, 8)], say=said.append, **options)
    return "\n".join(said)


def lora(root, identifier: str, size: float = 1.0, **config: Any) -> None:
    """A LoRA of one matrix of the base."""
    (root / identifier).mkdir(parents=True)
    module = "base_model.model.roberta.encoder.layer.0.attention.self.query"
    factors = {f"{module}.lora_A.weight": torch.ones(4, 48), f"{module}.lora_B.weight": size * torch.ones(48, 4)}
    save_file(factors, root / identifier / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": BASE, **config}
    (root / identifier / "adapter_config.json").write_text(json.dumps(said))
    describe(root, identifier, tags=["peft", f"base_model:{BASE}", f"base_model:adapter:{BASE}"])


@pytest.fixture(scope="module")
def hostile(tiny_store, tmp_path_factory):
    """What a build makes of three honest models and some whose numbers are out of range."""
    folder = tmp_path_factory.mktemp("hostile")
    root = tiny_store(1, folder / "store")
    lora(root, "eve/large", lora_alpha=9e29)
    lora(root, "eve/too-large", lora_alpha=9e29, size=1e10)
    lora(root, "eve/tiny", lora_alpha=1e-45)
    config_path = root / "ann/glue-0" / "config.json"
    config = json.loads(config_path.read_text())
    for name in ("id2label", "label2id"):
        config.pop(name, None)
    config_path.write_text(json.dumps({**config, "num_labels": 3_000_000_000}))
    with served_shell(root) as shell:
        yield shell, shell("index", "build", "--base", BASE, "--workers", "1", "--spectra", "--json")


def test_a_build_goes_on_past_numbers_that_no_column_holds(hostile):
    shell, ran = hostile
    assert ran.code == 0, ran.err
    with Reading(AtlasFolder(shell.folder / "atlas").database) as connection:
        found = {row["model"]: row for row in connection.rows("SELECT model, status, reason, detail FROM fine_tunes")}
        counts = {row["id"]: row["label_count"] for row in connection.rows("SELECT id, label_count FROM models")}
        norms = connection.rows("SELECT norm FROM deltas WHERE norm > 1e30")
    assert found["ann/glue-0"]["status"] == "indexed"
    assert counts["ann/glue-0"] is None
    assert (found["eve/too-large"]["status"], found["eve/too-large"]["reason"]) == ("skipped", "not_finite")
    assert "0.query" in found["eve/too-large"]["detail"]
    assert {found[name]["status"] for name in ("eve/large", "eve/tiny")} == {"indexed"}
    assert len(norms) == 1  # 9e29 · 48 is still a float32
    assert set(counts) >= {f"ann/{dataset}-0" for dataset in DATASETS}


@pytest.mark.parametrize(
    "command", a_few([["rebuild"], ["build", "--base", BASE, "--workers", "1", "--spectra"], ["publish"]], 1)
)
def test_so_do_all_that_publish(hostile, command):
    shell, _ = hostile
    ran = shell("index", *command)
    assert ran.code == 0, ran.err


def spoilt(record, what: str):
    first, *rest = record.deltas
    head = dict(record.head)
    if what == "norm":
        return replace(record, deltas=(replace(first, norm=1e39), *rest))
    if what == "relative":
        return replace(record, deltas=(replace(first, norm=1e30, base_norm=1e-30), *rest))
    if what == "enormous":
        return replace(record, deltas=(replace(first, norm=1e200), *rest))
    if what == "fewer":
        return replace(record, deltas=tuple(rest))
    if what == "sigma":
        return replace(record, deltas=(replace(first, s=first.s * np.float32(np.inf)), *rest))
    if what == "vector":
        return replace(
            record,
            vectors={
                REPRESENTATIONS["input"].tag: np.full(
                    len(record.vectors[REPRESENTATIONS["input"].tag]), np.nan, np.float32
                )
            },
        )
    if what == "length":
        return replace(record, vectors={REPRESENTATIONS["input"].tag: np.ones(7, np.float32)})
    if what == "bytes":
        return replace(record, bytes_read=2**63)
    if what == "files":
        return replace(record, files=(replace(record.files[0], size=2**70),))
    if what == "head":
        return replace(record, head={**head, "model_type": ["a", {"b": 1}]})
    if what == "labels":
        return replace(record, head={**head, "label_names": ["x"] * (MOST_ITEMS + 1)})
    if what == "text":
        return replace(record, dtype="x" * (MOST_CHARACTERS + 1))
    if what == "surrogate":
        return replace(record, dtype="\ud800")
    if what == "zero byte":
        return replace(record, dtype="a\0b")
    if what == "no object":
        return replace(record, head=[1, 2])
    raise ValueError(what)


SPOILT = (
    "norm", "relative", "enormous", "fewer", "sigma", "vector", "length", "bytes", "files", "head", "labels", "text",
    "surrogate", "zero byte", "no object",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kinds", a_few([SPOILT[n : n + 3] for n in range(0, 15, 3)], 1), ids=" ".join)
def test_records_that_do_not_fit_are_set_aside_by_name(atlas, kinds):
    """Records of somebody else's making: nobody looked at them when they were written."""
    store, entries = RecordStore(atlas), entries_of(atlas)
    victims = dict(zip(kinds, entries[1:], strict=False))
    for what, victim in victims.items():
        write_record(spoilt(store.read(victim.record_key), what), atlas.record(victim.record_key))
    said = publish_all(atlas, entries, from_scratch=True)
    names = {what: victim.listed.id for what, victim in victims.items()}
    assert {what: name in said for what, name in names.items()} == dict.fromkeys(kinds, True)
    assert said.count("skipped, not published") == 1  # one sentence for all
    with Reading(atlas.database) as connection:
        indexed = {row["id"] for row in connection.rows("SELECT id FROM models")}
        vectors = connection.rows("SELECT vectors FROM representations")[0]["vectors"]
        set_aside = connection.rows("SELECT model, reason, detail FROM fine_tunes WHERE status <> 'indexed'")
    assert indexed == {entry.listed.id for entry in entries} - set(names.values())
    assert vectors == len(indexed)
    assert {row["model"]: row["reason"] for row in set_aside} == dict.fromkeys(names.values(), "does_not_fit")
    assert all(row["detail"] for row in set_aside)
    (failure,) = status(atlas)["failures"]
    assert failure["reason"] == "does_not_fit"
    assert failure["example_model"] in names.values()
    assert failure["example"]
    assert "skipped, not published" not in publish_all(atlas, entries)  # once; the row says it from now on


def test_a_damaged_record_is_set_aside_too(atlas):
    entries = entries_of(atlas)
    path = atlas.record(entries[2].record_key)
    path.write_bytes(path.read_bytes()[:-40])
    said = publish_all(atlas, entries, from_scratch=True)
    assert entries[2].listed.id in said
    assert "index rebuild" in said


def test_another_representation_is_published_without_it(atlas):
    entries = entries_of(atlas)
    path = atlas.record(entries[2].record_key)
    path.write_bytes(path.read_bytes()[:-40])
    said: list[str] = []
    (row,) = represent(atlas, "output", say=said.append)["published"]
    assert row["vectors"] == len(entries) - 1
    assert entries[2].listed.id in " ".join(said)


def test_a_count_of_labels_in_an_older_record_is_forgotten_and_nothing_else(atlas):
    store, entries = RecordStore(atlas), entries_of(atlas)
    record = store.read(entries[0].record_key)
    write_record(replace(record, head={**record.head, "label_count": 3 * 10**9}), atlas.record(entries[0].record_key))
    assert "skipped, not published" not in publish_all(atlas, entries, from_scratch=True)
    with Reading(atlas.database) as connection:
        (row,) = connection.rows("SELECT label_count FROM models WHERE id = ?", (entries[0].listed.id,))
    assert row["label_count"] is None


def test_a_listed_row_whose_name_does_not_fit_is_a_bad_row(atlas):
    entries = entries_of(atlas)
    odd = replace(entries[1], listed=replace(entries[1].listed, relation="fine\0tune"))
    said = publish_all(atlas, [entries[0], odd, *entries[2:]], from_scratch=True)
    assert odd.listed.id in said
    with Reading(atlas.database) as connection:
        assert odd.listed.id in connection.rows("SELECT raw FROM rejected_listing_rows")[0]["raw"]
        assert connection.rows("SELECT count(*) AS n FROM models")[0]["n"] == len(entries) - 1


def test_a_base_whose_config_is_not_json_is_published(atlas):
    entries = entries_of(atlas)
    base = stored_bases(atlas)[0]
    base.__dict__["config"] = {**base.config, "odd": [math.nan, math.inf, "\ud800", {"\udc00": 1}]}
    publish(atlas, [Publication(base, (), entries, 8)])
    with Reading(atlas.database) as connection:
        (row,) = connection.rows("SELECT config->'odd' AS odd FROM bases")
    assert json.loads(row["odd"]) == [None, None, "\ufffd", {"\ufffd": 1}]


def test_limits_are_those_of_the_schema():
    good = {"model_id": 2**31 - 1, "tag": "ü"}
    check_rows("tags", [good])
    for odd in (
        {"model_id": 2**31}, {"model_id": -(2**31) - 1}, {"model_id": True}, {"model_id": None}, {"model_id": 1.0},
        {"tag": None}, {"tag": "\ud800"}, {"tag": "\0"}, {"tag": 1}, {"tag": "x" * (MOST_CHARACTERS + 1)},
    ):  # fmt: skip
        with pytest.raises(InvalidValue):
            check_rows("tags", [good, {**good, **odd}])
        assert valid_rows("tags", [good, {**good, **odd}]) == [good]
    for odd in (math.nan, math.inf, 10**400, "1", 2**53 + 1, [1.0]):
        with pytest.raises(InvalidValue):
            check_rows("evaluations", [{"value": odd}])
    check_rows("evaluations", [{"value": None}, {"value": 1}, {"value": -1e308}])


# What JSON can hold, and Python's idea of it.
PIECES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**80), 2**80), st.just(10**4000), st.floats(),
    st.text(max_size=20), st.text(st.characters(), max_size=10), st.just("\ud800"), st.just("a\0b"),
    st.just("x" * 3_000), st.datetimes().map(lambda one: one.isoformat()),
    st.sampled_from(["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "no", "NaN", "1e999", "9" * 400]),
)  # fmt: skip
VALUES = st.recursive(
    PIECES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(string.ascii_letters, max_size=8), st.text(max_size=4)), inner, max_size=4),
    ),
    max_leaves=8,
).map(lambda value: [value] * 300 if isinstance(value, str) and len(value) == 3 else value)
CARD_KEYS = ("datasets", "license", "language", "model-index", "base_model", "pipeline_tag", "tags", "library_name")
ROW_KEYS = (
    "sha", "createdAt", "lastModified", "downloads", "likes", "gated", "private", "disabled", "tags", "config",
    "siblings", "pipeline_tag", "library_name", "author", "cardData", "safetensors", "model-index",
)  # fmt: skip
METRIC = st.fixed_dictionaries({"type": VALUES, "value": VALUES, "verified": VALUES})
RESULT = st.fixed_dictionaries({"task": VALUES, "dataset": VALUES, "metrics": st.lists(METRIC, max_size=2)})
CARDS = st.one_of(
    st.dictionaries(st.sampled_from(CARD_KEYS), VALUES, max_size=6),
    st.fixed_dictionaries({"model-index": st.lists(st.fixed_dictionaries({"results": st.lists(RESULT, max_size=2)}))}),
)
ROWS = st.tuples(st.dictionaries(st.sampled_from(ROW_KEYS), VALUES, max_size=8), CARDS).map(
    lambda pair: {**pair[0], "cardData": pair[1]}
)
CONFIG_KEYS = ("architectures", "num_labels", "_num_labels", "id2label", "label2id", "problem_type", "model_type")
CONFIGS = st.dictionaries(st.sampled_from(CONFIG_KEYS), VALUES, max_size=7)
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def tables():
    connection = duckdb.connect(":memory:")
    connection.execute(schema_sql())
    return Tables(connection)


def through_json(value: Any) -> Any:
    """As it comes from the Hub: what JSON cannot spell does not arrive."""
    return json.loads(json.dumps(value))


@pytest.mark.slow
@given(ROWS, VALUES, VALUES, VALUES)
@SLOW
def test_any_row_of_a_listing_can_be_published(tables, row, reason, detail, parent):
    now = datetime.now(UTC)
    row = {**through_json(row), "id": "eve/hostile"}
    listed = ListedModel("eve/hostile", row, "finetune", "tag", str(parent)[:100], now, now)
    when = "2024-01-01T00:00:00+00:00"
    outcome = FailureRecord(None, "skipped", str(reason)[:100], str(detail)[:100], 1, when, 1)  # type: ignore[arg-type]
    try:
        rows = valid_listing_rows(1, Entry(listed, BASE, "c" * 40, outcome=outcome))
    except InvalidValue:
        return
    for table, found in rows.items():
        tables.insert(table, found)


@pytest.mark.slow
@given(CONFIGS, st.dictionaries(st.sampled_from(["label_count", "label_names", "model_type", "problem_type"]), VALUES))
@SLOW
def test_any_head_can_be_published_or_is_a_misfit(tables, made_record, config, head):
    folder, record, base = made_record
    honest = asdict(head_facts(through_json(config)))
    for said, may_misfit in ((honest, False), ({**honest, **through_json(head)}, True)):
        write_record(replace(record, head=json.loads(json.dumps(plain_json(said)))), folder.record("ab" * 32))
        try:
            found, _ = record_rows(1, "ab" * 32, base, RecordStore(folder), [REPRESENTATIONS["input"]])
        except InvalidValue:
            assert may_misfit
            continue
        for table, rows in found.items():
            tables.insert(table, rows)


@pytest.fixture(scope="module")
def made_record(made):
    folder = AtlasFolder(made)
    store = RecordStore(folder)
    record = store.read(next(iter(store.digests())))
    return AtlasFolder(made.parent / "fuzzed"), record, stored_bases(folder)[0]


@pytest.mark.slow
@given(st.lists(st.tuples(ROWS, CONFIGS), min_size=9, max_size=9))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_publish_of_hostile_models_ends_well(made, tmp_path_factory, hostile_models):
    import shutil

    folder = AtlasFolder(tmp_path_factory.mktemp("fuzz") / "atlas")
    shutil.copytree(made, folder.root)
    store, entries = RecordStore(folder), entries_of(folder)
    for number, (row, config) in enumerate(hostile_models):
        entry, record = entries[number], store.read(entries[number].record_key)
        said = json.loads(json.dumps(plain_json(asdict(head_facts(through_json(config))))))
        write_record(replace(record, head=said), folder.record(entry.record_key))
        listed = replace(entry.listed, row={**through_json(row), "id": entry.listed.id})
        entries[number] = replace(entry, listed=listed)
    publish_all(folder, entries, from_scratch=True)
    assert status(folder)["bases"][0]["listed"] == len(entries)
