"""Questions of an atlas of samples: estimates are called so, and what needs all rows says what reading them costs."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

import numpy as np
import pytest

import indexer
from indexer.errors import AtlasError
from query import Atlas
from query.contract.glossary import explained
from query.faces.browse.session import read_payload
from query.faces.serve.tools import Tools
from tests import tiny_hub
from tests.conftest import Shell
from tests.database import execute
from tests.tiny_hub import BASE

SIZES = tiny_hub.SIZES | {"hidden_size": 256, "intermediate_size": 1024}
# Bytes of a model's block matrices: 2 layers of 4 square matrices and two of 256 × 1024, float32.
WHOLE = 2 * (4 * 256 * 256 + 2 * 256 * 1024) * 4
MODEL, OTHER, DEEP, ADAPTER, COPY = "ann/glue-0", "bob/glue-1", "cyd/glue-2", "eve/lora", "eve/untouched"


def adapter(root):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import RobertaModel

    torch.manual_seed(5)
    model = get_peft_model(
        RobertaModel.from_pretrained(root / BASE), LoraConfig(r=2, target_modules=["query", "value"])
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    tiny_hub.add_model(root, ADAPTER, model, dataset="glue", relation="adapter")


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A Hub of twelve fine-tunes, a copy of the base and an adapter; the atlas holds samples of the full ones."""
    from transformers import RobertaConfig, RobertaForSequenceClassification, RobertaModel

    root = tmp_path_factory.mktemp("sampled") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_hub, "SIZES", SIZES)
        tiny_hub.make_store(root)
    model = RobertaForSequenceClassification(RobertaConfig(**SIZES))
    model.roberta.load_state_dict(RobertaModel.from_pretrained(root / BASE).state_dict(), strict=False)
    tiny_hub.add_model(root, COPY, model, dataset=None)
    adapter(root)
    with tiny_hub.indexed(root) as running:
        yield running


@pytest.fixture(scope="module")
def sampled(shell: Shell):
    with Atlas(shell.folder / "atlas") as opened:
        yield opened


@pytest.fixture(scope="module")
def mixed(shell: Shell, tmp_path_factory):
    """The same atlas with one model deepened, and `output` published."""
    folder = tmp_path_factory.mktemp("mixed")
    shutil.copytree(shell.folder / "atlas", folder / "atlas")
    there = Shell(shell.endpoint, folder, shell.environment)
    for words in (("deepen", DEEP, "--workers", "1"), ("represent", "output")):
        ran = there("index", *words)
        assert ran.code == 0, ran.err
    assert "output: skipped models that were only sampled: 12" in ran.err  # the copy is one of them
    assert f"index deepen --base {BASE}" in ran.err
    with Atlas(folder / "atlas") as opened:
        yield opened


@pytest.fixture(scope="module")
def checkpoint(shell: Shell):
    """The folder of an indexed model, for questions about one that is not."""
    return shell.store / MODEL


def one(notes, *parts):
    """The only one of the notes that holds all of these parts."""
    (found,) = (note for note in notes if all(part in note for part in parts))
    return found


@contextmanager
def refused(*parts):
    """A question that is refused in one sentence with these parts, and with what reading the rest costs."""
    with pytest.raises(AtlasError) as caught:
        yield
    said = f"{caught.value.message} {caught.value.hint}"
    assert all(part in said for part in parts), said
    assert "\n" not in said


def test_a_shown_model_says_that_a_sample_was_read_and_estimates_have_errors(sampled):
    shown = sampled.show(MODEL)
    assert (shown["read"], shown["copy_evidence"], shown["is_copy"]) == ("sample", None, False)
    assert shown["rows_read"] == "16 to 64 rows of each matrix"
    table = shown.table()
    assert table["read"] == "a sample: 16 to 64 rows of each matrix"
    assert table["relative_norm"].endswith("(estimated)")
    assert "±" in table["relative_norm"]
    assert 0 < shown["delta_norm_error"] < 0.2 * shown["delta_norm"]
    assert all(row["energy"] is None for row in shown["families"])  # that of the rows that were read is not δW's
    assert one(shown.notes, "estimates", f"`deepen('{MODEL}')`", f"{WHOLE / 1e6:.1f} MB")


@pytest.mark.slow
def test_a_model_that_was_read_in_full_is_shown_as_before(mixed):
    shown = mixed.show(DEEP)
    assert shown["read"] == "full"
    assert "read" not in shown.table()
    assert isinstance(shown.table()["relative_norm"], float)
    assert all(row["energy"] > 0 for row in shown["families"])
    assert not any("estimate" in note for note in shown.notes)


def test_a_sample_does_not_prove_a_copy_of_the_base(sampled):
    shown = sampled.show(COPY)
    assert (shown["is_copy"], shown["copy_evidence"]) == (True, "sample")
    assert shown.table()["flags"] == ["like the base in all that was read"]
    for said in (
        sampled.layers(COPY).headline,
        sampled.compare(COPY, MODEL).headline,
        sampled.lineage(COPY).edges[0].evidence,
    ):
        assert "in all that was read" in said
        assert "copy of" not in said
    with refused("like the base in all that was read"):
        sampled.similar(COPY)


def test_a_checksum_proves_a_copy_of_which_a_sample_was_read(shell, tmp_path):

    shutil.copytree(shell.folder / "atlas", tmp_path / "atlas")
    execute(tmp_path / "atlas" / "atlas.duckdb", "UPDATE records SET copy_evidence = 'checksum' WHERE is_copy")
    with Atlas(tmp_path / "atlas") as opened:
        assert opened.show(COPY).table()["flags"] == ["copy of the base"]
        found = opened.layers(COPY)
        assert "is a copy of" in found.headline
        assert found.notes == ()  # nothing of it is an estimate
        assert "is a copy of" in opened.compare(COPY, MODEL).headline
        assert not any("estimated" in note for note in opened.compare(COPY, ADAPTER).notes)
        assert "in all that was read" not in opened.lineage(COPY).edges[0].evidence
        assert not any("deepen" in note for note in opened.show(COPY).notes)


def test_layers_of_a_sample_are_estimates_near_the_exact_ones(sampled, mixed):
    estimate, exact = sampled.layers(DEEP), mixed.layers(DEEP)
    assert (estimate.read, exact.read) == ("sample", "full")
    assert "estimated" in estimate.headline
    assert "estimated" not in exact.headline
    assert exact.norm_error == 0
    assert abs(estimate.norm - exact.norm) < 4 * estimate.norm_error
    for mine, whole in zip(estimate.deltas, exact.deltas, strict=True):
        assert 0 < mine.norm_error < mine.norm
        assert (mine.energy, mine.rank_50, mine.rank_90) == (None, None, None)
        assert whole.rows_read is None
        assert 0 < whole.energy <= 1
    assert {mine.rows_read for mine in estimate.deltas} == {16, 64}
    # The error of several matrices together, from those of each.
    parts = np.array([[one.norm, one.norm_error] for one in estimate.deltas])
    expected = np.sqrt((parts.prod(axis=1) ** 2).sum() / (parts[:, 0] ** 2).sum())
    assert estimate.norm_error == pytest.approx(expected)
    assert one(estimate.notes, "estimated", "16 to 64 rows of each matrix", f"`deepen('{DEEP}')`")
    assert exact.notes == ()
    as_json = estimate.to_dict()
    assert (as_json["read"], as_json["norm_error"]) == ("sample", estimate.norm_error)
    assert all(row["norm_error"] > 0 for row in as_json["layers"] + as_json["families"])
    estimate.figure(of="energy")  # nothing is known: an empty picture, not an error


def test_two_sampled_models_are_compared_with_one_note_on_both(sampled):
    found = sampled.compare(MODEL, OTHER)
    assert found.similarity > 0.2
    facts = {fact.fact: (fact.a, fact.b) for fact in found.facts}
    assert facts["read"] == ("sample", "sample")
    note = one(found.notes, "`deepen(['ann/glue-0', 'bob/glue-1'])`")
    assert f"{2 * WHOLE / 1e6:.1f} MB" in note
    assert len([note for note in found.notes if "estimated" in note]) == 2


def test_a_full_model_is_compared_with_a_sample_of_another(sampled, mixed):
    found = mixed.compare(DEEP, OTHER)
    assert found.similarity == pytest.approx(sampled.compare(DEEP, OTHER).similarity, abs=0.15)
    assert {fact.fact: (fact.a, fact.b) for fact in found.facts}["read"] == ("full", "sample")
    assert one(found.notes, "estimated", f"`deepen('{OTHER}')`")


def test_models_of_one_data_set_are_near_by_samples(sampled):
    found = sampled.similar(MODEL, k=3)
    assert {name for near in found for name in near.datasets} == {"glue"}
    assert one(found.notes, "estimated", "16 to 64 rows of each matrix")
    assert sampled.purity(BASE).purity > 0.9
    assert one(sampled.predict(MODEL).notes, "estimated")


def test_a_representation_that_needs_all_rows_is_refused_for_a_sample_and_says_what_it_costs(mixed):
    cost = (f"{WHOLE / 1e6:.1f} MB", f"`deepen('{MODEL}')`", "a sample of rows was read")
    with refused(*cost):
        mixed.similar(MODEL, representation="output")
    with refused(*cost):
        mixed.similar(MODEL, k=60, representation="output")  # by search
    with refused(*cost):
        mixed.predict(MODEL, representation="output")
    with refused(*cost):
        mixed.compare(MODEL, DEEP, representation="output")
    with refused("`deepen(['ann/glue-0', 'bob/glue-1'])`", f"{2 * WHOLE / 1e6:.1f} MB"):
        mixed.compare(MODEL, OTHER, representation="output")
    found = mixed.similar(DEEP, representation="output")
    assert [near.model for near in found] == [ADAPTER]
    assert one(found.notes, "11 sampled models have no 'output' vectors", f"`deepen(base='{BASE}')`")


def test_studies_leave_sampled_models_out_and_count_them(mixed):
    what = ("11 sampled models have no 'output' vectors and do not count", f"{12 * WHOLE / 1e6:.1f} MB")
    assert one(mixed.purity(BASE, representation="output", draws=20).notes, *what)
    found = mixed.clusters(BASE, representation="output", method="kmeans", count=2, draws=10)
    assert one(found.notes, *what)
    assert found.to_dict()["left_out"]["sampled"] == 11
    assert "11 sampled models" in found.left_out.words()
    drawn = mixed.map(BASE, representation="output", method="pca")
    assert (len(drawn.points), drawn.left_out.sampled) == (2, 11)
    assert one(drawn.notes, *what)
    # The default needs no more than a sample.
    assert mixed.map(BASE, method="pca").left_out.sampled == 0


def test_ranks_are_those_of_models_that_were_read_in_full(sampled, mixed):
    found = mixed.rank(BASE)
    assert (found.models, found.left_out.sampled, found.left_out.copies) == (2, 11, 1)
    assert one(found.notes, "11 sampled models have no ranks", f"`deepen(base='{BASE}', spectra=True)`")
    with refused(f"`deepen('{MODEL}', spectra=True)`"):
        sampled.rank(BASE, model=MODEL)
    with refused(
        "of all 12 models", "gives no ranks", f"`deepen(base='{BASE}', spectra=True)`", f"{13 * WHOLE / 1e6:.1f}"
    ):
        sampled.rank(BASE, relation="finetune")


def test_the_ranks_of_w_are_not_known_of_a_sample_either(sampled):
    with refused(f"`deepen(base='{BASE}', spectra=True)`"):
        sampled.rank(BASE, of="weights", relation="finetune")


def test_lineage_finds_the_parent_of_a_model_among_samples(shell, tmp_path):
    from transformers import RobertaForSequenceClassification

    model = RobertaForSequenceClassification.from_pretrained(shell.store / MODEL)
    tiny_hub.shift_weights(model.roberta, dataset=1, seed=77, size=3e-3)
    model.save_pretrained(tmp_path / "continued")
    ran = shell("query", "lineage", str(tmp_path / "continued"), "--json")
    assert ran.code == 0, ran.err
    assert [(row["parent"], row["kind"]) for row in ran.json] == [(MODEL, "continued")]
    assert "no factors" not in ran.err


def test_the_rows_of_u_in_a_sampled_record_give_the_leading_rows_of_the_change(sampled, mixed, shell):
    from safetensors.numpy import load_file

    from indexer.deltas.parts import Parts
    from query.questions.lineage.candidates import FactorStore, read_candidates

    extents = Parts(sampled.published_base(BASE)).extents
    of_sample, of_whole = (
        FactorStore(atlas.folder, extents)._read(one.record_key)
        for atlas in (sampled, mixed)
        for one in read_candidates(atlas, BASE)
        if one.model == DEEP
    )
    base, tuned = (load_file(shell.store / name / "model.safetensors") for name in (BASE, DEEP))
    for key, extent in extents.items():
        family = {
            "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
            "output": "attention.output.dense", "feedforward1": "intermediate.dense", "feedforward2": "output.dense",
        }[key.family]  # fmt: skip
        name = f"encoder.layer.{key.layer}.{family}.weight"
        change = tuned[f"roberta.{name}"] - base[name]
        found, whole = of_sample[str(key)], of_whole[str(key)]
        rows = 32 if key.family != "feedforward2" else 8  # the first half of 64, or of 16, rows
        assert found.shape == (min(rows, extent.rows), extent.columns)
        expected = change[: found.shape[0], : extent.columns]
        error = np.linalg.norm(found.us @ found.v.T - expected) / np.linalg.norm(expected)
        assert error < 0.1  # the noise that was added to the planted change of rank 4
        assert np.allclose(
            whole.cut(found.shape).us @ whole.v.T, found.us @ found.v.T, atol=0.1 * np.abs(expected).max()
        )


def test_a_transposed_sample_is_cut_to_the_leading_coordinates(tmp_path):
    """GPT-2: some input coordinates of all outputs were read, half of them the first ones."""
    from safetensors.numpy import save_file

    from indexer.atlas import AtlasFolder
    from indexer.names import DeltaKey
    from indexer.records.parts import Extent
    from query.questions.lineage.candidates import FactorStore

    draw = np.random.default_rng(0)
    change = draw.normal(size=(96, 64)).astype(np.float32)
    held = np.r_[:12, 52:64]
    u, s, v = np.linalg.svd(change[:, held], full_matrices=False)
    right = np.zeros((64, 24), np.float16)
    right[held] = v.T
    folder, key = AtlasFolder(tmp_path), DeltaKey("", 0, "query")
    folder.record("e" * 64).parent.mkdir(parents=True)
    # As a record has them: s is that of the whole matrix, so u_rows is shorter than one.
    share = np.float32((24 / 64) ** 0.5)
    arrays = {"0.query.u_rows": (share * u).astype(np.float16), "0.query.s": s / share, "0.query.v": right}
    save_file(arrays, folder.record("e" * 64))
    found = FactorStore(folder, {key: Extent(96, 32, transposed=True)})._read("e" * 64)["0.query"]
    assert found.shape == (96, 12)
    assert np.allclose(found.us @ found.v.T, change[:, :12], atol=2e-2)


def test_where_all_models_are_samples_nothing_is_published_that_needs_more(shell, tmp_path):
    shutil.copytree(shell.folder / "atlas", tmp_path / "atlas")
    indexer.remove(ADAPTER, atlas=tmp_path / "atlas")
    with refused("of all 12 models", "no 'output' vectors", f"`deepen(base='{BASE}')`"):
        indexer.represent("output", tmp_path / "atlas")
    with Atlas(tmp_path / "atlas") as opened:
        assert not opened.is_published(BASE, "output")


def test_a_folder_is_read_as_a_sample_and_in_full_on_request(sampled, checkpoint):
    estimate, exact = sampled.layers(checkpoint), sampled.layers(checkpoint, read="full")
    assert (estimate.read, exact.read) == ("sample", "full")
    assert one(estimate.notes, "estimated", "`read='full'`")
    assert exact.notes == ()
    assert estimate.norm == pytest.approx(sampled.layers(MODEL).norm, rel=1e-5)
    assert abs(estimate.norm - exact.norm) < 4 * estimate.norm_error
    assert one(sampled.similar(checkpoint).notes, "estimated")
    assert not any("estimated" in note for note in sampled.similar(checkpoint, read="full").notes)
    assert one(sampled.compare(checkpoint, ADAPTER).notes, "`read='full'`")
    with refused("`read` 'some' is not one of sample, full"):
        sampled.similar(checkpoint, read="some")


def test_a_representation_that_needs_all_rows_reads_a_folder_in_full(mixed, checkpoint):
    assert mixed.compare(checkpoint, DEEP, representation="output").similarity > 0
    with refused("a sample of rows was read", f"{WHOLE / 1e6:.1f} MB", "`read='full'`"):
        mixed.compare(checkpoint, DEEP, representation="output", read="sample")


def test_the_command_line_says_it_in_its_own_words(shell):
    ran = shell("query", "layers", MODEL)
    assert f"index deepen {MODEL}" in ran.err
    ran = shell("query", "compare", MODEL, OTHER)
    assert f"index deepen {MODEL} {OTHER}" in ran.err
    ran = shell("query", "rank", "--model", MODEL)
    assert ran.code != 0
    assert f"index deepen {MODEL} --spectra" in ran.err
    ran = shell("query", "layers", str(shell.store / MODEL), "--read", "full", "--json")
    assert (ran.json["read"], ran.json["norm_error"]) == ("full", 0)
    listed = shell("query", "models", "--json").json
    assert {row["model"]: row["read"] for row in listed}[ADAPTER] == "full"
    status = shell("index", "status", "--json").json
    assert [(row["indexed"], row["sampled"]) for row in status["bases"]] == [(14, 13)]


def test_the_time_is_that_of_full_builds_of_this_atlas(sampled, mixed):
    cost = one(sampled.layers(MODEL).notes, "deepen")
    assert "/s)" not in cost  # samples are read at another rate
    cost = one(mixed.layers(MODEL).notes, "deepen")
    assert " s at " in cost
    assert "/s)" in cost


def test_the_page_has_a_filter_and_says_what_is_estimated(sampled, mixed):
    from query.faces.browse.model import model_page

    (row,) = sampled.rows("SELECT model_id FROM models WHERE model = ?", [MODEL])
    page = model_page(sampled, row["model_id"])
    assert page["facts"]["read"] == "sample"
    assert page["facts"]["rows_read"] == "16 to 64 rows of each matrix"
    assert "estimated" in page["layers"]["notes"][0]
    assert "deepen" not in str(page)  # a page gives no advice about commands
    (row,) = sampled.rows("SELECT model_id FROM models WHERE model = ?", [COPY])
    assert "not proven" in model_page(sampled, row["model_id"])["facts"]["is_copy"]
    facets = {facet["name"]: facet for facet in read_payload(mixed, BASE, None)["facets"]}
    assert set(facets["read"]["names"]) == {"sample", "full"}
    assert facets["oddity"]["names"] == ["like the base in all that was read"]


@pytest.mark.slow
def test_the_report_says_how_many_were_sampled(mixed):
    page = mixed.report(BASE).html
    assert "a sample of rows of each matrix was read" in page
    assert "like the base in all that was read" in page


def test_agents_get_estimates_and_commands_for_their_users(shell):
    tools = Tools(shell.folder / "atlas")
    answer, error = tools.answer("layers", {"model": MODEL})
    assert not error
    assert (answer["read"], answer["norm_error"] > 0) == ("sample", True)
    assert f"index deepen {MODEL}" in " ".join(answer["notes"])
    answer, _ = tools.answer("bases", {})
    assert [(row["indexed"], row["sampled"]) for row in answer["bases"]] == [(14, 13)]


@pytest.mark.parametrize("word", ["sample", "estimated", "norm_error", "rows_read", "copy_evidence", "read"])
def test_words_of_samples_are_explained(word):
    assert any("sample" in found["meaning"] or "rows" in found["meaning"] for found in explained(word))
