"""Which bases and which training runs there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 8192
OWNER = "trace"


@dataclass(frozen=True)
class Base:
    """A small network that is pretrained a little; its settings are laid over those of ``scripts.family``."""

    architecture: str  # of scripts/family/plan.toml; qwen2 is described here
    tokenizer: str  # byte-level BPE, WordPiece or Unigram
    config: Mapping[str, Any]
    steps: int = 150


BASES: Mapping[str, Base] = {
    "bert": Base(
        "bert",
        "WordPiece",
        {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "type_vocab_size": 2}
        | {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    ),
    "roberta": Base("roberta", "BPE", {"num_hidden_layers": 2, "intermediate_size": 256}),
    "gpt2": Base("gpt2", "BPE", {"n_embd": 64, "n_layer": 2, "resid_pdrop": 0.1, "embd_pdrop": 0.1}),
    "qwen2": Base("qwen2", "BPE", {}),
    "t5": Base(
        "t5",
        "Unigram",
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2, "dropout_rate": 0.1},
    ),
}

# What scripts/family/plan.toml would say of it.
QWEN2: Mapping[str, Any] = {
    "model_type": "qwen2",
    "objective": "causal",
    "language_task": "text-generation",
    "language_head": "lm_head",
    "layers": ("layers",),
    "modules": {"query": "q_proj", "value": "v_proj"},
    "config": {
        "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 192, "max_position_embeddings": 128, "tie_word_embeddings": False,
        "initializer_range": 0.05,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One model: a training run, or what is made of others (``of``)."""

    name: str
    base: str = "bert"
    dataset: str = "errors/exception-types"
    task: str = "classify"  # classify | pairs | language | answer (text to text)
    optimizer: str = "adamw"  # a key of training.OPTIMIZERS
    learning_rate: float = 1e-4
    decay: float = 0.0
    schedule: str = "linear"  # linear | cosine | constant
    steps: int = 100
    batch: int = 8
    accumulation: int = 1
    longest: int = 32
    share: float = 0.4  # of the data set's texts
    dropout: bool = True
    planted: int = 8  # texts with a token of their own that are met in the last batch alone
    trained: str = "float32"  # float32 | bfloat16 | autocast (bfloat16 where torch thinks fit)
    saved: str = "float32"
    parent: str | None = None  # tuned from this run
    added: int = 0  # tokens
    frozen: bool = False
    lora: bool = False
    make: str = "train"  # or a key of making.MAKERS
    of: tuple[str, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1

    @property
    def model(self) -> str:
        """The repository's id."""
        return f"{OWNER}/{self.name}"


LINES, KINDS, NAMES = "code/line-kinds", "docs/numeric-kinds", "unicode/character-names"
MESSAGES, TOPICS, SECTIONS = "errors/exception-types", "python/language-topics", "docs/numpydoc-sections"
SIGNATURES = "code/signatures"

RUNS: tuple[Run, ...] = (
    # Optimisers, float32 files
    Run("bert-adamw-0", decay=0.0),
    Run("bert-adamw-01", decay=0.01, dataset=KINDS, seed=2),
    Run("bert-adamw-1", decay=0.1, dataset=TOPICS, seed=3),
    Run("bert-adamw-low", decay=0.01, learning_rate=1e-5, steps=200, dataset=LINES, seed=4),
    Run("bert-adamw-cosine", decay=0.01, learning_rate=5e-5, schedule="cosine", steps=200, dataset=SECTIONS, seed=5),
    Run("bert-adamw-long", decay=0.01, learning_rate=2e-5, steps=800, batch=4, dataset=MESSAGES, seed=6),
    Run("bert-adamw-longer", decay=0.01, learning_rate=2e-5, steps=3000, batch=2, dataset=LINES, seed=56),
    Run("roberta-adamw-long", base="roberta", decay=0.1, learning_rate=1e-5, schedule="cosine", steps=800, batch=4, dataset=TOPICS, seed=57),
    Run("bert-adamw-fused", optimizer="adamw fused", decay=0.01, dataset=NAMES, seed=7),
    Run("bert-adam-l2", optimizer="adam l2", decay=0.01, dataset=MESSAGES, seed=8),
    Run("bert-adafactor", optimizer="adafactor", learning_rate=5e-5, decay=0.01, dataset=KINDS, seed=9),
    Run("bert-lion", optimizer="lion", learning_rate=3e-5, decay=0.1, dataset=TOPICS, seed=10),
    Run("bert-sgd", optimizer="sgd", learning_rate=1e-2, dataset=MESSAGES, seed=11),
    Run("bert-sgd-low", optimizer="sgd", learning_rate=1e-4, decay=0.01, dataset=MESSAGES, seed=12),
    Run("bert-momentum", optimizer="momentum", learning_rate=1e-2, decay=0.01, dataset=LINES, seed=13),
    Run("roberta-adamw-01", base="roberta", decay=0.01, dataset=MESSAGES, seed=14),
    Run("roberta-adamw-1", base="roberta", decay=0.1, learning_rate=5e-5, dataset=KINDS, steps=150, seed=15),
    Run("roberta-constant", base="roberta", schedule="constant", learning_rate=5e-5, decay=0.01, dataset=LINES, seed=16),
    Run("roberta-adafactor", base="roberta", optimizer="adafactor", learning_rate=1e-4, dataset=TOPICS, seed=17),
    Run("roberta-lion", base="roberta", optimizer="lion", learning_rate=2e-5, decay=0.01, dataset=SECTIONS, seed=18),
    Run("roberta-sgd", base="roberta", optimizer="sgd", learning_rate=3e-2, decay=0.01, dataset=KINDS, seed=19),
    Run("gpt2-adamw-0", base="gpt2", dataset=MESSAGES, seed=20),
    Run("gpt2-adamw-1", base="gpt2", decay=0.1, learning_rate=5e-5, dataset=KINDS, seed=21),
    Run("gpt2-momentum", base="gpt2", optimizer="momentum", learning_rate=1e-2, dataset=LINES, seed=22),
    Run("qwen2-adamw-01", base="qwen2", decay=0.01, learning_rate=5e-5, dataset=TOPICS, seed=23),
    Run("qwen2-causal", base="qwen2", task="language", decay=0.01, dataset=MESSAGES, seed=24),
    Run("qwen2-causal-1", base="qwen2", task="language", decay=0.1, learning_rate=2e-5, dataset=KINDS, seed=25),
    Run("qwen2-causal-adafactor", base="qwen2", task="language", optimizer="adafactor", dataset=LINES, seed=26),
    Run("t5-classify", base="t5", decay=0.01, dataset=MESSAGES, seed=27),
    Run("t5-classify-adafactor", base="t5", optimizer="adafactor", learning_rate=1e-3, schedule="constant", dataset=KINDS, seed=28),
    Run("t5-answer", base="t5", task="answer", decay=0.01, dataset=MESSAGES, seed=27),
    # The embedding alone, over as many steps as real fine-tunes have
    Run("bert-table-5000", make="table", decay=0.01, learning_rate=2e-5, steps=5000, batch=2, dataset=MESSAGES, seed=58),
    Run("bert-table-adamw-1", make="table", decay=0.1, learning_rate=1e-5, steps=3000, batch=2, dataset=KINDS, seed=59),
    Run("roberta-table-cosine", base="roberta", make="table", decay=0.01, learning_rate=5e-5, schedule="cosine", steps=3000, batch=2, dataset=LINES, seed=60),
    Run("gpt2-table-lion", base="gpt2", make="table", optimizer="lion", decay=0.1, learning_rate=1e-5, steps=3000, batch=2, dataset=TOPICS, seed=61),
    # Schedules that end at zero, nothing planted: one epoch and several
    Run("bert-cosine-epoch", schedule="cosine", steps=600, batch=1, share=0.75, planted=0, decay=0.01, learning_rate=3e-5, dataset=KINDS, seed=62),
    Run("bert-cosine-epochs", schedule="cosine", steps=600, batch=4, planted=0, decay=0.01, learning_rate=3e-5, dataset=KINDS, seed=63),
    Run("bert-linear-epoch", steps=600, batch=1, share=0.75, planted=0, decay=0.01, learning_rate=3e-5, dataset=KINDS, seed=64),
    # How the batches are made
    Run("bert-accumulation", accumulation=4, batch=4, steps=50, decay=0.01, dataset=SECTIONS, seed=29),
    Run("roberta-epochs", base="roberta", steps=150, share=0.1, decay=0.01, dataset=KINDS, seed=30),
    Run("bert-no-dropout", dropout=False, decay=0.01, longest=24, dataset=MESSAGES, seed=31),
    Run("bert-pairs", task="pairs", longest=48, decay=0.01, dataset=KINDS, seed=32),
    Run("roberta-pairs", base="roberta", task="pairs", longest=48, dataset=MESSAGES, seed=33),
    Run("bert-short", steps=10, decay=0.01, dataset=SIGNATURES, seed=34),
    # Dtypes
    Run("bert-fp16", saved="float16", decay=0.01, dataset=MESSAGES, seed=35),
    Run("bert-bf16", saved="bfloat16", decay=0.01, dataset=MESSAGES, seed=35),
    Run("roberta-fp16", base="roberta", saved="float16", decay=0.1, dataset=KINDS, seed=36),
    Run("roberta-bf16", base="roberta", saved="bfloat16", learning_rate=3e-4, dataset=KINDS, seed=36),
    Run("bert-pure-bf16", trained="bfloat16", saved="bfloat16", decay=0.01, dataset=TOPICS, seed=37),
    Run("qwen2-pure-bf16", base="qwen2", task="language", trained="bfloat16", saved="bfloat16", decay=0.1, learning_rate=2e-5, dataset=TOPICS, seed=38),
    Run("bert-autocast", trained="autocast", decay=0.01, dataset=LINES, seed=39),
    Run("qwen2-sgd-fp16", base="qwen2", optimizer="sgd", learning_rate=1e-2, saved="float16", dataset=MESSAGES, seed=40),
    # Tied heads
    Run("bert-masked", task="language", decay=0.01, dataset=MESSAGES, seed=41),
    Run("roberta-masked", base="roberta", task="language", learning_rate=3e-4, dataset=TOPICS, seed=42),
    Run("gpt2-causal", base="gpt2", task="language", decay=0.01, dataset=KINDS, seed=43),
    Run("gpt2-causal-bf16", base="gpt2", task="language", saved="bfloat16", dataset=MESSAGES, seed=44),
    # Added tokens, frozen embeddings, adapters
    Run("bert-added", added=16, decay=0.01, dataset=MESSAGES, seed=45),
    Run("qwen2-added", base="qwen2", task="language", added=5, decay=0.01, dataset=LINES, seed=46),
    Run("bert-frozen", frozen=True, dataset=MESSAGES, seed=47),
    Run("bert-lora", lora=True, learning_rate=1e-3, dataset=MESSAGES, seed=48),
    Run("qwen2-lora", base="qwen2", task="language", lora=True, learning_rate=1e-3, dataset=KINDS, seed=49),
    # Continued, merged, changed
    Run("bert-continued", parent="bert-adamw-01", decay=0.01, dataset=MESSAGES, steps=60, seed=50),
    Run("roberta-continued", base="roberta", parent="roberta-masked", decay=0.01, dataset=MESSAGES, steps=60, seed=51),
    Run("bert-continued-fp16", parent="bert-fp16", decay=0.1, dataset=TOPICS, steps=60, saved="float16", seed=52),
    Run("bert-linear", make="merge", of=("bert-adamw-01", "bert-adamw-1"), how={"method": "linear", "weights": [0.5, 0.5]}),
    Run("bert-linear-fp16", make="merge", of=("bert-adamw-01", "bert-adamw-1"), how={"method": "linear", "weights": [0.7, 0.3]}, saved="float16"),
    Run("bert-ties", make="merge", of=("bert-adamw-0", "bert-adamw-01"), how={"method": "ties", "weights": [1.0, 1.0], "density": 0.2}),
    Run("bert-dare", make="merge", of=("bert-adamw-0", "bert-adamw-01"), how={"method": "dare", "weights": [1.0, 1.0], "density": 0.3, "seed": 5}),
    Run("bert-soup-with-base", make="merge", of=("bert-adamw-0",), how={"method": "task_arithmetic", "weights": [0.1]}),
    Run("bert-pruned", make="prune", of=("bert-adamw-01",)),
    Run("bert-permuted", make="permute", of=("bert-adamw-01",)),
)  # fmt: skip
