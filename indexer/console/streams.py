"""The standard streams: those that are missing, and stdin read within bounds."""

from __future__ import annotations

import io
import os
import select
import sys

from indexer.errors import AtlasError

SILENCE_SECONDS = 600.0
_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def replace_closed_streams() -> None:
    """Put the null device in place of every standard stream that is missing, descriptor and all.

    Python leaves None for such a stream. A descriptor that stays free is worse: the next file that is opened gets
    it, and is written to by whatever writes to standard error.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:
            continue
        descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so `number` unless another file has it
        os.set_inheritable(descriptor, descriptor == number)  # for workers: they write where we would
        stream = os.fdopen(descriptor, mode, encoding="utf-8", errors="backslashreplace", closefd=False)
        setattr(sys, name, stream)


def read_stdin(most: int, seconds: float = SILENCE_SECONDS) -> bytes:
    """All of stdin. Raises AtlasError where it holds more than ``most`` bytes, or nothing comes for ``seconds``."""
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # a stream in memory, as notebooks and tests have it
        found = sys.stdin.buffer.read(most + 1)
    else:
        found = bytearray()
        while len(found) <= most:
            if not select.select([descriptor], [], [], seconds)[0]:
                raise AtlasError(f"Nothing came on stdin for {seconds:g} s.", "Check the program that writes to it.")
            if not (piece := os.read(descriptor, 1 << 16)):
                break
            found += piece
    if len(found) > most:
        raise AtlasError(f"stdin holds more than {most:,} bytes.", "Send less at a time.")
    return bytes(found)
