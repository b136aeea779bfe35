"""Untagged fine-tunes found by their weights, among models that are not: real files, over a real Hub."""

from __future__ import annotations

import json
import shutil

import duckdb
import pytest
import torch
from safetensors.torch import load_file

from indexer import build
from indexer.atlas import AtlasFolder
from indexer.builds.build import Build
from indexer.builds.commands import update_listing
from indexer.builds.options import BuildOptions
from indexer.builds.report import Watcher
from indexer.builds.weight_discovery import Examination
from indexer.errors import AtlasError
from indexer.listing.listing import Listing
from indexer.sources.hub_base import resolve_base
from tests.checkpoints import roberta
from tests.hubs import add_repo, served, tags
from tests.sampling import made

pytestmark = pytest.mark.slow

KIND = roberta(3, 256, 512)
BASE, TWIN = "org/base", "org/twin"
KNOWN = ["transformers", "safetensors", "roberta"]


def describe(root, identifier, *more_tags, **facts):
    (root / f"{identifier}.repo.json").write_text(json.dumps({"tags": [*KNOWN, *more_tags], **facts}))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two bases of the same shapes, and untagged models: fine-tunes of either, and what only looks like one."""
    root = tmp_path_factory.mktemp("store")
    base, twin = made.base_weights(KIND, 1), made.base_weights(KIND, 2)
    tuned = {number: made.tuned_of(KIND, base, seed=number) for number in range(5)}
    tuned[5] = made.tuned_of(KIND, base, seed=5, size=3e-2)  # far from it
    repositories = {
        BASE: base,
        TWIN: twin,
        "ann/float32": tuned[0],
        "ann/bfloat16": made.cast(tuned[1], torch.bfloat16),
        "ann/float16": made.cast(tuned[2], torch.float16),
        "ann/prefixed": made.prefixed(tuned[3], "roberta."),
        "ann/far": tuned[5],
        "bob/scratch": made.base_weights(KIND, 3),
        "bob/of-the-twin": made.tuned_of(KIND, twin, seed=6),
        "bob/rounded-copy": made.cast(base, torch.bfloat16),
        "bob/zeros": {name: torch.zeros_like(one) for name, one in base.items()},
        "bob/not-a-number": {name: torch.full_like(one, torch.nan) for name, one in base.items()},
        "bot/MyAwesomeModel-TestRepo": tuned[0],
        "eve/tagged": tuned[0],
        "eve/gated": tuned[0],
        "eve/quantised": tuned[0],
        "eve/larger": base | {"more.weight": torch.zeros(4000, 4000)},
        "eve/smaller": {name: one for name, one in base.items() if "layer.0" in name},
    }
    for identifier, weights in repositories.items():
        made.save(root / identifier, KIND, weights)
        describe(root, identifier)
    made.save_sharded(root / "ann/sharded", KIND, tuned[4])
    describe(root, "ann/sharded")
    shutil.copytree(root / BASE, root / "bob/same-file")
    describe(root, "bob/same-file")
    made.save_zip(root / "eve/pickled", KIND, tuned[0])
    describe(root, "eve/pickled")
    add_repo(root, "bot/empty", {"config.json": KIND.config}, tags=KNOWN)
    describe(root, "eve/tagged", *tags("x/y"))
    describe(root, "eve/gated", gated="manual")
    config = KIND.config | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    (root / "eve/quantised/config.json").write_text(json.dumps(config))
    return root


FINE_TUNES = {f"ann/{name}" for name in ("float32", "bfloat16", "float16", "prefixed", "far", "sharded")}
FINE_TUNES |= {"bob/rounded-copy"}  # whether it is a copy in every matrix, only reading it tells


def examined(atlas, base=BASE, *, counts_only=False, **options):
    """Crawl into the atlas as a build does: what is listed, and what was said."""
    said = []
    chosen = BuildOptions(discover="weights", **options)
    one = Build(AtlasFolder(atlas), resolve_base(base), chosen, Watcher(lambda event: said.append(event.message)))
    update_listing(one, counts_only=counts_only)
    return one, said


def found_in(one) -> dict[str, str]:
    return {model.id: model.claimed_by for model in one.listing.models()}


def why(one) -> dict[str, str]:
    lines = one.listing.as_lines()
    return {line["id"]: line["why"] for line in lines if line["kind"] == "unrelated"}


def weight_requests(hub) -> list:
    return [request for request in hub.requests if request.filename and "safetensors" in request.filename]


def test_fine_tunes_are_claimed_and_others_are_not(store, monkeypatch, tmp_path):
    with served(store, monkeypatch) as hub:
        one, said = examined(tmp_path / "atlas")
        assert found_in(one) == dict.fromkeys(FINE_TUNES, "weights")
        assert set(why(one)) == {
            "bob/scratch", "bob/of-the-twin", "bob/same-file", "bob/zeros", "bob/not-a-number", TWIN,
        }  # fmt: skip
        assert "unrelated (cosine" in why(one)["bob/scratch"]
        assert "unrelated (cosine" in why(one)["bob/of-the-twin"]
        assert why(one)["bob/same-file"] == f"its weights are the file of {BASE}"
        assert any("13 candidates, 7 with weights like those of org/base" in sentence for sentence in said)
        # By the listing alone the others were no candidates: nothing of them was read.
        assert not [request for request in weight_requests(hub) if request.repo_id.startswith(("eve/", "bot/"))]
        # One small range of each, beside the header.
        for name in ("ann/float32", "ann/sharded", "bob/scratch"):
            of_one = [request for request in weight_requests(hub) if request.repo_id == name]
            assert len([request for request in of_one if "/resolve/" in request.path]) <= 2
            assert hub.body_bytes(name) < 80_000 < (store / "ann/float32/model.safetensors").stat().st_size / 50
        assert hub.leaks == []


def test_of_several_bases_the_nearest_counts(store, monkeypatch, tmp_path):
    """The twin lies in the atlas; a mix of both bases is nearer to one of them."""
    mixed = store / "bob/mixed"
    one, two = (load_file(store / name / "model.safetensors") for name in (BASE, TWIN))
    made.save(mixed, KIND, {name: 0.45 * one[name] + 0.55 * two[name] for name in one})
    describe(store, "bob/mixed")
    try:
        with served(store, monkeypatch):
            first, _ = examined(tmp_path / "alone")
            assert "bob/mixed" in found_in(first)
            build(TWIN, tmp_path / "atlas", discover="weights", workers=1, max_candidates=30)
            second, _ = examined(tmp_path / "atlas")
            assert why(second)["bob/mixed"] == why(second)["bob/of-the-twin"] == f"its weights are nearer to {TWIN}"
            assert set(found_in(second)) == FINE_TUNES
            twins = {model.id for model in Listing(AtlasFolder(tmp_path / "atlas").listing(TWIN)).models()}
            assert twins == {"bob/of-the-twin", "bob/mixed"}
    finally:
        shutil.rmtree(mixed)
        (store / "bob/mixed.repo.json").unlink()


def test_what_was_examined_is_not_read_again_until_it_changes(store, monkeypatch, tmp_path):
    with served(store, monkeypatch) as hub:
        examined(tmp_path / "atlas")
        hub.reset_log()
        one, _ = examined(tmp_path / "atlas")
        assert {request.repo_id for request in weight_requests(hub)} <= {BASE}
        assert set(found_in(one)) == FINE_TUNES
        describe(store, "bob/scratch", sha="d" * 40)
        try:
            hub.reset_log()
            examined(tmp_path / "atlas")
            assert {request.repo_id for request in weight_requests(hub)} <= {BASE, "bob/scratch"}
            assert "bob/scratch" in {request.repo_id for request in weight_requests(hub)}
        finally:
            describe(store, "bob/scratch")


def test_a_bound_leaves_the_rest_for_later_runs(store, monkeypatch, tmp_path):
    with served(store, monkeypatch, page_size=4):
        found = set()
        for run in range(5):
            one, said = examined(tmp_path / "atlas", max_candidates=3)
            assert len(found_in(one)) + len(why(one)) == min(3 * (run + 1), 13)
            assert set(found_in(one)) >= found  # nothing is lost by a run that stops early
            found = set(found_in(one))
            assert any("max_candidates" in sentence for sentence in said) == (run < 4)
        assert found == FINE_TUNES


def test_an_interrupted_examination_goes_on(store, monkeypatch, tmp_path):
    with served(store, monkeypatch, page_size=5) as hub:
        fault = hub.faults.add("filter=roberta.*cursor=", since=2, status=500)
        with pytest.raises(AtlasError):
            examined(tmp_path / "atlas")
        hub.faults.remove(fault)
        before = {request.repo_id for request in weight_requests(hub)} - {BASE}
        assert before
        hub.reset_log()
        one, _ = examined(tmp_path / "atlas")
        assert set(found_in(one)) == FINE_TUNES
        assert not before & ({request.repo_id for request in weight_requests(hub)} - {BASE})


def test_one_author_does_not_use_up_the_run(store, monkeypatch, tmp_path):
    monkeypatch.setattr("indexer.builds.weight_discovery.MOST_OF_AUTHOR", 2)
    with served(store, monkeypatch):
        one, _ = examined(tmp_path / "atlas")
    authors = [name.partition("/")[0] for name in (*found_in(one), *why(one))]
    assert max(authors.count(name) for name in authors) == 2


def test_a_candidate_that_fails_now_is_tried_again(store, monkeypatch, tmp_path):
    with served(store, monkeypatch) as hub:
        hub.faults.add("ann/float32/resolve", status=500)
        hub.faults.add("/repos/ann/float16", status=403)
        one, _ = examined(tmp_path / "atlas")
        assert {"ann/float32", "ann/float16"}.isdisjoint({*found_in(one), *why(one)})
        assert len(one.listing.rejected_rows()) == 2
        hub.faults.clear()
        one, _ = examined(tmp_path / "atlas")
        assert set(found_in(one)) == FINE_TUNES


def test_a_dry_run_says_what_it_would_cost_and_reads_nothing(store, monkeypatch, tmp_path):
    with served(store, monkeypatch) as hub:
        one, said = examined(tmp_path / "atlas", counts_only=True)
        assert {request.repo_id for request in weight_requests(hub)} <= {BASE}  # its header
        assert found_in(one) == {}
        (sentence,) = [sentence for sentence in said if "untagged" in sentence]
        assert "13 candidates; comparing them takes ≈ 13 file requests and" in sentence
        one, _ = examined(tmp_path / "atlas")
        assert set(found_in(one)) == FINE_TUNES


def odd_row(**more):
    files = [{"rfilename": "config.json"}, {"rfilename": "model.safetensors"}]
    config = {"model_type": "roberta"}
    return {
        "id": "a/b",
        "sha": "c" * 40,
        "config": config,
        "siblings": files,
        "safetensors": {"total": 2_000_000},
    } | more


ODD_ROWS = [
    None,
    5,
    {"id": "../x"},
    odd_row(id="a/b/c"),
    odd_row(sha=None),
    odd_row(siblings="model.safetensors"),
    odd_row(siblings=[{"rfilename": "config.json"}, {"rfilename": "../model.safetensors"}]),
    odd_row(config={"model_type": ["roberta"]}),
    odd_row(config=None),
    odd_row(safetensors={"total": 10**30}),
    odd_row(safetensors={"total": True}),
    odd_row(safetensors=[2_000_000]),
    odd_row(cardData=json.loads("[" * 150 + "]" * 150)),
    odd_row(baseModels={"relation": "finetune", "models": [{"id": "x/y"}]}),
]


def test_rows_that_are_odd_are_no_candidates(store, monkeypatch, tmp_path):
    with served(store, monkeypatch):
        options = BuildOptions(discover="weights")
        examination = Examination(Build(AtlasFolder(tmp_path / "atlas"), resolve_base(BASE), options), {}, True)
        assert examination(ODD_ROWS) == [None] * len(ODD_ROWS)
        assert examination.candidates == 0
        examination([odd_row()])
        assert examination.candidates == 1


def test_what_is_found_is_read_and_published_as_every_model_is(store, monkeypatch, tmp_path):
    with served(store, monkeypatch):
        report = build(BASE, tmp_path / "atlas", discover="weights", workers=1)
    assert (report.indexed, report.failed) == (len(FINE_TUNES), 0)
    with duckdb.connect(str(tmp_path / "atlas/atlas.duckdb"), read_only=True) as database:
        rows = database.sql("SELECT model, claimed_by, verified, is_copy, is_unrelated FROM models").fetchall()
    assert {row[0] for row in rows} == FINE_TUNES
    assert {row[1] for row in rows} == {"weights"}
    assert not any(row[4] for row in rows)
    assert {row[0] for row in rows if row[3]} == {"bob/rounded-copy"}


def test_new_uploads_that_name_nothing_are_said_to_need_weights(tmp_path, monkeypatch):
    root = tmp_path / "store"
    made.save(root / BASE, KIND, made.base_weights(KIND, 1))
    describe(root, BASE)
    for number in range(3):
        # Found by the search, but another word beside the name makes it no claim.
        add_repo(root, f"a/xlm-base-{number}", {"config.json": KIND.config | {"transformers_version": "5.23.0"}})
    add_repo(root, "a/xlm-base-old", {"config.json": {"_name_or_path": "x/y"}})
    said = []
    with served(root, monkeypatch):
        chosen = BuildOptions(discover="names")
        one = Build(
            AtlasFolder(tmp_path / "atlas"),
            resolve_base(BASE),
            chosen,
            Watcher(lambda event: said.append(event.message)),
        )
        update_listing(one)
    (sentence,) = [sentence for sentence in said if "_name_or_path" in sentence]
    assert sentence.startswith("3 untagged models name no base")
    assert "weights" in sentence
