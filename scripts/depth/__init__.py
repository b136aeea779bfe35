"""Small real models that layers can be asked of: a ViT, a GPT-2 and an MLP mixer, trained here in about a minute."""
