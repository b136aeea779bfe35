"""Adapters of a classifier are applied to the language model of their base."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.family.plan import load_plan


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_an_adapter_of_a_t5_classifier_changes_the_stacks_of_the_language_model(tmp_path, named):
    """T5's classifiers hold the stacks in a module that its language model does not have."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    import torch

    from studies.arena.rivals import tuned_body

    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0
    )
    base = transformers.T5ForConditionalGeneration(config)
    base.save_pretrained(tmp_path / "a" / "base")
    classifier = transformers.T5ForSequenceClassification.from_pretrained(tmp_path / "a" / "base")
    adapted = peft.get_peft_model(classifier, peft.LoraConfig(r=2, target_modules=["q"], task_type="SEQ_CLS"))
    lora = adapted.base_model.model.transformer.encoder.block[0].layer[0].SelfAttention.q
    torch.nn.init.normal_(lora.lora_B["default"].weight)
    adapted.save_pretrained(tmp_path / "a" / "tuned")
    if not named:
        from safetensors.torch import load_file, save_file

        file = tmp_path / "a" / "tuned" / "adapter_model.safetensors"
        save_file({name.replace(".encoder.", ".other."): one for name, one in load_file(file).items()}, file)
    plan = replace(load_plan("demo", "t5"), base="a/base")
    if not named:
        with pytest.raises(ValueError, match="has adapter weights that the base has no place for"):
            tuned_body(tmp_path, "a/tuned", plan)
        return
    found = tuned_body(tmp_path, "a/tuned", plan).encoder.block[0].layer[0].SelfAttention.q.weight
    before = base.encoder.block[0].layer[0].SelfAttention.q.weight
    torch.testing.assert_close(found - before, lora.get_delta_weight("default"))
