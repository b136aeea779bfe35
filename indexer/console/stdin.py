"""What comes on stdin: all of it within bounds, as text, or the names of models."""

from __future__ import annotations

import codecs
import io
import os
import select
import sys

from indexer.errors import AtlasError, BadArgument

STDIN = "-"
MOST_NAMES = 64 << 20  # bytes
LONGEST_NAME = 4096  # characters, the longest path that Linux takes
_SILENCE_SECONDS = 600.0


def read_stdin(most: int, seconds: float = _SILENCE_SECONDS) -> bytes:
    """All of stdin. Raises AtlasError if it has more than ``most`` bytes, or nothing comes for ``seconds``."""
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # a stream in memory, as notebooks and tests have it
        content = io.BytesIO(sys.stdin.buffer.read(most + 1))
        content.seek(0, os.SEEK_END)
    else:
        content = io.BytesIO()
        while content.tell() <= most:
            if not select.select([descriptor], [], [], seconds)[0]:
                raise AtlasError(f"No input on stdin for {seconds:g} s.", "Check the program that writes to it.")
            if not (piece := os.read(descriptor, 1 << 16)):
                break
            content.write(piece)
    if content.tell() > most:
        raise AtlasError(f"stdin holds more than {most:,} bytes.", "Send less at a time.")
    return content.getvalue()  # without a copy


_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip


def text_of(content: bytes, errors: str = "replace") -> str:
    """Text in UTF-8, or in the UTF-16 or UTF-32 that its byte order mark names, as editors and PowerShell write it."""
    encoding = next((encoding for mark, encoding in _MARKS if content.startswith(mark)), "utf-8")
    return content.decode(encoding, errors)


def names_on_stdin() -> list[str]:
    """The models on stdin, one per line; blank lines and text after # are ignored, overlong lines are cut.

    Raises AtlasError if stdin has no model or more than MOST_NAMES bytes, and BadArgument at a terminal.
    """
    if sys.stdin.isatty():
        raise BadArgument("- reads models from stdin, one per line: … - < models.txt", "")
    lines = text_of(read_stdin(MOST_NAMES)).split("\n")
    names = [name for line in lines if (name := line.partition("#")[0].strip())]
    names = [name if len(name) <= LONGEST_NAME else f"{name[:100]}… ({len(name):,} characters)" for name in names]
    if not names:
        raise AtlasError("No model came on stdin.", "Give one per line, e.g. owner/name.")
    return names
