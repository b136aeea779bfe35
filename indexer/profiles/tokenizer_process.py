"""The process that runs a tokenizer. Its files are not trusted: a small one can take all memory.

Run as a script by :mod:`indexer.profiles.tokenizer`. It reads a pickle of the files from stdin, then one JSON request
per line. It writes one JSON answer per line to stdout: first the special ids, then an answer to each request.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

MOST_ADDRESS_SPACE = 4 << 30  # transformers takes 1 GiB, a vocabulary of 64 MiB another
_MOST_ANSWER = 8 << 20  # bytes of one answer


def _tokenizer(files: dict[str, bytes], settings: dict[str, bool]) -> tuple[Any, list[int]]:
    """A tokenizer, and its special ids."""
    if "tokenizer.json" in files:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        added = tokenizer.get_added_tokens_decoder()
        return tokenizer, [number for number, token in added.items() if token.special]

    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory(prefix="tokenizer-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        older = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **settings)
    return older, list(older.all_special_ids)


def _write(value: Any) -> None:
    line = json.dumps(value)
    if len(line) > _MOST_ANSWER:
        raise MemoryError
    print(line, flush=True)


def _serve() -> None:
    try:
        import resource
    except ImportError:  # Windows
        pass
    else:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = MOST_ADDRESS_SPACE if hard == resource.RLIM_INFINITY else min(hard, MOST_ADDRESS_SPACE)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files, settings = pickle.load(sys.stdin.buffer)  # written by the parent process
    tokenizer, special = _tokenizer(files, settings)
    _write(sorted(special))
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "text" in request:
            found = tokenizer.encode(request["text"], add_special_tokens=False)
            _write([int(one) for one in getattr(found, "ids", found)])
        else:
            _write([tokenizer.decode(ids, skip_special_tokens=False) for ids in request["ids"]])


if __name__ == "__main__":
    _serve()
