"""A model's own tokenizer, run in a process with limited memory and time."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from indexer.checkpoints.checkpoint_files import choose, read_config
from indexer.checkpoints.repository import open_repository
from indexer.child_processes import start_child
from indexer.errors import AtlasError, Skipped
from indexer.network.session import install_session
from indexer.profiles import tokenizer_process
from indexer.profiles.tokenizer_process import START_SECONDS
from indexer.sources.registry import ModelRef
from indexer.untrusted import lone_surrogate, shown

if TYPE_CHECKING:
    from indexer.checkpoints.checkpoint import Checkpoint  # imports torch, which takes longer than an answer

_MOST_TOKENIZER = 64 << 20
# For one answer, and for all answers of one question together; starting takes up to START_SECONDS besides.
ANSWER_SECONDS, QUESTION_SECONDS = 20.0, 120.0
_PIECE = 1 << 16
_GRACE = 1.0  # seconds by which the process's own limit is longer, because ours has the better message
# Older repositories have one of these sets and no tokenizer.json.
_OLDER = (("vocab.json", "merges.txt"), ("vocab.txt",), ("spiece.model",), ("sentencepiece.bpe.model",))
# Keys of tokenizer_config.json that change how text is split.
_SETTINGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space")


_ASKING = Lock()  # a process answers one question at a time


class IsolatedTokenizer:
    """A tokenizer. ``special_ids``: the ids that stand for no text.

    It runs in a process of its own, which ends with this object and with this process. All methods raise AtlasError if
    an answer takes more than ANSWER_SECONDS, all answers of a question (``begin_question``) more than QUESTION_SECONDS,
    or the process more memory than it may have, or if the tokenizer fails on a text.
    """

    def __init__(self, files: Mapping[str, bytes], settings: Mapping[str, bool] | None = None) -> None:
        self._files, self._settings = dict(files), dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._seconds_left = QUESTION_SECONDS
        self.special_ids = tuple(self._started())

    def begin_question(self) -> None:
        """Begin another question: the following answers have QUESTION_SECONDS together."""
        self._seconds_left = QUESTION_SECONDS

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``, without added special ids."""
        if (half := lone_surrogate(text)) is not None:
            raise AtlasError(f"A text holds {half}, half of a surrogate pair, which is no character.", "Leave it out.")
        return [int(token) for token in self._ask({"text": text})]

    def words(self, ids: Sequence[int]) -> list[str]:
        """The piece of text that each id stands for."""
        return [str(word) for word in self._ask({"ids": [[int(token)] for token in ids]})]

    def text(self, ids: Sequence[int]) -> str:
        """The ids as one text."""
        return str(self._ask({"ids": [[int(token) for token in ids]]})[0])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_process": None, "_seconds_left": QUESTION_SECONDS}  # started again after unpickling

    def _ask(self, request: dict[str, Any]) -> list[Any]:
        with _ASKING:
            if self._process is None:
                self._started()
            before, seconds = time.monotonic(), min(ANSWER_SECONDS, max(self._seconds_left, 0.0))
            try:
                return self._answer(json.dumps(request | {"seconds": seconds + _GRACE}).encode() + b"\n", seconds)
            except TimeoutError as error:
                if seconds < ANSWER_SECONDS:
                    raise AtlasError(
                        f"The tokenizer takes more than {QUESTION_SECONDS:g} s for the texts of one question.",
                        "Give fewer or shorter texts.",
                    ) from error
                raise AtlasError(f"The tokenizer takes more than {seconds:g} s to answer.", "") from error
            finally:
                self._seconds_left -= time.monotonic() - before

    def _started(self) -> list[Any]:
        names = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "SYSTEMROOT", "PATH", "LANG", "TMPDIR")
        environment = {name: os.environ[name] for name in names if name in os.environ}
        self._process = start_child(
            [sys.executable, "-P", tokenizer_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(tokenizer_process.__file__).anchor,
            env=environment
            | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
            | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
        weakref.finalize(self, _end, self._process)
        try:
            return self._answer(pickle.dumps((self._files, self._settings)), START_SECONDS + _GRACE)
        except TimeoutError as error:
            raise AtlasError(f"The tokenizer takes more than {START_SECONDS:g} s to start.", "") from error

    def _answer(self, question: bytes, seconds: float) -> list[Any]:
        """The answer to a question. Raises TimeoutError, or AtlasError; a process that did not answer is then ended."""
        assert self._process is not None
        try:
            answer: list[Any] | dict[str, Any] = json.loads(_exchanged(self._process, question, seconds))
        except BaseException as error:
            process, self._process = self._process, None
            _end(process)
            if isinstance(error, TimeoutError):
                raise
            if isinstance(error, OSError) and -process.returncode in (signal.SIGALRM, signal.SIGXCPU):
                raise TimeoutError from error
            if isinstance(error, OSError):
                raise AtlasError("The tokenizer fails, or takes too much memory.", "") from error
            raise
        if isinstance(answer, dict):
            raise AtlasError(f"The tokenizer fails on a text: {shown(answer.get('error'))}.", "")
        return answer


def _exchanged(process: subprocess.Popen[bytes], question: bytes, seconds: float) -> bytes:
    """Send a question and return the line of the answer. Raises TimeoutError or another OSError."""
    assert process.stdin is not None
    assert process.stdout is not None
    until, answer, sent = time.monotonic() + seconds, bytearray(), 0
    os.set_blocking(process.stdin.fileno(), False)  # a process that does not read must not block this one
    while not answer.endswith(b"\n"):
        writers = [process.stdin] if sent < len(question) else []
        ready = select.select([process.stdout], writers, [], max(0.0, until - time.monotonic()))
        if ready[1]:
            sent += os.write(process.stdin.fileno(), question[sent : sent + _PIECE])
        elif ready[0]:
            if not (piece := os.read(process.stdout.fileno(), _PIECE)):
                raise BrokenPipeError
            answer += piece
        else:
            raise TimeoutError
    return bytes(answer)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        with suppress(OSError):  # unwritten bytes cannot be written: the reader has ended
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
    except Skipped:  # no weights, or only files of other tools
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
        present = {name: content for name, content in files.items() if content is not None}
        try:
            if names == ("tokenizer.json",):
                return IsolatedTokenizer(present)
            config_of_tokenizer = json.loads(read_small("tokenizer_config.json", _MOST_TOKENIZER) or b"{}")
            settings = {
                name: config_of_tokenizer[name] for name in _SETTINGS if isinstance(config_of_tokenizer.get(name), bool)
            }
            model_type = {"model_type": config().get("model_type")}
            return IsolatedTokenizer(present | {"config.json": json.dumps(model_type).encode()}, settings)
        except (AtlasError, ValueError, RecursionError, AttributeError) as error:
            why = f" ({error.message})" if isinstance(error, AtlasError) else ""
            raise Skipped("malformed", f"its {' and '.join(names)} cannot be loaded as a tokenizer{why}") from error
    return None


def require_tokenizer(tokenizer: IsolatedTokenizer | None, model: str, hint: str) -> IsolatedTokenizer:
    """The tokenizer. Raises AtlasError with this hint if there is none."""
    if tokenizer is None:
        raise AtlasError(f"{model} has no tokenizer.", hint)
    return tokenizer
