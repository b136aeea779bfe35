"""From real checkpoints and tokenizers: two bases are indexed, and their models compared by words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from indexer.atlas import AtlasFolder
from indexer.upkeep.deep_verification import verify_deeply
from indexer.upkeep.maintenance import rebuild
from indexer.upkeep.verification import verify
from query import Atlas
from tests.across.planted import english
from tests.tiny_hub import add_model, describe, served_shell, shift_weights

WORDS = english(90)
TOPICS = {"glue": WORDS[:30], "imdb": WORDS[30:60], "squad": WORDS[60:]}
BASES = ("org/pieces", "org/bytes")
AUTHORS = ("ann", "bob", "cyd", "dan")


def tokenizer_of(base: str) -> Tokenizer:
    """WordPiece for the first base, byte-level BPE for the other, of the same text in other proportions."""
    draw = np.random.default_rng(len(base))
    texts = [" ".join(draw.choice(WORDS, 12)) for _ in range(400)]
    if base == BASES[0]:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<s>"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make_store(root: Path) -> Path:
    """Two bases, and of each three fine-tunes for every data set that moved the rows of its words."""
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification, RobertaModel

    for base in BASES:
        torch.manual_seed(len(base))
        tokenizer = tokenizer_of(base)
        config = RobertaConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=16,
        )  # fmt: skip
        body = RobertaModel(config)
        body.save_pretrained(root / base)
        tokenizer.save(str(root / base / "tokenizer.json"))
        describe(root, base, tags=["transformers", "roberta"])
        model = RobertaForSequenceClassification(config)
        for number, (dataset, topic) in enumerate(TOPICS.items()):
            rows = sorted(
                {token for word in topic for token in tokenizer.encode(f" {word}", add_special_tokens=False).ids}
            )
            for member in range(3):
                seed = 100 * number + member
                model.roberta.load_state_dict(body.state_dict(), strict=False)
                shift_weights(model.roberta, number, seed=seed)
                draw = torch.Generator().manual_seed(seed)
                embedding = model.roberta.embeddings.word_embeddings.weight
                with torch.no_grad():
                    embedding[rows] += 1e-3 * (1 + member) * torch.randn(len(rows), config.hidden_size, generator=draw)
                name = f"{AUTHORS[(member + number) % 4]}/{base.partition('/')[2]}-{dataset}-{member}"
                add_model(root, name, model, dataset=dataset, base=base, downloads=seed)
    return root


@pytest.mark.slow
def test_two_bases_are_indexed_and_compared(tmp_path):
    with served_shell(make_store(tmp_path / "store")) as shell:
        for base in BASES:
            ran = shell("index", "build", "--base", base)
            assert ran.code == 0, ran.err
        for model, other in (("ann/pieces-glue-0", BASES[1]), ("ann/bytes-glue-0", BASES[0])):
            ran = shell("query", "similar", model, "--base", other, "-k", "3", "--explain", "--json")
            assert ran.code == 0, ran.err
            found = json.loads(ran.out)
            assert {tuple(row["datasets"]) for row in found} == {("glue",)}
            assert {row["base"] for row in found} == {other}
            assert all(set(row["words"]) <= set(TOPICS["glue"]) for row in found)
        # A model that the atlas does not hold, read from a folder.
        ran = shell(
            "query", "similar", str(shell.store / "ann/pieces-glue-0"), "--across", "--base", BASES[0], "--json"
        )
        assert ran.code == 0, ran.err
        assert {tuple(row["datasets"]) for row in json.loads(ran.out)[:4]} == {("glue",)}
        ran = shell("query", "purity", "--across", "--json")
        assert json.loads(ran.out)["purity"] == 1.0
        folder = AtlasFolder(shell.folder / "atlas")
    assert verify(folder) == []
    assert verify_deeply(folder) == []
    with Atlas(folder.root) as atlas:
        before = [(one.model, round(one.similarity, 5)) for one in atlas.similar("ann/pieces-glue-0", across=True)]
        words = {
            row["base"]: [word for word in row["words"] if word] for row in atlas.rows("SELECT base, words FROM bases")
        }
    assert all(len(set(WORDS) & set(known)) > 60 for known in words.values())
    with folder.locked("test"):
        rebuild(folder)
    with Atlas(folder.root) as atlas:
        after = [(one.model, round(one.similarity, 5)) for one in atlas.similar("ann/pieces-glue-0", across=True)]
    assert before == after
