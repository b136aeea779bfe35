"""A model's own tokenizer, run in a process with limited memory and time."""

from __future__ import annotations

import json
import os
import pickle
import select
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from indexer.errors import AtlasError, Skipped
from indexer.names import ModelRef
from indexer.network.session import install_session
from indexer.profiles import tokenizer_process
from indexer.weights.checkpoint_files import choose, read_config
from indexer.weights.repository import open_repository

if TYPE_CHECKING:
    from indexer.weights.checkpoint import Checkpoint  # which needs torch: it takes longer to load than to answer

_MOST_TOKENIZER = 64 << 20
# For one answer, and for the first, which includes starting the process and reading the files.
ANSWER_SECONDS, START_SECONDS = 20.0, 120.0
# Older repositories have one of these sets and no tokenizer.json.
_OLDER = (("vocab.json", "merges.txt"), ("vocab.txt",), ("spiece.model",), ("sentencepiece.bpe.model",))
# Keys of tokenizer_config.json that change how text is split.
_SETTINGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space")


_ASKING = Lock()  # a process answers one question at a time


class IsolatedTokenizer:
    """A tokenizer; ``special_ids`` are the ids that stand for no text.

    It runs in a process of its own, which ends with this object. All methods raise AtlasError if an answer takes more
    than ANSWER_SECONDS, or more memory than the process may have.
    """

    def __init__(self, files: Mapping[str, bytes], settings: Mapping[str, bool] | None = None) -> None:
        self._files, self._settings = dict(files), dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.special_ids = tuple(self._started())

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, nothing added."""
        return [int(one) for one in self._ask({"text": text})]

    def words(self, ids: Sequence[int]) -> list[str]:
        """The piece of text that each id stands for."""
        return [str(one) for one in self._ask({"ids": [[int(one)] for one in ids]})]

    def text(self, ids: Sequence[int]) -> str:
        """The ids as one text."""
        return str(self._ask({"ids": [[int(one) for one in ids]]})[0])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_process": None}  # started again after unpickling

    def _ask(self, request: dict[str, Any]) -> list[Any]:
        with _ASKING:
            if self._process is None:
                self._started()
            return self._answer(json.dumps(request).encode() + b"\n", ANSWER_SECONDS)

    def _started(self) -> list[Any]:
        kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "SYSTEMROOT", "PATH", "LANG", "TMPDIR")
        bare = {name: os.environ[name] for name in kept if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-P", tokenizer_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal should interrupt the parent only
            cwd=Path(tokenizer_process.__file__).anchor,
            env=bare
            | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
            | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
        weakref.finalize(self, _end, self._process)
        return self._answer(pickle.dumps((self._files, self._settings)), START_SECONDS)

    def _answer(self, question: bytes, seconds: float) -> list[Any]:
        process, until, found = self._process, time.monotonic() + seconds, bytearray()
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(question)
            process.stdin.flush()
            while not found.endswith(b"\n"):
                if not select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                    raise TimeoutError
                if not (piece := os.read(process.stdout.fileno(), 1 << 16)):
                    raise BrokenPipeError
                found += piece
            answer: list[Any] = json.loads(found)
        except BaseException as error:
            self._process = None
            _end(process)
            if isinstance(error, TimeoutError):
                raise AtlasError(f"The tokenizer takes more than {seconds:g} s to answer.", "") from error
            if isinstance(error, OSError):
                raise AtlasError("The tokenizer fails, or takes too much memory.", "") from error
            raise
        return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with suppress(OSError):  # unwritten bytes have no reader any more
            stream.close()


def tokenizer_of(checkpoint: Checkpoint) -> IsolatedTokenizer | None:
    """The tokenizer in a checkpoint's repository; None if there is none.

    Raises Skipped("malformed") if it cannot be read.
    """
    return _tokenizer(checkpoint.read_small, lambda: checkpoint.config)


def tokenizer_at(reference: ModelRef, commit: str | None, relation: str = "finetune") -> IsolatedTokenizer | None:
    """The tokenizer of a model on the Hub, in the cache or in a folder; None if there is none. No weights are opened.

    Raises ModelError if its files cannot be read.
    """
    install_session()
    repository = open_repository(reference, commit=commit)
    try:
        choice = choose(repository.filenames, relation)
    except Skipped:  # no weights, or only those of other tools
        return _tokenizer(lambda name, limit: repository.read_beside("", name, limit), dict)
    return _tokenizer(
        lambda name, limit: repository.read_beside(choice.folder, name, limit),
        lambda: read_config(repository, choice),
    )


def _tokenizer(
    read_small: Callable[[str, int], bytes | None], config: Callable[[], dict[str, Any]]
) -> IsolatedTokenizer | None:
    names: tuple[str, ...]
    for names in (("tokenizer.json",), *_OLDER):
        files = {name: read_small(name, _MOST_TOKENIZER) for name in names}
        if any(content is None for content in files.values()):
            continue
        content = {name: one for name, one in files.items() if one is not None}
        try:
            if names == ("tokenizer.json",):
                return IsolatedTokenizer(content)
            said = json.loads(read_small("tokenizer_config.json", _MOST_TOKENIZER) or b"{}")
            kept = {name: said[name] for name in _SETTINGS if isinstance(said.get(name), bool)}
            model_type = {"model_type": config().get("model_type")}
            return IsolatedTokenizer(content | {"config.json": json.dumps(model_type).encode()}, kept)
        except (AtlasError, ValueError, RecursionError, AttributeError) as error:
            why = f" ({error.message})" if isinstance(error, AtlasError) else ""
            raise Skipped("malformed", f"its {' and '.join(names)} cannot be loaded as a tokenizer{why}") from error
    return None


def require_tokenizer(tokenizer: IsolatedTokenizer | None, model: str, hint: str) -> IsolatedTokenizer:
    """The tokenizer. Raises AtlasError with this hint if there is none."""
    if tokenizer is None:
        raise AtlasError(f"{model} has no tokenizer.", hint)
    return tokenizer
