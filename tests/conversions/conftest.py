"""A Hub with a small Llama, three fine-tunes of it, and conversions of some of them; and an atlas of it."""

from __future__ import annotations

import pytest

from studies.conversions import families, writers
from tests.tiny_hub import describe, served_shell

BASE = "org/small-llama"
CONFIG = families.config_of("llama", layers=2)
WEIGHTS = families.base_weights(CONFIG)
TUNED = {
    f"{author}/tuned": families.fine_tune(WEIGHTS, 0.01, seed) for seed, author in enumerate(("ann", "bob", "cyd"))
}
SOURCE, OTHER = "bob/tuned", "ann/tuned"


def quantised(root, name, claims):
    tags = [
        "gguf",
        *(f"base_model:{claim}" for claim in claims),
        *(f"base_model:quantized:{claim}" for claim in claims),
    ]
    describe(root, name, tags=tags, card_data={"base_model": list(claims)})


def make_hub(root):
    """The store of a loopback Hub."""
    families.save(root / BASE, CONFIG, WEIGHTS)
    describe(root, BASE, tags=["transformers", "llama"])
    for name, weights in TUNED.items():
        families.save(root / name, CONFIG, weights)
        tags = [f"base_model:{BASE}", f"base_model:finetune:{BASE}", "safetensors", "dataset:glue"]
        describe(root, name, tags=tags, card_data={"base_model": BASE, "datasets": ["glue"]})
    # A faithful one, the same once more, one that claims another source, a tampered one, one of the base.
    for name in ("dan/tuned-gguf", "eve/again-gguf"):
        writers.write_gguf(root / name / "tuned-Q4_K_M.gguf", CONFIG, TUNED[SOURCE], {"": "Q4_K", "ffn_down": "Q6_K"})
        quantised(root, name, [SOURCE, BASE])
    writers.write_gguf(root / "dan/wrong-gguf" / "wrong-Q8_0.gguf", CONFIG, TUNED[SOURCE], "Q8_0")
    quantised(root, "dan/wrong-gguf", [OTHER, BASE])
    tampered = dict(TUNED[SOURCE])
    tampered["model.layers.0.mlp.up_proj.weight"] = WEIGHTS["model.layers.0.mlp.up_proj.weight"]
    writers.write_gguf(root / "dan/tampered-gguf" / "m-Q5_0.gguf", CONFIG, tampered, "Q5_0")
    quantised(root, "dan/tampered-gguf", [SOURCE, BASE])
    writers.write_gguf(root / "dan/base-gguf" / "m-Q4_0.gguf", CONFIG, WEIGHTS, "Q4_0")
    quantised(root, "dan/base-gguf", [BASE])
    writers.write_gptq(root / "dan/tuned-gptq", CONFIG, TUNED[SOURCE])
    quantised(root, "dan/tuned-gptq", [SOURCE, BASE])
    return root


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    """A shell in which the atlas was built."""
    folder = tmp_path_factory.mktemp("conversions")
    with served_shell(make_hub(folder / "store")) as shell:
        ran = shell("index", "build", "--base", BASE, "--relation", "finetune,quantized", "--json")
        assert ran.code == 0, ran.err
        yield shell
