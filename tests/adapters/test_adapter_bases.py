"""What adapters stand on: the sums against formed matrices, and who counts in an atlas."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from indexer.atlas import AtlasFolder
from indexer.builds.plan import plan
from indexer.listing.listing import ListedModel, Listing
from indexer.listing.parents import DEEPEST, Parents
from indexer.records.identity import Identity, ModelVersion, Spec, Unit
from indexer.records.record import Record, read_record
from indexer.records.store import RecordStore
from indexer.sources.registry import ModelRef
from scripts.loopback_hub import LoopbackHub
from tests.database import read_rows
from tests.tiny_hub import BASE, OLD_ID, SIZES, add_model, describe, served_shell

pytestmark = pytest.mark.slow

WIDTH, LAYERS = SIZES["hidden_size"], SIZES["num_hidden_layers"]
TARGETS = ("query", "value")


def module(layer: int, target: str) -> str:
    return f"base_model.model.roberta.encoder.layer.{layer}.attention.self.{target}"


def add_adapter(store, name: str, stated_base: str | None, *, tagged: str = BASE, rank: int = 4, seed: int = 0) -> dict:
    """A LoRA adapter that its card says is ``tagged``'s; its change of each targeted matrix."""
    generator = torch.Generator().manual_seed(seed)
    tensors, changes = {}, {}
    for layer in range(LAYERS):
        for target in TARGETS:
            a, b = (
                0.1 * torch.randn(rank, WIDTH, generator=generator),
                0.1 * torch.randn(WIDTH, rank, generator=generator),
            )
            tensors[f"{module(layer, target)}.lora_A.weight"] = a
            tensors[f"{module(layer, target)}.lora_B.weight"] = b
            changes[f"{layer}.{target}"] = 2.0 * b.double() @ a.double()
    folder = store / name
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "base_model_name_or_path": stated_base}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tags = ["peft", f"base_model:{tagged}", f"base_model:adapter:{tagged}", "dataset:glue"]
    describe(store, name, tags=tags, card_data={"base_model": tagged, "datasets": ["glue"]}, library_name="peft")
    return changes


def full_change(store, name: str) -> dict[str, torch.Tensor]:
    tuned, base = (load_file(store / model / "model.safetensors") for model in (name, BASE))
    changes = {}
    for tensor, weights in base.items():
        parts = tensor.split(".")
        if "layer" in parts and tensor.endswith("weight") and weights.ndim == 2:
            family = {
                "query": "query", "key": "key", "value": "value", "intermediate": "feedforward1",
            }.get(parts[-2] if parts[-2] != "dense" else parts[-3])  # fmt: skip
            if family:
                changes[f"{parts[2]}.{family}"] = (tuned[f"roberta.{tensor}"] - weights).double()
    return changes


@pytest.fixture(scope="module")
def adapters_on_all(tiny_store, tmp_path_factory):
    """An atlas with adapters on everything that adapters are found on."""
    store = tiny_store(4, tmp_path_factory.mktemp("adapters") / "store")
    torch.manual_seed(7)
    add_model(
        store,
        "far/other-base",
        transformers.RobertaModel(transformers.RobertaConfig(**SIZES)),
        dataset=None,
        base="far/itself",
    )
    add_model(
        store,
        "far/wide-base",
        transformers.RobertaModel(transformers.RobertaConfig(**{**SIZES, "hidden_size": 64})),
        dataset=None,
        base="x/y",
    )
    untagged = transformers.RobertaForSequenceClassification.from_pretrained(store / "bob/imdb-1")
    untagged.save_pretrained(store / "dan/undocumented")
    describe(store, "dan/undocumented", tags=[])
    describe(store, "dan/locked", tags=[], gated="manual")
    changes = {
        name: add_adapter(store, name, stated_base, seed=number, **settings)
        for number, (name, stated_base, settings) in enumerate((
            ("eve/on-base", BASE, {}),
            ("eve/on-old-id", OLD_ID, {}),
            ("eve/on-local-base", "/home/eve/models/tiny-base", {}),
            ("eve/on-nothing", None, {}),
            ("eve/on-folder", "./output", {}),
            ("eve/on-unknown", "nobody/knows-this", {}),
            ("eve/on-locked", "dan/locked", {}),
            ("eve/on-tuned", "ann/glue-0", {}),
            ("eve/on-undocumented", "dan/undocumented", {}),
            ("eve/on-adapter", "eve/on-base", {"rank": 2}),
            ("eve/on-adapter-on-tuned", "eve/on-tuned", {"rank": 2}),
            ("eve/on-other", "far/other-base", {}),
            ("eve/on-wide", "far/wide-base", {}),
            ("eve/round-1", "eve/round-2", {}),
            ("eve/round-2", "eve/round-1", {}),
            ("eve/on-itself", "eve/on-itself", {}),
        ))
    }  # fmt: skip
    for number in range(DEEPEST + 3):
        add_adapter(
            store, f"gil/step-{number}", f"gil/step-{number + 1}" if number < DEEPEST + 2 else BASE, seed=100 + number
        )
    path = store / "eve" / "on-old-id" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"revision": "../../x"}))
    with served_shell(store) as shell:
        build = shell("index", "build", "--base", BASE)
        assert build.code == 0, build.err
        yield store, shell, changes, build


def records(shell) -> dict[str, Record]:
    atlas = AtlasFolder(shell.folder / "atlas")
    rows = read_rows(atlas.database, "SELECT model, record_key FROM models")
    return {model: read_record(atlas.record(key)) for model, key in rows}


def verdicts(shell) -> dict[str, str]:
    rows = read_rows(
        shell.folder / "atlas" / "atlas.duckdb", "SELECT model, verdict FROM adapter_bases JOIN models USING (model_id)"
    )
    return dict(rows)


def check(record: Record, expected: dict[str, torch.Tensor]) -> None:
    """Norms and the leading eight triplets against NumPy's of the formed sum."""
    for delta in record.deltas:
        if str(delta.key) not in expected:
            continue
        exact = expected[str(delta.key)].numpy()
        assert delta.norm == pytest.approx(np.linalg.norm(exact), rel=1e-4)
        values = np.linalg.svd(exact, compute_uv=False)[:8]
        np.testing.assert_allclose(delta.s, values, atol=1e-4 * values[0])
        formed = (delta.u.astype(float) * delta.s) @ delta.v.astype(float).T
        residual = np.sqrt(max(np.linalg.norm(exact) ** 2 - np.square(values).sum(), 0.0))
        assert np.linalg.norm(exact - formed) == pytest.approx(residual, abs=2e-3 * np.linalg.norm(exact))


@pytest.mark.parametrize(("name", "tuned"), [("on-tuned", "ann/glue-0"), ("on-undocumented", "dan/undocumented")])
def test_on_a_fine_tune_the_changes_are_added(adapters_on_all, name, tuned):
    store, shell, changes, _ = adapters_on_all
    parent_change = full_change(store, tuned)
    record = records(shell)[f"eve/{name}"]
    check(record, {key: change + changes[f"eve/{name}"].get(key, 0) for key, change in parent_change.items()})
    assert record.adapter_base.verdict == "finetune"
    assert record.identity.parent.startswith(f"{tuned}@")
    assert record.is_adapter
    assert all(delta.norm > 0 for delta in record.deltas)


def test_on_an_adapter_factors_are_joined_and_chains_are_followed_to_their_end(adapters_on_all):
    store, shell, changes, _ = adapters_on_all
    records_by_model = records(shell)
    own = changes["eve/on-adapter"]
    check(records_by_model["eve/on-adapter"], {key: own[key] + changes["eve/on-base"][key] for key in own})
    assert sum(delta.norm > 0 for delta in records_by_model["eve/on-adapter"].deltas) == len(own)
    bottom, middle, top = full_change(store, "ann/glue-0"), changes["eve/on-tuned"], changes["eve/on-adapter-on-tuned"]
    summed = {key: change + middle.get(key, 0) + top.get(key, 0) for key, change in bottom.items()}
    check(records_by_model["eve/on-adapter-on-tuned"], summed)
    assert records_by_model["eve/on-adapter-on-tuned"].identity.parent.count(">") == 1


def test_verdicts_and_what_a_person_is_reported(adapters_on_all):
    _, shell, changes, build = adapters_on_all
    verdict_of = verdicts(shell)
    assert {name.removeprefix("eve/on-"): verdict for name, verdict in verdict_of.items() if "/on-" in name} == {
        "base": "base", "old-id": "base", "local-base": "base", "itself": "base",
        "folder": "unknown", "unknown": "unknown", "locked": "unknown",
        "tuned": "finetune", "undocumented": "finetune", "adapter": "finetune", "adapter-on-tuned": "finetune",
        "other": "foreign", "wide": "foreign",
    }  # fmt: skip
    assert verdict_of["eve/round-1"] == verdict_of["eve/round-2"] == "unknown"
    assert "adapters whose base could not be resolved, treated as adapters of org/tiny-base: " in build.err
    # What is odd about the names is noted, and a chain that is too deep is refused.
    odd = dict(read_rows(shell.folder / "atlas" / "atlas.duckdb", "SELECT model, oddities FROM fine_tunes"))
    assert odd["eve/on-itself"] == [
        "base_model: it names itself as its base, so it is treated as an adapter of org/tiny-base"
    ]
    assert "its bases lead back to eve/round-1: eve/round-1 > eve/round-2 > eve/round-1" in odd["eve/round-1"][0]
    assert "it names the revision '../../x' of its base, which cannot be one; " in odd["eve/on-old-id"][0]
    assert odd["eve/on-base"] == []
    assert (
        "adapters that name themselves as their base, treated as adapters of org/tiny-base: 1 (eve/on-itself)"
        in build.err
    )
    deep = dict(
        read_rows(
            shell.folder / "atlas" / "atlas.duckdb", "SELECT model, reason FROM fine_tunes WHERE model LIKE 'gil/%'"
        )
    )
    assert [deep[f"gil/step-{number}"] for number in range(DEEPEST + 3)] == ["adapter_chain"] * 2 + [None] * (
        DEEPEST + 1
    )
    plain = records(shell)
    for name in ("eve/on-folder", "eve/on-unknown", "eve/on-locked", "eve/on-nothing", "eve/round-1", "eve/on-other"):
        check(plain[name], changes[name])


def test_an_adapter_of_another_base_is_a_suspicious_claim_and_counts_nowhere(adapters_on_all):
    _, shell, _, _ = adapters_on_all
    rows = shell("query", "sql", "SELECT model, names_base, why FROM suspicious_claims ORDER BY model", "--json").json
    assert [(row["model"], row["names_base"]) for row in rows] == [
        ("eve/on-other", "far/other-base"), ("eve/on-wide", "far/wide-base"),
    ]  # fmt: skip
    assert all(row["why"] for row in rows)
    purity = shell("query", "purity", "--base", BASE, "--json").json
    indexed = shell(
        "query", "sql", "SELECT count(*) AS n FROM models WHERE len(datasets) > 0 AND NOT is_unrelated", "--json"
    )
    assert purity["models"] == indexed.json[0]["n"]
    prediction = shell("query", "predict", "eve/on-other")
    assert prediction.code == 1
    assert "adapter of another base" in prediction.err
    similar = shell("query", "similar", "ann/glue-0", "-k", "20", "--json")
    assert similar.code == 0


def test_lineage_of_an_adapter_on_a_fine_tune_is_what_its_file_says_and_is_never_contradicted(adapters_on_all):
    _, shell, _, _ = adapters_on_all

    def lineage(name):
        (row,) = shell("query", "lineage", f"eve/{name}", "--json").json
        return row

    row = lineage("on-tuned")
    assert (row["parent"], row["kind"], row["direction"]) == ("ann/glue-0", "continued", "known")
    assert row["evidence"].startswith("by its adapter_config.json")
    assert row["card"] == "not declared"  # its card names the base
    assert 0 < row["residual"] < 1
    assert lineage("on-adapter")["parent"] == "eve/on-base"
    assert lineage("on-adapter-on-tuned")["parent"] == "eve/on-tuned"
    assert lineage("on-locked")["parent"] == "dan/locked"
    for name in ("on-base", "on-old-id", "on-local-base", "on-folder", "on-nothing"):
        assert (lineage(name)["parent"], lineage(name)["card"]) == (BASE, "confirmed"), name
    rows = shell("query", "lineage", "--all", "--json").json
    assert {row["card"] for row in rows if row["model"].startswith("eve/") and row["verdict"] != "unrelated"} <= {
        "confirmed", "not declared", "unsure",
    }  # fmt: skip
    # Answers are stored now; a parent that the atlas does not contain has no row there.
    assert lineage("on-tuned")["parent"] == "ann/glue-0"
    assert lineage("on-locked")["parent"] == "dan/locked"


def test_a_model_into_which_an_adapter_on_a_fine_tune_was_merged_is_made_from_that_adapter(adapters_on_all, tmp_path):
    """The sum of both changes is compared, as a build indexes it."""
    store, shell, changes, _ = adapters_on_all
    weights = load_file(store / "ann/glue-0" / "model.safetensors")
    for key, change in changes["eve/on-tuned"].items():
        layer, target = key.split(".")
        name = f"roberta.encoder.layer.{layer}.attention.self.{target}.weight"
        weights[name] = (weights[name].double() + change).float()
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((store / "ann/glue-0" / "config.json").read_text())
    (row,) = shell("query", "lineage", str(tmp_path), "--base", BASE, "--json").json
    assert (row["parent"], row["kind"], row["coefficient"]) == ("eve/on-tuned", "LoRA merged", 1.0)
    assert row["residual"] < 1e-6


def test_the_next_build_reads_nothing_again_until_a_parent_changes(adapters_on_all):
    store, shell, _, _ = adapters_on_all
    command = shell("index", "build", "--base", BASE, "--workers", "1", "--json")
    assert (command.json["indexed"], command.json["failed"]) == (0, 0)
    before = records(shell)["eve/on-tuned"].identity
    command = shell("index", "publish", "--json")
    assert records(shell)["eve/on-tuned"].identity == before
    weights = load_file(store / "ann/glue-0" / "model.safetensors")
    changed = {name: 1.01 * tensor if "layer.0" in name else tensor for name, tensor in weights.items()}
    save_file(changed, store / "ann/glue-0" / "model.safetensors", metadata={"format": "pt"})
    command = shell("index", "build", "--base", BASE, "--workers", "1", "--json")
    assert command.json["indexed"] == 3  # the fine-tune and the two adapters that stand on it
    after = records(shell)["eve/on-tuned"].identity
    assert after.parent != before.parent
    assert (after.commit, after.model) == (before.commit, before.model)


def test_where_only_the_record_of_the_fine_tune_is_left_its_factors_are_added(adapters_on_all):
    store, shell, changes, _ = adapters_on_all
    parent = records(shell)["bob/squad-1"]
    changes["eve/late"] = add_adapter(store, "eve/late", "bob/squad-1", seed=99)
    (store / "bob/squad-1" / "model.safetensors").rename(store / "bob-squad-1.kept")
    describe(store, "bob/squad-1", tags=["transformers", f"base_model:finetune:{BASE}"], sha=parent.identity.commit)
    shell("index", "build", "--base", BASE, "--workers", "1")
    record = records(shell)["eve/late"]
    assert record.adapter_base.verdict == "finetune"
    assert record.adapter_base.why.startswith("approximate")
    for delta, parent_delta in zip(record.deltas, parent.deltas, strict=True):
        formed = (parent_delta.u.astype(float) * parent_delta.s) @ parent_delta.v.astype(float).T
        exact = formed + changes["eve/late"].get(str(delta.key), torch.zeros(delta.shape)).numpy()
        residual = parent_delta.norm**2 - np.linalg.norm(parent_delta.s) ** 2
        np.testing.assert_allclose(delta.s, np.linalg.svd(exact, compute_uv=False)[:8], rtol=2e-3)
        assert delta.norm == pytest.approx(np.sqrt(np.linalg.norm(exact) ** 2 + max(residual, 0)), rel=2e-3)


ROWS_OF_EARLIER = {  # what the listing's row says, what the file says, and what comes of it
    "fay/on-tuned": (BASE, "ann/glue-0", "finetune"),
    "fay/on-base": ("ann/glue-0", BASE, "base"),
    "fay/on-other": (BASE, "far/other-base", "foreign"),
    "fay/on-unknown": (BASE, "nobody/knows-this", "unknown"),
    "fay/on-old-id": (BASE, OLD_ID, "base"),
}


def test_a_row_that_is_older_than_the_file_does_not_decide(adapters_on_all):
    """Of a commit the row may say what an earlier one said; what is odd is kept, and nothing is read twice for it."""
    store, shell, changes, _ = adapters_on_all
    with LoopbackHub(store) as hub:
        for number, (name, (row_base, file_base, _)) in enumerate(ROWS_OF_EARLIER.items()):
            changes[name] = add_adapter(store, name, file_base, seed=200 + number)
            row = {
                "id": name,
                "sha": hub.store.repository(name).revision().sha,
                "library_name": "peft",
                "tags": ["peft", f"base_model:adapter:{BASE}"],
                "siblings": [{"rfilename": "adapter_config.json"}, {"rfilename": "adapter_model.safetensors"}],
                "config": {"peft": {"base_model_name_or_path": row_base}},
            }
            settings = json.loads((store / f"{name}.repo.json").read_text())
            describe(store, name, **{**settings, "tags": []})  # else the current row is listed as well
            Listing(AtlasFolder(shell.folder / "atlas").listing(BASE)).add(row, "adapter", BASE)
        for _ in range(2):
            build = shell("index", "build", "--base", BASE, "--workers", "1", "--json", HF_ENDPOINT=hub.endpoint)
            assert build.code == 0, build.err
    assert build.json["indexed"] == 0
    records_by_model, stored = records(shell), verdicts(shell)
    assert {name: stored[name] for name in ROWS_OF_EARLIER} == {
        name: verdict for name, (*_, verdict) in ROWS_OF_EARLIER.items()
    }
    for name in ("fay/on-base", "fay/on-other", "fay/on-unknown", "fay/on-old-id"):
        check(records_by_model[name], changes[name])
    own = changes["fay/on-tuned"]
    summed = {key: change + own.get(key, 0) for key, change in full_change(store, "ann/glue-0").items()}
    check(records_by_model["fay/on-tuned"], summed)
    odd = shell("query", "sql", "SELECT model, oddities FROM fine_tunes WHERE model LIKE 'fay/%' ORDER BY 1", "--json")
    for row in odd.json:
        row_base, _, _ = ROWS_OF_EARLIER[row["model"]]
        is_odd = any(text.startswith(f"base_model: its listing row names {row_base}, ") for text in row["oddities"])
        assert is_odd == (row["model"] != "fay/on-old-id"), row


# What follows asks no Hub.


def row(name: str, stated_base: str | None = None, commit: str = "c" * 40, **more) -> dict:
    files = [{"rfilename": "adapter_config.json"}] if stated_base else [{"rfilename": "model.safetensors"}]
    config = {"peft": {"base_model_name_or_path": stated_base}} if stated_base else {}
    return {"id": name, "sha": commit, "siblings": files, "config": config, **more}


def listed(*rows: dict) -> list[ListedModel]:
    now = datetime.now(UTC)
    return [
        ListedModel(row["id"], row, "adapter" if row["config"] else "finetune", "tag", BASE, now, now) for row in rows
    ]


def test_a_chain_of_any_length_ends():
    chain = [row(f"a/step-{number}", f"a/step-{number + 1}") for number in range(DEEPEST + 3)]
    models = listed(*chain, row(f"a/step-{DEEPEST + 3}"))
    parents = Parents((BASE,), models, None)
    for _ in range(2):  # asking again does not turn it into an adapter of the base
        assert parents.of(models[0]) is None
        assert "a/step-0" in parents.unknown
    parent = parents.of(models[-3])
    assert parent.name == f"a/step-{DEEPEST + 2}@{'c' * 40}>a/step-{DEEPEST + 3}@{'c' * 40}"


def test_ids_of_old_and_copies_are_the_base_wherever_they_are_named():
    questions = []
    hub = {
        "bert-old": row("google/bert-old"), "old-tiny": row(BASE), "x/gguf": row("x/gguf", tags=[f"base_model:quantized:{BASE}"]),
    }  # fmt: skip

    def ask(name):
        questions.append(name)
        return hub.get(name)

    for stated_base, expected in (
        ("old-tiny", None), ("x/gguf", None), ("bert-old", ModelVersion(ModelRef("google/bert-old"), "c" * 40, "finetune")),
    ):  # fmt: skip
        (model,) = listed(row("a/adapter", stated_base))
        parents = Parents((BASE,), [model], ask)
        assert parents.of(model) == expected
        assert parents.unknown == {}
    assert questions == ["old-tiny", "x/gguf", "bert-old"]
    (model,) = listed(row("a/adapter", "unsloth/tiny-4bit"))
    by_alias = ListedModel(**{**vars(model), "claimed_by": "alias:unsloth/tiny-4bit"})
    assert Parents((BASE,), [by_alias], ask).of(by_alias) is None
    assert len(questions) == 3


def unit(parent: ModelVersion | None = None) -> Unit:
    return Unit(ModelRef("a/adapter"), "c" * 40, BASE, "b" * 40, "adapter", Spec(), parent=parent)


def test_the_parent_is_part_of_the_identity():
    identity = unit().identity
    grounded = unit(ModelVersion(ModelRef("a/tuned"), "d" * 40, "finetune")).identity
    assert grounded.digest != identity.digest
    assert Identity.from_row(json.loads(json.dumps(grounded.as_row(), default=vars))) == grounded


def test_without_the_hub_the_record_with_a_parent_is_kept(tmp_path):
    store = RecordStore(AtlasFolder(tmp_path / "atlas"))
    grounded = unit(ModelVersion(ModelRef("a/elsewhere"), "d" * 40, "finetune")).identity
    store.write(Record(unit().identity, (), created="2026-01-02"))
    store.write(Record(grounded, (), created="2026-01-01"))
    models = listed(row("a/adapter", "a/elsewhere"))
    template = Unit(ModelRef(BASE), "", BASE, "b" * 40, "finetune", Spec())
    for parents in (None, Parents((BASE,), models, None)):
        (planned,) = plan(models, models, store, template, False, parents)
        assert planned.unit is None
        assert planned.record_key == grounded.digest
