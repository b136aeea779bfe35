"""The process that runs a tokenizer. Its files are not trusted: a small file can take all memory and time.

Run as a script by :mod:`indexer.profiles.tokenizer`. It reads a pickle of the files from stdin, then one JSON request
per line. It writes one JSON answer per line to stdout: first the special ids, then an answer to each request, or an
object with an ``error`` if the tokenizer fails on it.

The kernel kills it when it takes more memory or time than it may, and when its parent ends.
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

from indexer.child_processes import end_with_parent, kill_after, lower_limits

MOST_ADDRESS_SPACE = 4 << 30  # transformers takes 1 GiB, a vocabulary of 64 MiB another
START_SECONDS = 120.0  # of wall time and of processor time: starting, and reading the files
_MOST_ANSWER = 8 << 20  # bytes of one answer
_LONGEST_ERROR = 200


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


def _answer(tokenizer: Any, request: dict[str, Any]) -> Any:
    try:
        if "text" in request:
            encoding = tokenizer.encode(request["text"], add_special_tokens=False)
            return [int(token) for token in getattr(encoding, "ids", encoding)]
        return [tokenizer.decode(ids, skip_special_tokens=False) for ids in request["ids"]]
    except (MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Rust library is not an Exception
        return {"error": " ".join(str(error).split())[:_LONGEST_ERROR] or type(error).__name__}


def _serve() -> None:
    end_with_parent()
    lower_limits(AS=MOST_ADDRESS_SPACE, CORE=0)
    kill_after(START_SECONDS)
    files, settings = pickle.load(sys.stdin.buffer)  # written by the parent process
    tokenizer, special = _tokenizer(files, settings)
    _write(sorted(special))
    kill_after(0)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        kill_after(request["seconds"])
        _write(_answer(tokenizer, request))
        kill_after(0)


if __name__ == "__main__":
    _serve()
