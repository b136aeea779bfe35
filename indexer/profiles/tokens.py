"""Words to token ids and back, by the model's own tokenizer files, and never by code of its repository."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.errors import AtlasError, Skipped
from indexer.weights.checkpoint import Checkpoint

MOST_TOKENIZER = 64 << 20
# Older repositories have one of these sets and no tokenizer.json.
_OLDER = (("vocab.json", "merges.txt"), ("vocab.txt",), ("spiece.model",), ("sentencepiece.bpe.model",))
# What of tokenizer_config.json changes how text is cut.
_SETTINGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space")


@dataclass(frozen=True)
class Tokens:
    """A tokenizer: ``special_ids`` are those that stand for no text."""

    tokenizer: Any
    special_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, nothing added."""
        found = self.tokenizer.encode(text, add_special_tokens=False)
        return [int(one) for one in getattr(found, "ids", found)]

    def words(self, ids: Sequence[int]) -> list[str]:
        """Each id as the piece of text that it stands for."""
        return [self.tokenizer.decode([int(one)], skip_special_tokens=False) for one in ids]

    def text(self, ids: Sequence[int]) -> str:
        """The ids as one text."""
        return str(self.tokenizer.decode([int(one) for one in ids], skip_special_tokens=False))


def tokens_of(checkpoint: Checkpoint) -> Tokens | None:
    """The tokenizer beside a checkpoint; None where there is none.

    Raises Skipped("malformed") where there is one that cannot be read.
    """
    found = checkpoint.read_beside("tokenizer.json", MOST_TOKENIZER)
    if found is not None:
        return _fast(found)
    for names in _OLDER:
        files = {name: checkpoint.read_beside(name, MOST_TOKENIZER) for name in names}
        if all(content is not None for content in files.values()):
            return _older(files, checkpoint)
    return None


def needed(tokens: Tokens | None, model: str, hint: str) -> Tokens:
    """Raises AtlasError with this hint where there is no tokenizer."""
    if tokens is None:
        raise AtlasError(f"{model} has no tokenizer that can be read.", hint)
    return tokens


def _fast(content: bytes) -> Tokens:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(content.decode())
    except Exception as error:  # whatever the library raises on a stranger's file
        raise Skipped("malformed", "its tokenizer.json is none") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = [number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    return Tokens(tokenizer, tuple(sorted(special)))


def _older(files: dict[str, bytes | None], checkpoint: Checkpoint) -> Tokens:
    from transformers import AutoTokenizer

    settings = checkpoint.read_beside("tokenizer_config.json", MOST_TOKENIZER)
    try:
        said = json.loads(settings or b"{}")
        kept = {name: said[name] for name in _SETTINGS if isinstance(said.get(name), bool)}
        with tempfile.TemporaryDirectory(prefix="tokenizer-") as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content or b"")
            config = {"model_type": checkpoint.config.get("model_type")}
            (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **kept)
    except Exception as error:
        raise Skipped("malformed", f"its {' and '.join(files)} make no tokenizer") from error
    return Tokens(tokenizer, tuple(sorted(tokenizer.all_special_ids)))
