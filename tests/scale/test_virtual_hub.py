"""The virtual Hub: its bytes are what was planted, the real client reads them, and an atlas of them finds what is in them."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from itertools import pairwise

import duckdb
import numpy as np
import pytest
from huggingface_hub import HfApi, hf_hub_download

from scripts.loopback_hub import rows
from scripts.scale.population import dataset_id
from scripts.scale.virtual_hub import VirtualHub, running
from scripts.scale.virtual_layout import BYTES, SHAPES, layouts
from scripts.scale.virtual_store import base_id, config_of, model_id
from scripts.scale.virtual_weights import BASE, Family, Plan
from tests.conftest import Shell
from tests.hubs import reset_session, use_endpoint

PLAN = Plan("tiny", 40, seed=3, half=0.2, bfloat=0.2, copies=0.1, duplicates=0.1, unrelated=0.1, datasets=4, named=1.0)
# Of a number of ordinary size.
PRECISION = {"F32": 3e-7, "F16": 6e-4, "BF16": 5e-3}


@pytest.fixture(scope="module")
def family():
    return Family(PLAN)


@pytest.fixture
def hub(monkeypatch):
    """In this process, and the library talks to it."""
    with VirtualHub(PLAN, page_size=7) as hub:
        use_endpoint(monkeypatch, hub.endpoint)
        try:
            yield hub
        finally:
            reset_session()


def of_kind(family, kind, dtype=None):
    return [
        model
        for model in range(family.plan.models)
        if family.kinds[model] == kind and dtype in (None, family.dtype(model))
    ]


def whole(family, model):
    """Every tensor of a model, read by safetensors from the whole files, as float64 (integers as they are)."""
    import torch
    from safetensors.torch import load

    found = {}
    for layout in family.files(model):
        found |= load(family.read(model, layout, 0, layout.size))
    return {
        name: value.numpy() if value.dtype == torch.int64 else value.double().numpy() for name, value in found.items()
    }


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        return answer.status, dict(answer.headers), answer.read()


@pytest.mark.parametrize("shape", ["tiny", "tiny-gpt2", "tiny-llama"])
def test_ranges_joined_are_the_whole_file(shape):
    family = Family(Plan(shape, 30, half=0.3, bfloat=0.3))
    rng = np.random.default_rng(0)
    for model in (BASE, *(of_kind(family, "finetune", dtype)[0] for dtype in {family.dtype(i) for i in range(30)})):
        for layout in family.files(model):
            data = family.read(model, layout, 0, layout.size)
            assert len(data) == layout.size
            # Cuts anywhere: in the header, within a number, within a row, at the very ends.
            cuts = np.unique(np.concatenate([[0, 1, layout.size - 1, layout.size], rng.integers(0, layout.size, 150)]))
            pieces = [family.read(model, layout, int(a), int(b)) for a, b in pairwise(cuts)]
            assert b"".join(pieces) == data


def test_large_matrices_do_not_depend_on_the_range():
    """More than is computed at once, in the middle of a shard."""
    family = Family(Plan("llama-3-8b", 2))
    layout = family.files(0)[1]
    start = layout.size // 2 + 3
    data = family.read(0, layout, start, start + 1_000_001)
    assert family.read(0, layout, start + 500_001, start + 600_000) == data[500_001:600_000]
    assert family.read(0, layout, start, start + 9) == data[:9]


@pytest.mark.parametrize("shape", ["tiny", "tiny-gpt2", "tiny-llama"])
def test_files_hold_the_base_and_what_was_planted(shape):
    family = Family(Plan(shape, 60, half=0.3, bfloat=0.3, norms=(0.03, 0.05)))
    base = {name.removeprefix("transformer."): value for name, value in whole(family, BASE).items()}
    assert all(np.isfinite(value).all() for value in base.values())
    for dtype in {family.dtype(model) for model in range(60)}:
        model = of_kind(family, "finetune", dtype)[0]
        tuned = whole(family, model)
        embeddings = matrices = 0
        for name, value in tuned.items():
            own = name.removeprefix("transformer.")
            if own not in base:
                assert own.startswith(("classifier.", "score."))
            elif "word_embeddings" in own or "embed_tokens" in own or own == "wte.weight":
                touched, decayed = family.touched(model), base[own] * np.float64(family.decays[model])
                assert 0 < touched.sum() < len(touched)
                size = np.abs(value - decayed).max(axis=1)
                assert (size[~touched] <= PRECISION[dtype] * np.abs(decayed[~touched]).max()).all()
                assert size[touched].max() > 1.5 * size[~touched].max()
                embeddings += 1
            elif value.ndim == 2 and not any(part in own for part in ("embeddings", "wpe")):
                planted = family.delta(model, name)
                error = np.abs(value - base[own] - planted).max()
                assert error <= PRECISION[dtype] * np.abs(value).max()
                ratio = np.linalg.norm(planted) / np.linalg.norm(base[own])
                assert 0.01 < ratio < 0.12
                np.testing.assert_array_equal(family.delta(model, name, slice(3, 9)), planted[3:9])
                left, right = family.factors(model, name)
                # What is not of the twelve directions is noise, a tenth of the energy.
                assert np.linalg.norm(planted - left @ right) / np.linalg.norm(planted) == pytest.approx(0.32, abs=0.08)
                matrices += 1
        assert (embeddings, matrices) == (1, {"tiny": 12, "tiny-gpt2": 8, "tiny-llama": 15}[shape])


def test_untouched_embeddings_are_exactly_the_base_times_the_decay():
    family = Family(Plan("tiny", 60, half=0.3, bfloat=0.3))
    name = "roberta.embeddings.word_embeddings.weight"
    for dtype, rounded in (("F32", np.float32), ("F16", np.float16)):
        model = next(model for model in of_kind(family, "finetune", dtype) if family.decays[model] < 1)
        base = whole(family, BASE)[name].astype(np.float32)
        rest = ~family.touched(model)
        expected = (base * family.decays[model]).astype(rounded)[rest].astype(np.float64)
        np.testing.assert_array_equal(whole(family, model)[name][rest], expected)
    # Not for nothing: the decay shows in float32.
    assert family.decays.min() < 1 == family.decays.max()


def test_models_of_a_data_set_share_their_input_side():
    """Also where matrices are stored in × out; left vectors are the model's own."""
    for shape, name in (
        ("tiny", "roberta.encoder.layer.1.output.dense.weight"),
        ("tiny-gpt2", "transformer.h.1.mlp.c_proj.weight"),
    ):
        family = Family(Plan(shape, 16, copies=0, duplicates=0, unrelated=0, half=0, bfloat=0, datasets=2))
        spaces, outputs = [], []
        for model in range(16):
            delta = family.delta(model, name)
            delta = delta.T if shape == "tiny-gpt2" else delta
            spaces.append(delta.T @ delta)
            outputs.append(delta @ delta.T)
        inner, outer = (np.corrcoef([(each / np.trace(each)).ravel() for each in some]) for some in (spaces, outputs))
        same = family.datasets[:, None] == family.datasets
        others = ~np.eye(16, dtype=bool)
        assert inner[same & others].min() > inner[~same].max() + 0.05
        assert abs(outer[same & others].mean() - outer[~same].mean()) < 0.05


def test_copies_duplicates_and_strangers(family):
    assert [len(of_kind(family, kind)) for kind in ("copy", "duplicate", "unrelated", "finetune")] == [4, 4, 4, 28]
    base = family.files(BASE)[0]
    copy, stranger = of_kind(family, "copy")[0], of_kind(family, "unrelated")[0]
    assert family.read(copy, family.files(copy)[0], 0, base.size) == family.read(BASE, base, 0, base.size)
    assert family.digest(copy, base.path) == family.digest(BASE, base.path)
    assert not family.delta(copy, "roberta.encoder.layer.0.output.dense.weight").any()
    for double in of_kind(family, "duplicate"):
        original = int(family.original[double])
        assert family.kinds[original] == "finetune"
        files = [family.files(model)[0] for model in (double, original)]
        assert family.read(double, files[0], 0, files[0].size) == family.read(original, files[1], 0, files[1].size)
        assert family.digest(double, base.path) == family.digest(original, base.path)
    assert len({family.digest(model, base.path) for model in (BASE, *range(40))}) == 1 + 28 + 4
    name = "roberta.encoder.layer.0.output.dense.weight"
    cosine = np.corrcoef(whole(family, BASE)[name].ravel(), whole(family, stranger)[name].ravel())[0, 1]
    assert abs(cosine) < 0.1
    with pytest.raises(ValueError, match="no planted change"):
        family.delta(stranger, name)


def test_all_follows_from_the_seed(family):
    other, changed = Family(PLAN), Family(Plan("tiny", 40, seed=4, datasets=4))
    layout = family.files(5)[0]
    assert other.read(5, layout, 0, layout.size) == family.read(5, layout, 0, layout.size)
    assert other.kinds == family.kinds
    assert other.digest(5, layout.path) == family.digest(5, layout.path) != changed.digest(5, layout.path)
    base = family.files(BASE)[0]
    assert changed.read(BASE, base, 0, base.size) != family.read(BASE, base, 0, base.size)


def test_files_of_llama_have_the_sizes_of_the_real_ones():
    sizes = [layout.size for layout in layouts(SHAPES["llama-3-8b"], None, "BF16")]
    assert sizes == [4_976_698_672, 4_999_802_720, 4_915_916_176, 1_168_138_808]
    # The real file is older: its header is not padded.
    assert layouts(SHAPES["roberta-base"], None, "F32")[0].size == pytest.approx(498_818_054, abs=200)
    assert layouts(SHAPES["gpt2"], None, "F32")[0].size == pytest.approx(548_105_171, abs=200)


def test_the_library_lists_and_reads_it(hub, family, tmp_path):
    base = base_id(PLAN)
    api = HfApi()
    expand = ["tags", "cardData", "config", "siblings", "sha", "safetensors", "createdAt", "lastModified"]
    found = list(api.list_models(filter=f"base_model:finetune:{base}", sort="created_at", expand=expand))
    assert len(found) == 40
    assert {each.id for each in found} == {model_id(family, model) for model in range(40)}
    assert [each.created_at for each in found] == sorted((each.created_at for each in found), reverse=True)
    assert all(each.last_modified > each.created_at for each in found)
    for each in found:
        model = int(each.id.rsplit("-", 1)[1])
        assert each.card_data.datasets == [dataset_id(int(family.datasets[model]))]
        assert f"dataset:{each.card_data.datasets[0]}" in each.tags
        layout = family.files(model)[0]
        count = sum(tensor.numbers for tensor in layout.tensors)
        assert each.safetensors.total == count
        assert set(each.safetensors.parameters) == set(layout.dtypes)
        assert "model.safetensors" in [file.rfilename for file in each.siblings]
    model = of_kind(family, "finetune", "F16")[0]
    name = model_id(family, model)
    info = api.model_info(name, files_metadata=True)
    file = next(file for file in info.siblings if file.rfilename == "model.safetensors")
    assert (file.size, file.lfs.sha256) == (family.files(model)[0].size, family.digest(model, file.rfilename))
    metadata = api.get_safetensors_metadata(name).files_metadata["model.safetensors"].tensors
    assert metadata["classifier.out_proj.weight"].shape == [family.labels(model), 48]
    path = hf_hub_download(name, "model.safetensors", cache_dir=tmp_path)
    layout = family.files(model)[0]
    with open(path, "rb") as stream:
        assert stream.read() == family.read(model, layout, 0, layout.size)
    with open(hf_hub_download(name, "config.json", cache_dir=tmp_path)) as stream:
        assert json.load(stream) == config_of(family, model)
    counted = hub.counters.totals()
    assert counted["listing"]["requests"] == 6
    assert counted["range"]["statuses"].keys() == {"206"} or counted["whole"]["body_bytes"] == layout.size


def test_shards_and_their_index(monkeypatch):
    plan = Plan("tiny-llama", 3)
    with VirtualHub(plan) as hub:
        use_endpoint(monkeypatch, hub.endpoint)
        try:
            metadata = HfApi().get_safetensors_metadata(model_id(hub.family, 1))
        finally:
            reset_session()
    assert metadata.sharded
    assert len(metadata.files_metadata) == len(hub.family.files(1)) > 1
    assert all(BYTES[each.dtype] == 2 for file in metadata.files_metadata.values() for each in file.tensors.values())
    assert set(metadata.weight_map) == {tensor.name for layout in hub.family.files(1) for tensor in layout.tensors}


def test_a_listing_is_put_in_order_once(hub, monkeypatch):
    calls = []
    monkeypatch.setattr(
        rows, "tags", lambda repository, tags=rows.tags: calls.append(repository.id) or tags(repository)
    )
    for _ in range(2):
        assert len(list(HfApi().list_models(filter=f"base_model:{base_id(PLAN)}", sort="created_at"))) == 40
    assert len(calls) == 41  # each repository is looked at once, the base too; twelve pages were asked for


def _signed(hub, model, family=None):
    url = f"{hub.endpoint}/{model_id(family or hub.family, model)}/resolve/main/{(family or hub.family).files(model)[0].path}"

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_):
            return None

    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.build_opener(Stay).open(url, timeout=60)
    caught.value.close()
    assert caught.value.code == 302
    return caught.value.headers["Location"]


def test_ranges_over_http(hub, family):
    model = of_kind(family, "finetune", "F32")[0]
    layout = family.files(model)[0]
    url = _signed(hub, model)
    status, headers, data = get(url, Range="bytes=1001-70000")
    assert (status, headers["Content-Range"]) == (206, f"bytes 1001-70000/{layout.size}")
    assert data == family.read(model, layout, 1001, 70001)
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(url, Range=f"bytes={layout.size}-")
    caught.value.close()
    assert caught.value.code == 416


def test_requests_are_counted_by_kind_and_not_kept(hub):
    url = _signed(hub, 0)
    for _ in range(5):
        get(url, Range="bytes=0-99")
    found = json.loads(get(f"{hub.endpoint}/stats?reset=1")[2])
    assert found["resolve weights GET"]["statuses"] == {"302": 1}
    assert found["range"] == {"requests": 5, "body_bytes": 500, "statuses": {"206": 5}}
    assert hub.requests == []
    assert "range" not in json.loads(get(f"{hub.endpoint}/stats")[2])


def test_bandwidth_is_shared_and_answers_wait():
    with VirtualHub(Plan("tiny", 3), bandwidth=400_000, latency=0.05) as hub:
        url = _signed(hub, 0)
        started = time.monotonic()
        threads = [threading.Thread(target=get, args=(url,), kwargs={"Range": "bytes=0-49999"}) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - started > 0.45  # 200,000 bytes at 400,000 a second
        started = time.monotonic()
        get(url, Range="bytes=0-9")
        assert time.monotonic() - started > 0.05
        assert hub.counters.totals()["range"]["body_bytes"] == 200_010


def test_quotas_are_held():
    with VirtualHub(Plan("tiny", 3), quotas={"resolvers": (2, 100.0)}) as hub:
        url = _signed(hub, 0)
        _signed(hub, 1)
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(f"{hub.endpoint}/{model_id(hub.family, 2)}/resolve/main/config.json")
        caught.value.close()
        assert caught.value.code == 429
        assert caught.value.headers["RateLimit"].startswith('"resolvers";r=0;t=')
        assert 90 <= int(caught.value.headers["Retry-After"]) <= 100
        # Neither what was signed nor the listing counts against it.
        assert get(url, Range="bytes=0-9")[0] == 206
        assert get(f"{hub.endpoint}/api/models")[0] == 200
        assert hub.counters.totals()["resolve small GET"]["statuses"] == {"429": 1}


def test_a_plan_that_cannot_be_drawn_is_refused():
    for wrong in (
        {"shape": "bert"},
        {"half": 0.7, "bfloat": 0.7},
        {"copies": -0.1},
        {"unrelated": 0.95},
        {"datasets": 0},
    ):
        with pytest.raises(ValueError, match=r"unknown shape|shares|at least one"):
            Plan(**wrong)
    with pytest.raises(RuntimeError, match="ended with exit code 1"), running(PLAN, page="none"):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["tiny", "tiny-gpt2", "tiny-llama"])
def test_an_atlas_of_it_finds_what_was_planted(shape, tmp_path):
    """In a process of its own, over HTTP, by the real commands."""
    plan = Plan(
        shape, 24, seed=1, half=0.1, bfloat=0, copies=0.05, duplicates=0.05, unrelated=0.05, datasets=3, named=1.0
    )  # fmt: skip
    family = Family(plan)
    with running(plan) as hub:
        # Another process draws the same.
        layout = family.files(7)[0]
        data = get(_signed(hub, 7, family), Range=f"bytes=0-{layout.size - 1}")[2]
        assert data == family.read(7, layout, 0, layout.size)
        hub.stats(reset=True)
        shell = Shell(hub.endpoint, tmp_path, {"HF_HOME": str(tmp_path / "hf")})
        ran = shell("index", "build", "--base", base_id(plan), "--json")
        assert ran.code == 0, ran.err
        assert (ran.json["discovered"], ran.json["indexed"], ran.json["failed"]) == (24, 24, 0)
        counted = hub.stats()
        assert counted["range"]["body_bytes"] >= ran.json["bytes_read"] > 0
        assert "whole" not in counted
        purity = shell("query", "purity", "--base", base_id(plan), "--json")
        assert purity.code == 0, purity.err
        assert purity.json["purity"] > 0.9 > 2 * purity.json["chance"]
    with pytest.raises(OSError, match="refused"):
        get(hub.endpoint)
    with duckdb.connect(str(tmp_path / "atlas" / "atlas.duckdb"), read_only=True) as atlas:
        found = atlas.execute("SELECT model, model_id, is_copy, is_unrelated, duplicate_of FROM models").fetchall()
        deltas = dict(atlas.execute("SELECT model, relative_norm FROM models").fetchall())
    assert len(found) == 24
    names = [model_id(family, model) for model in range(24)]
    assert {model for model, _, is_copy, *_ in found if is_copy} == {names[i] for i in of_kind(family, "copy")}
    assert {model for model, _, _, foreign, _ in found if foreign} == {names[i] for i in of_kind(family, "unrelated")}
    double = of_kind(family, "duplicate")[0]
    pair = {names[double], names[family.original[double]]}
    ids = {number: model for model, number, *_ in found}
    assert [{model, ids[of]} for model, *_, of in found if of is not None] == [pair]
    for model in of_kind(family, "finetune", SHAPES[shape].dtype):
        assert deltas[names[model]] == pytest.approx(family.norms[model], rel=0.3)
