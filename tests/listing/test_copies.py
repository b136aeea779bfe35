"""Adapters of copies: by the listing, by the table of mirrors, and by the checksums that the Hub gives."""

from __future__ import annotations

from datetime import UTC, datetime

from indexer.listing.listing import ListedModel
from indexer.listing.parents import Parents
from indexer.records.identity import ModelVersion
from indexer.sources.registry import ModelRef

BASE = "mistralai/Tiny-Base"
FILES = ("1" * 64, "2" * 64)


def row(name: str, named: str | None = None, hashes=(), **more) -> dict:
    files = [{"rfilename": "adapter_config.json"}] if named else [{"rfilename": "model.safetensors"}]
    files += [{"rfilename": f"{one[0]}.safetensors", "lfs": {"sha256": one}} for one in hashes]
    config = {"peft": {"base_model_name_or_path": named}} if named else {}
    return {"id": name, "sha": "c" * 40, "siblings": files, "config": config, **more}


def parent_of(named: str, *others: dict, hub=(), copies=None, hashes=()) -> tuple[object, list[str], Parents]:
    asked: list[str] = []
    known = {one["id"]: one for one in hub}

    def ask(name):
        asked.append(name)
        return known.get(name)

    now = datetime.now(UTC)
    models = [
        ListedModel(one["id"], one, "adapter" if one["config"] else "finetune", "tag", BASE, now, now)
        for one in (row("a/adapter", named), *others)
    ]
    parents = Parents((BASE,), models, ask, copies, hashes)
    return parents.of(models[0]), asked, parents


def test_an_adapter_of_a_copy_is_one_of_what_was_copied():
    copies = {"x/copy-4bit": "x/copy", "x/copy": BASE, "a/tuned-4bit": "a/tuned", "x/round": "x/Round"}
    tuned = ModelVersion(ModelRef("a/tuned"), "c" * 40, "finetune")
    for named in ("x/copy-4bit", "X/Copy", "x--copy", "unsloth/Tiny-Base-bnb-4bit", "unsloth/tiny-base"):
        found, asked, parents = parent_of(named, copies=copies)
        assert (found, asked, parents.unknown) == (None, [], {}), named
    for named in ("a/tuned-4bit", "a/tuned"):
        assert parent_of(named, row("a/tuned"), copies=copies)[:2] == (tuned, [])
    # Nothing is known of it, and its claims lead nowhere.
    assert "a/adapter" in parent_of("x/round", copies=copies)[2].unknown


def test_a_copy_that_the_hub_describes_leads_to_what_was_copied():
    quantised = row("q/tuned-4bit", tags=["base_model:a/tuned", "base_model:quantized:a/tuned"])
    found, asked, _ = parent_of("q/tuned-4bit", row("a/tuned"), hub=[quantised])
    assert (found, asked) == (ModelVersion(ModelRef("a/tuned"), "c" * 40, "finetune"), ["q/tuned-4bit"])
    circle = [
        row("q/one", tags=["base_model:quantized:q/two"]),
        row("q/two", tags=["base_model:quantized:q/one"]),
    ]
    assert "a/adapter" in parent_of("q/one", hub=circle)[2].unknown


def test_a_model_with_the_files_of_the_base_is_the_base():
    mirror = row("x/Tiny-Base-ungated")
    described = row("x/Tiny-Base-ungated", hashes=(*FILES, "3" * 64))
    found, asked, _ = parent_of("x/Tiny-Base-ungated", mirror, hub=[described], hashes=FILES)
    assert (found, asked) == (None, ["x/Tiny-Base-ungated"])
    other = row("x/Tiny-Base-ungated", hashes=FILES[:1])
    found, asked, _ = parent_of("x/Tiny-Base-ungated", mirror, hub=[other], hashes=FILES)
    assert found == ModelVersion(ModelRef("x/Tiny-Base-ungated"), "c" * 40, "finetune")
    # One that is not named after the base is not asked about once more; nor is any where hashes are not known.
    for named, hashes in (("x/other", FILES), ("x/Tiny-Base-ungated", ()), ("x/Tiny-Base-ungated", (None,))):
        found, asked, _ = parent_of(named, row(named), hashes=hashes)
        assert (found.model.id, asked) == (named, [])


def test_checksums_may_be_anything():
    for siblings in (None, 5, [None], [{"lfs": 5}], [{"lfs": {"sha256": []}}]):
        odd = row("x/Tiny-Base-2") | {"siblings": siblings}
        found, _, _ = parent_of("x/Tiny-Base-2", row("x/Tiny-Base-2"), hub=[odd], hashes=FILES)
        assert found.model.id == "x/Tiny-Base-2"
