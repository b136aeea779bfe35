"""What an atlas keeps of a base: some rows for adapters, all for the rest; and `index prune`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from indexer import add, prune, status, verify
from indexer.atlas import AtlasFolder
from indexer.checkpoints.checkpoint import open_checkpoint
from indexer.cli.upkeep import _sizes
from indexer.deltas.base import BaseMatrices, reduce_to_sample, store_base
from indexer.records.store import RecordStore
from indexer.sources.registry import ModelRef
from indexer.upkeep.prune import keep_sample_if_enough
from tests.database import read_rows
from tests.hubs import served
from tests.tiny_hub import describe

WIDTH, LAYERS = 512, 1
BASES = {"bert": "org/base-bert", "gpt2": "org/base-gpt2"}


def make_base(store: Path, kind: str) -> torch.nn.Module:
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    torch.manual_seed(0)
    if kind == "bert":
        sizes = {
            "hidden_size": WIDTH,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "intermediate_size": WIDTH,
        }
        model = BertModel(BertConfig(**sizes, vocab_size=64, max_position_embeddings=16))
    else:
        model = GPT2Model(
            GPT2Config(n_embd=WIDTH, n_layer=LAYERS, n_head=4, n_inner=WIDTH, vocab_size=64, n_positions=16)
        )
    model.save_pretrained(store / BASES[kind])
    describe(store, BASES[kind], tags=["transformers", kind])
    return model


def make_adapter(folder: Path, kind: str, seed: int = 1, **config) -> Path:
    torch.manual_seed(seed)
    module = {"bert": "encoder.layer.0.attention.self.query", "gpt2": "h.0.attn.c_attn"}[kind]
    out = WIDTH if kind == "bert" else 3 * WIDTH
    tensors = {"lora_A.weight": torch.randn(4, WIDTH), "lora_B.weight": 0.1 * torch.randn(out, 4)}
    if config.get("use_dora"):
        tensors["lora_magnitude_vector"] = torch.rand(out) + 1
    folder.mkdir()
    save_file(
        {f"base_model.model.{module}.{part}": one for part, one in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": BASES[kind]}
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"target_modules": [module]} | config))
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    with served(tmp_path / "store", monkeypatch) as hub:
        yield SimpleNamespace(store=tmp_path / "store", atlas=AtlasFolder(tmp_path / "atlas"), here=tmp_path, hub=hub)


def base_file(atlas: AtlasFolder) -> BaseMatrices:
    (path,) = atlas.bases.glob("*.safetensors")
    return BaseMatrices(path, resident=False)


def base_of(atlas: AtlasFolder) -> BaseMatrices:
    """The base that the atlas has published."""
    ((base, commit),) = read_rows(atlas.database, 'SELECT base, "commit" FROM bases')
    return BaseMatrices(atlas.base(base, commit), resident=False)


def kinds(atlas: AtlasFolder) -> list[str]:
    """What can go, besides vectors of the publish before, which readers may still open."""
    found = prune(atlas.root, dry_run=True)["removed"]
    return sorted({one["kind"] for one in found} - {"vectors"})


def norms(atlas):
    return dict(read_rows(atlas.database, "SELECT model, relative_norm FROM models"))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_an_atlas_of_adapters_keeps_some_rows_of_the_base(place, kind):
    make_base(place.store, kind)
    said = []
    add(
        make_adapter(place.here / "one", kind),
        BASES[kind],
        place.atlas.root,
        progress=lambda event: said.append(event.message),
    )
    assert any("only some rows" in sentence for sentence in said)
    base = base_file(place.atlas)
    base.check()
    assert base.is_sampled
    assert base.path.stat().st_size < 0.5 * base.block_bytes
    before = base.norms
    assert status(place.atlas.root)["bytes"]["bases"] == base.path.stat().st_size
    fetched = len(place.hub.requests)
    add(make_adapter(place.here / "two", kind, 2), BASES[kind], place.atlas.root)
    assert not [one for one in place.hub.requests[fetched:] if one.path.endswith(".safetensors")], "nothing is fetched"
    assert base_file(place.atlas).norms == before, "those of the whole matrices"
    assert len(norms(place.atlas)) == 2
    assert not verify(place.atlas.root)
    assert kinds(place.atlas) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_rows_that_are_kept_are_those_of_the_whole_base(place, kind):
    make_base(place.store, kind)
    add(make_adapter(place.here / "one", kind, use_dora=True), BASES[kind], place.atlas.root)
    whole = base_file(place.atlas)
    assert not whole.is_sampled, "the change of DoRA depends on the weights"
    from indexer.deltas.stored_base import sampled_lines
    from indexer.records.row_plan import lines_of

    lines = {one.key: lines_of(one.lines, sampled_lines(one)) for one in whole.layout.matrices}
    rows = {key: whole.lines(key, some).clone() for key, some in lines.items()}
    size = whole.path.stat().st_size
    assert size - reduce_to_sample(whole.path) == whole.path.stat().st_size
    sample = base_file(place.atlas)
    sample.check()
    for key, some in lines.items():
        assert torch.equal(sample.lines(key, some), rows[key])
    assert sample.norms == whole.norms
    assert {kind: one.shape for kind, one in sample.embeddings.items()} == {
        kind: one.shape for kind, one in whole.embeddings.items()
    }


@pytest.mark.slow
def test_the_whole_base_is_fetched_again_as_soon_as_a_model_needs_it(place):
    model = make_base(place.store, "bert")
    base, atlas = BASES["bert"], place.atlas
    add(make_adapter(place.here / "one", "bert"), base, atlas.root)
    assert base_file(atlas).is_sampled
    dora = make_adapter(place.here / "dora", "bert", 3, use_dora=True)
    report = add(dora, base, atlas.root)
    assert (report.indexed, report.skipped) == (1, 0)
    assert not base_file(atlas).is_sampled
    alone = AtlasFolder(place.here / "alone")
    add(dora, base, alone.root)
    assert norms(alone)["local:dora"] == norms(atlas)["local:dora"]
    # Full weights.
    adapters = AtlasFolder(place.here / "adapters")
    add(place.here / "one", base, adapters.root)
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.weight += 0.01 * torch.randn(WIDTH, WIDTH)
    model.save_pretrained(place.here / "full")
    add(place.here / "full", base, adapters.root)
    assert not base_file(adapters).is_sampled
    assert kinds(adapters) == []


@pytest.mark.slow
def test_prune_removes_what_no_publish_uses(place):
    make_base(place.store, "bert")
    base, atlas = BASES["bert"], place.atlas
    folder = make_adapter(place.here / "one", "bert", use_dora=True)
    add(folder, base, atlas.root)
    store = RecordStore(atlas)
    ((first),) = store.digests()
    # The adapter at a new commit; its old record is put back, as after a crash.
    old = atlas.record(first).read_bytes()
    make_adapter(place.here / "again", "bert", 5)
    (place.here / "again" / "adapter_model.safetensors").replace(folder / "adapter_model.safetensors")
    (place.here / "again" / "adapter_config.json").replace(folder / "adapter_config.json")
    add(folder, base, atlas.root)
    assert base_file(atlas).is_sampled, "no model needs it any more"
    atlas.record(first).parent.mkdir(exist_ok=True)
    atlas.record(first).write_bytes(old)
    # Matrices of another commit, vectors of an earlier publish, and all rows of the base.
    reference = ModelRef(str(place.store / base), folder=place.store / base)
    with closing(open_checkpoint(reference)) as checkpoint:
        other = store_base(checkpoint, base, "f" * 40, atlas.base(base, "f" * 40)).path
        store_base(checkpoint, base, base_of(atlas).commit, base_of(atlas).path)
    (atlas.root / "old.faiss").write_bytes(b"x" * 10)
    assert kinds(atlas) == ["base", "record", "rows of a base"]
    found = prune(atlas.root, dry_run=True)
    sizes = {one["kind"]: one["bytes"] for one in found["removed"]}
    assert (sizes["record"], sizes["base"]) == (len(old), other.stat().st_size)
    assert atlas.record(first).exists()
    whole = base_of(atlas).path.stat().st_size
    before = norms(atlas)
    assert prune(atlas.root)["bytes"] == found["bytes"]
    assert not atlas.record(first).exists()
    assert not other.exists()
    assert not (atlas.root / "old.faiss").exists()
    assert 0.9 < (whole - base_of(atlas).path.stat().st_size) / sizes["rows of a base"] < 1.1
    assert prune(atlas.root)["removed"] == []
    assert norms(atlas) == before


def test_records_that_wait_to_be_published_stay(place):
    make_base(place.store, "bert")
    base, atlas = BASES["bert"], place.atlas
    add(make_adapter(place.here / "one", "bert"), base, atlas.root)
    add(make_adapter(place.here / "two", "bert", 2), base, place.here / "other")
    # As after a build that was killed before it published.
    other = AtlasFolder(place.here / "other")
    (digest,) = RecordStore(other).digests()
    atlas.record(digest).parent.mkdir(exist_ok=True)
    atlas.record(digest).write_bytes(other.record(digest).read_bytes())
    assert kinds(atlas) == []
    assert keep_sample_if_enough(atlas, base) == 0
    assert atlas.record(digest).exists()


def test_the_status_has_a_line_of_sizes():
    sizes = {"database": 8_000_000, "vectors": 0, "records": 239_000_000, "bases": 2_900_000_000}
    assert _sizes(sizes) == "3.1 GB: bases 2.9 GB, records 239 MB, database 8.0 MB"
