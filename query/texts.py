"""Texts from a file that a user names: lines, JSON lines, CSV, TSV or Parquet, or the same from stdin.

The files may come from anywhere: sizes are bounded, nothing is evaluated, and only regular files are opened.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import select
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from indexer.errors import AtlasError, BadArgument
from indexer.regular_files import open_regular
from indexer.untrusted import shown

STDIN = "-"
MOST_BYTES = 4 << 30  # of a file
MOST_STDIN = 256 << 20
_MOST_LIST = 256 << 20  # bytes of a JSON list, which is read whole
MOST_TEXTS = 10_000  # that are kept by default
LONGEST_LINE = 4 << 20  # bytes
LONGEST_TEXT = 100_000  # characters; the rest of a longer text is left out
_MOST_COLUMN = 2 << 30  # bytes of a row group of a Parquet column, once decompressed
_SILENCE_SECONDS = 600.0
_USUAL_FIELD = "text"
GIVEN = "these texts"  # the name of texts that are not in a file

_JSON, _CSV = (".jsonl", ".ndjson", ".json"), {".csv": ",", ".tsv": "\t"}
_KNOWN = {**dict.fromkeys(_JSON, "json"), **dict.fromkeys(_CSV, "csv"), ".parquet": "parquet",
          ".txt": "lines", ".text": "lines", ".md": "lines"}  # fmt: skip
# The first bytes of files that are something else.
_OTHERS = {
    b"\x1f\x8b": "compressed (gzip)",
    b"\x28\xb5\x2f\xfd": "compressed (zstd)",
    b"\xfd7zXZ\x00": "compressed (xz)",
    b"BZh": "compressed (bzip2)",
    b"PK\x03\x04": "a zip archive",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"%PDF": "a PDF",
    b"ARROW1": "an Arrow file",
}
_ADVICE = "Give text in UTF-8: lines, .jsonl, .csv, .tsv or .parquet."
_CONVERT = {"UTF-16 text": "Convert it: iconv -f UTF-16 -t UTF-8"}


@dataclass(frozen=True)
class Texts:
    """Texts of one file, in its order, none of them empty.

    ``total`` is how many the file holds: of many, ``texts`` are evenly spaced ones. ``notes`` says what was left out.
    """

    name: str
    texts: tuple[str, ...]
    total: int
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)


def read_texts(path: str | Path, field: str | None = None, *, most: int | None = MOST_TEXTS) -> Texts:
    """The texts in a file, or on stdin (``-``), at most ``most``, evenly spaced; None for all.

    A line of a text file is one text; in JSON lines, CSV, TSV and Parquet it is the ``field`` of a row, by default the
    one called "text", else the only one. The suffix of the name decides; where that says nothing, the content does:
    Parquet, JSON lines, CSV if a ``field`` is given, else lines. Empty texts are left out, and of a text the first
    100,000 characters are kept. JSON may also be one list, over any number of lines.

    Raises AtlasError if there is no such file, it holds no text, is too large, or is not UTF-8 text, and BadArgument
    for a ``field`` that it does not have.
    """
    name = "stdin" if str(path) == STDIN else str(path)
    kept = _EvenlySpaced(most)
    with _opened(path, name) as file:
        start = _start_of(file, name)
        kind = _KNOWN.get(Path(path).suffix.lower(), "") if name != "stdin" else ""
        if start.startswith(b"PAR1"):
            kind = "parquet"
        elif kind == "parquet":
            raise AtlasError(f"{name} is not a Parquet file.", _ADVICE)
        elif not kind:
            is_json = _is_object(start)
            kind = "json" if is_json else "lines" if field is None else "csv"
        if kind == "lines" and field is not None:
            raise BadArgument(f"{name} holds lines of text, which have no field {field!r}.", "Leave `field` out.")
        try:
            if kind == "parquet":
                found = _of_parquet(file, field, name)
            elif kind == "csv":
                # Where the name does not say it: a tab if the first line has one.
                separator = "\t" if b"\t" in start.split(b"\n", 1)[0] else ","
                found = _of_csv(file, field, name, _CSV.get(Path(path).suffix.lower(), separator))
            elif kind == "json":
                found = _of_json(file, field, name)
            else:
                found = (line for _, line in _lines(file, name))
            for text in found:
                kept.add(text)
        except OSError as error:
            raise AtlasError(f"{name} cannot be read: {error.strerror or error}.", _ADVICE) from error
    texts = kept.texts()
    if not texts:
        what = "" if field is None else f" in its field {field!r}"
        raise AtlasError(f"{name} holds no text{what}.", _ADVICE)
    notes = []
    if len(texts) < kept.count:
        notes.append(f"{name} holds {kept.count:,} texts; {len(texts):,} of them, evenly spaced, were used")
    if kept.cut:
        longer = "1 long text" if kept.cut == 1 else f"{kept.cut:,} long texts"
        notes.append(f"of {longer} of {name} the first {LONGEST_TEXT:,} characters were used")
    return Texts(name, tuple(texts), kept.count, tuple(notes))


def given_texts(texts: Sequence[str], *, most: int | None = MOST_TEXTS) -> Texts:
    """Texts that are not in a file, cut and thinned out like those of a file. Raises AtlasError if all are empty."""
    kept = _EvenlySpaced(most)
    for text in texts:
        kept.add(text)
    if not kept.count:
        raise AtlasError("There is no text.", "Give a few dozen texts.")
    return Texts(GIVEN, tuple(kept.texts()), kept.count)


def read_stdin(most: int, seconds: float = _SILENCE_SECONDS) -> bytes:
    """All of stdin. Raises AtlasError if it has more than ``most`` bytes, or nothing comes for ``seconds``."""
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


_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip


def text_of(content: bytes, errors: str = "replace") -> str:
    """Text in UTF-8, or in the UTF-16 or UTF-32 that its byte order mark names, as editors and PowerShell write it."""
    encoding = next((encoding for mark, encoding in _MARKS if content.startswith(mark)), "utf-8")
    return content.decode(encoding, errors)


class _EvenlySpaced:
    """Keeps at most ``most`` of the texts that are added, evenly spaced, in one pass.

    Every ``_step``-th text is kept; once there are twice as many as asked for, every other one is dropped.
    """

    def __init__(self, most: int | None) -> None:
        self.count = self.cut = 0
        self._most, self._step = most, 1
        self._kept: list[str] = []

    def add(self, text: str) -> None:
        text = text.strip()
        if not text:
            return
        if self.count % self._step == 0:
            self.cut += len(text) > LONGEST_TEXT
            self._kept.append(text[:LONGEST_TEXT])
            if self._most is not None and len(self._kept) >= 2 * max(self._most, 1):
                self._kept, self._step = self._kept[::2], 2 * self._step
        self.count += 1

    def texts(self) -> list[str]:
        kept, most = self._kept, self._most
        if most is None or len(kept) <= most:
            return kept
        return [kept[place * len(kept) // most] for place in range(most)]


def _opened(path: str | Path, name: str) -> IO[bytes]:
    if name == "stdin":
        return io.BytesIO(read_stdin(MOST_STDIN))
    try:
        file = open_regular(Path(path), through_links=True)
    except FileNotFoundError as error:
        raise AtlasError(f"There is no file {name}.", _ADVICE) from error
    except (OSError, ValueError) as error:
        raise AtlasError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}.", _ADVICE) from error
    if os.fstat(file.fileno()).st_size > MOST_BYTES:
        file.close()
        raise AtlasError(f"{name} has more than {MOST_BYTES >> 30} GiB.", "Give a part of it.")
    return file


def _start_of(file: IO[bytes], name: str) -> bytes:
    """The first bytes; the file is at its start again. Raises AtlasError if they are not those of text or Parquet."""
    start = file.read(1 << 16)
    file.seek(0)
    for magic, what in _OTHERS.items():
        if start.startswith(magic):
            raise AtlasError(f"{name} is {what}.", _CONVERT.get(what, _ADVICE))
    if b"\0" in start and not start.startswith(b"PAR1"):
        raise AtlasError(f"{name} is not text.", _ADVICE)
    return start


def _lines(file: IO[bytes], name: str) -> Iterator[tuple[int, str]]:
    """Numbers, from 1, and texts of the lines."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise AtlasError(f"Line {number:,} of {name} has more than {LONGEST_LINE >> 20} MiB.", _ADVICE)
        if b"\0" in line:
            raise AtlasError(f"{name} is not text.", _ADVICE)
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise AtlasError(
                f"Line {number:,} of {name} is not UTF-8.", "Convert it, for example: iconv -f LATIN1 -t UTF-8"
            ) from error


def _is_object(start: bytes) -> bool:
    """Whether the first line is a JSON object."""
    line = start.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    if not line.startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _chosen(field: str | None, names: Iterable[str], where: str) -> str:
    """The field that holds the text. Raises BadArgument that lists the others."""
    known = list(names)
    if field in known:
        return str(field)
    listed = ", ".join(shown(one, 40) for one in known[:12]) or "none"
    if field is not None:
        raise BadArgument(f"{where} has no field {field!r}; its fields are: {listed}.", "Name one: `field='NAME'`")
    if _USUAL_FIELD in known or len(known) == 1:
        return _USUAL_FIELD if _USUAL_FIELD in known else known[0]
    raise BadArgument(f"{where} has several fields: {listed}.", "Say which holds the text: `field='NAME'`")


def _of_json(file: IO[bytes], field: str | None, name: str) -> Iterator[str]:
    """The texts of JSON lines, or of one JSON list over any number of lines: strings, or a field of objects."""
    start = file.read(1 << 10)
    file.seek(0)
    found: Iterator[tuple[Any, str]]
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        whole = file.read(_MOST_LIST + 1)
        if len(whole) > _MOST_LIST:
            raise AtlasError(f"{name} is a JSON list of more than {_MOST_LIST >> 20} MiB.", "Give JSON lines.")
        try:
            rows = json.loads(whole.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            why = f"line {error.lineno:,}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)[:80]
            raise AtlasError(f"{name} is not a JSON list ({why}).", "Give one JSON object in each line.") from error
        found = ((row, f"Entry {number:,} of {name}") for number, row in enumerate(rows, start=1))
    else:
        found = _json_lines(file, name)
    for row, where in found:
        text = row[_chosen(field, row, where)] if isinstance(row, dict) else row
        if text is None:
            continue
        if not isinstance(text, str):
            raise AtlasError(f"{where} holds {type(text).__name__}, not a text.", "Name another `field`.")
        yield text


def _json_lines(file: IO[bytes], name: str) -> Iterator[tuple[Any, str]]:
    """What each line that is not empty holds, and how to name the line."""
    for number, line in _lines(file, name):
        if not line.strip():
            continue
        where = f"Line {number:,} of {name}"
        try:
            yield json.loads(line), where
        except (ValueError, RecursionError) as error:
            raise AtlasError(f"{where} is not JSON.", "Give one JSON object in each line.") from error


def _of_csv(file: IO[bytes], field: str | None, name: str, separator: str) -> Iterator[str]:
    """The texts of a column; the first row names the columns."""
    lines = (line for _, line in _lines(file, name))
    csv.field_size_limit(LONGEST_LINE)  # a text may be longer than the 128 KiB that Python allows
    rows = csv.reader(lines, delimiter=separator)
    try:
        header = next(rows, [])
        if header and len(set(header)) < len(header):
            raise BadArgument(f"{name} names a column twice.", _ADVICE)
        place = header.index(_chosen(field, header, name)) if header else 0
        for row in rows:
            if len(row) > place:
                yield row[place]
            elif row:
                raise AtlasError(
                    f"Line {rows.line_num:,} of {name} has {len(row)} columns, not {len(header)}.", _ADVICE
                )
    except csv.Error as error:
        raise AtlasError(f"Line {rows.line_num:,} of {name} is not CSV: {error}.", _ADVICE) from error


def _of_parquet(file: IO[bytes], field: str | None, name: str) -> Iterator[str]:
    """The texts of a column of strings."""
    import pyarrow
    from pyarrow import compute, parquet

    limits = {"thrift_string_size_limit": 16 << 20, "thrift_container_size_limit": 1 << 20}
    try:
        schema = parquet.ParquetFile(cast(Any, file), **limits).schema_arrow
        column = _chosen(field, schema.names, name)
        kind = schema.field(column).type
        inner = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if inner not in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
            raise BadArgument(f"The column {column!r} of {name} holds {str(kind)[:60]}, not text.", _ADVICE)
        # Each different text is held once: a file of a kilobyte can repeat one of gigabytes in every row.
        table = parquet.ParquetFile(cast(Any, file), read_dictionary=[column], **limits)
        place = table.schema.names.index(column)
        for group in range(table.metadata.num_row_groups):
            if table.metadata.row_group(group).column(place).total_uncompressed_size > _MOST_COLUMN:
                raise AtlasError(f"A row group of {name} has more than {_MOST_COLUMN >> 30} GiB of text.", _ADVICE)
        for batch in table.iter_batches(batch_size=1024, columns=[column], use_threads=False):
            rows = batch.column(0)
            if not isinstance(rows, pyarrow.DictionaryArray):
                rows = rows.dictionary_encode()
            texts = compute.utf8_slice_codeunits(rows.dictionary, 0, LONGEST_TEXT + 1).to_pylist()
            yield from (texts[index] for index in rows.indices.to_pylist() if index is not None)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        why = shown(" ".join(str(error).split()), 120)
        raise AtlasError(f"{name} cannot be read as Parquet: {why}.", _ADVICE) from error
